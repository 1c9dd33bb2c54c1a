//! Frames in words, for the log of one seed.
//!
//! Invariants: a frame that cannot be decoded is shown as such.
//! Never: part of a sweep; it decodes everything.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use millstream::formats::protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, ApiVersionsRequest, CreateTopicsRequest,
    DescribeProducersRequest, DescribeTransactionsRequest, EndTxnRequest, FetchRequest,
    FindCoordinatorRequest, HeartbeatRequest, InitProducerIdRequest, JoinGroupRequest,
    LeaveGroupRequest, ListOffsetsRequest, ListTransactionsRequest, MetadataRequest,
    OffsetCommitRequest, OffsetFetchRequest, ProduceRequest, SyncGroupRequest,
    TxnOffsetCommitRequest,
};
use millstream::formats::protocol::{
    ApiKey, Decoder, Frame, Request, decode_request_header, decode_response,
};
use millstream::testing::{Direction, FrameEvent};

/// Longest text of one message.
const TEXT_MAX: usize = 700;

/// What tells a request from every other.
type Question = (String, u64, i32);

/// Remembers what was asked, to decode what is answered.
#[derive(Debug, Default)]
pub(super) struct Describer {
    asked: Mutex<BTreeMap<Question, (ApiKey, i16)>>,
}

impl Describer {
    /// The frame in words; `None` for what only fills the log.
    pub(super) fn describe(&self, event: &FrameEvent<'_>) -> Option<String> {
        let text = match event.direction {
            Direction::Request => self.request(event),
            Direction::Response => self.response(event),
        }?;
        let (arrow, lost) = match event.direction {
            Direction::Request => ("->", if event.arrived { "" } else { " LOST" }),
            Direction::Response => ("<-", if event.arrived { "" } else { " LOST" }),
        };
        let took = event.took.as_millis();
        Some(format!(
            "{}/{} {arrow} {text} ({took} ms){lost}",
            event.network, event.connection
        ))
    }

    fn request(&self, event: &FrameEvent<'_>) -> Option<String> {
        let mut decoder = Decoder::new(event.frame.clone());
        let header = decode_request_header(&mut decoder).ok()?;
        let api = ApiKey::from_i16(header.api_key)?;
        let key = (
            event.network.to_owned(),
            event.connection,
            header.correlation_id,
        );
        let asked = (api, header.api_version);
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, asked);
        if matches!(api, ApiKey::ApiVersions | ApiKey::Metadata) {
            return None;
        }
        Some(shorten(format!(
            "#{} {}",
            header.correlation_id,
            request(api, decoder, header.api_version)
        )))
    }

    fn response(&self, event: &FrameEvent<'_>) -> Option<String> {
        let correlation_id = Decoder::new(event.frame.clone()).i32().ok()?;
        let key = (event.network.to_owned(), event.connection, correlation_id);
        let (api, version) = *self
            .asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key)?;
        if matches!(api, ApiKey::ApiVersions | ApiKey::Metadata) {
            return None;
        }
        Some(shorten(format!(
            "#{correlation_id} {}",
            response(api, event.frame, version)
        )))
    }
}

fn shorten(mut text: String) -> String {
    if text.len() > TEXT_MAX {
        let mut end = TEXT_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

fn shown<M: Debug, E: Debug>(decoded: Result<M, E>) -> String {
    match decoded {
        Ok(message) => format!("{message:?}"),
        Err(error) => format!("undecodable: {error:?}"),
    }
}

macro_rules! by_api {
    ($($api:ident: $request:ident,)*) => {
        fn request(api: ApiKey, mut decoder: Decoder, version: i16) -> String {
            use millstream::formats::protocol::Message;
            match api {
                $(ApiKey::$api => shown($request::decode(&mut decoder, version)),)*
                other => format!("{other:?}"),
            }
        }

        fn response(api: ApiKey, frame: &Frame, version: i16) -> String {
            fn answer<R: Request>(frame: &Frame, version: i16) -> String {
                shown(decode_response::<R>(frame.clone(), version).map(|(_, answer)| answer))
            }
            match api {
                $(ApiKey::$api => answer::<$request>(frame, version),)*
                other => format!("{other:?}"),
            }
        }
    };
}

by_api! {
    Produce: ProduceRequest,
    Fetch: FetchRequest,
    ListOffsets: ListOffsetsRequest,
    Metadata: MetadataRequest,
    OffsetCommit: OffsetCommitRequest,
    OffsetFetch: OffsetFetchRequest,
    FindCoordinator: FindCoordinatorRequest,
    JoinGroup: JoinGroupRequest,
    Heartbeat: HeartbeatRequest,
    LeaveGroup: LeaveGroupRequest,
    SyncGroup: SyncGroupRequest,
    ApiVersions: ApiVersionsRequest,
    CreateTopics: CreateTopicsRequest,
    InitProducerId: InitProducerIdRequest,
    AddPartitionsToTxn: AddPartitionsToTxnRequest,
    AddOffsetsToTxn: AddOffsetsToTxnRequest,
    EndTxn: EndTxnRequest,
    TxnOffsetCommit: TxnOffsetCommitRequest,
    DescribeTransactions: DescribeTransactionsRequest,
    ListTransactions: ListTransactionsRequest,
    DescribeProducers: DescribeProducersRequest,
}

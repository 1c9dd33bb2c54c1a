//! A message of any API, told by its number: what golden frames and fuzzing share.
//!
//! Invariants: `for_each_api!` has every API of `ApiKey::ALL`; a test says so.
//! Never: knows what a message means, save that Produce and Fetch carry record batches.

use bytes::Bytes;
use millstream_protocol::messages::*;
use millstream_protocol::{
    ApiKey, BatchError, BatchRewriter, Compression, DecodeError, Decoder, Encoder, ErrorCode,
    Frame, Message, ProducerStamp, RecordBatch, Request, decode_request_header,
};

/// Calls `$run!(Request)` for the request of one API.
macro_rules! for_each_api {
    ($run:ident, $api:expr) => {
        for_each_api!(@names $run, $api,
            ProduceRequest FetchRequest ListOffsetsRequest MetadataRequest OffsetCommitRequest
            OffsetFetchRequest FindCoordinatorRequest JoinGroupRequest HeartbeatRequest
            LeaveGroupRequest SyncGroupRequest DescribeGroupsRequest ListGroupsRequest
            ApiVersionsRequest CreateTopicsRequest DeleteTopicsRequest DeleteRecordsRequest
            InitProducerIdRequest OffsetForLeaderEpochRequest AddPartitionsToTxnRequest
            AddOffsetsToTxnRequest EndTxnRequest WriteTxnMarkersRequest TxnOffsetCommitRequest
            DescribeAclsRequest DescribeConfigsRequest AlterConfigsRequest DescribeLogDirsRequest
            CreatePartitionsRequest DeleteGroupsRequest ElectLeadersRequest
            IncrementalAlterConfigsRequest ListPartitionReassignmentsRequest OffsetDeleteRequest
            DescribeClusterRequest DescribeProducersRequest DescribeTransactionsRequest
            ListTransactionsRequest ConsumerGroupHeartbeatRequest ConsumerGroupDescribeRequest
            ListConfigResourcesRequest DescribeTopicPartitionsRequest SaslHandshakeRequest
            SaslAuthenticateRequest CreateAclsRequest DeleteAclsRequest
        )
    };
    (@names $run:ident, $api:expr, $($name:ident)*) => {
        match $api {
            $(api if api == $name::API => $run!($name),)*
            other => unreachable!("invariant: {other} is in the list"),
        }
    };
}

/// A message that was read, as the bytes that it has when it is written again.
#[derive(Debug)]
pub(crate) struct Again {
    /// Header and body.
    pub(crate) bytes: Bytes,
    /// Bytes that followed the body.
    pub(crate) left: usize,
    /// The record batches in it.
    pub(crate) batches: Vec<Bytes>,
}

/// Reads a frame as a request, and writes it again.
///
/// # Panics
/// If what was read cannot be written.
pub(crate) fn request(frame: Bytes) -> Result<Again, DecodeError> {
    let mut decoder = Decoder::from_bytes(frame);
    let header = decode_request_header(&mut decoder)?;
    let version = header.api_version;
    let Some(api) =
        ApiKey::from_i16(header.api_key).filter(|api| api.versions().contains(&version))
    else {
        return Err(DecodeError::Version {
            message: "any request",
            version,
        });
    };
    let mut encoder = Encoder::new();
    encoder.i16(header.api_key);
    encoder.i16(version);
    encoder.i32(header.correlation_id);
    match &header.client_id {
        None => encoder.i16(-1),
        Some(text) => {
            encoder.i16(text.len() as i16);
            encoder.raw(text.as_bytes());
        }
    }
    if api.request_header_version(version) >= 2 {
        encoder.unsigned_varint(0);
    }
    macro_rules! run {
        ($name:ident) => {
            body::<$name>(&mut decoder, version, encoder)
        };
    }
    let mut again = for_each_api!(run, api)?;
    if api == ApiKey::Produce {
        again.batches = produced(again.bytes.clone());
    }
    Ok(again)
}

/// Reads a frame as the response to a request of this version, and writes it again.
///
/// # Panics
/// If what was read cannot be written.
pub(crate) fn response(api: ApiKey, version: i16, frame: Bytes) -> Result<Again, DecodeError> {
    let mut decoder = Decoder::from_bytes(frame);
    let mut encoder = Encoder::new();
    encoder.i32(decoder.i32()?);
    if api.response_header_version(version) >= 1 {
        decoder.skip_tags()?;
        encoder.unsigned_varint(0);
    }
    let mut version = version;
    if api == ApiKey::ApiVersions
        && decoder.clone().i16().map(ErrorCode) == Ok(ErrorCode::UNSUPPORTED_VERSION)
    {
        version = 0;
    }
    macro_rules! run {
        ($name:ident) => {
            body::<<$name as Request>::Response>(&mut decoder, version, encoder)
        };
    }
    let mut again = for_each_api!(run, api)?;
    if api == ApiKey::Fetch {
        again.batches = fetched(version, again.bytes.clone());
    }
    Ok(again)
}

fn body<M: Message>(
    decoder: &mut Decoder,
    version: i16,
    mut encoder: Encoder,
) -> Result<Again, DecodeError> {
    let message = M::decode(decoder, version)?;
    let left = decoder.remaining();
    message
        .encode(&mut encoder, version)
        .unwrap_or_else(|error| panic!("read but not written: {error}\n{message:?}"));
    Ok(Again {
        bytes: encoder.finish().into_contiguous(),
        left,
        batches: Vec::new(),
    })
}

fn produced(frame: Bytes) -> Vec<Bytes> {
    let mut decoder = Decoder::from_bytes(frame);
    let header = decode_request_header(&mut decoder).expect("written by ourselves");
    let request = ProduceRequest::decode(&mut decoder, header.api_version).expect("as before");
    let topics = request.topic_data.into_iter();
    topics
        .flat_map(|topic| topic.partition_data)
        .filter_map(|partition| partition.records)
        .collect()
}

fn fetched(version: i16, frame: Bytes) -> Vec<Bytes> {
    let frame = Frame::from_bytes(frame);
    let (_, response) =
        millstream_protocol::decode_response::<FetchRequest>(frame, version).expect("as before");
    let topics = response.responses.into_iter();
    topics
        .flat_map(|topic| topic.partitions)
        .filter_map(|partition| partition.records)
        .collect()
}

/// The first two bytes say the API, by its number, and the version, by its place among the API's;
/// the rest is what follows them in a frame.
pub(crate) fn drawn(input: &[u8]) -> Option<(ApiKey, i16, Bytes)> {
    let ([api, version], rest) = input.split_first_chunk::<2>()?;
    let any = ApiKey::ALL[usize::from(*api) % ApiKey::ALL.len()];
    let api = ApiKey::from_i16(i16::from(*api)).unwrap_or(any);
    let versions = api.versions();
    let count = versions.end() - versions.start() + 1;
    let version = versions.start() + i16::from(*version) % count;
    Some((api, version, Bytes::copy_from_slice(rest)))
}

/// A frame as an input from which [`drawn`] gives it back; `rest` as for `drawn`.
pub(crate) fn input_of(api: ApiKey, version: i16, rest: &[u8]) -> Vec<u8> {
    let mut input = vec![api as u8, (version - api.versions().start()) as u8];
    input.extend_from_slice(rest);
    input
}

/// A request from this input is an error, or comes back as what was written.
pub(crate) fn try_request(input: &[u8]) {
    let Some((api, version, rest)) = drawn(input) else {
        return;
    };
    let mut frame = Vec::with_capacity(4 + rest.len());
    frame.extend((api as i16).to_be_bytes());
    frame.extend(version.to_be_bytes());
    frame.extend(&rest[..]);
    let Ok(once) = request(Bytes::from(frame)) else {
        return;
    };
    let twice = request(once.bytes.clone()).expect("written by ourselves");
    assert_eq!(once.bytes, twice.bytes, "{api} {version}");
    assert_eq!(twice.left, 0, "{api} {version}");
}

/// A response from this input is an error, or comes back as what was written.
pub(crate) fn try_response(input: &[u8]) {
    let Some((api, version, rest)) = drawn(input) else {
        return;
    };
    let Ok(once) = response(api, version, rest) else {
        return;
    };
    let twice = response(api, version, once.bytes.clone()).expect("written by ourselves");
    assert_eq!(once.bytes, twice.bytes, "{api} {version}");
    assert_eq!(twice.left, 0, "{api} {version}");
}

/// What the batches of an input may decompress to.
pub(crate) const PLAIN_BYTES_MAX: usize = 1 << 20;

/// Everything that broker, log and client do with record batches, to batches from this input: the
/// first byte chooses, the rest is batches one behind the other.
pub(crate) fn try_batches(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else {
        return;
    };
    let mut bytes = Bytes::copy_from_slice(rest);
    let _ = RecordBatch::parse(bytes.clone());
    while let Ok(Some(batch)) = RecordBatch::split_from(&mut bytes) {
        let _ = batch.verify_crc();
        let _ = batch.control();
        let valid = batch.validate_records(PLAIN_BYTES_MAX);
        let walked = walk(&batch);
        if let Ok(summary) = valid {
            assert_eq!(walked, Ok(summary.record_count), "two walks of one batch");
        }
        derive(&batch, *choice, walked.is_ok());
    }
}

/// Reads every record as its owner and as its borrower sees it.
fn walk(batch: &RecordBatch) -> Result<i32, BatchError> {
    // Twice, since other timestamps may take more bytes.
    let mut views = batch.records(2 * PLAIN_BYTES_MAX)?;
    let mut count = 0;
    for record in batch.records(2 * PLAIN_BYTES_MAX)? {
        let view = views.next_view().expect("as many as records");
        let record = match (record, view) {
            (Ok(record), Ok(view)) => {
                assert_eq!(record.key.as_deref(), view.key);
                assert_eq!(record.value.as_deref(), view.value);
                record
            }
            (Err(error), Err(same)) => {
                assert_eq!(error, same);
                return Err(error);
            }
            (record, view) => panic!("{record:?} is not {view:?}"),
        };
        assert_eq!(record.headers.iter_bytes().count(), record.headers.len());
        let _ = record.headers.last("h");
        count += 1;
    }
    Ok(count)
}

/// The batches that are made from a batch.
fn derive(batch: &RecordBatch, choice: u8, readable: bool) {
    let sound = |bytes: Bytes| {
        let derived = RecordBatch::parse(bytes).expect("derived from a batch");
        derived.verify_crc().expect("sealed");
        derived
    };
    let codec = Compression::ALL[usize::from(choice) % Compression::ALL.len()];
    if let Ok(bytes) = batch.recompressed(codec, PLAIN_BYTES_MAX) {
        let derived = sound(bytes);
        assert_eq!(derived.compression(), codec);
        assert_eq!(walk(&derived).is_ok(), readable, "{codec}");
    }
    let stamp = ProducerStamp {
        producer_id: 7,
        producer_epoch: 1,
        base_sequence: i32::MAX,
        transactional: choice & 1 == 1,
    };
    assert_eq!(sound(batch.restamped(stamp)).stamp(), stamp);
    assert_eq!(sound(batch.with_max_timestamp(5)).max_timestamp(), 5);
    sound(batch.with_log_append_time(5));
    let kept: Vec<bool> = (0..batch.record_count().min(64))
        .map(|index| choice >> (index & 7) & 1 == 1)
        .collect();
    let horizon = (choice & 2 == 2).then_some(9);
    if let Ok(bytes) = BatchRewriter::new().with_records(batch, &kept, horizon, PLAIN_BYTES_MAX) {
        let derived = sound(bytes);
        let stays = kept.iter().filter(|kept| **kept).count();
        assert_eq!(walk(&derived), Ok(stays as i32));
        assert_eq!(derived.last_offset_delta(), batch.last_offset_delta());
    }
}

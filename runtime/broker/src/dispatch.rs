//! From a frame to the handler of its API and back: the table of what this broker serves.
//!
//! Invariants: `SERVED` and the handlers come from the same table, so ApiVersions advertises what
//! works.
//! Invariants: a frame that cannot be decoded closes its own connection and touches nothing else.
//! Never: answers out of turn; that is `connection`'s.

use crate::connection::Turn;
use crate::handlers;
use crate::node::Node;
use bytes::Bytes;
use millstream_protocol::messages::*;
use millstream_protocol::{
    ApiKey, Decoder, Frame, Message, decode_request_header, encode_response,
};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tracing::Instrument;

/// What a handler may know of its request beyond the request itself.
#[derive(Debug)]
pub(crate) struct RequestContext {
    /// The API.
    pub(crate) api: ApiKey,
    /// The version in which the request came and the answer goes.
    pub(crate) api_version: i16,
    /// Echoed in the answer.
    pub(crate) correlation_id: i32,
    /// The client's name for itself.
    pub(crate) client_id: Option<String>,
    /// Where the connection comes from, for member descriptions and logs.
    pub(crate) peer: Arc<str>,
    /// The address at which the client reached us, if it came over a socket.
    pub(crate) reached_at: Option<SocketAddr>,
    /// The longest piece of the request's frame: what a part of it may keep in memory.
    pub(crate) piece_bytes: usize,
    turn: Turn,
    ending: AtomicU8,
}

const ANSWERED: u8 = 0;
const SILENT: u8 = 1;
const CLOSED: u8 = 2;

impl RequestContext {
    /// Lets the connection's next request begin while this one goes on. A handler calls it once
    /// everything whose order matters has happened (an append), before it waits (for durability,
    /// for data).
    pub(crate) fn release_turn(&self) {
        self.turn.release();
    }

    /// The client's host as groups tell it, as Kafka does: `/` and the address (IPv6 in short),
    /// without the port, so that a member that reconnects is from the same host.
    pub(crate) fn client_host(&self) -> String {
        host_of(&self.peer)
    }

    /// Ends when the connection takes no more requests: nothing is worth waiting for any longer.
    pub(crate) async fn ending(&self) {
        self.turn.ending().await;
    }

    /// Ends when the answer may be large: the answers that wait before it are few.
    pub(crate) async fn may_be_large(&self) {
        self.turn.may_be_large().await;
    }

    /// The request gets no answer (acks 0).
    pub(crate) fn answer_nothing(&self) {
        self.ending.fetch_max(SILENT, Ordering::Relaxed);
    }

    /// The request gets no answer, and its connection is closed.
    pub(crate) fn close_connection(&self) {
        self.ending.fetch_max(CLOSED, Ordering::Relaxed);
    }
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// This answer goes out.
    Answer(Frame),
    /// Nothing goes out.
    Nothing,
    /// The connection is closed, for this reason.
    Close(String),
}

impl Outcome {
    /// What waits for its turn to leave.
    pub(crate) fn size_bytes(&self) -> usize {
        match self {
            Self::Answer(frame) => frame.size_bytes(),
            Self::Nothing | Self::Close(_) => 0,
        }
    }
}

/// A request on its way.
pub(crate) type Pending = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// One line an API: key => handler module (request type) "tracing span, named after the stage".
macro_rules! table {
    ($($api:ident => $handler:ident($request:ty) $span:literal;)*) => {
        /// The APIs that this broker answers.
        pub(crate) const SERVED: &[ApiKey] = &[$(ApiKey::$api),*];

        fn call(node: Arc<Node>, context: RequestContext, mut decoder: Decoder) -> Pending {
            match context.api {
                $(ApiKey::$api => {
                    let request = match <$request>::decode(&mut decoder, context.api_version) {
                        Ok(request) => request,
                        Err(error) => return close(format!("{:?}: {error}", context.api)),
                    };
                    let span = tracing::debug_span!(
                        $span,
                        version = context.api_version,
                        correlation = context.correlation_id,
                        client = context.client_id.as_deref()
                    );
                    Box::pin(async move {
                        let answer = handlers::$handler::handle(&node, &context, request).await;
                        conclude(&context, &answer)
                    }.instrument(span))
                })*
                #[allow(unreachable_patterns)]
                other => close(format!("{other:?} is not served")),
            }
        }
    };
}

table! {
    Produce => produce(ProduceRequest) "append";
    Fetch => fetch(FetchRequest) "fetch";
    ListOffsets => list_offsets(ListOffsetsRequest) "list_offsets";
    Metadata => metadata(MetadataRequest) "metadata";
    ApiVersions => api_versions(ApiVersionsRequest) "api_versions";
    CreateTopics => create_topics(CreateTopicsRequest) "create_topics";
    DeleteRecords => delete_records(DeleteRecordsRequest) "delete_records";
    DeleteTopics => delete_topics(DeleteTopicsRequest) "delete_topics";
    OffsetForLeaderEpoch => offset_for_leader_epoch(OffsetForLeaderEpochRequest) "leader_epoch";
    DescribeCluster => describe_cluster(DescribeClusterRequest) "describe_cluster";
    CreatePartitions => create_partitions(CreatePartitionsRequest) "create_partitions";
    AlterConfigs => alter_configs(AlterConfigsRequest) "alter_configs";
    IncrementalAlterConfigs =>
        incremental_alter_configs(IncrementalAlterConfigsRequest) "alter_configs";
    DescribeConfigs => describe_configs(DescribeConfigsRequest) "describe_configs";
    ListConfigResources =>
        list_config_resources(ListConfigResourcesRequest) "list_config_resources";
    DescribeTopicPartitions =>
        describe_topic_partitions(DescribeTopicPartitionsRequest) "metadata";
    DescribeLogDirs => describe_log_dirs(DescribeLogDirsRequest) "describe_log_dirs";
    DescribeAcls => describe_acls(DescribeAclsRequest) "describe_acls";
    CreateAcls => create_acls(CreateAclsRequest) "create_acls";
    DeleteAcls => delete_acls(DeleteAclsRequest) "delete_acls";
    ElectLeaders => elect_leaders(ElectLeadersRequest) "elect_leaders";
    ListPartitionReassignments =>
        list_partition_reassignments(ListPartitionReassignmentsRequest) "list_reassignments";
    FindCoordinator => find_coordinator(FindCoordinatorRequest) "find_coordinator";
    OffsetCommit => offset_commit(OffsetCommitRequest) "commit";
    OffsetFetch => offset_fetch(OffsetFetchRequest) "offset_fetch";
    OffsetDelete => offset_delete(OffsetDeleteRequest) "offset_delete";
    TxnOffsetCommit => txn_offset_commit(TxnOffsetCommitRequest) "commit";
    JoinGroup => join_group(JoinGroupRequest) "join_group";
    SyncGroup => sync_group(SyncGroupRequest) "sync_group";
    Heartbeat => heartbeat(HeartbeatRequest) "heartbeat";
    LeaveGroup => leave_group(LeaveGroupRequest) "leave_group";
    ListGroups => list_groups(ListGroupsRequest) "list_groups";
    ConsumerGroupHeartbeat =>
        consumer_group_heartbeat(ConsumerGroupHeartbeatRequest) "heartbeat";
    ConsumerGroupDescribe => consumer_group_describe(ConsumerGroupDescribeRequest) "describe_groups";
    DescribeGroups => describe_groups(DescribeGroupsRequest) "describe_groups";
    DeleteGroups => delete_groups(DeleteGroupsRequest) "delete_groups";
    InitProducerId => init_producer_id(InitProducerIdRequest) "init_producer_id";
    AddPartitionsToTxn => add_partitions_to_txn(AddPartitionsToTxnRequest) "add_partitions";
    AddOffsetsToTxn => add_offsets_to_txn(AddOffsetsToTxnRequest) "add_offsets";
    EndTxn => end_txn(EndTxnRequest) "end_transaction";
    WriteTxnMarkers => write_txn_markers(WriteTxnMarkersRequest) "write_markers";
    DescribeProducers => describe_producers(DescribeProducersRequest) "describe_producers";
    DescribeTransactions => describe_transactions(DescribeTransactionsRequest) "describe_transactions";
    ListTransactions => list_transactions(ListTransactionsRequest) "list_transactions";
}

/// Which API a frame asks for, if it is one.
pub(crate) fn api_of(frame: &Frame) -> Option<ApiKey> {
    let key = frame.segments().first()?.first_chunk::<2>()?;
    ApiKey::from_i16(i16::from_be_bytes(*key))
}

/// Decodes the header and begins the request. Nothing has run before the future is first polled.
pub(crate) fn begin(
    node: &Arc<Node>,
    peer: &Arc<str>,
    reached_at: Option<SocketAddr>,
    turn: Turn,
    frame: Frame,
) -> Pending {
    let pieces = frame.segments().iter();
    let piece_bytes = pieces.map(Bytes::len).max().unwrap_or(0);
    let mut decoder = Decoder::new(frame);
    let header = match decode_request_header(&mut decoder) {
        Ok(header) => header,
        Err(error) => return close(format!("request header: {error}")),
    };
    let Some(api) = ApiKey::from_i16(header.api_key).filter(|api| SERVED.contains(api)) else {
        return close(format!("unknown API key {}", header.api_key));
    };
    let context = RequestContext {
        api,
        api_version: header.api_version,
        correlation_id: header.correlation_id,
        client_id: header.client_id,
        peer: peer.clone(),
        reached_at,
        piece_bytes,
        turn,
        ending: AtomicU8::new(ANSWERED),
    };
    if api.versions().contains(&header.api_version) {
        call(node.clone(), context, decoder)
    } else if api == ApiKey::ApiVersions {
        let answer = handlers::api_versions::unsupported_version();
        let outcome = encode(ApiKey::ApiVersions, 0, header.correlation_id, &answer);
        Box::pin(std::future::ready(outcome))
    } else {
        close(format!("{api:?} has no version {}", header.api_version))
    }
}

/// A peer that is no socket is told as it calls itself.
fn host_of(peer: &str) -> String {
    let address = peer.parse::<SocketAddr>();
    address.map_or_else(
        |_| peer.to_owned(),
        |address| format!("/{}", address.ip().to_canonical()),
    )
}

fn close(reason: String) -> Pending {
    Box::pin(std::future::ready(Outcome::Close(reason)))
}

fn conclude<M: Message>(context: &RequestContext, answer: &M) -> Outcome {
    match context.ending.load(Ordering::Relaxed) {
        ANSWERED => encode(
            context.api,
            context.api_version,
            context.correlation_id,
            answer,
        ),
        SILENT => Outcome::Nothing,
        _ => Outcome::Close("an unanswered request failed".to_owned()),
    }
}

fn encode<M: Message>(api: ApiKey, version: i16, correlation_id: i32, answer: &M) -> Outcome {
    match encode_response(api, version, correlation_id, answer) {
        Ok(frame) => Outcome::Answer(frame),
        Err(error) => {
            // A fault of ours, whatever was asked; the client sees a connection that closes.
            tracing::error!(?api, version, %error, "an answer cannot be encoded");
            Outcome::Close(format!("{api:?} v{version} cannot be answered: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::host_of;

    #[test]
    fn a_members_host_is_its_address_without_the_port_as_kafka_writes_it() {
        assert_eq!(host_of("127.0.0.1:54314"), "/127.0.0.1");
        assert_eq!(host_of("[::ffff:10.0.0.7]:54314"), "/10.0.0.7");
        assert_eq!(host_of("[::1]:9"), "/::1");
        assert_eq!(host_of("in-process"), "in-process");
    }
}

//! The messages' bytes: against an independent codec, against known bytes, and against damage.
//!
//! Invariants: every message of every version goes through each suite; `for_each_message!` is the
//! one list of them.
//! Never: looks at record batches; those are opaque bytes here.

/// Calls `$run!(Name)` for every message that both codecs know by the same name.
macro_rules! for_each_message {
    ($run:ident) => {
        for_each_message!(@pairs $run:
            AddOffsetsToTxnRequest AddOffsetsToTxnResponse
            AddPartitionsToTxnRequest AddPartitionsToTxnResponse
            AlterConfigsRequest AlterConfigsResponse
            ApiVersionsRequest ApiVersionsResponse
            ConsumerGroupDescribeRequest ConsumerGroupDescribeResponse
            ConsumerGroupHeartbeatRequest ConsumerGroupHeartbeatResponse
            CreateAclsRequest CreateAclsResponse
            CreatePartitionsRequest CreatePartitionsResponse
            CreateTopicsRequest CreateTopicsResponse
            DeleteAclsRequest DeleteAclsResponse
            DeleteGroupsRequest DeleteGroupsResponse
            DeleteRecordsRequest DeleteRecordsResponse
            DeleteTopicsRequest DeleteTopicsResponse
            DescribeAclsRequest DescribeAclsResponse
            DescribeClusterRequest DescribeClusterResponse
            DescribeConfigsRequest DescribeConfigsResponse
            DescribeGroupsRequest DescribeGroupsResponse
            DescribeLogDirsRequest DescribeLogDirsResponse
            DescribeProducersRequest DescribeProducersResponse
            DescribeTopicPartitionsRequest DescribeTopicPartitionsResponse
            DescribeTransactionsRequest DescribeTransactionsResponse
            ElectLeadersRequest ElectLeadersResponse
            EndTxnRequest EndTxnResponse
            FetchRequest FetchResponse
            FindCoordinatorRequest FindCoordinatorResponse
            HeartbeatRequest HeartbeatResponse
            IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse
            InitProducerIdRequest InitProducerIdResponse
            JoinGroupRequest JoinGroupResponse
            LeaveGroupRequest LeaveGroupResponse
            ListConfigResourcesRequest ListConfigResourcesResponse
            ListGroupsRequest ListGroupsResponse
            ListOffsetsRequest ListOffsetsResponse
            ListPartitionReassignmentsRequest ListPartitionReassignmentsResponse
            ListTransactionsRequest ListTransactionsResponse
            MetadataRequest MetadataResponse
            OffsetCommitRequest OffsetCommitResponse
            OffsetDeleteRequest OffsetDeleteResponse
            OffsetFetchRequest OffsetFetchResponse
            OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse
            ProduceRequest ProduceResponse
            SaslAuthenticateRequest SaslAuthenticateResponse
            SaslHandshakeRequest SaslHandshakeResponse
            SyncGroupRequest SyncGroupResponse
            TxnOffsetCommitRequest TxnOffsetCommitResponse
            WriteTxnMarkersRequest WriteTxnMarkersResponse
            ConsumerProtocolSubscription ConsumerProtocolAssignment
        );
    };
    (@pairs $run:ident: $($name:ident)*) => { $($run!($name);)* };
}

#[allow(dead_code, reason = "fuzzing needs the rest")]
mod any;
mod framing;
mod golden;
mod golden_frames;
mod malformed;
mod oracle;

use bytes::Bytes;
use millstream_protocol::{Encoder, Form, Message, Sampler, Wire};

/// Made-up messages of one version.
fn samples<M: Message>(version: i16, count: u64) -> impl Iterator<Item = M> {
    let form = Form {
        version,
        flexible: version >= M::FLEXIBLE_FROM,
    };
    (0..count).map(move |seed| {
        let mut sampler = Sampler::new(seed * 1000 + u64::from(version.unsigned_abs()));
        <M as Wire>::sample(&mut sampler, form)
    })
}

fn encoded<M: Message>(message: &M, version: i16) -> Bytes {
    let mut encoder = Encoder::new();
    message
        .encode(&mut encoder, version)
        .expect("a sample has a form in its version");
    encoder.finish().into_contiguous()
}

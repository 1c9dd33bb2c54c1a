//! Kafka's messages, one file an API: its request, its response and their parts.
//!
//! Invariants: names are those of Kafka's schemas; a file is a table and nothing else.
//! Never: behaviour.

macro_rules! apis {
    ($($module:ident: $request:ident, $response:ident;)*) => {$(
        pub mod $module;
        pub use $module::{$request, $response};
    )*};
}

apis! {
    add_offsets_to_txn: AddOffsetsToTxnRequest, AddOffsetsToTxnResponse;
    add_partitions_to_txn: AddPartitionsToTxnRequest, AddPartitionsToTxnResponse;
    alter_configs: AlterConfigsRequest, AlterConfigsResponse;
    api_versions: ApiVersionsRequest, ApiVersionsResponse;
    consumer_group_describe: ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse;
    consumer_group_heartbeat: ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse;
    create_acls: CreateAclsRequest, CreateAclsResponse;
    create_partitions: CreatePartitionsRequest, CreatePartitionsResponse;
    create_topics: CreateTopicsRequest, CreateTopicsResponse;
    delete_acls: DeleteAclsRequest, DeleteAclsResponse;
    delete_groups: DeleteGroupsRequest, DeleteGroupsResponse;
    delete_records: DeleteRecordsRequest, DeleteRecordsResponse;
    delete_topics: DeleteTopicsRequest, DeleteTopicsResponse;
    describe_acls: DescribeAclsRequest, DescribeAclsResponse;
    describe_cluster: DescribeClusterRequest, DescribeClusterResponse;
    describe_configs: DescribeConfigsRequest, DescribeConfigsResponse;
    describe_groups: DescribeGroupsRequest, DescribeGroupsResponse;
    describe_log_dirs: DescribeLogDirsRequest, DescribeLogDirsResponse;
    describe_producers: DescribeProducersRequest, DescribeProducersResponse;
    describe_topic_partitions: DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse;
    describe_transactions: DescribeTransactionsRequest, DescribeTransactionsResponse;
    elect_leaders: ElectLeadersRequest, ElectLeadersResponse;
    end_txn: EndTxnRequest, EndTxnResponse;
    fetch: FetchRequest, FetchResponse;
    find_coordinator: FindCoordinatorRequest, FindCoordinatorResponse;
    heartbeat: HeartbeatRequest, HeartbeatResponse;
    incremental_alter_configs: IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse;
    init_producer_id: InitProducerIdRequest, InitProducerIdResponse;
    join_group: JoinGroupRequest, JoinGroupResponse;
    leave_group: LeaveGroupRequest, LeaveGroupResponse;
    list_config_resources: ListConfigResourcesRequest, ListConfigResourcesResponse;
    list_groups: ListGroupsRequest, ListGroupsResponse;
    list_offsets: ListOffsetsRequest, ListOffsetsResponse;
    list_partition_reassignments:
        ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse;
    list_transactions: ListTransactionsRequest, ListTransactionsResponse;
    metadata: MetadataRequest, MetadataResponse;
    offset_commit: OffsetCommitRequest, OffsetCommitResponse;
    offset_delete: OffsetDeleteRequest, OffsetDeleteResponse;
    offset_fetch: OffsetFetchRequest, OffsetFetchResponse;
    offset_for_leader_epoch: OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse;
    produce: ProduceRequest, ProduceResponse;
    sasl_authenticate: SaslAuthenticateRequest, SaslAuthenticateResponse;
    sasl_handshake: SaslHandshakeRequest, SaslHandshakeResponse;
    sync_group: SyncGroupRequest, SyncGroupResponse;
    txn_offset_commit: TxnOffsetCommitRequest, TxnOffsetCommitResponse;
    write_txn_markers: WriteTxnMarkersRequest, WriteTxnMarkersResponse;
}

pub mod consumer_protocol;
pub use consumer_protocol::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};

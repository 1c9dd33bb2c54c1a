//! Reads record batches from partitions.
//!
//! Invariants: topics go by name up to version 12, by id from 13 on.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use bytes::Bytes;

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::Uuid;

message! {
    /// What to read, how much, and how long to wait for it.
    pub struct FetchRequest(versions 4..=18, flexible 12..) {
        cluster_id: Option<String>, in 12.., null 12.., tag 0, else dropped;
        replica_id: i32 = -1, in 0..=14;
        replica_state: ReplicaState, in 15.., tag 1;
        max_wait_ms: i32, in 0..;
        min_bytes: i32, in 0..;
        max_bytes: i32 = i32::MAX, in 3..;
        isolation_level: i8, in 4..;
        session_id: i32, in 7.., else dropped;
        session_epoch: i32 = -1, in 7.., else dropped;
        topics: Vec<FetchTopic>, in 0..;
        forgotten_topics_data: Vec<ForgottenTopic>, in 7..;
        rack_id: String, in 11.., else dropped;
    }

    /// Who fetches, if it is a replica.
    pub struct ReplicaState {
        replica_id: i32 = -1, in 15..;
        replica_epoch: i64 = -1, in 15..;
    }

    /// The partitions of one topic to read.
    pub struct FetchTopic {
        topic: String, in 0..=12, else dropped;
        topic_id: Uuid, in 13.., else dropped;
        partitions: Vec<FetchPartition>, in 0..;
    }

    /// Where to read in one partition.
    pub struct FetchPartition {
        partition: i32, in 0..;
        current_leader_epoch: i32 = -1, in 9.., else dropped;
        fetch_offset: i64, in 0..;
        last_fetched_epoch: i32 = -1, in 12..;
        log_start_offset: i64 = -1, in 5.., else dropped;
        partition_max_bytes: i32, in 0..;
        replica_directory_id: Uuid, in 17.., tag 0, else dropped;
        high_watermark: i64 = i64::MAX, in 18.., tag 1, else dropped;
    }

    /// Partitions to remove from an incremental session.
    pub struct ForgottenTopic {
        topic: String, in 7..=12, else dropped;
        topic_id: Uuid, in 13.., else dropped;
        partitions: Vec<i32>, in 7..;
    }

    /// The batches read.
    pub struct FetchResponse(versions 4..=18, flexible 12..) {
        throttle_time_ms: i32, in 1..;
        error_code: ErrorCode, in 7.., else dropped;
        session_id: i32, in 7..;
        responses: Vec<FetchableTopicResponse>, in 0..;
        node_endpoints: Vec<NodeEndpoint>, in 16.., tag 0, else dropped;
    }

    /// The batches of one topic.
    pub struct FetchableTopicResponse {
        topic: String, in 0..=12, else dropped;
        topic_id: Uuid, in 13.., else dropped;
        partitions: Vec<PartitionData>, in 0..;
    }

    /// The batches of one partition; the last one may be cut short.
    pub struct PartitionData {
        partition_index: i32, in 0..;
        error_code: ErrorCode, in 0..;
        high_watermark: i64, in 0..;
        last_stable_offset: i64 = -1, in 4..;
        log_start_offset: i64 = -1, in 5.., else dropped;
        diverging_epoch: EpochEndOffset, in 12.., tag 0;
        current_leader: LeaderIdAndEpoch, in 12.., tag 1, else dropped;
        snapshot_id: SnapshotId, in 12.., tag 2;
        aborted_transactions: Option<Vec<AbortedTransaction>> = Some(Vec::new()), in 4.., null 4..;
        preferred_read_replica: i32 = -1, in 11..;
        records: Option<Bytes>, in 0.., null 0..;
    }

    /// Where the log of a leader epoch ends, told to a reader that went past it.
    pub struct EpochEndOffset {
        epoch: i32 = -1, in 12..;
        end_offset: i64 = -1, in 12..;
    }

    /// The leader that the broker knows of, for a client with stale metadata.
    pub struct LeaderIdAndEpoch {
        leader_id: i32 = -1, in 12..;
        leader_epoch: i32 = -1, in 12..;
    }

    /// The snapshot to fetch instead.
    pub struct SnapshotId {
        end_offset: i64 = -1, in 0..;
        epoch: i32 = -1, in 0..;
    }

    /// A transaction whose records, from an offset on, a reader of committed data skips.
    pub struct AbortedTransaction {
        producer_id: i64, in 4..;
        first_offset: i64, in 4..;
    }

    /// Where a node that is named as a leader listens.
    pub struct NodeEndpoint {
        node_id: i32, in 16..;
        host: String, in 16..;
        port: i32, in 16..;
        rack: Option<String>, in 16.., null 16..;
    }
}

impl Request for FetchRequest {
    const API: ApiKey = ApiKey::Fetch;
    type Response = FetchResponse;
}

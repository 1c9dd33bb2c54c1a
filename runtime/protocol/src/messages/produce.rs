//! Appends record batches to partitions.
//!
//! Invariants: topics go by name up to version 12, by id from 13 on.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use bytes::Bytes;

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::Uuid;

message! {
    /// Record batches to append, by topic and partition.
    pub struct ProduceRequest(versions 3..=13, flexible 9..) {
        transactional_id: Option<String>, in 3.., null 3..;
        acks: i16, in 0..;
        timeout_ms: i32, in 0..;
        topic_data: Vec<TopicProduceData>, in 0..;
    }

    /// The batches for one topic.
    pub struct TopicProduceData {
        name: String, in 0..=12, else dropped;
        topic_id: Uuid, in 13.., else dropped;
        partition_data: Vec<PartitionProduceData>, in 0..;
    }

    /// The batches for one partition: exactly one v2 batch, as it will lie in the log.
    pub struct PartitionProduceData {
        index: i32, in 0..;
        records: Option<Bytes>, in 0.., null 0..;
    }

    /// What became of each partition's batches.
    pub struct ProduceResponse(versions 3..=13, flexible 9..) {
        responses: Vec<TopicProduceResponse>, in 0..;
        throttle_time_ms: i32, in 1..;
        node_endpoints: Vec<NodeEndpoint>, in 10.., tag 0, else dropped;
    }

    /// The outcomes of one topic.
    pub struct TopicProduceResponse {
        name: String, in 0..=12, else dropped;
        topic_id: Uuid, in 13.., else dropped;
        partition_responses: Vec<PartitionProduceResponse>, in 0..;
    }

    /// The outcome of one partition: an error, or where the batch was placed.
    pub struct PartitionProduceResponse {
        index: i32, in 0..;
        error_code: ErrorCode, in 0..;
        base_offset: i64, in 0..;
        log_append_time_ms: i64 = -1, in 2..;
        log_start_offset: i64 = -1, in 5.., else dropped;
        record_errors: Vec<BatchIndexAndErrorMessage>, in 8.., else dropped;
        error_message: Option<String>, in 8.., null 8.., else dropped;
        current_leader: LeaderIdAndEpoch, in 10.., tag 0, else dropped;
    }

    /// A record of the batch that was refused.
    pub struct BatchIndexAndErrorMessage {
        batch_index: i32, in 8..;
        batch_index_error_message: Option<String>, in 8.., null 8..;
    }

    /// The leader that the broker knows of, for a client with stale metadata.
    pub struct LeaderIdAndEpoch {
        leader_id: i32 = -1, in 10..;
        leader_epoch: i32 = -1, in 10..;
    }

    /// Where a node that is named as a leader listens.
    pub struct NodeEndpoint {
        node_id: i32, in 10..;
        host: String, in 10..;
        port: i32, in 10..;
        rack: Option<String>, in 10.., null 10..;
    }
}

impl Request for ProduceRequest {
    const API: ApiKey = ApiKey::Produce;
    type Response = ProduceResponse;
}

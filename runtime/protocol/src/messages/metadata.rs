//! Tells brokers, topics and the leaders of their partitions.
//!
//! Invariants: null topics ask for all of them; from version 10 on topics may go by id.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::Uuid;

message! {
    /// The topics to describe, and whether missing ones are created.
    pub struct MetadataRequest(versions 0..=13, flexible 9..) {
        topics: Option<Vec<MetadataRequestTopic>> = Some(Vec::new()), in 0.., null 1..;
        allow_auto_topic_creation: bool = true, in 4..;
        include_cluster_authorized_operations: bool, in 8..=10;
        include_topic_authorized_operations: bool, in 8..;
    }

    /// A topic by name or id.
    pub struct MetadataRequestTopic {
        topic_id: Uuid, in 10.., else dropped;
        name: Option<String> = Some(String::new()), in 0.., null 10..;
    }

    /// The cluster as the broker sees it.
    pub struct MetadataResponse(versions 0..=13, flexible 9..) {
        throttle_time_ms: i32, in 3.., else dropped;
        brokers: Vec<MetadataResponseBroker>, in 0..;
        cluster_id: Option<String>, in 2.., null 2.., else dropped;
        controller_id: i32 = -1, in 1.., else dropped;
        topics: Vec<MetadataResponseTopic>, in 0..;
        cluster_authorized_operations: i32 = i32::MIN, in 8..=10;
        error_code: ErrorCode, in 13.., else dropped;
    }

    /// A broker and where it listens.
    pub struct MetadataResponseBroker {
        node_id: i32, in 0..;
        host: String, in 0..;
        port: i32, in 0..;
        rack: Option<String>, in 1.., null 1.., else dropped;
    }

    /// A topic and its partitions, or why it cannot be described.
    pub struct MetadataResponseTopic {
        error_code: ErrorCode, in 0..;
        name: Option<String> = Some(String::new()), in 0.., null 12..;
        topic_id: Uuid, in 10.., else dropped;
        is_internal: bool, in 1.., else dropped;
        partitions: Vec<MetadataResponsePartition>, in 0..;
        topic_authorized_operations: i32 = i32::MIN, in 8..;
    }

    /// A partition, its leader and its replicas.
    pub struct MetadataResponsePartition {
        error_code: ErrorCode, in 0..;
        partition_index: i32, in 0..;
        leader_id: i32, in 0..;
        leader_epoch: i32 = -1, in 7.., else dropped;
        replica_nodes: Vec<i32>, in 0..;
        isr_nodes: Vec<i32>, in 0..;
        offline_replicas: Vec<i32>, in 5.., else dropped;
    }
}

impl Request for MetadataRequest {
    const API: ApiKey = ApiKey::Metadata;
    type Response = MetadataResponse;
}

//! Writes the markers that end transactions into partitions; from the coordinator only.
//!
//! Invariants: a marker carries the coordinator's epoch, so that an old coordinator is fenced.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The markers to write.
    pub struct WriteTxnMarkersRequest(versions 1..=2, flexible 1..) {
        markers: Vec<WritableTxnMarker>, in 0..;
    }

    /// One producer's marker.
    pub struct WritableTxnMarker {
        producer_id: i64, in 0..;
        producer_epoch: i16, in 0..;
        transaction_result: bool, in 0..;
        topics: Vec<WritableTxnMarkerTopic>, in 0..;
        coordinator_epoch: i32, in 0..;
        transaction_version: i8, in 2.., else dropped;
    }

    /// Partitions of one topic.
    pub struct WritableTxnMarkerTopic {
        name: String, in 0..;
        partition_indexes: Vec<i32>, in 0..;
    }

    /// What became of each marker.
    pub struct WriteTxnMarkersResponse(versions 1..=2, flexible 1..) {
        markers: Vec<WritableTxnMarkerResult>, in 0..;
    }

    /// The outcomes of one producer.
    pub struct WritableTxnMarkerResult {
        producer_id: i64, in 0..;
        topics: Vec<WritableTxnMarkerTopicResult>, in 0..;
    }

    /// The outcomes of one topic.
    pub struct WritableTxnMarkerTopicResult {
        name: String, in 0..;
        partitions: Vec<WritableTxnMarkerPartitionResult>, in 0..;
    }

    /// The outcome of one partition.
    pub struct WritableTxnMarkerPartitionResult {
        partition_index: i32, in 0..;
        error_code: ErrorCode, in 0..;
    }
}

impl Request for WriteTxnMarkersRequest {
    const API: ApiKey = ApiKey::WriteTxnMarkers;
    type Response = WriteTxnMarkersResponse;
}

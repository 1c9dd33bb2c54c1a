//! Deletes topics.
//!
//! Invariants: topics go by name up to version 5, by name or id from 6 on.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::Uuid;

message! {
    /// The topics to delete.
    pub struct DeleteTopicsRequest(versions 1..=6, flexible 4..) {
        topics: Vec<DeleteTopicState>, in 6..;
        topic_names: Vec<String>, in 0..=5, else dropped;
        timeout_ms: i32, in 0..;
    }

    /// A topic by name or id.
    pub struct DeleteTopicState {
        name: Option<String>, in 6.., null 6..;
        topic_id: Uuid, in 6..;
    }

    /// What became of each topic.
    pub struct DeleteTopicsResponse(versions 1..=6, flexible 4..) {
        throttle_time_ms: i32, in 1..;
        responses: Vec<DeletableTopicResult>, in 0..;
    }

    /// The outcome of one topic.
    pub struct DeletableTopicResult {
        name: Option<String> = Some(String::new()), in 0.., null 6..;
        topic_id: Uuid, in 6.., else dropped;
        error_code: ErrorCode, in 0..;
        error_message: Option<String>, in 5.., null 5.., else dropped;
    }
}

impl Request for DeleteTopicsRequest {
    const API: ApiKey = ApiKey::DeleteTopics;
    type Response = DeleteTopicsResponse;
}

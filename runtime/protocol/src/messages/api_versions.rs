//! Tells which versions of which APIs a broker serves; the first request of a connection.
//!
//! Invariants: the response's header has version 0 always, since the client cannot know better yet.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The client's own name and version.
    pub struct ApiVersionsRequest(versions 0..=4, flexible 3..) {
        client_software_name: String, in 3.., else dropped;
        client_software_version: String, in 3.., else dropped;
    }

    /// The version ranges and the features of the broker.
    pub struct ApiVersionsResponse(versions 0..=4, flexible 3..) {
        error_code: ErrorCode, in 0..;
        api_keys: Vec<ApiVersion>, in 0..;
        throttle_time_ms: i32, in 1.., else dropped;
        supported_features: Vec<SupportedFeatureKey>, in 3.., tag 0, else dropped;
        finalized_features_epoch: i64 = -1, in 3.., tag 1, else dropped;
        finalized_features: Vec<FinalizedFeatureKey>, in 3.., tag 2, else dropped;
        zk_migration_ready: bool, in 3.., tag 3, else dropped;
    }

    /// The versions of one API.
    pub struct ApiVersion {
        api_key: i16, in 0..;
        min_version: i16, in 0..;
        max_version: i16, in 0..;
    }

    /// A feature and the levels that the broker could serve.
    pub struct SupportedFeatureKey {
        name: String, in 3..;
        min_version: i16, in 3..;
        max_version: i16, in 3..;
    }

    /// A feature and the levels that the cluster has agreed on.
    pub struct FinalizedFeatureKey {
        name: String, in 3..;
        max_version_level: i16, in 3..;
        min_version_level: i16, in 3..;
    }
}

impl Request for ApiVersionsRequest {
    const API: ApiKey = ApiKey::ApiVersions;
    type Response = ApiVersionsResponse;
}

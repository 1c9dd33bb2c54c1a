//! ApiVersions 0–4: what this broker serves, and its feature levels.
//!
//! Deviations: none of Kafka's other features is announced (there is no metadata quorum to
//! upgrade).
//!
//! Invariants: announces exactly what `dispatch` has a handler for.
//! Never: lists a feature below version 4 whose lowest level is 0 (older clients refuse that).

use crate::dispatch::{RequestContext, SERVED};
use crate::node::Node;
use millstream_protocol::messages::api_versions::{
    ApiVersion, FinalizedFeatureKey, SupportedFeatureKey,
};
use millstream_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use millstream_protocol::{ApiKey, ErrorCode};
use std::sync::Arc;

const TRANSACTION_VERSION: &str = "transaction.version";
const TRANSACTION_VERSION_LEVEL: i16 = 2;

/// Answers with versions and features.
pub(crate) async fn handle(
    _node: &Arc<Node>,
    context: &RequestContext,
    request: ApiVersionsRequest,
) -> ApiVersionsResponse {
    let named = is_software_name(&request.client_software_name)
        && is_software_name(&request.client_software_version);
    if context.api_version >= 3 && !named {
        let error_code = ErrorCode::INVALID_REQUEST;
        return ApiVersionsResponse {
            error_code,
            ..Default::default()
        };
    }
    let mut supported_features = Vec::new();
    if context.api_version >= 4 {
        supported_features.push(SupportedFeatureKey {
            name: TRANSACTION_VERSION.to_owned(),
            min_version: 0,
            max_version: TRANSACTION_VERSION_LEVEL,
        });
    }
    ApiVersionsResponse {
        api_keys: SERVED.iter().copied().map(range_of).collect(),
        supported_features,
        finalized_features_epoch: 0,
        finalized_features: vec![FinalizedFeatureKey {
            name: TRANSACTION_VERSION.to_owned(),
            max_version_level: TRANSACTION_VERSION_LEVEL,
            min_version_level: TRANSACTION_VERSION_LEVEL,
        }],
        ..Default::default()
    }
}

/// The answer, in version 0, to a version that is too new: it tells which ones would do.
pub(crate) fn unsupported_version() -> ApiVersionsResponse {
    ApiVersionsResponse {
        error_code: ErrorCode::UNSUPPORTED_VERSION,
        api_keys: vec![range_of(ApiKey::ApiVersions)],
        ..Default::default()
    }
}

fn range_of(api: ApiKey) -> ApiVersion {
    let versions = api.versions();
    ApiVersion {
        api_key: api as i16,
        min_version: *versions.start(),
        max_version: *versions.end(),
    }
}

/// Letters, digits, '-' and '.', with a letter or digit at both ends.
fn is_software_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes
        .iter()
        .all(|b| b.is_ascii_alphanumeric() || b"-.".contains(b))
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}

//! Which version of an API a connection speaks: the lower of both maxima.
//!
//! Invariants: a version is chosen only where both sides serve it.
//! Never: guesses the version of an API that the broker did not list.

use std::collections::BTreeMap;

use millstream_protocol::ApiKey;
use millstream_protocol::messages::ApiVersionsResponse;

/// What one broker said about itself in ApiVersions.
#[derive(Clone, Debug, Default)]
pub struct BrokerVersions {
    ranges: BTreeMap<i16, (i16, i16)>,
    features: BTreeMap<String, i16>,
}

impl BrokerVersions {
    /// Reads an ApiVersions answer.
    #[must_use]
    pub fn new(response: &ApiVersionsResponse) -> Self {
        let ranges = response
            .api_keys
            .iter()
            .map(|api| (api.api_key, (api.min_version, api.max_version)))
            .collect();
        let features = response
            .finalized_features
            .iter()
            .map(|feature| (feature.name.clone(), feature.max_version_level))
            .collect();
        Self { ranges, features }
    }

    /// The version to speak, at most `cap`; the broker's range where there is none.
    pub fn negotiate(&self, api: ApiKey, cap: i16) -> Result<i16, Option<(i16, i16)>> {
        let ours = api.versions();
        let Some((low, high)) = self.ranges.get(&(api as i16)).copied() else {
            return Err(None);
        };
        let version = (*ours.end()).min(high).min(cap);
        if version < low || version < *ours.start() {
            Err(Some((low, high)))
        } else {
            Ok(version)
        }
    }

    /// The finalised level of a cluster feature such as `transaction.version`; 0 where absent.
    #[must_use]
    pub fn feature(&self, name: &str) -> i16 {
        self.features.get(name).copied().unwrap_or(0)
    }
}

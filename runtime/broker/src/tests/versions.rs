//! Every version of every API that is served gets an answer, with contents that are right.
//!
//! Invariants: a field that a version lacks is never set in its answer; such an answer could not be
//! encoded, and its client would see a connection that closes.
//! Invariants: what is asked here is all that is served.

mod groups;
mod topics;
mod transactions;

use super::harness::{Client, broker};
use crate::dispatch::SERVED;
use millstream_protocol::messages::create_acls::AclCreation;
use millstream_protocol::messages::delete_acls::DeleteAclsFilter;
use millstream_protocol::messages::*;
use millstream_protocol::{ApiKey, ErrorCode, Request};
use std::collections::BTreeSet;

/// One connection, and which APIs have been asked in all of their versions over it.
struct Sweep {
    client: Client,
    swept: BTreeSet<ApiKey>,
}

impl Sweep {
    /// Asks in every version; the request may depend on it.
    async fn all<R: Request>(
        &mut self,
        request: impl Fn(i16) -> R,
        check: impl Fn(i16, &R::Response),
    ) {
        for version in R::API.versions() {
            let response = self.client.ask(version, request(version)).await;
            check(version, &response);
        }
        self.swept.insert(R::API);
    }

    /// Asks in the version that is nearest to this one; who comes by all of them has swept.
    async fn near<R: Request>(&mut self, version: i16, request: R) -> R::Response {
        let versions = R::API.versions();
        let version = version.clamp(*versions.start(), *versions.end());
        if version == *versions.end() {
            self.swept.insert(R::API);
        }
        self.client.ask(version, request).await
    }
}

#[tokio::test(start_paused = true)]
async fn every_version_of_every_api_that_is_served_gets_its_answer() {
    let broker = broker().await;
    let mut sweep = Sweep {
        client: Client::connect(&broker),
        swept: BTreeSet::new(),
    };
    topics::sweep(&mut sweep).await;
    topics::sweep_settings(&mut sweep).await;
    groups::sweep(&mut sweep).await;
    groups::sweep_consumer_protocol(&mut sweep).await;
    transactions::sweep(&mut sweep).await;
    sweep_broker(&mut sweep).await;
    let served: BTreeSet<_> = SERVED.iter().copied().collect();
    let forgotten: Vec<_> = served.difference(&sweep.swept).collect();
    assert!(forgotten.is_empty(), "not asked: {forgotten:?}");
}

/// What is about the broker itself.
async fn sweep_broker(sweep: &mut Sweep) {
    let request = |_| ApiVersionsRequest {
        client_software_name: "tester".to_owned(),
        client_software_version: "1.0".to_owned(),
    };
    sweep
        .all(request, |version, response| {
            assert_eq!(response.error_code, ErrorCode::NONE, "version {version}");
            assert_eq!(response.api_keys.len(), SERVED.len(), "version {version}");
        })
        .await;
    let request = |_| DescribeClusterRequest {
        include_cluster_authorized_operations: true,
        ..Default::default()
    };
    sweep
        .all(request, |version, response| {
            let found = (response.brokers.len(), response.controller_id);
            assert_eq!(found, (1, 1), "version {version}");
        })
        .await;
    sweep_access_rules(sweep).await;
}

/// There are none, and it is said.
async fn sweep_access_rules(sweep: &mut Sweep) {
    sweep
        .all(
            |_| DescribeAclsRequest::default(),
            |version, response| {
                let wanted = ErrorCode::SECURITY_DISABLED;
                assert_eq!(response.error_code, wanted, "version {version}");
            },
        )
        .await;
    let request = |_| CreateAclsRequest {
        creations: vec![AclCreation::default(), AclCreation::default()],
    };
    sweep
        .all(request, |version, response| {
            let found: Vec<_> = response.results.iter().map(|one| one.error_code).collect();
            assert_eq!(
                found,
                [ErrorCode::SECURITY_DISABLED; 2],
                "version {version}"
            );
        })
        .await;
    let request = |_| DeleteAclsRequest {
        filters: vec![DeleteAclsFilter::default(), DeleteAclsFilter::default()],
    };
    sweep
        .all(request, |version, response| {
            let found = response.filter_results.iter();
            let found: Vec<_> = found
                .map(|one| (one.error_code, one.matching_acls.len()))
                .collect();
            assert_eq!(
                found,
                [(ErrorCode::SECURITY_DISABLED, 0); 2],
                "version {version}"
            );
        })
        .await;
}

//! Groups as their coordinators know them: which there are, who is in them, and their end.
//!
//! Invariants: a group is asked about at its coordinator; a list covers every broker.
//! Never: joins a group.

use futures::future::BoxFuture;
use millstream_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest, describe_groups, list_groups,
};
use millstream_protocol::{ApiKey, ErrorCode, Request};

use super::{Admin, AdminError, check, passing};
use crate::cluster::CoordinatorKind;

/// How often a coordinator that is loading or moving is asked.
const ATTEMPTS_MAX: u32 = 100;

impl Admin {
    /// The groups that the brokers coordinate, by id.
    ///
    /// # Errors
    /// Where a broker does not answer or refuses.
    pub fn list_groups(&self) -> BoxFuture<'_, Result<Vec<list_groups::ListedGroup>, AdminError>> {
        Box::pin(async move {
            self.ask(|| self.cluster.refresh_metadata(&[])).await?;
            let timeout = self.cluster.config().request_timeout;
            let mut groups = Vec::new();
            for node in self.cluster.nodes() {
                let answer = self
                    .ask(|| async {
                        let request = ListGroupsRequest::default();
                        Ok(self.cluster.request(node, request, timeout).await?)
                    })
                    .await?;
                let subject = format!("broker {node}");
                check("list_groups()", &subject, answer.error_code, None)?;
                groups.extend(answer.groups);
            }
            groups.sort_by(|a, b| a.group_id.cmp(&b.group_id));
            Ok(groups)
        })
    }

    /// A group's state and members. A group that does not exist has the state `Dead`, or is
    /// refused, as the broker's version will have it.
    ///
    /// # Errors
    /// Where the coordinator does not answer in time, or refuses (`GROUP_ID_NOT_FOUND`).
    pub fn describe_group<'a>(
        &'a self,
        group: &'a str,
    ) -> BoxFuture<'a, Result<describe_groups::DescribedGroup, AdminError>> {
        Box::pin(async move {
            let request = DescribeGroupsRequest {
                groups: vec![group.to_owned()],
                ..Default::default()
            };
            let found = self
                .ask_group(group, request, |answer| {
                    let found = answer
                        .groups
                        .into_iter()
                        .find(|found| found.group_id == group);
                    let found = found.unwrap_or_default();
                    (found.error_code, found)
                })
                .await?;
            check(
                "describe_group()",
                group,
                found.error_code,
                found.error_message.clone(),
            )?;
            Ok(found)
        })
    }

    /// Deletes a group with all of its committed offsets.
    ///
    /// # Errors
    /// Where it has members (`NON_EMPTY_GROUP`), where there is none of that id
    /// (`GROUP_ID_NOT_FOUND`), or the coordinator does not answer in time.
    pub fn delete_group<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let request = DeleteGroupsRequest {
                groups_names: vec![group.to_owned()],
            };
            let code = self
                .ask_group(group, request, |answer| {
                    let found = answer
                        .results
                        .into_iter()
                        .find(|found| found.group_id == group);
                    let code =
                        found.map_or(ErrorCode::GROUP_ID_NOT_FOUND, |found| found.error_code);
                    (code, code)
                })
                .await?;
            check("delete_group()", group, code, None)
        })
    }

    /// Asks a group's coordinator, and again while it says that it is loading or moving.
    async fn ask_group<R: Request + Clone, T>(
        &self,
        group: &str,
        request: R,
        read: impl Fn(R::Response) -> (ErrorCode, T),
    ) -> Result<T, AdminError> {
        let (kind, patience) = (
            CoordinatorKind::Group,
            self.cluster.config().request_timeout,
        );
        let api: ApiKey = R::API;
        let mut attempt = 0;
        loop {
            let answer = self
                .ask(|| {
                    let request = request.clone();
                    self.cluster
                        .ask_coordinator(kind, group, patience, i16::MAX, |_| request)
                })
                .await?;
            let (code, found) = read(answer);
            if !passing(api, code) || attempt >= ATTEMPTS_MAX {
                return Ok(found);
            }
            self.cluster.forget_coordinator(kind, group);
            tokio::time::sleep(self.cluster.retry_pause(attempt)).await;
            attempt += 1;
        }
    }
}

//! Fetch requests: what is asked for, by topic name or id, on either lane.
//!
//! Invariants: topics go by id only if the ids of all are known.
//! Never: judges an answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_protocol::Uuid;
use millstream_protocol::messages::fetch::{FetchPartition, FetchTopic};
use millstream_protocol::messages::{FetchRequest, FetchResponse};

use super::core::Core;
use super::positions::Target;
use crate::cluster::{Cluster, NodeId};
use crate::error::RequestError;

/// Longest wait of the broker on the hot lane.
const HOT_WAIT: Duration = Duration::from_millis(5);
/// From this version on, topics go by id.
const BY_ID_VERSION: i16 = 13;

/// A way to a leader. The main lane's fetch may wait for new data, the hot lane's hardly does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Main,
    Hot,
}

/// One Fetch request, for either way of naming topics.
pub(crate) struct FetchPlan {
    request: FetchRequest,
    /// Ids of the request's topics; empty where one is not known.
    pub(crate) ids: Arc<BTreeMap<Uuid, Arc<str>>>,
    topics: Vec<Arc<str>>,
}

impl FetchPlan {
    pub(crate) fn new(core: &Core, lane: Lane, targets: &[Target]) -> FetchPlan {
        let config = &core.config;
        let mut topics: BTreeMap<Arc<str>, FetchTopic> = BTreeMap::new();
        for target in targets {
            let name = &target.topic_partition.topic;
            let topic = topics
                .entry(Arc::clone(name))
                .or_insert_with(|| FetchTopic {
                    topic: name.to_string(),
                    topic_id: core
                        .cluster
                        .topic(name)
                        .map_or(Uuid::ZERO, |topic| topic.topic_id),
                    partitions: Vec::new(),
                });
            let known = core.cluster.partition(&target.topic_partition);
            topic.partitions.push(FetchPartition {
                partition: target.topic_partition.partition,
                current_leader_epoch: known.map_or(-1, |known| known.leader_epoch),
                fetch_offset: target.offset,
                partition_max_bytes: config.max_partition_fetch_bytes,
                ..Default::default()
            });
        }
        let known = topics.values().all(|topic| topic.topic_id != Uuid::ZERO);
        let ids = topics
            .iter()
            .filter(|_| known)
            .map(|(name, topic)| (topic.topic_id, Arc::clone(name)))
            .collect();
        let wait = match lane {
            Lane::Main => config.fetch_max_wait,
            Lane::Hot => config.fetch_max_wait.min(HOT_WAIT),
        };
        let request = FetchRequest {
            replica_id: -1,
            max_wait_ms: i32::try_from(wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: config.fetch_min_bytes,
            max_bytes: config.fetch_max_bytes,
            isolation_level: config.isolation.level(),
            topics: topics.values().cloned().collect(),
            rack_id: config.client_rack.clone().unwrap_or_default(),
            ..Default::default()
        };
        FetchPlan {
            request,
            ids: Arc::new(ids),
            topics: topics.into_keys().collect(),
        }
    }

    pub(crate) async fn send(
        self,
        core: &Core,
        leader: NodeId,
        lane: Lane,
    ) -> Result<FetchResponse, RequestError> {
        let cluster: &Cluster = match lane {
            Lane::Main => &core.cluster,
            Lane::Hot => &core.hot,
        };
        let cap = if self.ids.is_empty() {
            BY_ID_VERSION - 1
        } else {
            i16::MAX
        };
        let timeout = core.config.client.request_timeout + core.config.fetch_max_wait;
        let request = self.request.clone();
        match cluster
            .request_with(leader, timeout, cap, |_| request)
            .await
        {
            // The hot lane has metadata of its own, only to know where brokers are.
            Err(RequestError::UnknownNode { .. }) if lane == Lane::Hot => {
                let refreshed = cluster.refresh_metadata(&self.topics).await;
                if let Err(error) = refreshed {
                    tracing::debug!(%error, "no metadata for the hot lane");
                }
                cluster
                    .request_with(leader, timeout, cap, |_| self.request)
                    .await
            }
            result => result,
        }
    }
}

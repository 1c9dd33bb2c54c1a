//! Fetch requests: what is asked for, by topic name or id, on either lane.
//!
//! Invariants: topics go by id only if the ids of all are known.
//! Never: judges an answer.

use std::time::Duration;

use millstream_protocol::messages::fetch::{FetchPartition, FetchTopic, ForgottenTopic};
use millstream_protocol::messages::{FetchRequest, FetchResponse};

use super::core::Core;
use super::fetch_session::SessionRequest;
use crate::cluster::{Cluster, NodeId};
use crate::error::RequestError;

/// Longest wait of the broker on the hot lane.
const HOT_WAIT: Duration = Duration::from_millis(5);
/// From this version on, topics go by id.
const BY_ID_VERSION: i16 = 13;
/// Longest wait for the end of a session when the consumer closes.
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// A way to a node. The main lane's fetch may wait for new data, the hot lane's hardly does. The
/// main lane has a session; the few partitions of the hot lane are told in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Main,
    Hot,
}

/// One Fetch request, for either way of naming topics.
pub(crate) struct FetchPlan {
    lane: Lane,
    wait: Duration,
    what: SessionRequest,
}

impl FetchPlan {
    pub(crate) fn new(core: &Core, lane: Lane, what: SessionRequest) -> FetchPlan {
        let wait = match lane {
            Lane::Main => core.config.fetch_max_wait,
            Lane::Hot => core.config.fetch_max_wait.min(HOT_WAIT),
        };
        FetchPlan { lane, wait, what }
    }

    /// The request that ends session `id`.
    fn last(id: i32) -> FetchPlan {
        let what = SessionRequest {
            id,
            epoch: -1,
            by_id: true,
            changed: Vec::new(),
            forgotten: Vec::new(),
        };
        FetchPlan {
            lane: Lane::Hot,
            wait: Duration::ZERO,
            what,
        }
    }

    fn request(&self, core: &Core, version: i16) -> FetchRequest {
        let config = &core.config;
        FetchRequest {
            replica_id: -1,
            max_wait_ms: i32::try_from(self.wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: config.fetch_min_bytes,
            max_bytes: config.fetch_max_bytes,
            isolation_level: config.isolation.level(),
            session_id: self.what.id,
            session_epoch: self.what.epoch,
            topics: self.topics(version, config.max_partition_fetch_bytes),
            forgotten_topics_data: self.forgotten(version),
            rack_id: config.client_rack.clone().unwrap_or_default(),
            ..Default::default()
        }
    }

    fn topics(&self, version: i16, partition_max_bytes: i32) -> Vec<FetchTopic> {
        let mut topics: Vec<FetchTopic> = Vec::new();
        let mut last = None;
        for (partition, asked) in &self.what.changed {
            if last != Some(&partition.topic) {
                last = Some(&partition.topic);
                topics.push(FetchTopic {
                    topic: name(version, &partition.topic),
                    topic_id: asked.topic_id,
                    partitions: Vec::new(),
                });
            }
            if let Some(topic) = topics.last_mut() {
                topic.partitions.push(FetchPartition {
                    partition: partition.partition,
                    current_leader_epoch: asked.leader_epoch,
                    fetch_offset: asked.offset,
                    partition_max_bytes,
                    ..Default::default()
                });
            }
        }
        topics
    }

    fn forgotten(&self, version: i16) -> Vec<ForgottenTopic> {
        let mut topics: Vec<ForgottenTopic> = Vec::new();
        let mut last = None;
        for (partition, topic_id) in &self.what.forgotten {
            if last != Some((&partition.topic, topic_id)) {
                last = Some((&partition.topic, topic_id));
                topics.push(ForgottenTopic {
                    topic: name(version, &partition.topic),
                    topic_id: *topic_id,
                    partitions: Vec::new(),
                });
            }
            if let Some(topic) = topics.last_mut() {
                topic.partitions.push(partition.partition);
            }
        }
        topics
    }

    pub(crate) async fn send(
        &self,
        core: &Core,
        node: NodeId,
    ) -> Result<FetchResponse, RequestError> {
        let cluster: &Cluster = match self.lane {
            Lane::Main => &core.cluster,
            Lane::Hot => {
                // It asks for no metadata of its own.
                core.hot.share_nodes_of(&core.cluster);
                &core.hot
            }
        };
        let cap = if self.what.by_id {
            i16::MAX
        } else {
            BY_ID_VERSION - 1
        };
        let timeout = core.config.client.request_timeout + core.config.fetch_max_wait;
        let build = |version| self.request(core, version);
        cluster.request_with(node, timeout, cap, build).await
    }
}

fn name(version: i16, topic: &str) -> String {
    if version < BY_ID_VERSION {
        topic.to_owned()
    } else {
        String::new()
    }
}

/// Ends the sessions that brokers hold for this consumer. One that cannot be told forgets by
/// itself.
pub(crate) async fn close_sessions(core: &Core) {
    let sessions = std::mem::take(&mut *core.sessions());
    // On the other lane, since the last long poll may still be in the broker.
    let all = sessions.into_iter().map(|(node, id)| async move {
        let last = FetchPlan::last(id);
        match tokio::time::timeout(CLOSE_PATIENCE, last.send(core, node)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%node, %error, "fetch session not ended"),
            Err(_) => tracing::debug!(%node, "fetch session not ended in time"),
        }
    });
    futures::future::join_all(all).await;
}

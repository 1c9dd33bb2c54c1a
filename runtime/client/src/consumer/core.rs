//! What the parts of one consumer share: the cluster, the positions, and two bells.
//!
//! Invariants: the positions' lock is never held across an await; whoever changes positions rings
//! the bell of the other side.
//! Never: behaviour of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use millstream_protocol::TopicPartition;
use tokio::sync::Notify;

use super::config::ConsumerConfig;
use super::error::ConsumerError;
use super::fetched::Decoding;
use super::positions::{BufferLimits, Landmark, Position, Positions};
use super::reset::AutoOffsetReset;
use crate::cluster::{Cluster, NodeId, Reads};
use crate::error::RequestError;
use crate::transport::Transport;

/// Who this consumer is to its coordinator under the consumer protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberEpoch {
    pub(crate) member_id: Arc<str>,
    pub(crate) epoch: i32,
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: ConsumerConfig,
    pub(crate) cluster: Cluster,
    /// A second set of connections, for fetches that must not wait behind a long poll.
    pub(crate) hot: Cluster,
    positions: Mutex<Positions>,
    /// While the consumer is a member under the consumer protocol.
    member_epoch: Mutex<Option<MemberEpoch>>,
    /// Ids of the fetch sessions that brokers hold, to be ended at the close.
    sessions: Mutex<BTreeMap<NodeId, i32>>,
    /// Rung when `poll` has something to look at.
    pub(crate) for_poll: Notify,
    /// Rung when there may be something to fetch.
    pub(crate) for_fetcher: Notify,
}

impl Reads for Core {
    fn topics(&self) -> Vec<Arc<str>> {
        let positions = self.positions();
        let mut topics: Vec<Arc<str>> = positions
            .assigned()
            .map(|partition| Arc::clone(&partition.topic))
            .collect();
        topics.dedup();
        topics
    }
}

impl Core {
    pub(crate) fn new(transport: Arc<dyn Transport>, config: ConsumerConfig) -> Self {
        let limits = BufferLimits {
            partition_bytes: usize::try_from(config.max_partition_fetch_bytes).unwrap_or(1),
            total_bytes: config.fetch_buffer_bytes,
            paused_bytes: config.paused_buffer_bytes,
        };
        Core {
            cluster: Cluster::new(Arc::clone(&transport), config.client.clone()),
            // Used for leaders only that the other one has a connection to.
            hot: Cluster::new(transport, config.client.clone()).trusting(),
            positions: Mutex::new(Positions::new(limits)),
            member_epoch: Mutex::new(None),
            sessions: Mutex::default(),
            for_poll: Notify::new(),
            for_fetcher: Notify::new(),
            config,
        }
    }

    /// Whom the cluster has to remember topics for.
    pub(crate) fn as_reader(self: &Arc<Self>) -> Weak<dyn Reads> {
        let core: Arc<dyn Reads> = Arc::<Core>::clone(self);
        Arc::downgrade(&core)
    }

    pub(crate) fn positions(&self) -> MutexGuard<'_, Positions> {
        self.positions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Under which epoch committed offsets are asked for; `None` outside of the consumer protocol.
    pub(crate) fn member_epoch(&self) -> Option<MemberEpoch> {
        let member_epoch = self.member_epoch.lock();
        member_epoch.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_member_epoch(&self, epoch: Option<MemberEpoch>) {
        let member_epoch = self.member_epoch.lock();
        *member_epoch.unwrap_or_else(PoisonError::into_inner) = epoch;
    }

    /// Why no broker could be asked, where trying again does not help; told once an attempt.
    pub(crate) fn take_refusal(&self) -> Option<RequestError> {
        self.cluster
            .take_refusal()
            .or_else(|| self.hot.take_refusal())
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, BTreeMap<NodeId, i32>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.cluster.clock().now_ms()
    }

    pub(crate) fn decoding(&self) -> Decoding {
        Decoding {
            isolation: self.config.isolation,
            check_crcs: self.config.check_crcs,
            max_decompressed_bytes: self.config.max_decompressed_bytes,
        }
    }

    /// What the reset policy makes of a missing position.
    pub(crate) fn reset(&self) -> Option<Position> {
        match self.config.auto_offset_reset {
            AutoOffsetReset::Earliest => Some(Position::Resetting(Landmark::Earliest)),
            AutoOffsetReset::Latest => Some(Position::Resetting(Landmark::Latest)),
            AutoOffsetReset::ByDuration(ago) => Some(Position::Resetting(Landmark::Ago(ago))),
            AutoOffsetReset::None => None,
        }
    }

    pub(crate) fn no_offset(&self, partition: &TopicPartition) -> ConsumerError {
        ConsumerError::NoOffset {
            topic_partition: partition.clone(),
            group: self.config.group_id.clone().unwrap_or_default(),
        }
    }
}

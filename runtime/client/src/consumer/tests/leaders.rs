//! Leaders, epochs and lost tails of the fake broker's logs.
//!
//! Invariants: a partition has one leader and epoch; other nodes refuse and name it.
//! Never: part of the product.

use millstream_protocol::ErrorCode;
use millstream_protocol::messages::fetch::NodeEndpoint;
use millstream_protocol::messages::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
};

use super::broker::{FakeBroker, Log, State};

/// Who has led a log, and from where on.
#[derive(Debug)]
pub(super) struct Leadership {
    node: i32,
    /// Epoch and first offset, oldest first.
    epochs: Vec<(i32, i64)>,
    /// Whether the leader can say where epochs end.
    forgetful: bool,
}

impl Default for Leadership {
    fn default() -> Self {
        Leadership {
            node: 1,
            epochs: vec![(0, 0)],
            forgetful: false,
        }
    }
}

impl Leadership {
    pub(super) fn node(&self) -> i32 {
        self.node
    }

    pub(super) fn epoch(&self) -> i32 {
        self.epochs.last().map_or(0, |(epoch, _)| *epoch)
    }

    pub(super) fn refuses(&self, node: i32, epoch: i32) -> Option<ErrorCode> {
        if node != self.node {
            return Some(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        match epoch.cmp(&self.epoch()) {
            _ if epoch < 0 => None,
            std::cmp::Ordering::Less => Some(ErrorCode::FENCED_LEADER_EPOCH),
            std::cmp::Ordering::Greater => Some(ErrorCode::UNKNOWN_LEADER_EPOCH),
            std::cmp::Ordering::Equal => None,
        }
    }
}

impl Log {
    /// `node` leads from now on, with what is left of the log before `end`.
    pub(super) fn elect(&mut self, node: i32, epoch: i32, end: i64) {
        self.batches.retain(|batch| batch.next_offset() <= end);
        self.end = self.end.min(end);
        let leadership = &mut self.leadership;
        leadership.node = node;
        leadership.epochs.retain(|(_, start)| *start < end);
        leadership.epochs.push((epoch, self.end));
    }

    /// The leader has lost what it knew of epochs.
    pub(super) fn forget_epochs(&mut self) {
        self.leadership.forgetful = true;
    }

    /// As Kafka's leader epoch cache answers.
    fn end_of(&self, asked: i32) -> (i32, i64) {
        if self.leadership.forgetful {
            return (-1, -1);
        }
        let epochs = &self.leadership.epochs;
        if asked == self.leadership.epoch() {
            return (asked, self.end);
        }
        let later = epochs.iter().find(|(epoch, _)| *epoch > asked);
        let before = epochs.iter().rfind(|(epoch, _)| *epoch <= asked);
        match (before, later) {
            (Some((epoch, _)), Some((_, end))) => (*epoch, *end),
            (None, Some((_, end))) => (asked, *end),
            _ => (-1, -1),
        }
    }
}

impl State {
    pub(super) fn nodes(&self) -> Vec<i32> {
        let logs = self.topics.values().flatten();
        let mut nodes: Vec<i32> = logs.flat_map(Log::holders).collect();
        nodes.push(1);
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|node| !self.away.contains(node));
        nodes
    }

    pub(super) fn endpoints(&self) -> Vec<NodeEndpoint> {
        let nodes = self.nodes().into_iter().map(|node_id| NodeEndpoint {
            node_id,
            host: "fake".into(),
            port: self.port_of(node_id),
            rack: None,
        });
        nodes.collect()
    }
}

impl FakeBroker {
    pub(super) fn ends_of_epochs(
        &self,
        request: OffsetForLeaderEpochRequest,
        node: i32,
        code: Option<ErrorCode>,
    ) -> OffsetForLeaderEpochResponse {
        assert_eq!(request.replica_id, -1);
        let state = self.lock();
        let topics = request.topics.into_iter().map(|topic| {
            let logs = state.topics.get(&topic.topic).unwrap();
            let partitions = topic.partitions.iter().map(|asked| {
                // One that was replaced must not judge.
                assert!(asked.current_leader_epoch >= 0);
                let log = &logs[asked.partition as usize];
                let refused = log.leadership.refuses(node, asked.current_leader_epoch);
                let (leader_epoch, end_offset) = log.end_of(asked.leader_epoch);
                EpochEndOffset {
                    error_code: code.or(refused).unwrap_or(ErrorCode::NONE),
                    partition: asked.partition,
                    leader_epoch,
                    end_offset,
                }
            });
            OffsetForLeaderTopicResult {
                partitions: partitions.collect(),
                topic: topic.topic,
            }
        });
        OffsetForLeaderEpochResponse {
            topics: topics.collect(),
            ..Default::default()
        }
    }
}

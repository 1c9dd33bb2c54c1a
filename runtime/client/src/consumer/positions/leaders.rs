//! Leaders of the partitions, and the doubt that a change of them casts on a position (KIP-320).
//!
//! Invariants: a position whose epoch is known is validated once by each leader and epoch before
//! anything is fetched from it; a leader whose epoch is older than the position's is no leader:
//! the metadata is behind.
//! Never: asks; the fetcher does.

use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_protocol::{TopicPartition, Uuid};

use super::{At, PartitionState, Position, Positions, Target};
use crate::cluster::NodeId;

/// Who leads a partition, as the metadata shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) node: NodeId,
    /// -1 where the broker does not say.
    pub(crate) epoch: i32,
    /// Of the topic; zero where the broker does not say.
    pub(crate) topic_id: Uuid,
}

impl Leader {
    fn is_behind(&self, at: At) -> bool {
        self.epoch >= 0 && at.epoch.is_some_and(|epoch| epoch > self.epoch)
    }
}

/// Since when the metadata has been behind the position.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Behind {
    since_ms: Option<i64>,
    told: bool,
}

impl Behind {
    /// Longer than metadata takes to spread.
    const PATIENCE_MS: i64 = 30_000;

    /// Whether it is time to tell, once as long as it lasts.
    fn note(&mut self, behind: bool, now_ms: i64) -> bool {
        if !behind {
            *self = Self::default();
            return false;
        }
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        let late = !self.told && now_ms.saturating_sub(since_ms) >= Self::PATIENCE_MS;
        self.told |= late;
        late
    }
}

/// A position to validate, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub(crate) at: At,
    /// That of `at`.
    pub(crate) epoch: i32,
    pub(crate) leader: Leader,
}

impl PartitionState {
    /// Whether the topic is another one of the same name: then the epochs of its log have nothing
    /// to do with the position's, and what is on its way or buffered is of the old one.
    fn adopt_topic(&mut self, topic_id: Uuid, version: &mut u64) -> bool {
        let before = std::mem::replace(&mut self.topic_id, topic_id);
        let Some(at) = self.position.at().filter(|_| before != topic_id) else {
            return false;
        };
        if before == Uuid::ZERO {
            return false;
        }
        *version += 1;
        self.replica = None;
        self.restart(Position::At(at.offset.into()), *version);
        true
    }

    /// A position that comes with an epoch is to be validated; whether the leader is not known.
    pub(super) fn doubt(&mut self) -> bool {
        let Position::At(at) = self.position else {
            return self.leader.is_none();
        };
        match self.leader {
            Some(leader) if leader.is_behind(at) => self.leader = None,
            Some(leader) if leader.epoch >= 0 && at.epoch.is_some() => {
                self.position = Position::Validating(at);
            }
            _ => {}
        }
        self.leader.is_none()
    }
}

impl Positions {
    /// Whether leaders are to be looked up even though the metadata has not changed.
    pub(crate) fn is_leaderless(&self) -> bool {
        self.leaderless
    }

    /// Takes the leaders over from the metadata. Topics with a partition that has none go to
    /// `stale`.
    pub(crate) fn learn(
        &mut self,
        now_ms: i64,
        look_up: impl Fn(&TopicPartition) -> Option<Leader>,
        stale: &mut BTreeSet<Arc<str>>,
    ) {
        self.leaderless = false;
        self.nodes.clear();
        for (partition, state) in &mut self.partitions {
            let known = look_up(partition);
            if let Some(leader) = known {
                self.unsettled |= state.adopt_topic(leader.topic_id, &mut self.next_version);
            }
            let at = state.position.at();
            let behind = |leader: &Leader| at.is_some_and(|at| leader.is_behind(at));
            let late = state
                .behind
                .note(known.as_ref().is_some_and(behind), now_ms);
            if let (true, Some(at), Some(leader)) = (late, at, known) {
                tracing::warn!(
                    %partition, offset = at.offset, epoch = at.epoch, leader_epoch = leader.epoch,
                    "the position's leader epoch is above what brokers know of the partition, so \
                     nothing is fetched; if the topic was deleted and made again, seek or reset \
                     the group's offsets"
                );
            }
            let known = known.filter(|leader| !behind(leader));
            if let Some(leader) = known {
                self.nodes.push(leader.node);
            } else {
                stale.insert(Arc::clone(&partition.topic));
                self.leaderless = true;
            }
            let before = std::mem::replace(&mut state.leader, known);
            let who = |leader: Leader| (leader.node, leader.epoch);
            if known.is_none() || before.map(who) == known.map(who) {
                self.nodes.extend(state.replica());
                continue;
            }
            // It was the leader before who named it.
            state.replica = None;
            if let Some(at) = at.filter(|at| at.epoch.is_some()) {
                self.next_version += 1;
                state.restart(Position::At(at), self.next_version);
                state.doubt();
                self.unsettled = true;
            }
        }
        self.nodes.sort_unstable();
        self.nodes.dedup();
    }

    /// Positions to be validated; marks them as being asked for.
    pub(crate) fn begin_validation(&mut self, now_ms: i64) -> Vec<(Target, Doubt)> {
        self.begin(now_ms, |state| {
            let Position::Validating(at) = state.position else {
                return None;
            };
            Some(Doubt {
                at,
                epoch: at.epoch?,
                leader: state.leader?,
            })
        })
    }

    /// The leader has answered: the position is `at` from now on.
    pub(crate) fn validated(&mut self, target: &Target, at: At) {
        if let Some(state) = self.current(target) {
            state.position = Position::At(at);
            state.asking = super::Asking::Nothing;
            state.not_before_ms = i64::MIN;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_that_stays_behind_is_told_once_after_a_while() {
        let mut behind = Behind::default();
        assert!(!behind.note(true, 1_000));
        assert!(!behind.note(true, 30_999));
        assert!(behind.note(true, 31_000));
        assert!(!behind.note(true, 99_000), "once");
        assert!(!behind.note(false, 100_000));
        assert!(!behind.note(true, 200_000), "anew");
        assert!(behind.note(true, 230_000));
    }
}

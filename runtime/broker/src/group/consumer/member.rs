//! One member of a consumer group: what it told of itself, and how far it has come.
//!
//! Invariants: `assigned` and `pending_revocation` share no partition; `pending_revocation` is
//! empty unless the member is `Unrevoked`.
//! Never: decides anything about the group.

use std::collections::{BTreeMap, BTreeSet};

use millstream_protocol::Uuid;

use super::assignor::Assignor;
use super::event::{Beat, TopicShape, TopicTable};
use super::state::{MemberState, Named};

/// Partitions by topic; no topic without any.
pub(crate) type Partitions = BTreeMap<Uuid, BTreeSet<i32>>;

/// Whether some partition is in both.
pub(super) fn overlap(these: &Partitions, those: &Partitions) -> bool {
    these.iter().any(|(topic, partitions)| {
        let other = those.get(topic);
        other.is_some_and(|other| !other.is_disjoint(partitions))
    })
}

/// Whether every one of these is in those.
pub(super) fn within(these: &Partitions, those: &Partitions) -> bool {
    these.iter().all(|(topic, partitions)| {
        let other = those.get(topic);
        partitions.is_empty() || other.is_some_and(|other| partitions.is_subset(other))
    })
}

/// What a member told of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Set for a static member.
    pub(crate) instance_id: Option<String>,
    /// Where it is.
    pub(crate) rack_id: Option<String>,
    /// As the client calls itself.
    pub(crate) client_id: String,
    /// Where the client connects from.
    pub(crate) client_host: String,
    /// The topics that it reads.
    pub(crate) topics: BTreeSet<String>,
    /// The expression by which it reads further topics; understood, or matching none.
    pub(crate) regex: Option<String>,
    /// How long it may take to give partitions up.
    pub(crate) rebalance_timeout_ms: i32,
    /// The assignor that it votes for.
    pub(crate) assignor: Option<Assignor>,
}

/// How far a member has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Current {
    /// The epoch that its next heartbeat has to name; -2 while it is away.
    pub(crate) epoch: i32,
    /// The one before.
    pub(crate) previous_epoch: i32,
    /// Whether it has to give up or to wait for something.
    pub(crate) state: MemberState,
    /// What it may use.
    pub(crate) assigned: Partitions,
    /// What it has been asked to give up.
    pub(crate) pending_revocation: Partitions,
    /// The member's epoch when it was given a partition, for every one of both sets.
    pub(crate) since: Since,
}

/// Epochs by partition.
pub(crate) type Since = BTreeMap<(Uuid, i32), i32>;

/// One by one.
pub(super) fn each(partitions: &Partitions) -> impl Iterator<Item = (Uuid, i32)> {
    let topics = partitions.iter();
    topics.flat_map(|(topic, set)| set.iter().map(|partition| (*topic, *partition)))
}

/// A member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) profile: Profile,
    pub(crate) current: Current,
    /// The session ends here unless the member says something before.
    pub(crate) session_deadline_ms: i64,
    /// What it was asked to give up must be given up by then.
    pub(crate) rebalance_deadline_ms: Option<i64>,
}

impl Profile {
    /// The names of the topics that it reads, of those that exist.
    pub(super) fn reads(&self, table: &dyn TopicTable) -> BTreeMap<String, TopicShape> {
        let matching = self.regex.as_deref().map(|regex| table.matching(regex));
        let matching = matching.as_deref().unwrap_or_default();
        let matching = matching.iter().map(|name| &**name);
        let names = self.topics.iter().map(String::as_str).chain(matching);
        let known = names.filter_map(|name| Some((name.to_owned(), table.shape(name)?)));
        known.collect()
    }

    /// The profile with what a heartbeat says anew.
    pub(super) fn updated(&self, beat: &Beat) -> Profile {
        let or = |new: &Option<String>, old: &Option<String>| new.clone().or_else(|| old.clone());
        Profile {
            instance_id: or(&beat.instance_id, &self.instance_id),
            rack_id: or(&beat.rack_id, &self.rack_id),
            client_id: beat.client_id.clone(),
            client_host: beat.client_host.clone(),
            topics: match &beat.topics {
                Some(topics) => topics.iter().cloned().collect(),
                None => self.topics.clone(),
            },
            regex: or(&beat.regex, &self.regex).filter(|regex| !regex.is_empty()),
            rebalance_timeout_ms: beat
                .rebalance_timeout_ms
                .unwrap_or(self.rebalance_timeout_ms),
            assignor: beat.assignor.or(self.assignor),
        }
    }
}

impl Current {
    /// Goes to an epoch, if it is not there.
    pub(super) fn at_epoch(&self, epoch: i32) -> Current {
        if epoch == self.epoch {
            return self.clone();
        }
        Current {
            epoch,
            previous_epoch: self.epoch,
            ..self.clone()
        }
    }

    /// The same, with the epochs of what the member has: those of `before` for what it still has,
    /// unless it begins anew, and its own for the rest.
    pub(super) fn dated(self, before: &Current, anew: bool) -> Current {
        let known = |partition: &(Uuid, i32)| before.since.get(partition).copied();
        let known = |partition: &(Uuid, i32)| known(partition).filter(|_| !anew);
        let had: BTreeSet<(Uuid, i32)> = each(&before.assigned).collect();
        let assigned = each(&self.assigned).map(|partition| {
            let kept = known(&partition).filter(|_| had.contains(&partition));
            (partition, kept.unwrap_or(self.epoch))
        });
        let pending = each(&self.pending_revocation)
            .map(|partition| (partition, known(&partition).unwrap_or(self.epoch)));
        let since = assigned.chain(pending).collect();
        Current { since, ..self }
    }

    /// Whether the member has had every one of these since that epoch, or longer.
    pub(super) fn has_had(&self, partitions: &[(Uuid, i32)], epoch: i32) -> bool {
        let had = |partition| {
            self.since
                .get(partition)
                .is_some_and(|since| *since <= epoch)
        };
        partitions.iter().all(had)
    }

    /// Whether the member has all that the target of that epoch says.
    pub(crate) fn is_reconciled_to(&self, epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == epoch
    }

    /// What an epoch is to this member.
    pub(super) fn named(&self, epoch: i32) -> Named {
        if epoch == super::event::JOIN {
            Named::Zero
        } else if epoch == self.epoch {
            Named::Current
        } else if epoch == self.previous_epoch && epoch < self.epoch {
            Named::Previous
        } else {
            Named::Other
        }
    }
}

impl Member {
    /// When the group wants to be asked about the member, at the latest.
    pub(super) fn deadline_ms(&self) -> i64 {
        let rebalance_ms = self.rebalance_deadline_ms.unwrap_or(i64::MAX);
        self.session_deadline_ms.min(rebalance_ms)
    }

    /// A sign of life.
    pub(super) fn refresh_session(&mut self, now_ms: i64, session_timeout_ms: i32) {
        self.session_deadline_ms = now_ms.saturating_add(i64::from(session_timeout_ms));
    }

    /// Counts the time for giving partitions up if the member has to, and no longer if not.
    pub(super) fn restart_rebalance_timer(&mut self, now_ms: i64) {
        let timeout_ms = i64::from(self.profile.rebalance_timeout_ms);
        self.rebalance_deadline_ms = match self.current.state {
            // One that is away has nothing to give up.
            _ if self.current.epoch == super::event::PAUSE => None,
            MemberState::Unrevoked => Some(now_ms.saturating_add(timeout_ms)),
            MemberState::Stable | MemberState::Unreleased => None,
        };
    }
}

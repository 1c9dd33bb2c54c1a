//! One step of a member towards its target: first it gives up, then it gets what is free.
//!
//! ```text
//! assigned ∖ target ─▶ pending revocation ─▶ (no longer owned) ─▶ free for others
//! target ∖ assigned ─▶ free? ─▶ assigned      held by another? ─▶ wait
//! ```
//!
//! Invariants: what another member holds, or has still to give up, is not assigned; the epoch of
//! the target is reached only once the member owns nothing outside of it. A member that does not
//! name a partition has let it go only if it was told to before: until then it may be about to
//! take what an earlier answer gave it.
//! Never: looks at the clock, or at the group.

use std::collections::BTreeSet;

use millstream_protocol::Uuid;

use super::member::{Current, Partitions, overlap};
use super::state::{Found, Progress, progress, settle};

/// Where a member has to go, and what it says.
pub(super) struct Course<'a> {
    /// The epoch of the target.
    pub(super) epoch: i32,
    /// The member's target.
    pub(super) target: &'a Partitions,
    /// The topics that it reads now; it is to have nothing else.
    pub(super) subscribed: &'a BTreeSet<Uuid>,
    /// Whether that has just changed.
    pub(super) changed: bool,
    /// It is new or comes back, so it owns nothing and takes nothing that earlier answers gave it.
    pub(super) begins_anew: bool,
    /// What it says that it owns.
    pub(super) owned: Option<&'a Partitions>,
    /// Whether another member holds a partition or has still to give it up.
    pub(super) taken: &'a dyn Fn(Uuid, i32) -> bool,
}

impl Course<'_> {
    /// Where the member is after this heartbeat.
    pub(super) fn follow(&self, current: &Current) -> Current {
        let found = Found {
            behind: current.epoch != self.epoch,
            holds: self.holds(&current.pending_revocation),
            changed: self.changed,
        };
        match progress(current.state, found) {
            Progress::Keep => current.clone(),
            Progress::Shrink => self.shrink(current),
            Progress::Advance => self.advance(current, current.epoch),
            Progress::AdvanceOneEpoch => {
                // A subscription may have changed before there was a newer target.
                let next = current.epoch.saturating_add(1).min(self.epoch);
                self.advance(current, next)
            }
        }
    }

    /// Whether the member still owns some of these; without a word from it, it does.
    fn holds(&self, partitions: &Partitions) -> bool {
        self.owned.is_none_or(|owned| overlap(owned, partitions))
    }

    fn shrink(&self, current: &Current) -> Current {
        let mut after = current.clone();
        for (topic, partitions) in &current.assigned {
            if !self.subscribed.contains(topic) {
                after.assigned.remove(topic);
                let pending = after.pending_revocation.entry(*topic).or_default();
                pending.extend(partitions);
            }
        }
        after
    }

    /// Towards the target; `epoch` is where the member stays while it has something to give up.
    fn advance(&self, current: &Current, epoch: i32) -> Current {
        let mut assigned = Partitions::new();
        let mut given_up = Partitions::new();
        for (topic, partitions) in &current.assigned {
            for partition in partitions {
                let keeps = self.is_target(*topic, *partition);
                let side = if keeps { &mut assigned } else { &mut given_up };
                side.entry(*topic).or_default().insert(*partition);
            }
        }
        if !given_up.is_empty() && !self.begins_anew {
            return Current {
                state: settle(true, false),
                assigned,
                pending_revocation: given_up,
                ..current.at_epoch(epoch)
            };
        }
        let mut must_wait = false;
        for (topic, partitions) in self.target {
            for partition in partitions {
                let has = current.assigned.get(topic);
                if has.is_some_and(|has| has.contains(partition)) {
                    continue;
                }
                if !self.is_target(*topic, *partition) {
                    continue;
                }
                if (self.taken)(*topic, *partition) {
                    must_wait = true;
                } else {
                    assigned.entry(*topic).or_default().insert(*partition);
                }
            }
        }
        Current {
            state: settle(false, must_wait),
            assigned,
            pending_revocation: Partitions::new(),
            ..current.at_epoch(self.epoch)
        }
    }

    fn is_target(&self, topic: Uuid, partition: i32) -> bool {
        let target = self.target.get(&topic);
        self.subscribed.contains(&topic) && target.is_some_and(|set| set.contains(&partition))
    }
}

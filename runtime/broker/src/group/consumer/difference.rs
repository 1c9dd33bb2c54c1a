//! From one state of a group to the next as records, and from records back to a group.
//!
//! ```text
//! tombstones of who is gone ─▶ profiles ─▶ epoch ─▶ targets ─▶ target epoch ─▶ currents
//! ```
//!
//! Invariants: records that are read back in the order of the log give the group that was written,
//! sessions counted anew; whoever is gone has let go before anybody else gets something.
//! Never: writes what has not changed.

use std::collections::BTreeMap;

use super::assignor::Assignor;
use super::event::Limits;
use super::machine::ConsumerGroup;
use super::member::{Current, Member, Partitions, Profile, Since};
use super::record::{
    ConsumerGroupCurrentMemberAssignmentValue, ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue, ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue, ConsumerRecord, from_dated, from_stored, to_dated,
    to_stored,
};
use super::state::MemberState;

/// What has to be written so that a reader who knows `before` knows `after`; none is no group.
pub(crate) fn difference(
    before: Option<&ConsumerGroup>,
    after: Option<&ConsumerGroup>,
) -> Vec<ConsumerRecord> {
    let nothing = ConsumerGroup::default();
    let (old, new) = (before.unwrap_or(&nothing), after.unwrap_or(&nothing));
    let mut records = Vec::new();
    for id in old
        .members
        .keys()
        .filter(|id| !new.members.contains_key(*id))
    {
        records.push(ConsumerRecord::Current(id.clone(), None));
        records.push(ConsumerRecord::Target(id.clone(), None));
        records.push(ConsumerRecord::Profile(id.clone(), None));
    }
    if after.is_none() {
        if before.is_some() {
            records.push(ConsumerRecord::TargetEpoch(None));
            records.push(ConsumerRecord::Epoch(None));
        }
        return records;
    }
    for (id, member) in &new.members {
        let known = old.members.get(id);
        if known.is_none_or(|known| known.profile != member.profile) {
            let value = profile_value(&member.profile);
            records.push(ConsumerRecord::Profile(id.clone(), Some(value)));
        }
    }
    if before.is_none() || (old.epoch, old.topics_hash) != (new.epoch, new.topics_hash) {
        records.push(ConsumerRecord::Epoch(Some(ConsumerGroupMetadataValue {
            epoch: new.epoch,
            metadata_hash: new.topics_hash,
        })));
    }
    for (id, target) in &new.targets {
        if old.targets.get(id) != Some(target) {
            let topic_partitions = to_stored(target);
            let value = ConsumerGroupTargetAssignmentMemberValue { topic_partitions };
            records.push(ConsumerRecord::Target(id.clone(), Some(value)));
        }
    }
    if before.is_none() || old.assignment_epoch != new.assignment_epoch {
        let assignment_epoch = new.assignment_epoch;
        let value = ConsumerGroupTargetAssignmentMetadataValue { assignment_epoch };
        records.push(ConsumerRecord::TargetEpoch(Some(value)));
    }
    for (id, member) in &new.members {
        let known = old.members.get(id);
        if known.is_none_or(|known| known.current != member.current) {
            let value = current_value(&member.current);
            records.push(ConsumerRecord::Current(id.clone(), Some(value)));
        }
    }
    records
}

fn profile_value(profile: &Profile) -> ConsumerGroupMemberMetadataValue {
    ConsumerGroupMemberMetadataValue {
        instance_id: profile.instance_id.clone(),
        rack_id: profile.rack_id.clone(),
        client_id: profile.client_id.clone(),
        client_host: profile.client_host.clone(),
        subscribed_topic_names: profile.topics.iter().cloned().collect(),
        subscribed_topic_regex: profile.regex.clone(),
        rebalance_timeout_ms: profile.rebalance_timeout_ms,
        server_assignor: profile.assignor.map(|assignor| assignor.name().to_owned()),
    }
}

fn current_value(current: &Current) -> ConsumerGroupCurrentMemberAssignmentValue {
    ConsumerGroupCurrentMemberAssignmentValue {
        member_epoch: current.epoch,
        previous_member_epoch: current.previous_epoch,
        state: current.state as i8,
        assigned_partitions: to_dated(&current.assigned, &current.since),
        partitions_pending_revocation: to_dated(&current.pending_revocation, &current.since),
    }
}

/// What the records of a group that have been read say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Epoch and hash of the topics; there is no group without.
    epoch: Option<(i32, i64)>,
    assignment_epoch: i32,
    profiles: BTreeMap<String, Profile>,
    currents: BTreeMap<String, Current>,
    targets: BTreeMap<String, Partitions>,
}

impl Stored {
    /// Takes the next record.
    pub(crate) fn apply(&mut self, record: ConsumerRecord) {
        match record {
            ConsumerRecord::Epoch(value) => {
                self.epoch = value.map(|value| (value.epoch, value.metadata_hash));
            }
            ConsumerRecord::TargetEpoch(value) => {
                self.assignment_epoch = value.map_or(0, |value| value.assignment_epoch);
            }
            ConsumerRecord::Profile(id, value) => {
                replace(&mut self.profiles, id, value.map(profile));
            }
            ConsumerRecord::Target(id, value) => {
                let target = value.map(|value| from_stored(value.topic_partitions));
                replace(&mut self.targets, id, target);
            }
            ConsumerRecord::Current(id, value) => {
                replace(&mut self.currents, id, value.map(current));
            }
            ConsumerRecord::Topics => {}
        }
    }

    /// The group, if there is one.
    pub(crate) fn into_group(mut self, limits: Limits, now_ms: i64) -> Option<ConsumerGroup> {
        let (epoch, topics_hash) = self.epoch?;
        let member = |(id, profile): (String, Profile)| {
            let current = self.currents.remove(&id).unwrap_or_default();
            let member = Member {
                profile,
                current,
                ..Member::default()
            };
            (id, member)
        };
        let group = ConsumerGroup {
            epoch,
            topics_hash,
            assignment_epoch: self.assignment_epoch,
            members: self.profiles.into_iter().map(member).collect(),
            targets: self.targets,
            ..ConsumerGroup::default()
        };
        Some(group.restored(now_ms, limits))
    }
}

fn replace<T>(map: &mut BTreeMap<String, T>, id: String, value: Option<T>) {
    match value {
        Some(value) => map.insert(id, value),
        None => map.remove(&id),
    };
}

fn profile(value: ConsumerGroupMemberMetadataValue) -> Profile {
    let assignor = value.server_assignor.as_deref();
    Profile {
        assignor: assignor.and_then(Assignor::named),
        instance_id: value.instance_id,
        rack_id: value.rack_id,
        client_id: value.client_id,
        client_host: value.client_host,
        topics: value.subscribed_topic_names.into_iter().collect(),
        regex: value
            .subscribed_topic_regex
            .filter(|regex| !regex.is_empty()),
        rebalance_timeout_ms: value.rebalance_timeout_ms,
    }
}

fn current(value: ConsumerGroupCurrentMemberAssignmentValue) -> Current {
    let (epoch, mut since) = (value.member_epoch, Since::new());
    Current {
        epoch,
        previous_epoch: value.previous_member_epoch,
        // Other states are refused when the record is read.
        state: MemberState::from_i8(value.state).unwrap_or_default(),
        assigned: from_dated(value.assigned_partitions, epoch, &mut since),
        pending_revocation: from_dated(value.partitions_pending_revocation, epoch, &mut since),
        since,
    }
}

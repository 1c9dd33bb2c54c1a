//! How a group's leader shares partitions out: the trait, and the assignors that Kafka ships.
//!
//! An assignor is named in every JoinGroup request; the coordinator picks a name that all members
//! offer, and the member it calls leader runs [`Assignor::assign`] for the whole group. A member
//! written in another language may be that leader, so names, bytes and results match Kafka's.
//!
//! Invariants: `assign` gives every partition of a subscribed topic to exactly one member that
//! subscribes to it (the cooperative protocol may hold back one that is still owned elsewhere).
//! Never: I/O, clocks or randomness; the same input gives the same shares on every machine.

mod balance;
mod cooperative_sticky;
#[cfg(test)]
mod eager_tests;
mod range;
mod round_robin;
mod sticky;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use millstream_protocol::TopicPartition;

pub use cooperative_sticky::CooperativeSticky;
pub use range::Range;
pub use round_robin::RoundRobin;
pub use sticky::Sticky;

use crate::GroupMetadata;

/// Subscribed topics that exist, with their partition counts.
pub type PartitionCounts = BTreeMap<Arc<str>, i32>;

/// What happens to a member's partitions while the group rebalances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RebalanceProtocol {
    /// Every member gives up all its partitions before it joins again.
    Eager,
    /// A member keeps what it has and gives up only what the new assignment takes away.
    Cooperative,
}

/// One member of the group as its leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The id that the coordinator gave to the member.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub group_instance_id: Option<String>,
    /// Topics that the member wants to read.
    pub topics: Vec<Arc<str>>,
    /// What the member's assignor added to its subscription.
    pub user_data: Option<Bytes>,
    /// Partitions that the member still holds (cooperative protocol).
    pub owned_partitions: Vec<TopicPartition>,
    /// Generation in which it got them; -1 when it does not say.
    pub generation_id: i32,
    /// `client.rack` of the member. The built-in assignors do not look at it.
    pub rack_id: Option<String>,
}

impl Member {
    /// Static members first, among themselves by instance id; the others by member id.
    fn order_key(&self) -> (bool, &str) {
        match &self.group_instance_id {
            Some(instance) => (false, instance),
            None => (true, &self.member_id),
        }
    }
}

/// One member's share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberAssignment {
    /// Whose share it is.
    pub member_id: String,
    /// The partitions of the share.
    pub partitions: Vec<TopicPartition>,
    /// Bytes for the member's assignor, handed to [`Assignor::on_assignment`] over there.
    pub user_data: Option<Bytes>,
}

/// All members in the order of [`Member::order_key`].
fn in_order(members: &[Member]) -> Vec<&Member> {
    let mut ordered: Vec<&Member> = members.iter().collect();
    ordered.sort_by(|a, b| a.order_key().cmp(&b.order_key()));
    ordered
}

/// The shares of these members, which stand in the same order; the result is by member id.
fn assignments(members: &[&Member], shares: Vec<Vec<TopicPartition>>) -> Vec<MemberAssignment> {
    let mut assignments: Vec<MemberAssignment> = members
        .iter()
        .zip(shares)
        .map(|(member, partitions)| MemberAssignment {
            member_id: member.member_id.clone(),
            partitions,
            user_data: None,
        })
        .collect();
    assignments.sort_by(|a, b| a.member_id.cmp(&b.member_id));
    assignments
}

/// What a member was given, as its own assignor sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The partitions that the member now has.
    pub partitions: Vec<TopicPartition>,
    /// What the leader's assignor added.
    pub user_data: Option<Bytes>,
}

/// A way of sharing partitions out among the members of a group.
///
/// Implementations are shared between tasks. `assign` runs on the membership task, which also
/// sends the heartbeats: it must not block.
pub trait Assignor: Send + Sync + Debug {
    /// The protocol name; members of one group meet on a name that all of them offer.
    fn name(&self) -> &str;

    /// The rebalance protocols that the assignor's results are fit for.
    fn protocols(&self) -> &[RebalanceProtocol] {
        &[RebalanceProtocol::Eager]
    }

    /// Bytes of this member for the leader's assignor. Asked before every JoinGroup.
    fn user_data(&self, _topics: &[Arc<str>]) -> Option<Bytes> {
        None
    }

    /// Shares out the partitions; runs on the leader. Members without a share may be left out.
    ///
    /// # Errors
    /// A reason why no assignment can be made; the leader's `poll` reports it and the group is
    /// left, so that the others are not held up.
    fn assign(
        &self,
        partitions: &PartitionCounts,
        members: &[Member],
    ) -> Result<Vec<MemberAssignment>, String>;

    /// Tells this member's assignor what the leader decided. Called before the partitions are
    /// announced to the rebalance listener.
    fn on_assignment(&self, _assignment: &Assignment, _group: &GroupMetadata) {}
}

/// The most advanced protocol that all assignors support, or `None` when they have none in common.
pub(crate) fn common_protocol(assignors: &[Arc<dyn Assignor>]) -> Option<RebalanceProtocol> {
    [RebalanceProtocol::Cooperative, RebalanceProtocol::Eager]
        .into_iter()
        .find(|protocol| {
            !assignors.is_empty() && assignors.iter().all(|a| a.protocols().contains(protocol))
        })
}

/// Partitions that an assignment moves straight from one owner to another, which the cooperative
/// protocol forbids: the old owner must first give them up.
pub(crate) fn moved_while_owned(
    members: &[Member],
    assignments: &[MemberAssignment],
) -> Vec<TopicPartition> {
    let mut owner: BTreeMap<&TopicPartition, &str> = BTreeMap::new();
    for member in members {
        for partition in &member.owned_partitions {
            owner.insert(partition, &member.member_id);
        }
    }
    assignments
        .iter()
        .flat_map(|share| {
            share
                .partitions
                .iter()
                .map(move |p| (p, share.member_id.as_str()))
        })
        .filter(|(partition, to)| owner.get(partition).is_some_and(|from| from != to))
        .map(|(partition, _)| partition.clone())
        .collect()
}

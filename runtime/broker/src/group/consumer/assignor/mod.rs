//! Who is to have which partition, computed by the broker.
//!
//! Invariants: every partition of a topic that somebody reads goes to exactly one of its readers;
//! the same input gives the same assignment.
//! Never: knows epochs, or what members still hold.

mod range;
mod uniform;

use std::collections::{BTreeMap, BTreeSet};

use millstream_protocol::Uuid;

use super::member::Partitions;

/// A way to assign, as members vote for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Assignor {
    /// Ranges of each topic, so that topics that are read together are split alike.
    Range,
    /// Even over all topics, moving as little as possible.
    #[default]
    Uniform,
}

impl Assignor {
    /// All of them.
    pub(crate) const ALL: [Assignor; 2] = [Assignor::Uniform, Assignor::Range];

    /// The name that members vote by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Assignor::Range => "range",
            Assignor::Uniform => "uniform",
        }
    }

    /// The assignor of that name.
    pub(crate) fn named(name: &str) -> Option<Assignor> {
        Self::ALL
            .into_iter()
            .find(|assignor| assignor.name() == name)
    }

    /// The target of every member. `partition_counts` has the topics that exist.
    pub(super) fn assign(
        self,
        members: &[Subscriber<'_>],
        partition_counts: &BTreeMap<Uuid, i32>,
    ) -> Vec<Partitions> {
        match self {
            Assignor::Range => range::assign(members, partition_counts),
            Assignor::Uniform => uniform::assign(members, partition_counts),
        }
    }
}

/// A member as an assignor sees it.
#[derive(Clone, Debug)]
pub(super) struct Subscriber<'a> {
    /// Its id.
    pub(super) id: &'a str,
    /// Set for a static member.
    pub(super) instance_id: Option<&'a str>,
    /// The topics that it reads, of those that exist.
    pub(super) topics: BTreeSet<Uuid>,
    /// What it was to have so far.
    pub(super) had: &'a Partitions,
}

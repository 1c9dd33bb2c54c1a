//! The group coordinator: membership and committed offsets.
//!
//! ```text
//! handlers ─▶ coordinator, commits ─▶ shard ─▶ machine (pure), offsets (pure)
//!                  ▲                    └────▶ record ─▶ `__consumer_offsets`
//!               timers                              open ─▶ replay
//! ```
//!
//! `state`, `machine`, `join` and `rebalance` are the classic group; `consumer` is the group of the
//! consumer protocol, `consumer_groups` asks it; `offsets` is what groups have
//! committed; `shard` is one partition of `__consumer_offsets` with both; `replay` reads it back.
//!
//! Invariants: a group's log is its truth; memory follows it, and answers follow durability.
//! Never: knows connections or the wire.

mod commits;
mod consumer;
mod consumer_groups;
mod coordinator;
mod deletion;
mod event;
mod join;
mod machine;
#[cfg(test)]
mod machine_properties;
#[cfg(test)]
mod machine_tests;
mod member;
mod offsets;
#[cfg(test)]
mod offsets_tests;
mod rebalance;
mod record;
mod replay;
mod shard;
mod snapshot;
mod state;
#[cfg(test)]
mod static_tests;
mod subscription;
#[cfg(test)]
mod tests;
mod timers;

pub(crate) use commits::{CommitProducer, FetchedOffset, NewOffset};
pub(crate) use consumer::{Assignor, Beat, Partitions, TopicShape, TopicTable};
pub(crate) use consumer_groups::ConsumerGroupView;
pub(crate) use coordinator::{Coordinator, GroupView};
pub(crate) use event::{Join, JoinReply, Leaver, MemberClaim, Protocol, Sync, SyncReply, Token};

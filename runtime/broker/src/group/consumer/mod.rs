//! A group of the consumer protocol: the broker assigns, members reconcile one heartbeat at a time.
//!
//! ```text
//! heartbeat ─▶ machine ─▶ epoch ─▶ assignor ─▶ target ─▶ reconcile ─▶ answer
//!                 ▲                                          │
//!              timers                       difference ─▶ record ─▶ `__consumer_offsets`
//! ```
//!
//! Three epochs: that of the group rises with every change of members, subscriptions or topics;
//! that of the assignment is the group epoch for which the target was computed; that of a member
//! is the assignment epoch to which it has come.
//!
//! Invariants: no partition has two owners; a member gets one only after its owner has let it go.
//! Never: clocks, I/O, wire types; time and topics are arguments.

mod assignor;
#[cfg(test)]
mod assignor_tests;
mod difference;
mod event;
mod machine;
#[cfg(test)]
mod machine_tests;
mod member;
#[cfg(test)]
mod properties;
mod reconcile;
pub(crate) mod record;
mod state;

pub(crate) use assignor::Assignor;
pub(crate) use difference::{Stored, difference};
pub(crate) use event::{Beat, BeatReply, Limits, Refusal, TopicShape, TopicTable};
pub(crate) use machine::ConsumerGroup;
pub(crate) use member::{Member, Partitions};
pub(crate) use state::{GroupState, Reaction, Stimulus, react};

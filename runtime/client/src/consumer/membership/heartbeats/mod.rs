//! Membership by heartbeats alone: the consumer protocol (KIP-848), in which the coordinator shares
//! partitions out and each member takes over what it is told at its own pace.
//!
//! Never: seen by the rest of the consumer, which knows the mailbox beside this module only.

mod driver;
mod machine;
mod member_id;
mod target;
mod words;

pub(super) use driver::run;
pub(crate) use target::Target;

//! Requests to partitions and coordinators: the single-node broker.
//!
//! A connection ([`Broker::serve`], or TCP through [`Broker::listen`]) hands frames to `dispatch`,
//! which decodes a request and calls its handler; a handler works on a `Node`: the partitions of
//! the log directory, the transaction coordinator and the group coordinator. One sync loop makes
//! appends durable.
//!
//! What connections over sockets may take of memory is bounded (`memory`, `socket`, `connection`;
//! measured by `tests/pressure.rs`):
//!
//! ```text
//!   queued.max.request.bytes     256 MiB  requests above 4 KiB, being read or under way (half as
//!                                         much again while a buffer grows)
//! + fetch.answers.max.bytes      256 MiB  records above 64 KiB until their readers take them
//! + a connection, at most max.connections (2,048) and half of the files of the process:
//!     idle                        20 KiB  of which a half is the client's, where it is measured
//!     busy                       192 KiB  a buffer of 64 KiB, small requests, 64 KiB of answers
//!                                         behind a request that waits, and the one beyond them
//!     answers without records             as large as what they tell of, two at a time
//! + fetch sessions                64 MiB  of all clients, whether connected or not
//! + the newest records             1 MiB  a partition that is written to
//! ```
//!
//! When memory is short, a frame that does not come, or an answer that is not taken, for 30 s ends
//! its connection; so do, after 30 s, a Fetch above 4 KiB that waits, and requests and large
//! answers that stand behind one that waits. A small request never waits for memory.
//! `connections.max.idle.ms` ends the rest.
//!
//! Invariants: an acknowledged append is as durable as the broker's `Durability` says.
//! Invariants: answers leave a connection in the order of its requests.
//! Never: knows the client crate; reads a clock, a random source or a disk outside its seams.

mod broker;
mod broker_settings;
mod clock;
mod config;
mod connection;
mod deletion;
mod dispatch;
mod error;
mod fetch_sessions;
mod group;
mod group_settings;
mod handlers;
mod listener;
mod memory;
mod node;
mod observed;
mod overrides;
mod partition;
mod pattern;
mod refused;
mod resolution;
mod socket;
mod sync_loop;
#[cfg(test)]
mod tests;
mod topic_settings;
mod topics;
mod transaction;

pub use broker::Broker;
pub use clock::Clock;
pub use config::{BrokerConfig, Placement};
pub use error::BrokerError;

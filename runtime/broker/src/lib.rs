//! Requests to partitions and coordinators: the single-node broker.
//!
//! A connection ([`Broker::serve`], or TCP through [`Broker::listen`]) hands frames to `dispatch`,
//! which decodes a request and calls its handler; a handler works on a `Node`: the partitions of
//! the log directory, the transaction coordinator and the group coordinator. One sync loop makes
//! appends durable.
//!
//! Invariants: an acknowledged append is as durable as the broker's `Durability` says.
//! Invariants: answers leave a connection in the order of its requests.
//! Never: knows the client crate; reads a clock, a random source or a disk outside its seams.

mod broker;
mod broker_settings;
mod clock;
mod config;
mod connection;
mod dispatch;
mod error;
mod group;
mod handlers;
mod listener;
mod node;
mod observed;
mod partition;
mod refused;
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

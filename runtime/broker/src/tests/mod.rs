//! The broker as a client sees it: requests over `serve`, and over TCP for what only TCP can get
//! wrong.
//!
//! Invariants: time is virtual wherever it matters; nothing here sleeps for real.
//! Never: calls a handler; every request goes through frames.

mod admin;
mod answers;
mod bad_input;
mod broker_configs;
mod compaction;
mod configs;
mod cost;
mod data_path;
mod durability;
mod fetch_sessions;
mod group_configs;
pub(crate) mod harness;
mod held;
mod many_topics;
mod partitions;
mod read_committed;
mod topics;
mod versions;
mod wall_clock;

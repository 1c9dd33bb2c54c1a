//! The group coordinator: membership and committed offsets.
//!
//! Invariants: see the machine.
//! Never: knows connections.

mod event;
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
mod snapshot;
mod state;
#[cfg(test)]
mod static_tests;
mod subscription;

use crate::node::Node;
use crate::{BrokerConfig, BrokerError};
use std::sync::{Arc, Weak};

/// Every group of this node.
#[derive(Debug)]
pub(crate) struct Coordinator {}

impl Coordinator {
    /// An empty coordinator.
    pub(crate) fn new(_config: &BrokerConfig) -> Self {
        Self {}
    }

    /// Reads `__consumer_offsets`.
    pub(crate) async fn load(&self, _node: &Arc<Node>) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Session, rebalance and retention timeouts, until the node is gone.
    pub(crate) async fn run_timers(_node: Weak<Node>) {}
}

//! The transaction coordinator: producer ids, transactions, their log and their markers.
//!
//! Invariants: see the machine.
//! Never: knows requests or connections.

use crate::node::Node;
use crate::{BrokerConfig, BrokerError};
use std::sync::{Arc, Weak};

/// Every transaction of this node.
#[derive(Debug)]
pub(crate) struct Coordinator {}

impl Coordinator {
    /// An empty coordinator.
    pub(crate) fn new(_config: &BrokerConfig) -> Self {
        Self {}
    }

    /// Reads `__transaction_state` and finishes what was prepared.
    pub(crate) async fn load(&self, _node: &Arc<Node>) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Aborts transactions that have timed out, and forgets old ids, until the node is gone.
    pub(crate) async fn run_timers(_node: Weak<Node>) {}
}

//! [`GlobalKTable`]: a table that every instance holds whole, for joins on any key.
//!
//! Invariants: it can be joined by streams of its own builder only.
//! Never: emits.

use std::sync::Arc;

use crate::serde::Serdes;
use crate::topology::Graph;

/// A handle on a global table; cheap to clone.
pub struct GlobalKTable<K, V> {
    pub(crate) graph: Graph,
    pub(crate) topic: Arc<str>,
    pub(crate) index: usize,
    pub(crate) serdes: Serdes<K, V>,
}

impl<K, V> GlobalKTable<K, V> {
    pub(crate) fn new(graph: Graph, topic: Arc<str>, index: usize, serdes: Serdes<K, V>) -> Self {
        Self {
            graph,
            topic,
            index,
            serdes,
        }
    }

    /// The topic that the table is read from.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }
}

impl<K, V> Clone for GlobalKTable<K, V> {
    fn clone(&self) -> Self {
        Self {
            graph: self.graph.clone(),
            topic: Arc::clone(&self.topic),
            index: self.index,
            serdes: self.serdes.clone(),
        }
    }
}

impl<K, V> std::fmt::Debug for GlobalKTable<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GlobalKTable")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

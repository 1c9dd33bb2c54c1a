//! The store behind a global table: filled by one reader, looked up by every task of the instance.
//!
//! Invariants: a batch of updates becomes visible whole, with the offset it reaches.
//! Never: written by an operator.

use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use millstream_state::{KeyValueStore, MemoryStore, StateError, WriteBatch};

/// One global table's store.
#[derive(Debug)]
pub(crate) struct GlobalStore {
    store: RwLock<MemoryStore>,
}

impl GlobalStore {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            store: RwLock::new(MemoryStore::new(name)),
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        self.store
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
    }

    pub(crate) fn apply(&self, batch: WriteBatch) -> Result<(), StateError> {
        self.store
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .apply(batch)
    }

    pub(crate) fn count(&self) -> u64 {
        self.store
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .approximate_count()
    }
}

/// The stores of a topology's global tables, by their index in the topology.
#[derive(Debug, Clone, Default)]
pub(crate) struct GlobalStores(pub(crate) Vec<Arc<GlobalStore>>);

impl GlobalStores {
    /// The store of the table that was declared as number `index`.
    pub(crate) fn store(&self, index: usize) -> Arc<GlobalStore> {
        let store = self
            .0
            .get(index)
            .expect("a topology is built with a store for each table it declares");
        Arc::clone(store)
    }
}

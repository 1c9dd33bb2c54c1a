//! The topology: what the builder made of the user's streams, and a factory of chains for tasks.
//!
//! Invariants: it is immutable; each call of a source's factory makes a chain that shares nothing
//! mutable with another.
//! Never: knows clients or tasks.

mod describe;
mod graph;

use std::sync::Arc;

use bytes::Bytes;

pub(crate) use graph::{Edge, Graph, NodeId};

use crate::operators::SourceChain;
use crate::serde::SerdeError;
use crate::task::{GlobalStore, GlobalStores};

pub(crate) type ChainFactory = Box<dyn Fn(&GlobalStores) -> Box<dyn SourceChain> + Send + Sync>;

/// Checks that a table's record can be read by its serdes.
pub(crate) type TableCheck =
    Box<dyn Fn(Option<&Bytes>, Option<&Bytes>) -> Result<(), SerdeError> + Send + Sync>;

pub(crate) struct SourceNode {
    pub(crate) topic: Arc<str>,
    pub(crate) chain: ChainFactory,
}

pub(crate) struct GlobalNode {
    pub(crate) topic: Arc<str>,
    pub(crate) check: TableCheck,
}

/// A finished topology; cheap to clone. `to_string` describes it in the form of Kafka's
/// `Topology#describe`.
#[derive(Clone)]
pub struct Topology {
    pub(crate) inner: Arc<TopologyParts>,
}

pub(crate) struct TopologyParts {
    pub(crate) sources: Vec<SourceNode>,
    pub(crate) sinks: Vec<Arc<str>>,
    pub(crate) globals: Vec<GlobalNode>,
    pub(crate) description: String,
}

impl Topology {
    /// Topics that the topology reads as streams, in the order of their declaration.
    #[must_use]
    pub fn source_topics(&self) -> Vec<&str> {
        self.inner
            .sources
            .iter()
            .map(|source| source.topic.as_ref())
            .collect()
    }

    /// Topics that the topology writes.
    #[must_use]
    pub fn sink_topics(&self) -> Vec<&str> {
        self.inner.sinks.iter().map(AsRef::as_ref).collect()
    }

    /// Topics of its global tables.
    #[must_use]
    pub fn global_topics(&self) -> Vec<&str> {
        self.inner
            .globals
            .iter()
            .map(|global| global.topic.as_ref())
            .collect()
    }

    pub(crate) fn global_stores(&self) -> GlobalStores {
        let stores = self
            .inner
            .globals
            .iter()
            .map(|global| Arc::new(GlobalStore::new(&global.topic)));
        GlobalStores(stores.collect())
    }
}

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Topology")
            .field("sources", &self.source_topics())
            .field("sinks", &self.sink_topics())
            .field("global_tables", &self.global_topics())
            .finish()
    }
}

impl std::fmt::Display for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.inner.description)
    }
}

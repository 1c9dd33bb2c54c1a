//! The graph that the DSL draws while the user calls it, and the typed edges between its nodes.
//!
//! Invariants: nodes are numbered in the order of their declaration; an edge has as many children
//! as were attached.
//! Never: an edge copies records unless its stream was cloned.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::{ChainFactory, GlobalNode, SourceNode, TableCheck};
use crate::error::TopologyError;
use crate::operators::{Discard, Downstream, Fork};
use crate::record::Record;
use crate::task::GlobalStores;

/// Number of a node in the order of declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) usize);

/// What `describe` says of a node.
pub(crate) struct NodeDescription {
    pub(crate) name: Box<str>,
    pub(crate) kind: NodeKind,
    pub(crate) parent: Option<NodeId>,
}

pub(crate) enum NodeKind {
    Source { topic: Arc<str> },
    Operator { tables: Vec<Arc<str>> },
    Sink { topic: Arc<str> },
    GlobalTable { topic: Arc<str> },
}

#[derive(Default)]
pub(crate) struct GraphState {
    pub(crate) nodes: Vec<NodeDescription>,
    pub(crate) sources: Vec<SourceNode>,
    pub(crate) sinks: Vec<Arc<str>>,
    pub(crate) globals: Vec<GlobalNode>,
    pub(crate) errors: Vec<TopologyError>,
}

/// The graph under construction, shared by a builder and its streams.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    state: Arc<Mutex<GraphState>>,
}

impl Graph {
    pub(crate) fn lock(&self) -> MutexGuard<'_, GraphState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn same(&self, other: &Graph) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Adds an operator below `parent`; its name is the kind and its number, as in Kafka Streams.
    pub(crate) fn operator(
        &self,
        kind: &str,
        parent: NodeId,
        tables: Vec<Arc<str>>,
    ) -> (NodeId, Box<str>) {
        self.lock()
            .add(kind, Some(parent), NodeKind::Operator { tables })
    }

    pub(crate) fn source(&self, topic: &Arc<str>) -> (NodeId, Box<str>) {
        let mut state = self.lock();
        let taken = state.globals.iter().any(|global| &global.topic == topic)
            || state.sources.iter().any(|source| &source.topic == topic);
        if taken {
            state.errors.push(TopologyError::TopicTwice {
                topic: topic.to_string(),
            });
        }
        state.add(
            "KSTREAM-SOURCE",
            None,
            NodeKind::Source {
                topic: Arc::clone(topic),
            },
        )
    }

    pub(crate) fn set_chain(&self, topic: Arc<str>, chain: ChainFactory) {
        self.lock().sources.push(SourceNode { topic, chain });
    }

    /// Declares a global table and answers its index among the global tables.
    pub(crate) fn global_table(&self, topic: &Arc<str>, check: TableCheck) -> usize {
        let mut state = self.lock();
        let taken = state.globals.iter().any(|global| &global.topic == topic)
            || state.sources.iter().any(|source| &source.topic == topic);
        if taken {
            state.errors.push(TopologyError::TopicTwice {
                topic: topic.to_string(),
            });
        }
        state.add(
            "KTABLE-SOURCE",
            None,
            NodeKind::GlobalTable {
                topic: Arc::clone(topic),
            },
        );
        state.globals.push(GlobalNode {
            topic: Arc::clone(topic),
            check,
        });
        state.globals.len() - 1
    }

    /// Adds a sink and answers the index of its topic among the sink topics.
    pub(crate) fn sink(&self, topic: &Arc<str>, parent: NodeId) -> (usize, Box<str>) {
        let mut state = self.lock();
        let (_, name) = state.add(
            "KSTREAM-SINK",
            Some(parent),
            NodeKind::Sink {
                topic: Arc::clone(topic),
            },
        );
        let index = state
            .sinks
            .iter()
            .position(|sink| sink == topic)
            .unwrap_or_else(|| {
                state.sinks.push(Arc::clone(topic));
                state.sinks.len() - 1
            });
        (index, name)
    }

    pub(crate) fn error(&self, error: TopologyError) {
        self.lock().errors.push(error);
    }
}

impl GraphState {
    fn add(&mut self, kind: &str, parent: Option<NodeId>, node: NodeKind) -> (NodeId, Box<str>) {
        let id = NodeId(self.nodes.len());
        let name: Box<str> = format!("{kind}-{:010}", id.0).into();
        self.nodes.push(NodeDescription {
            name: name.clone(),
            kind: node,
            parent,
        });
        (id, name)
    }
}

type Factory<K, V> = Box<dyn Fn(&GlobalStores) -> Downstream<K, V> + Send + Sync>;

/// How a record is copied where a stream was cloned.
type Duplicate<K, V> = fn(&Record<K, V>) -> Record<K, V>;

/// The output of a node: whatever is attached to it gets its records.
pub(crate) struct Edge<K, V> {
    children: Mutex<Vec<Factory<K, V>>>,
    duplicate: OnceLock<Duplicate<K, V>>,
}

impl<K: 'static, V: 'static> Edge<K, V> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            children: Mutex::default(),
            duplicate: OnceLock::new(),
        })
    }

    pub(crate) fn attach(
        &self,
        factory: impl Fn(&GlobalStores) -> Downstream<K, V> + Send + Sync + 'static,
    ) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.push(Box::new(factory));
    }

    /// Says how a record is copied; called when the user clones the stream.
    pub(crate) fn allow_fork(&self, duplicate: Duplicate<K, V>) {
        self.duplicate.get_or_init(|| duplicate);
    }

    /// Builds everything below this edge for one task.
    pub(crate) fn instantiate(&self, stores: &GlobalStores) -> Downstream<K, V> {
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        let mut built: Vec<_> = children.iter().map(|factory| factory(stores)).collect();
        let Some(last) = built.pop() else {
            return Box::new(Discard);
        };
        match self.duplicate.get() {
            Some(&duplicate) if !built.is_empty() => Box::new(Fork {
                duplicate,
                first: built,
                last,
            }),
            // A stream can be used again only through a clone, so without one there is a single
            // child.
            _ => last,
        }
    }
}

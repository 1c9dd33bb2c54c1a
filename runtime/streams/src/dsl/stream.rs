//! [`KStream`]: a stream of typed records, and everything that can be done to one.
//!
//! Invariants: a stream is used once; using it twice takes an explicit `clone`.
//! Never: copies a record that was not cloned by the user.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use super::GlobalKTable;
use crate::error::{BoxError, TopologyError};
use crate::operators::{
    Downstream, Filter, FlatMap, JoinGlobal, Map, MapValues, Peek, Predicate, ProcessValues, Sink,
    Split, TryMapValues, ValueProcessor,
};
use crate::record::Record;
use crate::serde::Serdes;
use crate::task::GlobalStores;
use crate::topology::{Edge, Graph, NodeId};

/// A stream of records with keys of type `K` and values of type `V`.
///
/// Closures given to it are shared by all tasks (`Fn + Send + Sync`). They run on the worker that
/// owns the task: one that blocks stalls its own worker and nothing else.
pub struct KStream<K, V> {
    graph: Graph,
    node: NodeId,
    edge: Arc<Edge<K, V>>,
}

impl<K: Send + 'static, V: Send + 'static> KStream<K, V> {
    pub(crate) fn new(graph: Graph, node: NodeId, edge: Arc<Edge<K, V>>) -> Self {
        Self { graph, node, edge }
    }

    /// Adds an operator below this stream; `build` makes it for one task.
    fn operator<L, W>(
        self,
        kind: &str,
        tables: Vec<Arc<str>>,
        build: impl Fn(Box<str>, Downstream<L, W>, &GlobalStores) -> Downstream<K, V>
        + Send
        + Sync
        + 'static,
    ) -> KStream<L, W>
    where
        L: Send + 'static,
        W: Send + 'static,
    {
        let (node, name) = self.graph.operator(kind, self.node, tables);
        let edge = Edge::new();
        let below = Arc::clone(&edge);
        self.edge
            .attach(move |stores| build(name.clone(), below.instantiate(stores), stores));
        KStream::new(self.graph, node, edge)
    }

    /// Keeps the records that `predicate` holds for.
    pub fn filter<F>(self, predicate: F) -> KStream<K, V>
    where
        F: Fn(&K, &V) -> bool + Send + Sync + 'static,
    {
        let predicate = Arc::new(predicate);
        self.operator("KSTREAM-FILTER", Vec::new(), move |_, downstream, _| {
            Box::new(Filter {
                predicate: Arc::clone(&predicate),
                downstream,
            })
        })
    }

    /// Makes another key and value of each record.
    pub fn map<F, L, W>(self, mapper: F) -> KStream<L, W>
    where
        F: Fn(K, V) -> (L, W) + Send + Sync + 'static,
        L: Send + 'static,
        W: Send + 'static,
    {
        let mapper = Arc::new(mapper);
        self.operator("KSTREAM-MAP", Vec::new(), move |_, downstream, _| {
            Box::new(Map {
                mapper: Arc::clone(&mapper),
                downstream,
            })
        })
    }

    /// Makes another value of each record; the key stays.
    pub fn map_values<F, W>(self, mapper: F) -> KStream<K, W>
    where
        F: Fn(&K, V) -> W + Send + Sync + 'static,
        W: Send + 'static,
    {
        let mapper = Arc::new(mapper);
        self.operator("KSTREAM-MAPVALUES", Vec::new(), move |_, downstream, _| {
            Box::new(MapValues {
                mapper: Arc::clone(&mapper),
                downstream,
            })
        })
    }

    /// As [`map_values`](Self::map_values); where the mapper fails, the record is poison and the
    /// application's [`PoisonPolicy`](crate::PoisonPolicy) decides. Nothing that the record led to
    /// before is written.
    pub fn try_map_values<F, W, E>(self, mapper: F) -> KStream<K, W>
    where
        F: Fn(&K, V) -> Result<W, E> + Send + Sync + 'static,
        W: Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let mapper = Arc::new(mapper);
        self.operator(
            "KSTREAM-MAPVALUES",
            Vec::new(),
            move |name, downstream, _| {
                Box::new(TryMapValues {
                    name,
                    mapper: Arc::clone(&mapper),
                    downstream,
                    error: PhantomData,
                })
            },
        )
    }

    /// Makes any number of records of each one.
    pub fn flat_map<F, I, L, W>(self, mapper: F) -> KStream<L, W>
    where
        F: Fn(K, V) -> I + Send + Sync + 'static,
        I: IntoIterator<Item = (L, W)> + 'static,
        L: Send + 'static,
        W: Send + 'static,
    {
        let mapper = Arc::new(mapper);
        self.operator("KSTREAM-FLATMAP", Vec::new(), move |_, downstream, _| {
            Box::new(FlatMap {
                mapper: Arc::clone(&mapper),
                downstream,
                output: PhantomData,
            })
        })
    }

    /// Calls `action` with each record and passes it on. What it does outside is not part of the
    /// transaction: after a crash it happens again.
    pub fn peek<F>(self, action: F) -> KStream<K, V>
    where
        F: Fn(&K, &V) + Send + Sync + 'static,
    {
        let action = Arc::new(action);
        self.operator("KSTREAM-PEEK", Vec::new(), move |_, downstream, _| {
            Box::new(Peek {
                action: Arc::clone(&action),
                downstream,
            })
        })
    }

    /// Splits the stream into branches; see [`SplitStream::branch`].
    pub fn split(self) -> SplitStream<K, V> {
        let (node, _) = self.graph.operator("KSTREAM-BRANCH", self.node, Vec::new());
        let branches = Arc::new(Mutex::new(Vec::<Branch<K, V>>::new()));
        let declared = Arc::clone(&branches);
        self.edge.attach(move |stores| {
            let declared = declared.lock().unwrap_or_else(PoisonError::into_inner);
            let branches = declared
                .iter()
                .map(|branch| {
                    (
                        Arc::clone(&branch.predicate),
                        branch.edge.instantiate(stores),
                    )
                })
                .collect();
            Box::new(Split { branches })
        });
        SplitStream {
            graph: self.graph,
            node,
            branches,
        }
    }

    /// Runs a processor on each record; `supplier` makes one a task. A closure
    /// `|context: &RecordContext, key: &K, value: V| …` is a processor that forwards one value.
    pub fn process_values<S, P>(self, supplier: S) -> KStream<K, P::Output>
    where
        S: Fn() -> P + Send + Sync + 'static,
        P: ValueProcessor<K, V> + 'static,
        P::Output: Send + 'static,
    {
        self.operator(
            "KSTREAM-PROCESSVALUES",
            Vec::new(),
            move |name, downstream, _| {
                Box::new(ProcessValues {
                    name,
                    processor: supplier(),
                    downstream,
                })
            },
        )
    }

    /// Joins each record with the row that `select_key` names; records without such a row are
    /// dropped.
    pub fn join_global<S, J, TK, TV, W>(
        self,
        table: &GlobalKTable<TK, TV>,
        select_key: S,
        joiner: J,
    ) -> KStream<K, W>
    where
        S: Fn(&K, &V) -> TK + Send + Sync + 'static,
        J: Fn(V, TV) -> W + Send + Sync + 'static,
        TK: Send + 'static,
        TV: Send + 'static,
        W: Send + 'static,
    {
        self.join(
            "KSTREAM-JOIN",
            table,
            select_key,
            move |value, row: Option<TV>| row.map(|row| joiner(value, row)),
        )
    }

    /// Joins each record with the row that `select_key` names, or with nothing where there is none.
    pub fn left_join_global<S, J, TK, TV, W>(
        self,
        table: &GlobalKTable<TK, TV>,
        select_key: S,
        joiner: J,
    ) -> KStream<K, W>
    where
        S: Fn(&K, &V) -> TK + Send + Sync + 'static,
        J: Fn(V, Option<TV>) -> W + Send + Sync + 'static,
        TK: Send + 'static,
        TV: Send + 'static,
        W: Send + 'static,
    {
        self.join("KSTREAM-LEFTJOIN", table, select_key, move |value, row| {
            Some(joiner(value, row))
        })
    }

    fn join<S, J, TK, TV, W>(
        self,
        kind: &str,
        table: &GlobalKTable<TK, TV>,
        select_key: S,
        joiner: J,
    ) -> KStream<K, W>
    where
        S: Fn(&K, &V) -> TK + Send + Sync + 'static,
        J: Fn(V, Option<TV>) -> Option<W> + Send + Sync + 'static,
        TK: Send + 'static,
        TV: Send + 'static,
        W: Send + 'static,
    {
        if !self.graph.same(&table.graph) {
            self.graph.error(TopologyError::ForeignTable {
                table: table.topic.to_string(),
            });
        }
        let (select_key, joiner) = (Arc::new(select_key), Arc::new(joiner));
        let (serdes, index) = (table.serdes.clone(), table.index);
        self.operator(
            kind,
            vec![Arc::clone(&table.topic)],
            move |name, downstream, stores| {
                Box::new(JoinGlobal {
                    name,
                    select_key: Arc::clone(&select_key),
                    joiner: Arc::clone(&joiner),
                    serdes: serdes.clone(),
                    store: stores.store(index),
                    key_bytes: Vec::new(),
                    downstream,
                })
            },
        )
    }

    /// Writes the stream to `topic`: keyed records by the hash of the key, as every Kafka client
    /// does, others spread.
    pub fn to(self, topic: &str, serdes: Serdes<K, V>) {
        let topic: Arc<str> = topic.into();
        let (sink, name) = self.graph.sink(&topic, self.node);
        self.edge.attach(move |_| {
            Box::new(Sink {
                name: name.clone(),
                sink,
                serdes: serdes.clone(),
            })
        });
    }
}

/// A second use of the same stream: every record goes to both, in the order of the uses.
impl<K: Clone + Send + 'static, V: Clone + Send + 'static> Clone for KStream<K, V> {
    fn clone(&self) -> Self {
        self.edge.allow_fork(Record::clone);
        Self {
            graph: self.graph.clone(),
            node: self.node,
            edge: Arc::clone(&self.edge),
        }
    }
}

impl<K, V> std::fmt::Debug for KStream<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KStream")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

struct Branch<K, V> {
    predicate: Predicate<K, V>,
    edge: Arc<Edge<K, V>>,
}

/// A stream that is being split: each record goes to the first branch that takes it, or nowhere.
pub struct SplitStream<K, V> {
    graph: Graph,
    node: NodeId,
    branches: Arc<Mutex<Vec<Branch<K, V>>>>,
}

impl<K: Send + 'static, V: Send + 'static> SplitStream<K, V> {
    /// Declares a branch of the records that `predicate` holds for and no earlier branch has taken.
    pub fn branch<F>(&mut self, predicate: F) -> KStream<K, V>
    where
        F: Fn(&K, &V) -> bool + Send + Sync + 'static,
    {
        let edge = Edge::new();
        let mut branches = self.branches.lock().unwrap_or_else(PoisonError::into_inner);
        branches.push(Branch {
            predicate: Arc::new(predicate),
            edge: Arc::clone(&edge),
        });
        KStream::new(self.graph.clone(), self.node, edge)
    }

    /// Declares the branch of all that is left. Without it the rest is dropped.
    pub fn default_branch(mut self) -> KStream<K, V> {
        self.branch(|_, _| true)
    }
}

impl<K, V> std::fmt::Debug for SplitStream<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SplitStream")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

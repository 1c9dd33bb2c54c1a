//! [`StreamsBuilder`]: where every topology begins.
//!
//! Invariants: a topic is read once, as a stream or as a table.
//! Never: connects to anything.

use std::sync::Arc;

use super::{GlobalKTable, KStream};
use crate::error::TopologyError;
use crate::operators::Source;
use crate::serde::Serdes;
use crate::topology::{Edge, Graph, Topology, TopologyParts};

/// Declares sources and finishes the topology.
///
/// ```
/// use millstream_streams::{StreamsBuilder, strings};
///
/// let builder = StreamsBuilder::new();
/// builder
///     .stream("words", strings())
///     .map_values(|_, word| word.to_uppercase())
///     .to("shouted", strings());
/// let topology = builder.build()?;
/// assert_eq!(topology.sink_topics(), ["shouted"]);
/// # Ok::<(), millstream_streams::TopologyError>(())
/// ```
#[derive(Default)]
pub struct StreamsBuilder {
    graph: Graph,
}

impl StreamsBuilder {
    /// An empty builder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads `topic` as a stream of records.
    pub fn stream<K, V>(&self, topic: &str, serdes: Serdes<K, V>) -> KStream<K, V>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let topic: Arc<str> = topic.into();
        let (node, name) = self.graph.source(&topic);
        let edge = Edge::new();
        let below = Arc::clone(&edge);
        self.graph.set_chain(
            topic,
            Box::new(move |stores| {
                Box::new(Source {
                    name: name.clone(),
                    serdes: serdes.clone(),
                    downstream: below.instantiate(stores),
                })
            }),
        );
        KStream::new(self.graph.clone(), node, edge)
    }

    /// Reads all partitions of `topic` as a table that every instance holds whole. It is filled
    /// before the first record of a stream is processed; a null value deletes a key.
    pub fn global_table<K, V>(&self, topic: &str, serdes: Serdes<K, V>) -> GlobalKTable<K, V>
    where
        K: Send + 'static,
        V: Send + 'static,
    {
        let topic: Arc<str> = topic.into();
        let check = serdes.clone();
        let index = self.graph.global_table(
            &topic,
            Box::new(move |key, value| {
                check.key.deserialize(key)?;
                if value.is_some() {
                    check.value.deserialize(value)?;
                }
                Ok(())
            }),
        );
        GlobalKTable::new(self.graph.clone(), topic, index, serdes)
    }

    /// Finishes the topology.
    ///
    /// # Errors
    /// The first mistake that was made while it was declared.
    pub fn build(self) -> Result<Topology, TopologyError> {
        let mut state = self.graph.lock();
        if !state.errors.is_empty() {
            return Err(state.errors.remove(0));
        }
        if state.sources.is_empty() {
            return Err(TopologyError::NoSource);
        }
        let description = state.describe();
        let parts = TopologyParts {
            sources: std::mem::take(&mut state.sources),
            sinks: std::mem::take(&mut state.sinks),
            globals: std::mem::take(&mut state.globals),
            description,
        };
        Ok(Topology {
            inner: Arc::new(parts),
        })
    }
}

impl std::fmt::Debug for StreamsBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamsBuilder")
    }
}

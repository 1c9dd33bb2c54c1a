//! The topology in words, in the form of Kafka's `Topology#describe`.
//!
//! Invariants: the text depends on the order of declaration alone.
//! Never: parsed by anything; it is for people.

use std::fmt::Write as _;

use super::NodeId;
use super::graph::{GraphState, NodeKind};

impl GraphState {
    pub(crate) fn describe(&self) -> String {
        let mut text = String::from("Topologies:\n");
        let mut number = 0;
        for (index, node) in self.nodes.iter().enumerate() {
            match &node.kind {
                NodeKind::Source { .. } => {
                    let _ = writeln!(text, "   Sub-topology: {number}");
                    self.describe_node(NodeId(index), &mut text);
                    number += 1;
                }
                NodeKind::GlobalTable { topic } => {
                    let _ = writeln!(
                        text,
                        "   Sub-topology: {number} for global store (will not generate tasks)\n    \
                         Source: {} (topics: [{topic}])\n      --> none",
                        node.name,
                    );
                    number += 1;
                }
                NodeKind::Operator { .. } | NodeKind::Sink { .. } => {}
            }
        }
        text
    }

    fn describe_node(&self, id: NodeId, text: &mut String) {
        let Some(node) = self.nodes.get(id.0) else {
            return;
        };
        let children: Vec<NodeId> = (0..self.nodes.len())
            .map(NodeId)
            .filter(|child| {
                self.nodes
                    .get(child.0)
                    .is_some_and(|child| child.parent == Some(id))
            })
            .collect();
        let name = &node.name;
        let _ = match &node.kind {
            NodeKind::Source { topic } => writeln!(text, "    Source: {name} (topics: [{topic}])"),
            NodeKind::Operator { tables } => {
                writeln!(
                    text,
                    "    Processor: {name} (stores: [{}])",
                    tables.join(", ")
                )
            }
            NodeKind::Sink { topic } => writeln!(text, "    Sink: {name} (topic: {topic})"),
            NodeKind::GlobalTable { .. } => Ok(()),
        };
        if !matches!(node.kind, NodeKind::Sink { .. }) {
            let names: Vec<&str> = children
                .iter()
                .filter_map(|child| self.nodes.get(child.0))
                .map(|child| child.name.as_ref())
                .collect();
            let names = if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            };
            let _ = writeln!(text, "      --> {names}");
        }
        if let Some(parent) = node.parent.and_then(|parent| self.nodes.get(parent.0)) {
            let _ = writeln!(text, "      <-- {}", parent.name);
        }
        for child in children {
            self.describe_node(child, text);
        }
    }
}

//! What the examples share: the orders workload, its bundled data, and its loader.
//!
//! | module | what it holds |
//! |---|---|
//! | [`model`] | the records of the workload as Rust types |
//! | [`data`] | the bundled orders and customers, and the generator that they come from |
//! | [`load`] | the transactional loader that never loads a record twice |
//! | [`process`] | figures about this process |
//!
//! Invariants: the same seed gives the same records on every machine.
//! Never: needs a network or a file outside of this folder.

pub mod data;
pub mod load;
pub mod model;
pub mod process;

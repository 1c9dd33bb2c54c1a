//! Log compaction: of each key the last record stays, wherever and however often it was written.
//!
//! ```text
//!   log start          first dirty             end              active segment    log end
//!      |--- cleaned before ---|------ dirty -------|-- too new, open --|--- written ---|
//!      |<------------- filtered, swapped in -------->|
//!                             |<- keys are mapped ->|
//! ```
//!
//! Invariants: offsets never change; nothing at or beyond the last stable offset, the durable end
//! of the partition's own files or the active segment is touched; a key's last committed record
//! stays (a tombstone until its delete horizon); of every live producer the batches of its window
//! stay, emptied where need be, so that replay finds its sequences; a marker stays as long as a
//! batch of its transaction is there.
//! Never: changes a log file in place; holds the partition's lock while it reads or writes records.

pub(crate) mod filter;
pub(crate) mod manifest;
pub(crate) mod offset_map;
pub(crate) mod pass;
pub(crate) mod select;
pub(crate) mod transactions;

//! Exactly-once stream processing for Rust, with the broker built in.

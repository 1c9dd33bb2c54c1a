//! Kafka's error codes, and what a client does about each of them.
//!
//! Invariants: the code is the number on the wire; unknown numbers are kept.
//! Never: a Rust error; those name a place and a next step, and carry a code.

mod class;
mod code;

pub use class::{ErrorClass, ErrorContext, class};
pub use code::ErrorCode;

//! The harness of the suites: programs and processes, faults, workloads and the oracle.
//!
//! | module | what it holds |
//! |---|---|
//! | [`binaries`] | the programs with failpoints, built once |
//! | [`process`] | a child process: killed, stopped, woken, ended by its id |
//! | [`deployment`] | broker and job as processes, apart or in one |
//! | [`feeder`] | a producer that sends all the time and remembers what was acknowledged |
//! | [`gate`] | a way to a broker on which a test holds up frames, or lets nothing pass |
//! | [`points`] | the named points at which a process can be told to die |
//! | [`series`] | rounds of work and kills |
//! | [`under_test`] | the broker that a suite runs against: ours, or an Apache Kafka |
//! | [`copying`] | a small job for tests on either |
//! | [`simulation`] | everything on one runtime in virtual time, with faults from a seed |
//! | [`raw_log`] | batches as they lie in a partition, compressed ones compressed |
//! | [`oracle`] | what a reader of committed records sees, and what it must see |
//! | [`invariants`] | what is judged, one file each |
//!
//! Invariants: every wait is bounded; every process is ended by its id.
//! Never: an address that is not loopback.

pub mod binaries;
pub mod copying;
pub mod deployment;
pub mod feeder;
pub mod gate;
pub mod invariants;
pub mod oracle;
pub mod points;
pub mod process;
pub mod raw_log;
pub mod series;
pub mod simulation;
pub mod under_test;

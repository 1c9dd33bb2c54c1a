//! The guide: what is promised, and what each promise costs.
//!
//! # What survives what
//!
//! | durability | killed process | power cut or crash of the system | says |
//! |---|---|---|---|
//! | `sync` (default) | everything acknowledged | everything acknowledged | an acknowledgement waits for one fdatasync of the journal, shared by all requests that wait |
//! | `interval(ms)` | everything acknowledged | all but the last *ms*; a transaction may be torn | acknowledges at once, syncs in the background |
//! | `os` (Kafka's own behaviour) | everything acknowledged | what the system had written; a transaction may be torn | acknowledges at once |
//! | `memory` | nothing | nothing | for tests |
//!
//! No mode survives the loss of the disk: keep a copy, or run the job on a replicated cluster.
//!
//! # What exactly-once covers
//!
//! | inside the guarantee | outside of it |
//! |---|---|
//! | records written by the job, its input offsets, its state | rows in another database, HTTP calls, mails, payments |
//! | what a `read_committed` reader sees (the default here) | what a `read_uncommitted` reader sees |
//! | retries inside one producer session, restarts under one `transactional.id` | the application sending the same thing twice |
//!
//! A guarantee has three layers: what the producer's acknowledgement says, what the broker has made
//! durable, and what end-to-end processing commits. An acknowledgement says that the record is in
//! the log, as durable as the mode above, in the order of its partition. It does not say that
//! anybody has read it.
//!
//! # Sending
//!
//! [`Producer::send`](crate::client::Producer::send) waits for buffer space and for the first
//! metadata of a topic, and returns a future of the acknowledgement. Waiting for that future record
//! by record is one round trip a record; send many, then wait.
//!
//! Errors come by two ways. A call that is wrong where it stands (no open transaction, a closed
//! producer, a record that is too large) fails at the call. Whatever happens to the record later
//! comes out of its future.
//!
//! # Transactions by hand
//!
//! `init_transactions` fences the previous holder of the id. Then `begin`, `send`, `send_offsets`,
//! and `commit` or `abort`; a call out of order is a typed error. After an abort the consumer goes
//! back to its committed offsets
//! ([`Consumer::seek_to_committed`](crate::client::Consumer::seek_to_committed)), or the aborted
//! batch would be skipped. A commit that is not answered may have happened: ask for the same commit
//! again, never abort. `examples/by_hand.rs` is the whole loop.
//!
//! # Two instances, one id
//!
//! A second instance with the same `transactional.id` takes over at once, and the first one stops
//! with an error that names the id and both epochs. That is right behaviour, not a failure: it is
//! how a stalled process that wakes up is kept from writing. Give instances that are meant to run
//! side by side ids of their own.
//!
//! # Processing time against the transaction timeout
//!
//! A transaction is aborted by the coordinator when it is open for longer than
//! `transaction.timeout.ms`. The runtime commits every `commit.interval.ms` and in between where a
//! batch takes long, so 500 records of 20 ms each are several transactions. A single record that
//! takes longer than the timeout can never be committed and is an error that names both numbers.

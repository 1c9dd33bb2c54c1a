//! Exactly-once stream processing for Rust, with the broker built in.
//!
//! A job reads topics, runs typed operators, writes topics, and commits the input offsets and the
//! outputs in one transaction. The broker is in the process: nothing to install, nothing to start.
//! The protocol inside is Kafka's, so the same job runs on an Apache Kafka cluster by changing
//! where it connects.
//!
//! ```no_run
//! use millstream::prelude::*;
//!
//! #[tokio::main]
//! async fn main() -> millstream::Result<()> {
//!     let builder = StreamsBuilder::new();
//!     builder
//!         .stream("words", strings())
//!         .map_values(|_, word| word.to_uppercase())
//!         .to("words.shouted", strings());
//!
//!     let broker = Broker::open("./data").await?;
//!     Streams::new("shouter", builder.build()?)
//!         .connect(&broker)
//!         .run_until_ctrl_c()
//!         .await?;
//!     Ok(broker.close().await?)
//! }
//! ```
//!
//! # The map
//!
//! | what | where |
//! |---|---|
//! | the embedded broker | [`Broker`], [`BrokerOptions`] |
//! | topologies | [`StreamsBuilder`](streams::StreamsBuilder), [`KStream`](streams::KStream), [`GlobalKTable`](streams::GlobalKTable) |
//! | running them | [`Streams`](streams::Streams), [`RunningStreams`](streams::RunningStreams) |
//! | a hand-written read-process-write loop | [`Producer`](client::Producer), [`Consumer`](client::Consumer) |
//! | topics and groups | [`Admin`](client::Admin) |
//! | a job without a broker, and a cluster with faults from a seed, for tests | [`testing`] |
//!
//! Invariants: everything that a client does goes through Kafka's protocol, in the process as well.
//! Never: a private door between streams, client and broker.

mod embedded;
mod error;
pub mod guide;
pub mod prelude;
pub mod testing;

pub use embedded::{Broker, BrokerOptions};
pub use error::{Error, Result};

/// Producer, consumer and admin, for Millstream's broker and for Apache Kafka.
pub use millstream_client as client;
/// Topologies and what runs them.
pub use millstream_streams as streams;

pub use millstream_log::Durability;
pub use millstream_protocol::TopicPartition;

/// The formats beneath: for tools that read a data directory or speak the protocol themselves.
pub mod formats {
    pub use millstream_log as log;
    pub use millstream_protocol as protocol;
}

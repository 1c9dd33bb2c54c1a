//! Producer, consumer and admin for Millstream's broker and for Apache Kafka.
//!
//! The map: [`transport`] moves frames, [`cluster`] knows brokers, leaders and coordinators,
//! [`producer`] accumulates and sends, [`consumer`] fetches, [`admin`] manages; [`security`] is
//! TLS and SASL.
//!
//! Invariants: whatever may have reached a broker is treated as having reached it.
//! Never: knows the broker's code; the only door is Kafka's protocol.

pub mod admin;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod consumer;
pub mod error;
pub mod group;
pub mod producer;
pub mod security;
mod settings;
pub mod transport;

#[cfg(test)]
mod scripted;

pub use admin::{
    Admin, AdminError, ConfigChange, ConfigEntry, ConfigSource, NewTopic, OffsetSpec,
    TopicDescription,
};
pub use clock::Clock;
pub use cluster::{Cluster, CoordinatorKind, NodeId};
pub use config::ClientConfig;
pub use consumer::Consumer;
pub use error::{
    ClusterError, ConfigError, ConnectError, DeliveryError, RequestError, TransactionError,
    UsageError,
};
pub use group::{GroupMetadata, OffsetAndMetadata};
pub use producer::{
    Acks, Delivery, EnqueueError, Enqueued, Producer, ProducerBuilder, ProducerConfig,
    ProducerRecord, RecordMetadata,
};
pub use security::{Mechanism, Sasl, Security, SecurityError, SecurityProtocol};
pub use transport::{BrokerAddress, FrameConnection, IntoTransport, TcpTransport, Transport};

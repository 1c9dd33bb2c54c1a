//! Settings that every client shares: identity, time-outs, back-offs, seams.
//!
//! Invariants: every setting has Kafka's default unless its text says otherwise.
//! Never: settings of one kind of client only (they live with it).

use std::time::Duration;

use crate::clock::Clock;
use crate::security::Security;

/// Settings of the connection to a cluster.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Sent with every request, shown in the broker's logs (`client.id`, default `millstream`).
    pub client_id: String,
    /// How long a request waits for its answer (`request.timeout.ms`, default 30 s).
    pub request_timeout: Duration,
    /// How long one attempt to connect may take (`socket.connection.setup.timeout.ms`, 10 s).
    pub connect_timeout: Duration,
    /// First pause before a broker is connected to again (`reconnect.backoff.ms`, default 50 ms).
    pub reconnect_backoff: Duration,
    /// Longest such pause (`reconnect.backoff.max.ms`, default 1 s).
    pub reconnect_backoff_max: Duration,
    /// First pause before a failed request is repeated (`retry.backoff.ms`, default 100 ms).
    pub retry_backoff: Duration,
    /// Longest such pause (`retry.backoff.max.ms`, default 1 s).
    pub retry_backoff_max: Duration,
    /// Metadata older than this is refreshed when it is used (`metadata.max.age.ms`, 5 min).
    pub metadata_max_age: Duration,
    /// Whether the broker may create a topic that is asked for
    /// (`allow.auto.create.topics`, default true).
    pub allow_auto_create_topics: bool,
    /// TLS and SASL (`security.protocol`, `ssl.…`, `sasl.…`; default neither).
    pub security: Security,
    /// Seed of all randomness: jitter of pauses and the sticky partition. The same seed and the
    /// same answers give the same behaviour. Not a Kafka setting; default 0.
    pub seed: u64,
    /// The clock; simulations give their own.
    pub clock: Clock,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            client_id: "millstream".to_owned(),
            request_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            reconnect_backoff: Duration::from_millis(50),
            reconnect_backoff_max: Duration::from_secs(1),
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            metadata_max_age: Duration::from_secs(300),
            allow_auto_create_topics: true,
            security: Security::default(),
            seed: 0,
            clock: Clock::system(),
        }
    }
}

impl ClientConfig {
    /// How long a topic may be unused before it is left out of refreshes (`metadata.max.idle.ms`,
    /// Kafka's five minutes): at least as long as a refresh may be away.
    pub(crate) fn topic_idle(&self) -> Duration {
        self.metadata_max_age.max(Duration::from_secs(300))
    }
}

//! The producer's settings: typed, with Kafka's names and defaults, checked before anything runs.
//!
//! Invariants: a producer that was built has settings that do not contradict each other; a setting
//! that a guarantee needs cannot be overridden.
//! Never: guesses what a contradiction meant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_protocol::Compression;

use super::interceptor::{Interceptors, ProducerInterceptor};
use crate::cluster::millis;
use crate::config::ClientConfig;
use crate::error::ConfigError;

/// As many as Kafka's largest: the time of a batch ends first.
const RETRIES: u32 = i32::MAX as u32;

/// Who must have a record before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Nobody: no acknowledgement is asked for (`acks=0`).
    None,
    /// The leader (`acks=1`).
    Leader,
    /// All in-sync replicas (`acks=all`).
    All,
}

impl Acks {
    /// The number on the wire.
    #[must_use]
    pub fn wire(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Leader => 1,
            Self::All => -1,
        }
    }
}

impl fmt::Display for Acks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::None => "0",
            Self::Leader => "1",
            Self::All => "all",
        })
    }
}

/// The effective settings of a producer.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// Settings shared by all clients.
    pub client: ClientConfig,
    /// `acks`, default all.
    pub acks: Acks,
    /// `enable.idempotence`, default true.
    pub idempotence: bool,
    /// `transactional.id`, default none. Keep it over restarts: it is what fences the predecessor.
    pub transactional_id: Option<Arc<str>>,
    /// `transaction.timeout.ms`, default 60 s: how long a transaction may stay open before the
    /// coordinator aborts it.
    pub transaction_timeout: Duration,
    /// `batch.size`, default 16384 bytes.
    pub batch_size: usize,
    /// `linger.ms`, default 5 ms.
    pub linger: Duration,
    /// `compression.type`, default none.
    pub compression: Compression,
    /// `buffer.memory`, default 32 MiB.
    pub buffer_memory: usize,
    /// `max.block.ms`, default 60 s: how long `send` waits for metadata and buffer space, and how
    /// long transactional calls wait for their answer.
    pub max_block: Duration,
    /// `max.request.size`, default 1 MiB: the largest record and the largest Produce request.
    pub max_request_size: usize,
    /// `max.in.flight.requests.per.connection`, default 5.
    pub max_in_flight: usize,
    /// `retries`, default 2147483647: how often a batch is sent again; `delivery.timeout.ms` ends
    /// the attempts of the default.
    pub retries: u32,
    /// `delivery.timeout.ms`, default 120 s: the whole budget of a record, from entering the
    /// buffer to the report, retries included.
    pub delivery_timeout: Duration,
    /// Whether a cluster whose finalised `transaction.version` is below 2 is accepted for
    /// transactions, default false. Below 2 a delayed message of one transaction can be counted
    /// to the next. Not a Kafka setting.
    pub allow_transaction_version_below_2: bool,
    /// `interceptor.classes`, default none.
    pub interceptors: Interceptors,
    /// What gave way to an explicit setting, and to which; it is logged when the producer is made.
    pub(super) gave_way: Option<String>,
}

/// Collects settings; see [`ProducerConfig`] for units and defaults.
#[derive(Clone, Debug, Default)]
pub struct ProducerBuilder {
    pub(super) client: ClientConfig,
    pub(super) mistake: Option<ConfigError>,
    pub(super) acks: Option<Acks>,
    pub(super) idempotence: Option<bool>,
    pub(super) transactional_id: Option<Arc<str>>,
    pub(super) transaction_timeout: Option<Duration>,
    pub(super) batch_size: Option<usize>,
    pub(super) linger: Option<Duration>,
    pub(super) compression: Option<Compression>,
    pub(super) buffer_memory: Option<usize>,
    pub(super) max_block: Option<Duration>,
    pub(super) max_request_size: Option<usize>,
    pub(super) max_in_flight: Option<usize>,
    pub(super) retries: Option<u32>,
    pub(super) delivery_timeout: Option<Duration>,
    allow_transaction_version_below_2: bool,
    interceptors: Interceptors,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty => $field:ident = $value:expr;)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$field = Some($value);
            self
        })*
    };
}

impl ProducerBuilder {
    setters! {
        /// `acks`.
        acks: Acks => acks = acks;
        /// `enable.idempotence`.
        idempotence: bool => idempotence = idempotence;
        /// `transactional.id`.
        transactional_id: impl Into<Arc<str>> => transactional_id = transactional_id.into();
        /// `transaction.timeout.ms`.
        transaction_timeout_ms: u64
            => transaction_timeout = Duration::from_millis(transaction_timeout_ms);
        /// `batch.size`, in bytes.
        batch_size: usize => batch_size = batch_size;
        /// `linger.ms`.
        linger_ms: u64 => linger = Duration::from_millis(linger_ms);
        /// `compression.type`.
        compression: Compression => compression = compression;
        /// `buffer.memory`, in bytes.
        buffer_memory: usize => buffer_memory = buffer_memory;
        /// `max.block.ms`.
        max_block_ms: u64 => max_block = Duration::from_millis(max_block_ms);
        /// `max.request.size`, in bytes.
        max_request_size: usize => max_request_size = max_request_size;
        /// `max.in.flight.requests.per.connection`.
        max_in_flight: usize => max_in_flight = max_in_flight;
        /// `retries`.
        retries: u32 => retries = retries;
        /// `delivery.timeout.ms`.
        delivery_timeout_ms: u64
            => delivery_timeout = Duration::from_millis(delivery_timeout_ms);
    }

    /// Accepts clusters whose finalised `transaction.version` is below 2.
    #[must_use]
    pub fn allow_transaction_version_below_2(mut self, allow: bool) -> Self {
        self.allow_transaction_version_below_2 = allow;
        self
    }

    /// Adds an interceptor behind the others: it sees each record that is given to
    /// [`send`](super::Producer::send) or [`try_send`](super::Producer::try_send), not those of
    /// [`enqueue`](super::Producer::enqueue), which have no record of their own.
    #[must_use]
    pub fn interceptor(mut self, interceptor: impl ProducerInterceptor + 'static) -> Self {
        self.interceptors.add(Arc::new(interceptor));
        self
    }

    /// Settings shared by all clients: time-outs, back-offs, seed, clock.
    #[must_use]
    pub fn client(mut self, client: ClientConfig) -> Self {
        self.client = client;
        self
    }

    /// `client.id`.
    #[must_use]
    pub fn client_id(mut self, client_id: impl Into<String>) -> Self {
        self.client.client_id = client_id.into();
        self
    }

    /// `request.timeout.ms`.
    #[must_use]
    pub fn request_timeout_ms(mut self, request_timeout_ms: u64) -> Self {
        self.client.request_timeout = Duration::from_millis(request_timeout_ms);
        self
    }

    /// The seed of all randomness of this producer.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.client.seed = seed;
        self
    }

    /// The effective settings.
    ///
    /// # Errors
    /// Where settings contradict each other or a guarantee, naming them as Kafka does.
    pub fn build(self) -> Result<ProducerConfig, ConfigError> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        self.check_idempotence()?;
        // As in Kafka: without an explicit word, acks and retries that exclude idempotence switch
        // it off.
        let gave_way = self
            .excludes_idempotence()
            .filter(|_| self.transactional_id.is_none() && self.idempotence.is_none());
        let idempotence = self.idempotence.unwrap_or(gave_way.is_none());
        let batch_size = self.batch_size.unwrap_or(16_384).max(1);
        let config = ProducerConfig {
            acks: self.acks.unwrap_or(Acks::All),
            idempotence,
            transactional_id: self.transactional_id,
            transaction_timeout: self.transaction_timeout.unwrap_or(Duration::from_secs(60)),
            batch_size,
            linger: self.linger.unwrap_or(Duration::from_millis(5)),
            compression: self.compression.unwrap_or(Compression::None),
            buffer_memory: self.buffer_memory.unwrap_or(32 << 20),
            max_block: self.max_block.unwrap_or(Duration::from_secs(60)),
            max_request_size: self.max_request_size.unwrap_or(1 << 20),
            max_in_flight: self.max_in_flight.unwrap_or(5),
            retries: self.retries.unwrap_or(RETRIES),
            delivery_timeout: self.delivery_timeout.unwrap_or(Duration::from_secs(120)),
            allow_transaction_version_below_2: self.allow_transaction_version_below_2,
            interceptors: self.interceptors,
            client: self.client,
            gave_way,
        };
        config.check(self.delivery_timeout.is_some())
    }

    /// The setting with which there are no safe sequences.
    fn excludes_idempotence(&self) -> Option<String> {
        let acks = self.acks.filter(|acks| *acks != Acks::All);
        let retries = self.retries.filter(|retries| *retries == 0);
        acks.map(|acks| format!("acks={acks}"))
            .or(retries.map(|_| "retries=0".to_owned()))
    }

    fn check_idempotence(&self) -> Result<(), ConfigError> {
        let excluded = self.excludes_idempotence();
        let in_flight = self.max_in_flight.filter(|count| *count > 5);
        let in_flight =
            in_flight.map(|count| format!("max.in.flight.requests.per.connection={count}"));
        if let Some(id) = &self.transactional_id {
            if id.is_empty() {
                return Err(ConfigError::Invalid {
                    setting: "transactional.id=\"\"".to_owned(),
                    reason: "must not be empty",
                });
            }
            let off = self.idempotence == Some(false);
            let off = off.then(|| "enable.idempotence=false".to_owned());
            return match off.or(excluded).or(in_flight) {
                Some(setting) => Err(ConfigError::Locked {
                    setting,
                    guarantee: "exactly-once (transactional.id)",
                }),
                None => Ok(()),
            };
        }
        let contradiction = |second: String, reason| {
            Err(ConfigError::Contradiction {
                first: "enable.idempotence=true".to_owned(),
                second,
                reason,
            })
        };
        match (self.idempotence, excluded, in_flight) {
            (Some(true), Some(setting), _) => contradiction(
                setting,
                "a sequence is only safe when all in-sync replicas have it and a lost batch goes \
                 again: use acks=all and retries above 0, or leave enable.idempotence out",
            ),
            // As Kafka since 4.0: more requests in flight do not switch the default off unasked.
            (Some(true), None, Some(setting)) | (None, None, Some(setting)) => contradiction(
                setting,
                "the broker remembers five batches a producer: use at most 5, or switch \
                 idempotence off by enable.idempotence=false",
            ),
            _ => Ok(()),
        }
    }
}

impl ProducerConfig {
    fn check(mut self, explicit_delivery_timeout: bool) -> Result<Self, ConfigError> {
        self.client.security.check()?;
        let invalid = |setting: String, reason| Err(ConfigError::Invalid { setting, reason });
        if self.max_in_flight == 0 {
            let setting = "max.in.flight.requests.per.connection=0".to_owned();
            return invalid(setting, "must be at least 1");
        }
        if self.transaction_timeout.is_zero() {
            return invalid("transaction.timeout.ms=0".to_owned(), "must be at least 1");
        }
        if self.batch_size > self.buffer_memory {
            return Err(ConfigError::Contradiction {
                first: format!("batch.size={}", self.batch_size),
                second: format!("buffer.memory={}", self.buffer_memory),
                reason: "the buffer must hold at least one batch",
            });
        }
        let least = self.client.request_timeout + self.linger;
        if self.delivery_timeout < least {
            if explicit_delivery_timeout {
                return Err(ConfigError::Contradiction {
                    first: format!("delivery.timeout.ms={}", millis(self.delivery_timeout)),
                    second: format!(
                        "request.timeout.ms={} + linger.ms={}",
                        millis(self.client.request_timeout),
                        millis(self.linger)
                    ),
                    reason: "the budget must hold one request at least",
                });
            }
            self.delivery_timeout = least;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: ProducerBuilder) -> String {
        builder.build().unwrap_err().to_string()
    }

    // Row 4.
    #[test]
    fn idempotence_and_acks_all_are_the_default() {
        let config = ProducerBuilder::default().build().unwrap();
        assert!(config.idempotence);
        assert_eq!(config.acks, Acks::All);
        assert_eq!((config.batch_size, config.linger.as_millis()), (16_384, 5));
    }

    // Row 15.
    #[test]
    fn explicit_idempotence_refuses_what_breaks_it() {
        let text = refused(
            ProducerBuilder::default()
                .idempotence(true)
                .max_in_flight(6),
        );
        assert!(
            text.contains("max.in.flight.requests.per.connection=6"),
            "{text}"
        );
        let text = refused(
            ProducerBuilder::default()
                .idempotence(true)
                .acks(Acks::Leader),
        );
        assert!(
            text.contains("acks=1") && text.contains("enable.idempotence=true"),
            "{text}"
        );
        ProducerBuilder::default()
            .idempotence(true)
            .max_in_flight(5)
            .build()
            .unwrap();
    }

    // Rows 13, 16.
    #[test]
    fn explicit_idempotence_needs_retries() {
        let text = refused(ProducerBuilder::default().idempotence(true).retries(0));
        assert!(
            text.contains("retries=0") && text.contains("enable.idempotence=true"),
            "{text}"
        );
    }

    // Row 17.
    #[test]
    fn idempotence_that_nobody_asked_for_gives_way_and_says_so() {
        for (builder, setting) in [
            (ProducerBuilder::default().acks(Acks::Leader), "acks=1"),
            (ProducerBuilder::default().acks(Acks::None), "acks=0"),
            (ProducerBuilder::default().retries(0), "retries=0"),
        ] {
            let config = builder.build().unwrap();
            assert!(!config.idempotence);
            let warnings = config.warnings().join("\n");
            assert!(
                warnings.contains(setting) && warnings.contains("enable.idempotence"),
                "{warnings}"
            );
        }
        let text = refused(ProducerBuilder::default().max_in_flight(6));
        assert!(
            text.contains("max.in.flight.requests.per.connection=6"),
            "more in flight is refused, as Kafka does it since 4.0: {text}"
        );
        ProducerBuilder::default()
            .idempotence(false)
            .max_in_flight(6)
            .build()
            .unwrap();
    }

    // Row 18.
    #[test]
    fn the_safe_set_is_silent_and_the_unsafe_one_says_what_it_can_do() {
        let safe = ProducerBuilder::default()
            .idempotence(true)
            .acks(Acks::All)
            .retries(2_147_483_647)
            .max_in_flight(5)
            .build()
            .unwrap();
        assert_eq!(safe.warnings(), Vec::<String>::new());
        assert_eq!(
            ProducerBuilder::default().build().unwrap().warnings(),
            Vec::<String>::new(),
            "the default is the safe set"
        );
        let unsafe_set = ProducerBuilder::default()
            .idempotence(false)
            .acks(Acks::Leader)
            .retries(3)
            .build()
            .unwrap();
        let warnings = unsafe_set.warnings().join("\n");
        for part in ["acks=1", "retries=3", "twice", "lost", "order"] {
            assert!(warnings.contains(part), "{part}: {warnings}");
        }
        let at_most_once = ProducerBuilder::default().acks(Acks::None).build().unwrap();
        let warnings = at_most_once.warnings().join("\n");
        assert!(
            warnings.contains("acks=0") && !warnings.contains("twice"),
            "nothing is sent again without an answer to miss: {warnings}"
        );
    }

    // Row 147.
    #[test]
    fn a_transactional_id_locks_what_exactly_once_needs() {
        let builder = || ProducerBuilder::default().transactional_id("orders-1");
        for (builder, setting) in [
            (builder().idempotence(false), "enable.idempotence=false"),
            (builder().acks(Acks::None), "acks=0"),
            (
                builder().max_in_flight(9),
                "max.in.flight.requests.per.connection=9",
            ),
        ] {
            let error = builder.build().unwrap_err();
            assert!(matches!(error, ConfigError::Locked { .. }), "{error}");
            let text = error.to_string();
            assert!(
                text.contains(setting) && text.contains("exactly-once"),
                "{text}"
            );
        }
    }

    // Rows 96, 97.
    #[test]
    fn the_delivery_budget_holds_a_request_and_the_linger() {
        let builder = ProducerBuilder::default().delivery_timeout_ms(30_004);
        let text = refused(builder);
        for part in [
            "delivery.timeout.ms=30004",
            "request.timeout.ms=30000",
            "linger.ms=5",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let config = ProducerBuilder::default()
            .linger_ms(200_000)
            .build()
            .unwrap();
        assert_eq!(config.delivery_timeout, Duration::from_secs(230));
    }
}

//! The settings of an application, under Kafka's names where Kafka has one.
//!
//! Invariants: what a guarantee depends on cannot be overridden; a refused setting says which
//! guarantee holds it.
//! Never: a setting that is read and has no effect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_client::ClientConfig;
use millstream_client::consumer::AutoOffsetReset;

use crate::error::StreamsError;
use crate::poison::PoisonPolicy;

/// What a job promises (`processing.guarantee`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Guarantee {
    /// Offsets and outputs are committed in one transaction (`exactly_once_v2`; default, Kafka's is
    /// `at_least_once`).
    #[default]
    ExactlyOnce,
    /// Outputs first, then offsets; after a crash some records are processed again.
    AtLeastOnce,
}

impl Guarantee {
    /// Kafka's name of the guarantee.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ExactlyOnce => "exactly_once_v2",
            Self::AtLeastOnce => "at_least_once",
        }
    }
}

/// Where the workers of an instance run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Placement {
    /// Each worker on a thread of its own: a closure that blocks stalls its worker alone (default).
    #[default]
    Threads,
    /// All on the current runtime, so that a test decides the time and the order.
    Runtime,
}

/// Effective settings of an application.
#[derive(Debug, Clone)]
pub(crate) struct StreamsConfig {
    pub(crate) application_id: Arc<str>,
    pub(crate) transactional_id: String,
    /// What the user has chosen; empty for none.
    pub(crate) group_instance_id: Option<String>,
    pub(crate) guarantee: Guarantee,
    pub(crate) placement: Placement,
    pub(crate) client: ClientConfig,
    pub(crate) poison: PoisonPolicy,
    pub(crate) threads: usize,
    pub(crate) commit_interval: Duration,
    pub(crate) transaction_timeout: Duration,
    pub(crate) session_timeout: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) delivery_timeout: Duration,
    pub(crate) linger: Duration,
    pub(crate) batch_size: usize,
    pub(crate) buffer_memory: usize,
    pub(crate) max_poll_records: usize,
    pub(crate) max_request_size: usize,
    /// Only what the user has chosen.
    pub(crate) auto_offset_reset: Option<AutoOffsetReset>,
}

impl StreamsConfig {
    pub(crate) fn new(application_id: &str) -> Self {
        Self {
            application_id: application_id.into(),
            transactional_id: format!("{application_id}-1"),
            group_instance_id: None,
            guarantee: Guarantee::ExactlyOnce,
            placement: Placement::Threads,
            client: ClientConfig::default(),
            poison: PoisonPolicy::Fail,
            threads: 1,
            commit_interval: Duration::from_millis(100),
            transaction_timeout: Duration::from_secs(10),
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            delivery_timeout: Duration::from_secs(120),
            linger: Duration::from_millis(5),
            batch_size: 128 * 1024,
            buffer_memory: 32 * 1024 * 1024,
            max_poll_records: 1_000,
            max_request_size: 4 * 1024 * 1024,
            auto_offset_reset: None,
        }
    }

    /// Sets one setting by Kafka's name.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), StreamsError> {
        self.refuse_locked(name, value)?;
        let security = self.client.security.set(name, value);
        if security.map_err(|mistake| StreamsError::Config(mistake.to_string()))? {
            return Ok(());
        }
        match name {
            "num.stream.threads" => self.threads = parse(name, value)?,
            "commit.interval.ms" => self.commit_interval = millis(name, value)?,
            "transaction.timeout.ms" => self.transaction_timeout = millis(name, value)?,
            "session.timeout.ms" => self.session_timeout = millis(name, value)?,
            "heartbeat.interval.ms" => self.heartbeat_interval = millis(name, value)?,
            "delivery.timeout.ms" => self.delivery_timeout = millis(name, value)?,
            "linger.ms" => self.linger = millis(name, value)?,
            "batch.size" => self.batch_size = parse(name, value)?,
            "buffer.memory" => self.buffer_memory = parse(name, value)?,
            "max.poll.records" => self.max_poll_records = parse(name, value)?,
            "max.request.size" => self.max_request_size = parse(name, value)?,
            "auto.offset.reset" => {
                let reset = value.parse().ok();
                let reset = reset.filter(|reset| *reset != AutoOffsetReset::None);
                self.auto_offset_reset = Some(reset.ok_or_else(|| {
                    StreamsError::Config(format!(
                        "auto.offset.reset={value}: it is earliest, latest or by_duration:<PnDTnHnMn.nS>; \
                         left out, a partition without a committed offset begins at its first \
                         record, and an offset that the log does not hold is an error"
                    ))
                })?);
            }
            "group.instance.id" => self.group_instance_id = Some(value.to_owned()),
            "transactional.id" => value.clone_into(&mut self.transactional_id),
            "processing.guarantee" => {
                self.guarantee = match value {
                    "exactly_once_v2" => Guarantee::ExactlyOnce,
                    "at_least_once" => Guarantee::AtLeastOnce,
                    other => {
                        return Err(StreamsError::Config(format!(
                            "processing.guarantee={other}: it is exactly_once_v2 or at_least_once"
                        )));
                    }
                };
            }
            // Locked values that are what the guarantee demands anyway change nothing.
            _ if self.locked().iter().any(|(locked, _)| *locked == name) => {}
            shared if self.client.effective().contains_key(shared) => {
                let set = self.client.set(name, value);
                set.map_err(|mistake| StreamsError::Config(mistake.to_string()))?;
            }
            other => {
                return Err(StreamsError::Config(format!(
                    "{other} is not a setting of a streams application; it knows {}",
                    self.effective()
                        .keys()
                        .cloned()
                        .collect::<Vec<_>>()
                        .join(", "),
                )));
            }
        }
        Ok(())
    }

    /// Settings that the guarantee decides, with their values.
    fn locked(&self) -> Vec<(&'static str, &'static str)> {
        let mut locked = vec![
            ("enable.auto.commit", "false"),
            ("enable.idempotence", "true"),
            ("acks", "all"),
        ];
        if self.guarantee == Guarantee::ExactlyOnce {
            locked.push(("isolation.level", "read_committed"));
            locked.push(("max.in.flight.requests.per.connection", "5"));
        }
        locked
    }

    fn refuse_locked(&self, name: &str, value: &str) -> Result<(), StreamsError> {
        match self
            .locked()
            .into_iter()
            .find(|(locked, _)| *locked == name)
        {
            Some((_, held)) if held != value => Err(StreamsError::Config(format!(
                "{name}={value} is refused: processing.guarantee={} needs {name}={held}; \
                 leave the setting out, or choose another guarantee",
                self.guarantee.name(),
            ))),
            _ => Ok(()),
        }
    }

    /// Checks what single settings cannot show.
    pub(crate) fn validate(&self) -> Result<(), StreamsError> {
        if self.threads == 0 {
            return Err(StreamsError::Config(
                "num.stream.threads is 0; it is at least 1".into(),
            ));
        }
        if self.max_poll_records == 0 {
            return Err(StreamsError::Config(
                "max.poll.records is 0; it is at least 1".into(),
            ));
        }
        if self.guarantee == Guarantee::ExactlyOnce
            && self.transaction_timeout <= self.commit_interval
        {
            return Err(StreamsError::Config(format!(
                "transaction.timeout.ms={} is not above commit.interval.ms={}; \
                 every transaction would be aborted before its commit",
                self.transaction_timeout.as_millis(),
                self.commit_interval.as_millis(),
            )));
        }
        Ok(())
    }

    /// Where a partition begins that has no committed offset.
    pub(crate) fn begins(&self) -> AutoOffsetReset {
        self.auto_offset_reset.unwrap_or(AutoOffsetReset::Earliest)
    }

    /// Whether a position that the log does not hold ends the instance: under exactly-once, unless
    /// the user has chosen what becomes of it.
    pub(crate) fn out_of_range_fails(&self) -> bool {
        self.guarantee == Guarantee::ExactlyOnce && self.auto_offset_reset.is_none()
    }

    /// Static membership. Under exactly-once the transactional id names one instance anyway, so it
    /// does here as well: what is started after a kill need not wait for the dead one's session.
    pub(crate) fn instance_id(&self) -> Option<&str> {
        let derived = (self.guarantee == Guarantee::ExactlyOnce).then_some(&*self.transactional_id);
        let chosen = self.group_instance_id.as_deref();
        chosen.or(derived).filter(|id| !id.is_empty())
    }

    /// Every effective setting by Kafka's name.
    pub(crate) fn effective(&self) -> BTreeMap<String, String> {
        let ms = |duration: Duration| duration.as_millis().to_string();
        let mut settings: BTreeMap<String, String> = [
            ("application.id", self.application_id.to_string()),
            ("transactional.id", self.transactional_id.clone()),
            (
                "group.instance.id",
                self.instance_id().unwrap_or_default().to_owned(),
            ),
            ("processing.guarantee", self.guarantee.name().to_owned()),
            ("num.stream.threads", self.threads.to_string()),
            ("commit.interval.ms", ms(self.commit_interval)),
            ("transaction.timeout.ms", ms(self.transaction_timeout)),
            ("session.timeout.ms", ms(self.session_timeout)),
            ("heartbeat.interval.ms", ms(self.heartbeat_interval)),
            ("delivery.timeout.ms", ms(self.delivery_timeout)),
            ("linger.ms", ms(self.linger)),
            ("batch.size", self.batch_size.to_string()),
            ("buffer.memory", self.buffer_memory.to_string()),
            ("max.poll.records", self.max_poll_records.to_string()),
            ("max.request.size", self.max_request_size.to_string()),
            (
                "auto.offset.reset",
                self.auto_offset_reset
                    .map_or_else(String::new, |reset| reset.to_string()),
            ),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        let shared = self.client.effective().into_iter();
        settings.extend(shared.map(|(name, value)| (name.to_owned(), value)));
        settings.extend(
            self.locked()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        settings
    }
}

fn parse(name: &str, value: &str) -> Result<usize, StreamsError> {
    value
        .parse()
        .map_err(|error| StreamsError::Config(format!("{name}={value} is not a number: {error}")))
}

fn millis(name: &str, value: &str) -> Result<Duration, StreamsError> {
    parse(name, value).map(|ms| Duration::from_millis(ms as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exactly_once_instance_is_a_static_member_unless_told_otherwise() {
        let mut config = StreamsConfig::new("app");
        assert_eq!(config.instance_id(), Some("app-1"));
        assert_eq!(config.effective()["group.instance.id"], "app-1");
        config.set("group.instance.id", "").expect("none");
        assert_eq!(config.instance_id(), None);
        config.set("group.instance.id", "mine").expect("a name");
        assert_eq!(config.instance_id(), Some("mine"));
        let mut config = StreamsConfig::new("app");
        config
            .set("processing.guarantee", "at_least_once")
            .expect("a guarantee");
        assert_eq!(
            config.instance_id(),
            None,
            "nothing says that there is one such instance"
        );
    }

    /// Row 147: effective values can be read, locked keys refuse an override.
    #[test]
    fn a_setting_that_the_guarantee_holds_refuses_an_override_and_says_so() {
        let mut config = StreamsConfig::new("app");
        let refused = config
            .set("isolation.level", "read_uncommitted")
            .expect_err("locked");
        let text = refused.to_string();
        assert!(
            text.contains("exactly_once_v2") && text.contains("read_committed"),
            "{text}"
        );
        config
            .set("enable.auto.commit", "true")
            .expect_err("locked under every guarantee");
        config
            .set("isolation.level", "read_committed")
            .expect("the same value is no override");
        config
            .set("commit.interval.ms", "7")
            .expect("a plain setting");
        assert_eq!(config.effective()["commit.interval.ms"], "7");
        assert_eq!(config.effective()["isolation.level"], "read_committed");
        config
            .set("retry.backoff.ms", "250")
            .expect("a setting of every client");
        assert_eq!(config.client.retry_backoff, Duration::from_millis(250));
        assert_eq!(config.effective()["retry.backoff.ms"], "250");
        config
            .set("sasl.password", "wordpass")
            .expect("a setting of every client");
        assert!(!format!("{config:?}").contains("wordpass"));
        config.set("no.such.setting", "1").expect_err("unknown");
    }

    #[test]
    fn an_offset_outside_the_log_ends_an_exactly_once_job_unless_a_reset_was_chosen() {
        let mut config = StreamsConfig::new("app");
        assert_eq!(config.begins(), AutoOffsetReset::Earliest);
        assert!(config.out_of_range_fails());
        let refused = config
            .set("auto.offset.reset", "none")
            .expect_err("unknown");
        assert!(
            refused
                .to_string()
                .contains("earliest, latest or by_duration"),
            "{refused}"
        );
        config
            .set("auto.offset.reset", "latest")
            .expect("a plain setting");
        assert_eq!(config.begins(), AutoOffsetReset::Latest);
        assert!(!config.out_of_range_fails());
        assert_eq!(config.effective()["auto.offset.reset"], "latest");
        config.auto_offset_reset = None;
        config.guarantee = Guarantee::AtLeastOnce;
        assert!(!config.out_of_range_fails());
    }

    #[test]
    fn a_transaction_timeout_below_the_commit_interval_is_refused_with_both_numbers() {
        let mut config = StreamsConfig::new("app");
        config
            .set("transaction.timeout.ms", "50")
            .expect("a number");
        let text = config.validate().expect_err("contradiction").to_string();
        assert!(text.contains("50") && text.contains("100"), "{text}");
    }
}

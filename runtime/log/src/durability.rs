//! What an acknowledgement promises: one setting for the whole broker.
//!
//! Invariants: the mode is one a broker, never one a topic (mixing them would tear transactions).
//! Never: changes while a directory is open.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// When appended records count as durable. Kafka has no such setting; its behaviour is `Os`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledgements and the high watermark wait for the journal's `fdatasync`.
    #[default]
    Sync,
    /// Partition files are synced at this interval; acknowledgements do not wait for it.
    Interval(Duration),
    /// The operating system writes when it likes.
    Os,
    /// Nothing is ever synced.
    Memory,
}

impl Durability {
    /// Whether appends go through the journal and wait for it.
    pub fn is_journaled(self) -> bool {
        self == Durability::Sync
    }

    /// Whether files are synced at checkpoints and when the directory closes.
    pub fn syncs_files(self) -> bool {
        self != Durability::Memory
    }

    /// What the mode survives, in one line for the log at start.
    pub fn promise(self) -> &'static str {
        match self {
            Durability::Sync => "acknowledged records survive a killed process and a power cut",
            Durability::Interval(_) => {
                "acknowledged records survive a killed process; a power cut may lose the last \
                 interval and tear a transaction"
            }
            Durability::Os => {
                "acknowledged records survive a killed process; a power cut may lose records and \
                 tear a transaction"
            }
            Durability::Memory => "nothing is promised to survive",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Sync => formatter.write_str("sync"),
            Durability::Interval(period) => write!(formatter, "interval:{}", period.as_millis()),
            Durability::Os => formatter.write_str("os"),
            Durability::Memory => formatter.write_str("memory"),
        }
    }
}

/// The text names no durability mode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no durability mode: use sync, os, memory or interval:MS (1 to 3600000)")]
pub struct UnknownDurability(String);

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sync" => Ok(Durability::Sync),
            "os" => Ok(Durability::Os),
            "memory" => Ok(Durability::Memory),
            _ => text
                .strip_prefix("interval:")
                .and_then(|ms| ms.parse().ok())
                .filter(|ms| (1..=3_600_000).contains(ms))
                .map(|ms| Durability::Interval(Duration::from_millis(ms)))
                .ok_or_else(|| UnknownDurability(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_reads_back_what_it_prints() {
        for mode in [
            Durability::Sync,
            Durability::Os,
            Durability::Memory,
            Durability::Interval(Duration::from_millis(250)),
        ] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
    }

    #[test]
    fn a_mode_that_is_none_is_refused_by_name() {
        for text in [
            "",
            "fsync",
            "interval",
            "interval:",
            "interval:0",
            "interval:-1",
            "SYNC",
        ] {
            let refused = text.parse::<Durability>().unwrap_err();
            assert!(
                refused
                    .to_string()
                    .contains("use sync, os, memory or interval:MS")
            );
        }
    }
}

//! `auto.offset.reset`: where a consumer begins without a position, and how that is written.
//!
//! Invariants: what `Display` writes, `FromStr` reads.
//! Never: looks at a clock; the duration is taken from the time at which the leader is asked.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Where to begin when there is no position, or none that the log still has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AutoOffsetReset {
    /// At the first record of the log.
    Earliest,
    /// Behind the last record: only what comes later.
    #[default]
    Latest,
    /// At the first record that is at most this old; behind the last record where all are older.
    ByDuration(Duration),
    /// Nowhere: `poll` reports an error and the application seeks.
    None,
}

/// A text that is no [`AutoOffsetReset`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is earliest, latest, none or by_duration:<PnDTnHnMn.nS> (an ISO-8601 duration that is not \
     negative, such as PT1H)"
)]
pub struct NotAReset;

const BY_DURATION: &str = "by_duration:";

impl FromStr for AutoOffsetReset {
    type Err = NotAReset;

    fn from_str(text: &str) -> Result<Self, NotAReset> {
        match text {
            "earliest" => Ok(AutoOffsetReset::Earliest),
            "latest" => Ok(AutoOffsetReset::Latest),
            "none" => Ok(AutoOffsetReset::None),
            _ => {
                let duration = text.strip_prefix(BY_DURATION).and_then(parse_duration);
                duration.map(AutoOffsetReset::ByDuration).ok_or(NotAReset)
            }
        }
    }
}

impl fmt::Display for AutoOffsetReset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AutoOffsetReset::Earliest => formatter.write_str("earliest"),
            AutoOffsetReset::Latest => formatter.write_str("latest"),
            AutoOffsetReset::None => formatter.write_str("none"),
            AutoOffsetReset::ByDuration(duration) => {
                let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
                write!(formatter, "{BY_DURATION}PT{seconds}")?;
                if nanos > 0 {
                    let digits = format!("{nanos:09}");
                    write!(formatter, ".{}", digits.trim_end_matches('0'))?;
                }
                formatter.write_str("S")
            }
        }
    }
}

/// Reads `PnDTnHnMn.nS`, each part with a sign of its own if need be, as Java does. `None` for what
/// is no such text, or is negative as a whole.
fn parse_duration(text: &str) -> Option<Duration> {
    let upper = text.to_ascii_uppercase();
    let (negated, rest) = match upper.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, upper.strip_prefix('+').unwrap_or(&upper)),
    };
    let rest = rest.strip_prefix('P')?;
    let (days, time) = match rest.split_once('T') {
        Some((_, "")) => return None,
        Some((days, time)) => (days, time),
        None => (rest, ""),
    };
    let mut nanos: i128 = 0;
    let mut parts = 0;
    let mut take = |rest: &mut &str, unit: char, seconds: i128| -> Option<()> {
        let Some((number, after)) = rest.split_once(unit) else {
            return Some(());
        };
        let part = if unit == 'S' {
            parse_seconds(number)?
        } else {
            i128::from(number.parse::<i64>().ok()?) * seconds * 1_000_000_000
        };
        nanos += part;
        parts += 1;
        *rest = after;
        Some(())
    };
    let (mut days, mut time) = (days, time);
    take(&mut days, 'D', 86_400)?;
    take(&mut time, 'H', 3_600)?;
    take(&mut time, 'M', 60)?;
    take(&mut time, 'S', 1)?;
    if parts == 0 || !days.is_empty() || !time.is_empty() {
        return None;
    }
    let nanos = if negated { -nanos } else { nanos };
    let seconds = u64::try_from(nanos.checked_div(1_000_000_000)?).ok()?;
    let fraction = u32::try_from(nanos % 1_000_000_000).ok()?;
    // Java's durations end here.
    (i64::try_from(seconds).is_ok()).then(|| Duration::new(seconds, fraction))
}

/// Nanoseconds of `[+-]n[.n]`, with at most nine digits behind the dot.
fn parse_seconds(text: &str) -> Option<i128> {
    let (whole, fraction) = match text.split_once(['.', ',']) {
        Some((whole, fraction)) => (whole, fraction),
        None => (text, ""),
    };
    let seconds: i64 = whole.parse().ok()?;
    if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: i128 = format!("{fraction:0<9}").parse().ok()?;
    let nanos = if whole.starts_with('-') {
        -nanos
    } else {
        nanos
    };
    Some(i128::from(seconds) * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(seconds: u64, nanos: u32) -> Result<AutoOffsetReset, NotAReset> {
        Ok(AutoOffsetReset::ByDuration(Duration::new(seconds, nanos)))
    }

    #[test]
    fn the_four_ways_are_read_as_kafka_reads_them() {
        let read = str::parse::<AutoOffsetReset>;
        assert_eq!(read("earliest"), Ok(AutoOffsetReset::Earliest));
        assert_eq!(read("latest"), Ok(AutoOffsetReset::Latest));
        assert_eq!(read("none"), Ok(AutoOffsetReset::None));
        for (text, seconds, nanos) in [
            ("PT1H", 3_600, 0),
            ("PT0S", 0, 0),
            ("P3D", 259_200, 0),
            ("P1DT2H3M4.5S", 93_784, 500_000_000),
            ("pt15m", 900, 0),
            ("PT0.000000001S", 0, 1),
            ("PT1.S", 1, 0),
            ("+PT90S", 90, 0),
            ("PT1H-30M", 1_800, 0),
            ("-PT-5S", 5, 0),
            ("PT10M-0.5S", 599, 500_000_000),
        ] {
            assert_eq!(
                read(&format!("by_duration:{text}")),
                by(seconds, nanos),
                "{text}"
            );
        }
        for text in [
            "",
            "Earliest",
            "by_duration",
            "by_duration:",
            "by_duration:P",
            "by_duration:PT",
            "by_duration:1H",
            "by_duration:PT1",
            "by_duration:-PT1H",
            "by_duration:PT-1S",
            "by_duration:P1H",
            "by_duration:PT1D",
            "by_duration:PT1M1H",
            "by_duration:P1W",
            "by_duration:PT1.5M",
            "by_duration:PT1.0000000001S",
            "by_duration:P1DT",
            "by_duration:PT99999999999999999999S",
            "by_duration:PT S",
            "by_duration:PT1S ",
        ] {
            assert_eq!(read(text), Err(NotAReset), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "earliest",
            "latest",
            "none",
            "by_duration:PT3600S",
            "by_duration:PT0.25S",
        ] {
            let read: AutoOffsetReset = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
        }
    }
}

//! Until when a certificate is good, out of its DER: brokers that refuse a client's certificate do
//! not say why, Kafka's do not even where it has expired.
//!
//! Invariants: what is no certificate has no time; nothing is read beyond its end.
//! Never: judges more than the time.

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The end of a certificate's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    /// Since 1970.
    seconds: i64,
}

impl Expiry {
    /// Of a certificate; `None` where the bytes are something else.
    pub(crate) fn of(certificate: &[u8]) -> Option<Expiry> {
        let (certificate, _) = contents(SEQUENCE, certificate)?;
        let (mut rest, _) = contents(SEQUENCE, certificate)?;
        if rest.first() == Some(&VERSION) {
            rest = next(rest)?.2;
        }
        // Serial number, algorithm, issuer.
        for _ in 0..3 {
            rest = next(rest)?.2;
        }
        let (validity, _) = contents(SEQUENCE, rest)?;
        let (_, _, not_after) = next(validity)?;
        let (tag, text, _) = next(not_after)?;
        let seconds = match tag {
            UTC_TIME => {
                // Two digits of the year: 50 is 1950, 49 is 2049.
                let (year, rest) = text.split_at_checked(2)?;
                let year = number(year)?;
                seconds(if year < 50 { 2000 + year } else { 1900 + year }, rest)?
            }
            GENERALIZED_TIME => {
                let (year, rest) = text.split_at_checked(4)?;
                seconds(number(year)?, rest)?
            }
            _ => return None,
        };
        Some(Expiry { seconds })
    }

    /// Whether it is over at this time, in seconds since 1970.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        i64::try_from(now).is_ok_and(|now| now > self.seconds)
    }

    /// The day, as 2021-01-31.
    pub(crate) fn day(&self) -> String {
        let days = self.seconds.div_euclid(86_400);
        let mut year = 1970 + days.div_euclid(366);
        while days_before(year + 1, 1) <= days {
            year += 1;
        }
        let mut month = 1;
        while month < 12 && days_before(year, month + 1) <= days {
            month += 1;
        }
        let day = days - days_before(year, month) + 1;
        format!("{year:04}-{month:02}-{day:02}")
    }
}

/// Tag, contents, and what follows, of the first element.
fn next(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, first, rest @ ..] = bytes else {
        return None;
    };
    let (length, rest) = match usize::from(*first) {
        short @ 0..=0x7f => (short, rest),
        // Four bytes of length are more than any certificate has.
        long @ 0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(long - 0x80)?;
            let sum = |sum: usize, byte: &u8| (sum << 8) | usize::from(*byte);
            (length.iter().fold(0, sum), rest)
        }
        _ => return None,
    };
    let (inner, after) = rest.split_at_checked(length)?;
    Some((*tag, inner, after))
}

fn contents(wanted: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (tag, inner, after) = next(bytes)?;
    (tag == wanted).then_some((inner, after))
}

fn number(digits: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(digits).ok()?;
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// Of a year, and MMDDHHMMSSZ in it.
fn seconds(year: i64, rest: &[u8]) -> Option<i64> {
    let (digits, b"Z") = rest.split_at_checked(10)? else {
        return None;
    };
    let parts: Option<Vec<i64>> = digits.chunks(2).map(number).collect();
    let [month @ 1..=12, day @ 1..=31, hours, minutes, seconds] = parts?[..] else {
        return None;
    };
    let days = days_before(year, month) + day - 1;
    Some(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
}

/// Days from 1970 to the first of a month.
fn days_before(year: i64, month: i64) -> i64 {
    // Years that begin in March end with the day that leap years have more.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (month * 153 + 2) / 5 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, inner: &[u8]) -> Vec<u8> {
        let length = u16::try_from(inner.len()).unwrap().to_be_bytes();
        [&[tag, 0x82, length[0], length[1]], inner].concat()
    }

    fn certificate(tag: u8, not_after: &str, with_version: bool) -> Vec<u8> {
        let validity = [
            element(UTC_TIME, b"200101000000Z"),
            element(tag, not_after.as_bytes()),
        ];
        let mut parts = vec![
            element(2, &[7; 20]),
            element(SEQUENCE, &[1; 200]),
            element(SEQUENCE, b"issuer"),
            element(SEQUENCE, &validity.concat()),
            element(SEQUENCE, b"subject"),
        ];
        if with_version {
            parts.insert(0, element(VERSION, &[2, 1, 2]));
        }
        let inner = [element(SEQUENCE, &parts.concat()), b"signature".to_vec()];
        element(SEQUENCE, &inner.concat())
    }

    #[test]
    fn a_certificate_says_when_its_time_is_over() {
        for (tag, not_after, seconds, day) in [
            (UTC_TIME, "210101000000Z", 1_609_459_200, "2021-01-01"),
            (UTC_TIME, "240229235959Z", 1_709_251_199, "2024-02-29"),
            (UTC_TIME, "491231000000Z", 2_524_521_600, "2049-12-31"),
            (UTC_TIME, "700101000001Z", 1, "1970-01-01"),
            (
                GENERALIZED_TIME,
                "20240301000000Z",
                1_709_251_200,
                "2024-03-01",
            ),
            (
                GENERALIZED_TIME,
                "99991231235959Z",
                253_402_300_799,
                "9999-12-31",
            ),
        ] {
            for with_version in [false, true] {
                let expiry = Expiry::of(&certificate(tag, not_after, with_version)).unwrap();
                assert_eq!((expiry.seconds, &*expiry.day()), (seconds, day));
                let end = u64::try_from(seconds).unwrap();
                assert!(!expiry.is_over(end) && expiry.is_over(end + 1));
            }
        }
    }

    #[test]
    fn what_is_no_certificate_says_nothing() {
        let whole = certificate(UTC_TIME, "210101000000Z", true);
        for end in 0..whole.len() {
            assert_eq!(Expiry::of(&whole[..end]), None, "{end}");
        }
        for (tag, text) in [
            (UTC_TIME, "2101010000Z"),
            (UTC_TIME, "211301000000Z"),
            (UTC_TIME, "2101010000+1Z"),
            (UTC_TIME, "210101000000+0100"),
            (GENERALIZED_TIME, "210101000000Z"),
            (SEQUENCE, "210101000000Z"),
            (UTC_TIME, ""),
        ] {
            assert_eq!(Expiry::of(&certificate(tag, text, true)), None, "{text}");
        }
        assert_eq!(Expiry::of(&[SEQUENCE, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}

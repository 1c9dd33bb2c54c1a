//! The topics of a consumer's subscription, as far as a coordinator may read them.
//!
//! Invariants: reads only the part that every version of the subscription begins with.
//! Never: fails a request; what cannot be read is `None`, and the group treats it as opaque.

use std::collections::BTreeSet;

/// The protocol type of Kafka's consumers, whose metadata begins with the subscribed topics.
pub(crate) const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// The topics that a consumer's JoinGroup metadata subscribes to.
pub(crate) fn subscribed_topics(metadata: &[u8]) -> Option<BTreeSet<String>> {
    let (_version, rest) = metadata.split_first_chunk::<2>()?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let count = i32::from_be_bytes(*count);
    let mut topics = BTreeSet::new();
    for _ in 0..count {
        let (length, tail) = rest.split_first_chunk::<2>()?;
        let length = usize::try_from(i16::from_be_bytes(*length)).ok()?;
        let (name, tail) = tail.split_at_checked(length)?;
        topics.insert(String::from_utf8(name.to_vec()).ok()?);
        rest = tail;
    }
    Some(topics)
}

/// Whether two metadata of one protocol ask for the same, so that a restarted static member can
/// take over its predecessor's assignment. User data of an assignor (what was owned before the
/// restart) does not count.
pub(crate) fn asks_for_the_same(protocol_type: &str, before: &[u8], now: &[u8]) -> bool {
    if before == now {
        return true;
    }
    if protocol_type != CONSUMER_PROTOCOL_TYPE {
        return false;
    }
    match (subscribed_topics(before), subscribed_topics(now)) {
        (Some(before), Some(now)) => before == now,
        _ => false,
    }
}

#[cfg(test)]
pub(crate) fn subscription(topics: &[&str], user_data: &[u8]) -> bytes::Bytes {
    use bytes::BufMut;
    let mut out = Vec::new();
    out.put_i16(1);
    out.put_i32(i32::try_from(topics.len()).expect("few topics"));
    for topic in topics {
        out.put_i16(i16::try_from(topic.len()).expect("short names"));
        out.put_slice(topic.as_bytes());
    }
    out.put_i32(i32::try_from(user_data.len()).expect("short data"));
    out.put_slice(user_data);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_read_from_a_subscription() {
        let topics = subscribed_topics(&subscription(&["orders", "customers"], b"x"));
        assert_eq!(
            topics,
            Some(["customers", "orders"].map(str::to_owned).into())
        );
    }

    #[test]
    fn a_truncated_subscription_has_no_topics_and_allocates_nothing_for_its_count() {
        let whole = subscription(&["orders"], b"");
        for end in 0..whole.len() - 4 {
            assert_eq!(subscribed_topics(&whole[..end]), None, "cut at {end}");
        }
        assert_eq!(subscribed_topics(&[0, 1, 0x7f, 0xff, 0xff, 0xff]), None);
        assert_eq!(subscribed_topics(&[0, 1, 0, 0, 0, 1, 0xff, 0xff]), None);
    }

    #[test]
    fn user_data_does_not_make_a_subscription_another_one() {
        let before = subscription(&["a", "b"], b"owned: 1 2 3");
        assert!(asks_for_the_same(
            "consumer",
            &before,
            &subscription(&["b", "a"], b"")
        ));
        assert!(!asks_for_the_same(
            "consumer",
            &before,
            &subscription(&["a"], b"")
        ));
        assert!(!asks_for_the_same(
            "connect",
            &before,
            &subscription(&["b", "a"], b"")
        ));
        assert!(!asks_for_the_same("consumer", b"?", b"!"));
    }
}

//! What becomes of a record that cannot be processed, and the headers that it carries into the
//! dead-letter topic.
//!
//! Invariants: key, value, timestamp and headers of a dead letter are those of the record; it is
//! part of the transaction that commits the record's offset.
//! Never: drops a record silently; a skipped one is counted and logged.

use std::sync::Arc;

use bytes::Bytes;

/// What to do with a record that cannot be deserialised, or that an operator refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoisonPolicy {
    /// Stop with an error that names topic, partition and offset (default, as in Kafka Streams).
    #[default]
    Fail,
    /// Count it, log it, go on.
    Skip,
    /// Write it to this topic, unchanged, with Kafka's six `__streams.errors.*` headers
    /// (`errors.dead.letter.queue.topic.name`, KIP-1034).
    DeadLetter(Arc<str>),
}

impl PoisonPolicy {
    /// Write poison records to `topic`.
    pub fn dead_letter(topic: impl Into<Arc<str>>) -> Self {
        Self::DeadLetter(topic.into())
    }
}

/// Bytes of a text among the error headers, at most.
pub(crate) const HEADER_BYTES_MAX: usize = 2048;

/// The six headers of KIP-1034, as UTF-8 text, partition and offset in decimal. `place` is topic,
/// partition and offset of the record; texts about it are cut at `text_bytes_max`.
pub(crate) fn error_headers(
    operator: &str,
    cause: &(dyn std::error::Error + Send + Sync),
    place: (&str, i32, i64),
    text_bytes_max: usize,
) -> Vec<(&'static str, Option<Bytes>)> {
    // A cause can quote a whole record; a dead letter must not become too large to be written.
    let text = |text: String| {
        let end = text.floor_char_boundary(text_bytes_max);
        Some(Bytes::copy_from_slice(
            text.get(..end).unwrap_or_default().as_bytes(),
        ))
    };
    let (topic, partition, offset) = place;
    let mut chain = format!("{operator}: {cause}");
    let mut source = cause.source();
    while let Some(inner) = source {
        chain.push_str("\ncaused by: ");
        chain.push_str(&inner.to_string());
        source = inner.source();
    }
    vec![
        ("__streams.errors.exception", text(operator.to_owned())),
        ("__streams.errors.message", text(cause.to_string())),
        ("__streams.errors.stacktrace", text(chain)),
        (
            "__streams.errors.topic",
            Some(Bytes::copy_from_slice(topic.as_bytes())),
        ),
        (
            "__streams.errors.partition",
            Some(partition.to_string().into()),
        ),
        ("__streams.errors.offset", Some(offset.to_string().into())),
    ]
}

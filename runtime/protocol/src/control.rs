//! Control batches: the markers that end a transaction on a partition.
//!
//! Invariants: a marker is one record; key = version 0 and type, value = version 0 and the epoch of
//! the coordinator that wrote it.
//! Never: reaches an application; carries a sequence number.

use crate::batch::{BatchError, CONTROL, HeaderFields, ProducerStamp, RecordBatch, write_header};
use crate::record::RecordView;
use bytes::Bytes;

const ABORT: i16 = 0;
const COMMIT: i16 = 1;
const VERSION: i16 = 0;

/// How a transaction ended on a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlMarker {
    /// Its records are to be skipped.
    Abort {
        /// Epoch of the transaction coordinator that decided it.
        coordinator_epoch: i32,
    },
    /// Its records count.
    Commit {
        /// Epoch of the transaction coordinator that decided it.
        coordinator_epoch: i32,
    },
}

impl ControlMarker {
    /// A marker for this outcome.
    #[must_use]
    pub fn new(commit: bool, coordinator_epoch: i32) -> ControlMarker {
        if commit {
            ControlMarker::Commit { coordinator_epoch }
        } else {
            ControlMarker::Abort { coordinator_epoch }
        }
    }

    /// Whether the transaction's records count.
    #[must_use]
    pub fn is_commit(self) -> bool {
        matches!(self, ControlMarker::Commit { .. })
    }

    /// Epoch of the transaction coordinator that decided it.
    #[must_use]
    pub fn coordinator_epoch(self) -> i32 {
        match self {
            ControlMarker::Abort { coordinator_epoch }
            | ControlMarker::Commit { coordinator_epoch } => coordinator_epoch,
        }
    }

    pub(crate) fn from_record(record: &RecordView<'_>) -> Result<ControlMarker, BatchError> {
        let malformed = |field| BatchError::MalformedControl { field };
        let kind = record
            .key
            .and_then(|key| key.get(2..)?.first_chunk().copied());
        let kind = i16::from_be_bytes(kind.ok_or(malformed("key"))?);
        let epoch = record
            .value
            .and_then(|value| value.get(2..)?.first_chunk().copied());
        let coordinator_epoch = i32::from_be_bytes(epoch.ok_or(malformed("value"))?);
        match kind {
            ABORT => Ok(ControlMarker::Abort { coordinator_epoch }),
            COMMIT => Ok(ControlMarker::Commit { coordinator_epoch }),
            _ => Err(malformed("type")),
        }
    }
}

/// The batch that ends the producer's transaction on one partition.
#[must_use]
pub fn control_batch(
    marker: ControlMarker,
    producer_id: i64,
    producer_epoch: i16,
    timestamp: i64,
) -> Bytes {
    let kind = if marker.is_commit() { COMMIT } else { ABORT };
    let mut batch = vec![0; RecordBatch::HEADER_BYTES];
    // Length 16, attributes, timestamp and offset delta 0, then key (4 bytes) and value (6 bytes).
    batch.extend_from_slice(&[32, 0, 0, 0, 8]);
    batch.extend_from_slice(&VERSION.to_be_bytes());
    batch.extend_from_slice(&kind.to_be_bytes());
    batch.push(12);
    batch.extend_from_slice(&VERSION.to_be_bytes());
    batch.extend_from_slice(&marker.coordinator_epoch().to_be_bytes());
    batch.push(0);
    let fields = HeaderFields {
        attributes: CONTROL,
        last_offset_delta: 0,
        base_timestamp: timestamp,
        max_timestamp: timestamp,
        stamp: ProducerStamp {
            producer_id,
            producer_epoch,
            base_sequence: -1,
            transactional: true,
        },
        record_count: 1,
    };
    write_header(&mut batch, &fields).expect("invariant: a marker fits a batch");
    Bytes::from(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_has_the_bytes_that_kafka_writes() {
        let batch = control_batch(
            ControlMarker::Commit {
                coordinator_epoch: 7,
            },
            9,
            3,
            1_000,
        );
        assert_eq!(batch.len(), 78);
        assert_eq!(
            batch[RecordBatch::HEADER_BYTES..],
            [32, 0, 0, 0, 8, 0, 0, 0, 1, 12, 0, 0, 0, 0, 0, 7, 0]
        );
        let batch = RecordBatch::parse(batch).unwrap();
        batch.verify_crc().unwrap();
        assert!(batch.is_control() && batch.is_transactional());
        assert_eq!((batch.producer_id(), batch.producer_epoch()), (9, 3));
        assert_eq!((batch.base_sequence(), batch.last_sequence()), (-1, -1));
        assert_eq!(batch.max_timestamp(), 1_000);
        let marker = batch.control().unwrap().unwrap();
        assert_eq!(
            marker,
            ControlMarker::Commit {
                coordinator_epoch: 7
            }
        );
        let abort = ControlMarker::new(false, -1);
        let batch = RecordBatch::parse(control_batch(abort, 9, 3, 1_000)).unwrap();
        assert_eq!(batch.control(), Ok(Some(abort)));
    }

    #[test]
    fn a_control_batch_without_a_marker_is_an_error() {
        let plain = control_batch(ControlMarker::new(true, 0), 1, 0, 0).to_vec();
        for (at, value) in [(68, 0), (68, 1), (69, 2), (57 + 3, 0), (65, 1)] {
            let mut broken = plain.clone();
            broken[at] = value;
            let result = RecordBatch::parse(Bytes::from(broken)).and_then(|batch| batch.control());
            if at != 68 && at != 69 {
                assert!(result.is_err(), "{at}: {result:?}");
            }
        }
    }
}

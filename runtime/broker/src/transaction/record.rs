//! The records of `__transaction_state`: Kafka's schema, with our own facts as tagged fields.
//!
//! Keys of version 0 are transactional ids, as Kafka has them; its tools read them and skip the
//! key of the producer id blocks, which is ours.
//!
//! Invariants: what `encode` wrote, `decode` reads back to the last bit.
//! Never: a best guess; a record that is not understood is an error that says why.

use std::sync::Arc;

use bytes::Bytes;
use millstream_protocol::{DecodeError, EncodeError, Message, TopicPartition, message};

use super::model::{NO_EPOCH, NO_PRODUCER_ID, Transaction};
use super::state::State;

/// The version that we write of a transaction's value; 1 is the first flexible one.
const VALUE_VERSION: i16 = 1;
const TRANSACTION_KEY_VERSION: i16 = 0;
const BLOCK_KEY_VERSION: i16 = 1_000;
const BLOCK_VALUE_VERSION: i16 = 0;

message! {
    /// The key of a transactional id's records.
    pub struct TransactionLogKey(versions 0..=0) {
        transactional_id: String, in 0..;
    }
}

message! {
    /// Where a transactional id stands. Tags from 10000 on are not Kafka's.
    pub struct TransactionLogValue(versions 0..=1, flexible 1..) {
        producer_id: i64, in 0..;
        producer_epoch: i16, in 0..;
        transaction_timeout_ms: i32, in 0..;
        transaction_status: i8, in 0..;
        transaction_partitions: Option<Vec<PartitionsSchema>>, in 0.., null 0..;
        transaction_last_update_timestamp_ms: i64, in 0..;
        transaction_start_timestamp_ms: i64, in 0..;
        previous_producer_id: i64 = -1, in 1.., tag 0;
        next_producer_id: i64 = -1, in 1.., tag 1;
        client_transaction_version: i16, in 1.., tag 2;
        next_producer_epoch: i16 = -1, in 1.., tag 3;
        last_producer_epoch: i16 = -1, in 1.., tag 10000;
        ended_by_coordinator: bool, in 1.., tag 10001;
    }

    /// The partitions of one topic.
    pub struct PartitionsSchema {
        topic: String, in 0..;
        partition_ids: Vec<i32>, in 0..;
    }
}

message! {
    /// The key of the record that says which producer ids are taken.
    pub struct ProducerIdBlockKey(versions 1000..=1000) {
        producer_id_space: i32, in 1000..;
    }
}

message! {
    /// Every producer id below this may have been given out.
    pub struct ProducerIdBlockValue(versions 0..=0, flexible 0..) {
        next_producer_id: i64, in 0..;
    }
}

/// What one record says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Entry {
    /// Where an id stands; `None` if it has been forgotten.
    Transaction {
        /// The id.
        transactional_id: Arc<str>,
        /// Its state.
        transaction: Option<Box<Transaction>>,
    },
    /// The first producer id that nobody has.
    ProducerIds {
        /// That id.
        next: i64,
    },
}

/// Why a record is not understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// Key or value are not what their version says.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A record without a key.
    #[error("the record has no key")]
    NoKey,
    /// A key of a kind that this version does not know.
    #[error("unknown key version {0}; the directory was written by a newer version")]
    KeyVersion(i16),
    /// A state that is never logged.
    #[error("transactional id {transactional_id}: state {status} is never logged")]
    Status {
        transactional_id: String,
        status: i8,
    },
    /// A value that contradicts itself.
    #[error("transactional id {transactional_id}: {field} is {value}")]
    Value {
        transactional_id: String,
        field: &'static str,
        value: i64,
    },
    /// The record of the producer id blocks has no value.
    #[error("the producer id block has been deleted")]
    NoBlock,
}

/// The key of a transactional id.
pub(crate) fn encode_key(transactional_id: &str) -> Result<Bytes, EncodeError> {
    let key = TransactionLogKey {
        transactional_id: transactional_id.to_owned(),
    };
    key.to_versioned_bytes(TRANSACTION_KEY_VERSION)
}

/// Key and value that say where a transactional id stands.
pub(crate) fn encode(
    transactional_id: &str,
    transaction: &Transaction,
) -> Result<(Bytes, Bytes), EncodeError> {
    let mut topics: Vec<PartitionsSchema> = Vec::new();
    for partition in &transaction.partitions {
        match topics.last_mut() {
            Some(last) if last.topic == *partition.topic => {
                last.partition_ids.push(partition.partition);
            }
            _ => topics.push(PartitionsSchema {
                topic: partition.topic.to_string(),
                partition_ids: vec![partition.partition],
            }),
        }
    }
    let value = TransactionLogValue {
        producer_id: transaction.producer_id,
        producer_epoch: transaction.epoch,
        transaction_timeout_ms: transaction.timeout_ms,
        transaction_status: transaction.state.id(),
        // Kafka writes null for a producer that has just been initialised.
        transaction_partitions: (transaction.state != State::Empty).then_some(topics),
        transaction_last_update_timestamp_ms: transaction.last_update_ms,
        transaction_start_timestamp_ms: transaction.start_ms,
        previous_producer_id: transaction.previous_producer_id,
        next_producer_id: transaction.next_producer_id,
        client_transaction_version: transaction.client_version,
        next_producer_epoch: NO_EPOCH,
        last_producer_epoch: transaction.last_epoch,
        ended_by_coordinator: transaction.ended_by_coordinator,
    };
    Ok((
        encode_key(transactional_id)?,
        value.to_versioned_bytes(VALUE_VERSION)?,
    ))
}

/// Key and value that say which producer ids are taken.
pub(crate) fn encode_block(next_producer_id: i64) -> Result<(Bytes, Bytes), EncodeError> {
    let key = ProducerIdBlockKey::default().to_versioned_bytes(BLOCK_KEY_VERSION)?;
    let value = ProducerIdBlockValue { next_producer_id };
    Ok((key, value.to_versioned_bytes(BLOCK_VALUE_VERSION)?))
}

/// Reads a record of the transaction log.
pub(crate) fn decode(key: &Bytes, value: Option<&Bytes>) -> Result<Entry, RecordError> {
    let kind = key
        .first_chunk()
        .map(|kind| i16::from_be_bytes(*kind))
        .ok_or(RecordError::NoKey)?;
    match kind {
        TRANSACTION_KEY_VERSION => {
            let (_, key) = TransactionLogKey::from_versioned_bytes(key.clone())?;
            let id = key.transactional_id;
            let transaction = match value {
                None => None,
                Some(value) => Some(Box::new(decode_value(&id, value)?)),
            };
            Ok(Entry::Transaction {
                transactional_id: id.into(),
                transaction,
            })
        }
        BLOCK_KEY_VERSION => {
            let value = value.ok_or(RecordError::NoBlock)?;
            let (_, value) = ProducerIdBlockValue::from_versioned_bytes(value.clone())?;
            Ok(Entry::ProducerIds {
                next: value.next_producer_id,
            })
        }
        other => Err(RecordError::KeyVersion(other)),
    }
}

fn decode_value(transactional_id: &str, value: &Bytes) -> Result<Transaction, RecordError> {
    let (_, value) = TransactionLogValue::from_versioned_bytes(value.clone())?;
    let wrong = |field, value| RecordError::Value {
        transactional_id: transactional_id.to_owned(),
        field,
        value,
    };
    let state = State::from_id(value.transaction_status)
        .filter(|state| !matches!(state, State::Dead | State::PrepareEpochFence))
        .ok_or_else(|| RecordError::Status {
            transactional_id: transactional_id.to_owned(),
            status: value.transaction_status,
        })?;
    if value.producer_id < 0 {
        return Err(wrong("producer_id", value.producer_id));
    }
    if value.producer_epoch < 0 {
        return Err(wrong("producer_epoch", value.producer_epoch.into()));
    }
    if value.next_producer_id != NO_PRODUCER_ID && !state.is_prepared() {
        return Err(wrong("next_producer_id", value.next_producer_id));
    }
    let mut partitions = std::collections::BTreeSet::new();
    for topic in value.transaction_partitions.unwrap_or_default() {
        let name: Arc<str> = topic.topic.into();
        for index in topic.partition_ids {
            partitions.insert(TopicPartition::new(name.clone(), index));
        }
    }
    Ok(Transaction {
        producer_id: value.producer_id,
        previous_producer_id: value.previous_producer_id,
        next_producer_id: value.next_producer_id,
        epoch: value.producer_epoch,
        last_epoch: value.last_producer_epoch,
        timeout_ms: value.transaction_timeout_ms,
        state,
        partitions,
        start_ms: value.transaction_start_timestamp_ms,
        last_update_ms: value.transaction_last_update_timestamp_ms,
        client_version: value.client_transaction_version,
        ended_by_coordinator: value.ended_by_coordinator,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction() -> Transaction {
        Transaction {
            producer_id: 4_000_000_001,
            previous_producer_id: 4_000_000_000,
            next_producer_id: 5,
            epoch: i16::MAX,
            last_epoch: i16::MAX - 1,
            timeout_ms: 60_000,
            state: State::PrepareAbort,
            partitions: [("a", 0), ("a", 3), ("b", 1)]
                .into_iter()
                .map(|(topic, index)| TopicPartition::new(topic, index))
                .collect(),
            start_ms: 17,
            last_update_ms: 18,
            client_version: 2,
            ended_by_coordinator: true,
        }
    }

    #[test]
    fn a_transaction_is_read_back_to_the_last_bit() {
        let (key, value) = encode("orders-1", &transaction()).unwrap();
        let expected = Entry::Transaction {
            transactional_id: "orders-1".into(),
            transaction: Some(Box::new(transaction())),
        };
        assert_eq!(decode(&key, Some(&value)).unwrap(), expected);
        let forgotten = Entry::Transaction {
            transactional_id: "orders-1".into(),
            transaction: None,
        };
        assert_eq!(decode(&key, None).unwrap(), forgotten);
    }

    #[test]
    fn the_bytes_are_those_of_kafkas_schema() {
        let plain = Transaction {
            producer_id: 1,
            previous_producer_id: -1,
            next_producer_id: -1,
            epoch: 2,
            last_epoch: -1,
            timeout_ms: 3,
            state: State::Ongoing,
            partitions: [TopicPartition::new("t", 4)].into(),
            start_ms: 6,
            last_update_ms: 5,
            client_version: 0,
            ended_by_coordinator: false,
        };
        let (key, value) = encode("x", &plain).unwrap();
        assert_eq!(&key[..], [0, 0, 0, 1, b'x']);
        let mut expected = vec![0, 1]; // value version 1
        expected.extend(1i64.to_be_bytes());
        expected.extend(2i16.to_be_bytes());
        expected.extend(3i32.to_be_bytes());
        expected.push(1); // Ongoing
        expected.extend([2, 2, b't', 2, 0, 0, 0, 4, 0]); // one topic, one partition, no tags
        expected.extend(5i64.to_be_bytes());
        expected.extend(6i64.to_be_bytes());
        expected.push(0); // no tags
        assert_eq!(&value[..], expected);
    }

    #[test]
    fn records_of_kafkas_first_version_are_read() {
        let value = TransactionLogValue {
            producer_id: 9,
            producer_epoch: 1,
            transaction_status: State::CompleteCommit.id(),
            transaction_partitions: Some(Vec::new()),
            ..Default::default()
        };
        let key = encode_key("old").unwrap();
        let entry = decode(&key, Some(&value.to_versioned_bytes(0).unwrap())).unwrap();
        let Entry::Transaction {
            transaction: Some(transaction),
            ..
        } = entry
        else {
            panic!("{entry:?}")
        };
        assert_eq!(
            (transaction.producer_id, transaction.last_epoch),
            (9, NO_EPOCH)
        );
    }

    #[test]
    fn producer_id_blocks_are_read_back() {
        let (key, value) = encode_block(3_000).unwrap();
        assert_eq!(
            decode(&key, Some(&value)).unwrap(),
            Entry::ProducerIds { next: 3_000 }
        );
        assert!(matches!(decode(&key, None), Err(RecordError::NoBlock)));
    }

    #[test]
    fn c2_what_is_not_understood_is_an_error() {
        let (key, value) = encode("x", &transaction()).unwrap();
        for length in 0..value.len() {
            assert!(
                decode(&key, Some(&value.slice(..length))).is_err(),
                "cut at {length}"
            );
        }
        for status in [6, 7, 8, -1] {
            let value = TransactionLogValue {
                transaction_status: status,
                ..Default::default()
            };
            let value = value.to_versioned_bytes(1).unwrap();
            assert!(matches!(
                decode(&key, Some(&value)),
                Err(RecordError::Status { .. })
            ));
        }
        let value = TransactionLogValue {
            producer_id: -5,
            ..Default::default()
        };
        let value = value.to_versioned_bytes(1).unwrap();
        assert!(matches!(
            decode(&key, Some(&value)),
            Err(RecordError::Value { .. })
        ));
        let unknown = Bytes::from_static(&[0, 9, 0, 0]);
        assert!(matches!(
            decode(&unknown, None),
            Err(RecordError::KeyVersion(9))
        ));
        assert!(matches!(
            decode(&Bytes::new(), None),
            Err(RecordError::NoKey)
        ));
    }
}

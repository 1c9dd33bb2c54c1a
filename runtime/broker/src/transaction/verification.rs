//! Whether data may go into a transaction: the gate that Produce and TxnOffsetCommit pass.
//!
//! Clients of transaction version 2 add their partitions by writing to them; the data of older
//! ones is checked against what they have added. The append belongs inside `within_transaction`:
//! it runs under the id's lock, so no marker can come between the check and the data.
//!
//! Invariants: a partition that is in the open transaction costs no append and no await.
//! Never: lets data of an older epoch, or of a transaction that has ended, through.

use millstream_protocol::{ErrorCode, TopicPartition};

use super::coordinator::{Coordinator, Held, Slot};
use super::machine::Event;
use super::model::{CURRENT_VERSION, Identity};

/// What the gate does about a partition that is not in the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Refuses it: clients before version 2 have to add it themselves.
    Verify,
    /// Adds it.
    Add,
}

impl Coordinator {
    /// Checks, or adds, partitions of a producer's open transaction.
    ///
    /// What is true when this returns may have changed a moment later: data goes through
    /// [`Coordinator::within_transaction`].
    pub(crate) fn verify_or_add(
        &self,
        transactional_id: &str,
        producer_id: i64,
        epoch: i16,
        partitions: &[TopicPartition],
        mode: Mode,
    ) -> Result<(), ErrorCode> {
        self.within_transaction(
            transactional_id,
            producer_id,
            epoch,
            partitions,
            mode,
            || (),
        )
    }

    /// Checks, or adds, partitions, and runs `append` before anything else can happen to the
    /// transaction. `append` must not wait and must not come back to this coordinator.
    pub(crate) fn within_transaction<T>(
        &self,
        transactional_id: &str,
        producer_id: i64,
        epoch: i16,
        partitions: &[TopicPartition],
        mode: Mode,
        append: impl FnOnce() -> T,
    ) -> Result<T, ErrorCode> {
        if mode == Mode::Verify && !self.verification_enabled {
            return Ok(append());
        }
        let producer = Identity {
            id: producer_id,
            epoch,
        };
        loop {
            let slot = self
                .slot(transactional_id)
                .ok_or(ErrorCode::INVALID_PRODUCER_ID_MAPPING)?;
            let mut held = slot.lock();
            if !held.left {
                self.admit(&slot, &mut held, producer, partitions, mode)?;
                return Ok(append());
            }
        }
    }

    fn admit(
        &self,
        slot: &Slot,
        held: &mut Held,
        producer: Identity,
        partitions: &[TopicPartition],
        mode: Mode,
    ) -> Result<(), ErrorCode> {
        let machine = held
            .machine
            .as_ref()
            .ok_or(ErrorCode::INVALID_PRODUCER_ID_MAPPING)?;
        let rotated_away = machine.transaction().previous_producer_id == producer.id;
        let error = match (machine.verify(producer, partitions), mode) {
            (ErrorCode::NONE, _) => return Ok(()),
            (ErrorCode::TRANSACTION_ABORTABLE, Mode::Add) => {
                let client_version = CURRENT_VERSION;
                let event = Event::AddPartitions {
                    producer,
                    partitions,
                    client_version,
                };
                return self.step(slot, held, event)?.result();
            }
            // The same producer before its epochs ran out: an old epoch, not a stranger.
            (ErrorCode::INVALID_PRODUCER_ID_MAPPING, _) if rotated_away => {
                ErrorCode::PRODUCER_FENCED
            }
            (error, _) => error,
        };
        Err(error)
    }
}

/// How Produce of this version passes the gate.
pub(crate) fn produce_mode(api_version: i16) -> Mode {
    if api_version >= 12 {
        Mode::Add
    } else {
        Mode::Verify
    }
}

/// How TxnOffsetCommit of this version passes the gate.
pub(crate) fn offset_commit_mode(api_version: i16) -> Mode {
    if api_version >= 5 {
        Mode::Add
    } else {
        Mode::Verify
    }
}

/// What a Produce of this version hears when the gate stays closed.
pub(crate) fn produce_error(error: ErrorCode, api_version: i16) -> ErrorCode {
    match error {
        // 90 ends a producer's life; after 47 it can abort, initialise and go on.
        ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
        ErrorCode::TRANSACTION_ABORTABLE if api_version < 11 => ErrorCode::INVALID_TXN_STATE,
        // Not every client retries a Produce on a coordinator's error.
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
        | ErrorCode::COORDINATOR_NOT_AVAILABLE
        | ErrorCode::NOT_COORDINATOR => ErrorCode::NOT_ENOUGH_REPLICAS,
        ErrorCode::CONCURRENT_TRANSACTIONS if api_version < 12 => ErrorCode::NOT_ENOUGH_REPLICAS,
        other => other,
    }
}

/// What a TxnOffsetCommit of this version hears when the gate stays closed.
pub(crate) fn offset_commit_error(error: ErrorCode, api_version: i16) -> ErrorCode {
    match error {
        ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
        ErrorCode::TRANSACTION_ABORTABLE if api_version < 4 => ErrorCode::INVALID_TXN_STATE,
        ErrorCode::CONCURRENT_TRANSACTIONS if api_version < 5 => {
            ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn produce_hears_what_its_version_understands() {
        use ErrorCode as E;
        for (error, v10, v11, v12) in [
            (
                E::TRANSACTION_ABORTABLE,
                E::INVALID_TXN_STATE,
                E::TRANSACTION_ABORTABLE,
                E::TRANSACTION_ABORTABLE,
            ),
            (
                E::PRODUCER_FENCED,
                E::INVALID_PRODUCER_EPOCH,
                E::INVALID_PRODUCER_EPOCH,
                E::INVALID_PRODUCER_EPOCH,
            ),
            (
                E::CONCURRENT_TRANSACTIONS,
                E::NOT_ENOUGH_REPLICAS,
                E::NOT_ENOUGH_REPLICAS,
                E::CONCURRENT_TRANSACTIONS,
            ),
            (
                E::NOT_COORDINATOR,
                E::NOT_ENOUGH_REPLICAS,
                E::NOT_ENOUGH_REPLICAS,
                E::NOT_ENOUGH_REPLICAS,
            ),
        ] {
            assert_eq!(produce_error(error, 10), v10, "{error}");
            assert_eq!(produce_error(error, 11), v11, "{error}");
            assert_eq!(produce_error(error, 12), v12, "{error}");
        }
        let unknown = E::INVALID_PRODUCER_ID_MAPPING;
        assert_eq!(produce_error(unknown, 12), unknown);
        assert_eq!(
            (produce_mode(11), produce_mode(12)),
            (Mode::Verify, Mode::Add)
        );
    }

    #[test]
    fn offset_commits_hear_what_their_version_understands() {
        use ErrorCode as E;
        let abortable = E::TRANSACTION_ABORTABLE;
        assert_eq!(offset_commit_error(abortable, 3), E::INVALID_TXN_STATE);
        assert_eq!(offset_commit_error(abortable, 4), abortable);
        let concurrent = E::CONCURRENT_TRANSACTIONS;
        assert_eq!(
            offset_commit_error(concurrent, 4),
            E::COORDINATOR_LOAD_IN_PROGRESS
        );
        assert_eq!(offset_commit_error(concurrent, 5), concurrent);
        assert_eq!(
            (offset_commit_mode(4), offset_commit_mode(5)),
            (Mode::Verify, Mode::Add)
        );
    }
}

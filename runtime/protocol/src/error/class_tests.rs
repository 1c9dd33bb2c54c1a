//! The table of error classes, against what Kafka's own clients do.
//!
//! Never: repeats the table; each test names a situation and the way out of it.

use super::ErrorClass::{
    AbortTransaction, Ambiguous, BumpEpoch, Fatal, Fenced, Reject, Rejoin, ResetPosition, Retry,
};
use super::ErrorContext::{Idempotent, Plain, Transactional};
use super::{ErrorClass, ErrorCode as E, class};
use crate::api::ApiKey;

const CONTEXTS: [super::ErrorContext; 3] = [Plain, Idempotent, Transactional];

/// Asserts a class in every context.
fn always(apis: &[ApiKey], codes: &[E], expected: ErrorClass) {
    for &api in apis {
        for &code in codes {
            for context in CONTEXTS {
                assert_eq!(
                    class(api, code, context),
                    expected,
                    "{api} {code} {context:?}"
                );
            }
        }
    }
}

#[test]
fn a_broken_sequence_bumps_the_epoch_or_aborts_the_transaction() {
    for code in [E::OUT_OF_ORDER_SEQUENCE_NUMBER, E::UNKNOWN_PRODUCER_ID] {
        assert_eq!(class(ApiKey::Produce, code, Idempotent), BumpEpoch);
        assert_eq!(
            class(ApiKey::Produce, code, Transactional),
            AbortTransaction
        );
        assert_eq!(class(ApiKey::Produce, code, Plain), Fatal);
    }
}

#[test]
fn an_old_epoch_is_final_only_where_the_coordinator_says_so() {
    let code = E::INVALID_PRODUCER_EPOCH;
    assert_eq!(class(ApiKey::Produce, code, Idempotent), BumpEpoch);
    assert_eq!(
        class(ApiKey::Produce, code, Transactional),
        AbortTransaction
    );
    let coordinator = [
        ApiKey::InitProducerId,
        ApiKey::AddPartitionsToTxn,
        ApiKey::AddOffsetsToTxn,
        ApiKey::TxnOffsetCommit,
        ApiKey::EndTxn,
    ];
    always(&coordinator, &[code, E::PRODUCER_FENCED], Fenced);
    always(
        ApiKey::ALL,
        &[E::PRODUCER_FENCED, E::FENCED_INSTANCE_ID],
        Fenced,
    );
}

#[test]
fn an_unfinished_end_of_a_transaction_is_ambiguous() {
    let codes = [
        E::REQUEST_TIMED_OUT,
        E::NETWORK_EXCEPTION,
        E::UNKNOWN_SERVER_ERROR,
    ];
    always(&[ApiKey::EndTxn, ApiKey::InitProducerId], &codes, Ambiguous);
    always(
        &[ApiKey::Produce, ApiKey::AddPartitionsToTxn],
        &[E::REQUEST_TIMED_OUT],
        Retry,
    );
}

#[test]
fn a_transaction_in_trouble_is_aborted_and_its_producer_lives() {
    always(ApiKey::ALL, &[E::TRANSACTION_ABORTABLE], AbortTransaction);
    let codes = [
        E::TOPIC_AUTHORIZATION_FAILED,
        E::OPERATION_NOT_ATTEMPTED,
        E::UNKNOWN_PRODUCER_ID,
    ];
    always(&[ApiKey::AddPartitionsToTxn], &codes, AbortTransaction);
    assert_eq!(
        class(ApiKey::Produce, E::INVALID_TXN_STATE, Transactional),
        AbortTransaction
    );
}

#[test]
fn a_transactional_id_that_was_forgotten_ends_the_transaction_and_not_the_producer() {
    let forgotten = E::INVALID_PRODUCER_ID_MAPPING;
    let asked = [
        ApiKey::AddPartitionsToTxn,
        ApiKey::AddOffsetsToTxn,
        ApiKey::TxnOffsetCommit,
        ApiKey::EndTxn,
    ];
    always(&asked, &[forgotten], AbortTransaction);
    for code in [forgotten, E::UNKNOWN_SERVER_ERROR] {
        assert_eq!(
            class(ApiKey::Produce, code, Transactional),
            AbortTransaction
        );
    }
    always(&[ApiKey::InitProducerId], &[forgotten], Fatal);
}

#[test]
fn what_no_retry_and_no_abort_can_mend_is_fatal() {
    let codes = [
        E::INVALID_TXN_STATE,
        E::TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        E::INVALID_TRANSACTION_TIMEOUT,
    ];
    always(
        &[
            ApiKey::EndTxn,
            ApiKey::InitProducerId,
            ApiKey::AddOffsetsToTxn,
        ],
        &codes,
        Fatal,
    );
    always(
        &[ApiKey::Produce],
        &[E::CLUSTER_AUTHORIZATION_FAILED],
        Fatal,
    );
    always(
        &[ApiKey::Fetch],
        &[E::CORRUPT_MESSAGE, E::TOPIC_AUTHORIZATION_FAILED],
        Fatal,
    );
    always(ApiKey::ALL, &[E(9999), E::NONE], Fatal);
}

#[test]
fn a_lost_membership_rejoins_and_in_a_transaction_aborts() {
    let codes = [
        E::UNKNOWN_MEMBER_ID,
        E::ILLEGAL_GENERATION,
        E::REBALANCE_IN_PROGRESS,
    ];
    let membership = [
        ApiKey::JoinGroup,
        ApiKey::SyncGroup,
        ApiKey::Heartbeat,
        ApiKey::OffsetCommit,
    ];
    always(&membership, &codes, Rejoin);
    always(&[ApiKey::TxnOffsetCommit], &codes, AbortTransaction);
    always(&[ApiKey::JoinGroup], &[E::MEMBER_ID_REQUIRED], Rejoin);
}

#[test]
fn a_coordinator_that_moved_is_looked_up_and_one_that_loads_is_awaited() {
    let moved = [E::NOT_COORDINATOR, E::COORDINATOR_NOT_AVAILABLE];
    let asked = [
        ApiKey::EndTxn,
        ApiKey::JoinGroup,
        ApiKey::OffsetFetch,
        ApiKey::TxnOffsetCommit,
    ];
    always(&asked, &moved, ErrorClass::FindCoordinator);
    always(&[ApiKey::FindCoordinator, ApiKey::Produce], &moved, Retry);
    let waits = [E::COORDINATOR_LOAD_IN_PROGRESS, E::CONCURRENT_TRANSACTIONS];
    always(ApiKey::ALL, &waits, Retry);
    always(&[ApiKey::OffsetFetch], &[E::UNSTABLE_OFFSET_COMMIT], Retry);
}

#[test]
fn a_leader_that_moved_is_looked_up() {
    let codes = [
        E::NOT_LEADER_OR_FOLLOWER,
        E::FENCED_LEADER_EPOCH,
        E::UNKNOWN_TOPIC_OR_PARTITION,
        E::UNKNOWN_TOPIC_ID,
        E::KAFKA_STORAGE_ERROR,
    ];
    let apis = [
        ApiKey::Produce,
        ApiKey::Fetch,
        ApiKey::ListOffsets,
        ApiKey::OffsetForLeaderEpoch,
    ];
    always(&apis, &codes, ErrorClass::RefreshMetadata);
    always(
        &[ApiKey::OffsetCommit],
        &[E::UNKNOWN_TOPIC_OR_PARTITION],
        Retry,
    );
}

#[test]
fn a_position_outside_the_log_is_reset() {
    always(&[ApiKey::Fetch], &[E::OFFSET_OUT_OF_RANGE], ResetPosition);
    always(&[ApiKey::DeleteRecords], &[E::OFFSET_OUT_OF_RANGE], Reject);
}

#[test]
fn a_refused_record_does_not_stop_the_others() {
    let codes = [
        E::MESSAGE_TOO_LARGE,
        E::INVALID_RECORD,
        E::INVALID_TIMESTAMP,
    ];
    always(&[ApiKey::Produce], &codes, Reject);
    always(
        &[ApiKey::CreateTopics],
        &[E::TOPIC_ALREADY_EXISTS, E::INVALID_CONFIG],
        Reject,
    );
}

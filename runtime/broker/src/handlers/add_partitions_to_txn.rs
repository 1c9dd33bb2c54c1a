//! AddPartitionsToTxn 0–5: partitions join a transaction, or are checked to be in it.
//!
//! Versions up to 3 are those of clients before transaction version 2. Later ones are what brokers
//! send each other; they are served so that tools and tests can ask.
//!
//! Invariants: all partitions of a transaction are added, or none.
//! Never: adds a partition that does not exist.

use std::sync::Arc;

use millstream_protocol::messages::add_partitions_to_txn::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult, AddPartitionsToTxnTransaction,
};
use millstream_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};
use millstream_protocol::{ErrorCode, TopicPartition};

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::transaction::{CURRENT_VERSION, Identity, Mode};

/// The first version in which one request carries several transactions.
const BATCHED_VERSION: i16 = 4;
/// The first version that stands for transaction version 2.
const CURRENT_TRANSACTION_VERSION: i16 = 5;
/// The first version whose clients know PRODUCER_FENCED.
const FENCED_VERSION: i16 = 2;

/// Adds or checks every transaction's partitions.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    if context.api_version < BATCHED_VERSION {
        let transaction = AddPartitionsToTxnTransaction {
            transactional_id: request.v3_and_below_transactional_id,
            producer_id: request.v3_and_below_producer_id,
            producer_epoch: request.v3_and_below_producer_epoch,
            verify_only: false,
            topics: request.v3_and_below_topics,
        };
        return AddPartitionsToTxnResponse {
            results_by_topic_v3_and_below: add(node, context, &transaction).await,
            ..Default::default()
        };
    }
    let mut results_by_transaction = Vec::with_capacity(request.transactions.len());
    for transaction in request.transactions {
        let topic_results = if transaction.verify_only {
            verify(node, &transaction)
        } else {
            add(node, context, &transaction).await
        };
        results_by_transaction.push(AddPartitionsToTxnResult {
            transactional_id: transaction.transactional_id,
            topic_results,
        });
    }
    AddPartitionsToTxnResponse {
        results_by_transaction,
        ..Default::default()
    }
}

async fn add(
    node: &Arc<Node>,
    context: &RequestContext,
    transaction: &AddPartitionsToTxnTransaction,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let exists = |topic: &str, index| node.partition(topic, index).is_some();
    let partitions = partitions_of(&transaction.topics);
    if !partitions
        .iter()
        .all(|partition| exists(&partition.topic, partition.partition))
    {
        return results(&transaction.topics, |topic, index| {
            if exists(topic, index) {
                ErrorCode::OPERATION_NOT_ATTEMPTED
            } else {
                ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
            }
        });
    }
    let current = context.api_version >= CURRENT_TRANSACTION_VERSION;
    let error = node
        .transactions
        .add_partitions(
            node,
            &transaction.transactional_id,
            producer_of(transaction),
            &partitions,
            if current { CURRENT_VERSION } else { 0 },
            || context.release_turn(),
        )
        .await;
    let older = context.api_version < FENCED_VERSION && error == ErrorCode::PRODUCER_FENCED;
    let error = if older {
        ErrorCode::INVALID_PRODUCER_EPOCH
    } else {
        error
    };
    results(&transaction.topics, |_, _| error)
}

fn verify(
    node: &Arc<Node>,
    transaction: &AddPartitionsToTxnTransaction,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let Identity { id, epoch } = producer_of(transaction);
    let transactional_id = &transaction.transactional_id;
    let mut errors = Vec::new();
    for partition in partitions_of(&transaction.topics) {
        let partition = [partition];
        let verified =
            node.transactions
                .verify_or_add(transactional_id, id, epoch, &partition, Mode::Verify);
        errors.push(verified.err().unwrap_or(ErrorCode::NONE));
    }
    let mut errors = errors.into_iter();
    results(&transaction.topics, |_, _| {
        errors.next().unwrap_or(ErrorCode::NONE)
    })
}

fn producer_of(transaction: &AddPartitionsToTxnTransaction) -> Identity {
    Identity {
        id: transaction.producer_id,
        epoch: transaction.producer_epoch,
    }
}

fn partitions_of(topics: &[AddPartitionsToTxnTopic]) -> Vec<TopicPartition> {
    let mut partitions = Vec::new();
    for topic in topics {
        let name: Arc<str> = topic.name.as_str().into();
        let of_topic = topic.partitions.iter();
        partitions.extend(of_topic.map(|index| TopicPartition::new(name.clone(), *index)));
    }
    partitions
}

fn results(
    topics: &[AddPartitionsToTxnTopic],
    mut error: impl FnMut(&str, i32) -> ErrorCode,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let result = |topic: &AddPartitionsToTxnTopic| AddPartitionsToTxnTopicResult {
        name: topic.name.clone(),
        results_by_partition: topic
            .partitions
            .iter()
            .map(|index| AddPartitionsToTxnPartitionResult {
                partition_index: *index,
                partition_error_code: error(&topic.name, *index),
            })
            .collect(),
    };
    topics.iter().map(result).collect()
}

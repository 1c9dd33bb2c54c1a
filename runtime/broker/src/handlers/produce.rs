//! Produce 3–13: the stage `append`.
//!
//! ```text
//! check ─▶ verify or add to the transaction ─▶ append each partition ─▶ turn released ─▶ durable
//! ─▶ answer
//! ```
//!
//! Deviations: acks 1 waits for durability as acks -1 does. A topic is created by Metadata, not
//! here.
//!
//! Invariants: one wait for durability a request, after all its appends.
//! Invariants: the next request of the connection begins after the appends, so sequences arrive in
//! order.
//! Never: copies record data.

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::partition::Partition;
use crate::topics::{TopicEntry, is_internal};
use crate::transaction::VerifyMode;
use crate::verification::Guard;
use bytes::Bytes;
use millstream_log::{AppendOrigin, Appended};
use millstream_protocol::messages::produce::{
    PartitionProduceData, PartitionProduceResponse, TopicProduceData, TopicProduceResponse,
};
use millstream_protocol::messages::{ProduceRequest, ProduceResponse};
use millstream_protocol::{ErrorCode, ProducerStamp, RecordBatch};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The first version whose clients leave adding partitions to the broker (transaction version 2).
const IMPLICIT_ADD_VERSION: i16 = 12;
/// The first version whose clients know TRANSACTION_ABORTABLE.
const ABORTABLE_VERSION: i16 = 11;
/// How often, and for how long, an implicit add is tried again while the transaction before it
/// ends.
const ADD_RETRY: Duration = Duration::from_millis(20);
const ADD_RETRIES: u32 = 5;

/// One partition's part of the request on its way to the log.
struct Item {
    partition: Arc<Partition>,
    batch: Bytes,
    stamp: ProducerStamp,
    guard: Option<Guard>,
}

/// Appends every partition's batch and answers when all are durable.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: ProduceRequest,
) -> ProduceResponse {
    if request.acks == 0 {
        context.answer_nothing();
    }
    let by_id = context.api_version >= 13;
    let mut items = Vec::with_capacity(request.topic_data.len());
    let mut responses = Vec::with_capacity(request.topic_data.len());
    for topic in request.topic_data {
        let entry = if matches!(request.acks, -1..=1) {
            find_topic(node, &topic, by_id)
        } else {
            Err(ErrorCode::INVALID_REQUIRED_ACKS)
        };
        let TopicProduceData {
            name,
            topic_id,
            partition_data,
        } = topic;
        let mut partition_responses = Vec::with_capacity(partition_data.len());
        for data in partition_data {
            let index = data.index;
            let item = match &entry {
                Ok(entry) => prepare(entry, data),
                Err(code) => Err(*code),
            };
            partition_responses.push(match &item {
                Ok(_) => PartitionProduceResponse {
                    index,
                    ..Default::default()
                },
                Err(code) => failed(index, *code),
            });
            items.push(item);
        }
        responses.push(TopicProduceResponse {
            name,
            topic_id,
            partition_responses,
        });
    }
    verify(
        node,
        context,
        request.transactional_id.as_deref(),
        &mut items,
    )
    .await;

    let mut position = 0;
    let answers = responses
        .iter_mut()
        .flat_map(|topic| &mut topic.partition_responses);
    for (answer, item) in answers.zip(items) {
        match item.and_then(|item| append(item, context.api_version)) {
            Ok(appended) => {
                position = position.max(appended.journal_position);
                answer.base_offset = appended.base_offset;
                answer.log_append_time_ms = appended.log_append_time_ms;
                answer.log_start_offset = appended.log_start_offset;
            }
            Err(code) => *answer = failed(answer.index, code),
        }
    }
    context.release_turn();
    let mut response = ProduceResponse {
        responses,
        ..Default::default()
    };
    if request.acks != 0 {
        await_durable(node, position, request.timeout_ms, &mut response).await;
    } else if !all_answers(&mut response).all(|answer| answer.error_code.is_ok()) {
        // The only way to tell a client that asked for no answers.
        context.close_connection();
    }
    response
}

fn find_topic(
    node: &Node,
    topic: &TopicProduceData,
    by_id: bool,
) -> Result<Arc<TopicEntry>, ErrorCode> {
    let entry = if by_id {
        node.partitions
            .topic_by_id(topic.topic_id)
            .ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?
    } else {
        let found = node.partitions.topic(&topic.name);
        found.ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?
    };
    if is_internal(&entry.name) {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION);
    }
    Ok(entry)
}

/// Finds the partition and reads the batch's header. The log checks the rest.
fn prepare(entry: &TopicEntry, data: PartitionProduceData) -> Result<Item, ErrorCode> {
    let partition = entry
        .partition(data.index)
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?
        .clone();
    let batch = data.records.filter(|records| !records.is_empty());
    let batch = batch.ok_or(ErrorCode::INVALID_RECORD)?;
    let stamp = RecordBatch::parse(batch.clone())
        .map_err(|_| ErrorCode::CORRUPT_MESSAGE)?
        .stamp();
    Ok(Item {
        partition,
        batch,
        stamp,
        guard: None,
    })
}

/// Makes sure that the coordinator knows the partitions in which this request opens a transaction.
async fn verify(
    node: &Arc<Node>,
    context: &RequestContext,
    transactional_id: Option<&str>,
    items: &mut [Result<Item, ErrorCode>],
) {
    let mut producer = None;
    let mut topic_partitions = Vec::new();
    let mut refused = None;
    for item in items
        .iter_mut()
        .flatten()
        .filter(|item| item.stamp.transactional)
    {
        let id = (item.stamp.producer_id, item.stamp.producer_epoch);
        if *producer.get_or_insert(id) != id {
            refused = Some(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
        }
        item.guard = item.partition.begin_verification(item.stamp);
        if item.guard.is_some() {
            topic_partitions.push(item.partition.name().clone());
        }
    }
    let Some((producer_id, epoch)) = producer else {
        return;
    };
    let Some(transactional_id) = transactional_id else {
        return refuse(
            items,
            ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            |_| true,
        );
    };
    if let Some(code) = refused {
        return refuse(items, code, |_| true);
    }
    if topic_partitions.is_empty() {
        return;
    }
    let implicit = context.api_version >= IMPLICIT_ADD_VERSION;
    if !implicit && !node.config.transaction_partition_verification_enable {
        return;
    }
    let mode = if implicit {
        VerifyMode::Add
    } else {
        VerifyMode::Verify
    };
    let mut retries = if implicit { ADD_RETRIES } else { 0 };
    let verified = loop {
        let verified = node
            .transactions
            .verify_or_add(
                node,
                transactional_id,
                producer_id,
                epoch,
                &topic_partitions,
                mode,
            )
            .await;
        if verified != Err(ErrorCode::CONCURRENT_TRANSACTIONS) || retries == 0 {
            break verified;
        }
        retries -= 1;
        tokio::time::sleep(ADD_RETRY).await;
    };
    if let Err(code) = verified {
        refuse(items, to_produce_error(code, context.api_version), |item| {
            item.guard.is_some()
        });
    }
}

/// Turns the transactional items that `which` picks into errors.
fn refuse(items: &mut [Result<Item, ErrorCode>], code: ErrorCode, which: fn(&Item) -> bool) {
    for item in items {
        if item
            .as_ref()
            .is_ok_and(|item| item.stamp.transactional && which(item))
        {
            *item = Err(code);
        }
    }
}

/// What a coordinator's error is called in a Produce answer, so that clients of that version react
/// rightly.
fn to_produce_error(code: ErrorCode, version: i16) -> ErrorCode {
    match code {
        ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
        ErrorCode::INVALID_TXN_STATE | ErrorCode::TRANSACTION_ABORTABLE
            if version >= ABORTABLE_VERSION =>
        {
            ErrorCode::TRANSACTION_ABORTABLE
        }
        ErrorCode::TRANSACTION_ABORTABLE => ErrorCode::INVALID_TXN_STATE,
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
        | ErrorCode::COORDINATOR_NOT_AVAILABLE
        | ErrorCode::NOT_COORDINATOR => ErrorCode::NOT_ENOUGH_REPLICAS,
        ErrorCode::CONCURRENT_TRANSACTIONS if version < IMPLICIT_ADD_VERSION => {
            ErrorCode::NOT_ENOUGH_REPLICAS
        }
        other => other,
    }
}

fn append(item: Item, version: i16) -> Result<Appended, ErrorCode> {
    let Item {
        partition,
        batch,
        stamp,
        guard,
    } = item;
    let appended = if stamp.transactional {
        partition.append_verified(batch, stamp, guard)
    } else {
        partition.append(batch, AppendOrigin::Client)
    };
    appended.map_err(|error| {
        tracing::debug!(partition = %partition.name(), %error, "append refused");
        match error.error_code() {
            ErrorCode::INVALID_TXN_STATE => to_produce_error(error.error_code(), version),
            code => code,
        }
    })
}

/// Waits for all appends at once; if that fails or takes too long, none of them is acknowledged.
async fn await_durable(
    node: &Node,
    position: u64,
    timeout_ms: i32,
    response: &mut ProduceResponse,
) {
    let patience = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0).max(1));
    let code = match timeout(patience, node.durable(position)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.error_code(),
        Err(_) => ErrorCode::REQUEST_TIMED_OUT,
    };
    for answer in all_answers(response).filter(|answer| answer.error_code.is_ok()) {
        *answer = failed(answer.index, code);
    }
}

fn all_answers(
    response: &mut ProduceResponse,
) -> impl Iterator<Item = &mut PartitionProduceResponse> {
    response
        .responses
        .iter_mut()
        .flat_map(|topic| &mut topic.partition_responses)
}

fn failed(index: i32, error_code: ErrorCode) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        error_code,
        base_offset: -1,
        error_message: Some(error_code.description().to_owned()),
        ..Default::default()
    }
}

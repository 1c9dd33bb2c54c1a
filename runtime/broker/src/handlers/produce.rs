//! Produce 3–13: the stage `append`.
//!
//! ```text
//! check ─▶ [under the transaction's lock: verify or add] append each partition ─▶ turn released
//!                                                                       └─▶ durable ─▶ answer
//! ```
//!
//! Deviations: acks 1 waits for durability as acks -1 does. So does acks 0, unseen by the client,
//! to be held back when it sends more than the disk takes. A topic is created by Metadata, not
//! here.
//!
//! Invariants: one wait for durability a request, after all its appends.
//! Invariants: the next request of the connection begins after the appends, so sequences arrive in
//! order.
//! Never: copies record data, but for a batch that would keep a much larger frame in memory, or
//! whose topic wants another codec.

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::partition::{AppendFailure, Partition};
use crate::refused::Refused;
use crate::topics::{TopicEntry, is_internal};
use crate::transaction::{Mode, produce_error, produce_mode};
use bytes::Bytes;
use millstream_log::{AppendError, AppendOrigin, Appended, failpoint};
use millstream_protocol::messages::produce::{
    BatchIndexAndErrorMessage, PartitionProduceData, PartitionProduceResponse, TopicProduceData,
    TopicProduceResponse,
};
use millstream_protocol::messages::{ProduceRequest, ProduceResponse};
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatch};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How often, and how long apart, an implicit add is tried again while the transaction before it
/// ends.
const ADD_RETRIES: u32 = 5;
const ADD_RETRY: Duration = Duration::from_millis(20);

/// The first version whose batches may be of zstd.
const ZSTD_VERSION: i16 = 7;

/// A batch smaller than this is copied: that costs less than what a part of a frame holds on to.
const SMALL_BATCH_BYTES: usize = 4 << 10;
/// A batch that is a smaller part of its frame than this is copied.
const FRAME_PARTS_MAX: usize = 16;

/// One partition's part of the request on its way to the log.
struct Item {
    partition: Arc<Partition>,
    batch: Bytes,
    stamp: ProducerStamp,
}

type Outcome = Result<Appended, Failure>;

/// Why a batch was not appended, and for which of its records that is.
struct Failure {
    refused: Refused,
    /// Places in the batch; none where it is not about single records.
    records: Vec<i32>,
    /// What is wrong with each of these.
    reason: &'static str,
}

impl<R: Into<Refused>> From<R> for Failure {
    fn from(refused: R) -> Self {
        Failure {
            refused: refused.into(),
            records: Vec::new(),
            reason: "",
        }
    }
}

/// Appends every partition's batch and answers when all are durable.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: ProduceRequest,
) -> ProduceResponse {
    let ProduceRequest {
        transactional_id,
        acks,
        timeout_ms,
        topic_data,
    } = request;
    if acks == 0 {
        context.answer_nothing();
    }
    let mut items = Vec::with_capacity(topic_data.len());
    let mut responses = Vec::with_capacity(topic_data.len());
    for topic in topic_data {
        let entry = if matches!(acks, -1..=1) {
            find_topic(node, &topic, context.api_version)
        } else {
            Err(ErrorCode::INVALID_REQUIRED_ACKS)
        };
        let codec = entry.as_ref().map_or(None, |entry| codec_of(node, entry));
        let mut partition_responses = Vec::with_capacity(topic.partition_data.len());
        for data in topic.partition_data {
            partition_responses.push(PartitionProduceResponse {
                index: data.index,
                ..Default::default()
            });
            items.push(
                entry
                    .as_deref()
                    .map_err(|code| *code)
                    .and_then(|entry| prepare(node, context, entry, codec, data)),
            );
        }
        responses.push(TopicProduceResponse {
            name: topic.name,
            topic_id: topic.topic_id,
            partition_responses,
        });
    }
    let outcomes = append_all(
        node,
        context.api_version,
        transactional_id.as_deref(),
        items,
    )
    .await;
    context.release_turn();

    let mut response = ProduceResponse {
        responses,
        ..Default::default()
    };
    let position = fill(&mut response, outcomes);
    if acks != 0 {
        await_durable(node, position, timeout_ms, &mut response).await;
    } else if !answers(&mut response).all(|answer| answer.error_code.is_ok())
        || node.durable(position).await.is_err()
    {
        // The only way to tell a client that asked for no answers.
        context.close_connection();
    }
    response
}

fn find_topic(
    node: &Node,
    topic: &TopicProduceData,
    version: i16,
) -> Result<Arc<TopicEntry>, ErrorCode> {
    let entry = if version >= 13 {
        let found = node.partitions.topic_by_id(topic.topic_id);
        found.ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?
    } else {
        let found = node.partitions.topic(&topic.name);
        found.ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?
    };
    if is_internal(&entry.name) {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION);
    }
    Ok(entry)
}

/// The codec that a topic wants its batches in; `None` for that of each batch.
fn codec_of(node: &Node, entry: &TopicEntry) -> Option<Compression> {
    const NAME: &str = "compression.type";
    let own = entry.configs.get(NAME).cloned();
    match own.or_else(|| node.layers().first(NAME))?.as_str() {
        "uncompressed" => Some(Compression::None),
        "gzip" => Some(Compression::Gzip),
        "snappy" => Some(Compression::Snappy),
        "lz4" => Some(Compression::Lz4),
        "zstd" => Some(Compression::Zstd),
        _ => None,
    }
}

/// The batch under another codec. Damage is found here: the new checksum would hide it.
fn recompressed(node: &Node, batch: &RecordBatch, codec: Compression) -> Result<Bytes, ErrorCode> {
    let checked = batch.verify_crc().and_then(|()| {
        let plain_bytes_max = node.config.decompressed_batch_bytes_max;
        batch.recompressed(codec, plain_bytes_max)
    });
    checked.map_err(|error| millstream_log::AppendError::from(error).error_code())
}

/// Finds the partition and reads the batch's header. The log checks the rest.
fn prepare(
    node: &Node,
    context: &RequestContext,
    entry: &TopicEntry,
    codec: Option<Compression>,
    data: PartitionProduceData,
) -> Result<Item, ErrorCode> {
    let partition = entry.partition(data.index);
    let partition = partition
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?
        .clone();
    let batch = data.records.filter(|records| !records.is_empty());
    let batch = batch.ok_or(ErrorCode::INVALID_RECORD)?;
    let header = RecordBatch::parse(batch.clone()).map_err(|error| {
        tracing::debug!(partition = %partition.name(), %error, "no record batch");
        ErrorCode::CORRUPT_MESSAGE
    })?;
    if header.is_control() {
        return Err(ErrorCode::INVALID_RECORD);
    }
    if header.compression() == Compression::Zstd && context.api_version < ZSTD_VERSION {
        return Err(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE);
    }
    let stamp = header.stamp();
    let batch = match codec {
        Some(codec) if codec != header.compression() => recompressed(node, &header, codec)?,
        _ => detached(batch, context.piece_bytes),
    };
    Ok(Item {
        partition,
        batch,
        stamp,
    })
}

/// Appends every item: those of a transaction under its id's lock, so that no marker comes between
/// the coordinator's word and the data.
async fn append_all(
    node: &Node,
    version: i16,
    transactional_id: Option<&str>,
    items: Vec<Result<Item, ErrorCode>>,
) -> Vec<Outcome> {
    let producer = match producer_of(&items) {
        Ok(Some(producer)) => producer,
        Ok(None) => return append_each(items, AppendOrigin::Client),
        Err(code) => return append_others(items, code),
    };
    let Some(transactional_id) = transactional_id else {
        return append_others(items, ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED);
    };
    let in_transaction = items
        .iter()
        .flatten()
        .filter(|item| item.stamp.transactional);
    let partitions: Vec<_> = in_transaction
        .map(|item| item.partition.name().clone())
        .collect();
    let mode = produce_mode(version);
    let (origin, mut retries) = match mode {
        Mode::Add => (AppendOrigin::Client, ADD_RETRIES),
        Mode::Verify => (AppendOrigin::LegacyClient, 0),
    };
    let mut items = Some(items);
    loop {
        let appended = node.transactions.within_transaction(
            transactional_id,
            producer.producer_id,
            producer.producer_epoch,
            &partitions,
            mode,
            || append_each(items.take().unwrap_or_default(), origin),
        );
        match appended {
            Ok(outcomes) => return outcomes,
            Err(ErrorCode::CONCURRENT_TRANSACTIONS) if retries > 0 => {
                retries -= 1;
                tokio::time::sleep(ADD_RETRY).await;
            }
            Err(error) => {
                let refused = produce_error(error, version);
                return append_others(items.unwrap_or_default(), refused);
            }
        }
    }
}

/// The producer of the request's transactional batches; an error when there are two.
fn producer_of(items: &[Result<Item, ErrorCode>]) -> Result<Option<ProducerStamp>, ErrorCode> {
    let mut producer: Option<ProducerStamp> = None;
    for Item { stamp, .. } in items.iter().flatten() {
        let same = |other: ProducerStamp| {
            other.producer_id == stamp.producer_id && other.producer_epoch == stamp.producer_epoch
        };
        match producer {
            _ if !stamp.transactional => {}
            None => producer = Some(*stamp),
            Some(other) if same(other) => {}
            Some(_) => return Err(ErrorCode::INVALID_PRODUCER_ID_MAPPING),
        }
    }
    Ok(producer)
}

/// Appends what belongs to no transaction; the rest is refused.
fn append_others(items: Vec<Result<Item, ErrorCode>>, refused: ErrorCode) -> Vec<Outcome> {
    let append = |item: Result<Item, ErrorCode>| match item? {
        item if item.stamp.transactional => Err(refused.into()),
        item => append(item, AppendOrigin::Client),
    };
    items.into_iter().map(append).collect()
}

/// The batch, apart from its frame where it is a small part of that: the log keeps the newest
/// batches in memory, and the journal those that wait for the disk, by reference.
fn detached(batch: Bytes, piece_bytes: usize) -> Bytes {
    let is_whole = batch.len() == piece_bytes;
    let is_small = batch.len() < SMALL_BATCH_BYTES.max(piece_bytes / FRAME_PARTS_MAX);
    if is_small && !is_whole {
        Bytes::copy_from_slice(&batch)
    } else {
        batch
    }
}

fn append_each(items: Vec<Result<Item, ErrorCode>>, origin: AppendOrigin) -> Vec<Outcome> {
    let append = |item: Result<Item, ErrorCode>| append(item?, origin);
    items.into_iter().map(append).collect()
}

fn append(item: Item, origin: AppendOrigin) -> Outcome {
    let Item {
        partition, batch, ..
    } = item;
    let appended = partition.append(batch, origin);
    failpoint::hit("broker.after-produce-append");
    appended.map_err(|error| {
        tracing::debug!(partition = %partition.name(), %error, "append refused");
        let mut failure = Failure::from(Refused::new(error.error_code(), error.to_string()));
        let (records, reason) = match error {
            AppendFailure::Log(AppendError::WithoutKeys { indexes }) => {
                (indexes, "a compacted topic takes no record without a key")
            }
            AppendFailure::Log(AppendError::TimestampOutOfRange { indexes, .. }) => (
                indexes,
                "the record's timestamp is too far from the broker's time",
            ),
            _ => (Vec::new(), ""),
        };
        (failure.records, failure.reason) = (records, reason);
        failure
    })
}

/// Puts the outcomes into the answers; returns the journal position that covers them all.
fn fill(response: &mut ProduceResponse, outcomes: Vec<Outcome>) -> u64 {
    let mut position = 0;
    for (answer, outcome) in answers(response).zip(outcomes) {
        match outcome {
            Ok(appended) => {
                position = position.max(appended.journal_position);
                answer.base_offset = appended.base_offset;
                answer.log_append_time_ms = appended.log_append_time_ms;
                answer.log_start_offset = appended.log_start_offset;
            }
            Err(failure) => *answer = failed(answer.index, failure),
        }
    }
    position
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
    for answer in answers(response).filter(|answer| answer.error_code.is_ok()) {
        *answer = failed(answer.index, code.into());
    }
}

fn answers(response: &mut ProduceResponse) -> impl Iterator<Item = &mut PartitionProduceResponse> {
    let topics = response.responses.iter_mut();
    topics.flat_map(|topic| &mut topic.partition_responses)
}

fn failed(index: i32, failure: Failure) -> PartitionProduceResponse {
    let Failure {
        refused,
        records,
        reason,
    } = failure;
    let record_errors = records
        .into_iter()
        .map(|batch_index| BatchIndexAndErrorMessage {
            batch_index,
            batch_index_error_message: Some(reason.to_owned()),
        });
    PartitionProduceResponse {
        index,
        error_code: refused.code,
        base_offset: -1,
        record_errors: record_errors.collect(),
        error_message: Some(refused.message),
        ..Default::default()
    }
}

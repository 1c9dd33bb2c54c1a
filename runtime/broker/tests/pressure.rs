//! Many connections that cost something and give nothing: idle ones, frames that do not come,
//! answers that nobody takes. Memory stays within its bound, and others are served.
//!
//! ```text
//! bound = 3/2 queued.max.request.bytes      (a buffer that grows is there twice for a moment)
//!       + fetch.answers.max.bytes
//!       + idle connections * IDLE_BYTES + others * CONNECTION_BYTES
//! ```
//!
//! Invariants: what is counted is all that this process allocates, these clients included.
//! Never: more than one test; another one's memory would be counted.

mod over_tcp;

use millstream_broker::{Broker, BrokerConfig};
use millstream_log::{DiskStorage, Durability};
use millstream_protocol::messages::fetch::{FetchPartition, FetchTopic};
use millstream_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use millstream_protocol::messages::*;
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatchBuilder};
use over_tcp::{ask, connect, framed, new_topic, raise_descriptors};
use peak_alloc::PeakAlloc;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;
const BUDGET_BYTES: usize = 16 * MIB;
const REQUEST_BYTES: usize = 8 * MIB;
/// Tasks, a buffer of 64 KiB, and small requests and answers.
const CONNECTION_BYTES: usize = 192 << 10;
const IDLE: usize = 1_000;
/// What an idle connection takes, both ends of it.
const IDLE_BYTES: usize = 24 << 10;
const SLOW: usize = 40;
/// The first batch of the topic.
const SMALL_BATCH_BYTES: usize = 60_000;

fn produce(value_bytes: usize) -> ProduceRequest {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(1, None, Some(&vec![7; value_bytes]), &[]);
    ProduceRequest {
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![TopicProduceData {
            name: "orders".to_owned(),
            partition_data: vec![PartitionProduceData {
                index: 0,
                records: Some(builder.finish(ProducerStamp::NONE).expect("builds")),
            }],
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn fetch(fetch_offset: i64, max_bytes: i32) -> FetchRequest {
    FetchRequest {
        min_bytes: 1,
        max_bytes,
        topics: vec![FetchTopic {
            topic: "orders".to_owned(),
            partitions: vec![FetchPartition {
                fetch_offset,
                partition_max_bytes: max_bytes,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    }
}

async fn append(stream: &mut TcpStream, value_bytes: usize) -> i64 {
    let answer = ask(stream, 9, &produce(value_bytes)).await;
    let appended = &answer.responses[0].partition_responses[0];
    assert_eq!(appended.error_code, ErrorCode::NONE);
    appended.base_offset
}

/// Sends until the other end takes no more; says how much it took.
async fn push(stream: &TcpStream, bytes: &[u8]) -> usize {
    let mut sent = 0;
    while sent < bytes.len() {
        let ready = tokio::time::timeout(Duration::from_millis(50), stream.writable());
        if ready.await.is_err() {
            break;
        }
        match stream.try_write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    sent
}

async fn broker_with_a_topic(folder: &std::path::Path) -> (Broker, SocketAddr) {
    let config = BrokerConfig {
        durability: Durability::Os,
        queued_max_request_bytes: BUDGET_BYTES,
        fetch_answers_max_bytes: BUDGET_BYTES,
        socket_request_max_bytes: REQUEST_BYTES,
        ..Default::default()
    };
    let storage = Arc::new(DiskStorage::new(folder.join("data")));
    let broker = Broker::open(storage, config).await.expect("opens");
    let any = "127.0.0.1:0".parse().expect("an address");
    let address = broker.listen(any).await.expect("binds");
    let create = CreateTopicsRequest {
        topics: vec![new_topic("orders".to_owned(), 1)],
        ..Default::default()
    };
    ask(&mut connect(address).await, 7, &create).await;
    (broker, address)
}

/// What connections took since then, when it has come to rest.
async fn taken_since(before: usize) -> usize {
    let mut taken = usize::MAX;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        taken = taken.min(MEMORY.current_usage().saturating_sub(before));
    }
    taken
}

/// They want more than there is, and what there is may be large.
async fn fetches_that_wait_hold_nothing(address: SocketAddr) -> Vec<TcpStream> {
    let before = MEMORY.current_usage();
    let mut wants = fetch(0, 8 * MIB as i32);
    (wants.min_bytes, wants.max_bytes) = (i32::MAX, i32::MAX);
    wants.max_wait_ms = i32::MAX;
    let wants = framed(12, &wants).repeat(2);
    let mut parked = Vec::new();
    for _ in 0..SLOW / 4 {
        let stream = connect(address).await;
        push(&stream, &wants).await;
        parked.push(stream);
    }
    let taken = taken_since(before).await;
    let bound = parked.len() * CONNECTION_BYTES + 2 * MIB;
    assert!(taken <= bound, "parked: {} KiB", taken >> 10);
    parked
}

/// None of them is large enough to need room.
async fn answers_behind_a_request_that_waits_are_few(address: SocketAddr) -> Vec<TcpStream> {
    let before = MEMORY.current_usage();
    let mut waits = fetch(17, MIB as i32);
    waits.max_wait_ms = i32::MAX;
    let small = framed(12, &fetch(0, SMALL_BATCH_BYTES as i32));
    let all = [framed(12, &waits), small.repeat(30)].concat();
    let mut behind = Vec::new();
    for _ in 0..SLOW {
        let stream = connect(address).await;
        push(&stream, &all).await;
        behind.push(stream);
    }
    let taken = taken_since(before).await;
    let bound = behind.len() * CONNECTION_BYTES + 2 * MIB;
    assert!(taken <= bound, "behind: {} KiB", taken >> 10);
    behind
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_bounded_and_others_are_served_whatever_connections_hold_back() {
    raise_descriptors();
    let folder = tempfile::tempdir().expect("a folder");
    let (broker, address) = broker_with_a_topic(folder.path()).await;
    let mut good = connect(address).await;
    append(&mut good, SMALL_BATCH_BYTES).await;
    for _ in 0..16 {
        append(&mut good, MIB - 1_000).await;
    }
    let parked = fetches_that_wait_hold_nothing(address).await;
    let behind = answers_behind_a_request_that_waits_are_few(address).await;
    drop((parked, behind));
    append(&mut good, 1_000).await;
    let before = MEMORY.current_usage();
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        let mut stream = connect(address).await;
        ask(&mut stream, 0, &ApiVersionsRequest::default()).await;
        idle.push(stream);
    }
    let taken = MEMORY.current_usage().saturating_sub(before) / IDLE;
    assert!(taken <= IDLE_BYTES, "{taken} bytes an idle connection");

    MEMORY.reset_peak_usage();
    // Frames of 8 MiB of which the last byte never comes: 320 MiB if they were all taken.
    let mut part = (REQUEST_BYTES as i32).to_be_bytes().to_vec();
    part.resize(REQUEST_BYTES + 3, 0);
    let mut bad = Vec::new();
    for _ in 0..SLOW {
        let stream = connect(address).await;
        push(&stream, &part).await;
        bad.push(stream);
    }
    // Ten times all that there is, forty times: 6 GiB if it were all read.
    let ask_all = framed(12, &fetch(0, i32::MAX)).repeat(10);
    for _ in 0..SLOW {
        let stream = connect(address).await;
        push(&stream, &ask_all).await;
        bad.push(stream);
    }
    let offset = append(&mut good, 1_000).await;
    let fetched = ask(&mut good, 12, &fetch(offset, MIB as i32)).await;
    let records = fetched.responses[0].partitions[0].records.as_ref();
    assert!(records.is_some_and(|records| records.len() > 1_000));
    ask(&mut good, 12, &MetadataRequest::default()).await;

    let peak = MEMORY.peak_usage().saturating_sub(before);
    let connections = IDLE * IDLE_BYTES + 2 * SLOW * CONNECTION_BYTES;
    // The part is ours, and what the log keeps of the newest records.
    let ours = part.len() + 2 * MIB;
    let bound = BUDGET_BYTES * 5 / 2 + connections + ours;
    assert!(
        peak <= bound,
        "{} MiB, bound {} MiB",
        peak / MIB,
        bound / MIB
    );

    drop((bad, idle));
    append(&mut good, MIB - 1_000).await;
    broker.close().await.expect("closes");
}

//! What a broker allocates for what has nothing in it yet: lengths of frames, partitions without
//! records, fetches that wait.
//!
//! Invariants: what is counted is what this process allocates, resident or not.
//! Never: two of these tests at a time; each would count the other's memory.

mod over_tcp;

use bytes::Bytes;
use millstream_broker::{Broker, BrokerConfig};
use millstream_log::{DiskStorage, Durability, MemoryStorage};
use millstream_protocol::messages::fetch::{FetchPartition, FetchTopic};
use millstream_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use millstream_protocol::messages::*;
use millstream_protocol::{Compression, ProducerStamp, RecordBatchBuilder};
use over_tcp::{ask, connect, framed, new_topic, raise_descriptors};
use peak_alloc::PeakAlloc;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

static ALONE: Mutex<()> = Mutex::const_new(());

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const TOPICS: usize = 1_000;
const PARTITIONS: i32 = 3;
/// What a partition may take that nothing happens to, its share of its topic included.
const PARTITION_BYTES: usize = 4 * KIB;
/// And what one may take that has a record.
const WRITTEN_BYTES: usize = 8 * KIB;

/// After it, what was sent before on other connections has been read: everything is on this one
/// thread, and they were accepted earlier.
async fn round_trips(address: SocketAddr) {
    let mut stream = connect(address).await;
    for _ in 0..3 {
        ask(&mut stream, 0, &ApiVersionsRequest::default()).await;
    }
}

#[tokio::test]
async fn i1_a_length_alone_allocates_nothing() {
    let _alone = ALONE.lock().await;
    let config = BrokerConfig {
        seed: Some(7),
        ..Default::default()
    };
    let broker = Broker::open(Arc::new(MemoryStorage::new()), config);
    let broker = broker.await.expect("opens");
    let any = "127.0.0.1:0".parse().expect("an address");
    let address = broker.listen(any).await.expect("binds");
    // As many as there is room for, and more of the largest than that; alone, and with a beginning
    // of what they announce.
    for (length, count) in [(MIB, 200), (100 * MIB, 50)] {
        for sent in [0, KIB] {
            round_trips(address).await;
            let before = MEMORY.current_usage();
            MEMORY.reset_peak_usage();
            let mut part = (length as i32).to_be_bytes().to_vec();
            part.resize(4 + sent, 0);
            let mut streams = Vec::new();
            for _ in 0..count {
                let mut stream = connect(address).await;
                stream.write_all(&part).await.expect("written");
                streams.push(stream);
            }
            round_trips(address).await;
            let taken = MEMORY.peak_usage().saturating_sub(before) / count;
            assert!(
                taken <= 24 * KIB,
                "{taken} bytes for each length of {length}"
            );
            drop(streams);
        }
    }
    broker.close().await.expect("closes");
}

async fn open(folder: &Path) -> (Broker, TcpStream) {
    let config = BrokerConfig {
        durability: Durability::Os,
        ..Default::default()
    };
    let storage = Arc::new(DiskStorage::new(folder.join("data")));
    let broker = Broker::open(storage, config).await.expect("opens");
    let any = "127.0.0.1:0".parse().expect("an address");
    let address = broker.listen(any).await.expect("binds");
    (broker, connect(address).await)
}

fn names() -> impl Iterator<Item = String> {
    (0..TOPICS).map(|number| format!("topic-{number}"))
}

fn a_record(value_bytes: usize) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(1, Some(b"key"), Some(&vec![7; value_bytes]), &[]);
    builder.finish(ProducerStamp::NONE).expect("builds")
}

/// A record in each of the topic's first partitions.
fn produce(name: String, partitions: i32, value_bytes: usize) -> ProduceRequest {
    let data = |index| PartitionProduceData {
        index,
        records: Some(a_record(value_bytes)),
    };
    ProduceRequest {
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![TopicProduceData {
            name,
            partition_data: (0..partitions).map(data).collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

async fn append(stream: &mut TcpStream, request: ProduceRequest) {
    let answer = ask(stream, 9, &request).await;
    let appended = &answer.responses[0].partition_responses;
    assert!(appended.iter().all(|answer| answer.error_code.is_ok()));
}

/// A record in every partition, one request a topic.
async fn append_everywhere(stream: &mut TcpStream) {
    for name in names() {
        append(stream, produce(name, PARTITIONS, 5)).await;
    }
}

fn per_partition(before: usize) -> usize {
    MEMORY.current_usage().saturating_sub(before) / (TOPICS * PARTITIONS as usize)
}

#[tokio::test]
async fn a_partition_to_which_nothing_happens_takes_little() {
    let _alone = ALONE.lock().await;
    raise_descriptors();
    let folder = tempfile::tempdir().expect("a folder");
    let (broker, mut stream) = open(folder.path()).await;
    // Its buffers are there.
    ask(&mut stream, 0, &ApiVersionsRequest::default()).await;
    let before = MEMORY.current_usage();
    let create = CreateTopicsRequest {
        topics: names().map(|name| new_topic(name, PARTITIONS)).collect(),
        ..Default::default()
    };
    let answer = ask(&mut stream, 7, &create).await;
    assert!(answer.topics.iter().all(|topic| topic.error_code.is_ok()));
    drop((answer, create));
    let new = per_partition(before);
    drop(stream);
    broker.close().await.expect("closes");
    drop(broker);

    let none = MEMORY.current_usage();
    let (broker, mut stream) = open(folder.path()).await;
    let opened = per_partition(none);
    append_everywhere(&mut stream).await;
    let written = per_partition(none);
    assert!(new <= PARTITION_BYTES, "{new} bytes a new one");
    assert!(opened <= PARTITION_BYTES, "{opened} bytes after a restart");
    assert!(written <= WRITTEN_BYTES, "{written} bytes with a record");
    // Nothing is kept of it.
    broker.halt();
}

#[tokio::test]
async fn a_fetch_that_waits_takes_nothing_for_records_that_it_has_seen() {
    let _alone = ALONE.lock().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (broker, mut writer) = open(folder.path()).await;
    let address = writer.peer_addr().expect("connected");
    let create = CreateTopicsRequest {
        topics: vec![new_topic("orders".to_owned(), 1)],
        ..Default::default()
    };
    ask(&mut writer, 7, &create).await;
    // More than the broker keeps at hand of a partition: most of it is in the file only.
    for _ in 0..8 {
        append(&mut writer, produce("orders".to_owned(), 1, 800 * KIB)).await;
    }
    let fetch = FetchRequest {
        max_wait_ms: i32::MAX,
        min_bytes: 32 * MIB as i32,
        max_bytes: 32 * MIB as i32,
        topics: vec![FetchTopic {
            topic: "orders".to_owned(),
            partitions: vec![FetchPartition {
                partition: 0,
                partition_max_bytes: 32 * MIB as i32,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut reader = connect(address).await;
    let sent = framed(12, &fetch);
    reader.write_all(&sent).await.expect("written");
    round_trips(address).await;
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    for _ in 0..10 {
        append(&mut writer, produce("orders".to_owned(), 1, 5)).await;
        round_trips(address).await;
    }
    let taken = MEMORY.peak_usage().saturating_sub(before);
    assert!(taken < MIB, "{taken} bytes for ten small records");
    assert!(reader.try_read(&mut [0]).is_err(), "it waits");
    broker.halt();
}

//! A broker whose process has no descriptor left: who comes is refused at once, who is there is
//! served, and when descriptors are back everything goes on.
//!
//! Invariants: what is counted is this whole process, these clients included.
//! Never: more than one test; another one's files would be counted.

use bytes::Bytes;
use millstream_broker::{Broker, BrokerConfig};
use millstream_log::DiskStorage;
use millstream_protocol::messages::create_topics::CreatableTopic;
use millstream_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use millstream_protocol::messages::*;
use millstream_protocol::{
    Compression, ErrorCode, Frame, ProducerStamp, RecordBatchBuilder, Request, decode_response,
    encode_request,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const PATIENCE: Duration = Duration::from_secs(20);
/// Descriptors that are left, and connections that want one.
const LEFT: usize = 4;
const CONNECTIONS: usize = 24;

/// An answer, or how the connection was closed.
async fn try_ask<R: Request>(
    stream: &mut TcpStream,
    version: i16,
    request: &R,
) -> io::Result<R::Response> {
    let frame = encode_request(version, 1, Some("many"), request).expect("encodes");
    let bytes = frame.into_contiguous();
    let asked = async {
        stream.write_i32(bytes.len() as i32).await?;
        stream.write_all(&bytes).await?;
        let mut body = vec![0; stream.read_i32().await? as usize];
        stream.read_exact(&mut body).await?;
        Ok::<_, io::Error>(Frame::from_bytes(Bytes::from(body)))
    };
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    let frame = answer.expect("nobody is left waiting")?;
    Ok(decode_response::<R>(frame, version).expect("decodes").1)
}

async fn append(stream: &mut TcpStream) -> i64 {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(1, None, Some(b"value"), &[]);
    let request = ProduceRequest {
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
    };
    let answer = try_ask(stream, 9, &request).await.expect("served");
    let appended = &answer.responses[0].partition_responses[0];
    assert_eq!(appended.error_code, ErrorCode::NONE);
    appended.base_offset
}

async fn create(stream: &mut TcpStream, name: &str, num_partitions: i32) -> ErrorCode {
    let topic = CreatableTopic {
        name: name.to_owned(),
        num_partitions,
        replication_factor: -1,
        ..Default::default()
    };
    let request = CreateTopicsRequest {
        topics: vec![topic],
        ..Default::default()
    };
    let answer = try_ask(stream, 7, &request).await.expect("served");
    answer.topics[0].error_code
}

async fn open(folder: &Path) -> (Broker, SocketAddr) {
    let storage = Arc::new(DiskStorage::new(folder.join("data")));
    let broker = Broker::open(storage, BrokerConfig::default());
    let broker = broker.await.expect("opens");
    let any = "127.0.0.1:0".parse().expect("an address");
    let address = broker.listen(any).await.expect("binds");
    (broker, address)
}

/// Lowers the limit so far that only so many more descriptors can be had.
fn leave(descriptors: usize) {
    let names = std::fs::read_dir("/proc/self/fd").expect("listed");
    let names = names.map(|entry| entry.expect("listed").file_name());
    let mut open: Vec<usize> = names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    open.sort_unstable();
    // A descriptor is the lowest free number, and has to be below the limit. The folder that was
    // listed is closed again: it was the lowest of them.
    let free = |limit: &usize| limit - open.partition_point(|number| number < limit);
    let limit = (1..).find(|limit| free(limit) + 1 >= descriptors);
    let limited = Rlimit {
        current: limit.map(|limit| limit as u64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limited).expect("lowered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x2_without_a_descriptor_who_comes_is_refused_and_who_is_there_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = getrlimit(Resource::Nofile);
    let (broker, address) = open(folder.path()).await;
    let mut good = TcpStream::connect(address).await.expect("connects");
    assert_eq!(create(&mut good, "orders", 1).await, ErrorCode::NONE);
    assert_eq!(append(&mut good).await, 0);
    let sockets: Vec<TcpSocket> = (0..CONNECTIONS)
        .map(|_| TcpSocket::new_v4().expect("a socket"))
        .collect();

    leave(LEFT);
    let mut count = 0;
    // Those that were refused are kept too: their descriptors would be free for others.
    let mut streams = Vec::new();
    for socket in sockets {
        // The kernel takes it, whatever the broker does with it.
        let mut stream = socket.connect(address).await.expect("connects");
        let told = try_ask(&mut stream, 0, &ApiVersionsRequest::default()).await;
        count += usize::from(told.is_ok());
        streams.push(stream);
    }
    assert!((1..=LEFT).contains(&count), "{count} connections served");
    assert_eq!(append(&mut good).await, 1);
    let refused = create(&mut good, "many", 50).await;
    assert_eq!(refused, ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(append(&mut good).await, 2);

    drop(streams);
    let come_back = async {
        loop {
            let mut stream = TcpStream::connect(address).await.expect("connects");
            let told = try_ask(&mut stream, 0, &ApiVersionsRequest::default()).await;
            if told.is_ok() {
                return stream;
            }
        }
    };
    let come_back = tokio::time::timeout(PATIENCE, come_back).await;
    let mut stream = come_back.expect("served again");
    setrlimit(Resource::Nofile, before).expect("raised");
    assert_eq!(create(&mut stream, "many", 50).await, ErrorCode::NONE);
    assert_eq!(append(&mut stream).await, 3);
    broker.close().await.expect("closes");

    let (broker, address) = open(folder.path()).await;
    let mut stream = TcpStream::connect(address).await.expect("connects");
    assert_eq!(append(&mut stream).await, 4);
    broker.close().await.expect("closes");
}

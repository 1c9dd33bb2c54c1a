//! What a peer can get wrong: rows I1–I6 over TCP, where a connection is closed or a batch refused,
//! and the others live.
//!
//! That a length alone allocates nothing (I1) is in `tests/allocated.rs`, where allocations count.
//!
//! Invariants: see the names of the tests.
//! Never: waits longer than a test should; a stuck read fails by its timeout.

use super::harness::*;
use crate::{Broker, BrokerConfig, BrokerError, Placement};
use bytes::Bytes;
use millstream_log::MemoryStorage;
use millstream_protocol::messages::create_topics::CreatableTopic;
use millstream_protocol::messages::*;
use millstream_protocol::{
    BatchRewriter, Compression, ControlMarker, ErrorCode, Frame, ProducerStamp, RecordBatch,
    RecordBatchBuilder, Request, control_batch, decode_response, encode_request,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(10);

/// A broker with real time and threads, listening on a free port.
async fn listening() -> (Broker, SocketAddr) {
    listening_with(|_| ()).await
}

async fn listening_with(configure: impl FnOnce(&mut BrokerConfig)) -> (Broker, SocketAddr) {
    let mut config = BrokerConfig {
        placement: Placement::Threads,
        ..config()
    };
    configure(&mut config);
    let broker = Broker::open(Arc::new(MemoryStorage::new()), config)
        .await
        .expect("opens");
    let address = broker
        .listen("127.0.0.1:0".parse().unwrap())
        .await
        .expect("binds");
    (broker, address)
}

async fn ask<R: Request>(stream: &mut TcpStream, version: i16, request: &R) -> R::Response {
    let frame = encode_request(version, 1, Some("tcp"), request).expect("encodes");
    let bytes = frame.into_contiguous();
    stream
        .write_all(&(bytes.len() as i32).to_be_bytes())
        .await
        .expect("written");
    stream.write_all(&bytes).await.expect("written");
    decode_response::<R>(answer(stream).await.expect("answered"), version)
        .expect("decodes")
        .1
}

/// The next frame, or `None` when the broker closes the connection.
async fn answer(stream: &mut TcpStream) -> Option<Frame> {
    let read = async {
        let mut length = [0; 4];
        stream.read_exact(&mut length).await.ok()?;
        let mut body = vec![0; i32::from_be_bytes(length) as usize];
        stream.read_exact(&mut body).await.ok()?;
        Some(Frame::from_bytes(Bytes::from(body)))
    };
    tokio::time::timeout(PATIENCE, read)
        .await
        .expect("an answer or an end in time")
}

/// A request header: key, version, correlation id 1, no client id.
fn header(api_key: i16, api_version: i16) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(api_key.to_be_bytes());
    bytes.extend(api_version.to_be_bytes());
    bytes.extend(1_i32.to_be_bytes());
    bytes.extend((-1_i16).to_be_bytes());
    bytes
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as i32).to_be_bytes().to_vec();
    bytes.extend(body);
    bytes
}

/// Sends bytes on a fresh connection and expects it to be closed, while another one goes on.
async fn expect_closed(address: SocketAddr, bytes: &[u8]) {
    let mut good = TcpStream::connect(address).await.expect("connects");
    ask(&mut good, 0, &ApiVersionsRequest::default()).await;
    let mut bad = TcpStream::connect(address).await.expect("connects");
    bad.write_all(bytes).await.expect("written");
    assert!(answer(&mut bad).await.is_none(), "closed without an answer");
    ask(&mut good, 0, &ApiVersionsRequest::default()).await;
}

#[tokio::test]
async fn i1_a_negative_or_oversize_length_closes_the_connection() {
    let (broker, address) = listening().await;
    for length in [-1, i32::MIN, i32::MAX, (100 << 20) + 1] {
        expect_closed(address, &length.to_be_bytes()).await;
    }
    broker.close().await.expect("closes");
}

#[tokio::test]
async fn i2_api_versions_too_new_is_answered_in_version_0() {
    let (broker, address) = listening().await;
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let mut body = header(18, 99);
    body.extend([0, 2, b'x', 2, b'1', 0]);
    stream.write_all(&framed(&body)).await.expect("written");
    let frame = answer(&mut stream).await.expect("answered");
    let (correlation_id, response) =
        decode_response::<ApiVersionsRequest>(frame, 0).expect("a version 0 body");
    assert_eq!(
        (correlation_id, response.error_code),
        (1, ErrorCode::UNSUPPORTED_VERSION)
    );
    assert_eq!(response.api_keys[0].max_version, 4);
    // The connection lives on, so that the client can ask again.
    ask(&mut stream, 0, &ApiVersionsRequest::default()).await;
    broker.close().await.expect("closes");
}

#[tokio::test]
async fn i2_an_unknown_api_or_version_closes_the_connection() {
    let (broker, address) = listening().await;
    for (key, version) in [
        (9_999, 0),
        (-1, 0),
        (3, 99),
        (0, -1),
        // Kafka announces these as well, and closes on them.
        (0, 0),
        (0, 1),
        (0, 2),
    ] {
        expect_closed(address, &framed(&header(key, version))).await;
    }
    broker.close().await.expect("closes");
}

#[tokio::test]
async fn i3_counts_beyond_the_frame_close_the_connection() {
    let (broker, address) = listening().await;
    // Metadata v1 with two billion topics, Metadata v12 with a compact count of the same.
    let mut plain = header(3, 1);
    plain.extend(i32::MAX.to_be_bytes());
    let mut compact = header(3, 12);
    compact.extend([0, 0xff, 0xff, 0xff, 0xff, 0x07]);
    for body in [
        plain,
        compact,
        header(3, 1),
        vec![],
        vec![0; 3],
        vec![0xff; 40],
    ] {
        expect_closed(address, &framed(&body)).await;
    }
    broker.close().await.expect("closes");
}

/// Produces each batch over one connection; each is refused with its code, and the log goes on.
async fn expect_refused(batches: Vec<(Bytes, ErrorCode)>) {
    let (broker, address) = listening_with(|config| {
        config.decompressed_batch_bytes_max = 8 << 20;
    })
    .await;
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let topic = CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: "orders".to_owned(),
            num_partitions: 1,
            replication_factor: -1,
            ..Default::default()
        }],
        ..Default::default()
    };
    ask(&mut stream, 7, &topic).await;
    for (bytes, code) in batches {
        let answer = ask(&mut stream, 9, &produce_request("orders", 0, bytes)).await;
        let refused = &answer.responses[0].partition_responses[0];
        assert_eq!((refused.error_code, refused.base_offset), (code, -1));
    }
    let fine = produce_request("orders", 0, batch(&["fine"]));
    let answer = ask(&mut stream, 9, &fine).await;
    let appended = &answer.responses[0].partition_responses[0];
    assert_eq!(
        (appended.error_code, appended.base_offset),
        (ErrorCode::NONE, 0)
    );
    broker.close().await.expect("closes");
}

#[tokio::test]
async fn i4_a_bad_checksum_a_control_batch_and_bad_deltas_are_refused() {
    let mut damaged = batch(&["abc"]).to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let marker = control_batch(ControlMarker::new(true, 0), 5, 0, START_MS);
    let three = RecordBatch::parse(batch(&["a", "b", "c"])).expect("a batch");
    // Records 0 and 2 alone, with a valid checksum: as many as announced, but not 0, 1.
    let gap = BatchRewriter::new()
        .with_records(&three, &[true, false, true], None, 1 << 20)
        .expect("rewritten");
    expect_refused(vec![
        (Bytes::from(damaged), ErrorCode::CORRUPT_MESSAGE),
        (batch(&["abc"]).slice(..70), ErrorCode::CORRUPT_MESSAGE),
        (marker, ErrorCode::INVALID_RECORD),
        (gap, ErrorCode::INVALID_RECORD),
        (Bytes::new(), ErrorCode::INVALID_RECORD),
    ])
    .await;
}

#[tokio::test]
async fn i5_a_batch_above_max_message_bytes_and_a_bomb_are_too_large() {
    let mut refused = vec![(batch(&[&"x".repeat(2 << 20)]), ErrorCode::MESSAGE_TOO_LARGE)];
    let zeros = vec![0; 16 << 20];
    let codecs = Compression::ALL.into_iter();
    for codec in codecs.filter(|codec| *codec != Compression::None) {
        let mut builder = RecordBatchBuilder::new(codec);
        builder.append(START_MS, Some(b"k"), Some(&zeros), &[]);
        let bomb = builder.finish(ProducerStamp::NONE).expect("builds");
        assert!(bomb.len() < 1_048_588, "{codec} makes it small");
        refused.push((bomb, ErrorCode::MESSAGE_TOO_LARGE));
    }
    expect_refused(refused).await;
}

#[tokio::test]
async fn i6_acks_that_are_none_are_refused() {
    let (broker, address) = listening().await;
    let mut stream = TcpStream::connect(address).await.expect("connects");
    for acks in [2, -2, i16::MAX, i16::MIN] {
        let request = ProduceRequest {
            acks,
            ..produce_request("orders", 0, batch(&["a"]))
        };
        let answer = ask(&mut stream, 9, &request).await;
        let refused = &answer.responses[0].partition_responses[0];
        assert_eq!(refused.error_code, ErrorCode::INVALID_REQUIRED_ACKS);
    }
    broker.close().await.expect("closes");
}

#[tokio::test]
async fn a_frame_may_come_byte_by_byte_and_many_at_once() {
    let (broker, address) = listening().await;
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let frame = encode_request(0, 1, None, &ApiVersionsRequest::default()).expect("encodes");
    let bytes = framed(&frame.into_contiguous());
    for byte in &bytes {
        stream.write_all(&[*byte]).await.expect("written");
    }
    assert!(answer(&mut stream).await.is_some());
    stream.write_all(&bytes.repeat(100)).await.expect("written");
    for _ in 0..100 {
        assert!(answer(&mut stream).await.is_some());
    }
    broker.close().await.expect("closes");
}

#[tokio::test]
async fn metadata_tells_the_address_that_was_reached() {
    let (broker, address) = listening().await;
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let metadata = ask(&mut stream, 12, &MetadataRequest::default()).await;
    assert_eq!(metadata.brokers[0].host, "127.0.0.1");
    assert_eq!(metadata.brokers[0].port, i32::from(address.port()));
    broker.close().await.expect("closes");
    assert!(
        answer(&mut stream).await.is_none(),
        "closing ends connections"
    );
    assert!(
        TcpStream::connect(address).await.is_err(),
        "nobody listens any more"
    );
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let (broker, address) = listening().await;
    let error = broker.listen(address).await.expect_err("taken");
    assert!(matches!(error, BrokerError::Listen { .. }));
    assert!(error.to_string().contains(&address.to_string()));
    broker.close().await.expect("closes");
}

#[tokio::test(start_paused = true)]
async fn garbage_over_channels_closes_that_connection_only() {
    let broker = broker().await;
    let (mut bad, mut good) = (Client::connect(&broker), Client::connect(&broker));
    bad.send_raw(&[0xff; 16]).await;
    assert!(bad.next_frame().await.is_none());
    good.create_topic("orders", 1).await;
}

#[tokio::test]
async fn records_travel_over_tcp() {
    let (broker, address) = listening().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let large = "x".repeat(300_000);
    let produced = ask(
        &mut stream,
        9,
        &produce_request("orders", 0, batch(&[&large])),
    )
    .await;
    assert_eq!(
        produced.responses[0].partition_responses[0].error_code,
        ErrorCode::NONE
    );
    let fetched = ask(&mut stream, 12, &fetch_request("orders", 0, 0, 0)).await;
    assert_eq!(values(&fetched.responses[0].partitions[0]), [(0, large)]);
    broker.close().await.expect("closes");
}

#[tokio::test]
async fn a_connection_on_which_nothing_moves_is_closed_after_its_time() {
    let (broker, address) = listening_with(|config| config.connections_max_idle_ms = 300).await;
    let mut quiet = TcpStream::connect(address).await.expect("connects");
    let mut half = TcpStream::connect(address).await.expect("connects");
    half.write_all(&[0, 0, 0]).await.expect("written");
    assert!(answer(&mut quiet).await.is_none());
    assert!(answer(&mut half).await.is_none());
    broker.close().await.expect("closes");
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_the_others_live() {
    let (broker, address) = listening_with(|config| config.connections_max = 3).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(TcpStream::connect(address).await.expect("connects"));
    }
    let mut refused = TcpStream::connect(address).await.expect("connects");
    assert!(answer(&mut refused).await.is_none());
    for stream in &mut streams {
        ask(stream, 0, &ApiVersionsRequest::default()).await;
    }
    broker.close().await.expect("closes");
}

#[test]
fn a_budget_below_the_largest_request_is_refused_by_name() {
    let config = BrokerConfig {
        queued_max_request_bytes: 1 << 20,
        ..config()
    };
    let error = config
        .validate()
        .expect_err("no such request could be read");
    assert!(error.to_string().contains("queued.max.request.bytes"));
}

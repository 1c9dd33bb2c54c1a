//! Connections that hold memory which others need, and connections that nobody is behind any more.
//!
//! Invariants: time is virtual, but for the one test over TCP.
//! Never: waits for `PATIENCE` in real time.

use super::harness::{Client, START_MS, config, fetch_request, produce_request};
use crate::connection::{self, Arrived};
use crate::memory::{PATIENCE, Room, SMALL_ANSWER_BYTES};
use crate::{Broker, BrokerConfig, Placement};
use bytes::Bytes;
use millstream_log::MemoryStorage;
use millstream_protocol::messages::join_group::JoinGroupRequestProtocol;
use millstream_protocol::messages::*;
use millstream_protocol::{
    Compression, ErrorCode, Frame, ProducerStamp, RecordBatchBuilder, Request, decode_response,
    encode_request,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

const MIB: usize = 1 << 20;
const QUEUE: usize = 16;
/// Nobody waits that long.
const FOREVER_MS: i32 = i32::MAX;

/// One megabyte for requests, one for records.
async fn broker_with(configure: impl FnOnce(&mut BrokerConfig)) -> Broker {
    let mut config = BrokerConfig {
        queued_max_request_bytes: MIB,
        socket_request_max_bytes: MIB,
        fetch_answers_max_bytes: MIB,
        ..config()
    };
    configure(&mut config);
    let broker = Broker::open(Arc::new(MemoryStorage::new()), config).await;
    let broker = broker.expect("opens");
    let mut client = Client::connect(&broker);
    client.create_topic("empty", 1).await;
    client.create_topic("orders", 1).await;
    broker
}

/// A connection as one over a socket, without the socket.
struct Line {
    to_serve: mpsc::Sender<Arrived>,
    answers: mpsc::Receiver<Frame>,
}

impl Line {
    fn new(broker: &Broker) -> Self {
        let (to_serve, incoming) = mpsc::channel(QUEUE);
        let (outgoing, answers) = mpsc::channel(QUEUE);
        let reached_at = SocketAddr::from(([127, 0, 0, 1], 9));
        let node = broker.node().clone();
        let peer = "line".into();
        tokio::spawn(connection::serve(
            node,
            incoming,
            outgoing,
            peer,
            Some(reached_at),
        ));
        Self { to_serve, answers }
    }

    async fn send<R: Request>(&self, version: i16, request: &R, room: Option<Room>) {
        let frame = encode_request(version, 1, Some("line"), request).expect("encodes");
        let frame = Frame::from_bytes(frame.into_contiguous());
        let arrived = Arrived { frame, room };
        assert!(self.to_serve.send(arrived).await.is_ok(), "open");
    }

    /// Until everything that can happen without time passing has happened.
    async fn settled(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn queued(&self) -> usize {
        QUEUE - self.to_serve.capacity()
    }
}

async fn all_of(broker: &Broker) -> Option<Room> {
    broker.node().memory.request_room(MIB).await
}

/// Whether all the requests' memory comes back when `PATIENCE` ends, and the connection with it.
async fn lets_go_in_time(broker: &Broker, line: &Line) {
    line.settled().await;
    assert!(!line.to_serve.is_closed());
    let began = Instant::now();
    let room = tokio::time::timeout(4 * PATIENCE, all_of(broker)).await;
    assert!(room.is_ok(), "somebody holds it for longer");
    let waited = began.elapsed();
    assert!(waited + Duration::from_secs(2) > PATIENCE, "{waited:?}");
    assert!(waited < PATIENCE + Duration::from_secs(5), "{waited:?}");
    line.settled().await;
    assert!(line.to_serve.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_no_answers_keeps_nobody_from_the_locks_that_it_waits_for() {
    let broker = broker_with(|_| ()).await;
    let line = Line::new(&broker);
    for _ in 0..QUEUE {
        line.send(12, &MetadataRequest::default(), None).await;
    }
    line.settled().await;
    line.send(12, &fetch_request("empty", 0, 0, FOREVER_MS), None)
        .await;
    let changes = broker.node().partitions.lock_changes().await;
    let topic = create_topics::CreatableTopic {
        name: "theirs".to_owned(),
        num_partitions: 1,
        replication_factor: -1,
        ..Default::default()
    };
    let creation = CreateTopicsRequest {
        topics: vec![topic],
        ..Default::default()
    };
    line.send(7, &creation, None).await;
    line.settled().await;
    // The fetch has an answer, which there is no room for; then the creation's turn comes.
    let mut client = Client::connect(&broker);
    client
        .produce("empty", 0, super::harness::batch(&["x"]))
        .await;
    line.settled().await;
    drop(changes);
    let ours = client.create_topic("ours", 1);
    let ours = tokio::time::timeout(Duration::from_secs(1), ours).await;
    assert!(ours.is_ok(), "it waits for a peer that reads nothing");
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_waits_keeps_its_room_only_while_nobody_needs_it() {
    let broker = broker_with(|_| ()).await;
    let line = Line::new(&broker);
    let waits = fetch_request("empty", 0, 0, FOREVER_MS);
    let half = broker.node().memory.request_room(MIB / 2).await;
    line.send(12, &waits, half).await;
    // Nobody needs it, however long.
    tokio::time::sleep(10 * PATIENCE).await;
    assert!(!line.to_serve.is_closed());
    drop(line);
    let mut line = Line::new(&broker);
    line.send(12, &waits, all_of(&broker).await).await;
    lets_go_in_time(&broker, &line).await;
    assert!(line.answers.recv().await.is_some(), "it ran to its end");
}

#[tokio::test(start_paused = true)]
async fn frames_that_may_not_begin_are_dropped_when_others_need_their_room() {
    let broker = broker_with(|config| config.connection_in_flight_max = 1).await;
    let line = Line::new(&broker);
    let waits = fetch_request("empty", 0, 0, FOREVER_MS);
    line.send(12, &waits, None).await;
    line.send(12, &waits, all_of(&broker).await).await;
    lets_go_in_time(&broker, &line).await;
}

fn join_request(member: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: "group".to_owned(),
        session_timeout_ms: 1_800_000,
        rebalance_timeout_ms: FOREVER_MS,
        protocol_type: "consumer".to_owned(),
        protocols: vec![JoinGroupRequestProtocol {
            name: "range".to_owned(),
            metadata: Bytes::from(member.to_owned()),
        }],
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_join_that_waits_keeps_no_room_and_ends_with_its_connection() {
    let broker = broker_with(|_| ()).await;
    let mut first = Client::connect(&broker);
    let joined = first.ask(3, join_request("first")).await;
    assert_eq!(joined.error_code, ErrorCode::NONE);
    let mut line = Line::new(&broker);
    line.send(3, &join_request("second"), all_of(&broker).await)
        .await;
    let began = Instant::now();
    drop(all_of(&broker).await);
    assert!(began.elapsed() < Duration::from_secs(1));
    line.settled().await;
    assert!(line.answers.is_empty(), "the first one has to come again");
    drop(line.to_serve);
    let frame = line.answers.recv().await.expect("an answer");
    assert!(began.elapsed() < Duration::from_secs(1));
    let answer = decode_response::<JoinGroupRequest>(frame, 3).expect("decodes");
    assert_eq!(answer.1.error_code, ErrorCode::NOT_COORDINATOR);
}

async fn append(broker: &Broker, value_bytes: usize) {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(START_MS, None, Some(&vec![7; value_bytes]), &[]);
    let batch = builder.finish(ProducerStamp::NONE).expect("builds");
    let request = produce_request("orders", 0, batch);
    let answer = Client::connect(broker).ask(9, request).await;
    let appended = &answer.responses[0].partition_responses[0];
    assert_eq!(appended.error_code, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn an_answer_behind_a_request_that_waits_keeps_its_room_only_while_nobody_needs_it() {
    let broker = broker_with(|_| ()).await;
    append(&broker, MIB * 3 / 4).await;
    let line = Line::new(&broker);
    let waits = fetch_request("empty", 0, 0, FOREVER_MS);
    line.send(12, &waits, None).await;
    let large = fetch_request("orders", 0, 0, 0);
    line.send(12, &large, None).await;
    line.settled().await;
    let memory = &broker.node().memory;
    assert!(memory.answer_bytes_free() < MIB / 2, "it has its records");
    let began = Instant::now();
    let mut line = line;
    let taking = async {
        while line.answers.recv().await.is_some() {}
        std::future::pending().await
    };
    let room = tokio::select! {
        biased;
        () = taking => None,
        room = tokio::time::timeout(4 * PATIENCE, memory.answer_room(MIB)) => room.ok(),
    };
    assert!(room.is_some(), "somebody holds it for longer");
    assert!(began.elapsed() < PATIENCE + Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn answers_without_room_wait_for_an_older_one_up_to_a_small_answer() {
    let broker = broker_with(|_| ()).await;
    append(&broker, SMALL_ANSWER_BYTES * 3 / 4).await;
    let line = Line::new(&broker);
    let waits = fetch_request("empty", 0, 0, FOREVER_MS);
    line.send(12, &waits, None).await;
    for _ in 0..10 {
        line.send(12, &fetch_request("orders", 0, 0, 0), None).await;
    }
    line.settled().await;
    assert_eq!(line.queued(), 8, "two are answered, and more than enough");
}

#[tokio::test]
async fn a_peer_that_has_gone_is_noticed_though_its_connection_may_begin_nothing() {
    let broker = broker_with(|config| {
        config.connection_in_flight_max = 2;
        config.placement = Placement::Threads;
    })
    .await;
    let any = "127.0.0.1:0".parse().expect("an address");
    let address = broker.listen(any).await.expect("binds");
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let waits = fetch_request("empty", 0, 0, FOREVER_MS);
    let frame = encode_request(12, 1, Some("gone"), &waits).expect("encodes");
    let bytes = frame.into_contiguous();
    let framed = [&(bytes.len() as i32).to_be_bytes(), &bytes[..]].concat();
    stream.write_all(&framed.repeat(4)).await.expect("sent");
    let node = broker.node();
    let count = |wanted: usize| async move {
        let reached = async {
            while node.connection_count() != wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reached).await
    };
    count(1).await.expect("it is there");
    // Two are under way, two are in the queue.
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(stream);
    count(0).await.expect("nobody is there any more");
}

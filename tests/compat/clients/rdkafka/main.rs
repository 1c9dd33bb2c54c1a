//! rdkafka, the crate over librdkafka, as one of the clients of the matrix (suites/clients.py).
//!
//! Invariants: the records are those of suites/clients.py, byte for byte.
//! Never: part of Millstream's workspace.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::{c_char, CStr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::bindings::{rd_kafka_conf_dump, rd_kafka_topic_conf_dump, rd_kafka_topic_conf_new};
use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::util::get_rdkafka_version;
use rdkafka::{Offset, TopicPartitionList};

type Outcome<T> = Result<T, Box<dyn Error>>;

const RECORDS: i64 = 200;
const FIRST_TIMESTAMP: i64 = 1_700_000_000_000;
const PATIENCE: Duration = Duration::from_secs(30);

fn config(bootstrap: &str, more: &[(&str, &str)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    for (name, value) in more {
        config.set(*name, *value);
    }
    config
}

/// Keeps the offsets that come back, in their order.
#[derive(Clone, Default)]
struct Offsets(Arc<Mutex<Vec<Result<i64, KafkaError>>>>);

impl ClientContext for Offsets {}

impl ProducerContext for Offsets {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let found = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, _)) => Err(error.clone()),
        };
        self.0.lock().unwrap().push(found);
    }
}

type Sender = ThreadedProducer<Offsets>;

type Pair = (Option<Vec<u8>>, Option<Vec<u8>>);

fn standard(n: i64) -> Pair {
    let owned = |bytes: &[u8]| Some(bytes.to_vec());
    match n {
        0 => (owned(b"key"), owned(b"value")),
        1 => (None, owned(b"no key")),
        2 => (owned(b""), owned(b"")),
        3 => (owned(b"tombstone"), None),
        4 => (None, None),
        5 => (owned(b"\xff"), owned(b"\0")),
        _ => (
            Some(format!("k{n}").into()),
            Some(format!("compressible {n} ").repeat(20).into()),
        ),
    }
}

fn headers() -> OwnedHeaders {
    let mut headers = OwnedHeaders::new();
    for (key, value) in [
        ("h", Some("1")),
        ("h", Some("2")),
        ("empty", Some("")),
        ("null", None),
    ] {
        headers = headers.insert(Header { key, value });
    }
    headers
}

fn produce(bootstrap: &str, topic: &str, codec: &str) -> Outcome<()> {
    let offsets = Offsets::default();
    let settings = [("compression.type", codec), ("linger.ms", "20")];
    let producer: Sender = config(bootstrap, &settings).create_with_context(offsets.clone())?;
    for n in 0..RECORDS {
        let (key, value) = standard(n);
        let mut record = BaseRecord::to(topic)
            .partition(0)
            .timestamp(FIRST_TIMESTAMP + n);
        record.key = key.as_deref();
        record.payload = value.as_deref();
        if n == 0 {
            record = record.headers(headers());
        }
        producer.send(record).map_err(|(error, _)| error)?;
    }
    producer.flush(PATIENCE)?;
    let found: Result<Vec<i64>, KafkaError> = offsets.0.lock().unwrap().iter().cloned().collect();
    let found = found?;
    if found != (0..RECORDS).collect::<Vec<_>>() {
        return Err(format!("offsets {found:?}").into());
    }
    println!("done");
    Ok(())
}

fn shown(value: Option<&[u8]>) -> String {
    value.map_or("-".to_owned(), |value| {
        value
            .iter()
            .fold("x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
    })
}

fn show(message: &BorrowedMessage<'_>) {
    let mut fields = vec![
        message.partition().to_string(),
        message.offset().to_string(),
        message.timestamp().to_millis().unwrap_or(-1).to_string(),
        shown(message.key()),
        shown(message.payload()),
    ];
    for header in message.headers().iter().flat_map(|headers| headers.iter()) {
        fields.push(format!("{}={}", header.key, shown(header.value)));
    }
    println!("{}", fields.join(" "));
}

fn dump(bootstrap: &str, topic: &str, partitions: i32) -> Outcome<()> {
    let settings = [
        ("group.id", "none"),
        ("isolation.level", "read_committed"),
        ("enable.partition.eof", "true"),
    ];
    let consumer: BaseConsumer = config(bootstrap, &settings).create()?;
    let mut all = TopicPartitionList::new();
    for partition in 0..partitions {
        all.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&all)?;
    let mut left: BTreeSet<i32> = (0..partitions).collect();
    while !left.is_empty() {
        match consumer.poll(Duration::from_secs(1)) {
            None => {}
            Some(Ok(message)) => show(&message),
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                left.remove(&partition);
            }
            Some(Err(error)) => return Err(error.into()),
        }
    }
    println!("done");
    Ok(())
}

/// Says how many partitions there are after each change.
struct Saying;

impl ClientContext for Saying {}

impl ConsumerContext for Saying {
    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(_) = rebalance {
            println!(
                "assigned {}",
                consumer.assignment().map_or(0, |all| all.count())
            );
        }
    }
}

static STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: i32) {
    STOPPED.store(true, Ordering::Relaxed);
}

extern "C" {
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
}

const SIGTERM: i32 = 15;

fn group(bootstrap: &str, topic: &str, group: &str) -> Outcome<()> {
    // SAFETY: the handler stores into an atomic and does nothing else.
    unsafe { signal(SIGTERM, stop) };
    let settings = [
        ("group.id", group),
        ("auto.offset.reset", "earliest"),
        ("session.timeout.ms", "6000"),
        ("heartbeat.interval.ms", "500"),
    ];
    let consumer: BaseConsumer<Saying> =
        config(bootstrap, &settings).create_with_context(Saying)?;
    consumer.subscribe(&[topic])?;
    while !STOPPED.load(Ordering::Relaxed) {
        if let Some(message) = consumer.poll(Duration::from_millis(200)) {
            let message = message?;
            println!("record {} {}", message.partition(), message.offset());
        }
    }
    Ok(())
}

fn transactional(bootstrap: &str, id: &str) -> Outcome<Sender> {
    let settings = [("transactional.id", id)];
    let producer: Sender = config(bootstrap, &settings).create_with_context(Offsets::default())?;
    producer.init_transactions(PATIENCE)?;
    Ok(producer)
}

fn send(producer: &Sender, topic: &str, value: &str) -> Outcome<()> {
    let record = BaseRecord::<(), str>::to(topic).partition(0).payload(value);
    Ok(producer.send(record).map_err(|(error, _)| error)?)
}

fn transactions(bootstrap: &str, topic: &str, id: &str) -> Outcome<()> {
    let producer = transactional(bootstrap, id)?;
    for name in ["first", "aborted", "second"] {
        producer.begin_transaction()?;
        for n in 0..5 {
            send(&producer, topic, &format!("{name}{n}"))?;
        }
        if name == "aborted" {
            producer.flush(PATIENCE)?;
            producer.abort_transaction(PATIENCE)?;
        } else {
            producer.commit_transaction(PATIENCE)?;
        }
    }
    println!("done");
    Ok(())
}

fn fence(bootstrap: &str, topic: &str, id: &str) -> Outcome<()> {
    let first = transactional(bootstrap, id)?;
    first.begin_transaction()?;
    send(&first, topic, "lost")?;
    first.flush(PATIENCE)?;
    let second = transactional(bootstrap, id)?;
    second.begin_transaction()?;
    send(&second, topic, "kept")?;
    second.commit_transaction(PATIENCE)?;
    match first.commit_transaction(PATIENCE) {
        Err(KafkaError::Transaction(error)) if error.code() == RDKafkaErrorCode::Fenced => {
            println!("fenced");
            Ok(())
        }
        other => Err(format!("not fenced: {other:?}").into()),
    }
}

/// What librdkafka has where nothing is set, under its own names, settings of topics among them.
fn defaults() -> Outcome<()> {
    // SAFETY: both configurations are valid and live longer than what is read of them.
    unsafe {
        let (mut count, native) = (0, ClientConfig::new().create_native_config()?);
        print(rd_kafka_conf_dump(native.ptr(), &mut count), count);
        print(
            rd_kafka_topic_conf_dump(rd_kafka_topic_conf_new(), &mut count),
            count,
        );
    }
    Ok(())
}

/// SAFETY: `words` are so many strings that end in zero, names and values in turn.
unsafe fn print(words: *mut *const c_char, count: usize) {
    let word = |n| CStr::from_ptr(*words.add(n)).to_string_lossy();
    for n in (0..count).step_by(2) {
        println!("{}={}", word(n), word(n + 1));
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [_, "version"] => println!("0.39.0 with librdkafka {}", get_rdkafka_version().1),
        [_, "defaults"] => defaults()?,
        [bootstrap, "produce", topic, codec] => produce(bootstrap, topic, codec)?,
        [bootstrap, "dump", topic, partitions] => dump(bootstrap, topic, partitions.parse()?)?,
        [bootstrap, "group", topic, name] => group(bootstrap, topic, name)?,
        [bootstrap, "transactions", topic, id] => transactions(bootstrap, topic, id)?,
        [bootstrap, "fence", topic, id] => fence(bootstrap, topic, id)?,
        _ => return Err("no such command".into()),
    }
    Ok(())
}

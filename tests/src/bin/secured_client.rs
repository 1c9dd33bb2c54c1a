//! A program for `tests/compat --suite security`: every kind of client against a listener that asks
//! for TLS or SASL, and what it says where the listener does not let it in.
//!
//! Invariants: prints one line a result, machine-readable; an error is told by its kind and by its
//! text; exit code 1 where anything failed.
//! Never: knows which listener it talks to; that is in the properties file.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use millstream::client::consumer::{AutoOffsetReset, Consumer, ConsumerError};
use millstream::client::{
    Admin, AdminError, ClientConfig, ClusterError, DeliveryError, NewTopic, Producer,
    ProducerRecord, Security, SecurityError, TransactionError, UsageError,
};
use millstream::prelude::{StreamsBuilder, TopicPartition, strings};
use millstream::streams::{Streams, StreamsError};
use tokio::time::Instant;

const RECORDS: usize = 100;
/// No refusal may take longer than this, however long the time-outs are.
const PROMPT: Duration = Duration::from_secs(8);

#[tokio::main]
#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is the program's output"
)]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, bootstrap, file, topic] = arguments.as_slice() else {
        eprintln!("usage: secured_client round-trip|refusals|steady HOST:PORT PROPERTIES TOPIC");
        return ExitCode::from(2);
    };
    let say = |line: String| println!("{line}");
    let outcome = async {
        let text = std::fs::read_to_string(file)?;
        let place = Place {
            bootstrap: bootstrap.clone(),
            client: ClientConfig {
                security: Security::from_properties(&text)?,
                ..ClientConfig::default()
            },
            topic: topic.clone(),
        };
        match command.as_str() {
            "round-trip" => round_trip(&place, &say).await,
            "refusals" => refusals(&place, &say).await,
            "steady" => steady(&place, &say).await,
            other => bail!("no command {other}"),
        }
    };
    let code = match outcome.await {
        Ok(()) => 0,
        Err(error) => {
            println!("failed: {} {error:#}", kind_of(&error));
            1
        }
    };
    // The runtime would wait for the thread that reads stdin.
    std::process::exit(code)
}

/// Where the cluster is, and how it is reached.
struct Place {
    bootstrap: String,
    client: ClientConfig,
    topic: String,
}

impl Place {
    async fn producer(&self, transactional_id: Option<&str>) -> anyhow::Result<Producer> {
        let mut builder = Producer::builder().client(self.client.clone());
        if let Some(id) = transactional_id {
            builder = builder.transactional_id(id);
        }
        Ok(builder.connect(&self.bootstrap).await?)
    }

    async fn consumer(&self, group: Option<&str>) -> anyhow::Result<Consumer> {
        let mut builder = Consumer::builder()
            .client(self.client.clone())
            .auto_offset_reset(AutoOffsetReset::Earliest);
        if let Some(group) = group {
            builder = builder.group_id(group);
        }
        Ok(builder.connect(&self.bootstrap).await?)
    }

    fn admin(&self) -> Admin {
        Admin::with(&self.bootstrap, self.client.clone())
    }

    fn record(&self, value: String) -> ProducerRecord {
        ProducerRecord::new(self.topic.as_str()).value(value)
    }
}

type Say<'a> = &'a dyn Fn(String);

/// Creates the topic, writes with and without transactions, and reads all of it in a group.
async fn round_trip(place: &Place, say: Say<'_>) -> anyhow::Result<()> {
    place
        .admin()
        .create_topic(&NewTopic::new(place.topic.as_str(), 1))
        .await?;
    let producer = place.producer(None).await?;
    let mut deliveries = Vec::new();
    for number in 0..RECORDS {
        let record = place.record(format!("plain {number}"));
        deliveries.push(producer.send(record).await?);
    }
    for delivery in deliveries {
        delivery.await?;
    }
    let transactional = place.producer(Some(&format!("{}-id", place.topic))).await?;
    transactional.init_transactions().await?;
    for commits in [false, true] {
        transactional.begin()?;
        for number in 0..RECORDS {
            let record = place.record(format!("committed {commits} {number}"));
            // The end of the transaction tells what became of it.
            drop(transactional.send(record).await?);
        }
        if commits {
            transactional.commit().await?;
        } else {
            transactional.abort().await?;
        }
    }
    let consumer = place
        .consumer(Some(&format!("{}-group", place.topic)))
        .await?;
    consumer.subscribe([place.topic.as_str()])?;
    let mut seen = BTreeSet::new();
    let started = Instant::now();
    while seen.len() < 2 * RECORDS && started.elapsed() < Duration::from_secs(30) {
        seen.extend(values(&consumer).await?);
    }
    consumer.commit().await?;
    consumer.close().await?;
    say(format!("read {} of {}", seen.len(), 2 * RECORDS));
    if seen.len() != 2 * RECORDS
        || seen
            .iter()
            .any(|value| value.starts_with("committed false"))
    {
        bail!("read {seen:?}");
    }
    Ok(())
}

async fn values(consumer: &Consumer) -> anyhow::Result<Vec<String>> {
    let records = consumer.poll(Duration::from_millis(500)).await?;
    let mut values = Vec::new();
    for record in records {
        let value = record.value.context("every record has a value")?;
        values.push(String::from_utf8(value.to_vec())?);
    }
    Ok(values)
}

/// Asks for something with every kind of client, and says how each was refused.
async fn refusals(place: &Place, say: Say<'_>) -> anyhow::Result<()> {
    let partition = [TopicPartition::new(place.topic.as_str(), 0)];
    let mut slow = Vec::new();
    let mut tell = |surface: &str, started: Instant, outcome: anyhow::Result<()>| {
        let took = started.elapsed();
        let told = match outcome {
            Ok(()) => "let-in".to_owned(),
            Err(error) => format!("{} {error:#}", kind_of(&error)),
        };
        say(format!("{surface}: {told}"));
        if took > PROMPT {
            slow.push(format!("{surface} took {took:?}"));
        }
    };
    let started = Instant::now();
    let listed = place.admin().topics().await;
    tell("admin", started, listed.map(drop).map_err(Into::into));
    let started = Instant::now();
    let sent = async {
        let producer = place.producer(None).await?;
        producer.send(place.record("x".to_owned())).await?.await?;
        Ok(())
    };
    tell("producer", started, sent.await);
    let started = Instant::now();
    let initialised = async {
        let producer = place.producer(Some("refused-id")).await?;
        Ok(producer.init_transactions().await?)
    };
    tell("transactions", started, initialised.await);
    let started = Instant::now();
    let polled = async {
        let consumer = place.consumer(Some("refused-group")).await?;
        consumer.subscribe([place.topic.as_str()])?;
        consumer.poll(Duration::from_secs(20)).await?;
        Ok(())
    };
    tell("group", started, polled.await);
    let started = Instant::now();
    let polled = async {
        let consumer = place.consumer(None).await?;
        consumer.assign(partition.to_vec())?;
        consumer.poll(Duration::from_secs(20)).await?;
        Ok(())
    };
    tell("reader", started, polled.await);
    let started = Instant::now();
    let asked = async {
        let consumer = place.consumer(None).await?;
        consumer.end_offsets(&partition).await?;
        Ok(())
    };
    tell("offsets", started, asked.await);
    let started = Instant::now();
    tell("streams", started, stream(place).await);
    if !slow.is_empty() {
        bail!("not prompt: {slow:?}");
    }
    Ok(())
}

async fn stream(place: &Place) -> anyhow::Result<()> {
    let builder = StreamsBuilder::new();
    builder
        .stream(&place.topic, strings())
        .to(&format!("{}-copy", place.topic), strings());
    let running = Streams::new("refused-job", builder.build()?)
        .bootstrap(&place.bootstrap)
        .client(place.client.clone())
        .start()
        .await?;
    running.stop().await?;
    Ok(())
}

/// Writes in transactions and reads, until stdin ends; then everything has to have arrived.
async fn steady(place: &Place, say: Say<'_>) -> anyhow::Result<()> {
    place
        .admin()
        .create_topic(&NewTopic::new(place.topic.as_str(), 1))
        .await?;
    let producer = place.producer(Some(&format!("{}-id", place.topic))).await?;
    producer.init_transactions().await?;
    let consumer = place
        .consumer(Some(&format!("{}-group", place.topic)))
        .await?;
    consumer.subscribe([place.topic.as_str()])?;
    let mut seen = Vec::new();
    let mut sent = 0;
    let mut end = tokio::task::spawn_blocking(|| {
        // Whatever comes, and the end of it: then it is over.
        let _ = std::io::stdin().read_line(&mut String::new());
    });
    while !end.is_finished() {
        producer.begin()?;
        for _ in 0..10 {
            drop(producer.send(place.record(sent.to_string())).await?);
            sent += 1;
        }
        producer.commit().await?;
        seen.extend(values(&consumer).await?);
        if sent == 10 {
            say("running".to_owned());
        }
    }
    (&mut end).await?;
    let started = Instant::now();
    while seen.len() < sent && started.elapsed() < Duration::from_secs(20) {
        seen.extend(values(&consumer).await?);
    }
    let whole = seen
        .iter()
        .enumerate()
        .all(|(i, value)| *value == i.to_string());
    say(format!("read {} of {sent}, in order: {whole}", seen.len()));
    if seen.len() != sent || !whole {
        bail!("lost or repeated");
    }
    Ok(())
}

/// The refusal inside an error, of whichever client.
fn refusal(error: &anyhow::Error) -> Option<Arc<SecurityError>> {
    fn of_cluster(error: &ClusterError) -> Option<Arc<SecurityError>> {
        error.security().cloned()
    }
    fn of_transaction(error: &TransactionError) -> Option<Arc<SecurityError>> {
        match error {
            TransactionError::Security { error, .. } => Some(Arc::clone(error)),
            _ => None,
        }
    }
    fn of_consumer(error: &ConsumerError) -> Option<Arc<SecurityError>> {
        match error {
            ConsumerError::Cluster(error) => of_cluster(error),
            _ => None,
        }
    }
    if let Some(error) = error.downcast_ref::<StreamsError>() {
        return match error {
            StreamsError::Transaction(error) => of_transaction(error),
            StreamsError::Consumer(error) => of_consumer(error),
            StreamsError::Cluster(error) => of_cluster(error),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<TransactionError>() {
        return of_transaction(error);
    }
    if let Some(error) = error.downcast_ref::<ConsumerError>() {
        return of_consumer(error);
    }
    if let Some(UsageError::Security { error }) = error.downcast_ref::<UsageError>() {
        return Some(Arc::clone(error));
    }
    match (
        error.downcast_ref::<AdminError>(),
        error.downcast_ref::<DeliveryError>(),
    ) {
        (Some(AdminError::Cluster(error)), _) => of_cluster(error),
        (_, Some(DeliveryError::Metadata { error })) => of_cluster(error),
        (_, Some(DeliveryError::Security { error, .. })) => Some(Arc::clone(error)),
        _ => None,
    }
}

/// One word for what went wrong.
fn kind_of(error: &anyhow::Error) -> &'static str {
    match refusal(error).as_deref() {
        Some(SecurityError::AuthenticationFailed { .. }) => "AuthenticationFailed",
        Some(SecurityError::MechanismNotOffered { .. }) => "MechanismNotOffered",
        Some(SecurityError::NoSasl { .. }) => "NoSasl",
        Some(SecurityError::BrokerNotProven { .. }) => "BrokerNotProven",
        Some(SecurityError::Tls { .. }) => "Tls",
        Some(SecurityError::CertificateExpired { .. }) => "CertificateExpired",
        Some(SecurityError::TlsListener { .. }) => "TlsListener",
        Some(SecurityError::Settings(_)) => "Settings",
        _ => "Other",
    }
}

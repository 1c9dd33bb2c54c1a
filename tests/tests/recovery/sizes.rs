//! Records, outputs and dead letters that are too large.
//!
//! Invariants: a dead letter is the record itself; what cannot become one ends the job with the
//! settings that would let it.
//! Never: a batch that is too large for its topic only because several records share it.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use millstream::client::consumer::ConsumerRecord;
use millstream::client::{Admin, ConfigChange, NewTopic, Producer, ProducerRecord};
use millstream::formats::protocol::ApiKey;
use millstream::prelude::{PoisonPolicy, json};
use millstream::streams::{Placement, Streams, StreamsBuilder, StreamsError, Topology, strings};
use tests::gate::{Gate, Kind};
use tests::oracle::header;
use tests::under_test::BrokerUnderTest;

use super::caught_up;

const DEAD: &str = "dead";

async fn put(cluster: &BrokerUnderTest, values: &[Vec<u8>]) -> anyhow::Result<()> {
    let builder = Producer::idempotent().client(cluster.client(3));
    let producer = builder.max_request_size(8 << 20).connect(cluster).await?;
    for value in values {
        let record = ProducerRecord::new(cluster.name("in"))
            .partition(0)
            .key("k");
        producer
            .send(record.value(Bytes::copy_from_slice(value)))
            .await?
            .await?;
    }
    Ok(())
}

fn configured(cluster: &BrokerUnderTest, topology: Topology) -> Streams {
    Streams::new(&cluster.name("sizes"), topology)
        .connect(cluster)
        .client(cluster.client(1))
        .placement(Placement::Runtime)
        .poison(PoisonPolicy::dead_letter(cluster.name(DEAD)))
}

async fn read(cluster: &BrokerUnderTest, topic: &str) -> anyhow::Result<Vec<ConsumerRecord>> {
    Ok(cluster.read(topic).await?.0)
}

/// Both topics take a mebibyte, and the record nearly fills it: what is said about it is cut.
#[tokio::test(start_paused = true)]
async fn a_poison_record_as_large_as_its_topic_takes_becomes_a_dead_letter() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    let large = vec![b'x'; 1_048_200];
    put(&cluster, &[b"1".to_vec(), large.clone(), b"2".to_vec()]).await?;
    let builder = StreamsBuilder::new();
    builder
        .stream(&cluster.name("in"), json::<String, u64>())
        .to(&cluster.name("out"), json());
    let mut running = configured(&cluster, builder.build()?).start().await?;
    caught_up(&cluster, &mut running).await?;
    running.stop().await?;
    assert_eq!(read(&cluster, "out").await?.len(), 2);
    let letters = read(&cluster, DEAD).await?;
    let [letter] = letters.as_slice() else {
        panic!("{} dead letters", letters.len());
    };
    assert_eq!(letter.value.as_deref(), Some(large.as_slice()));
    assert_eq!(letter.headers.iter().count(), 6);
    let topic = cluster.name("in");
    for (name, expected) in [
        ("topic", topic.as_str()),
        ("partition", "0"),
        ("offset", "1"),
    ] {
        let found = header(letter, &format!("__streams.errors.{name}"));
        assert_eq!(found.as_deref(), Some(expected));
    }
    Ok(())
}

/// The cause quotes the record at length; the dead letter does not.
#[tokio::test(start_paused = true)]
async fn what_a_dead_letter_says_is_short() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    let quoted = "y".repeat(400_000);
    put(&cluster, &[quoted.clone().into_bytes()]).await?;
    let builder = StreamsBuilder::new();
    builder
        .stream(&cluster.name("in"), strings())
        .try_map_values(|_, value: String| match value.parse::<u64>() {
            Ok(number) => Ok(number.to_string()),
            Err(_) => Err(format!("no number: {value}")),
        })
        .to(&cluster.name("out"), strings());
    let mut running = configured(&cluster, builder.build()?).start().await?;
    caught_up(&cluster, &mut running).await?;
    running.stop().await?;
    let letters = read(&cluster, DEAD).await?;
    assert_eq!(letters.len(), 1);
    for name in ["exception", "message", "stacktrace"] {
        let text = header(&letters[0], &format!("__streams.errors.{name}"));
        let text = text.context("a text")?;
        assert!(!text.is_empty() && text.len() <= 2_048, "{}", text.len());
    }
    Ok(())
}

/// The output is too large for its topic, or for any request: its record is poison, and none of its
/// outputs is there.
#[tokio::test(start_paused = true)]
async fn a_record_whose_output_is_too_large_is_poison_and_the_job_goes_on() -> anyhow::Result<()> {
    for times in [1_000, 6_000_000] {
        let cluster = BrokerUnderTest::start(3).await?;
        let admin = Admin::with(&cluster, cluster.client(9));
        let narrow = NewTopic::new(cluster.name("wide"), 4).config("max.message.bytes", 700);
        admin.create_topic(&narrow).await?;
        put(&cluster, &[b"a".to_vec(), b"large".to_vec(), b"b".to_vec()]).await?;
        let builder = StreamsBuilder::new();
        let values = builder.stream(&cluster.name("in"), strings());
        values.clone().to(&cluster.name("out"), strings());
        values
            .map_values(move |_, value: String| match value.as_str() {
                "large" => "z".repeat(times),
                _ => value,
            })
            .to(&cluster.name("wide"), strings());
        let mut running = configured(&cluster, builder.build()?).start().await?;
        caught_up(&cluster, &mut running).await?;
        let progress = running.stop().await?;
        assert_eq!(progress.rewinds, 0, "{progress:?}");
        assert_eq!(read(&cluster, "out").await?.len(), 2);
        assert_eq!(read(&cluster, "wide").await?.len(), 2);
        let letters = read(&cluster, DEAD).await?;
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0].value.as_deref(), Some(&b"large"[..]));
        let message = header(&letters[0], "__streams.errors.message").context("a message")?;
        assert!(
            message.contains(&cluster.name("wide")) && message.contains("700"),
            "{message}"
        );
    }
    Ok(())
}

/// Beyond what topics usually take.
const LARGE: usize = 1_500_000;

fn large_topic(cluster: &BrokerUnderTest, name: &str) -> NewTopic {
    NewTopic::new(cluster.name(name), 4).config("max.message.bytes", 3_000_000)
}

/// Makes a few megabytes of a small number.
fn enlarging(cluster: &BrokerUnderTest) -> anyhow::Result<Topology> {
    let builder = StreamsBuilder::new();
    builder
        .stream(&cluster.name("in"), json::<String, u64>())
        .map_values(|_, number: u64| "7".repeat(number as usize * 300_000))
        .to(&cluster.name("out"), json());
    Ok(builder.build()?)
}

/// Topics that take more than the usual mebibyte get it.
#[tokio::test(start_paused = true)]
async fn what_a_topic_takes_is_what_counts() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(5).await?;
    let admin = Admin::with(&cluster, cluster.client(9));
    for name in ["in", "out", DEAD] {
        admin.create_topic(&large_topic(&cluster, name)).await?;
    }
    let number = " ".repeat(LARGE) + "7";
    put(&cluster, &[vec![b'x'; LARGE], number.into_bytes()]).await?;
    let mut running = configured(&cluster, enlarging(&cluster)?).start().await?;
    caught_up(&cluster, &mut running).await?;
    running.stop().await?;
    assert_eq!(read(&cluster, "out").await?.len(), 1);
    assert_eq!(read(&cluster, DEAD).await?.len(), 1);
    Ok(())
}

/// Brokers hear of a new topic one after another, so that one may not know it when the job starts.
#[tokio::test(start_paused = true)]
async fn a_topic_that_is_made_after_the_start_is_asked_what_it_takes() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(8).await?;
    let admin = Admin::with(&cluster, cluster.client(9));
    admin.create_topic(&large_topic(&cluster, "in")).await?;
    let mut running = configured(&cluster, enlarging(&cluster)?).start().await?;
    for name in ["out", DEAD] {
        admin.create_topic(&large_topic(&cluster, name)).await?;
    }
    put(&cluster, &[vec![b'x'; LARGE], b"7".to_vec()]).await?;
    caught_up(&cluster, &mut running).await?;
    running.stop().await?;
    assert_eq!(read(&cluster, "out").await?.len(), 1);
    assert_eq!(read(&cluster, DEAD).await?.len(), 1);
    Ok(())
}

async fn widen(cluster: &BrokerUnderTest, topic: &str, bytes: usize) -> anyhow::Result<()> {
    let admin = Admin::with(cluster, cluster.client(9));
    let change = ConfigChange::Set("max.message.bytes".into(), bytes.to_string());
    admin
        .alter_topic_configs(&cluster.name(topic), &[change])
        .await?;
    Ok(())
}

/// What a topic takes changes while the job runs: both ways it is what counts from then on.
#[tokio::test(start_paused = true)]
async fn a_limit_that_is_changed_later_counts_from_then_on() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(6).await?;
    let admin = Admin::with(&cluster, cluster.client(9));
    let narrow = NewTopic::new(cluster.name("out"), 4).config("max.message.bytes", 700);
    admin.create_topic(&narrow).await?;
    put(&cluster, &[b"1".to_vec()]).await?;
    let builder = StreamsBuilder::new();
    builder
        .stream(&cluster.name("in"), json::<String, u64>())
        .map_values(|_, times: u64| "7".repeat(times as usize))
        .to(&cluster.name("out"), json());
    let mut running = configured(&cluster, builder.build()?).start().await?;
    caught_up(&cluster, &mut running).await?;

    widen(&cluster, "out", 5_000).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    put(&cluster, &[b"3000".to_vec()]).await?;
    caught_up(&cluster, &mut running).await?;
    assert_eq!(read(&cluster, "out").await?.len(), 2, "it takes more now");
    assert_eq!(read(&cluster, DEAD).await?.len(), 0);

    widen(&cluster, "out", 700).await?;
    put(&cluster, &[b"3000".to_vec(), b"5".to_vec()]).await?;
    caught_up(&cluster, &mut running).await?;
    let progress = running.stop().await?;
    assert!(progress.rewinds > 0, "the topic refused once: {progress:?}");
    assert_eq!(read(&cluster, "out").await?.len(), 3);
    assert_eq!(read(&cluster, DEAD).await?.len(), 1, "it takes less now");
    Ok(())
}

/// Whoever may not describe a topic's settings still writes to it what it takes.
#[tokio::test(start_paused = true)]
async fn a_topic_that_does_not_say_what_it_takes_is_given_what_a_request_holds()
-> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(7).await?;
    let admin = Admin::with(&cluster, cluster.client(9));
    let wide = NewTopic::new(cluster.name("out"), 4).config("max.message.bytes", 3_000_000);
    admin.create_topic(&wide).await?;
    put(&cluster, &[b"2000000".to_vec()]).await?;
    let gate = Gate::new(&cluster);
    let never = Duration::from_secs(1_000_000);
    gate.hold(Kind::Request(ApiKey::DescribeConfigs), usize::MAX, never);
    let builder = StreamsBuilder::new();
    builder
        .stream(&cluster.name("in"), json::<String, u64>())
        .map_values(|_, times: u64| "7".repeat(times as usize))
        .to(&cluster.name("out"), json());
    let topology = builder.build()?;
    let streams = configured(&cluster, topology).connect(&gate);
    let mut running = streams.start().await?;
    caught_up(&cluster, &mut running).await?;
    running.stop().await?;
    assert_eq!(read(&cluster, "out").await?.len(), 1);
    assert_eq!(read(&cluster, DEAD).await?.len(), 0);
    Ok(())
}

/// The dead-letter topic takes less than the record is: the job says what to raise, and does it
/// once that is done.
#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_fits_nowhere_ends_the_job_with_the_settings_to_raise()
-> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(4).await?;
    let admin = Admin::with(&cluster, cluster.client(9));
    let narrow = NewTopic::new(cluster.name(DEAD), 4).config("max.message.bytes", 1_000);
    admin.create_topic(&narrow).await?;
    put(&cluster, &[vec![b'x'; 2_000]]).await?;
    let builder = StreamsBuilder::new();
    builder
        .stream(&cluster.name("in"), json::<String, u64>())
        .to(&cluster.name("out"), json());
    let topology = builder.build()?;
    let mut running = configured(&cluster, topology.clone()).start().await?;
    let ended = tokio::time::timeout(Duration::from_secs(60), running.ended()).await?;
    let error = ended.expect_err("it fits nowhere");
    assert!(
        matches!(error, StreamsError::DeadLetterTooLarge { offset: 0, .. }),
        "{error}"
    );
    let text = error.to_string();
    let (input, dead) = (cluster.partition("in", 0).to_string(), cluster.name(DEAD));
    for part in [&*input, &*dead, "max.message.bytes", "max.request.size"] {
        assert!(text.contains(part), "{text}");
    }
    cluster.delete(DEAD).await?;
    admin
        .create_topic(&NewTopic::new(cluster.name(DEAD), 4))
        .await?;
    let mut again = configured(&cluster, topology).start().await?;
    caught_up(&cluster, &mut again).await?;
    again.stop().await?;
    assert_eq!(read(&cluster, DEAD).await?.len(), 1);
    Ok(())
}

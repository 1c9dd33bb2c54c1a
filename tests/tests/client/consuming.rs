//! Readers, alone and in groups.
//!
//! Invariants: a reader begins where its offset or its policy says, and leaves nothing out.
//! Never: a member that is left behind in a group.

use std::time::Duration;

use anyhow::Context as _;
use millstream::client::consumer::{AutoOffsetReset, Consumer, ConsumerError, GroupProtocol};
use millstream::client::{ClientConfig, OffsetAndMetadata, Producer, ProducerRecord};
use tests::copying;
use tests::under_test::BrokerUnderTest;

use super::{earliest, producer, take, texts, until};

#[tokio::test(start_paused = true)]
async fn a_group_without_offsets_begins_where_its_policy_says() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    copying::produce(&cluster, 0..20).await?;
    let partition = cluster.partition("in", 0);
    let with = async |reset: AutoOffsetReset| {
        let builder = Consumer::builder().client(cluster.client(1));
        let group = cluster.name(&format!("{reset:?}"));
        let consumer = builder
            .group_id(group)
            .auto_offset_reset(reset)
            .connect(&cluster)
            .await?;
        consumer.assign(vec![partition.clone()])?;
        anyhow::Ok(consumer)
    };
    let first = with(AutoOffsetReset::Earliest).await?;
    assert_eq!(take(&first, 5).await?[0].offset, 0);
    let last = with(AutoOffsetReset::Latest).await?;
    until("the end to be looked up", async || {
        last.poll(Duration::from_millis(50)).await?;
        Ok(last.position(&partition).is_some())
    })
    .await?;
    copying::produce(&cluster, 20..24).await?;
    assert_eq!(take(&last, 1).await?[0].offset, 5);
    let none = with(AutoOffsetReset::None).await?;
    let error = loop {
        if let Err(error) = none.poll(Duration::from_millis(200)).await {
            break error;
        }
    };
    assert!(matches!(error, ConsumerError::NoOffset { .. }), "{error:?}");
    Ok(())
}

/// With the first record that is young enough; where none is, at the end.
#[tokio::test(start_paused = true)]
async fn a_reset_by_duration_begins_where_records_are_young_enough() -> anyhow::Result<()> {
    const HOUR_MS: i64 = 3_600_000;
    let cluster = BrokerUnderTest::start(9).await?;
    let topic = cluster.create("aged", 1).await?;
    let producer = producer(&cluster, Producer::idempotent()).await?;
    let now_ms = cluster.client(1).clock.now_ms();
    let write = async |number: i64, hours: i64| {
        let record = ProducerRecord {
            timestamp: Some(now_ms - hours * HOUR_MS),
            ..ProducerRecord::new(&*topic).value(number.to_string())
        };
        producer.send(record).await?.await?;
        anyhow::Ok(())
    };
    for (number, hours) in [(0, 5), (1, 5), (2, 1), (3, 1)] {
        write(number, hours).await?;
    }
    let partition = cluster.partition("aged", 0);
    let with = async |number, reset: &str| {
        let builder = earliest(&cluster, number).set("auto.offset.reset", reset);
        let consumer = builder.connect(&cluster).await?;
        consumer.assign(vec![partition.clone()])?;
        anyhow::Ok(consumer)
    };
    for (number, reset, first) in [
        (1, "by_duration:P1D", "0"),
        (2, "by_duration:PT3H", "2"),
        (3, "by_duration:PT90M", "2"),
    ] {
        let consumer = with(number, reset).await?;
        assert_eq!(texts(&take(&consumer, 1).await?)[0], first, "{reset}");
        // A position that the log does not have is reset in the same way.
        consumer.seek(&partition, 1_000)?;
        assert_eq!(texts(&take(&consumer, 1).await?)[0], first, "{reset}");
    }
    let none = with(4, "by_duration:PT10M").await?;
    until("the end to be looked up", async || {
        assert!(none.poll(Duration::from_millis(50)).await?.is_empty());
        Ok(none.position(&partition) == Some(4))
    })
    .await?;
    write(4, 0).await?;
    assert_eq!(texts(&take(&none, 1).await?), ["4"]);
    Ok(())
}

/// Offsets with what was written beside them.
#[tokio::test(start_paused = true)]
async fn committed_offsets_come_back_with_their_metadata() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    copying::produce(&cluster, 0..20).await?;
    let group = cluster.name("g");
    let connect = async |number| {
        let consumer = earliest(&cluster, number)
            .group_id(&*group)
            .connect(&cluster)
            .await?;
        consumer.assign(vec![cluster.partition("in", 0), cluster.partition("in", 1)])?;
        anyhow::Ok(consumer)
    };
    let first = connect(1).await?;
    let noted = OffsetAndMetadata {
        metadata: "as far as \u{e9}".into(),
        ..OffsetAndMetadata::new(3)
    };
    let offsets = [(cluster.partition("in", 0), noted.clone())];
    first.commit_offsets(&offsets).await?;
    first.close().await?;
    let second = connect(2).await?;
    let both = [cluster.partition("in", 0), cluster.partition("in", 1)];
    let committed = second.committed(&both).await?;
    let found = committed[&both[0]].as_ref().context("a committed offset")?;
    assert_eq!((found.offset, &found.metadata), (3, &noted.metadata));
    assert!(committed[&both[1]].is_none());
    let records = take(&second, 7).await?;
    assert_eq!(
        records
            .iter()
            .filter(|record| record.partition == 0)
            .count(),
        2
    );
    second.close().await?;
    Ok(())
}

/// By either protocol: two members have two partitions each; when one leaves, the other one has
/// all, and reads on from what was committed.
#[tokio::test(start_paused = true)]
async fn a_group_shares_its_partitions_and_who_stays_takes_over() -> anyhow::Result<()> {
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        shares_and_takes_over(protocol)
            .await
            .with_context(|| protocol.name())?;
    }
    Ok(())
}

async fn shares_and_takes_over(protocol: GroupProtocol) -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(3).await?;
    copying::produce(&cluster, 0..40).await?;
    let member = async |number| {
        let consumer = earliest(&cluster, number)
            .group_id(cluster.name("g"))
            .group_protocol(protocol)
            .connect(&cluster)
            .await?;
        consumer.subscribe([cluster.name("in")])?;
        anyhow::Ok(consumer)
    };
    let (first, second) = (member(1).await?, member(2).await?);
    until("two partitions each", async || {
        first.poll(Duration::from_millis(50)).await?;
        second.poll(Duration::from_millis(50)).await?;
        Ok(first.assignment().len() == 2 && second.assignment().len() == 2)
    })
    .await?;
    first.commit().await?;
    second.commit().await?;
    second.close().await?;
    copying::produce(&cluster, 40..80).await?;
    until("all partitions", async || {
        first.poll(Duration::from_millis(50)).await?;
        Ok(first.assignment().len() == 4)
    })
    .await?;
    until("all records", async || {
        first.poll(Duration::from_millis(50)).await?;
        let positions = first.positions();
        Ok(positions.len() == 4 && positions.iter().all(|(_, offset)| *offset == 20))
    })
    .await?;
    first.commit().await?;
    first.close().await?;
    let committed = cluster.committed("g").await?;
    assert_eq!(committed.into_values().collect::<Vec<_>>(), [20; 4]);
    Ok(())
}

/// A member with an instance id that comes back has its partitions again, in the same generation.
#[tokio::test(start_paused = true)]
async fn a_static_member_that_comes_back_moves_nothing() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(4).await?;
    copying::produce(&cluster, 0..40).await?;
    let member = async |number: u64, instance: &str| {
        let consumer = earliest(&cluster, number)
            .group_id(cluster.name("g"))
            .group_instance_id(instance)
            .connect(&cluster)
            .await?;
        consumer.subscribe([cluster.name("in")])?;
        anyhow::Ok(consumer)
    };
    let (first, second) = (member(1, "a").await?, member(2, "b").await?);
    until("two partitions each", async || {
        first.poll(Duration::from_millis(50)).await?;
        second.poll(Duration::from_millis(50)).await?;
        Ok(first.assignment().len() == 2 && second.assignment().len() == 2)
    })
    .await?;
    let (before, had) = (first.group_metadata()?, second.assignment());
    // It leaves nothing to the group: its place stays its own.
    second.close().await?;
    let third = member(3, "b").await?;
    until("its partitions again", async || {
        first.poll(Duration::from_millis(20)).await?;
        third.poll(Duration::from_millis(20)).await?;
        Ok(third.assignment() == had)
    })
    .await?;
    let after = third.group_metadata()?;
    assert_eq!(after.generation_id, before.generation_id);
    assert_eq!(first.group_metadata()?, before);
    first.close_and_leave().await?;
    third.close_and_leave().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_reader_goes_where_it_is_told_and_stops_where_it_is_held() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(5).await?;
    copying::produce(&cluster, 0..80).await?;
    let (held, free) = (cluster.partition("in", 0), cluster.partition("in", 1));
    let consumer = earliest(&cluster, 1).connect(&cluster).await?;
    consumer.assign(vec![held.clone(), free.clone()])?;
    take(&consumer, 40).await?;
    consumer.pause(std::slice::from_ref(&held))?;
    consumer.seek(&held, 15)?;
    consumer.seek(&free, 10)?;
    let records = take(&consumer, 10).await?;
    assert!(
        records
            .iter()
            .all(|record| record.partition == 1 && record.offset >= 10)
    );
    assert!(consumer.poll(Duration::from_millis(500)).await?.is_empty());
    consumer.resume(std::slice::from_ref(&held))?;
    let records = take(&consumer, 5).await?;
    let offsets: Vec<i64> = records.iter().map(|record| record.offset).collect();
    assert_eq!(offsets, [15, 16, 17, 18, 19]);
    consumer.seek_to_beginning(&free)?;
    assert_eq!(take(&consumer, 20).await?[0].offset, 0);
    consumer.seek_to_end(&free)?;
    copying::produce(&cluster, 81..82).await?;
    assert_eq!(texts(&take(&consumer, 1).await?), ["81"]);
    Ok(())
}

/// By their ends, and by the times of their records.
#[tokio::test(start_paused = true)]
async fn offsets_are_found_by_end_and_by_time() -> anyhow::Result<()> {
    const BEGAN: i64 = 1_700_000_000_000;
    let cluster = BrokerUnderTest::start(6).await?;
    let topic = cluster.create("timed", 1).await?;
    let producer = producer(&cluster, Producer::idempotent()).await?;
    for number in 0..10 {
        let record = ProducerRecord {
            timestamp: Some(BEGAN + 1_000 * number),
            ..ProducerRecord::new(&*topic).value(number.to_string())
        };
        producer.send(record).await?.await?;
    }
    let consumer = earliest(&cluster, 1).connect(&cluster).await?;
    let partition = cluster.partition("timed", 0);
    let one = std::slice::from_ref(&partition);
    assert_eq!(consumer.beginning_offsets(one).await?[&partition], 0);
    assert_eq!(consumer.end_offsets(one).await?[&partition], 10);
    for (time, expected) in [
        (0, Some(0)),
        (3_500, Some(4)),
        (9_000, Some(9)),
        (9_001, None),
    ] {
        let asked = [(partition.clone(), BEGAN + time)];
        let found = consumer.offsets_for_times(&asked).await?;
        let found = found[&partition].as_ref().map(|found| found.offset);
        assert_eq!(found, expected, "{time}");
    }
    Ok(())
}

/// Larger than what a fetch may bring, and still handed out: nobody is stuck behind it.
#[tokio::test(start_paused = true)]
async fn a_record_larger_than_a_fetch_is_handed_out() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(7).await?;
    let topic = cluster.create("large", 1).await?;
    let producer = producer(&cluster, Producer::idempotent()).await?;
    for size in [10, 400_000, 20] {
        let record = ProducerRecord::new(&*topic).value("x".repeat(size));
        producer.send(record).await?.await?;
    }
    let builder = earliest(&cluster, 1).fetch_max_bytes(2_000);
    let consumer = builder
        .max_partition_fetch_bytes(1_000)
        .connect(&cluster)
        .await?;
    consumer.assign(vec![cluster.partition("large", 0)])?;
    let sizes: Vec<usize> = take(&consumer, 3)
        .await?
        .iter()
        .map(|record| record.value.as_ref().map_or(0, |value| value.len()))
        .collect();
    assert_eq!(sizes, [10, 400_000, 20]);
    Ok(())
}

/// The reader's position lies beyond the end of the new topic; its policy takes it back.
#[tokio::test(start_paused = true)]
async fn a_reader_of_a_topic_that_is_made_again_reads_the_new_one() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(8).await?;
    cluster.create("in", 4).await?;
    copying::produce(&cluster, 0..20).await?;
    // Asking for the topic would make it again.
    let patient = ClientConfig {
        allow_auto_create_topics: false,
        ..cluster.client(100)
    };
    let builder = earliest(&cluster, 1).client(patient);
    let consumer = builder.connect(&cluster).await?;
    consumer.assign(
        (0..4)
            .map(|number| cluster.partition("in", number))
            .collect(),
    )?;
    assert_eq!(take(&consumer, 20).await?.len(), 20);
    cluster.delete("in").await?;
    // It asks for a topic that is not there meanwhile.
    consumer.poll(Duration::from_millis(300)).await?;
    cluster.create("in", 4).await?;
    copying::produce(&cluster, 100..108).await?;
    let mut found = texts(&take(&consumer, 8).await?);
    found.sort_unstable();
    let expected: Vec<String> = (100..108).map(|number: u64| number.to_string()).collect();
    assert_eq!(found, expected);
    Ok(())
}

//! Partitions without records, and offsets that the log does not hold.
//!
//! Invariants: an emptied partition is at its end; nothing is skipped or read twice without a word.
//! Never: a topic that is deleted and made again.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use millstream::TopicPartition;
use millstream::client::{
    Cluster, Consumer, GroupMetadata, IntoTransport, OffsetAndMetadata, Producer,
};
use millstream::formats::protocol::messages::DeleteRecordsRequest;
use millstream::formats::protocol::messages::delete_records::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use millstream::streams::{
    Placement, RunningStreams, Streams, StreamsBuilder, StreamsError, strings,
};
use tests::copying::{self, GROUP, PARTITIONS};
use tests::under_test::{self, BrokerUnderTest};

use super::caught_up;

/// Deletes the records of these partitions below an offset; -1 stands for all.
async fn delete(
    cluster: &BrokerUnderTest,
    topic: &str,
    partitions: std::ops::Range<i32>,
    offset: i64,
) -> anyhow::Result<()> {
    let client = Cluster::new(cluster.into_transport(), cluster.client(2_000));
    client.partitions_of(topic).await?;
    for partition_index in partitions {
        let node = client
            .leader(&TopicPartition::new(topic, partition_index))
            .context("a leader")?;
        let partition = DeleteRecordsPartition {
            partition_index,
            offset,
        };
        let topic = DeleteRecordsTopic {
            name: topic.to_owned(),
            partitions: vec![partition],
        };
        let request = DeleteRecordsRequest {
            topics: vec![topic],
            timeout_ms: 10_000,
        };
        let answer = client
            .request(node, request, Duration::from_secs(10))
            .await?;
        let code = answer.topics[0].partitions[0].error_code;
        ensure!(code.is_ok(), "{code}");
    }
    client.disconnect();
    Ok(())
}

/// Every record of the table is gone, its offsets are not.
#[tokio::test(start_paused = true)]
async fn a_table_whose_log_was_emptied_is_filled_at_once() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    let producer = Producer::idempotent().client(cluster.client(3));
    let producer = producer.connect(&cluster).await?;
    for number in 0..20 {
        drop(producer.send(cluster.record("table", number)).await?);
    }
    producer.flush().await?;
    // Partition 3 keeps its rows.
    delete(&cluster, &cluster.name("table"), 0..3, -1).await?;
    copying::produce(&cluster, 0..40).await?;
    let builder = StreamsBuilder::new();
    let table = builder.global_table(&cluster.name("table"), strings());
    builder
        .stream(&cluster.name("in"), strings())
        .left_join_global(
            &table,
            |key: &String, _: &String| key.clone(),
            |number: String, row: Option<String>| match row {
                Some(row) => format!("{number} has {row}"),
                None => number,
            },
        )
        .to(&cluster.name("out"), strings());
    let job = Streams::new(&cluster.name(GROUP), builder.build()?)
        .connect(&cluster)
        .client(cluster.client(1))
        .placement(Placement::Runtime);
    let started = tokio::time::timeout(Duration::from_secs(60), job.start()).await;
    let mut running = started.context("it waits for rows that are gone")??;
    caught_up(&cluster, &mut running).await?;
    running.stop().await?;
    let (records, _) = cluster.read("out").await?;
    let joined = records.iter().filter(|record| {
        String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).contains(" has ")
    });
    assert_eq!((records.len(), joined.count()), (40, 5));
    Ok(())
}

/// Partitions that were emptied before the job ever ran are caught up with all the same.
#[tokio::test(start_paused = true)]
async fn a_job_catches_up_with_partitions_that_were_emptied() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    copying::produce(&cluster, 0..40).await?;
    delete(&cluster, &cluster.name("in"), 0..2, -1).await?;
    let mut running = copying::job(&cluster, 1, "t").start().await?;
    caught_up_with(&cluster, &mut running, &[10; 4])
        .await
        .context("it waits for records that are gone")?;
    running.stop().await?;
    let expected: Vec<u64> = (0..40).filter(|number| number % PARTITIONS >= 2).collect();
    assert_eq!(copying::numbers(&cluster, "out").await?, expected);
    Ok(())
}

/// What the group's offset was, what the log holds, and the setting that lets the job go on.
fn assert_names_all(cluster: &BrokerUnderTest, error: &StreamsError, at: i64, holds: (i64, i64)) {
    let StreamsError::OffsetOutOfRange {
        partition,
        offset,
        log_start,
        log_end,
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(*partition, cluster.partition("in", 0));
    assert_eq!((*offset, (*log_start, *log_end)), (at, holds), "{error}");
    let text = error.to_string();
    for part in [at, holds.0, holds.1].map(|offset| offset.to_string()) {
        assert!(text.contains(&part), "{text}");
    }
    assert!(text.contains("auto.offset.reset"), "{text}");
}

/// Records were removed before they were processed: going on would skip them.
#[tokio::test(start_paused = true)]
async fn a_job_whose_next_records_were_removed_ends_with_both_offsets() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(3).await?;
    copying::produce(&cluster, 0..40).await?;
    let mut first = copying::job(&cluster, 1, "t").start().await?;
    caught_up(&cluster, &mut first).await?;
    first.stop().await?;
    copying::produce(&cluster, 40..120).await?;
    delete(&cluster, &cluster.name("in"), 0..1, 25).await?;
    let mut second = copying::job(&cluster, 2, "t").start().await?;
    let ended = tokio::time::timeout(Duration::from_secs(60), second.ended()).await;
    let error = ended
        .context("it goes on")?
        .expect_err("records are missing");
    assert_names_all(&cluster, &error, 10, (25, 30));
    // Whoever says what is to become of it is obeyed.
    let third = copying::job(&cluster, 3, "t").set("auto.offset.reset", "earliest");
    let mut third = third.start().await?;
    caught_up_with(&cluster, &mut third, &[30; 4]).await?;
    third.stop().await?;
    let copied = copying::numbers(&cluster, "out").await?;
    // Of partition 0, offsets 10 to 24 are lost: fifteen numbers.
    assert_eq!(copied.len(), 120 - 15);
    Ok(())
}

/// The group is ahead of the log, as after a backup was put back: going on would process records
/// again.
#[tokio::test(start_paused = true)]
async fn a_job_whose_offset_is_beyond_the_log_ends_with_both_offsets() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(4).await?;
    copying::produce(&cluster, 0..40).await?;
    let producer = Producer::transactional(cluster.name("restore")).client(cluster.client(3));
    let producer = producer.connect(&cluster).await?;
    producer.init_transactions().await?;
    producer.begin()?;
    let ahead = vec![(cluster.partition("in", 0), OffsetAndMetadata::new(777))];
    let group = GroupMetadata::without_membership(cluster.name(GROUP));
    producer.send_offsets(&ahead, &group).await?;
    producer.commit().await?;
    let mut running = copying::job(&cluster, 1, "t").start().await?;
    let ended = tokio::time::timeout(Duration::from_secs(60), running.ended()).await;
    let error = ended
        .context("it goes on")?
        .expect_err("the log is shorter");
    assert_names_all(&cluster, &error, 777, (0, 10));
    let latest = copying::job(&cluster, 2, "t").set("auto.offset.reset", "latest");
    let mut latest = latest.start().await?;
    copying::produce(&cluster, 40..80).await?;
    caught_up_with(&cluster, &mut latest, &[20; 4]).await?;
    latest.stop().await?;
    Ok(())
}

/// As above, and the offset was committed with the epoch of what was read: the log parted from it.
#[tokio::test(start_paused = true)]
async fn a_job_whose_log_has_lost_what_was_read_ends_with_where_it_parts() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(5).await?;
    copying::produce(&cluster, 0..40).await?;
    let producer = Producer::transactional(cluster.name("restore")).client(cluster.client(3));
    let producer = producer.connect(&cluster).await?;
    producer.init_transactions().await?;
    producer.begin()?;
    let committed = OffsetAndMetadata {
        offset: 777,
        leader_epoch: Some(0),
        ..Default::default()
    };
    let ahead = vec![(cluster.partition("in", 0), committed)];
    let group = GroupMetadata::without_membership(cluster.name(GROUP));
    producer.send_offsets(&ahead, &group).await?;
    producer.commit().await?;
    let mut running = copying::job(&cluster, 1, "t").start().await?;
    let ended = tokio::time::timeout(Duration::from_secs(60), running.ended()).await;
    let error = ended
        .context("it goes on")?
        .expect_err("the log is shorter");
    let StreamsError::LogTruncation {
        partition,
        offset: 777,
        leader_epoch: 0,
        divergent_offset: Some(10),
        log_end: 10,
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(*partition, cluster.partition("in", 0));
    assert!(error.to_string().contains("from offset 10 on"), "{error}");
    Ok(())
}

/// The next start asks whether the log still holds it.
#[tokio::test(start_paused = true)]
async fn a_job_commits_the_epoch_of_what_it_has_read() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(8).await?;
    copying::produce(&cluster, 0..40).await?;
    let mut running = copying::job(&cluster, 1, "t").start().await?;
    caught_up(&cluster, &mut running).await?;
    running.stop().await?;
    let reader = Consumer::builder().group_id(cluster.name(GROUP));
    let reader = reader.client(cluster.client(4)).connect(&cluster).await?;
    let partitions: Vec<_> = (0..4).map(|p| cluster.partition("in", p)).collect();
    for (partition, committed) in reader.committed(&partitions).await? {
        let committed = committed.context("committed")?;
        let place = (committed.offset, committed.leader_epoch);
        assert_eq!(place, (10, Some(0)), "{partition}");
    }
    Ok(())
}

/// What was committed before anything was read says only where the log began then.
#[tokio::test(start_paused = true)]
async fn a_partition_of_which_nothing_was_read_begins_where_its_log_begins() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(6).await?;
    copying::produce(&cluster, 0..40).await?;
    delete(&cluster, &cluster.name("in"), 0..1, -1).await?;
    let mut first = copying::job(&cluster, 1, "t").start().await?;
    caught_up_with(&cluster, &mut first, &[10; 4]).await?;
    first.stop().await?;
    copying::produce(&cluster, 40..120).await?;
    delete(&cluster, &cluster.name("in"), 0..1, 25).await?;
    let mut second = copying::job(&cluster, 2, "t").start().await?;
    caught_up_with(&cluster, &mut second, &[30; 4]).await?;
    second.stop().await?;
    // From here on records were read, so a gap is a gap.
    copying::produce(&cluster, 120..200).await?;
    delete(&cluster, &cluster.name("in"), 0..1, 45).await?;
    let mut third = copying::job(&cluster, 3, "t").start().await?;
    let ended = tokio::time::timeout(Duration::from_secs(60), third.ended()).await;
    let error = ended
        .context("it goes on")?
        .expect_err("records are missing");
    assert_names_all(&cluster, &error, 30, (45, 50));
    Ok(())
}

/// Several partitions are out of range in one answer, and are handed over again together, but their
/// errors come one a poll.
#[tokio::test(start_paused = true)]
async fn unread_partitions_whose_logs_are_all_shortened_begin_where_these_begin()
-> anyhow::Result<()> {
    for seed in under_test::seeds(4) {
        let cluster = BrokerUnderTest::start(seed).await?;
        let topic = cluster.name("in");
        copying::produce(&cluster, 0..40).await?;
        delete(&cluster, &topic, 0..3, -1).await?;
        let mut first = copying::job(&cluster, 1, "t").start().await?;
        caught_up_with(&cluster, &mut first, &[10; 4]).await?;
        first.stop().await?;
        copying::produce(&cluster, 40..120).await?;
        delete(&cluster, &topic, 0..3, 25).await?;
        let mut second = copying::job(&cluster, 2, "t").start().await?;
        caught_up_with(&cluster, &mut second, &[30; 4]).await?;
        second.stop().await?;
        let copied = copying::numbers(&cluster, "out").await?;
        // All of partition 3, and of each other one the offsets 25 to 29.
        assert_eq!(copied.len(), 30 + 3 * 5, "{copied:?}");
    }
    Ok(())
}

/// Retention runs while the job looks up where its partitions begin.
#[tokio::test(start_paused = true)]
async fn a_job_that_starts_while_its_log_is_shortened_begins_at_what_is_left() -> anyhow::Result<()>
{
    let cluster = BrokerUnderTest::start(7).await?;
    copying::produce(&cluster, 0..400).await?;
    let topic = cluster.name("in");
    let shorten = async {
        for offset in 1..100 {
            delete(&cluster, &topic, 0..1, offset).await?;
        }
        anyhow::Ok(())
    };
    let run = async {
        let mut running = copying::job(&cluster, 1, "t").start().await?;
        caught_up_with(&cluster, &mut running, &[100; 4]).await?;
        running.stop().await?;
        anyhow::Ok(())
    };
    let (shortened, ran) = tokio::join!(shorten, run);
    shortened?;
    ran?;
    let mut copied = copying::numbers(&cluster, "out").await?;
    let count = copied.len();
    copied.dedup();
    assert_eq!(copied.len(), count, "some are there twice");
    // Only the partition that was shortened may lack some.
    let others = copied.iter().filter(|number| **number % PARTITIONS != 0);
    assert_eq!(others.count(), 300);
    Ok(())
}

/// Waits until these offsets are committed, by partition.
async fn caught_up_with(
    cluster: &BrokerUnderTest,
    running: &mut RunningStreams,
    ends: &[i64],
) -> anyhow::Result<()> {
    let ends = ends.iter().zip(0..);
    let ends = ends
        .map(|(end, partition)| (cluster.partition("in", partition), *end))
        .collect();
    Ok(tokio::time::timeout(super::PATIENCE, running.committed(&ends)).await??)
}

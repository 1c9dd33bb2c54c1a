//! Transactions as producers and readers live through them.
//!
//! Invariants: offsets are exclusive: an end is the offset behind the last record.
//! Never: more than one broker.

use std::time::Duration;

use millstream::TopicPartition;
use millstream::client::consumer::{AutoOffsetReset, Consumer, Isolation};
use millstream::client::{
    Admin, GroupMetadata, OffsetAndMetadata, OffsetSpec, TransactionError, UsageError,
};
use tests::copying::numbers;
use tests::under_test::BrokerUnderTest;

use super::{producer, producer_with};

/// Row 111, row 112: a call out of turn is refused where it stands, and nothing is sent.
#[tokio::test(start_paused = true)]
async fn a_wrong_order_of_calls_is_an_error_at_once() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    let builder =
        millstream::client::Producer::transactional(cluster.name("t")).client(cluster.client(1));
    let fresh = builder.connect(&cluster).await?;
    fresh.begin().expect_err("before init_transactions()");
    fresh.init_transactions().await?;
    let before = cluster.network().counts();
    let unsent = fresh.send(cluster.record("out", 0)).await;
    assert!(
        matches!(unsent, Err(UsageError::NoTransaction { .. })),
        "before begin(): {unsent:?}"
    );
    fresh.commit().await.expect_err("before begin()");
    fresh.abort().await.expect_err("before begin()");
    let group = GroupMetadata::without_membership(cluster.name("g"));
    fresh
        .send_offsets(&offsets(&cluster, 1), &group)
        .await
        .expect_err("before begin()");
    assert_eq!(cluster.network().counts(), before, "nothing was sent");
    fresh.begin()?;
    fresh.begin().expect_err("one open transaction at a time");
    drop(fresh.send(cluster.record("out", 1)).await?);
    fresh.commit().await?;
    fresh
        .commit()
        .await
        .expect_err("there is nothing to commit any more");
    assert_eq!(numbers(&cluster, "out").await?, [1]);
    Ok(())
}

fn offsets(cluster: &BrokerUnderTest, offset: i64) -> Vec<(TopicPartition, OffsetAndMetadata)> {
    vec![(cluster.partition("in", 0), offset.into())]
}

/// Row 113: offsets that were sent are with the coordinator, and count once the transaction
/// commits.
#[tokio::test(start_paused = true)]
async fn offsets_count_once_their_transaction_commits() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    tests::copying::produce(&cluster, 0..8).await?;
    let producer = producer(&cluster, 1, "t").await?;
    let group = GroupMetadata::without_membership(cluster.name("g"));
    let committed = async || cluster.committed("g").await;
    producer.begin()?;
    producer.send_offsets(&offsets(&cluster, 2), &group).await?;
    assert!(committed().await?.is_empty(), "sent, not committed");
    producer.abort().await?;
    assert!(committed().await?.is_empty(), "aborted");
    producer.begin()?;
    producer.send_offsets(&offsets(&cluster, 2), &group).await?;
    producer.commit().await?;
    assert_eq!(committed().await?.into_values().collect::<Vec<_>>(), [2]);
    Ok(())
}

/// Row 115: the coordinator's state is in `__transaction_state`, and each partition gets a marker.
#[tokio::test(start_paused = true)]
async fn every_partition_of_a_transaction_ends_in_a_marker() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(3).await?;
    let producer = producer(&cluster, 1, "t").await?;
    let admin = Admin::with(&cluster, cluster.client(9));
    let state_records = async || {
        let state: Vec<_> = (0..4)
            .map(|p| TopicPartition::new("__transaction_state", p))
            .collect();
        let ends = admin.list_offsets(&state, OffsetSpec::Latest).await?;
        anyhow::Ok(ends.values().flatten().sum::<i64>())
    };
    let before = state_records().await?;
    producer.begin()?;
    for number in [0, 1, 4, 5, 8] {
        drop(producer.send(cluster.record("out", number)).await?);
    }
    producer.commit().await?;
    cluster.settled().await?;
    assert!(
        state_records().await? >= before + 3,
        "ongoing, prepared, complete"
    );
    let all: Vec<_> = (0..4).map(|p| cluster.partition("out", p)).collect();
    let ends = admin.list_offsets(&all, OffsetSpec::Latest).await?;
    let ends: Vec<i64> = ends.values().map(|end| end.unwrap_or(0)).collect();
    assert_eq!(
        ends,
        [3 + 1, 2 + 1, 0, 0],
        "records and one marker, where there were records"
    );
    Ok(())
}

/// Row 116, row 117, row 119: readers of committed records stop below the first open transaction,
/// leave out aborted records and see gaps in the offsets; readers of uncommitted records, which
/// have to be asked for, see everything.
#[tokio::test(start_paused = true)]
async fn readers_of_committed_records_see_neither_open_nor_aborted_ones() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(4).await?;
    let (a, b) = (
        producer(&cluster, 1, "a").await?,
        producer(&cluster, 2, "b").await?,
    );
    b.begin()?;
    b.send(cluster.record("out", 0)).await?.await?;
    b.abort().await?;
    // Its marker is where the offsets below say.
    cluster.settled().await?;
    a.begin()?;
    let opened_at = a.send(cluster.record("out", 4)).await?.await?.offset;
    b.begin()?;
    b.send(cluster.record("out", 8)).await?.await?;
    b.commit().await?;
    let partition = cluster.partition("out", 0);
    let read = async |isolation: Option<Isolation>| {
        let mut builder = Consumer::builder()
            .client(cluster.client(7))
            .auto_offset_reset(AutoOffsetReset::Earliest);
        if let Some(isolation) = isolation {
            builder = builder.isolation(isolation);
        }
        let consumer = builder.connect(&cluster).await?;
        consumer.assign(vec![partition.clone()])?;
        let mut seen = Vec::new();
        for _ in 0..5 {
            let polled = consumer.poll(Duration::from_millis(300)).await?;
            seen.extend(polled.iter().map(|record| {
                (
                    record.offset,
                    String::from_utf8_lossy(record.value.as_deref().unwrap()).into_owned(),
                )
            }));
        }
        let position = consumer.position(&partition);
        consumer.close().await?;
        anyhow::Ok((seen, position))
    };
    // Offset 0 is aborted, 1 its marker, 2 open, 3 committed behind the open one, 4 its marker.
    assert_eq!(opened_at, 2);
    let (seen, position) = read(None).await?;
    assert_eq!(
        (seen.as_slice(), position),
        (&[][..], Some(2)),
        "nothing behind the open one"
    );
    let (seen, _) = read(Some(Isolation::ReadUncommitted)).await?;
    let all = [(0, "0"), (2, "4"), (3, "8")].map(|(at, value)| (at, value.to_owned()));
    assert_eq!(seen, all);
    a.commit().await?;
    let (seen, position) = read(None).await?;
    assert_eq!(seen, all[1..], "the aborted one is left out");
    assert_eq!(position, Some(6), "behind the last marker");
    Ok(())
}

/// Row 120, row 125: a transaction that outlives its timeout is aborted by the coordinator; the
/// producer hears of it, aborts, has a new epoch, and does the work again.
#[tokio::test(start_paused = true)]
async fn a_transaction_past_its_timeout_is_aborted_and_can_be_done_again() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(5).await?;
    let producer = producer_with(&cluster, 1, "t", 5_000).await?;
    producer.begin()?;
    producer.send(cluster.record("out", 0)).await?.await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    // The coordinator has aborted it: what comes now is refused, whichever call it is.
    let late = producer.send(cluster.record("out", 1)).await;
    let late = match late {
        Ok(delivery) => delivery
            .await
            .map(|_| ())
            .map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    late.expect_err("the transaction is over");
    let error = producer
        .commit()
        .await
        .expect_err("the transaction is over");
    assert!(
        matches!(error, TransactionError::Abortable { .. }),
        "{error}"
    );
    producer.abort().await?;
    assert!(numbers(&cluster, "out").await?.is_empty());
    producer.begin()?;
    for number in 0..2 {
        drop(producer.send(cluster.record("out", number)).await?);
    }
    producer.commit().await?;
    assert_eq!(numbers(&cluster, "out").await?, [0, 1]);
    Ok(())
}

/// Row 126: most other errors cost the transaction, not the producer.
#[tokio::test(start_paused = true)]
async fn after_an_error_of_the_broker_an_abort_and_a_new_transaction_go_on() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(6).await?;
    let producer = producer(&cluster, 1, "t").await?;
    let admin = Admin::with(&cluster, cluster.client(9));
    let narrow = millstream::client::NewTopic::new(cluster.name("narrow"), 1)
        .config("max.message.bytes", 200);
    admin.create_topic(&narrow).await?;
    producer.begin()?;
    drop(producer.send(cluster.record("out", 0)).await?);
    let wide =
        millstream::client::ProducerRecord::new(cluster.name("narrow")).value(vec![b'x'; 2_000]);
    let refused = producer
        .send(wide)
        .await?
        .await
        .expect_err("the topic is narrow");
    assert!(
        refused.to_string().contains("MESSAGE_TOO_LARGE"),
        "{refused}"
    );
    let error = producer
        .commit()
        .await
        .expect_err("one of its records was refused");
    assert!(
        matches!(error, TransactionError::Abortable { .. }),
        "{error}"
    );
    producer.abort().await?;
    producer.begin()?;
    drop(producer.send(cluster.record("out", 1)).await?);
    producer.commit().await?;
    assert_eq!(numbers(&cluster, "out").await?, [1]);
    Ok(())
}

/// Row 138: several topics and the offsets, in one transaction.
#[tokio::test(start_paused = true)]
async fn topics_and_offsets_of_one_transaction_become_visible_together() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(7).await?;
    tests::copying::produce(&cluster, 0..8).await?;
    let producer = producer(&cluster, 1, "t").await?;
    let group = GroupMetadata::without_membership(cluster.name("g"));
    let seen = async || {
        let committed = cluster.committed("g").await?;
        let enriched = numbers(&cluster, "enriched").await?;
        let audit = numbers(&cluster, "audit").await?;
        anyhow::Ok((enriched.len(), audit.len(), committed.values().sum::<i64>()))
    };
    for (round, commit) in [false, true].into_iter().enumerate() {
        producer.begin()?;
        for number in 0..8 {
            drop(producer.send(cluster.record("enriched", number)).await?);
            drop(producer.send(cluster.record("audit", number)).await?);
        }
        producer.send_offsets(&offsets(&cluster, 2), &group).await?;
        producer.flush().await?;
        assert_eq!(seen().await?, (0, 0, 0), "round {round}: open");
        if commit {
            producer.commit().await?;
        } else {
            producer.abort().await?;
            assert_eq!(seen().await?, (0, 0, 0), "round {round}: aborted");
        }
    }
    assert_eq!(seen().await?, (8, 8, 2));
    Ok(())
}

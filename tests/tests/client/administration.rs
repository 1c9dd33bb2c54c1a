//! What an admin sees and changes.
//!
//! Invariants: a refusal carries the broker's code.
//! Never: a change to a broker's own settings, or to a topic of another test.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use millstream::client::{Admin, ConfigChange, NewTopic, OffsetSpec, Producer, ProducerRecord};
use millstream::formats::protocol::ErrorCode;
use tests::copying::{self, numbers};
use tests::under_test::BrokerUnderTest;

use super::{earliest, producer, take, until};

fn admin(cluster: &BrokerUnderTest) -> Admin {
    Admin::with(cluster, cluster.client(9))
}

#[tokio::test(start_paused = true)]
async fn topics_are_made_grow_and_go() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    let admin = admin(&cluster);
    let name = cluster.create("t", 2).await?;
    let again = admin.create_topic(&NewTopic::new(&*name, 2)).await;
    let code = again.expect_err("it exists").code();
    assert_eq!(code, Some(ErrorCode::TOPIC_ALREADY_EXISTS));
    let nothing = NewTopic::new(cluster.name("nothing"), 0);
    let code = admin
        .create_topic(&nothing)
        .await
        .expect_err("no partition")
        .code();
    assert_eq!(code, Some(ErrorCode::INVALID_PARTITIONS));
    let unknown = NewTopic::new(cluster.name("unknown"), 1).config("no.such.setting", "1");
    let code = admin
        .create_topic(&unknown)
        .await
        .expect_err("no setting")
        .code();
    assert_eq!(code, Some(ErrorCode::INVALID_CONFIG));
    let unnamed = NewTopic::new("what is this", 1);
    let code = admin
        .create_topic(&unnamed)
        .await
        .expect_err("no name")
        .code();
    assert_eq!(code, Some(ErrorCode::INVALID_TOPIC_EXCEPTION));
    admin.add_partitions(&name, 5).await?;
    let fewer = admin.add_partitions(&name, 3).await;
    let code = fewer.expect_err("topics do not shrink").code();
    assert_eq!(code, Some(ErrorCode::INVALID_PARTITIONS));
    until("five partitions", async || {
        Ok(admin.topic(&name).await?.partitions == 5)
    })
    .await?;
    let id = admin.topic(&name).await?.topic_id;
    cluster.delete("t").await?;
    let code = admin
        .delete_topic(&name)
        .await
        .expect_err("it is gone")
        .code();
    assert_eq!(code, Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    cluster.create("t", 1).await?;
    until("the new one", async || Ok(admin.topic(&name).await.is_ok())).await?;
    assert_ne!(
        admin.topic(&name).await?.topic_id,
        id,
        "another topic of this name"
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn settings_of_a_topic_are_told_changed_and_taken_back() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    let admin = admin(&cluster);
    let topic = NewTopic::new(cluster.name("t"), 1).config("retention.ms", 12_345);
    admin.create_topic(&topic).await?;
    let name = cluster.name("t");
    let value = async |setting: &str| {
        let configs = admin.topic_configs(&name).await?;
        anyhow::Ok(configs.get(setting).cloned())
    };
    until("the topic", async || {
        Ok(value("retention.ms").await.is_ok())
    })
    .await?;
    assert_eq!(value("retention.ms").await?.as_deref(), Some("12345"));
    let default = value("max.message.bytes").await?;
    let set = |name: &str, value: &str| ConfigChange::Set(name.to_owned(), value.to_owned());
    let changes = [
        set("max.message.bytes", "777777"),
        set("cleanup.policy", "compact"),
        ConfigChange::Delete("retention.ms".to_owned()),
    ];
    admin.alter_topic_configs(&name, &changes).await?;
    until("the change", async || {
        Ok(value("max.message.bytes").await?.as_deref() == Some("777777"))
    })
    .await?;
    assert_eq!(value("cleanup.policy").await?.as_deref(), Some("compact"));
    assert_ne!(value("retention.ms").await?.as_deref(), Some("12345"));
    let append = [ConfigChange::Append(
        "cleanup.policy".to_owned(),
        "delete".to_owned(),
    )];
    admin.alter_topic_configs(&name, &append).await?;
    until("both policies", async || {
        Ok(value("cleanup.policy").await?.as_deref() == Some("compact,delete"))
    })
    .await?;
    let refused = admin
        .alter_topic_configs(&name, &[set("max.message.bytes", "many")])
        .await;
    let code = refused.expect_err("no number").code();
    assert_eq!(code, Some(ErrorCode::INVALID_CONFIG));
    let back = [ConfigChange::Delete("max.message.bytes".to_owned())];
    admin.alter_topic_configs(&name, &back).await?;
    until("the default", async || {
        Ok(value("max.message.bytes").await? == default)
    })
    .await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn offsets_are_told_by_every_specification() -> anyhow::Result<()> {
    const BEGAN: i64 = 1_700_000_000_000;
    let cluster = BrokerUnderTest::start(3).await?;
    let topic = cluster.create("t", 1).await?;
    let outside = producer(&cluster, Producer::idempotent()).await?;
    for time in [3_000, 9_000, 5_000] {
        let record = ProducerRecord::new(&*topic).value("v");
        let timestamp = Some(BEGAN + time);
        outside
            .send(ProducerRecord {
                timestamp,
                ..record
            })
            .await?
            .await?;
    }
    let inside = producer(&cluster, Producer::transactional(cluster.name("tx"))).await?;
    inside.init_transactions().await?;
    inside.begin()?;
    inside
        .send(ProducerRecord::new(&*topic).value("open"))
        .await?
        .await?;
    let one = [cluster.partition("t", 0)];
    let admin = admin(&cluster);
    let at = async |spec| anyhow::Ok(admin.list_offsets(&one, spec).await?[&one[0]]);
    assert_eq!(at(OffsetSpec::Earliest).await?, Some(0));
    assert_eq!(at(OffsetSpec::Latest).await?, Some(4));
    assert_eq!(at(OffsetSpec::LatestCommitted).await?, Some(3));
    assert_eq!(at(OffsetSpec::Timestamp(BEGAN + 4_000)).await?, Some(1));
    inside.abort().await?;
    cluster.settled().await?;
    assert_eq!(at(OffsetSpec::LatestCommitted).await?, Some(5));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn records_are_given_up_below_an_offset() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(4).await?;
    copying::produce(&cluster, 0..40).await?;
    let admin = admin(&cluster);
    let (some, all) = (cluster.partition("in", 0), cluster.partition("in", 1));
    let before = BTreeMap::from([(some.clone(), Some(4)), (all.clone(), None)]);
    let beginnings = admin.delete_records(&before).await?;
    assert_eq!(
        beginnings,
        BTreeMap::from([(some.clone(), 4), (all.clone(), 10)])
    );
    let beyond = BTreeMap::from([(some.clone(), Some(11))]);
    let code = admin
        .delete_records(&beyond)
        .await
        .expect_err("beyond the end")
        .code();
    assert_eq!(code, Some(ErrorCode::OFFSET_OUT_OF_RANGE));
    let consumer = earliest(&cluster, 1).connect(&cluster).await?;
    consumer.assign(vec![some, all])?;
    let records = take(&consumer, 6).await?;
    assert_eq!((records[0].partition, records[0].offset), (0, 4));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn groups_are_listed_described_and_deleted_once_they_are_empty() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(5).await?;
    copying::produce(&cluster, 0..20).await?;
    let (admin, group) = (admin(&cluster), cluster.name("g"));
    let listed = async || {
        let groups = admin.list_groups().await?;
        anyhow::Ok(groups.iter().any(|found| found.group_id == group))
    };
    assert!(!listed().await?);
    let builder = earliest(&cluster, 1)
        .group_id(&*group)
        .client_id("reader-of-in");
    let consumer = builder.connect(&cluster).await?;
    consumer.subscribe([cluster.name("in")])?;
    take(&consumer, 20).await?;
    consumer.commit().await?;
    assert!(listed().await?);
    let found = admin.describe_group(&group).await?;
    assert_eq!((&*found.group_state, found.members.len()), ("Stable", 1));
    assert_eq!(&*found.members[0].client_id, "reader-of-in");
    let code = admin
        .delete_group(&group)
        .await
        .expect_err("it has a member")
        .code();
    assert_eq!(code, Some(ErrorCode::NON_EMPTY_GROUP));
    consumer.close().await?;
    until("it to be empty", async || {
        Ok(admin.describe_group(&group).await?.group_state == "Empty")
    })
    .await?;
    assert_eq!(cluster.committed("g").await?.len(), 4);
    admin.delete_group(&group).await?;
    until("it to be gone", async || Ok(!listed().await?)).await?;
    assert!(cluster.committed("g").await?.is_empty());
    let code = admin
        .delete_group(&group)
        .await
        .expect_err("it is gone")
        .code();
    assert_eq!(code, Some(ErrorCode::GROUP_ID_NOT_FOUND));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn transactions_are_told_while_they_are_open_and_after() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(6).await?;
    let (admin, id) = (admin(&cluster), cluster.name("tx"));
    let code = admin
        .describe_transaction(&id)
        .await
        .expect_err("unknown")
        .code();
    assert_eq!(code, Some(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND));
    let topic = cluster.create("out", 4).await?;
    let producer = producer(&cluster, Producer::transactional(&*id)).await?;
    producer.init_transactions().await?;
    producer.begin()?;
    producer.send(copying::record(&topic, 1)).await?.await?;
    let open = admin.describe_transaction(&id).await?;
    assert_eq!(open.transaction_state, "Ongoing");
    let topics: Vec<_> = open
        .topics
        .iter()
        .map(|found| (&*found.topic, &*found.partitions))
        .collect();
    assert_eq!(topics, [(&*topic, &[1][..])]);
    let all = admin.list_transactions().await?;
    let listed = all.iter().find(|found| *found.transactional_id == *id);
    let listed = listed.context("it is listed")?;
    assert_eq!(listed.producer_id, open.producer_id);
    let partition = [cluster.partition("out", 1)];
    let producers = &admin.describe_producers(&partition).await?[&partition[0]];
    assert_eq!(producers[0].producer_id, open.producer_id);
    assert_eq!(producers[0].current_txn_start_offset, 0);
    producer.commit().await?;
    cluster.settled().await?;
    let done = admin.describe_transaction(&id).await?;
    assert_eq!(done.transaction_state, "CompleteCommit");
    assert_eq!(numbers(&cluster, "out").await?, [1]);
    producer.close(Duration::from_secs(5)).await;
    Ok(())
}

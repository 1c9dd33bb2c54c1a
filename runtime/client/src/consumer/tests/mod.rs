//! The consumer against a broker of the tests' own, in virtual time.
//!
//! Never: part of the product.

mod broker;
mod consumer_coordinator;
mod coordinator;
mod fetch;
mod groups;
mod heartbeats;
mod leaders;
mod member;
mod replicas;
mod sessions;
mod setbacks;
mod tenure;
mod truncation;

use std::time::Duration;

use millstream_protocol::TopicPartition;

use super::{Consumer, ConsumerBuilder, ConsumerRecords};
use broker::FakeBroker;

fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic, partition)
}

const SECOND: Duration = Duration::from_secs(1);

fn values(records: &ConsumerRecords) -> Vec<String> {
    records
        .iter()
        .map(|r| String::from_utf8_lossy(r.value.as_deref().unwrap_or_default()).into_owned())
        .collect()
}

/// A consumer that starts at the beginning.
async fn connect(broker: &FakeBroker, builder: ConsumerBuilder) -> Consumer {
    builder
        .auto_offset_reset(super::AutoOffsetReset::Earliest)
        .connect(&broker.transport())
        .await
        .unwrap()
}

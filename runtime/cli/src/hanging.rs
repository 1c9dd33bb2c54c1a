//! Transactions that hang: open where their records are, and unknown to every coordinator.
//!
//! "Unknown" is what no coordinator says, so care is taken that all of them speak: a transaction
//! that is taken for a hanging one, and aborted, while its producer goes on is torn in two.
//!
//! ```text
//! open, and silent for long ─▶ twice: all coordinators are there, none lists it ─▶ still open
//! ```
//!
//! Invariants: a partition is looked at before the coordinators are asked and once more after that,
//! so what begins or ends meanwhile is not taken for one that hangs; a coordinator knows of a
//! partition before it gets records, and until it has its marker; nothing is said while a partition
//! of the coordinators has no leader.
//! Never: ends anything.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use millstream::TopicPartition;
use millstream::client::Admin;
use millstream::formats::protocol::ErrorCode;
use millstream::formats::protocol::messages::describe_producers::ProducerState;

/// A transaction that is open in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) partition: TopicPartition,
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i32,
    /// Offset of its first record.
    pub(crate) start_offset: i64,
    /// When its producer wrote last, in ms since the epoch.
    pub(crate) last_timestamp: i64,
}

/// Where coordinators keep what they know.
const COORDINATORS: &str = "__transaction_state";
/// How often all coordinators are asked: one that takes over from another is not silent twice.
const LOOKS: u32 = 2;

/// Those that hang in these partitions, of producers that wrote nothing since `silent_since_ms`.
///
/// # Errors
/// Where a coordinator, or the leader of a partition, cannot be asked.
pub(crate) async fn find(
    admin: &Admin,
    partitions: &[TopicPartition],
    silent_since_ms: i64,
) -> anyhow::Result<Vec<Open>> {
    let coordinators = of_topic(admin, COORDINATORS).await?;
    let mut seen = open(admin, partitions).await?;
    seen.retain(|found| found.last_timestamp < silent_since_ms);
    if seen.is_empty() {
        return Ok(seen);
    }
    let mut known = Held::new();
    for _ in 0..LOOKS {
        all_led(admin, &coordinators).await?;
        known.extend(held(admin, &seen).await?);
    }
    all_led(admin, &coordinators).await?;
    let still = open(admin, partitions).await?;
    Ok(hanging(seen, &known, &still))
}

/// The ids of coordinators that are not there are in no list.
async fn all_led(admin: &Admin, coordinators: &[TopicPartition]) -> anyhow::Result<()> {
    let led = admin.describe_producers(coordinators).await;
    led.map(drop)
        .context("the coordinators are not all there, so nobody can say what hangs: try again")
}

/// A producer and a partition of its transaction, as its coordinator knows them.
type Held = BTreeSet<(i64, TopicPartition)>;

fn hanging(mut seen: Vec<Open>, held: &Held, still: &[Open]) -> Vec<Open> {
    seen.retain(|found| {
        let is_held = held.contains(&(found.producer_id, found.partition.clone()));
        let is_same = |later: &&Open| {
            later.partition == found.partition
                && later.producer_id == found.producer_id
                && later.start_offset == found.start_offset
        };
        !is_held && still.iter().any(|later| is_same(&later))
    });
    seen
}

/// The partitions of one topic, or of all.
pub(crate) async fn partitions(
    admin: &Admin,
    topic: Option<&str>,
) -> anyhow::Result<Vec<TopicPartition>> {
    if let Some(name) = topic {
        return of_topic(admin, name).await;
    }
    let mut all = Vec::new();
    for found in admin.topics().await? {
        let of = |partition| TopicPartition::new(found.name.as_str(), partition);
        all.extend((0..found.partitions).map(of));
    }
    Ok(all)
}

async fn of_topic(admin: &Admin, name: &str) -> anyhow::Result<Vec<TopicPartition>> {
    let found = admin.topic(name).await?;
    let of = |partition| TopicPartition::new(name, partition);
    Ok((0..found.partitions).map(of).collect())
}

async fn open(admin: &Admin, partitions: &[TopicPartition]) -> anyhow::Result<Vec<Open>> {
    let producers: BTreeMap<TopicPartition, Vec<ProducerState>> =
        admin.describe_producers(partitions).await?;
    let all = producers.into_iter().flat_map(|(partition, found)| {
        found
            .into_iter()
            .map(move |producer| (partition.clone(), producer))
    });
    let open = all.filter(|(_, producer)| producer.current_txn_start_offset >= 0);
    let open = open.map(|(partition, producer)| Open {
        partition,
        producer_id: producer.producer_id,
        producer_epoch: producer.producer_epoch,
        start_offset: producer.current_txn_start_offset,
        last_timestamp: producer.last_timestamp,
    });
    Ok(open.collect())
}

async fn held(admin: &Admin, open: &[Open]) -> anyhow::Result<Held> {
    let mut held = Held::new();
    for id in admin.list_transactions().await? {
        if !open.iter().any(|found| found.producer_id == id.producer_id) {
            continue;
        }
        let found = match admin.describe_transaction(&id.transactional_id).await {
            // It has expired since it was listed, so it has no transaction.
            Err(error) if error.code() == Some(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND) => continue,
            found => found?,
        };
        for topic in found.topics {
            held.extend(topic.partitions.into_iter().map(|partition| {
                let partition = TopicPartition::new(topic.topic.as_str(), partition);
                (found.producer_id, partition)
            }));
        }
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(partition: i32, producer_id: i64, start_offset: i64) -> Open {
        Open {
            partition: TopicPartition::new("t", partition),
            producer_id,
            producer_epoch: 3,
            start_offset,
            last_timestamp: 0,
        }
    }

    #[test]
    fn what_no_coordinator_knows_and_stays_open_hangs() {
        let seen = vec![opened(0, 1, 10), opened(1, 1, 20), opened(0, 2, 30)];
        let held = Held::from([(1, TopicPartition::new("t", 1))]);
        assert_eq!(
            hanging(seen.clone(), &held, &seen),
            [opened(0, 1, 10), opened(0, 2, 30)]
        );
        // One has ended since, the other has begun its next.
        let still = [opened(0, 2, 40)];
        assert_eq!(hanging(seen, &held, &still), []);
    }
}

//! A member of a group that polls all the time, and the diary of its listener.
//!
//! Never: part of the product.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use millstream_protocol::TopicPartition;

use super::super::{Consumer, ConsumerBuilder, ConsumerError, RebalanceListener};
use super::broker::FakeBroker;
use super::{SECOND, connect, values};

/// Writes down what it hears; commits before it lets partitions go, where that is asked for.
#[derive(Debug, Default)]
pub(super) struct Diary {
    /// Whose coordinator is held to this: it knows the same partitions to be owned until the
    /// listener has let them go.
    pub(super) coordinator: Option<FakeBroker>,
    pub(super) entries: Mutex<Vec<String>>,
    pub(super) commits: bool,
    pub(super) pause: Duration,
}

impl Diary {
    /// For a member of a consumer group.
    pub(super) fn watching(broker: &FakeBroker) -> Diary {
        Diary {
            coordinator: Some(broker.clone()),
            ..Default::default()
        }
    }

    fn note(&self, what: &str, partitions: &[TopicPartition]) {
        let names: Vec<String> = partitions.iter().map(|p| p.to_string()).collect();
        let entry = format!("{what} {}", names.join(","));
        self.entries.lock().unwrap().push(entry);
    }

    pub(super) fn read(&self) -> Vec<String> {
        std::mem::take(&mut self.entries.lock().unwrap())
    }
}

#[async_trait]
impl RebalanceListener for Diary {
    async fn on_revoked(&self, consumer: &Consumer, partitions: &[TopicPartition]) {
        let owned = || self.coordinator.as_ref().map(|b| b.consumers().owned());
        let known = owned();
        tokio::time::sleep(self.pause).await;
        if self.commits {
            consumer.commit().await.unwrap();
        }
        // Heartbeats that went out meanwhile have not let go of anything.
        assert_eq!(owned(), known);
        self.note("revoked", partitions);
    }

    async fn on_assigned(&self, _consumer: &Consumer, partitions: &[TopicPartition]) {
        self.note("assigned", partitions);
    }

    async fn on_lost(&self, _consumer: &Consumer, partitions: &[TopicPartition]) {
        self.note("lost", partitions);
    }
}

/// A consumer that polls all the time, in a task of its own.
pub(super) struct Running {
    pub(super) consumer: Consumer,
    pub(super) diary: Arc<Diary>,
    pub(super) seen: Arc<Mutex<Vec<String>>>,
    pub(super) task: tokio::task::JoinHandle<ConsumerError>,
}

/// A member of the group that reads topic `a`.
pub(super) async fn start(broker: &FakeBroker, builder: ConsumerBuilder, diary: Diary) -> Running {
    let consumer = connect(broker, builder).await;
    let diary = Arc::new(diary);
    let listener = Arc::clone(&diary) as Arc<dyn RebalanceListener>;
    consumer.subscribe_with(["a"], listener).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (polling, record) = (consumer.clone(), Arc::clone(&seen));
    let task = tokio::spawn(async move {
        loop {
            match polling.poll(SECOND).await {
                Ok(records) => record.lock().unwrap().extend(values(&records)),
                Err(error) => return error,
            }
        }
    });
    Running {
        consumer,
        diary,
        seen,
        task,
    }
}

/// Lets virtual time pass.
pub(super) async fn wait(time: Duration) {
    tokio::time::sleep(time).await;
}

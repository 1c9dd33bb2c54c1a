//! What groups committed for a topic goes with it, whatever comes between.

use std::sync::Arc;
use std::time::Duration;

use millstream_log::storage::Unsynced;
use millstream_log::{DirectoryConfig, FaultyStorage, LogDirectory, MemoryStorage, Storage};

use super::*;
use crate::tests::harness::*;
use crate::{Broker, BrokerConfig, Placement};

const PARTITIONS: i32 = 200;

async fn with_offsets(broker: &Broker) -> Client {
    let mut client = Client::connect(broker);
    client.create_topic("orders", PARTITIONS).await;
    let offsets: Vec<_> = (0..PARTITIONS).map(|index| ("orders", index, 10)).collect();
    let request = commit_request(&Member::none(), &offsets);
    client.ask(9, request).await;
    assert_eq!(committed(&mut client, 7).await, 10);
    client
}

async fn delete(broker: &Broker) -> Vec<Result<(), ErrorCode>> {
    let orders = vec![("orders".to_owned(), None)];
    broker.node().delete_topics(orders).await
}

async fn open_with(storage: impl Storage + 'static, placement: Placement) -> Broker {
    let config = BrokerConfig {
        placement,
        ..config()
    };
    let opened = Broker::open(Arc::new(storage), config).await;
    opened.expect("opens")
}

#[tokio::test(start_paused = true)]
async fn x1_on_a_full_disk_the_files_of_the_topic_make_room_for_the_end_of_its_offsets() {
    let storage = FaultyStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = with_offsets(&broker).await;
    for _ in 0..20 {
        let value = "x".repeat(5_000);
        client.produce("orders", 0, batch(&[&value])).await;
    }
    // Enough for the catalogue, which makes no use of the reserve then.
    let used = storage.fork().used_bytes();
    storage.set_capacity(Some(used + 1_500));
    assert_eq!(delete(&broker).await, [Ok(())]);
    assert_eq!(committed(&mut client, 7).await, -1);
    broker.halt();
    let broker = open(storage.crash_with(Unsynced::Lost)).await;
    let mut client = Client::connect(&broker);
    assert_eq!(committed(&mut client, 7).await, -1);
}

#[tokio::test(start_paused = true)]
async fn g3_offsets_of_a_topic_do_not_come_back_once_its_deletion_is_answered() {
    let storage = MemoryStorage::new();
    let sync_delay = Duration::from_millis(10);
    let broker = open_with(storage.clone(), Placement::Runtime { sync_delay }).await;
    with_offsets(&broker).await;
    assert_eq!(delete(&broker).await, [Ok(())]);
    let found = storage.crash();
    broker.halt();
    let broker = open(found).await;
    let mut client = Client::connect(&broker);
    assert_eq!(committed(&mut client, 7).await, -1);
}

#[tokio::test]
async fn a_deletion_whose_request_is_cut_takes_the_offsets_with_it() {
    let storage = MemoryStorage::new();
    let broker = open_with(storage.clone(), Placement::Threads).await;
    let client = with_offsets(&broker).await;
    drop(client);
    {
        let mut deletion = Box::pin(delete(&broker));
        // Once: the work has begun then.
        let _ = futures::poll!(&mut deletion);
    }
    broker.close().await.expect("closes");
    let broker = open(storage.fork()).await;
    assert!(broker.node().partitions.topic("orders").is_none());
    let mut client = Client::connect(&broker);
    assert_eq!(committed(&mut client, 7).await, -1);
}

#[tokio::test(start_paused = true)]
async fn g3_a_new_topic_begins_without_the_offsets_that_a_cut_deletion_has_left() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let client = with_offsets(&broker).await;
    drop(client);
    broker.close().await.expect("closes");
    // As when the power went after the catalogue was stored, and before the tombstones were.
    let opened = LogDirectory::open(Arc::new(storage.clone()), DirectoryConfig::default(), 0);
    let directory = opened.expect("opens");
    directory.delete_topic("orders").expect("deleted");
    directory.close(0).expect("closes");

    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    assert_eq!(committed(&mut client, 0).await, -1);
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(committed(&mut client, 0).await, -1);
}

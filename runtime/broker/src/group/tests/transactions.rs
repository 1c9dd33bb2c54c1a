//! Offsets in transactions: visible with the transaction's end and not before, across crashes.
//!
//! Invariants: see the names of the tests.
//! Never: waits for real time.

use std::sync::Arc;
use std::time::Duration;

use millstream_log::MemoryStorage;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use millstream_protocol::messages::*;

use super::*;
use crate::tests::harness::{Client, broker, config, open};
use crate::{Broker, BrokerConfig};

const TRANSACTIONAL_ID: &str = "orders-enrichment-1-0";

/// A transactional producer of transaction version 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Producer {
    id: i64,
    epoch: i16,
}

pub(super) async fn init(client: &mut Client) -> Producer {
    loop {
        let request = InitProducerIdRequest {
            transactional_id: Some(TRANSACTIONAL_ID.to_owned()),
            transaction_timeout_ms: 60_000,
            ..Default::default()
        };
        let answer = client.ask(5, request).await;
        if answer.error_code == ErrorCode::CONCURRENT_TRANSACTIONS {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        assert_eq!(answer.error_code, ErrorCode::NONE);
        return Producer {
            id: answer.producer_id,
            epoch: answer.producer_epoch,
        };
    }
}

fn offsets_request(
    producer: Producer,
    member: &Member,
    partition: i32,
    offset: i64,
) -> TxnOffsetCommitRequest {
    TxnOffsetCommitRequest {
        transactional_id: TRANSACTIONAL_ID.to_owned(),
        group_id: GROUP.to_owned(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        generation_id: member.generation,
        member_id: member.member_id.clone(),
        group_instance_id: member.instance.clone(),
        topics: vec![TxnOffsetCommitRequestTopic {
            name: "orders".to_owned(),
            partitions: vec![TxnOffsetCommitRequestPartition {
                partition_index: partition,
                committed_offset: offset,
                committed_leader_epoch: 3,
                committed_metadata: Some(format!("at {offset}")),
            }],
        }],
    }
}

pub(super) async fn send_offsets(
    client: &mut Client,
    producer: Producer,
    member: &Member,
    offset: i64,
) -> ErrorCode {
    let answer = client
        .ask(5, offsets_request(producer, member, 0, offset))
        .await;
    answer.topics[0].partitions[0].error_code
}

pub(super) async fn end(client: &mut Client, producer: Producer, committed: bool) -> Producer {
    let request = EndTxnRequest {
        transactional_id: TRANSACTIONAL_ID.to_owned(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        committed,
    };
    let answer = client.ask(5, request).await;
    assert_eq!(answer.error_code, ErrorCode::NONE);
    Producer {
        id: answer.producer_id,
        epoch: answer.producer_epoch,
    }
}

#[tokio::test(start_paused = true)]
async fn b10_after_each_of_many_transactions_the_next_reader_finds_its_offset() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let member = join_alone(&mut client, None).await;
    let mut producer = init(&mut client).await;
    for round in 1..=20_i64 {
        let sent = send_offsets(&mut client, producer, &member, round).await;
        assert_eq!(sent, ErrorCode::NONE);
        let undecided = stable(&mut client, 0).await;
        assert_eq!(
            undecided,
            Err(ErrorCode::UNSTABLE_OFFSET_COMMIT),
            "g2: not decided yet"
        );
        producer = end(&mut client, producer, true).await;
        assert_eq!(stable(&mut client, 0).await, Ok(round));
    }
    let fetched = fetch_answer(&mut client, 0, true).await;
    assert_eq!(fetched.metadata.as_deref(), Some("at 20"));
    assert_eq!(fetched.committed_leader_epoch, 3);
}

#[tokio::test(start_paused = true)]
async fn g2_a_new_owner_waits_until_the_old_owners_transaction_is_decided() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 2).await;
    let member = join_alone(&mut client, None).await;
    commit(&mut client, &member, 0, 3).await;
    let producer = init(&mut client).await;
    send_offsets(&mut client, producer, &member, 5).await;
    assert_eq!(
        committed(&mut client, 0).await,
        3,
        "who does not ask for stable ones"
    );
    let waits = Err(ErrorCode::UNSTABLE_OFFSET_COMMIT);
    assert_eq!(stable(&mut client, 0).await, waits);
    assert_eq!(
        stable(&mut client, 1).await,
        Ok(-1),
        "another partition is not touched"
    );
    let everything = client.ask(9, fetch_request(true, None)).await;
    let partition = &everything.groups[0].topics[0].partitions[0];
    assert_eq!(partition.error_code, ErrorCode::UNSTABLE_OFFSET_COMMIT);
    end(&mut client, producer, false).await;
    assert_eq!(
        stable(&mut client, 0).await,
        Ok(3),
        "the transaction was aborted"
    );
}

#[tokio::test(start_paused = true)]
async fn f3_transactional_offsets_of_a_zombie_are_refused_and_leave_no_trace() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let producer = init(&mut client).await;
    let unheard = Member {
        member_id: "m".to_owned(),
        generation: 1,
        instance: None,
    };
    let missing = send_offsets(&mut client, producer, &unheard, 1).await;
    assert_eq!(missing, ErrorCode::ILLEGAL_GENERATION);

    let before = join_alone(&mut client, Some("i-1")).await;
    let joined = client.ask(9, join_request("", Some("i-1"))).await;
    let now = Member {
        member_id: joined.member_id,
        ..before.clone()
    };
    let old_generation = Member {
        generation: now.generation - 1,
        ..now.clone()
    };
    let stranger = Member {
        instance: None,
        member_id: "nobody".to_owned(),
        ..now.clone()
    };
    for (zombie, error) in [
        (&before, ErrorCode::FENCED_INSTANCE_ID),
        (&stranger, ErrorCode::UNKNOWN_MEMBER_ID),
        (&old_generation, ErrorCode::ILLEGAL_GENERATION),
    ] {
        assert_eq!(send_offsets(&mut client, producer, zombie, 9).await, error);
    }
    assert_eq!(stable(&mut client, 0).await, Ok(-1), "nothing is pending");
    let sent = send_offsets(&mut client, producer, &now, 5).await;
    assert_eq!(sent, ErrorCode::NONE);
    end(&mut client, producer, true).await;
    assert_eq!(stable(&mut client, 0).await, Ok(5));
}

#[tokio::test(start_paused = true)]
async fn a_fenced_producer_cannot_commit_offsets() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let zombie = init(&mut client).await;
    send_offsets(&mut client, zombie, &Member::none(), 4).await;
    let now = init(&mut client).await;
    assert!(now.epoch > zombie.epoch);
    assert_eq!(
        stable(&mut client, 0).await,
        Ok(-1),
        "its transaction was aborted"
    );
    let late = send_offsets(&mut client, zombie, &Member::none(), 5).await;
    assert_eq!(late, ErrorCode::INVALID_PRODUCER_EPOCH);
    assert_eq!(stable(&mut client, 0).await, Ok(-1));
    let sent = send_offsets(&mut client, now, &Member::none(), 6).await;
    assert_eq!(sent, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn an_older_client_has_to_add_the_offsets_partition_first() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let producer = init(&mut client).await;
    let member = Member::none();
    let request = offsets_request(producer, &member, 0, 5);
    let refused = client.ask(3, request.clone()).await;
    let refused = refused.topics[0].partitions[0].error_code;
    assert_eq!(refused, ErrorCode::INVALID_TXN_STATE);
    assert_eq!(stable(&mut client, 0).await, Ok(-1));
    let add = AddOffsetsToTxnRequest {
        transactional_id: TRANSACTIONAL_ID.to_owned(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        group_id: GROUP.to_owned(),
    };
    let added = client.ask(3, add).await;
    assert_eq!(added.error_code, ErrorCode::NONE);
    let sent = client.ask(3, request).await;
    assert!(sent.topics[0].partitions[0].error_code.is_ok());
    let end = EndTxnRequest {
        transactional_id: TRANSACTIONAL_ID.to_owned(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        committed: true,
    };
    assert!(client.ask(3, end).await.error_code.is_ok());
    assert_eq!(stable(&mut client, 0).await, Ok(5));
}

#[tokio::test(start_paused = true)]
async fn offsets_and_what_is_pending_survive_a_crash() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let member = join_alone(&mut client, None).await;
    let producer = init(&mut client).await;
    send_offsets(&mut client, producer, &member, 5).await;
    let producer = end(&mut client, producer, true).await;
    send_offsets(&mut client, producer, &member, 9).await;
    broker.halt();

    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(committed(&mut client, 0).await, 5);
    let waits = Err(ErrorCode::UNSTABLE_OFFSET_COMMIT);
    assert_eq!(stable(&mut client, 0).await, waits, "it is still undecided");
    assert_eq!(heartbeat(&mut client, &member).await, ErrorCode::NONE);
    let producer = end(&mut client, producer, true).await;
    assert_eq!(stable(&mut client, 0).await, Ok(9));

    send_offsets(&mut client, producer, &member, 12).await;
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    // Nothing of `storage` was written by the second broker: it ran on the crash's image.
    assert_eq!(committed(&mut client, 0).await, 5);
    let restarted = init(&mut client).await;
    assert_eq!(stable(&mut client, 0).await, Ok(5), "init aborted it");
    let sent = send_offsets(&mut client, restarted, &member, 10).await;
    assert_eq!(sent, ErrorCode::NONE);
    end(&mut client, restarted, true).await;
    assert_eq!(stable(&mut client, 0).await, Ok(10));
}

#[tokio::test(start_paused = true)]
async fn b13_a_plain_commit_after_a_transactional_one_wins_live_and_after_a_crash() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let nobody = Member::none();
    let producer = init(&mut client).await;
    send_offsets(&mut client, producer, &nobody, 5).await;
    assert_eq!(commit(&mut client, &nobody, 0, 3).await, ErrorCode::NONE);
    end(&mut client, producer, true).await;
    assert_eq!(stable(&mut client, 0).await, Ok(3));
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(stable(&mut client, 0).await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn g4_b14_an_offset_with_an_open_transaction_does_not_expire() {
    let retention = BrokerConfig {
        offsets_retention_ms: 5_000,
        offsets_retention_check_interval_ms: 1_000,
        ..config()
    };
    let broker = Broker::open(Arc::new(MemoryStorage::new()), retention)
        .await
        .expect("opens");
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let nobody = Member::none();
    commit(&mut client, &nobody, 0, 3).await;
    let producer = init(&mut client).await;
    send_offsets(&mut client, producer, &nobody, 5).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        committed(&mut client, 0).await,
        3,
        "old, and kept for the transaction"
    );
    let listed = client.ask(5, ListGroupsRequest::default()).await;
    assert_eq!(listed.groups.len(), 1);
    end(&mut client, producer, false).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(committed(&mut client, 0).await, -1);
}

#[tokio::test(start_paused = true)]
async fn what_a_fetch_tells_of_a_commit_under_way_survives_a_power_cut() {
    let storage = MemoryStorage::new();
    let slow = BrokerConfig {
        placement: crate::Placement::Runtime {
            sync_delay: Duration::from_secs(1),
        },
        ..config()
    };
    let opened = Broker::open(Arc::new(storage.clone()), slow).await;
    let broker = opened.expect("opens");
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let producer = init(&mut client).await;
    let sent = send_offsets(&mut client, producer, &Member::none(), 7).await;
    assert_eq!(sent, ErrorCode::NONE);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let request = EndTxnRequest {
        transactional_id: TRANSACTIONAL_ID.to_owned(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        committed: true,
    };
    client.send(5, &request).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(!client.has_answer(), "the commit is not durable yet");
    // The partition's next owner asks meanwhile.
    let mut successor = Client::connect(&broker);
    assert_eq!(stable(&mut successor, 0).await, Ok(7));
    let after_power_cut = storage.crash();
    broker.halt();
    let again = open(after_power_cut).await;
    let mut reader = Client::connect(&again);
    assert_eq!(stable(&mut reader, 0).await, Ok(7), "it goes on from there");
}

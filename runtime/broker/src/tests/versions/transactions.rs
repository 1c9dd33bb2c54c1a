//! A transaction in every version: each is made in versions of about the same age.

use super::Sweep;
use crate::tests::harness::{produce_request, stamped};
use millstream_protocol::messages::add_partitions_to_txn::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use millstream_protocol::messages::describe_producers::TopicRequest;
use millstream_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use millstream_protocol::messages::write_txn_markers::{WritableTxnMarker, WritableTxnMarkerTopic};
use millstream_protocol::messages::*;
use millstream_protocol::{ErrorCode, ProducerStamp};

/// The newest version of any API here.
const NEWEST: i16 = 5;
/// From this version on a transaction's partitions need not be added.
const TRANSACTION_2: i16 = 5;
const NO_MORE_OF_VERSION_1: i16 = 11;

/// Commits one of each version, and looks at the last.
pub(super) async fn sweep(sweep: &mut Sweep) {
    sweep.client.create_topic("written", 1).await;
    for version in 0..=NEWEST {
        committed(sweep, version).await;
    }
    let read = sweep.client.fetch("written", 0, 0, 1).await;
    assert_eq!(read.last_stable_offset, read.high_watermark);
    // A record and a marker each.
    assert_eq!(read.high_watermark, 2 * i64::from(NEWEST + 1));
    seen(sweep).await;
    let request = |version| WriteTxnMarkersRequest {
        markers: vec![WritableTxnMarker {
            producer_id: 9_000 + i64::from(version),
            topics: vec![WritableTxnMarkerTopic {
                name: "written".to_owned(),
                partition_indexes: vec![0],
            }],
            ..Default::default()
        }],
    };
    sweep
        .all(request, |version, response| {
            let found = response.markers[0].topics[0].partitions[0].error_code;
            assert_eq!(found, ErrorCode::NONE, "version {version}");
        })
        .await;
}

async fn committed(sweep: &mut Sweep, version: i16) {
    let id = format!("id{version}");
    let init = InitProducerIdRequest {
        transactional_id: Some(id.clone()),
        transaction_timeout_ms: 10_000,
        ..Default::default()
    };
    let producer = sweep.near(version, init).await;
    assert_eq!(producer.error_code, ErrorCode::NONE, "version {version}");
    let (producer_id, producer_epoch) = (producer.producer_id, producer.producer_epoch);
    let stamp = ProducerStamp {
        producer_id,
        producer_epoch,
        base_sequence: 0,
        transactional: true,
    };
    added(sweep, version, &id, &stamp).await;
    let mut produce = produce_request("written", 0, stamped(&["v"], stamp));
    produce.transactional_id = Some(id.clone());
    let produced = if version < TRANSACTION_2 {
        sweep.client.ask(NO_MORE_OF_VERSION_1, produce).await
    } else {
        sweep.client.ask(NO_MORE_OF_VERSION_1 + 1, produce).await
    };
    let found = produced.responses[0].partition_responses[0].error_code;
    assert_eq!(found, ErrorCode::NONE, "version {version}");
    let add = AddOffsetsToTxnRequest {
        transactional_id: id.clone(),
        producer_id,
        producer_epoch,
        group_id: id.clone(),
    };
    let found = sweep.near(version, add).await.error_code;
    assert_eq!(found, ErrorCode::NONE, "version {version}");
    let commit = TxnOffsetCommitRequest {
        transactional_id: id.clone(),
        group_id: id.clone(),
        producer_id,
        producer_epoch,
        topics: vec![TxnOffsetCommitRequestTopic {
            name: "written".to_owned(),
            partitions: vec![TxnOffsetCommitRequestPartition {
                committed_offset: 7,
                ..Default::default()
            }],
        }],
        ..Default::default()
    };
    let answer = sweep.near(version, commit).await;
    let found = answer.topics[0].partitions[0].error_code;
    assert_eq!(found, ErrorCode::NONE, "version {version}");
    let end = EndTxnRequest {
        transactional_id: id.clone(),
        producer_id,
        producer_epoch,
        committed: true,
    };
    let ended = sweep.near(version, end).await;
    assert_eq!(ended.error_code, ErrorCode::NONE, "version {version}");
    let next = if version < TRANSACTION_2 {
        -1
    } else {
        producer_epoch + 1
    };
    assert_eq!(ended.producer_epoch, next, "version {version}");
}

/// Adds the partition: as clients do, and in later versions as brokers do for them.
async fn added(sweep: &mut Sweep, version: i16, id: &str, stamp: &ProducerStamp) {
    let topics = vec![AddPartitionsToTxnTopic {
        name: "written".to_owned(),
        partitions: vec![0],
    }];
    let request = if version < 4 {
        AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: id.to_owned(),
            v3_and_below_producer_id: stamp.producer_id,
            v3_and_below_producer_epoch: stamp.producer_epoch,
            v3_and_below_topics: topics,
            ..Default::default()
        }
    } else {
        AddPartitionsToTxnRequest {
            transactions: vec![AddPartitionsToTxnTransaction {
                transactional_id: id.to_owned(),
                producer_id: stamp.producer_id,
                producer_epoch: stamp.producer_epoch,
                verify_only: false,
                topics,
            }],
            ..Default::default()
        }
    };
    let answer = sweep.near(version, request).await;
    let results = match answer.results_by_transaction.first() {
        Some(one) => &one.topic_results,
        None => &answer.results_by_topic_v3_and_below,
    };
    let found = results[0].results_by_partition[0].partition_error_code;
    assert_eq!(found, ErrorCode::NONE, "version {version}");
}

async fn seen(sweep: &mut Sweep) {
    let request = |_| DescribeProducersRequest {
        topics: vec![TopicRequest {
            name: "written".to_owned(),
            partition_indexes: vec![0],
        }],
    };
    sweep
        .all(request, |_, response| {
            let found = response.topics[0].partitions[0].active_producers.len();
            assert_eq!(found, usize::from(NEWEST.unsigned_abs()) + 1);
        })
        .await;
    let request = |_| DescribeTransactionsRequest {
        transactional_ids: vec!["id5".to_owned()],
    };
    sweep
        .all(request, |_, response| {
            let found = &response.transaction_states[0];
            let wanted = (ErrorCode::NONE, "CompleteCommit");
            assert_eq!((found.error_code, &*found.transaction_state), wanted);
        })
        .await;
    sweep
        .all(
            |_| ListTransactionsRequest::default(),
            |version, response| {
                let found = response.transaction_states.len();
                assert_eq!(
                    found,
                    usize::from(NEWEST.unsigned_abs()) + 1,
                    "version {version}"
                );
            },
        )
        .await;
}

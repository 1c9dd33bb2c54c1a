//! Known bytes for versions later than the independent codec's schemas, written out by hand from
//! the published schemas.
//!
//! Invariants: bytes become the message and the message these bytes.
//! Never: bytes that our own encoder printed.

use bytes::Bytes;
use millstream_protocol::messages::describe_log_dirs::{
    DescribableLogDirTopic, DescribeLogDirsPartition, DescribeLogDirsRequest,
    DescribeLogDirsResponse, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use millstream_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use millstream_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_protocol::messages::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use millstream_protocol::messages::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};
use millstream_protocol::messages::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};
use millstream_protocol::{Decoder, ErrorCode, Message, Uuid, message};

fn check<M: Message>(message: &M, version: i16, bytes: &[u8]) {
    assert_eq!(
        super::encoded(message, version),
        bytes,
        "{} {version}",
        M::NAME
    );
    let mut decoder = Decoder::from_bytes(Bytes::copy_from_slice(bytes));
    assert_eq!(M::decode(&mut decoder, version).as_ref(), Ok(message));
    assert_eq!(decoder.remaining(), 0);
}

#[test]
fn write_txn_markers_2_carries_the_transaction_version() {
    let topic = WritableTxnMarkerTopic {
        name: "t".to_owned(),
        partition_indexes: vec![3],
    };
    let marker = WritableTxnMarker {
        producer_id: 7,
        producer_epoch: 2,
        transaction_result: true,
        topics: vec![topic],
        coordinator_epoch: 5,
        transaction_version: 2,
    };
    let request = WriteTxnMarkersRequest {
        markers: vec![marker],
    };
    #[rustfmt::skip]
    let bytes = [
        2, // one marker
        0, 0, 0, 0, 0, 0, 0, 7, // producer id
        0, 2, // epoch
        1, // commit
        2, 2, b't', 2, 0, 0, 0, 3, 0, // one topic: name, one partition, no tags
        0, 0, 0, 5, // coordinator epoch
        2, // transaction version
        0, 0, // no tags, twice
    ];
    check(&request, 2, &bytes);
    let mut version_1 = bytes.to_vec();
    version_1.remove(bytes.len() - 3);
    let mut plain = request;
    plain.markers[0].transaction_version = 0;
    check(&plain, 1, &version_1);
}

#[test]
fn describe_log_dirs_5_says_whether_a_directory_is_cordoned() {
    let partition = DescribeLogDirsPartition {
        partition_index: 3,
        partition_size: 9,
        ..Default::default()
    };
    let topic = DescribeLogDirsTopic {
        name: "t".to_owned(),
        partitions: vec![partition],
    };
    let result = DescribeLogDirsResult {
        log_dir: "d".to_owned(),
        topics: vec![topic],
        total_bytes: 8,
        is_cordoned: true,
        ..Default::default()
    };
    let response = DescribeLogDirsResponse {
        results: vec![result],
        ..Default::default()
    };
    #[rustfmt::skip]
    let bytes = [
        0, 0, 0, 0, 0, 0, // throttle time, error
        2, 0, 0, 2, b'd', // one directory: error, path
        2, 2, b't', 2, // one topic: name, one partition
        0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9, // number, size
        0, 0, 0, 0, 0, 0, 0, 0, 0, // lag, not a future one
        0, 0, // no tags, twice
        0, 0, 0, 0, 0, 0, 0, 8, // total
        0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, // usable: not known
        1, // cordoned
        0, 0, // no tags, twice
    ];
    check(&response, 5, &bytes);
    // One topic without partitions, then tags of the topic and of the request.
    let topic = DescribableLogDirTopic {
        topic: "t".to_owned(),
        ..Default::default()
    };
    let topics = Some(vec![topic]);
    check(
        &DescribeLogDirsRequest { topics },
        5,
        &[2, 2, b't', 1, 0, 0],
    );
    check(&DescribeLogDirsRequest { topics: None }, 5, &[0, 0]);
}

#[test]
fn list_offsets_11_has_the_fields_of_10() {
    let partition = ListOffsetsPartition {
        partition_index: 1,
        current_leader_epoch: -1,
        timestamp: -6,
    };
    let topic = ListOffsetsTopic {
        name: "t".to_owned(),
        partitions: vec![partition],
    };
    let request = ListOffsetsRequest {
        replica_id: -1,
        isolation_level: 1,
        topics: vec![topic],
        timeout_ms: 1000,
    };
    #[rustfmt::skip]
    let bytes = [
        0xff, 0xff, 0xff, 0xff, 1, // replica, read committed
        2, 2, b't', 2, // one topic, name, one partition
        0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, // number, leader epoch
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfa, 0, 0, // timestamp, no tags, twice
        0, 0, 3, 0xe8, 0, // timeout, no tags
    ];
    check(&request, 11, &bytes);
}

#[test]
fn offset_commit_10_names_topics_by_id() {
    let partition = OffsetCommitRequestPartition {
        partition_index: 1,
        committed_offset: 2,
        committed_leader_epoch: -1,
        committed_metadata: None,
    };
    let topic = OffsetCommitRequestTopic {
        name: "not sent".to_owned(),
        topic_id: Uuid([9; 16]),
        partitions: vec![partition],
    };
    let mut request = OffsetCommitRequest {
        group_id: "g".to_owned(),
        generation_id_or_member_epoch: 4,
        member_id: "m".to_owned(),
        topics: vec![topic],
        ..Default::default()
    };
    let head = [2, b'g', 0, 0, 0, 4, 2, b'm', 0, 2];
    // Partition number, offset, leader epoch, null metadata, no tags; no tags, twice.
    let tail = [
        2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
    ];
    let bytes = [&head[..], &[9; 16], &tail].concat();
    assert_eq!(super::encoded(&request, 10), bytes);
    request.topics[0].name.clear();
    check(&request, 10, &bytes);
}

#[test]
fn offset_fetch_10_names_topics_by_id() {
    let topic = OffsetFetchRequestTopics {
        topic_id: Uuid([9; 16]),
        partition_indexes: vec![1],
        ..Default::default()
    };
    let group = OffsetFetchRequestGroup {
        group_id: "g".to_owned(),
        topics: Some(vec![topic]),
        ..Default::default()
    };
    let request = OffsetFetchRequest {
        groups: vec![group],
        require_stable: true,
        ..Default::default()
    };
    // One group: id, null member, epoch -1, one topic; at the end "stable" and no tags.
    let head = [2, 2, b'g', 0, 0xff, 0xff, 0xff, 0xff, 2];
    let bytes = [&head[..], &[9; 16], &[2, 0, 0, 0, 1, 0, 0, 1, 0]].concat();
    check(&request, 10, &bytes);
}

#[test]
fn a_later_subscription_is_read_as_the_latest_known_and_no_assignment_as_an_empty_one() {
    let subscription = ConsumerProtocolSubscription {
        topics: vec!["t".to_owned()],
        ..Default::default()
    };
    let mut bytes = subscription
        .to_versioned_bytes(3)
        .expect("version 3")
        .to_vec();
    bytes[1] = 9;
    bytes.extend_from_slice(&[1, 2, 3]);
    assert_eq!(
        ConsumerProtocolSubscription::from_bytes(bytes.into()),
        Ok(subscription)
    );
    let none = ConsumerProtocolAssignment::from_bytes(Bytes::new());
    assert_eq!(none, Ok(ConsumerProtocolAssignment::default()));
}

message! {
    /// A stored value as other crates declare it: some versions plain, later ones with tags.
    pub struct StoredValue(versions 0..=1, flexible 1..) {
        producer_id: i64 = -1, in 0..;
        parts: Option<Vec<StoredPart>>, in 0.., null 0..;
        previous: Option<StoredPart>, in 1.., null 1..;
        own: ErrorCode = ErrorCode::UNKNOWN_SERVER_ERROR, in 1.., tag 3;
    }

    /// A part of it.
    pub struct StoredPart {
        name: String, in 0..;
    }
}

#[test]
fn the_macro_declares_stored_records_elsewhere() {
    let part = StoredPart {
        name: "p".to_owned(),
    };
    let value = StoredValue {
        parts: Some(vec![part.clone()]),
        ..Default::default()
    };
    let minus_one = [0xff_u8; 8];
    let plain = [&minus_one[..], &[0, 0, 0, 1, 0, 1, b'p']].concat();
    check(&value, 0, &plain);
    let value = StoredValue {
        parts: None,
        previous: Some(part),
        ..Default::default()
    };
    check(
        &value,
        1,
        &[&minus_one[..], &[0, 1, 2, b'p', 0, 0]].concat(),
    );
    let value = StoredValue {
        own: ErrorCode::NONE,
        ..Default::default()
    };
    check(
        &value,
        1,
        &[&minus_one[..], &[0, 0xff, 1, 3, 2, 0, 0]].concat(),
    );
    let stored = value.to_versioned_bytes(1).expect("version 1");
    assert_eq!(stored[..2], [0, 1]);
    assert_eq!(StoredValue::from_versioned_bytes(stored), Ok((1, value)));
}

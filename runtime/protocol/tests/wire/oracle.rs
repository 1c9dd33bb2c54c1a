//! Every message and version that the `kafka-protocol` crate knows: both give the same bytes.
//!
//! Invariants: ours -> bytes -> theirs -> bytes is the identity on bytes, and so is reading back.
//! Never: takes our own bytes for right because we read them back.

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as theirs;
use kafka_protocol::protocol::{Decodable, Encodable, Message as TheirMessage};
use millstream_protocol::messages as ours;
use millstream_protocol::{Decoder, Message};

const SAMPLES: u64 = 24;

/// Compares one message in all versions that both know; gives those that only we know.
fn compare<M: Message, T>() -> Vec<(&'static str, i16)>
where
    T: Encodable + Decodable + TheirMessage + Debug,
{
    let mut ours_only = Vec::new();
    for version in M::VERSIONS {
        if !(T::VERSIONS.min..=T::VERSIONS.max).contains(&version) {
            ours_only.push((M::NAME, version));
            continue;
        }
        for message in samples_with_default::<M>(version) {
            let bytes = super::encoded(&message, version);
            let mut rest = bytes.clone();
            let decoded = T::decode(&mut rest, version)
                .unwrap_or_else(|error| panic!("{} {version}: {error}\n{message:?}", M::NAME));
            assert!(rest.is_empty(), "{} {version} leaves {rest:?}", M::NAME);
            let mut again = BytesMut::new();
            decoded
                .encode(&mut again, version)
                .expect("what was decoded can be encoded");
            assert_eq!(
                bytes,
                again.freeze(),
                "{} {version}\n{message:?}\n{decoded:?}",
                M::NAME
            );
            assert_eq!(
                message,
                read_back::<M>(bytes, version),
                "{} {version}",
                M::NAME
            );
        }
    }
    ours_only
}

fn samples_with_default<M: Message>(version: i16) -> impl Iterator<Item = M> {
    std::iter::once(M::default()).chain(super::samples(version, SAMPLES))
}

fn read_back<M: Message>(bytes: Bytes, version: i16) -> M {
    let mut decoder = Decoder::from_bytes(bytes);
    let message = M::decode(&mut decoder, version).expect("our own bytes");
    decoder.expect_end().expect("nothing is left");
    message
}

#[test]
fn every_message_has_the_bytes_of_an_independent_codec() {
    let mut ours_only = Vec::new();
    macro_rules! run {
        ($name:ident) => {
            ours_only.extend(compare::<ours::$name, theirs::$name>());
        };
    }
    for_each_message!(run);
    // Later than the other codec's schemas; `golden` has bytes for them.
    let expected = [
        ("DescribeLogDirsRequest", 5),
        ("DescribeLogDirsResponse", 5),
        ("ListOffsetsRequest", 11),
        ("ListOffsetsResponse", 11),
        ("OffsetCommitRequest", 10),
        ("OffsetFetchRequest", 10),
        ("WriteTxnMarkersRequest", 2),
        ("WriteTxnMarkersResponse", 2),
    ];
    assert_eq!(ours_only, expected);
}

/// The other direction for tagged fields: whoever misses one passes over it in silence.
#[test]
fn tagged_fields_of_an_independent_codec_are_all_read() {
    use theirs::fetch_response as fetch;
    let leader = fetch::LeaderIdAndEpoch::default()
        .with_leader_id(theirs::BrokerId(5))
        .with_leader_epoch(6);
    let partition = fetch::PartitionData::default()
        .with_diverging_epoch(
            fetch::EpochEndOffset::default()
                .with_epoch(3)
                .with_end_offset(4),
        )
        .with_current_leader(leader)
        .with_snapshot_id(
            fetch::SnapshotId::default()
                .with_end_offset(7)
                .with_epoch(8),
        );
    let topic = fetch::FetchableTopicResponse::default().with_partitions(vec![partition]);
    let endpoint = fetch::NodeEndpoint::default()
        .with_node_id(theirs::BrokerId(9))
        .with_port(10);
    let response = theirs::FetchResponse::default()
        .with_responses(vec![topic])
        .with_node_endpoints(vec![endpoint]);
    let mut bytes = BytesMut::new();
    response
        .encode(&mut bytes, 18)
        .expect("a complete response");
    let bytes = bytes.freeze();

    let read = read_back::<ours::FetchResponse>(bytes.clone(), 18);
    let partition = &read.responses[0].partitions[0];
    assert_eq!(
        (
            partition.diverging_epoch.epoch,
            partition.diverging_epoch.end_offset
        ),
        (3, 4)
    );
    assert_eq!(
        (
            partition.current_leader.leader_id,
            partition.current_leader.leader_epoch
        ),
        (5, 6)
    );
    assert_eq!(
        (
            partition.snapshot_id.end_offset,
            partition.snapshot_id.epoch
        ),
        (7, 8)
    );
    assert_eq!(
        (read.node_endpoints[0].node_id, read.node_endpoints[0].port),
        (9, 10)
    );
    assert_eq!(super::encoded(&read, 18), bytes);
}

/// Defaults of fields that a version lacks are Kafka's.
#[test]
fn fields_that_a_version_lacks_have_kafkas_defaults() {
    let fetch = ours::FetchRequest::default();
    assert_eq!(
        (fetch.replica_id, fetch.max_bytes, fetch.session_epoch),
        (-1, i32::MAX, -1)
    );
    let commit = ours::offset_commit::OffsetCommitRequestPartition::default();
    assert_eq!(commit.committed_leader_epoch, -1);
    assert!(ours::MetadataRequest::default().allow_auto_topic_creation);
    assert_eq!(ours::CreateTopicsRequest::default().timeout_ms, 60_000);
    let ended = ours::EndTxnResponse::default();
    assert_eq!((ended.producer_id, ended.producer_epoch), (-1, -1));
}

//! Headers, whole frames, and frames that arrive in pieces.
//!
//! Invariants: where a frame's segments begin and end never changes what is read from it.
//! Never: opens a socket.

use bytes::{Bytes, BytesMut};
use millstream_protocol::messages as ours;
use millstream_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use millstream_protocol::{
    ApiKey, Decoder, EncodeError, ErrorCode, Frame, Message, Request, TopicPartition,
    decode_request_header, decode_response, encode_request, encode_response,
};

fn read_in_pieces<M: Message>() {
    for version in M::VERSIONS {
        for message in super::samples::<M>(version, 3) {
            let bytes = super::encoded(&message, version);
            for piece in [1, 2, 3, 7, 100] {
                let mut rest = bytes.clone();
                let mut segments = vec![Bytes::new()];
                while !rest.is_empty() {
                    segments.push(rest.split_to(piece.min(rest.len())));
                }
                let mut decoder = Decoder::new(Frame::from_segments(segments));
                assert_eq!(decoder.remaining(), bytes.len());
                let read = M::decode(&mut decoder, version).expect("our own bytes");
                assert_eq!(read, message, "{} {version} in pieces of {piece}", M::NAME);
                assert_eq!(decoder.remaining(), 0);
            }
        }
    }
}

#[test]
fn a_frame_in_any_pieces_reads_the_same() {
    macro_rules! run {
        ($name:ident) => {
            read_in_pieces::<ours::$name>();
        };
    }
    for_each_message!(run);
}

#[test]
fn records_travel_by_reference_through_encoder_and_decoder() {
    let records = Bytes::from(vec![7_u8; 5000]);
    let data = PartitionProduceData {
        index: 0,
        records: Some(records.clone()),
    };
    let topic = TopicProduceData {
        name: "orders".to_owned(),
        partition_data: vec![data],
        ..Default::default()
    };
    let request = ours::ProduceRequest {
        acks: -1,
        topic_data: vec![topic],
        ..Default::default()
    };
    for version in [3, 9, 12] {
        let frame = encode_request(version, 1, Some("test"), &request).expect("encodes");
        assert!(
            frame
                .segments()
                .iter()
                .any(|segment| segment.as_ptr() == records.as_ptr())
        );
        let mut decoder = Decoder::new(frame);
        decode_request_header(&mut decoder).expect("a header");
        let read = ours::ProduceRequest::decode(&mut decoder, version).expect("a request");
        let read_records = read.topic_data[0].partition_data[0]
            .records
            .as_ref()
            .expect("records");
        assert_eq!(read_records.as_ptr(), records.as_ptr());
        assert_eq!(read, request);
    }
}

#[test]
fn request_headers_are_read_back_in_plain_and_flexible_versions() {
    let request = ours::HeartbeatRequest {
        group_id: "g".to_owned(),
        ..Default::default()
    };
    for version in ApiKey::Heartbeat.versions() {
        for client_id in [None, Some(""), Some("client")] {
            let frame = encode_request(version, 42, client_id, &request).expect("encodes");
            let mut decoder = Decoder::new(frame);
            let header = decode_request_header(&mut decoder).expect("a header");
            assert_eq!((header.api_key, header.api_version), (12, version));
            assert_eq!(
                (header.correlation_id, header.client_id.as_deref()),
                (42, client_id)
            );
            assert_eq!(
                ours::HeartbeatRequest::decode(&mut decoder, version),
                Ok(request.clone())
            );
        }
    }
}

#[test]
fn the_header_of_an_unknown_api_is_read_so_that_it_can_be_answered() {
    let mut bytes = BytesMut::new();
    bytes.extend_from_slice(&[0x03, 0xe7, 0, 1, 0, 0, 0, 9, 0, 1, b'x', 1, 2, 3]);
    let header = decode_request_header(&mut Decoder::from_bytes(bytes.freeze())).expect("a header");
    assert_eq!((header.api_key, header.correlation_id), (999, 9));
    assert_eq!(ApiKey::from_i16(header.api_key), None);
}

#[test]
fn a_broker_too_old_for_the_version_is_understood_by_its_error_code() {
    let refusal = ours::ApiVersionsResponse {
        error_code: ErrorCode::UNSUPPORTED_VERSION,
        api_keys: vec![ours::api_versions::ApiVersion {
            api_key: 18,
            max_version: 2,
            min_version: 0,
        }],
        ..Default::default()
    };
    let frame = encode_response(ApiKey::ApiVersions, 0, 5, &refusal).expect("encodes");
    let read = decode_response::<ours::ApiVersionsRequest>(frame, 4).expect("version 0");
    assert_eq!(read, (5, refusal));
}

#[test]
fn every_response_is_read_back_behind_its_header() {
    fn check<R: Request>() {
        assert_eq!(R::API.versions(), R::VERSIONS, "{}", R::NAME);
        assert_eq!(R::VERSIONS, R::Response::VERSIONS, "{}", R::NAME);
        for version in R::VERSIONS {
            let flexible = R::API.is_flexible(version);
            assert_eq!(
                flexible,
                version >= R::FLEXIBLE_FROM,
                "{} {version}",
                R::NAME
            );
            assert_eq!(
                flexible,
                version >= R::Response::FLEXIBLE_FROM,
                "{} {version}",
                R::NAME
            );
            let response = R::Response::default();
            let frame = encode_response(R::API, version, -7, &response).expect("encodes");
            let read = decode_response::<R>(frame, version).expect("decodes");
            assert_eq!(read.0, -7);
        }
    }
    macro_rules! run {
        ($($name:ident)*) => { $(check::<ours::$name>();)* };
    }
    run! {
        AddOffsetsToTxnRequest AddPartitionsToTxnRequest AlterConfigsRequest DescribeLogDirsRequest
        DescribeTopicPartitionsRequest IncrementalAlterConfigsRequest ListConfigResourcesRequest
        OffsetDeleteRequest DescribeAclsRequest ElectLeadersRequest
        ListPartitionReassignmentsRequest ApiVersionsRequest CreatePartitionsRequest
        CreateTopicsRequest DeleteGroupsRequest DeleteRecordsRequest DeleteTopicsRequest
        DescribeClusterRequest DescribeConfigsRequest DescribeGroupsRequest DescribeProducersRequest
        DescribeTransactionsRequest EndTxnRequest FetchRequest FindCoordinatorRequest
        HeartbeatRequest InitProducerIdRequest JoinGroupRequest LeaveGroupRequest ListGroupsRequest
        ListOffsetsRequest ListTransactionsRequest MetadataRequest OffsetCommitRequest
        OffsetFetchRequest OffsetForLeaderEpochRequest ProduceRequest SyncGroupRequest
        TxnOffsetCommitRequest WriteTxnMarkersRequest ConsumerGroupDescribeRequest
        ConsumerGroupHeartbeatRequest SaslAuthenticateRequest SaslHandshakeRequest
        CreateAclsRequest DeleteAclsRequest
    }
}

#[test]
fn a_value_that_a_version_would_lose_is_refused() {
    let request = ours::OffsetFetchRequest {
        require_stable: true,
        ..Default::default()
    };
    let error = encode_request(6, 1, None, &request).expect_err("version 6 cannot say it");
    let (message, field) = ("OffsetFetchRequest", "require_stable");
    assert_eq!(
        error,
        EncodeError::Unsupported {
            message,
            field,
            version: 6
        }
    );
    assert!(encode_request(7, 1, None, &request).is_ok());
}

#[test]
fn a_partition_is_named_as_kafka_names_it() {
    assert_eq!(TopicPartition::new("orders", 3).to_string(), "orders-3");
    assert!(TopicPartition::new("a", 9) < TopicPartition::new("b", 0));
}

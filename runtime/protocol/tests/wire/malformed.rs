//! Damaged and hostile bytes: an error or a value, never a panic, never more memory than they pay.
//!
//! Invariants: what a decoder reserves is at most `MULTIPLE` times the bytes it was given.
//! Never: expects which error it is, save where a text names the field.

use bytes::{BufMut, Bytes, BytesMut};
use millstream_protocol::messages as ours;
use millstream_protocol::{DecodeError, Decoder, Message, Sampler};

/// An array's element takes so many times its bytes on the wire at most, growth included.
const MULTIPLE: usize = 64;

/// Decodes what may be garbage; checks the memory that it took.
fn try_decode<M: Message>(bytes: Bytes, version: i16) -> Result<M, DecodeError> {
    let size = bytes.len();
    let mut decoder = Decoder::from_bytes(bytes);
    let result = M::decode(&mut decoder, version);
    let reserved = decoder.reserved_bytes();
    assert!(
        reserved <= size * MULTIPLE + 256,
        "{} {version}: {reserved} for {size}",
        M::NAME
    );
    result
}

fn truncate_everywhere<M: Message>() {
    for version in M::VERSIONS {
        for message in super::samples::<M>(version, 3) {
            let bytes = super::encoded(&message, version);
            for cut in 0..bytes.len() {
                let result = try_decode::<M>(bytes.slice(..cut), version);
                assert!(
                    result.is_err(),
                    "{} {version} cut at {cut} was read",
                    M::NAME
                );
            }
        }
    }
}

fn mutate<M: Message>() {
    for version in M::VERSIONS {
        for (seed, message) in super::samples::<M>(version, 4).enumerate() {
            let bytes = super::encoded(&message, version);
            let mut sampler = Sampler::new(seed as u64);
            for _ in 0..60 {
                let mut damaged = BytesMut::from(&bytes[..]);
                for _ in 0..=sampler.below(3) {
                    let at = sampler.below(damaged.len().max(1));
                    let value = [0x00, 0x7f, 0x80, 0xff, sampler.next() as u8][sampler.below(5)];
                    if let Some(byte) = damaged.get_mut(at) {
                        *byte = value;
                    }
                }
                // Whatever is read must have a form again, and the same one.
                if let Ok(read) = try_decode::<M>(damaged.freeze(), version) {
                    let again = super::encoded(&read, version);
                    assert_eq!(try_decode::<M>(again, version).as_ref(), Ok(&read));
                }
            }
        }
    }
}

#[test]
fn every_truncation_of_every_message_is_an_error() {
    macro_rules! run {
        ($name:ident) => {
            truncate_everywhere::<ours::$name>();
        };
    }
    for_each_message!(run);
}

#[test]
fn random_damage_to_every_message_gives_an_error_or_a_message() {
    macro_rules! run {
        ($name:ident) => {
            mutate::<ours::$name>();
        };
    }
    for_each_message!(run);
}

#[test]
fn counts_that_the_bytes_cannot_hold_are_refused_before_any_memory_is_taken() {
    // The ten bytes with which another codec reserves 150 GB: 2^31-2 topics in compact form.
    let metadata = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x07, 0, 0, 0, 0, 0]);
    let mut decoder = Decoder::from_bytes(metadata);
    assert!(ours::MetadataRequest::decode(&mut decoder, 12).is_err());
    assert_eq!(decoder.reserved_bytes(), 0);

    let mut produce = BytesMut::new();
    produce.put_i16(-1);
    produce.put_i16(-1);
    produce.put_i32(1000);
    produce.put_i32(i32::MAX);
    let mut decoder = Decoder::from_bytes(produce.freeze());
    let error = ours::ProduceRequest::decode(&mut decoder, 8).expect_err("no such topics");
    assert!(
        error
            .to_string()
            .starts_with("ProduceRequest.topic_data: array of 2147483647")
    );
    assert_eq!(decoder.reserved_bytes(), 0);
}

#[test]
fn lengths_below_null_and_nulls_that_are_not_allowed_are_errors() {
    let negative = Bytes::from_static(&[0xff, 0xfe, 0, 0, 0, 0, 0, 0]);
    assert!(try_decode::<ours::HeartbeatRequest>(negative, 0).is_err());
    let null = Bytes::from_static(&[0xff, 0xff, 0, 0, 0, 0, 0, 0]);
    let error = try_decode::<ours::HeartbeatRequest>(null, 0).expect_err("no group");
    assert!(
        error.to_string().contains("HeartbeatRequest.group_id"),
        "{error}"
    );
}

#[test]
fn a_tagged_field_of_another_size_than_it_says_is_an_error_and_an_unknown_one_is_skipped() {
    let request = ours::ApiVersionsRequest {
        client_software_name: "a".to_owned(),
        client_software_version: "1".to_owned(),
    };
    // Instead of no tags: tag 77 of two bytes.
    let mut bytes = BytesMut::from(&super::encoded(&request, 3)[..]);
    bytes.truncate(bytes.len() - 1);
    bytes.extend_from_slice(&[1, 77, 2, 0xaa, 0xbb]);
    assert_eq!(
        try_decode::<ours::ApiVersionsRequest>(bytes.freeze(), 3),
        Ok(request)
    );

    // Error 0, no APIs, no throttling, then tag 1 (64 bits) that says 4 bytes.
    let bytes = [0, 0, 1, 0, 0, 0, 0, 1, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    let error = try_decode::<ours::ApiVersionsResponse>(Bytes::copy_from_slice(&bytes), 3);
    assert!(
        error
            .expect_err("wrong size")
            .to_string()
            .contains("finalized_features_epoch")
    );
}

#[test]
fn a_varint_beyond_32_bits_is_an_error() {
    for bytes in [
        &[0xff, 0xff, 0xff, 0xff, 0x1f][..],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
    ] {
        let mut decoder = Decoder::from_bytes(Bytes::copy_from_slice(bytes));
        assert_eq!(decoder.unsigned_varint(), Err(DecodeError::Varint));
    }
}

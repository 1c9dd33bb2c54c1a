//! What the Java client and Apache Kafka 4.3.1 said to each other, recorded on the loopback address
//! (`tests/compat/golden/record.py`): every frame is read and written again, byte for byte. What
//! this client has no more, version 3.9.1 said.
//!
//! A file an API in `golden/`, a line a frame: version, direction, the frame in hexadecimal. The
//! version of a response is that of its request; 99 asks ApiVersions for one that no broker has.
//!
//! Invariants: nothing follows a message; each record of each batch in it is read, and written
//! again; a version without a golden frame is named in `WITHOUT`.
//! Never: bytes that our own encoder printed.

use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use millstream_protocol::{
    ApiKey, Compression, ProducerStamp, RecordBatch, RecordBatchBuilder, control_batch,
    patch_prefix,
};

use super::any;

/// Versions that neither the client nor the broker was heard to speak, and why.
const WITHOUT: [(&str, i16, &str); 2] = [
    ("Metadata", 0, "the Java client begins with 1"),
    ("OffsetForLeaderEpoch", 2, "the Java client begins with 3"),
];

/// Tagged fields that somebody sends and we do not know.
const UNKNOWN_TAGS: [(&str, i16, &str); 0] = [];

const PLAIN_BYTES_MAX: usize = 1 << 20;

struct Golden {
    api: ApiKey,
    version: i16,
    direction: String,
    frame: Bytes,
}

impl Golden {
    fn name(&self) -> String {
        format!("{} {} {}", self.api, self.version, self.direction)
    }

    fn again(&self) -> any::Again {
        let frame = self.frame.clone();
        let read = match self.direction.as_str() {
            "request" => any::request(frame),
            _ => any::response(self.api, self.version, frame),
        };
        read.unwrap_or_else(|error| panic!("{}: {error}", self.name()))
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn golden() -> Vec<Golden> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire/golden");
    let mut frames = Vec::new();
    for api in ApiKey::ALL {
        let Ok(text) = std::fs::read_to_string(folder.join(format!("{api}.txt"))) else {
            continue;
        };
        for line in text.lines() {
            let mut words = line.split(' ');
            let mut word = || words.next().expect("version, direction, frame");
            frames.push(Golden {
                api: *api,
                version: word().parse().expect("a version"),
                direction: word().to_owned(),
                frame: Bytes::from(bytes_of(word())),
            });
        }
    }
    frames
}

#[test]
fn every_golden_frame_is_read_and_written_again_byte_for_byte() {
    let mut problems = Vec::new();
    for golden in golden() {
        let again = golden.again();
        let unknown = UNKNOWN_TAGS
            .iter()
            .any(|(api, version, _)| (*api, *version) == (golden.api.name(), golden.version));
        if again.left > 0 || (again.bytes != golden.frame && !unknown) {
            let left = again.left;
            problems.push(format!(
                "{}: {left} left\n{:02x?}\n{:02x?}",
                golden.name(),
                &golden.frame[..],
                &again.bytes[..]
            ));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_record_of_the_golden_frames_is_read_and_written_again() {
    let (mut seen, mut control) = (BTreeSet::new(), 0);
    for golden in golden() {
        for mut bytes in golden.again().batches {
            let whole = bytes.clone();
            while let Some(batch) = RecordBatch::split_from(&mut bytes).expect("a batch") {
                batch.verify_crc().expect("as it was sent");
                control += usize::from(batch.is_control());
                seen.insert((golden.direction.clone(), batch.compression()));
                assert_eq!(rebuilt(&batch), plain(&batch), "{}", golden.name());
            }
            assert!(bytes.is_empty(), "{} of {}", bytes.len(), whole.len());
        }
    }
    let codecs = Compression::ALL.into_iter();
    let wanted: BTreeSet<_> = codecs
        .flat_map(|codec| ["request", "response"].map(|way| (way.to_owned(), codec)))
        .collect();
    assert_eq!(seen, wanted, "every codec, there and back");
    assert!(control > 0, "markers, too");
}

/// The batch as it is without a codec; two compressors need not agree on bytes.
fn plain(batch: &RecordBatch) -> Bytes {
    match batch.compression() {
        Compression::None => batch.bytes().clone(),
        _ => batch
            .recompressed(Compression::None, PLAIN_BYTES_MAX)
            .expect("readable"),
    }
}

/// The batch built anew from what it says.
fn rebuilt(batch: &RecordBatch) -> Bytes {
    let records = batch.records(PLAIN_BYTES_MAX).expect("readable");
    let stamp = batch.stamp();
    let built = if let Some(marker) = batch.control().expect("a marker or none") {
        let (id, epoch) = (stamp.producer_id, stamp.producer_epoch);
        control_batch(marker, id, epoch, batch.base_timestamp())
    } else {
        let mut builder = RecordBatchBuilder::new(Compression::None);
        for record in records {
            let record = record.expect("well formed");
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            builder.append_with(record.timestamp, key, value, &record.headers);
        }
        builder.finish(stamp).expect("builds")
    };
    let mut built = built.to_vec();
    let prefix = built.first_chunk_mut().expect("a header");
    patch_prefix(prefix, batch.base_offset(), batch.partition_leader_epoch());
    Bytes::from(built)
}

#[test]
fn every_version_has_golden_frames_both_ways_or_is_named() {
    let seen: BTreeSet<(ApiKey, i16, String)> = golden()
        .into_iter()
        .map(|golden| (golden.api, golden.version, golden.direction))
        .collect();
    let mut missing = Vec::new();
    for api in ApiKey::ALL {
        for version in api.versions() {
            let has = |way: &str| seen.contains(&(*api, version, way.to_owned()));
            if !has("request") || !has("response") {
                missing.push((api.name(), version));
            }
        }
    }
    let named: Vec<_> = WITHOUT
        .iter()
        .map(|(api, version, _)| (*api, *version))
        .collect();
    assert_eq!(missing, named);
}

#[test]
fn the_list_of_messages_has_every_api() {
    for api in ApiKey::ALL {
        for version in api.versions() {
            // Behind a whole header, so that the API is looked up: what is read then is an error or
            // an empty message, never a panic for want of the API.
            let input = |rest: &'static [u8]| {
                let input = any::input_of(*api, version, rest);
                let drawn = any::drawn(&input);
                assert_eq!(drawn, Some((*api, version, Bytes::from_static(rest))));
                input
            };
            // Correlation id, no client id, no tags.
            any::try_request(&input(&[0, 0, 0, 0, 0xff, 0xff, 0]));
            any::try_response(&input(&[0, 0, 0, 0, 0]));
        }
    }
    assert_eq!(ProducerStamp::NONE.producer_id, -1);
}

//! `millstream log`: what is in the files of a data directory.
//!
//! Invariants: reads only; memory is bounded by the largest batch that the file really holds; a
//! damaged batch is shown as such and those after it are still shown while their lengths make
//! sense.
//! Never: takes a lock, so it may run beside a broker (and then see a batch that is half written at
//! the end).

use crate::output::Output;
use crate::text::{bytes_to_json, headers_to_json};
use anyhow::{Context, bail};
use millstream::formats::protocol::{ControlMarker, RecordBatch, TimestampType};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// Bytes in front of what a batch's length field counts: base offset and the field itself.
const LENGTH_OVERHEAD: usize = 12;
/// What one batch may decompress to when its records are shown.
const DECOMPRESSED_BYTES_MAX: usize = 256 << 20;

/// Look into the files of a data directory.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Dump(Dump),
}

/// Print the record batches of .log files, one line a batch.
///
/// A line gives the batch's position in the file, its offsets, who produced it, whether it belongs
/// to a transaction or ends one, its codec, and whether its checksum holds. The exit code is 1 when
/// a batch is damaged.
#[derive(Debug, clap::Args)]
pub(crate) struct Dump {
    /// Log segments, as in data/orders-0/00000000000000000000.log
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print the records of each batch beneath it
    #[arg(long)]
    records: bool,
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    let Command::Dump(dump) = command;
    let mut output = Output::new();
    let mut damaged = 0_u64;
    for file in &dump.files {
        if dump.files.len() > 1 {
            output.line(file.display())?;
        }
        damaged += dump_file(file, dump.records, &mut output)?;
    }
    output.finish()?;
    if damaged > 0 {
        bail!("damaged batches: {damaged}");
    }
    Ok(())
}

/// Prints one file; answers the number of damaged batches.
fn dump_file(path: &Path, records: bool, output: &mut Output) -> anyhow::Result<u64> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let size_bytes = file
        .metadata()
        .with_context(|| format!("cannot read {name}"))?
        .len();
    let mut reader = BufReader::new(file);
    let mut position = 0;
    let mut damaged = 0;
    while position < size_bytes {
        let bytes = match read_batch(&mut reader, size_bytes - position) {
            Ok(bytes) => bytes,
            Err(BatchEnd::Damaged(reason)) => {
                let rest = size_bytes - position;
                output.line(format_args!(
                    "position={position}: {reason}; {rest} bytes are not shown"
                ))?;
                return Ok(damaged + 1);
            }
            Err(BatchEnd::Io(error)) => {
                return Err(error).with_context(|| format!("cannot read {name} at {position}"));
            }
        };
        let batch_bytes = bytes.len() as u64;
        match RecordBatch::parse(bytes.into()) {
            Ok(batch) => {
                let (line, is_good) = describe(&batch, position);
                output.line(line)?;
                let all_read = !records || print_records(&batch, output)?;
                damaged += u64::from(!is_good || !all_read);
            }
            Err(error) => {
                output.line(format_args!(
                    "position={position} size={batch_bytes} {error}"
                ))?;
                damaged += 1;
            }
        }
        position += batch_bytes;
    }
    Ok(damaged)
}

/// Why no further batch can be read.
enum BatchEnd {
    Damaged(String),
    Io(std::io::Error),
}

impl From<std::io::Error> for BatchEnd {
    fn from(error: std::io::Error) -> Self {
        BatchEnd::Io(error)
    }
}

/// The bytes of the next batch; its length field is believed only as far as the file goes.
fn read_batch(reader: &mut impl Read, remaining: u64) -> Result<Vec<u8>, BatchEnd> {
    let mut prefix = [0; LENGTH_OVERHEAD];
    if remaining < prefix.len() as u64 {
        return Err(BatchEnd::Damaged(
            "the file ends inside a batch header".to_owned(),
        ));
    }
    reader.read_exact(&mut prefix)?;
    let [.., a, b, c, d] = prefix;
    let length = i32::from_be_bytes([a, b, c, d]);
    let Ok(body) = usize::try_from(length) else {
        return Err(BatchEnd::Damaged(format!(
            "a batch of negative length {length}"
        )));
    };
    let available = remaining - prefix.len() as u64;
    if body as u64 > available {
        return Err(BatchEnd::Damaged(format!(
            "a batch of length {length} where {available} bytes follow"
        )));
    }
    let mut bytes = vec![0; LENGTH_OVERHEAD + body];
    let (head, rest) = bytes.split_at_mut(LENGTH_OVERHEAD);
    head.copy_from_slice(&prefix);
    reader.read_exact(rest)?;
    Ok(bytes)
}

/// The line of a batch, and whether nothing is wrong with it.
fn describe(batch: &RecordBatch, position: u64) -> (String, bool) {
    let mut line = format!(
        "position={position} size={} base_offset={} last_offset={} count={} leader_epoch={}",
        batch.size_bytes(),
        batch.base_offset(),
        batch.last_offset(),
        batch.record_count(),
        batch.partition_leader_epoch(),
    );
    let kind = match batch.timestamp_type() {
        TimestampType::CreateTime => "create_time",
        TimestampType::LogAppendTime => "append_time",
    };
    // Writing to a String cannot fail.
    let _ = write!(line, " {kind}={}", batch.max_timestamp());
    let _ = write!(
        line,
        " producer_id={} producer_epoch={} base_sequence={}",
        batch.producer_id(),
        batch.producer_epoch(),
        batch.base_sequence(),
    );
    let _ = write!(line, " transactional={}", batch.is_transactional());
    let mut is_good = true;
    let control = match batch.control() {
        Ok(None) => "none".to_owned(),
        Ok(Some(ControlMarker::Commit { coordinator_epoch })) => {
            format!("commit coordinator_epoch={coordinator_epoch}")
        }
        Ok(Some(ControlMarker::Abort { coordinator_epoch })) => {
            format!("abort coordinator_epoch={coordinator_epoch}")
        }
        Err(error) => {
            is_good = false;
            format!("damaged ({error})")
        }
    };
    let _ = write!(line, " control={control} codec={}", batch.compression());
    match batch.verify_crc() {
        Ok(()) => line.push_str(" crc=ok"),
        Err(error) => {
            is_good = false;
            let _ = write!(line, " crc=wrong ({error})");
        }
    }
    (line, is_good)
}

/// Prints the records beneath a batch; answers whether all of them could be read.
fn print_records(batch: &RecordBatch, output: &mut Output) -> std::io::Result<bool> {
    let records = match batch.records(DECOMPRESSED_BYTES_MAX) {
        Ok(records) => records,
        Err(error) => {
            output.line(format_args!("  {error}"))?;
            return Ok(false);
        }
    };
    for record in records {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                output.line(format_args!("  {error}"))?;
                return Ok(false);
            }
        };
        output.line(format_args!(
            "  offset={} timestamp={} key={} value={} headers={}",
            record.offset,
            record.timestamp,
            bytes_to_json(record.key.as_deref()),
            bytes_to_json(record.value.as_deref()),
            headers_to_json(record.headers.iter_bytes()),
        ))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream::formats::protocol::{
        Compression, ProducerStamp, RecordBatchBuilder, control_batch,
    };

    fn batch() -> Vec<u8> {
        let mut builder = RecordBatchBuilder::new(Compression::Gzip);
        builder.append(1_000, Some(b"k"), Some(b"v"), &[("h", None)]);
        builder.append(2_000, None, Some(b"w"), &[]);
        let stamp = ProducerStamp {
            producer_id: 7,
            producer_epoch: 3,
            base_sequence: 11,
            transactional: true,
        };
        builder.finish(stamp).unwrap().to_vec()
    }

    #[test]
    fn a_batch_line_names_offsets_producer_transaction_codec_and_checksum() {
        let batch = RecordBatch::parse(batch().into()).unwrap();
        let (line, is_good) = describe(&batch, 61);
        assert!(is_good);
        for part in [
            "position=61 ",
            " base_offset=0 last_offset=1 count=2 ",
            " create_time=2000 ",
            " producer_id=7 producer_epoch=3 base_sequence=11 ",
            " transactional=true control=none codec=gzip crc=ok",
        ] {
            assert!(line.contains(part), "{part:?} in {line:?}");
        }
    }

    #[test]
    fn a_marker_says_how_the_transaction_ended() {
        let marker = ControlMarker::Abort {
            coordinator_epoch: 4,
        };
        let batch = RecordBatch::parse(control_batch(marker, 7, 3, 1_000)).unwrap();
        let (line, is_good) = describe(&batch, 0);
        assert!(
            is_good && line.contains(" control=abort coordinator_epoch=4 "),
            "{line:?}"
        );
    }

    #[test]
    fn a_flipped_bit_is_a_wrong_checksum() {
        let mut bytes = batch();
        *bytes.last_mut().unwrap() ^= 1;
        let (line, is_good) = describe(&RecordBatch::parse(bytes.into()).unwrap(), 0);
        assert!(!is_good && line.contains(" crc=wrong "), "{line:?}");
    }

    #[test]
    fn a_length_beyond_the_file_ends_the_dump_without_memory_for_it() {
        let mut bytes = batch();
        bytes[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
        let remaining = bytes.len() as u64;
        let end = read_batch(&mut bytes.as_slice(), remaining);
        assert!(matches!(end, Err(BatchEnd::Damaged(reason)) if reason.contains("2147483647")));
    }
}

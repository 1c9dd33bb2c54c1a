//! `millstream produce`: lines of stdin as records.
//!
//! Invariants: every line is one record, in order; exit code 0 means that each of them was
//! acknowledged (with a transactional id: that they were committed together, or none of them).
//! Never: keeps more than a window of unacknowledged records in memory.

use crate::connection::{Connection, client_config};
use crate::output;
use anyhow::{Context, anyhow};
use bytes::Bytes;
use millstream::client::{ClientConfig, Delivery, Producer, ProducerRecord};
use millstream::formats::protocol::Compression;
use std::collections::VecDeque;
use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Duration;

/// Records that wait for their acknowledgements.
const WINDOW: usize = 10_000;

/// Write lines from stdin as records.
///
/// Each line is the value of one record, without its newline. Waits until all are acknowledged.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
    /// The topic; created on first use unless the broker was told not to
    topic: String,
    /// What stands between key and value in a line (\t is a tab); without it, keys are null
    #[arg(long, value_name = "TEXT", value_parser = separator)]
    key_separator: Option<String>,
    /// A header for every record; may be repeated, with the same name as well. NAME alone is a
    /// header with a null value
    #[arg(long = "header", value_name = "NAME=VALUE")]
    headers: Vec<String>,
    /// A key or value that is exactly this text becomes null
    #[arg(long, value_name = "TEXT")]
    null: Option<String>,
    /// Write to this partition, instead of the one that the key chooses
    #[arg(long, value_name = "N")]
    partition: Option<i32>,
    /// Codec: none, gzip, snappy, lz4 or zstd
    #[arg(long, value_name = "CODEC", default_value = "none")]
    compression: Compression,
    /// Write all lines in one transaction under this id
    #[arg(long, value_name = "ID")]
    transactional_id: Option<String>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut builder = Producer::builder()
        .client(ClientConfig {
            allow_auto_create_topics: true,
            ..client_config()
        })
        .compression(arguments.compression);
    if let Some(id) = &arguments.transactional_id {
        builder = builder.transactional_id(id.as_str());
    }
    let producer = builder.connect(&arguments.connection.transport()?).await?;
    let transactional = arguments.transactional_id.is_some();
    if transactional {
        producer.init_transactions().await?;
        producer.begin()?;
    }
    let sent = send_lines(&producer, &arguments, &mut io::stdin().lock()).await;
    let result = match sent {
        Ok(count) if transactional => producer.commit().await.map(|()| count).map_err(Into::into),
        Err(error) if transactional => {
            // The reason for the abort counts, not how the abort went: the next start fences what
            // is left.
            let _ = producer.abort().await;
            Err(error.context("nothing was committed"))
        }
        Err(error) => Err(error.context("stopped half way, earlier lines are written")),
        other => other,
    };
    producer.close(Duration::from_secs(5)).await;
    let count = result?;
    output::note(format_args!("{count} records acknowledged"));
    Ok(())
}

async fn send_lines(
    producer: &Producer,
    arguments: &Arguments,
    input: &mut impl BufRead,
) -> anyhow::Result<u64> {
    let topic: Arc<str> = arguments.topic.as_str().into();
    let headers: Vec<(String, Option<Bytes>)> =
        arguments.headers.iter().map(|text| header(text)).collect();
    let mut window: VecDeque<(u64, Delivery)> = VecDeque::new();
    let mut count = 0_u64;
    let mut line = Vec::new();
    loop {
        line.clear();
        if input
            .read_until(b'\n', &mut line)
            .context("cannot read stdin")?
            == 0
        {
            break;
        }
        count += 1;
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let (key, value) = match split(text, arguments.key_separator.as_deref()) {
            Ok(parts) => parts,
            Err(error) => {
                acknowledged(&mut window, 0).await?;
                return Err(error.context(format!("line {count}")));
            }
        };
        let null = arguments.null.as_deref().map(str::as_bytes);
        let field = |bytes: &[u8]| (Some(bytes) != null).then(|| Bytes::copy_from_slice(bytes));
        let mut record = ProducerRecord::new(Arc::clone(&topic));
        record.partition = arguments.partition;
        record.key = key.and_then(field);
        record.value = field(value);
        record.headers.clone_from(&headers);
        window.push_back((count, producer.send(record).await?));
        if window.len() >= WINDOW {
            acknowledged(&mut window, WINDOW / 2).await?;
        }
    }
    acknowledged(&mut window, 0).await?;
    Ok(count)
}

/// Waits for the oldest deliveries until `left` are left.
async fn acknowledged(window: &mut VecDeque<(u64, Delivery)>, left: usize) -> anyhow::Result<()> {
    while window.len() > left {
        let Some((line, delivery)) = window.pop_front() else {
            break;
        };
        delivery
            .await
            .with_context(|| format!("line {line} was not acknowledged"))?;
    }
    Ok(())
}

/// Key and value of a line.
fn split<'a>(
    line: &'a [u8],
    separator: Option<&str>,
) -> anyhow::Result<(Option<&'a [u8]>, &'a [u8])> {
    let Some(separator) = separator else {
        return Ok((None, line));
    };
    let separator = separator.as_bytes();
    let at = line
        .windows(separator.len())
        .position(|window| window == separator);
    let parts = at.and_then(|at| Some((line.get(..at)?, line.get(at + separator.len()..)?)));
    let (key, value) = parts.ok_or_else(|| anyhow!("has no key separator"))?;
    Ok((Some(key), value))
}

fn header(text: &str) -> (String, Option<Bytes>) {
    match text.split_once('=') {
        Some((name, value)) => (
            name.to_owned(),
            Some(Bytes::copy_from_slice(value.as_bytes())),
        ),
        None => (text.to_owned(), None),
    }
}

fn separator(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("give at least one character".to_owned());
    }
    Ok(text.replace("\\t", "\t"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_at_its_first_separator_and_one_without_is_refused() {
        assert_eq!(
            split(b"a::b::c", Some("::")).unwrap(),
            (Some(&b"a"[..]), &b"b::c"[..])
        );
        assert_eq!(split(b":", Some(":")).unwrap(), (Some(&b""[..]), &b""[..]));
        assert_eq!(split(b"a:b", None).unwrap(), (None, &b"a:b"[..]));
        assert!(split(b"ab", Some(":")).is_err());
        assert!(split(b"", Some(":")).is_err());
    }

    #[test]
    fn headers_may_be_empty_or_null_and_hold_equals_signs() {
        assert_eq!(header("a=b=c"), ("a".to_owned(), Some(Bytes::from("b=c"))));
        assert_eq!(header("a="), ("a".to_owned(), Some(Bytes::new())));
        assert_eq!(header("a"), ("a".to_owned(), None));
    }

    #[test]
    fn a_tab_can_be_written_as_an_escape() {
        assert_eq!(separator("\\t").unwrap(), "\t");
        assert!(separator("").is_err());
    }
}

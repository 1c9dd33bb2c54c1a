//! Stage `collect`: the serialised output of one source record, kept until the record is done.
//!
//! Invariants: outputs keep the order in which the operators made them; a record that fails half
//! way leaves none.
//! Never: grows with the number of records, its buffers are reused.

use std::ops::Range;

use millstream_protocol::Headers;

use crate::serde::SerdeError;

/// Serialised outputs, side by side in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    bytes: Vec<u8>,
    outputs: Vec<Output>,
}

#[derive(Debug)]
struct Output {
    sink: usize,
    timestamp: i64,
    headers: Headers,
    key: Option<Range<usize>>,
    value: Option<Range<usize>>,
}

/// One collected output.
#[derive(Debug)]
pub(crate) struct Collected<'a> {
    pub(crate) sink: usize,
    pub(crate) timestamp: i64,
    pub(crate) headers: &'a Headers,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
}

impl Collected<'_> {
    /// An upper bound of what the record takes in a request of its own, batch header included.
    pub(crate) fn size_bytes(&self) -> usize {
        const BATCH_AND_RECORD: usize = 128;
        let headers: usize = self
            .headers
            .iter_bytes()
            .map(|(name, value)| 10 + name.len() + value.map_or(0, <[u8]>::len))
            .sum();
        BATCH_AND_RECORD
            + headers
            + self.key.map_or(0, <[u8]>::len)
            + self.value.map_or(0, <[u8]>::len)
    }
}

impl Collector {
    /// Adds an output. `write` appends key and value to the buffer and answers whether the key is
    /// there, where it ends, and whether the value is there.
    pub(crate) fn collect(
        &mut self,
        sink: usize,
        timestamp: i64,
        headers: Headers,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(bool, usize, bool), SerdeError>,
    ) -> Result<(), SerdeError> {
        let start = self.bytes.len();
        let (has_key, key_end, has_value) = write(&mut self.bytes)?;
        self.outputs.push(Output {
            sink,
            timestamp,
            headers,
            key: has_key.then_some(start..key_end),
            value: has_value.then_some(key_end..self.bytes.len()),
        });
        Ok(())
    }

    /// Forgets everything; the buffers stay.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.outputs.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.outputs.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<Collected<'_>> {
        let output = self.outputs.get(index)?;
        let slice = |range: &Option<Range<usize>>| {
            range
                .as_ref()
                .and_then(|range| self.bytes.get(range.clone()))
        };
        Some(Collected {
            sink: output.sink,
            timestamp: output.timestamp,
            headers: &output.headers,
            key: slice(&output.key),
            value: slice(&output.value),
        })
    }
}

//! First unstable offset: what keeps read_committed readers from reading on.
//!
//! Invariants: a transaction holds the offset from its first batch until its marker is below the
//! high watermark, so a reader never sees a marker's effect before the marker.
//! Never: knows the high watermark by itself; it is told.

use std::collections::BTreeMap;

/// Transactions that are open, or ended by a marker that is not below the high watermark yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StableOffset {
    /// First offset to producer id.
    open: BTreeMap<i64, i64>,
    /// First offset to the marker's offset.
    ended: BTreeMap<i64, i64>,
}

impl StableOffset {
    /// A transaction's first batch was appended.
    pub(crate) fn begin(&mut self, first_offset: i64, producer_id: i64) {
        self.open.insert(first_offset, producer_id);
    }

    /// A transaction's marker was appended.
    pub(crate) fn end(&mut self, first_offset: i64, marker_offset: i64) {
        self.open.remove(&first_offset);
        self.ended.insert(first_offset, marker_offset);
    }

    /// Releases the transactions whose markers are below the high watermark.
    pub(crate) fn on_high_watermark(&mut self, high_watermark: i64) {
        if !self.ended.is_empty() {
            self.ended
                .retain(|_, marker_offset| *marker_offset >= high_watermark);
        }
    }

    /// The lowest offset that a transaction holds.
    pub(crate) fn first_unstable(&self) -> Option<i64> {
        let open = self.open.keys().next();
        let ended = self.ended.keys().next();
        open.into_iter().chain(ended).min().copied()
    }

    /// What the last stable offset would be if everything below `end` were durable: the lowest
    /// offset of a transaction that is still open.
    pub(crate) fn first_open_or(&self, end: i64) -> i64 {
        self.open.keys().next().copied().unwrap_or(end)
    }

    /// Open transactions as (first offset, producer id), in the order they began.
    pub(crate) fn open(&self) -> impl Iterator<Item = (i64, i64)> {
        self.open
            .iter()
            .map(|(first, producer_id)| (*first, *producer_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_open_transaction_holds_the_offset() {
        let mut stable = StableOffset::default();
        assert_eq!(stable.first_unstable(), None);
        stable.begin(5, 1);
        stable.begin(8, 2);
        assert_eq!(stable.first_unstable(), Some(5));
        stable.end(5, 10);
        assert_eq!(
            stable.first_unstable(),
            Some(5),
            "the marker is not below the high watermark"
        );
        assert_eq!(stable.first_open_or(11), 8);
        stable.on_high_watermark(10);
        assert_eq!(stable.first_unstable(), Some(5));
        stable.on_high_watermark(11);
        assert_eq!(stable.first_unstable(), Some(8));
        stable.end(8, 11);
        stable.on_high_watermark(12);
        assert_eq!(stable.first_unstable(), None);
        assert_eq!(stable.first_open_or(12), 12);
    }

    #[test]
    fn ending_a_later_transaction_first_does_not_release_the_earlier_one() {
        let mut stable = StableOffset::default();
        stable.begin(5, 1);
        stable.begin(8, 2);
        stable.end(8, 9);
        stable.on_high_watermark(10);
        assert_eq!(stable.first_unstable(), Some(5));
        assert_eq!(stable.open().collect::<Vec<_>>(), [(5, 1)]);
    }
}

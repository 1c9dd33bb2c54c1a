//! What happened, as the clients saw it: the only thing that the invariants look at.
//!
//! Invariants: an outcome is noted once; what was read stays in the order in which it was read.
//! Never: knows what ought to have happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream::TopicPartition;
use millstream::client::consumer::ConsumerRecord;
use tokio::time::Instant;

/// The topic that the producers write and the job reads.
pub const INPUT: &str = "orders";
/// What the job makes of each record: its value, and where it was read.
pub const ENRICHED: &str = "orders.enriched";
/// Where each record that the job processed was read.
pub const AUDIT: &str = "orders.audit";
/// The job's application id, which is its group.
pub const GROUP: &str = "enrichment";

/// What became of a record that was sent outside of transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// Not known yet.
    Pending,
    /// Acknowledged at this place.
    Acked(TopicPartition, i64),
    /// Reported as failed; it may be there all the same.
    Failed,
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Not known yet.
    Open,
    /// `commit` said that it is done.
    Committed,
    /// `abort` said so, or it was left open by a producer that never asked for a commit.
    Aborted,
    /// The producer was lost while it asked for the commit: all of it or nothing.
    Unknown,
}

/// A record of a producer.
#[derive(Debug, Clone)]
pub struct Written {
    /// The key.
    pub key: String,
    /// The value, different for every record.
    pub value: String,
    /// What became of it.
    pub sent: Sent,
}

/// A transaction of the transactional producer.
#[derive(Debug, Clone)]
pub struct Transaction {
    /// Its records.
    pub records: Vec<Written>,
    /// Its end.
    pub ended: Ended,
}

/// A record that a reader of committed records was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its offset.
    pub offset: i64,
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
}

impl Seen {
    pub(super) fn of(record: &ConsumerRecord) -> Self {
        let text = |bytes: &Option<bytes::Bytes>| {
            bytes
                .as_deref()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        Self {
            offset: record.offset,
            key: text(&record.key).unwrap_or_default(),
            value: text(&record.value).unwrap_or_default(),
        }
    }
}

/// What one reader was given, by partition and in order.
pub type Reading = BTreeMap<TopicPartition, Vec<Seen>>;

/// Offsets of a partition as ListOffsets gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// The first offset.
    pub start: i64,
    /// The last stable offset.
    pub stable: i64,
    /// The high watermark.
    pub high: i64,
}

/// The group's offsets and the committed records, in one order or the other.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// When.
    pub at: Duration,
    /// Offsets that were committed before the records were read.
    pub before: BTreeMap<TopicPartition, i64>,
    /// Offsets that were committed after the records were read.
    pub after: BTreeMap<TopicPartition, i64>,
    /// How many records of each partition had been read.
    pub read: BTreeMap<TopicPartition, usize>,
    /// Start, last stable offset and high watermark of each partition, asked for in this order.
    pub watermarks: BTreeMap<TopicPartition, Watermarks>,
}

/// A batch of the log as it lies there at the end, markers included.
#[derive(Debug, Clone)]
pub struct RawBatch {
    /// Its first offset.
    pub base_offset: i64,
    /// Its last offset.
    pub last_offset: i64,
    /// The producer.
    pub producer_id: i64,
    /// Its epoch.
    pub producer_epoch: i16,
    /// Whether it belongs to a transaction.
    pub transactional: bool,
    /// For a marker: whether it commits.
    pub marker: Option<bool>,
    /// The records.
    pub records: Vec<Seen>,
}

/// Everything that was noted.
#[derive(Debug, Default)]
pub struct History {
    /// Records of the idempotent producer, in the order of the calls.
    pub idempotent: Vec<Written>,
    /// Transactions, in order.
    pub transactions: Vec<Transaction>,
    /// Values that a lost producer wrote after its successor had begun.
    pub late: Vec<String>,
    /// What the reader that runs all the time was given.
    pub live: Reading,
    /// What the reader of the snapshots was given.
    pub calm: Reading,
    /// The snapshots.
    pub snapshots: Vec<Snapshot>,
    /// The whole log at the end.
    pub raw: BTreeMap<TopicPartition, Vec<RawBatch>>,
    /// What went wrong outside of any invariant: a part that did not finish in time, an error that
    /// nothing explains.
    pub mishaps: Vec<String>,
    /// Transactions that were not complete at the end.
    pub incomplete: Vec<String>,
    /// Committed offsets at the end.
    pub committed: BTreeMap<TopicPartition, i64>,
    /// Ends of the input (last stable offsets) when everything was written.
    pub ends: BTreeMap<TopicPartition, i64>,
    /// How often each thing happened.
    pub counts: BTreeMap<&'static str, u64>,
}

/// A history that the parts of a run share, and a log of it where one is wanted.
#[derive(Debug, Clone)]
pub struct Record {
    history: Arc<Mutex<History>>,
    began: Instant,
    print: bool,
}

impl Record {
    pub(super) fn new(print: bool) -> Self {
        Self {
            history: Arc::default(),
            began: Instant::now(),
            print,
        }
    }

    /// The history.
    pub fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the beginning.
    #[must_use]
    pub fn at(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether the run is to be read.
    #[must_use]
    pub fn prints(&self) -> bool {
        self.print
    }

    /// Prints a line where the run is to be read.
    pub fn say(&self, line: impl FnOnce() -> String) {
        if self.print {
            #[expect(clippy::print_stderr, reason = "the log that was asked for")]
            {
                eprintln!("{:>9.3} {}", self.at().as_secs_f64(), line());
            }
        }
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.lock().counts.entry(what).or_default() += 1;
        self.say(|| format!("-- {what}"));
    }

    pub(super) fn mishap(&self, what: String) {
        self.say(|| format!("!! {what}"));
        self.lock().mishaps.push(what);
    }

    pub(super) fn take(&self) -> History {
        std::mem::take(&mut *self.lock())
    }
}

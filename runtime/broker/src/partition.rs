//! One partition as requests see it: its log, and those who wait for it to move.
//!
//! Invariants: a waiter registered before it looks at the log misses no move.
//! Invariants: every append asks the sync loop for a sync, so nobody can forget it.
//! Never: acknowledges; who appended waits for `Node::durable(appended.journal_position)`.

use crate::Clock;
use crate::sync_loop::{Halt, SyncLoop};
use bytes::Bytes;
use millstream_log::{AppendError, AppendOrigin, Appended, LogOffsets, PartitionLog};
use millstream_protocol::{ErrorCode, TopicPartition};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::Notify;

/// A partition that is served.
#[derive(Debug)]
pub(crate) struct Partition {
    name: TopicPartition,
    log: Arc<PartitionLog>,
    sync: Arc<SyncLoop>,
    clock: Clock,
    waiters: Waiters,
}

/// Who waits for a partition to move.
#[derive(Debug, Default)]
struct Waiters {
    count: AtomicUsize,
    list: Mutex<Vec<Arc<Notify>>>,
}

/// A waiter's place in one partition's list; leaving is dropping it.
#[derive(Debug)]
pub(crate) struct Registration {
    partition: Arc<Partition>,
    waiter: Arc<Notify>,
}

impl Partition {
    /// Wraps a log and listens to it from now on.
    pub(crate) fn new(
        name: TopicPartition,
        log: Arc<PartitionLog>,
        sync: Arc<SyncLoop>,
        clock: Clock,
    ) -> Arc<Self> {
        let partition = Arc::new(Self {
            name,
            log,
            sync,
            clock,
            waiters: Waiters::default(),
        });
        let weak: Weak<Self> = Arc::downgrade(&partition);
        partition.log.set_change_listener(Arc::new(move || {
            if let Some(partition) = weak.upgrade() {
                partition.waiters.wake();
            }
        }));
        partition
    }

    /// Topic and number.
    pub(crate) fn name(&self) -> &TopicPartition {
        &self.name
    }

    /// The log itself, for reads and look-ups. Append through [`Partition::append`].
    pub(crate) fn log(&self) -> &Arc<PartitionLog> {
        &self.log
    }

    /// Log start, last stable offset, high watermark and log end, taken together.
    pub(crate) fn offsets(&self) -> LogOffsets {
        self.log.offsets()
    }

    /// The time that what is written down is stamped with, and judged by.
    pub(crate) fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    /// How far that is ahead of the clock of deadlines.
    pub(crate) fn ahead_ms(&self) -> i64 {
        self.clock.ahead_ms()
    }

    /// Appends and asks for a sync. The caller acknowledges after
    /// `Node::durable(journal_position)` only.
    pub(crate) fn append(
        &self,
        batches: Bytes,
        origin: AppendOrigin,
    ) -> Result<Appended, AppendFailure> {
        match self.sync.halt() {
            Some(Halt::ForGood) => return Err(AppendFailure::Poisoned),
            Some(Halt::ForNow) => return Err(AppendFailure::Late),
            None => {}
        }
        let appended = self.log.append(batches, origin, self.clock.wall_ms())?;
        self.sync.request();
        Ok(appended)
    }

    /// Wakes everybody who waits for it to move.
    pub(crate) fn wake(&self) {
        self.waiters.wake();
    }

    /// Puts a waiter on the list. Register first, then look at the log, then wait.
    pub(crate) fn register(self: &Arc<Self>, waiter: &Arc<Notify>) -> Registration {
        self.waiters.add(waiter);
        Registration {
            partition: self.clone(),
            waiter: waiter.clone(),
        }
    }
}

/// Why an append was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendFailure {
    /// The log refused it.
    #[error(transparent)]
    Log(#[from] AppendError),
    /// A sync has failed before.
    #[error("an earlier sync of the journal failed; open the broker again")]
    Poisoned,
    /// The last sync could not be done.
    #[error("what was written before cannot be synced now; it is tried again")]
    Late,
}

impl AppendFailure {
    /// The error code of the partition's answer.
    pub(crate) fn error_code(&self) -> ErrorCode {
        match self {
            Self::Log(error) => error.error_code(),
            Self::Poisoned | Self::Late => ErrorCode::KAFKA_STORAGE_ERROR,
        }
    }
}

impl Waiters {
    fn add(&self, waiter: &Arc<Notify>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(waiter.clone());
        self.count.store(list.len(), Ordering::SeqCst);
    }

    fn remove(&self, waiter: &Arc<Notify>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = list.iter().position(|other| Arc::ptr_eq(other, waiter)) {
            list.swap_remove(place);
        }
        self.count.store(list.len(), Ordering::SeqCst);
    }

    /// Wakes everybody. A `Notify` keeps one permit, so a waiter that still looks at the log is not
    /// lost.
    fn wake(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for waiter in self
            .list
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            waiter.notify_one();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.partition.waiters.remove(&self.waiter);
    }
}

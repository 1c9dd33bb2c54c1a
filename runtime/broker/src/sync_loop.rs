//! Group commit: the one place that syncs the journal, and where everybody waits for it.
//!
//! ```text
//!   append ─▶ request() ─┐                      ┌─▶ position(p) wakes every waiter with p' ≤ p
//!                        ▼                      │
//!            idle ──▶ sync_journal() ──ok──▶ publish ──▶ idle, or at once again if asked meanwhile
//!                        ├──────────────err──▶ failed: for good
//!                        └─ could not begin ─▶ late: again at the next interval
//! ```
//!
//! Invariants: the published position never goes down; after a failed sync it never moves again.
//! While a sync is late, as where no descriptor was left for it (`interval` only), nothing is
//! appended, since what an acknowledgement promises would not hold.
//! Never: two syncs at once; a retry of a failed sync; silence after a panic, which counts as one.

use crate::observed::{Observed, OwnerGone};
use crate::{BrokerConfig, BrokerError, Placement};
use millstream_log::{Durability, LogDirectory, LogError, failpoint};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// What the loop has published last.
#[derive(Debug, Clone)]
enum Progress {
    Durable(u64),
    /// Something kept a sync from its work that may be over at the next one.
    Late(Arc<str>),
    Failed(Arc<str>),
}

/// Why nothing may be appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Halt {
    /// The last sync could not be done; the next one makes up for it.
    ForNow,
    /// A sync has failed.
    ForGood,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ask {
    Nothing,
    Sync,
    Stop,
}

/// The loop's two ends: who appends asks, who acknowledges waits.
#[derive(Debug)]
pub(crate) struct SyncLoop {
    waits: bool,
    durable: AtomicU64,
    progress: Observed<Progress>,
    ask: Mutex<Ask>,
    asked_thread: Condvar,
    asked_task: Notify,
}

impl SyncLoop {
    /// Starts the loop that this configuration needs: a thread, a task, or nothing at all.
    pub(crate) fn start(
        config: &BrokerConfig,
        directory: &LogDirectory,
    ) -> Result<Arc<Self>, BrokerError> {
        let this = Arc::new(Self {
            waits: matches!(config.durability, Durability::Sync),
            durable: AtomicU64::new(0),
            progress: Observed::new(Progress::Durable(0)),
            ask: Mutex::new(Ask::Nothing),
            asked_thread: Condvar::new(),
            asked_task: Notify::new(),
        });
        match (&config.durability, config.placement) {
            (Durability::Sync, Placement::Threads) => {
                let (shared, directory) = (this.clone(), directory.clone());
                std::thread::Builder::new()
                    .name("millstream-sync".to_owned())
                    .spawn(move || shared.run_on_thread(&directory))
                    .map_err(|error| BrokerError::StorageFailed {
                        reason: format!("its thread cannot be started: {error}"),
                    })?;
            }
            (Durability::Sync, Placement::Runtime { sync_delay }) => {
                tokio::spawn(this.clone().run_on_runtime(directory.clone(), sync_delay));
            }
            (Durability::Interval(interval), _) => {
                tokio::spawn(this.clone().run_at_intervals(
                    directory.clone(),
                    *interval,
                    config.placement,
                ));
            }
            (Durability::Os | Durability::Memory, _) => {}
        }
        Ok(this)
    }

    /// Something was appended: the next sync takes it.
    pub(crate) fn request(&self) {
        if self.waits && self.raise(Ask::Sync) {
            self.asked_thread.notify_one();
            self.asked_task.notify_one();
        }
    }

    /// Ends the loop after the sync that is under way; later waiters get `Stopped`.
    pub(crate) fn stop(&self) {
        self.raise(Ask::Stop);
        self.asked_thread.notify_one();
        self.asked_task.notify_one();
    }

    /// Why nothing may be appended, if that is so.
    pub(crate) fn halt(&self) -> Option<Halt> {
        match self.progress.get() {
            Progress::Durable(_) => None,
            Progress::Late(_) => Some(Halt::ForNow),
            Progress::Failed(_) => Some(Halt::ForGood),
        }
    }

    /// Waits until everything before `position` of the journal is durable; at once unless under
    /// `sync`.
    pub(crate) async fn durable(&self, position: u64) -> Result<(), BrokerError> {
        if !self.waits || self.durable.load(Ordering::Acquire) >= position {
            return Ok(());
        }
        let reached = self.progress.wait_for(move |progress| match progress {
            Progress::Durable(durable) => *durable >= position,
            Progress::Late(_) | Progress::Failed(_) => true,
        });
        match reached.await {
            Ok(Progress::Durable(_)) => Ok(()),
            Ok(Progress::Late(reason) | Progress::Failed(reason)) => {
                Err(BrokerError::StorageFailed {
                    reason: reason.to_string(),
                })
            }
            Err(OwnerGone) => Err(BrokerError::Stopped),
        }
    }

    /// Raises what is asked for; true if that changed anything.
    fn raise(&self, ask: Ask) -> bool {
        let mut asked = self.ask.lock().unwrap_or_else(PoisonError::into_inner);
        let raised = *asked < ask;
        *asked = (*asked).max(ask);
        raised
    }

    /// Takes what was asked for; `Stop` stays.
    fn take(&self) -> Ask {
        let mut asked = self.ask.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = *asked;
        if taken == Ask::Sync {
            *asked = Ask::Nothing;
        }
        taken
    }

    fn wait_on_thread(&self) -> Ask {
        let mut asked = self.ask.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *asked {
                Ask::Nothing => {
                    asked = self
                        .asked_thread
                        .wait(asked)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Ask::Sync => {
                    *asked = Ask::Nothing;
                    return Ask::Sync;
                }
                Ask::Stop => return Ask::Stop,
            }
        }
    }

    fn run_on_thread(&self, directory: &LogDirectory) {
        while self.wait_on_thread() == Ask::Sync {
            if !self.sync(directory) {
                return;
            }
        }
    }

    async fn run_on_runtime(self: Arc<Self>, directory: LogDirectory, delay: Duration) {
        loop {
            match self.take() {
                Ask::Nothing => self.asked_task.notified().await,
                Ask::Stop => return,
                Ask::Sync => {
                    if !delay.is_zero() {
                        tokio::time::sleep(delay).await;
                    }
                    if self.take() == Ask::Stop || !self.sync(&directory) {
                        return;
                    }
                }
            }
        }
    }

    async fn run_at_intervals(
        self: Arc<Self>,
        directory: LogDirectory,
        interval: Duration,
        placement: Placement,
    ) {
        loop {
            tokio::select! {
                biased;
                () = self.asked_task.notified() => {}
                () = tokio::time::sleep(interval) => {}
            }
            if self.take() == Ask::Stop {
                return;
            }
            let (shared, directory) = (self.clone(), directory.clone());
            if !placement
                .blocking(move || shared.sync(&directory))
                .await
                .unwrap_or(false)
            {
                return;
            }
        }
    }

    fn publish(&self, progress: Progress) {
        self.progress.change(|current| {
            *current = progress;
            true
        });
    }

    /// One sync; false when it failed for good. Whatever came of it, it says so to everybody.
    fn sync(&self, directory: &LogDirectory) -> bool {
        failpoint::hit("broker.before-sync");
        let unfinished = Unfinished(self);
        let synced = directory.sync_journal();
        drop(unfinished);
        failpoint::hit("broker.after-sync");
        match synced {
            Ok(position) => {
                if self.halt().is_some() {
                    tracing::info!("what could not be synced is synced now");
                }
                self.durable.fetch_max(position, Ordering::AcqRel);
                self.publish(Progress::Durable(position));
                true
            }
            Err(error) if !self.waits && may_be_over(directory, &error) => {
                if self.halt().is_none() {
                    tracing::error!(%error, "a sync is late: nothing is appended until it is done");
                }
                self.publish(Progress::Late(error.to_string().into()));
                true
            }
            Err(error) => {
                tracing::error!(%error, "a sync failed: nothing is acknowledged any more");
                self.publish(Progress::Failed(error.to_string().into()));
                false
            }
        }
    }
}

/// Whether a sync at intervals that ended so has lost nothing, and may be done the next time.
fn may_be_over(directory: &LogDirectory, error: &LogError) -> bool {
    !directory.poisoned() && !matches!(error, LogError::Closed | LogError::Poisoned { .. })
}

/// A sync under way; when it panics, nobody must wait for it.
struct Unfinished<'loop_>(&'loop_ SyncLoop);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        tracing::error!("the sync panicked: nothing is acknowledged any more");
        let reason = "the sync loop has ended by a broken invariant";
        self.0.publish(Progress::Failed(reason.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sync_that_panics_fails_everybody_who_waits() {
        let sync = Arc::new(SyncLoop {
            waits: true,
            durable: AtomicU64::new(0),
            progress: Observed::new(Progress::Durable(0)),
            ask: Mutex::new(Ask::Nothing),
            asked_thread: Condvar::new(),
            asked_task: Notify::new(),
        });
        let panicking = sync.clone();
        let panicked = tokio::spawn(async move {
            let _unfinished = Unfinished(&panicking);
            panic!("an invariant is broken");
        });
        let failed = sync.durable(7).await;
        assert!(matches!(failed, Err(BrokerError::StorageFailed { .. })));
        assert_eq!(sync.halt(), Some(Halt::ForGood));
        assert!(panicked.await.is_err());
    }
}

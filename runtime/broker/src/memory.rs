//! What connections over sockets may hold of this process's memory.
//!
//! ```text
//! socket ─▶ room for the request ─▶ under way ─▶ room for its records ─▶ socket
//! ```
//!
//! Invariants:
//! - requests above [`SMALL_REQUEST_BYTES`] that are being read or are under way take at most
//!   `queued.max.request.bytes` together; whoever finds no room reads no further
//! - records above [`SMALL_ANSWER_BYTES`] that wait to be taken by their readers take at most
//!   `fetch.answers.max.bytes` together; without room a fetch has one batch, or none this time
//! - who holds memory that others wait for must go on: [`Memory::is_short`] ends its patience
//!
//! Never: makes a small request wait.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests up to this size need no room: heartbeats and fetches go on when memory is short.
pub(crate) const SMALL_REQUEST_BYTES: usize = 4 << 10;
/// Answers up to this size need no room.
pub(crate) const SMALL_ANSWER_BYTES: usize = 64 << 10;
/// How long somebody may hold memory that others wait for, while nothing comes of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How often somebody slow is looked at again.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// What is counted in: a semaphore's permits fit 32 bits on every machine.
const UNIT_BYTES: usize = 1 << 10;

/// Room that is given back when this is dropped.
pub(crate) type Room = OwnedSemaphorePermit;

/// The two budgets of one node.
#[derive(Debug)]
pub(crate) struct Memory {
    requests: Budget,
    answers: Budget,
}

impl Memory {
    pub(crate) fn new(request_bytes_max: usize, answer_bytes_max: usize) -> Self {
        Self {
            requests: Budget::new(request_bytes_max),
            answers: Budget::new(answer_bytes_max),
        }
    }

    /// Waits for room for a request of this size. Cancellation-safe; first come, first served.
    pub(crate) async fn request_room(&self, size_bytes: usize) -> Option<Room> {
        self.requests.room(size_bytes).await
    }

    /// Room for records of this size, if there is some now.
    pub(crate) fn answer_room_now(&self, size_bytes: usize) -> Option<Room> {
        self.answers.room_now(size_bytes)
    }

    /// What records may take now, as far as can be told.
    pub(crate) fn answer_bytes_free(&self) -> usize {
        self.answers.free.available_permits() * UNIT_BYTES
    }

    /// Waits for room for records of this size. Cancellation-safe; first come, first served.
    pub(crate) async fn answer_room(&self, size_bytes: usize) -> Option<Room> {
        self.answers.room(size_bytes).await
    }

    /// Whether somebody waits for memory, or soon will.
    pub(crate) fn is_short(&self) -> bool {
        self.requests.is_short() || self.answers.is_short()
    }
}

/// A number of bytes, lent in units.
#[derive(Debug)]
struct Budget {
    free: Arc<Semaphore>,
    units: u32,
    waiting: AtomicUsize,
}

impl Budget {
    fn new(bytes: usize) -> Self {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        Self {
            free: Arc::new(Semaphore::new(units as usize)),
            units,
            waiting: AtomicUsize::new(0),
        }
    }

    /// What is larger than all of it needs all of it.
    fn units_of(&self, size_bytes: usize) -> u32 {
        let units = u32::try_from(size_bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        units.min(self.units)
    }

    fn room_now(&self, size_bytes: usize) -> Option<Room> {
        let units = self.units_of(size_bytes);
        self.free.clone().try_acquire_many_owned(units).ok()
    }

    async fn room(&self, size_bytes: usize) -> Option<Room> {
        let _waiting = Waiting::new(&self.waiting);
        let units = self.units_of(size_bytes);
        self.free.clone().acquire_many_owned(units).await.ok()
    }

    fn is_short(&self) -> bool {
        let free = self.free.available_permits();
        self.waiting.load(Ordering::Relaxed) > 0 || free < self.units as usize / 8
    }
}

/// Counts one who waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The same bytes, which keep the room until the last reference to them is dropped.
pub(crate) fn holding(bytes: Bytes, room: &Arc<Room>) -> Bytes {
    struct Holding {
        bytes: Bytes,
        _room: Arc<Room>,
    }
    impl AsRef<[u8]> for Holding {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    Bytes::from_owner(Holding {
        bytes,
        _room: room.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn room_is_lent_once_and_comes_back_with_the_last_reference() {
        let memory = Memory::new(8 << 10, 8 << 10);
        let room = Arc::new(memory.answer_room_now(6 << 10).expect("empty"));
        let bytes = holding(Bytes::from_static(b"records"), &room);
        let slice = bytes.slice(1..3);
        drop((room, bytes));
        assert!(memory.answer_room_now(6 << 10).is_none());
        assert!(memory.request_room(8 << 10).await.is_some(), "two budgets");
        drop(slice);
        assert!(memory.answer_room_now(6 << 10).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_larger_than_the_budget_waits_until_nobody_else_has_any() {
        let memory = Memory::new(4 << 10, 4 << 10);
        let small = memory.answer_room_now(1).expect("empty");
        assert!(!memory.is_short());
        let mut large = Box::pin(memory.answer_room(1 << 30));
        assert!(futures::poll!(&mut large).is_pending());
        assert!(memory.is_short(), "somebody waits");
        drop(small);
        assert!(large.await.is_some());
        assert!(!memory.is_short());
    }
}

//! Which fetch sessions there are: ids, epochs and who has to go. Pure: time and randomness are
//! given to it.
//!
//! Invariants:
//! - an id is positive, and belongs to one session at a time
//! - a session that is taken is with one request; its slot keeps the epoch of the next one, so what
//!   becomes of that request changes nothing
//! - no more sessions than slots, and no more memory than [`BYTES_MAX`]
//!
//! Never: removes a session that was used within [`EVICTION_MS`], unless its client says so.

use super::session::Session;
use millstream_protocol::ErrorCode;
use std::collections::BTreeMap;

/// The id of no session.
pub(crate) const NO_SESSION: i32 = 0;
/// Asks for a new session.
pub(crate) const INITIAL_EPOCH: i32 = 0;
/// Asks for no session, or ends one.
pub(crate) const FINAL_EPOCH: i32 = -1;
/// How long a session may be unused before another may have its slot: Kafka's, and no setting.
pub(crate) const EVICTION_MS: i64 = 120_000;
/// What all sessions together may take of memory.
pub(crate) const BYTES_MAX: usize = 64 << 20;

/// What a request is to its session.
#[derive(Debug)]
pub(crate) enum Begun {
    /// Everything is asked, and the client wants a session to go on with.
    Initial,
    /// Everything is asked, and that is all.
    Sessionless,
    /// What changed is asked, in the session that is now the request's.
    Incremental(Loan, Box<Session>),
    /// The session does not fit.
    Refused(ErrorCode),
}

/// Which session was taken: an id may belong to another one by the time it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loan {
    id: i32,
    number: u64,
}

#[derive(Debug)]
struct Slot {
    number: u64,
    /// That of the next request.
    epoch: i32,
    used_ms: i64,
    bytes: usize,
    /// `None` while a request has it.
    session: Option<Box<Session>>,
}

/// The sessions of one broker.
#[derive(Debug)]
pub(crate) struct Cache {
    slots_max: usize,
    bytes: usize,
    number: u64,
    slots: BTreeMap<i32, Slot>,
}

impl Cache {
    /// Room for that many sessions.
    pub(crate) fn new(slots_max: usize) -> Self {
        Self {
            slots_max,
            bytes: 0,
            number: 0,
            slots: BTreeMap::new(),
        }
    }

    /// A request comes: what is it, and to which session?
    pub(crate) fn begin(&mut self, id: i32, epoch: i32, by_id: bool, now_ms: i64) -> Begun {
        if epoch == INITIAL_EPOCH || epoch == FINAL_EPOCH {
            self.remove(id);
            return match epoch {
                INITIAL_EPOCH => Begun::Initial,
                _ => Begun::Sessionless,
            };
        }
        let Some(slot) = self.slots.get_mut(&id) else {
            return Begun::Refused(ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        };
        if slot.epoch != epoch {
            return Begun::Refused(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        let Some(session) = slot.session.take() else {
            return Begun::Refused(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        };
        if session.by_id() != by_id {
            slot.session = Some(session);
            return Begun::Refused(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR);
        }
        slot.epoch = next(epoch);
        slot.used_ms = now_ms;
        let number = slot.number;
        Begun::Incremental(Loan { id, number }, session)
    }

    /// Keeps a new session, if there is room for it. `random` is asked until it gives an id that
    /// is free.
    pub(crate) fn keep(
        &mut self,
        session: Session,
        now_ms: i64,
        mut random: impl FnMut() -> u64,
    ) -> i32 {
        if session.is_empty() || !self.make_room(1, session.bytes(), now_ms) {
            return NO_SESSION;
        }
        let id = loop {
            let id = (random() & i32::MAX as u64) as i32;
            if id != NO_SESSION && !self.slots.contains_key(&id) {
                break id;
            }
        };
        self.number += 1;
        self.bytes += session.bytes();
        let slot = Slot {
            number: self.number,
            epoch: next(INITIAL_EPOCH),
            used_ms: now_ms,
            bytes: session.bytes(),
            session: Some(Box::new(session)),
        };
        self.slots.insert(id, slot);
        id
    }

    /// A session comes back from its request. The id with which the client goes on: none, if the
    /// session has become too large, or has nothing left. One that was removed meanwhile is not
    /// missed before the next request.
    pub(crate) fn give_back(&mut self, loan: Loan, session: Box<Session>, now_ms: i64) -> i32 {
        let Loan { id, number } = loan;
        let Some(slot) = self.slots.get_mut(&id).filter(|slot| slot.number == number) else {
            return id;
        };
        let before = std::mem::replace(&mut slot.bytes, session.bytes());
        self.bytes = self.bytes - before + session.bytes();
        slot.used_ms = now_ms;
        let is_empty = session.is_empty();
        slot.session = Some(session);
        if is_empty || !self.make_room(0, 0, now_ms) {
            self.remove(id);
            return NO_SESSION;
        }
        id
    }

    fn remove(&mut self, id: i32) {
        if let Some(slot) = self.slots.remove(&id) {
            self.bytes -= slot.bytes;
        }
    }

    /// Whether there is room for these; what has not been used for long makes some.
    fn make_room(&mut self, slots: usize, bytes: usize, now_ms: i64) -> bool {
        while self.slots.len() + slots > self.slots_max || self.bytes + bytes > BYTES_MAX {
            let oldest = self.slots.iter().min_by_key(|(_, slot)| slot.used_ms);
            match oldest.map(|(id, slot)| (*id, slot.used_ms)) {
                Some((id, used_ms)) if now_ms - used_ms > EVICTION_MS => self.remove(id),
                _ => return false,
            }
        }
        true
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// The epoch after this one: 0 and below have a meaning of their own.
fn next(epoch: i32) -> i32 {
    match epoch {
        i32::MAX => 1,
        _ => epoch + 1,
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;

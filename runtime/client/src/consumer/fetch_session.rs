//! One fetch session with a broker: what the broker knows of our partitions, so that a request
//! names only what has changed. Pure: what is wanted goes in, what is to be sent comes out.
//!
//! ```text
//!              full answer, with an id                incremental answer
//! FULL(id 0) --------------------------> NEXT(id, n) --------------------> NEXT(id, n + 1)
//!  ^    ^ answer without an id, session not found |
//!  |    +-----------------------------------------+ any other error, no answer, ids appear or go
//!  |                                              v
//!  +--- answer without an id ------------ RENEW(id): full, ends the old session
//! ```
//!
//! Invariants: after `plan`, `parts` is what the broker will hold once it has answered; an epoch is
//! sent once; a request that may not have been answered is followed by a full one.
//! Never: waits, sends, or allocates for a partition that stays as it is.

use std::cmp::Ordering;
use std::sync::Arc;

use millstream_protocol::messages::FetchResponse;
use millstream_protocol::messages::fetch::FetchableTopicResponse;
use millstream_protocol::{ErrorCode, TopicPartition, Uuid};

/// The id of no session.
const NO_SESSION: i32 = 0;
/// Asks for a new session.
const INITIAL_EPOCH: i32 = 0;
/// Asks for no session, or ends one.
const FINAL_EPOCH: i32 = -1;

/// What is asked of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Zero where it is not known.
    pub(crate) topic_id: Uuid,
    pub(crate) offset: i64,
    /// -1 where it is not known.
    pub(crate) leader_epoch: i32,
}

/// What one request has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionRequest {
    pub(crate) id: i32,
    pub(crate) epoch: i32,
    /// Whether the ids of all topics are known.
    pub(crate) by_id: bool,
    /// New or changed partitions; all of them in a full request. Partitions of one topic stand
    /// together.
    pub(crate) changed: Vec<(TopicPartition, Asked)>,
    pub(crate) forgotten: Vec<(TopicPartition, Uuid)>,
}

#[derive(Debug)]
struct Part {
    partition: TopicPartition,
    asked: Asked,
    gone: bool,
}

/// The session.
#[derive(Debug)]
pub(crate) struct FetchSession {
    id: i32,
    /// Of the next request.
    epoch: i32,
    by_id: bool,
    /// In order.
    parts: Vec<Part>,
    /// Names of `parts` by id, in order of the ids; empty unless `by_id`.
    names: Vec<(Uuid, Arc<str>)>,
}

impl FetchSession {
    /// A session that begins with the first request.
    pub(crate) fn new() -> Self {
        FetchSession::at(INITIAL_EPOCH)
    }

    /// No session: every request is a full one, and the broker keeps nothing.
    pub(crate) fn none() -> Self {
        FetchSession::at(FINAL_EPOCH)
    }

    fn at(epoch: i32) -> Self {
        FetchSession {
            id: NO_SESSION,
            epoch,
            by_id: true,
            parts: Vec::new(),
            names: Vec::new(),
        }
    }

    /// The id that a last request has to name, if the broker may hold a session.
    pub(crate) fn open_id(&self) -> Option<i32> {
        (self.id != NO_SESSION).then_some(self.id)
    }

    fn is_full(&self) -> bool {
        self.epoch == INITIAL_EPOCH || self.epoch == FINAL_EPOCH
    }

    /// The next request. `wanted` comes in the order of partitions.
    pub(crate) fn plan<'a>(
        &mut self,
        wanted: impl Iterator<Item = (&'a TopicPartition, Asked)>,
    ) -> SessionRequest {
        let mut request = self.compare(wanted);
        if !self.is_full() && request.by_id != self.by_id {
            self.renew();
        }
        self.by_id = request.by_id;
        request.id = self.id;
        request.epoch = self.epoch;
        if self.is_full() {
            let all = self.parts.iter();
            request.changed = all
                .map(|part| (part.partition.clone(), part.asked))
                .collect();
            request.forgotten.clear();
        }
        request
    }

    /// Walks both lists side by side, and makes `parts` what is wanted.
    fn compare<'a>(
        &mut self,
        wanted: impl Iterator<Item = (&'a TopicPartition, Asked)>,
    ) -> SessionRequest {
        let mut changed = Vec::new();
        let mut forgotten = Vec::new();
        let mut added = Vec::new();
        let mut by_id = true;
        let mut place = 0;
        let mut gone = false;
        for (partition, asked) in wanted {
            by_id &= asked.topic_id != Uuid::ZERO;
            loop {
                let order = self
                    .parts
                    .get(place)
                    .map_or(Ordering::Greater, |part| part.partition.cmp(partition));
                let Some(part) = self.parts.get_mut(place).filter(|_| order.is_le()) else {
                    added.push((partition.clone(), asked));
                    break;
                };
                place += 1;
                if order.is_lt() {
                    part.gone = true;
                    gone = true;
                    continue;
                }
                if part.asked != asked {
                    let before = std::mem::replace(&mut part.asked, asked);
                    if before.topic_id != asked.topic_id && before.topic_id != Uuid::ZERO {
                        forgotten.push((partition.clone(), before.topic_id));
                    }
                    changed.push((partition.clone(), asked));
                }
                break;
            }
        }
        for part in self.parts.iter_mut().skip(place) {
            part.gone = true;
            gone = true;
        }
        if gone {
            for part in self.parts.iter().filter(|part| part.gone) {
                by_id &= part.asked.topic_id != Uuid::ZERO;
                forgotten.push((part.partition.clone(), part.asked.topic_id));
            }
            self.parts.retain(|part| !part.gone);
        }
        if !added.is_empty() {
            self.add(&added);
            changed.append(&mut added);
            changed.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        }
        if gone || !changed.is_empty() {
            self.name_topics(by_id);
        }
        SessionRequest {
            id: NO_SESSION,
            epoch: FINAL_EPOCH,
            by_id,
            changed,
            forgotten,
        }
    }

    fn add(&mut self, added: &[(TopicPartition, Asked)]) {
        self.parts
            .extend(added.iter().map(|(partition, asked)| Part {
                partition: partition.clone(),
                asked: *asked,
                gone: false,
            }));
        self.parts
            .sort_unstable_by(|a, b| a.partition.cmp(&b.partition));
    }

    /// Brings `names` up to date, without a change where there is none.
    fn name_topics(&mut self, by_id: bool) {
        let names = &mut self.names;
        if !by_id {
            names.clear();
            return;
        }
        let mut last = None;
        let mut topics = 0;
        let mut same = true;
        for part in &self.parts {
            if last == Some(&part.partition.topic) {
                continue;
            }
            last = Some(&part.partition.topic);
            topics += 1;
            same &= names
                .binary_search_by_key(&part.asked.topic_id, |(id, _)| *id)
                .is_ok_and(|at| {
                    names
                        .get(at)
                        .is_some_and(|(_, n)| *n == part.partition.topic)
                });
        }
        if same && topics == names.len() {
            return;
        }
        names.clear();
        for part in &self.parts {
            let (id, name) = (part.asked.topic_id, &part.partition.topic);
            if names.last().is_none_or(|(_, last)| last != name) {
                names.push((id, Arc::clone(name)));
            }
        }
        names.sort_unstable_by_key(|(id, _)| *id);
    }

    /// The partition that a part of an answer is about, and what was asked of it.
    pub(crate) fn find(
        &self,
        topic: &FetchableTopicResponse,
        index: i32,
    ) -> Option<(&TopicPartition, Asked)> {
        let name = if topic.topic_id == Uuid::ZERO {
            topic.topic.as_str()
        } else {
            let at = self
                .names
                .binary_search_by_key(&topic.topic_id, |(id, _)| *id)
                .ok()?;
            &self.names.get(at)?.1
        };
        let at = self
            .parts
            .binary_search_by(|part| {
                let order = (*part.partition.topic).cmp(name);
                order.then(part.partition.partition.cmp(&index))
            })
            .ok()?;
        let part = self.parts.get(at)?;
        Some((&part.partition, part.asked))
    }

    /// A request was answered.
    pub(crate) fn answered(&mut self, response: &FetchResponse) {
        if self.epoch == FINAL_EPOCH {
            return;
        }
        match response.error_code {
            ErrorCode::NONE => {}
            ErrorCode::FETCH_SESSION_ID_NOT_FOUND => return self.restart(),
            _ => return self.renew(),
        }
        let (mut known, mut strange) = (0, 0);
        for topic in &response.responses {
            for part in &topic.partitions {
                match self.find(topic, part.partition_index) {
                    Some(_) => known += 1,
                    None => strange += 1,
                }
            }
        }
        let omitted = self.is_full() && known != self.parts.len();
        if strange > 0 || omitted {
            tracing::info!(
                id = self.id,
                known,
                strange,
                "the answer does not fit the request"
            );
            return if self.is_full() {
                self.restart();
            } else {
                self.renew();
            };
        }
        if response.session_id == NO_SESSION {
            return self.restart();
        }
        self.id = response.session_id;
        self.epoch = if self.epoch == i32::MAX {
            1
        } else {
            self.epoch + 1
        };
    }

    /// A request was not answered: the broker may have moved on or not.
    pub(crate) fn unanswered(&mut self) {
        if self.epoch != FINAL_EPOCH {
            self.renew();
        }
    }

    fn restart(&mut self) {
        self.id = NO_SESSION;
        self.epoch = INITIAL_EPOCH;
    }

    /// The next request ends the session and asks for a new one.
    fn renew(&mut self) {
        self.epoch = INITIAL_EPOCH;
    }
}

#[cfg(test)]
#[path = "fetch_session_tests.rs"]
mod tests;

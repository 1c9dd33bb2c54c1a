//! What one fetch session holds: what a client asks of each partition, and what it was told last.
//!
//! Invariants:
//! - a partition is left out of an answer only while the client knows all that there is to know:
//!   no records, no error, and the offsets that it was told last
//! - partitions that gave records stand behind those that gave none, so that a limit of bytes
//!   starves nobody
//! - after an error the client counts as having been told nothing
//!
//! Never: holds a partition itself; topics come and go, and every fetch looks them up anew.

use millstream_protocol::Uuid;
use millstream_protocol::messages::fetch::{
    FetchPartition, FetchTopic, ForgottenTopic, PartitionData,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a partition takes of memory besides its topic's name: both maps, with room to grow.
const PART_BYTES: usize = 256;

/// How requests name a topic: up to version 12 by its name, from 13 on by its id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TopicKey {
    /// Its name.
    Name(Arc<str>),
    /// Its id.
    Id(Uuid),
}

impl TopicKey {
    /// As a request of that version names it.
    pub(crate) fn of(by_id: bool, name: &str, id: Uuid) -> Self {
        match by_id {
            true => Self::Id(id),
            false => Self::Name(name.into()),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Name(name) => name.len(),
            Self::Id(_) => 0,
        }
    }
}

/// What is asked of a partition. What only replicas ask is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Where to read.
    pub(crate) offset: i64,
    /// The most to read.
    pub(crate) bytes_max: i32,
    /// The leader epoch that the client believes in; -1 is not checked.
    pub(crate) leader_epoch: i32,
}

impl Asked {
    /// By this part of a request.
    pub(crate) fn by(partition: &FetchPartition) -> Self {
        Self {
            offset: partition.fetch_offset,
            bytes_max: partition.partition_max_bytes,
            leader_epoch: partition.current_leader_epoch,
        }
    }
}

/// The offsets that a client was told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    high_watermark: i64,
    last_stable: i64,
    log_start: i64,
}

impl Told {
    /// Nothing yet: no log has such offsets.
    pub(crate) const NOTHING: Self = Self {
        high_watermark: -1,
        last_stable: -1,
        log_start: -1,
    };

    /// What this part of an answer tells. After an error it is nothing, so that the partition is
    /// told of again once the error is gone.
    pub(crate) fn by(data: &PartitionData) -> Self {
        if !data.error_code.is_ok() {
            return Self::NOTHING;
        }
        Self {
            high_watermark: data.high_watermark,
            last_stable: data.last_stable_offset,
            log_start: data.log_start_offset,
        }
    }

    /// Whether this part of an answer has nothing new.
    pub(crate) fn knows(&self, data: &PartitionData) -> bool {
        data.error_code.is_ok() && !gives_records(data) && *self == Self::by(data)
    }
}

fn gives_records(data: &PartitionData) -> bool {
    data.records
        .as_ref()
        .is_some_and(|records| !records.is_empty())
}

/// One partition of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its topic.
    pub(crate) topic: TopicKey,
    /// Its number.
    pub(crate) index: i32,
    /// What is asked of it.
    pub(crate) asked: Asked,
    /// What the client was told last.
    pub(crate) told: Told,
}

/// A place in a session's order.
pub(crate) type Place = u64;

/// The session.
#[derive(Debug)]
pub(crate) struct Session {
    by_id: bool,
    parts: BTreeMap<Place, Part>,
    places: BTreeMap<(TopicKey, i32), Place>,
    last: Place,
    bytes: usize,
}

impl Session {
    /// A session without partitions, which names topics by their ids or by their names.
    pub(crate) fn new(by_id: bool) -> Self {
        Self {
            by_id,
            parts: BTreeMap::new(),
            places: BTreeMap::new(),
            last: 0,
            bytes: 0,
        }
    }

    /// Whether topics go by their ids.
    pub(crate) fn by_id(&self) -> bool {
        self.by_id
    }

    /// Whether it has no partitions.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// How many partitions it has.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// What it takes of memory, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its partitions, in the order in which they are read.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (Place, &Part)> {
        self.parts.iter().map(|(place, part)| (*place, part))
    }

    /// Adds a partition behind all others. One that it has already stays where it is, and keeps
    /// what was told of it.
    pub(crate) fn ask(&mut self, topic: &TopicKey, index: i32, asked: Asked) -> Place {
        let key = (topic.clone(), index);
        if let Some(&place) = self.places.get(&key) {
            if let Some(part) = self.parts.get_mut(&place) {
                part.asked = asked;
            }
            return place;
        }
        self.last += 1;
        self.bytes += PART_BYTES + topic.bytes();
        self.places.insert(key, self.last);
        let part = Part {
            topic: topic.clone(),
            index,
            asked,
            told: Told::NOTHING,
        };
        self.parts.insert(self.last, part);
        self.last
    }

    fn forget(&mut self, topic: &TopicKey, index: i32) {
        let key = (topic.clone(), index);
        if let Some(place) = self.places.remove(&key) {
            self.parts.remove(&place);
            self.bytes -= PART_BYTES + topic.bytes();
        }
    }

    /// What a request changes: partitions come and change first, then others go.
    pub(crate) fn change(&mut self, changed: &[FetchTopic], forgotten: &[ForgottenTopic]) {
        for topic in changed {
            let key = TopicKey::of(self.by_id, &topic.topic, topic.topic_id);
            for partition in &topic.partitions {
                self.ask(&key, partition.partition, Asked::by(partition));
            }
        }
        for topic in forgotten {
            let key = TopicKey::of(self.by_id, &topic.topic, topic.topic_id);
            for index in &topic.partitions {
                self.forget(&key, *index);
            }
        }
    }

    /// A partition is part of the answer.
    pub(crate) fn answered(&mut self, place: Place, data: &PartitionData) {
        let Some(part) = self.parts.get_mut(&place) else {
            return;
        };
        part.told = Told::by(data);
        if !gives_records(data) {
            return;
        }
        self.last += 1;
        if let Some(part) = self.parts.remove(&place) {
            let key = (part.topic.clone(), part.index);
            self.places.insert(key, self.last);
            self.parts.insert(self.last, part);
        }
    }
}

//! The fake broker's coordinator of the consumer protocol: it gives what a test tells it to give,
//! and writes down what it hears. No timers.
//!
//! Invariants: an assignment is told when it has changed, and in answer to a heartbeat that tells
//! everything; an epoch other than the present and the last one is fenced.
//! Never: part of the product.

use std::collections::{BTreeMap, BTreeSet};

use millstream_protocol::messages::consumer_group_heartbeat::{Assignment, TopicPartitions};
use millstream_protocol::messages::offset_fetch::OffsetFetchRequestGroup;
use millstream_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
};
use millstream_protocol::{ErrorCode, Uuid};

use super::broker::{FakeBroker, id_of};

type Partitions = BTreeMap<Uuid, BTreeSet<i32>>;

#[derive(Debug, Default)]
pub(super) struct ConsumerCoordinator {
    /// What every new member gets.
    first: Partitions,
    epoch: i32,
    members: BTreeMap<String, Member>,
    pub(super) heard: Vec<ConsumerGroupHeartbeatRequest>,
    /// Epochs under which committed offsets were asked for.
    pub(super) fetches: Vec<i32>,
}

#[derive(Debug, Default)]
struct Member {
    epoch: i32,
    previous: i32,
    assigned: Partitions,
    told: bool,
}

fn partitions(named: &[(&str, i32)]) -> Partitions {
    let mut partitions = Partitions::new();
    for (topic, partition) in named {
        let topic = partitions.entry(id_of(topic)).or_default();
        topic.insert(*partition);
    }
    partitions
}

impl ConsumerCoordinator {
    /// What the only member is to have from now on, at the next epoch.
    pub(super) fn give(&mut self, named: &[(&str, i32)]) {
        self.first = partitions(named);
        self.epoch += 1;
        for member in self.members.values_mut() {
            member.previous = std::mem::replace(&mut member.epoch, self.epoch);
            member.told &= member.assigned == self.first;
            member.assigned.clone_from(&self.first);
        }
    }

    /// As if all sessions had ended.
    pub(super) fn forget_members(&mut self) {
        self.members.clear();
    }

    /// Whether a commit or look-up under this epoch is refused; `None` where no member ever was.
    pub(super) fn refuses(&self, epoch: i32, member_id: &str) -> Option<Option<ErrorCode>> {
        if self.heard.is_empty() || epoch < 0 {
            return None;
        }
        let code = match self.members.get(member_id) {
            None => Some(ErrorCode::UNKNOWN_MEMBER_ID),
            Some(member) => (member.epoch != epoch).then_some(ErrorCode::STALE_MEMBER_EPOCH),
        };
        Some(code)
    }

    pub(super) fn refuses_fetch(&mut self, group: &OffsetFetchRequestGroup) -> Option<ErrorCode> {
        let member_id = group.member_id.as_deref()?;
        self.fetches.push(group.member_epoch);
        self.refuses(group.member_epoch, member_id).flatten()
    }

    /// The last heartbeat that named what the member owns.
    pub(super) fn owned(&self) -> Option<Vec<(Uuid, Vec<i32>)>> {
        let told = self.heard.iter().rev();
        let told = told
            .filter_map(|beat| beat.topic_partitions.as_ref())
            .next()?;
        let pairs = told.iter().map(|t| (t.topic_id, t.partitions.clone()));
        Some(pairs.collect())
    }

    fn answer(
        &mut self,
        request: ConsumerGroupHeartbeatRequest,
    ) -> Result<ConsumerGroupHeartbeatResponse, ErrorCode> {
        let full = request.topic_partitions.is_some() && request.subscribed_topic_names.is_some();
        let (id, epoch) = (request.member_id.clone(), request.member_epoch);
        self.heard.push(request);
        if epoch < 0 {
            self.members.remove(&id);
            return Ok(ConsumerGroupHeartbeatResponse {
                member_epoch: epoch,
                ..Default::default()
            });
        }
        if epoch == 0 {
            self.epoch += 1;
            let member = Member {
                epoch: self.epoch,
                assigned: self.first.clone(),
                ..Default::default()
            };
            self.members.insert(id.clone(), member);
        }
        let member = self.members.get_mut(&id);
        let member = member.ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
        if epoch != 0 && epoch != member.epoch && epoch != member.previous {
            return Err(ErrorCode::FENCED_MEMBER_EPOCH);
        }
        let tells = full || !member.told;
        member.told = true;
        let given = member
            .assigned
            .iter()
            .map(|(topic_id, set)| TopicPartitions {
                topic_id: *topic_id,
                partitions: set.iter().copied().collect(),
            });
        Ok(ConsumerGroupHeartbeatResponse {
            member_id: Some(id),
            member_epoch: member.epoch,
            heartbeat_interval_ms: 1000,
            assignment: tells.then(|| Assignment {
                topic_partitions: given.collect(),
            }),
            ..Default::default()
        })
    }
}

impl FakeBroker {
    pub(super) fn consumers(&self) -> std::sync::MutexGuard<'_, ConsumerCoordinator> {
        self.consumer_coordinator.lock().unwrap()
    }

    pub(super) fn beat(
        &self,
        request: ConsumerGroupHeartbeatRequest,
        code: Option<ErrorCode>,
    ) -> ConsumerGroupHeartbeatResponse {
        let mut consumers = self.consumers();
        let refused = |error_code| ConsumerGroupHeartbeatResponse {
            error_code,
            ..Default::default()
        };
        match code {
            Some(code) => {
                consumers.heard.push(request);
                refused(code)
            }
            None => consumers.answer(request).unwrap_or_else(refused),
        }
    }
}

//! The fake broker's group coordinator: one classic group, without timers. Tests drop members.
//!
//! Never: part of the product.

use std::collections::BTreeMap;

use bytes::Bytes;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::{heartbeat, join_group, leave_group, sync_group};

use super::broker::FakeBroker;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Empty,
    /// Waits until everybody has joined again.
    Joining,
    /// Waits for the leader's assignments.
    Syncing,
    Stable,
}

#[derive(Debug, Default)]
struct Member {
    instance: Option<String>,
    protocols: Vec<join_group::JoinGroupRequestProtocol>,
    joined: bool,
    assignment: Bytes,
}

#[derive(Debug, Default)]
pub(super) struct Coordinator {
    phase: Phase,
    pub(super) generation: i32,
    members: BTreeMap<String, Member>,
    leader: String,
    next_id: i32,
    /// Ids given out with MEMBER_ID_REQUIRED.
    pending: Vec<String>,
    pub(super) left: Vec<String>,
}

impl Coordinator {
    pub(super) fn refuses_commit(&self, generation: i32, member: &str) -> Option<ErrorCode> {
        if generation < 0 {
            return None;
        }
        self.check(generation, member)
            .or((self.phase == Phase::Syncing).then_some(ErrorCode::REBALANCE_IN_PROGRESS))
    }

    fn check(&self, generation: i32, member: &str) -> Option<ErrorCode> {
        if !self.members.contains_key(member) {
            Some(ErrorCode::UNKNOWN_MEMBER_ID)
        } else if generation != self.generation {
            Some(ErrorCode::ILLEGAL_GENERATION)
        } else {
            None
        }
    }

    /// Starts a rebalance: the others hear of it with their next heartbeat.
    pub(super) fn rebalance(&mut self) {
        for member in self.members.values_mut() {
            member.joined = false;
        }
        self.phase = if self.members.is_empty() {
            Phase::Empty
        } else {
            Phase::Joining
        };
    }

    /// As if the member's session had ended.
    pub(super) fn drop_member(&mut self, id: &str) {
        self.members.remove(id);
        self.rebalance();
    }

    fn complete_join(&mut self) {
        if self.phase == Phase::Joining && self.members.values().all(|member| member.joined) {
            self.generation += 1;
            self.phase = Phase::Syncing;
            self.leader = self.members.keys().next().cloned().unwrap_or_default();
        }
    }

    fn enter(&mut self, request: &join_group::JoinGroupRequest) -> Result<String, ErrorCode> {
        let mut id = request.member_id.clone();
        let taken = |m: &Member| m.instance.is_some() && m.instance == request.group_instance_id;
        if id.is_empty() {
            let name = request
                .group_instance_id
                .clone()
                .unwrap_or_else(|| "member".to_owned());
            self.next_id += 1;
            id = format!("{name}-{}", self.next_id);
            if request.group_instance_id.is_none() {
                self.pending.push(id.clone());
                return Ok(id);
            }
            // A static member takes its predecessor's place.
            let old = self
                .members
                .iter()
                .find(|(_, m)| taken(m))
                .map(|(old, _)| old.clone());
            if let Some(old) = old {
                self.members.remove(&old);
            }
        } else if let Some(known) = self.members.get(&id) {
            if known.instance != request.group_instance_id {
                return Err(ErrorCode::FENCED_INSTANCE_ID);
            }
        } else if self.members.values().any(taken) {
            return Err(ErrorCode::FENCED_INSTANCE_ID);
        } else if !self.pending.contains(&id) {
            return Err(ErrorCode::UNKNOWN_MEMBER_ID);
        }
        self.pending.retain(|pending| *pending != id);
        if self.phase != Phase::Joining {
            self.members.entry(id.clone()).or_default();
            self.rebalance();
        }
        let member = self.members.entry(id.clone()).or_default();
        member.instance.clone_from(&request.group_instance_id);
        member.protocols.clone_from(&request.protocols);
        member.joined = true;
        self.complete_join();
        Ok(id)
    }

    fn protocol(&self) -> String {
        let first = self.members.values().next().unwrap();
        first
            .protocols
            .iter()
            .map(|p| p.name.clone())
            .find(|name| {
                self.members
                    .values()
                    .all(|m| m.protocols.iter().any(|p| p.name == *name))
            })
            .unwrap()
    }

    fn join_answer(&self, id: &str) -> join_group::JoinGroupResponse {
        let protocol = self.protocol();
        let members = self
            .members
            .iter()
            .filter(|_| id == self.leader)
            .map(|(id, member)| {
                let chosen = member
                    .protocols
                    .iter()
                    .find(|p| p.name == protocol)
                    .unwrap();
                join_group::JoinGroupResponseMember {
                    member_id: id.clone(),
                    group_instance_id: member.instance.clone(),
                    metadata: chosen.metadata.clone(),
                }
            });
        join_group::JoinGroupResponse {
            generation_id: self.generation,
            protocol_type: Some("consumer".into()),
            protocol_name: Some(protocol.clone()),
            leader: self.leader.clone(),
            member_id: id.to_owned(),
            members: members.collect(),
            ..Default::default()
        }
    }
}

impl FakeBroker {
    pub(super) fn group(&self) -> std::sync::MutexGuard<'_, Coordinator> {
        self.coordinator.lock().unwrap()
    }

    pub(super) async fn join(
        &self,
        request: join_group::JoinGroupRequest,
        code: Option<ErrorCode>,
    ) -> join_group::JoinGroupResponse {
        let refused = |error_code, member_id: String| join_group::JoinGroupResponse {
            error_code,
            member_id,
            ..Default::default()
        };
        if let Some(code) = code {
            return refused(code, request.member_id);
        }
        let entered = self.group().enter(&request);
        let id = match entered {
            Ok(id) => id,
            Err(code) => return refused(code, request.member_id),
        };
        if self.group().pending.contains(&id) {
            return refused(ErrorCode::MEMBER_ID_REQUIRED, id);
        }
        self.changed.notify_waiters();
        loop {
            let changed = self.changed.notified();
            {
                let mut group = self.group();
                group.complete_join();
                if !group.members.contains_key(&id) {
                    return refused(ErrorCode::UNKNOWN_MEMBER_ID, id);
                }
                if group.phase != Phase::Joining {
                    return group.join_answer(&id);
                }
            }
            changed.await;
        }
    }

    pub(super) async fn sync(
        &self,
        request: sync_group::SyncGroupRequest,
        code: Option<ErrorCode>,
    ) -> sync_group::SyncGroupResponse {
        let refused = |error_code| sync_group::SyncGroupResponse {
            error_code,
            ..Default::default()
        };
        if let Some(code) = code {
            if code == ErrorCode::UNKNOWN_MEMBER_ID {
                self.group().drop_member(&request.member_id);
            }
            return refused(code);
        }
        {
            let mut group = self.group();
            if let Some(code) = group.check(request.generation_id, &request.member_id) {
                return refused(code);
            }
            if request.member_id == group.leader && group.phase == Phase::Syncing {
                for given in request.assignments {
                    if let Some(member) = group.members.get_mut(&given.member_id) {
                        member.assignment = given.assignment;
                    }
                }
                group.phase = Phase::Stable;
            }
        }
        self.changed.notify_waiters();
        loop {
            let changed = self.changed.notified();
            {
                let group = self.group();
                match group.phase {
                    Phase::Stable => {
                        let member = group.members.get(&request.member_id).unwrap();
                        return sync_group::SyncGroupResponse {
                            assignment: member.assignment.clone(),
                            protocol_type: request.protocol_type,
                            protocol_name: request.protocol_name,
                            ..Default::default()
                        };
                    }
                    Phase::Syncing => {}
                    _ => return refused(ErrorCode::REBALANCE_IN_PROGRESS),
                }
            }
            changed.await;
        }
    }

    pub(super) fn heartbeat(
        &self,
        request: &heartbeat::HeartbeatRequest,
        code: Option<ErrorCode>,
    ) -> heartbeat::HeartbeatResponse {
        let group = self.group();
        let instance = request.group_instance_id.clone();
        let fenced = instance.is_some()
            && group
                .members
                .iter()
                .any(|(id, m)| m.instance == instance && *id != request.member_id);
        let error_code = code
            .or(fenced.then_some(ErrorCode::FENCED_INSTANCE_ID))
            .or(group.check(request.generation_id, &request.member_id))
            .or((group.phase == Phase::Joining).then_some(ErrorCode::REBALANCE_IN_PROGRESS))
            .unwrap_or(ErrorCode::NONE);
        heartbeat::HeartbeatResponse {
            error_code,
            ..Default::default()
        }
    }

    pub(super) fn leave(
        &self,
        request: &leave_group::LeaveGroupRequest,
        code: Option<ErrorCode>,
    ) -> leave_group::LeaveGroupResponse {
        {
            let mut group = self.group();
            for member in &request.members {
                group.left.push(member.member_id.clone());
                group.drop_member(&member.member_id);
            }
        }
        self.changed.notify_waiters();
        leave_group::LeaveGroupResponse {
            error_code: code.unwrap_or(ErrorCode::NONE),
            ..Default::default()
        }
    }
}

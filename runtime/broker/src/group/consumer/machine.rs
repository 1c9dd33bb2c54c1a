//! A group of the consumer protocol as a pure machine: heartbeats and time go in, answers come out.
//!
//! ```text
//! heartbeat: known? ─▶ profile ─▶ (group epoch) ─▶ (target) ─▶ reconcile ─▶ answer
//! ```
//!
//! Invariants:
//! - a partition is assigned to, or to be given up by, one member at most;
//! - the group's epoch only rises, and the assignment's follows it;
//! - a static instance has one member.
//!
//! Never: clocks, I/O, offsets. What changed is what `difference` finds; the owner writes that
//! down before anybody sees the group, and throws the copy away if it cannot, or on a refusal.

use std::collections::{BTreeMap, BTreeSet};

use millstream_protocol::{ErrorCode, Uuid};

use super::assignor::{Assignor, Subscriber};
use super::event::{Beat, BeatReply, JOIN, LEAVE, Limits, PAUSE, Refusal, TopicShape, TopicTable};
use super::member::{Current, Member, Partitions, within};
use super::reconcile::Course;
use super::state::{GroupState, MemberState, Reaction, Stimulus, believed, react};
use crate::group::event::{Leaver, MemberClaim};

/// One group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConsumerGroup {
    pub(crate) epoch: i32,
    /// What the subscribed topics looked like at that epoch.
    pub(crate) topics_hash: i64,
    pub(crate) assignment_epoch: i32,
    pub(crate) members: BTreeMap<String, Member>,
    /// What each member is to have.
    pub(crate) targets: BTreeMap<String, Partitions>,
    /// Instance id to member id.
    pub(super) static_ids: BTreeMap<String, String>,
    /// The version of the table of topics that the group has seen.
    pub(super) topics_seen: Option<u64>,
}

impl ConsumerGroup {
    /// Where the group is in its life.
    pub(crate) fn state(&self) -> GroupState {
        let there = |member: &Member| member.current.is_reconciled_to(self.assignment_epoch);
        if self.members.is_empty() {
            GroupState::Empty
        } else if self.epoch > self.assignment_epoch {
            GroupState::Assigning
        } else if self.members.values().all(there) {
            GroupState::Stable
        } else {
            GroupState::Reconciling
        }
    }

    /// The assignor that most members vote for.
    pub(crate) fn assignor(&self) -> Assignor {
        let mut votes: BTreeMap<Assignor, usize> = BTreeMap::new();
        for vote in self
            .members
            .values()
            .filter_map(|member| member.profile.assignor)
        {
            *votes.entry(vote).or_default() += 1;
        }
        let winner = votes.into_iter().max_by_key(|(_, count)| *count);
        winner.map_or(Assignor::default(), |(assignor, _)| assignor)
    }

    /// The topics that somebody reads.
    pub(crate) fn reads(&self, topics: &dyn TopicTable) -> BTreeSet<String> {
        self.shapes(topics).into_keys().collect()
    }

    /// The regular expressions by which somebody reads topics.
    pub(crate) fn expressions(&self) -> BTreeSet<String> {
        self.expressions_but("")
    }

    /// Those of all members but this one.
    pub(crate) fn expressions_but(&self, member_id: &str) -> BTreeSet<String> {
        let others = self.members.iter().filter(|(id, _)| *id != member_id);
        others
            .filter_map(|(_, member)| member.profile.regex.clone())
            .collect()
    }

    /// When time has to be let pass for this group.
    pub(crate) fn next_deadline_ms(&self) -> Option<i64> {
        self.members.values().map(Member::deadline_ms).min()
    }

    /// A heartbeat that says nothing new of a member that has all that it is to have: nothing but
    /// its session changes, and no copy of the group is needed.
    pub(crate) fn beat_quietly(
        &mut self,
        now_ms: i64,
        beat: &Beat,
        limits: Limits,
        topics: &dyn TopicTable,
    ) -> Option<BeatReply> {
        if self.topics_seen != Some(topics.version()) || self.epoch != self.assignment_epoch {
            return None;
        }
        let says_nothing = beat.topics.is_none()
            && beat.regex.is_none()
            && beat.assignor.is_none()
            && beat.rack_id.is_none()
            && beat.rebalance_timeout_ms.is_none();
        let member = self.members.get_mut(&beat.member_id)?;
        let profile = &member.profile;
        let same = beat.instance_id == profile.instance_id
            && beat.client_id == profile.client_id
            && beat.client_host == profile.client_host;
        let there = beat.member_epoch == member.current.epoch
            && member.current.is_reconciled_to(self.assignment_epoch);
        if !(says_nothing && same && there) {
            return None;
        }
        member.refresh_session(now_ms, limits.session_timeout_ms);
        Some(BeatReply {
            member_id: beat.member_id.clone(),
            member_epoch: beat.member_epoch,
            assignment: None,
        })
    }

    /// A heartbeat. After a refusal the group is to be thrown away.
    pub(crate) fn beat(
        &mut self,
        now_ms: i64,
        beat: &Beat,
        limits: Limits,
        topics: &dyn TopicTable,
    ) -> Result<BeatReply, Refusal> {
        let stimulus = match beat.member_epoch {
            JOIN => Stimulus::Join,
            LEAVE => Stimulus::Leave,
            PAUSE => Stimulus::Pause,
            _ => Stimulus::Beat,
        };
        match react(self.state(), stimulus) {
            Reaction::Admit | Reaction::Progress => self.go_on(now_ms, beat, limits, topics),
            Reaction::Remove => {
                let member_id = self.speaker(beat)?;
                self.remove(&[member_id], topics);
                Ok(farewell(beat))
            }
            Reaction::Hold => {
                let member_id = self.speaker(beat)?;
                self.hold(&member_id);
                Ok(farewell(beat))
            }
            Reaction::Refuse(error) => Err(Refusal::new(
                error,
                format!("{} is no member of the group", beat.member_id),
            )),
            Reaction::GiveWay | Reaction::Die => Err(Refusal::new(
                ErrorCode::UNKNOWN_SERVER_ERROR,
                "a heartbeat deletes no group",
            )),
        }
    }

    /// An administrator removes members: one answer each.
    pub(crate) fn expel(&mut self, leavers: &[Leaver], topics: &dyn TopicTable) -> Vec<ErrorCode> {
        let mut gone = Vec::new();
        let mut answers = Vec::with_capacity(leavers.len());
        for leaver in leavers {
            let found = match &leaver.group_instance_id {
                None => Some(leaver.member_id.clone()),
                Some(instance_id) => self.static_ids.get(instance_id).cloned(),
            };
            let found = found.filter(|id| self.members.contains_key(id) && !gone.contains(id));
            answers.push(match found {
                None => ErrorCode::UNKNOWN_MEMBER_ID,
                Some(id) if !leaver.member_id.is_empty() && id != leaver.member_id => {
                    ErrorCode::FENCED_INSTANCE_ID
                }
                Some(id) => {
                    gone.push(id);
                    ErrorCode::NONE
                }
            });
        }
        self.remove(&gone, topics);
        answers
    }

    /// Time has passed: members that have been silent, or that have not given up what they were
    /// asked for, are removed.
    pub(crate) fn tick(&mut self, now_ms: i64, topics: &dyn TopicTable) {
        let late = |member: &Member| member.deadline_ms() <= now_ms;
        let late = self.members.iter().filter(|(_, member)| late(member));
        let late: Vec<String> = late.map(|(id, _)| id.clone()).collect();
        self.remove(&late, topics);
    }

    /// Whether a commit of offsets of these partitions may be accepted from who says it. An epoch
    /// that has passed is as good as the present one for what the member has had since then.
    pub(crate) fn validate_commit(
        &self,
        claim: &MemberClaim,
        transactional: bool,
        knows_epochs: bool,
        partitions: &[(Uuid, i32)],
    ) -> Result<(), ErrorCode> {
        if claim.generation < 0 && self.members.is_empty() {
            return Ok(());
        }
        let unnamed =
            claim.generation < 0 && claim.member_id.is_empty() && claim.group_instance_id.is_none();
        if transactional && unnamed {
            return Ok(());
        }
        let member = self.members.get(&claim.member_id);
        let member = member.ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
        if !transactional && !knows_epochs {
            return Err(ErrorCode::UNSUPPORTED_VERSION);
        }
        let current = &member.current;
        let passed = (0..current.epoch).contains(&claim.generation)
            && current.has_had(partitions, claim.generation);
        match current.epoch == claim.generation || passed {
            true => Ok(()),
            false if transactional => Err(ErrorCode::ILLEGAL_GENERATION),
            false => Err(ErrorCode::STALE_MEMBER_EPOCH),
        }
    }

    /// Whether offsets may be told to who asks; nobody in particular may always ask.
    pub(crate) fn validate_fetch(
        &self,
        member_id: Option<&str>,
        member_epoch: i32,
    ) -> Result<(), ErrorCode> {
        let Some(member_id) = member_id.or((member_epoch >= 0).then_some("")) else {
            return Ok(());
        };
        let member = self.members.get(member_id);
        let member = member.ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
        match member.current.epoch == member_epoch {
            true => Ok(()),
            false => Err(ErrorCode::STALE_MEMBER_EPOCH),
        }
    }

    fn go_on(
        &mut self,
        now_ms: i64,
        beat: &Beat,
        limits: Limits,
        topics: &dyn TopicTable,
    ) -> Result<BeatReply, Refusal> {
        let known = self.members.contains_key(&beat.member_id);
        if !known && self.members.len() >= limits.members_max && self.successor_of(beat).is_none() {
            let message = format!("the group has {} members already", limits.members_max);
            return Err(Refusal::new(ErrorCode::GROUP_MAX_SIZE_REACHED, message));
        }
        let (member_id, begins_anew) = match beat.member_epoch {
            JOIN => self.admit(beat)?,
            _ => (self.believed_speaker(beat)?, false),
        };
        let mut member = self.members.remove(&member_id).unwrap_or_default();
        let assigned_before = member.current.assigned.clone();
        let profile = member.profile.updated(beat);
        let changed =
            (&profile.topics, &profile.regex) != (&member.profile.topics, &member.profile.regex);
        if changed && beat.member_epoch == JOIN && !begins_anew {
            self.check_late_join(&member.current, beat)?;
        }
        if profile.instance_id != member.profile.instance_id {
            // What it was called before is free again.
            self.static_ids.retain(|_, holder| *holder != member_id);
        }
        if let Some(instance_id) = &profile.instance_id {
            self.static_ids
                .insert(instance_id.clone(), member_id.clone());
        }
        member.profile = profile;
        member.refresh_session(now_ms, limits.session_timeout_ms);
        self.members.insert(member_id.clone(), member.clone());
        self.retarget(changed, topics);

        let current = self
            .course(&member_id, changed, begins_anew, beat, topics)
            .follow(&member.current)
            .dated(&member.current, beat.member_epoch == JOIN);
        if current != member.current {
            member.current = current;
            member.restart_rebalance_timer(now_ms);
        }
        let tells = beat.member_epoch == JOIN
            || beat.is_full()
            || member.current.assigned != assigned_before;
        let reply = BeatReply {
            member_id: member_id.clone(),
            member_epoch: member.current.epoch,
            assignment: tells.then(|| member.current.assigned.clone()),
        };
        self.members.insert(member_id, member);
        Ok(reply)
    }

    /// Raises the group's epoch if there is a reason to, and computes the target if it is older.
    fn retarget(&mut self, changed: bool, topics: &dyn TopicTable) {
        // Read first: what comes in between is seen the next time.
        let version = topics.version();
        let topics_hash = match self.topics_seen == Some(version) && !changed {
            true => self.topics_hash,
            false => self.hash_topics(topics),
        };
        if self.epoch == 0 || changed || topics_hash != self.topics_hash {
            self.epoch = self.epoch.saturating_add(1);
            self.topics_hash = topics_hash;
        }
        self.topics_seen = Some(version);
        if self.epoch > self.assignment_epoch {
            self.targets = self.compute_targets(topics);
            self.assignment_epoch = self.epoch;
        }
    }

    fn compute_targets(&self, topics: &dyn TopicTable) -> BTreeMap<String, Partitions> {
        let nothing = Partitions::new();
        let reads = self
            .members
            .values()
            .map(|member| member.profile.reads(topics));
        let reads: Vec<BTreeMap<String, TopicShape>> = reads.collect();
        let subscribers: Vec<Subscriber<'_>> = self
            .members
            .iter()
            .zip(&reads)
            .map(|((id, member), reads)| Subscriber {
                id,
                instance_id: member.profile.instance_id.as_deref(),
                topics: reads.values().map(|shape| shape.id).collect(),
                had: self.targets.get(id).unwrap_or(&nothing),
            })
            .collect();
        let shapes = reads.iter().flat_map(BTreeMap::values);
        let counts = shapes.map(|shape| (shape.id, shape.partition_count));
        let targets = self.assignor().assign(&subscribers, &counts.collect());
        self.members.keys().cloned().zip(targets).collect()
    }

    fn course<'a>(
        &'a self,
        member_id: &'a str,
        changed: bool,
        begins_anew: bool,
        beat: &'a Beat,
        topics: &dyn TopicTable,
    ) -> OwnedCourse<'a> {
        let member = self.members.get(member_id);
        let reads = member.map(|member| member.profile.reads(topics));
        let shapes = reads.iter().flat_map(BTreeMap::values);
        OwnedCourse {
            group: self,
            member_id,
            changed,
            begins_anew,
            // A join says nothing of what the member has let go of: it may be an old one that was
            // sent again and is read late, while the member that sent it reads.
            owned: beat.owned.as_ref().filter(|_| beat.member_epoch != JOIN),
            subscribed: shapes.map(|shape| shape.id).collect(),
        }
    }

    /// Whether a member other than this one has the partition, or has still to give it up.
    fn taken_by_another(&self, member_id: &str, topic: Uuid, partition: i32) -> bool {
        let in_set = |set: &Partitions| {
            let partitions = set.get(&topic);
            partitions.is_some_and(|partitions| partitions.contains(&partition))
        };
        let mut others = self.members.iter().filter(|(id, _)| *id != member_id);
        others.any(|(_, other)| {
            in_set(&other.current.assigned) || in_set(&other.current.pending_revocation)
        })
    }

    /// The member for which a heartbeat with epoch 0 speaks, and whether it surely has nothing: a
    /// new one, or one that said that it would be back (be it under another id). A known one is
    /// told its assignment again, and has let go of nothing by that.
    fn admit(&mut self, beat: &Beat) -> Result<(String, bool), Refusal> {
        let predecessor = self.successor_of(beat).map(str::to_owned);
        let Some(predecessor) = predecessor else {
            let Some(member) = self.members.get_mut(&beat.member_id) else {
                return Ok((beat.member_id.clone(), true));
            };
            let was_away = member.current.epoch == PAUSE;
            if was_away {
                member.current.epoch = JOIN;
                member.current.previous_epoch = JOIN;
            }
            return Ok((beat.member_id.clone(), was_away));
        };
        let left = self.members.get(&predecessor);
        if left.is_none_or(|member| member.current.epoch != PAUSE) {
            let message = format!("the instance id is in use by member {predecessor}");
            return Err(Refusal::new(ErrorCode::UNRELEASED_INSTANCE_ID, message));
        }
        if self.members.contains_key(&beat.member_id) {
            let message = format!("{} is another member of the group", beat.member_id);
            return Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
        }
        let mut member = self.members.remove(&predecessor).unwrap_or_default();
        member.current.epoch = JOIN;
        member.current.previous_epoch = JOIN;
        let target = self.targets.remove(&predecessor).unwrap_or_default();
        self.targets.insert(beat.member_id.clone(), target);
        self.members.insert(beat.member_id.clone(), member);
        Ok((beat.member_id.clone(), true))
    }

    /// A join of a known member with another subscription. It may have been sent long ago, before
    /// what the member says now; once the member has gone on, only its own epoch changes that.
    fn check_late_join(&self, current: &Current, beat: &Beat) -> Result<(), Refusal> {
        if current.previous_epoch == JOIN {
            return Ok(());
        }
        let message = format!(
            "member {} is at epoch {} and subscribes otherwise; it must say that with its epoch, \
             or leave before it joins again",
            beat.member_id, current.epoch
        );
        Err(Refusal::new(ErrorCode::FENCED_MEMBER_EPOCH, message))
    }

    /// The member whose instance id the heartbeat brings under another member id.
    fn successor_of(&self, beat: &Beat) -> Option<&str> {
        let holder = self.static_ids.get(beat.instance_id.as_ref()?)?;
        (*holder != beat.member_id).then_some(holder.as_str())
    }

    /// The member for which a heartbeat speaks.
    fn speaker(&self, beat: &Beat) -> Result<String, Refusal> {
        let unknown = || {
            let message = format!("{} is no member of the group", beat.member_id);
            Refusal::new(ErrorCode::UNKNOWN_MEMBER_ID, message)
        };
        if let Some(instance_id) = &beat.instance_id {
            let holder = self.static_ids.get(instance_id).ok_or_else(unknown)?;
            if *holder != beat.member_id {
                let message = format!("member {holder} has taken over instance {instance_id}");
                return Err(Refusal::new(ErrorCode::FENCED_INSTANCE_ID, message));
            }
        }
        let known = self.members.contains_key(&beat.member_id);
        known.then(|| beat.member_id.clone()).ok_or_else(unknown)
    }

    /// The same, once its epoch is believed.
    fn believed_speaker(&self, beat: &Beat) -> Result<String, Refusal> {
        let member_id = self.speaker(beat)?;
        let Some(member) = self.members.get(&member_id) else {
            return Ok(member_id);
        };
        let current = &member.current;
        let owns_its_own = beat
            .owned
            .as_ref()
            .is_some_and(|owned| within(owned, &current.assigned));
        if believed(current.named(beat.member_epoch), owns_its_own) {
            return Ok(member_id);
        }
        let message = format!(
            "member {member_id} is at epoch {}, not {}; it must let go of its partitions and \
             join again",
            current.epoch, beat.member_epoch
        );
        Err(Refusal::new(ErrorCode::FENCED_MEMBER_EPOCH, message))
    }

    /// A static member goes and keeps what it has; what it was to give up is given up.
    fn hold(&mut self, member_id: &str) {
        if let Some(member) = self.members.get_mut(member_id) {
            member.current.epoch = PAUSE;
            member.current.pending_revocation.clear();
            if member.current.state == MemberState::Unrevoked {
                member.current.state = MemberState::Stable;
            }
            member.current = member.current.clone().dated(&member.current, false);
            member.rebalance_deadline_ms = None;
        }
    }

    fn remove(&mut self, member_ids: &[String], topics: &dyn TopicTable) {
        if member_ids.is_empty() {
            return;
        }
        for member_id in member_ids {
            self.members.remove(member_id);
            self.targets.remove(member_id);
            self.static_ids.retain(|_, holder| holder != member_id);
        }
        self.epoch = self.epoch.saturating_add(1);
        self.topics_seen = Some(topics.version());
        self.topics_hash = self.hash_topics(topics);
    }

    /// The topics that somebody reads, of those that exist.
    fn shapes(&self, topics: &dyn TopicTable) -> BTreeMap<String, TopicShape> {
        let members = self.members.values();
        members
            .flat_map(|member| member.profile.reads(topics))
            .collect()
    }

    /// A number that another set of topics, or of partitions, does not have. Zero for none.
    fn hash_topics(&self, topics: &dyn TopicTable) -> i64 {
        let shapes = self.shapes(topics);
        if shapes.is_empty() {
            return 0;
        }
        let mut hash = FNV_BASIS;
        for shape in shapes.values() {
            let count = shape.partition_count.to_be_bytes();
            for byte in shape.id.0.iter().chain(&count) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
            }
        }
        hash.cast_signed()
    }

    /// A group as its records tell of it; sessions begin now.
    pub(super) fn restored(mut self, now_ms: i64, limits: Limits) -> Self {
        for (id, member) in &mut self.members {
            member.refresh_session(now_ms, limits.session_timeout_ms);
            member.restart_rebalance_timer(now_ms);
            if let Some(instance_id) = &member.profile.instance_id {
                self.static_ids.insert(instance_id.clone(), id.clone());
            }
        }
        self
    }
}

/// The 64-bit FNV-1a hash, which is the same in every release.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// What a course borrows.
struct OwnedCourse<'a> {
    group: &'a ConsumerGroup,
    member_id: &'a str,
    changed: bool,
    begins_anew: bool,
    owned: Option<&'a Partitions>,
    subscribed: BTreeSet<Uuid>,
}

impl OwnedCourse<'_> {
    fn follow(&self, current: &Current) -> Current {
        let nothing = Partitions::new();
        let course = Course {
            epoch: self.group.assignment_epoch,
            target: self.group.targets.get(self.member_id).unwrap_or(&nothing),
            subscribed: &self.subscribed,
            changed: self.changed,
            begins_anew: self.begins_anew,
            owned: self.owned,
            taken: &|topic, partition| {
                self.group
                    .taken_by_another(self.member_id, topic, partition)
            },
        };
        course.follow(current)
    }
}

fn farewell(beat: &Beat) -> BeatReply {
    BeatReply {
        member_id: beat.member_id.clone(),
        member_epoch: beat.member_epoch,
        assignment: None,
    }
}

//! Asks leaders whether their log still holds what was read up to a position (KIP-320).
//!
//! Invariants: a position is intact if its epoch ends at or behind it; the judgement is pure.
//! Never: moves a position.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_protocol::messages::OffsetForLeaderEpochRequest;
use millstream_protocol::messages::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use millstream_protocol::{ApiKey, ErrorClass, ErrorCode, ErrorContext, TopicPartition, class};

use super::positions::{At, Doubt, Target};
use crate::cluster::{Cluster, NodeId};
use crate::error::RequestError;

/// From this version on, a consumer needs no more rights than for fetching.
const LEAST_VERSION: i16 = 3;

/// What an answer says about a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Intact,
    /// The log parts from what was read at this offset.
    Diverged(At),
    /// The log parts from what was read, nobody knows where.
    Lost,
    /// Ask again later.
    Later(Arc<str>),
    Refused(ErrorCode),
}

/// Judges one answer.
pub(crate) fn judge(doubt: &Doubt, answer: &EpochEndOffset) -> Verdict {
    let code = answer.error_code;
    if !code.is_ok() {
        return match class(ApiKey::Fetch, code, ErrorContext::Plain) {
            ErrorClass::Retry | ErrorClass::RefreshMetadata => {
                Verdict::Later(code.to_string().into())
            }
            _ => Verdict::Refused(code),
        };
    }
    if answer.end_offset < 0 || answer.leader_epoch < 0 {
        return Verdict::Lost;
    }
    if answer.end_offset < doubt.at.offset {
        return Verdict::Diverged(At {
            offset: answer.end_offset,
            epoch: Some(answer.leader_epoch),
        });
    }
    Verdict::Intact
}

/// One attempt to ask one leader.
pub(crate) async fn ask_leader(
    cluster: &Cluster,
    leader: NodeId,
    doubts: &[(Target, Doubt)],
    timeout: Duration,
) -> Vec<Verdict> {
    let all = |verdict: Verdict| doubts.iter().map(|_| verdict.clone()).collect();
    let connected = cluster
        .connection(leader, ApiKey::OffsetForLeaderEpoch, timeout)
        .await;
    let served =
        connected.and_then(|connection| connection.version(ApiKey::OffsetForLeaderEpoch, i16::MAX));
    match served {
        Ok(version) if version >= LEAST_VERSION => {}
        // A broker that is too old to say: as if nobody had asked.
        Ok(_) | Err(RequestError::UnsupportedVersion { .. }) => return all(Verdict::Intact),
        Err(error) => return all(Verdict::Later(error.to_string().into())),
    }
    let response = match cluster.request(leader, request(doubts), timeout).await {
        Ok(response) => response,
        Err(error) => return all(Verdict::Later(error.to_string().into())),
    };
    let mut answers: BTreeMap<TopicPartition, EpochEndOffset> = BTreeMap::new();
    for topic in response.topics {
        let name: Arc<str> = topic.topic.into();
        for answer in topic.partitions {
            let partition = TopicPartition::new(Arc::clone(&name), answer.partition);
            answers.insert(partition, answer);
        }
    }
    let verdicts = doubts.iter().map(|(target, doubt)| {
        answers.get(&target.topic_partition).map_or_else(
            || Verdict::Later("the answer leaves the partition out".into()),
            |answer| judge(doubt, answer),
        )
    });
    verdicts.collect()
}

fn request(doubts: &[(Target, Doubt)]) -> OffsetForLeaderEpochRequest {
    let mut topics: Vec<OffsetForLeaderTopic> = Vec::new();
    for (target, doubt) in doubts {
        let partition = &target.topic_partition;
        if topics
            .last()
            .is_none_or(|last| last.topic != *partition.topic)
        {
            topics.push(OffsetForLeaderTopic {
                topic: partition.topic.to_string(),
                partitions: Vec::new(),
            });
        }
        if let Some(topic) = topics.last_mut() {
            topic.partitions.push(OffsetForLeaderPartition {
                partition: partition.partition,
                current_leader_epoch: doubt.leader.epoch,
                leader_epoch: doubt.epoch,
            });
        }
    }
    OffsetForLeaderEpochRequest {
        replica_id: -1,
        topics,
    }
}

#[cfg(test)]
mod tests {
    use millstream_protocol::Uuid;

    use super::super::positions::Leader;
    use super::*;

    fn verdict(code: ErrorCode, leader_epoch: i32, end_offset: i64) -> Verdict {
        let doubt = Doubt {
            at: At {
                offset: 100,
                epoch: Some(5),
            },
            epoch: 5,
            leader: Leader {
                node: NodeId(2),
                epoch: 6,
                topic_id: Uuid::ZERO,
            },
        };
        let answer = EpochEndOffset {
            error_code: code,
            partition: 0,
            leader_epoch,
            end_offset,
        };
        judge(&doubt, &answer)
    }

    #[test]
    fn a_log_that_ends_its_epoch_before_the_position_has_lost_what_was_read() {
        assert_eq!(verdict(ErrorCode::NONE, 5, 100), Verdict::Intact);
        assert_eq!(verdict(ErrorCode::NONE, 5, 170), Verdict::Intact);
        // The new leader has no record of epoch 5; what it has of 4 reaches the position.
        assert_eq!(verdict(ErrorCode::NONE, 4, 100), Verdict::Intact);
        let at = |offset, epoch| {
            Verdict::Diverged(At {
                offset,
                epoch: Some(epoch),
            })
        };
        assert_eq!(verdict(ErrorCode::NONE, 5, 99), at(99, 5));
        assert_eq!(verdict(ErrorCode::NONE, 4, 60), at(60, 4));
        assert_eq!(verdict(ErrorCode::NONE, -1, -1), Verdict::Lost);
    }

    #[test]
    fn answers_of_leaders_that_moved_are_asked_for_again() {
        for code in [
            ErrorCode::FENCED_LEADER_EPOCH,
            ErrorCode::UNKNOWN_LEADER_EPOCH,
            ErrorCode::NOT_LEADER_OR_FOLLOWER,
            ErrorCode::REPLICA_NOT_AVAILABLE,
            ErrorCode::KAFKA_STORAGE_ERROR,
            ErrorCode::OFFSET_NOT_AVAILABLE,
            ErrorCode::LEADER_NOT_AVAILABLE,
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode::UNKNOWN_SERVER_ERROR,
        ] {
            assert!(matches!(verdict(code, -1, -1), Verdict::Later(_)), "{code}");
        }
        let code = ErrorCode::TOPIC_AUTHORIZATION_FAILED;
        assert_eq!(verdict(code, -1, -1), Verdict::Refused(code));
    }
}

//! What the assignors promise, by example (worked out by hand from Kafka's rules) and by property.
//!
//! Never: a network or a group; members and partition counts are made up.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn counts(topics: &[(&str, i32)]) -> PartitionCounts {
    topics
        .iter()
        .map(|(name, count)| (Arc::from(*name), *count))
        .collect()
}

fn member(id: &str, topics: &[&str]) -> Member {
    Member {
        member_id: id.to_owned(),
        topics: topics.iter().map(|topic| Arc::from(*topic)).collect(),
        generation_id: -1,
        ..Default::default()
    }
}

fn owning(mut member: Member, generation: i32, owned: &[(&str, i32)]) -> Member {
    member.generation_id = generation;
    member.owned_partitions = owned
        .iter()
        .map(|(t, p)| TopicPartition::new(*t, *p))
        .collect();
    member
}

type Shares = BTreeMap<String, Vec<String>>;

fn shares(assignor: &dyn Assignor, partitions: &PartitionCounts, members: &[Member]) -> Shares {
    assignor
        .assign(partitions, members)
        .unwrap()
        .into_iter()
        .map(|share| {
            let mut names: Vec<String> = share.partitions.iter().map(|p| p.to_string()).collect();
            names.sort();
            (share.member_id, names)
        })
        .collect()
}

fn expect(expected: &[(&str, &[&str])]) -> Shares {
    expected
        .iter()
        .map(|(id, names)| {
            (
                (*id).to_owned(),
                names.iter().map(|n| (*n).to_owned()).collect(),
            )
        })
        .collect()
}

#[test]
fn range_gives_consecutive_runs_and_the_first_members_the_remainder() {
    let topics = counts(&[("a", 3), ("b", 3)]);
    let members = [member("m2", &["a", "b"]), member("m1", &["a", "b"])];
    assert_eq!(
        shares(&Range, &topics, &members),
        expect(&[
            ("m1", &["a-0", "a-1", "b-0", "b-1"]),
            ("m2", &["a-2", "b-2"])
        ])
    );
    let five = counts(&[("a", 5)]);
    let members = [
        member("x", &["a"]),
        member("y", &["a"]),
        member("z", &["a"]),
    ];
    assert_eq!(
        shares(&Range, &five, &members),
        expect(&[
            ("x", &["a-0", "a-1"]),
            ("y", &["a-2", "a-3"]),
            ("z", &["a-4"])
        ])
    );
}

#[test]
fn range_orders_static_members_by_instance_id_before_the_others() {
    let topics = counts(&[("a", 3)]);
    let mut first = member("z", &["a"]);
    first.group_instance_id = Some("i1".to_owned());
    let mut second = member("b", &["a"]);
    second.group_instance_id = Some("i2".to_owned());
    let members = [member("a", &["a"]), second, first];
    assert_eq!(
        shares(&Range, &topics, &members),
        expect(&[("a", &["a-2"]), ("b", &["a-1"]), ("z", &["a-0"])])
    );
}

#[test]
fn range_leaves_members_without_a_share_when_there_are_too_many() {
    let members = [
        member("m1", &["a"]),
        member("m2", &["a"]),
        member("m3", &["b"]),
    ];
    assert_eq!(
        shares(&Range, &counts(&[("a", 1)]), &members),
        expect(&[("m1", &["a-0"]), ("m2", &[]), ("m3", &[])])
    );
}

#[test]
fn sticky_begins_like_a_round_robin() {
    let topics = counts(&[("a", 3), ("b", 2)]);
    let members = [member("m1", &["a", "b"]), member("m2", &["a", "b"])];
    assert_eq!(
        shares(&CooperativeSticky::default(), &topics, &members),
        expect(&[("m1", &["a-0", "a-2", "b-1"]), ("m2", &["a-1", "b-0"])])
    );
}

#[test]
fn sticky_first_takes_a_partition_away_and_hands_it_on_in_the_next_round() {
    let topics = counts(&[("a", 4)]);
    let owner = owning(
        member("m1", &["a"]),
        1,
        &[("a", 0), ("a", 1), ("a", 2), ("a", 3)],
    );
    let first = shares(
        &CooperativeSticky::default(),
        &topics,
        &[owner, member("m2", &["a"])],
    );
    assert_eq!(first, expect(&[("m1", &["a-0", "a-1"]), ("m2", &[])]));
    let second = shares(
        &CooperativeSticky::default(),
        &topics,
        &[
            owning(member("m1", &["a"]), 2, &[("a", 0), ("a", 1)]),
            owning(member("m2", &["a"]), 2, &[]),
        ],
    );
    assert_eq!(
        second,
        expect(&[("m1", &["a-0", "a-1"]), ("m2", &["a-2", "a-3"])])
    );
}

#[test]
fn sticky_gives_the_partitions_of_a_gone_member_to_those_with_fewest() {
    let topics = counts(&[("a", 6)]);
    let members = [
        owning(member("m1", &["a"]), 5, &[("a", 0), ("a", 1)]),
        owning(member("m2", &["a"]), 5, &[("a", 2), ("a", 3)]),
    ];
    assert_eq!(
        shares(&CooperativeSticky::default(), &topics, &members),
        expect(&[
            ("m1", &["a-0", "a-1", "a-4"]),
            ("m2", &["a-2", "a-3", "a-5"])
        ])
    );
}

#[test]
fn of_two_claims_the_newer_generation_counts() {
    let topics = counts(&[("a", 2)]);
    let members = [
        owning(member("m1", &["a"]), 4, &[("a", 0), ("a", 1)]),
        owning(member("m2", &["a"]), 5, &[("a", 1)]),
    ];
    assert_eq!(
        shares(&CooperativeSticky::default(), &topics, &members),
        expect(&[("m1", &["a-0"]), ("m2", &["a-1"])])
    );
}

#[test]
fn a_partition_claimed_twice_in_one_generation_goes_to_nobody_at_first() {
    let topics = counts(&[("a", 2)]);
    let members = [
        owning(member("m1", &["a"]), 5, &[("a", 0), ("a", 1)]),
        owning(member("m2", &["a"]), 5, &[("a", 1)]),
    ];
    assert_eq!(
        shares(&CooperativeSticky::default(), &topics, &members),
        expect(&[("m1", &["a-0"]), ("m2", &[])])
    );
}

#[test]
fn the_generation_may_come_in_the_user_data_of_old_subscriptions() {
    let topics = counts(&[("a", 2)]);
    let mut old = owning(member("m1", &["a"]), -1, &[("a", 0), ("a", 1)]);
    old.user_data = Some(Bytes::copy_from_slice(&7_i32.to_be_bytes()));
    let members = [old, owning(member("m2", &["a"]), 5, &[("a", 1)])];
    // m1's claims are of generation 7: it keeps one, the other moves and waits for that.
    assert_eq!(
        shares(&CooperativeSticky::default(), &topics, &members),
        expect(&[("m1", &["a-0"]), ("m2", &[])])
    );
}

#[test]
fn the_assignor_tells_the_generation_of_its_last_assignment() {
    let assignor = CooperativeSticky::default();
    assert_eq!(assignor.user_data(&[]).unwrap(), (-1_i32).to_be_bytes()[..]);
    let group = GroupMetadata {
        generation_id: 9,
        ..GroupMetadata::without_membership("g")
    };
    assignor.on_assignment(&Assignment::default(), &group);
    assert_eq!(assignor.user_data(&[]).unwrap(), [0, 0, 0, 9][..]);
}

#[test]
fn members_with_different_topics_get_what_only_they_can_take_first() {
    let topics = counts(&[("a", 2), ("b", 2)]);
    let members = [member("m1", &["a"]), member("m2", &["a", "b"])];
    assert_eq!(
        shares(&CooperativeSticky::default(), &topics, &members),
        expect(&[("m1", &["a-0", "a-1"]), ("m2", &["b-0", "b-1"])])
    );
}

#[test]
fn the_lists_of_assignors_agree_on_the_protocol_that_all_support() {
    let range: Arc<dyn Assignor> = Arc::new(Range);
    let sticky: Arc<dyn Assignor> = Arc::new(CooperativeSticky::default());
    let both = [Arc::clone(&range), Arc::clone(&sticky)];
    assert_eq!(common_protocol(&both), Some(RebalanceProtocol::Eager));
    assert_eq!(
        common_protocol(&[sticky]),
        Some(RebalanceProtocol::Cooperative)
    );
    assert_eq!(common_protocol(&[]), None);
}

/// Members `m0…` with topics from a small pool, and its partition counts.
pub(super) fn group(same_topics: bool) -> impl Strategy<Value = (PartitionCounts, Vec<Member>)> {
    let topics = proptest::collection::vec(1_i32..9, 1..5);
    let members = proptest::collection::vec(1_u8..16, 1..7);
    (topics, members).prop_map(move |(topics, masks)| {
        let names: Vec<Arc<str>> = (0..topics.len()).map(|i| format!("t{i}").into()).collect();
        let partitions = names.iter().cloned().zip(topics).collect();
        let members = masks
            .into_iter()
            .enumerate()
            .map(|(index, mask)| Member {
                member_id: format!("m{index}"),
                topics: names
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| same_topics || mask & (1 << i) != 0)
                    .map(|(_, name)| name.clone())
                    .collect(),
                generation_id: -1,
                ..Default::default()
            })
            .collect();
        (partitions, members)
    })
}

fn subscribed(partitions: &PartitionCounts, members: &[Member]) -> BTreeSet<TopicPartition> {
    partitions
        .iter()
        .filter(|(topic, _)| members.iter().any(|m| m.topics.contains(topic)))
        .flat_map(|(topic, count)| (0..*count).map(|p| TopicPartition::new(topic.clone(), p)))
        .collect()
}

/// Every subscribed partition once, and only to members that want it; held-back ones may miss.
pub(super) fn check_exact(
    partitions: &PartitionCounts,
    members: &[Member],
    given: &[MemberAssignment],
) {
    let mut seen = BTreeSet::new();
    for share in given {
        let member = members
            .iter()
            .find(|m| m.member_id == share.member_id)
            .unwrap();
        for partition in &share.partitions {
            assert!(
                member.topics.contains(&partition.topic),
                "{partition} was not wanted"
            );
            assert!(
                seen.insert(partition.clone()),
                "{partition} was given twice"
            );
        }
    }
    assert_eq!(seen, subscribed(partitions, members));
}

pub(super) fn loads(given: &[MemberAssignment]) -> Vec<usize> {
    given.iter().map(|share| share.partitions.len()).collect()
}

/// Joins until nothing has to be given up any more, as the cooperative protocol does.
fn settle(
    partitions: &PartitionCounts,
    mut members: Vec<Member>,
    mut generation: i32,
) -> (Vec<Member>, Vec<MemberAssignment>, usize) {
    for round in 1.. {
        assert!(round < 4, "does not settle");
        let given = CooperativeSticky::default()
            .assign(partitions, &members)
            .unwrap();
        assert!(
            moved_while_owned(&members, &given).is_empty(),
            "two owners at a time"
        );
        let mut revoked = false;
        generation += 1;
        for member in &mut members {
            let share = given
                .iter()
                .find(|s| s.member_id == member.member_id)
                .unwrap();
            let new = &share.partitions;
            revoked |= member.owned_partitions.iter().any(|p| !new.contains(p));
            member.owned_partitions = new.clone();
            member.generation_id = generation;
        }
        if !revoked {
            return (members, given, round);
        }
    }
    unreachable!()
}

proptest! {
    #[test]
    fn range_is_exact_and_even_by_topic((partitions, members) in group(false)) {
        let given = Range.assign(&partitions, &members).unwrap();
        check_exact(&partitions, &members, &given);
        for topic in partitions.keys() {
            let wants = |share: &&MemberAssignment| {
                members.iter().any(|m| m.member_id == share.member_id && m.topics.contains(topic))
            };
            let held: Vec<usize> = given
                .iter()
                .filter(wants)
                .map(|s| s.partitions.iter().filter(|p| p.topic == *topic).count())
                .collect();
            if let (Some(most), Some(least)) = (held.iter().max(), held.iter().min()) {
                prop_assert!(most - least <= 1);
            }
        }
    }

    #[test]
    fn sticky_settles_on_exact_and_even_shares((partitions, members) in group(true)) {
        let (members, given, rounds) = settle(&partitions, members, 0);
        check_exact(&partitions, &members, &given);
        let loads = loads(&given);
        prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1);
        prop_assert_eq!(rounds, 1);
    }

    #[test]
    fn sticky_shares_of_unequal_members_cannot_be_improved_by_one_move(
        (partitions, members) in group(false),
    ) {
        let (members, given, _) = settle(&partitions, members, 0);
        check_exact(&partitions, &members, &given);
        for share in &given {
            for partition in &share.partitions {
                for other in given.iter().filter(|o| o.member_id != share.member_id) {
                    let taker = members.iter().find(|m| m.member_id == other.member_id).unwrap();
                    let could = taker.topics.contains(&partition.topic);
                    prop_assert!(!could || share.partitions.len() <= other.partitions.len() + 1);
                }
            }
        }
    }

    #[test]
    fn a_settled_group_that_joins_again_moves_nothing(
        (partitions, members) in group(false),
        same in any::<bool>(),
    ) {
        let members = if same {
            let all: Vec<_> = partitions.keys().cloned().collect();
            members.into_iter().map(|m| Member { topics: all.clone(), ..m }).collect()
        } else {
            members
        };
        let (members, before, _) = settle(&partitions, members, 0);
        let again = CooperativeSticky::default().assign(&partitions, &members).unwrap();
        for (old, new) in before.iter().zip(&again) {
            let old: BTreeSet<_> = old.partitions.iter().collect();
            let new: BTreeSet<_> = new.partitions.iter().collect();
            prop_assert_eq!(old, new);
        }
    }

    #[test]
    fn a_leaving_member_costs_the_others_none_of_theirs(
        (partitions, members) in group(true),
    ) {
        prop_assume!(members.len() > 1);
        let (mut members, _, _) = settle(&partitions, members, 0);
        members.pop();
        let given = CooperativeSticky::default().assign(&partitions, &members).unwrap();
        check_exact(&partitions, &members, &given);
        for member in &members {
            let share = given.iter().find(|s| s.member_id == member.member_id).unwrap();
            for partition in &member.owned_partitions {
                prop_assert!(share.partitions.contains(partition));
            }
        }
    }

    #[test]
    fn a_new_member_is_served_and_nobody_owns_a_partition_together(
        (partitions, members) in group(true),
    ) {
        let (mut members, _, _) = settle(&partitions, members, 0);
        let before: usize = members.iter().map(|m| m.owned_partitions.len()).sum();
        members.push(Member {
            member_id: "zz".to_owned(),
            topics: partitions.keys().cloned().collect(),
            generation_id: -1,
            ..Default::default()
        });
        let owned: Vec<_> = members.clone();
        let (members, given, _) = settle(&partitions, members, 9);
        check_exact(&partitions, &members, &given);
        let loads = loads(&given);
        prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1);
        // Nobody gains but the new one, so the moves are as few as they can be.
        let kept: usize = owned
            .iter()
            .map(|old| {
                let new = members.iter().find(|m| m.member_id == old.member_id).unwrap();
                old.owned_partitions.iter().filter(|p| new.owned_partitions.contains(p)).count()
            })
            .sum();
        let newcomer = members.last().unwrap().owned_partitions.len();
        prop_assert_eq!(before - kept, newcomer);
    }
}

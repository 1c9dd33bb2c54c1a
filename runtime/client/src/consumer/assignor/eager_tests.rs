//! Round robin and sticky: what they promise by property, and all assignors against what Kafka's
//! own made of the groups in `java_outcomes.txt` (`tests/compat/java/Assignors.java` writes it).
//!
//! Never: a network or a group; members and partition counts are made up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::tests::{check_exact, group, loads};
use super::*;

/// Kafka's round robin, word for word: one row of partitions, a circle of members.
fn dealt_out(partitions: &PartitionCounts, members: &[Member]) -> BTreeMap<String, Vec<String>> {
    let mut circle: Vec<&Member> = members.iter().collect();
    circle.sort_by_key(|m| (m.group_instance_id.is_none(), m.member_id.clone()));
    let mut circle = circle.iter().cycle().peekable();
    let mut dealt: BTreeMap<String, Vec<String>> = members
        .iter()
        .map(|m| (m.member_id.clone(), Vec::new()))
        .collect();
    for (topic, count) in partitions {
        if !members.iter().any(|m| m.topics.contains(topic)) {
            continue;
        }
        for partition in 0..*count {
            while !circle.peek().unwrap().topics.contains(topic) {
                circle.next();
            }
            let taker = circle.next().unwrap();
            let share = dealt.get_mut(&taker.member_id).unwrap();
            share.push(format!("{topic}-{partition}"));
        }
    }
    dealt
}

/// The members with the user data that their own assignors write after this assignment.
fn after(members: &[Member], given: &[MemberAssignment], generation_id: i32) -> Vec<Member> {
    let group = GroupMetadata {
        generation_id,
        ..GroupMetadata::without_membership("g")
    };
    let told = |member: &Member| {
        let share = given.iter().find(|s| s.member_id == member.member_id);
        let assignor = Sticky::default();
        let assignment = Assignment {
            partitions: share.unwrap().partitions.clone(),
            user_data: None,
        };
        assignor.on_assignment(&assignment, &group);
        Member {
            user_data: assignor.user_data(&member.topics),
            ..member.clone()
        }
    };
    members.iter().map(told).collect()
}

fn set(share: &MemberAssignment) -> BTreeSet<&TopicPartition> {
    share.partitions.iter().collect()
}

proptest! {
    #[test]
    fn round_robin_deals_out_in_a_circle((partitions, members) in group(false)) {
        let given = RoundRobin.assign(&partitions, &members).unwrap();
        check_exact(&partitions, &members, &given);
        let named: BTreeMap<String, Vec<String>> = given
            .into_iter()
            .map(|s| (s.member_id, s.partitions.iter().map(|p| p.to_string()).collect()))
            .collect();
        prop_assert_eq!(named, dealt_out(&partitions, &members));
    }

    #[test]
    fn round_robin_is_even_where_all_subscribe_to_the_same((partitions, members) in group(true)) {
        let given = RoundRobin.assign(&partitions, &members).unwrap();
        let loads = loads(&given);
        prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1);
    }

    #[test]
    fn eager_sticky_is_exact_even_and_moves_nothing_without_a_reason(
        (partitions, members) in group(true),
    ) {
        let assignor = Sticky::default();
        let first = assignor.assign(&partitions, &members).unwrap();
        check_exact(&partitions, &members, &first);
        let counts = loads(&first);
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        let again = assignor.assign(&partitions, &after(&members, &first, 1)).unwrap();
        for (old, new) in first.iter().zip(&again) {
            prop_assert_eq!(set(old), set(new));
        }
    }

    #[test]
    fn eager_sticky_hands_on_in_one_round_and_costs_the_others_as_little_as_it_can(
        (partitions, members) in group(true),
        leaves in any::<bool>(),
    ) {
        let assignor = Sticky::default();
        let first = assignor.assign(&partitions, &members).unwrap();
        let mut now = after(&members, &first, 1);
        if leaves && now.len() > 1 {
            now.pop();
        } else {
            now.push(Member {
                member_id: "zz".to_owned(),
                topics: partitions.keys().cloned().collect(),
                generation_id: -1,
                ..Default::default()
            });
        }
        let second = assignor.assign(&partitions, &now).unwrap();
        check_exact(&partitions, &now, &second);
        let counts = loads(&second);
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        let total: usize = counts.iter().sum();
        // A newcomer takes its share and nobody else gains; a gap is filled and nobody loses.
        let moved: usize = first
            .iter()
            .filter_map(|old| Some((old, second.iter().find(|s| s.member_id == old.member_id)?)))
            .map(|(old, new)| set(old).difference(&set(new)).count())
            .sum();
        let newcomer = second.iter().find(|s| s.member_id == "zz");
        prop_assert_eq!(moved, newcomer.map_or(0, |s| s.partitions.len()));
        prop_assert!(newcomer.is_none_or(|s| s.partitions.len() <= total / now.len()));
    }
}

#[test]
fn eager_sticky_believes_the_newer_of_two_generations() {
    let partitions = PartitionCounts::from([("a".into(), 3)]);
    let member = |id: &str| Member {
        member_id: id.to_owned(),
        topics: vec!["a".into()],
        generation_id: -1,
        ..Default::default()
    };
    let share = |id: &str, partitions: &[i32]| MemberAssignment {
        member_id: id.to_owned(),
        partitions: partitions
            .iter()
            .map(|p| TopicPartition::new("a", *p))
            .collect(),
        user_data: None,
    };
    let old = after(&[member("m1")], &[share("m1", &[0, 1])], 4);
    let new = after(&[member("m2")], &[share("m2", &[1, 2])], 5);
    let given = Sticky::default()
        .assign(&partitions, &[old, new].concat())
        .unwrap();
    assert_eq!(given, [share("m1", &[0]), share("m2", &[1, 2])]);
}

/// One line of `java_outcomes.txt`.
struct Outcome {
    assignor: Arc<dyn Assignor>,
    partitions: PartitionCounts,
    members: Vec<Member>,
    shares: Vec<(String, BTreeSet<TopicPartition>)>,
}

fn named(names: &str) -> Vec<TopicPartition> {
    let names = names.split(',').filter(|name| !name.is_empty());
    let parts = names.map(|name| name.split_once(':').unwrap());
    parts
        .map(|(topic, p)| TopicPartition::new(topic, p.parse().unwrap()))
        .collect()
}

fn outcome(line: &str) -> Outcome {
    let (group, shares) = line.split_once(" => ").unwrap();
    let mut words = group.split(';');
    let assignor: Arc<dyn Assignor> = match words.next().unwrap() {
        "range" => Arc::new(Range),
        "roundrobin" => Arc::new(RoundRobin),
        "sticky" => Arc::new(Sticky::default()),
        _ => Arc::new(CooperativeSticky::default()),
    };
    let counts = words
        .next()
        .unwrap()
        .split(',')
        .map(|word| word.split_once('=').unwrap());
    let partitions = counts
        .map(|(topic, count)| (topic.into(), count.parse().unwrap()))
        .collect();
    let members = words.map(|word| {
        let parts: Vec<&str> = word.split('|').collect();
        let member = Member {
            member_id: parts[0].to_owned(),
            group_instance_id: (!parts[1].is_empty()).then(|| parts[1].to_owned()),
            topics: parts[2].split(',').map(Arc::from).collect(),
            owned_partitions: named(parts[3]),
            generation_id: parts[4].parse().unwrap(),
            ..Default::default()
        };
        if assignor.name() != "sticky" || member.generation_id < 0 {
            return member;
        }
        let had = MemberAssignment {
            member_id: member.member_id.clone(),
            partitions: member.owned_partitions.clone(),
            user_data: None,
        };
        let told = after(std::slice::from_ref(&member), &[had], member.generation_id);
        Member {
            owned_partitions: Vec::new(),
            ..told[0].clone()
        }
    });
    let members: Vec<Member> = members.collect();
    let shares = shares
        .split(';')
        .map(|share| share.split_once('=').unwrap());
    Outcome {
        assignor,
        partitions,
        members,
        shares: shares
            .map(|(id, p)| (id.to_owned(), named(p).into_iter().collect()))
            .collect(),
    }
}

/// Where members subscribe to different topics, sticky shares are Java's in number only: it breaks
/// ties in the order of its hash maps.
#[test]
fn shares_are_those_of_kafkas_own_assignors() {
    let mut same = BTreeMap::new();
    for line in include_str!("java_outcomes.txt").lines() {
        let outcome = outcome(line);
        let given = outcome
            .assignor
            .assign(&outcome.partitions, &outcome.members)
            .unwrap();
        let given: Vec<(String, BTreeSet<TopicPartition>)> = given
            .into_iter()
            .map(|share| (share.member_id, share.partitions.into_iter().collect()))
            .collect();
        let topics = |m: &Member| m.topics.iter().cloned().collect::<BTreeSet<_>>();
        let first = topics(&outcome.members[0]);
        let equal = outcome.members.iter().all(|m| topics(m) == first);
        let name = outcome.assignor.name().to_owned();
        if equal || !name.contains("sticky") {
            assert_eq!(given, outcome.shares, "{line}");
            *same.entry(name).or_insert(0) += 1;
        } else {
            let sizes = |shares: &[(String, BTreeSet<TopicPartition>)]| {
                let mut sizes: Vec<usize> = shares.iter().map(|(_, s)| s.len()).collect();
                sizes.sort_unstable();
                sizes
            };
            assert_eq!(sizes(&given), sizes(&outcome.shares), "{line}");
        }
    }
    let expected = [
        ("cooperative-sticky", 20),
        ("range", 30),
        ("roundrobin", 30),
        ("sticky", 20),
    ];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert!(
        same.into_iter()
            .zip(expected)
            .all(|(a, b)| a.0 == b.0 && a.1 >= b.1)
    );
}

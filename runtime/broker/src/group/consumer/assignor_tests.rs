//! What assignors give: everything to somebody, evenly, and moving little.
//!
//! Invariants: see the names of the tests.
//! Never: random beyond proptest's seed.

use std::collections::{BTreeMap, BTreeSet};

use millstream_protocol::Uuid;
use proptest::prelude::*;

use super::assignor::{Assignor, Subscriber};
use super::member::Partitions;

fn topic(number: u8) -> Uuid {
    Uuid([number; 16])
}

/// A member of a test: its id, its instance, and the topics that it reads.
type Reader = (String, Option<String>, BTreeSet<u8>);

fn assign(
    assignor: Assignor,
    readers: &[Reader],
    had: &BTreeMap<String, Partitions>,
    counts: &BTreeMap<u8, i32>,
) -> BTreeMap<String, Partitions> {
    let nothing = Partitions::new();
    let subscribers: Vec<Subscriber<'_>> = readers
        .iter()
        .map(|(id, instance, topics)| Subscriber {
            id,
            instance_id: instance.as_deref(),
            topics: topics
                .iter()
                .filter(|number| counts.contains_key(number))
                .map(|number| topic(*number))
                .collect(),
            had: had.get(id).unwrap_or(&nothing),
        })
        .collect();
    let shapes = counts
        .iter()
        .map(|(number, count)| (topic(*number), *count));
    let targets = assignor.assign(&subscribers, &shapes.collect());
    assert_eq!(targets.len(), readers.len());
    readers
        .iter()
        .map(|(id, ..)| id.clone())
        .zip(targets)
        .collect()
}

fn readers(ids: &[&str], topics: &[u8]) -> Vec<Reader> {
    let reader = |id: &&str| ((*id).to_owned(), None, topics.iter().copied().collect());
    ids.iter().map(reader).collect()
}

fn size(partitions: &Partitions) -> usize {
    partitions.values().map(BTreeSet::len).sum()
}

fn moved(before: &BTreeMap<String, Partitions>, after: &BTreeMap<String, Partitions>) -> usize {
    let kept = |(id, had): (&String, &Partitions)| {
        let has = after.get(id);
        let pairs = had
            .iter()
            .flat_map(|(topic, set)| set.iter().map(move |p| (topic, p)));
        pairs
            .filter(|(topic, p)| {
                !has.is_some_and(|has| has.get(topic).is_some_and(|s| s.contains(p)))
            })
            .count()
    };
    before.iter().map(kept).sum()
}

#[test]
fn range_cuts_every_topic_alike_static_members_first() {
    let mut three = readers(&["c", "a"], &[1, 2]);
    three.push(("z".to_owned(), Some("instance".to_owned()), [1, 2].into()));
    let counts = BTreeMap::from([(1, 4), (2, 4)]);
    let targets = assign(Assignor::Range, &three, &BTreeMap::new(), &counts);
    for number in [1, 2] {
        assert_eq!(targets["z"][&topic(number)], [0, 1].into());
        assert_eq!(targets["a"][&topic(number)], [2].into());
        assert_eq!(targets["c"][&topic(number)], [3].into());
    }
}

#[test]
fn range_leaves_out_who_is_one_too_many_and_who_does_not_read_the_topic() {
    let mut three = readers(&["a", "b"], &[1]);
    three.push(("c".to_owned(), None, [2].into()));
    let counts = BTreeMap::from([(1, 1), (2, 2)]);
    let targets = assign(Assignor::Range, &three, &BTreeMap::new(), &counts);
    assert_eq!(targets["a"], Partitions::from([(topic(1), [0].into())]));
    assert_eq!(targets["b"], Partitions::new());
    assert_eq!(targets["c"], Partitions::from([(topic(2), [0, 1].into())]));
}

#[test]
fn uniform_moves_no_more_than_a_newcomer_needs() {
    let counts = BTreeMap::from([(1, 7), (2, 8)]);
    let three = readers(&["a", "b", "c"], &[1, 2]);
    let before = assign(Assignor::Uniform, &three, &BTreeMap::new(), &counts);
    assert!(before.values().all(|target| size(target) == 5));
    let four = readers(&["a", "b", "c", "d"], &[1, 2]);
    let after = assign(Assignor::Uniform, &four, &before, &counts);
    assert_eq!(size(&after["d"]), 3);
    assert_eq!(moved(&before, &after), 3);
    let back = assign(Assignor::Uniform, &three, &after, &counts);
    assert_eq!(moved(&after, &back), 3, "only what the fourth had");
}

#[test]
fn uniform_hands_partitions_on_along_a_chain_of_readers() {
    // "a" has three, "c" one, and only "b" reads a topic of each.
    let chain = [("a", vec![1]), ("b", vec![1, 2]), ("c", vec![2])];
    let chain = chain.map(|(id, topics)| (id.to_owned(), None, topics.into_iter().collect()));
    let counts = BTreeMap::from([(1, 3), (2, 3)]);
    let had = BTreeMap::from([
        (
            "a".to_owned(),
            Partitions::from([(topic(1), [0, 1, 2].into())]),
        ),
        (
            "b".to_owned(),
            Partitions::from([(topic(2), [0, 1].into())]),
        ),
        ("c".to_owned(), Partitions::from([(topic(2), [2].into())])),
    ]);
    let targets = assign(Assignor::Uniform, &chain, &had, &counts);
    assert!(
        targets.values().all(|target| size(target) == 2),
        "{targets:?}"
    );
    assert_eq!(moved(&had, &targets), 2);
}

fn group() -> impl Strategy<Value = (Vec<Reader>, BTreeMap<u8, i32>, bool)> {
    let counts = prop::collection::btree_map(0..5_u8, 1..9_i32, 1..5);
    let topics = prop::collection::btree_set(0..5_u8, 0..5);
    let member = (0..12_u8, prop::option::of(0..3_u8), topics);
    (prop::collection::vec(member, 1..8), counts, any::<bool>()).prop_map(
        |(members, counts, alike)| {
            let mut by_id = BTreeMap::new();
            let shared = members
                .first()
                .map(|member| member.2.clone())
                .unwrap_or_default();
            for (number, instance, topics) in members {
                let topics = if alike { shared.clone() } else { topics };
                let instance = instance.map(|i| format!("i{i}-{number}"));
                by_id.insert(format!("m{number}"), (instance, topics));
            }
            let readers = by_id
                .into_iter()
                .map(|(id, (instance, topics))| (id, instance, topics));
            (readers.collect(), counts, alike)
        },
    )
}

proptest! {
    #[test]
    fn everything_that_is_read_goes_to_exactly_one_reader(
        (first, counts, alike) in group(),
        (second, ..) in group(),
    ) {
        for assignor in Assignor::ALL {
            let before = assign(assignor, &first, &BTreeMap::new(), &counts);
            for (readers, had) in [(&first, BTreeMap::new()), (&second, before)] {
                let targets = assign(assignor, readers, &had, &counts);
                let mut owners: BTreeMap<(Uuid, i32), &String> = BTreeMap::new();
                for (id, _, reads) in readers {
                    for (of, partitions) in &targets[id] {
                        prop_assert!(reads.iter().any(|number| topic(*number) == *of));
                        for partition in partitions {
                            prop_assert!(owners.insert((*of, *partition), id).is_none());
                        }
                    }
                }
                for (number, count) in &counts {
                    let read = readers.iter().any(|(.., reads)| reads.contains(number));
                    for partition in 0..*count {
                        prop_assert_eq!(owners.contains_key(&(topic(*number), partition)), read);
                    }
                }
            }
            if alike && assignor == Assignor::Uniform {
                let targets = assign(assignor, &first, &BTreeMap::new(), &counts);
                let sizes = targets.values().map(size);
                prop_assert!(sizes.clone().max().unwrap_or(0) <= sizes.min().unwrap_or(0) + 1);
            }
        }
    }

    #[test]
    fn uniform_moves_nothing_when_nothing_changes((readers, counts, _) in group()) {
        let before = assign(Assignor::Uniform, &readers, &BTreeMap::new(), &counts);
        let after = assign(Assignor::Uniform, &readers, &before, &counts);
        prop_assert_eq!(before, after);
    }
}

/// A search that looks at every reader once a topic takes minutes here.
#[test]
fn a_large_group_is_made_even_in_steps_that_grow_with_it() {
    let counts: BTreeMap<Uuid, i32> = (0..1_000_u32)
        .map(|number| (Uuid(u128::from(number).to_be_bytes()), 10))
        .collect();
    let all: BTreeSet<Uuid> = counts.keys().copied().collect();
    let one: BTreeSet<Uuid> = all.first().copied().into_iter().collect();
    let mut had: Vec<Partitions> = Vec::new();
    // The second one reads one topic only and never gets its share of partitions.
    for count in (2..=100).step_by(7) {
        had.resize(count, Partitions::new());
        let ids: Vec<String> = (0..count).map(|index| format!("{index:03}")).collect();
        let subscribers: Vec<Subscriber<'_>> = ids
            .iter()
            .zip(&had)
            .enumerate()
            .map(|(index, (id, had))| Subscriber {
                id,
                instance_id: None,
                topics: if index == 1 { one.clone() } else { all.clone() },
                had,
            })
            .collect();
        had = Assignor::Uniform.assign(&subscribers, &counts);
        let loads: Vec<usize> = had.iter().map(size).collect();
        let others = loads.iter().enumerate().filter(|(index, _)| *index != 1);
        let others: BTreeSet<usize> = others.map(|(_, load)| *load).collect();
        assert_eq!(loads.iter().sum::<usize>(), 10_000);
        assert_eq!(loads[1], 10, "its topic, whole");
        assert!(others.last().unwrap() - others.first().unwrap() <= 1);
    }
}

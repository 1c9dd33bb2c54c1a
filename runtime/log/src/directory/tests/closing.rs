//! Changes that come while the directory closes: it may be another process's when they go on.

use super::*;
use std::sync::atomic::AtomicBool;
use std::thread;

type Change = fn(&LogDirectory) -> Result<(), LogError>;

const CHANGES: [(&str, Change); 6] = [
    ("deletion", |directory| {
        directory.delete_topics(&["a".to_owned()]).map(drop)
    }),
    ("creation", |directory| {
        let nothing = BTreeMap::new();
        directory.create_topic("b", 1, nothing).map(drop)
    }),
    ("growth", |directory| {
        directory.add_partitions("a", 2).map(drop)
    }),
    ("a topic's settings", |directory| {
        let configs = BTreeMap::from([("retention.ms".to_owned(), "7".to_owned())]);
        directory.alter_topic("a", configs).map(drop)
    }),
    ("other settings", |directory| {
        let settings = BTreeMap::from([("key".to_owned(), "value".to_owned())]);
        directory.store_settings(
            [(("kind".to_owned(), "name".to_owned()), settings)].into(),
            None,
        )
    }),
    ("defaults", |directory| {
        directory.set_defaults(PartitionConfig::default())
    }),
];

#[test]
fn a_change_that_waits_while_the_directory_closes_is_refused_and_writes_nothing() {
    for _ in 0..20 {
        for (what, change) in CHANGES {
            let storage = FaultyStorage::new();
            let directory = open(storage.clone());
            create(&directory, "a", 1);
            let held = lock(&directory.inner.structure);
            let begun = AtomicBool::new(false);
            thread::scope(|scope| {
                let late = scope.spawn(|| {
                    begun.store(true, Ordering::Release);
                    change(&directory)
                });
                while !begun.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                // Time to come to the lock; where it does not, the round shows nothing.
                for _ in 0..1000 {
                    thread::yield_now();
                }
                let closing = scope.spawn(|| directory.close(NOW_MS));
                while !directory.inner.closed.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                drop(held);
                let late = late.join().unwrap();
                assert!(matches!(late, Err(LogError::Closed)), "{what}: {late:?}");
                closing.join().unwrap().unwrap();
            });
            let again = open(storage.fork());
            assert!(again.recovery().was_clean, "{what}");
            assert_eq!(again.topics().len(), 1, "{what}");
            assert_eq!(again.topic("a").unwrap().partitions.len(), 1, "{what}");
        }
    }
}

//! Rounds of compaction over a directory: what is cleaned, what is remembered, what is passed over.

use super::*;

fn compacted(partitions: i32, more: &[(&str, &str)], directory: &LogDirectory, name: &str) {
    let settings = [("cleanup.policy", "compact"), ("segment.bytes", "1000")];
    let configs = settings.iter().chain(more);
    let configs = configs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    directory
        .create_topic(name, partitions, configs.collect())
        .unwrap();
}

fn put(directory: &LogDirectory, topic: &str, partition: i32, count: i64) {
    let log = directory.partition(topic, partition).unwrap();
    for n in 0..count {
        let mut builder = RecordBatchBuilder::new(Compression::None);
        let key = [b'a' + (n % 3) as u8];
        builder.append(NOW_MS + n, Some(&key), Some(&[n as u8; 40]), &[]);
        let batch = builder.finish(ProducerStamp::NONE).unwrap();
        log.append(batch, AppendOrigin::Coordinator, NOW_MS)
            .unwrap();
    }
    directory.sync_journal().unwrap();
}

fn names(report: &CompactionReport) -> Vec<(&str, i32)> {
    let done = report.compacted.iter();
    done.map(|it| (it.topic.as_str(), it.partition)).collect()
}

fn text(storage: &MemoryStorage, path: &str) -> String {
    String::from_utf8(content(storage, path)).unwrap()
}

#[test]
fn the_dirtiest_log_comes_first_and_where_it_ended_survives_a_restart_in_kafkas_format() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    compacted(2, &[], &directory, "table");
    directory.create_topic("other", 1, BTreeMap::new()).unwrap();
    for partition in 0..2 {
        put(&directory, "table", partition, 60);
    }
    put(&directory, "other", 0, 60);
    let report = directory.compact(NOW_MS).unwrap();
    assert_eq!(names(&report), [("table", 0), ("table", 1)]);
    let first = &report.compacted[0];
    assert!(first.bytes_after < first.bytes_before / 5, "{first:?}");
    assert_eq!(first.first_dirty, 0);
    assert_eq!(
        directory.compact(NOW_MS).unwrap(),
        CompactionReport::default()
    );
    let end = first.next_dirty;
    let expected = format!("0\n2\ntable 0 {end}\ntable 1 {end}\n");
    assert_eq!(text(&storage, "cleaner-offset-checkpoint"), expected);
    drop(directory);
    let directory = open(storage.crash());
    assert_eq!(
        directory.compact(NOW_MS).unwrap(),
        CompactionReport::default()
    );
    put(&directory, "table", 0, 30);
    put(&directory, "table", 1, 90);
    let report = directory.compact(NOW_MS).unwrap();
    assert_eq!(names(&report), [("table", 1), ("table", 0)]);
    assert!(report.compacted.iter().all(|it| it.first_dirty == end));
}

#[test]
fn frames_of_the_journal_are_not_put_over_what_was_compacted() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    compacted(1, &[("max.compaction.lag.ms", "1")], &directory, "table");
    put(&directory, "table", 0, 20);
    // Without a sync of the partition's files there is nothing to clean yet; compaction sees to it.
    let later = NOW_MS + 1_000;
    let report = directory.compact(later).unwrap();
    assert_eq!(report.compacted[0].next_dirty, 20);
    let sizes = |directory: &LogDirectory| {
        let log = directory.partition("table", 0).unwrap();
        (log.size_bytes(), log.offsets().log_end)
    };
    let compacted = sizes(&directory);
    for image in [storage.crash(), storage.fork()] {
        let directory = open(image);
        assert!(directory.recovery().had_journal);
        assert!(directory.recovery().frames_skipped >= 20);
        assert_eq!(sizes(&directory), compacted);
    }
}

#[test]
fn a_damaged_log_is_reported_once_and_the_others_go_on() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    compacted(3, &[], &directory, "table");
    for partition in 0..3 {
        put(&directory, "table", partition, 60);
    }
    directory.checkpoint().unwrap();
    let path = Path::new("table-1/00000000000000000000.log");
    let file = storage.open(path, OpenMode::Write).unwrap();
    file.write_at(&[b"damage"], 130).unwrap();
    let report = directory.compact(NOW_MS).unwrap();
    assert_eq!(names(&report), [("table", 0), ("table", 2)]);
    assert_eq!(report.uncleanable.len(), 1);
    let reason = &report.uncleanable[0].reason;
    assert!(
        reason.contains("table-1/00000000000000000000.log"),
        "{reason}"
    );
    assert_eq!(directory.uncleanable(), report.uncleanable);
    assert_eq!(
        directory.compact(NOW_MS).unwrap(),
        CompactionReport::default()
    );
    put(&directory, "table", 1, 1);
}

#[test]
fn a_later_topic_of_the_same_name_begins_anew() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    compacted(1, &[], &directory, "table");
    put(&directory, "table", 0, 60);
    assert_eq!(directory.compact(NOW_MS).unwrap().compacted.len(), 1);
    directory.delete_topic("table").unwrap();
    compacted(1, &[], &directory, "table");
    assert_eq!(text(&storage, "cleaner-offset-checkpoint"), "0\n0\n");
    put(&directory, "table", 0, 60);
    let report = directory.compact(NOW_MS).unwrap();
    assert_eq!(report.compacted[0].first_dirty, 0);
}

#[test]
fn a_damaged_checkpoint_of_the_cleaner_only_means_another_pass() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    compacted(1, &[], &directory, "table");
    put(&directory, "table", 0, 60);
    directory.compact(NOW_MS).unwrap();
    directory.close(NOW_MS).unwrap();
    let path = Path::new("cleaner-offset-checkpoint");
    let file = storage.open(path, OpenMode::Write).unwrap();
    file.write_at(&[b"x"], 0).unwrap();
    let directory = open(storage.clone());
    let report = directory.compact(NOW_MS).unwrap();
    assert_eq!(report.compacted[0].first_dirty, 0);
}

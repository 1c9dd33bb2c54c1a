//! Topics that get other settings or more partitions: at once, durably, or not at all.

use super::*;

fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

#[test]
fn altered_settings_are_in_force_and_survive_a_crash() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "orders", 2);
    let log = directory.partition("orders", 1).unwrap();
    let wanted = settings(&[("max.message.bytes", "90"), ("retention.ms", "5")]);
    let altered = directory.alter_topic("orders", wanted.clone()).unwrap();
    assert_eq!(altered.configs, wanted);
    assert_eq!(log.config().max_message_bytes, 90, "the log that was open");
    assert_eq!(directory.topic("orders").unwrap().configs, wanted);
    let refused = log.append(batch(1), AppendOrigin::Client, NOW_MS);
    assert_eq!(refused.unwrap_err().error_code().code(), 10);

    let again = open(storage.crash());
    assert_eq!(again.topic("orders").unwrap().configs, wanted);
    let log = again.partition("orders", 1).unwrap();
    assert_eq!(log.config().retention_ms, 5);
    again.alter_topic("orders", BTreeMap::new()).unwrap();
    assert_eq!(*log.config(), PartitionConfig::default());
}

#[test]
fn settings_that_mean_nothing_or_cannot_be_stored_change_nothing() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    create(&directory, "orders", 1);
    let senseless = settings(&[("retention.ms", "soon")]);
    let error = directory.alter_topic("orders", senseless).unwrap_err();
    assert!(error.to_string().contains("retention.ms of topic orders"));
    let nowhere = directory.alter_topic("nowhere", BTreeMap::new());
    assert!(matches!(nowhere, Err(LogError::UnknownTopic { .. })));
    storage.inject(Fault {
        kind: OperationKind::Write,
        path_contains: "catalogue".to_owned(),
        after: 0,
        error: io::ErrorKind::Other,
    });
    let wanted = settings(&[("retention.ms", "5")]);
    directory.alter_topic("orders", wanted).unwrap_err();
    let topic = directory.topic("orders").unwrap();
    assert!(topic.configs.is_empty());
    assert_eq!(topic.partitions[0].config().retention_ms, 604_800_000);
}

#[test]
fn added_partitions_take_records_and_survive_a_crash() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    let retention = settings(&[("retention.ms", "5")]);
    directory.create_topic("orders", 1, retention).unwrap();
    append(&directory, "orders", 0, 1);
    let before = directory.topic("orders").unwrap();
    let grown = directory.add_partitions("orders", 3).unwrap();
    assert_eq!((grown.id, grown.partitions.len()), (before.id, 3));
    assert!(Arc::ptr_eq(&grown.partitions[0], &before.partitions[0]));
    assert_eq!(grown.partitions[2].config().retention_ms, 5);
    append(&directory, "orders", 2, 2);
    directory.sync_journal().unwrap();
    let grown_log = directory.partition("orders", 2).unwrap();
    assert_eq!(grown_log.offsets().high_watermark, 1);

    let again = open(storage.crash());
    assert_eq!(again.topic("orders").unwrap().partitions.len(), 3);
    assert_eq!(end(&again, "orders", 0), 1);
    assert_eq!(end(&again, "orders", 2), 1);
}

#[test]
fn partitions_only_grow_and_a_failure_adds_none() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    create(&directory, "orders", 2);
    for total in [2, 1, 0, -1, i32::MAX] {
        let refused = directory.add_partitions("orders", total).unwrap_err();
        assert_eq!(refused.error_code(), ErrorCode::INVALID_PARTITIONS);
    }
    storage.inject(Fault {
        kind: OperationKind::Write,
        path_contains: "catalogue".to_owned(),
        after: 0,
        error: io::ErrorKind::Other,
    });
    directory.add_partitions("orders", 4).unwrap_err();
    assert_eq!(directory.topic("orders").unwrap().partitions.len(), 2);
    assert!(!storage.exists(Path::new("orders-3")).unwrap());
    let grown = directory.add_partitions("orders", 4).unwrap();
    assert_eq!(grown.partitions.len(), 4);
}

#[test]
fn settings_of_other_things_are_kept_beside_the_topics() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "orders", 1);
    let timeout = settings(&[("consumer.session.timeout.ms", "50000")]);
    let store = |kind: &str, name: &str, settings| {
        let key = (kind.to_owned(), name.to_owned());
        directory.store_settings([(key, settings)].into(), None)
    };
    store("group", "readers", timeout.clone()).unwrap();
    store("broker", "", settings(&[("log.retention.ms", "5")])).unwrap();
    store("broker", "", BTreeMap::new()).unwrap();
    let again = open(storage.crash());
    let key = ("group".to_owned(), "readers".to_owned());
    assert_eq!(again.other_settings(), [(key, timeout)].into());
    assert_eq!(again.topics().len(), 1);
}

#[test]
fn other_defaults_hold_for_what_is_open_and_what_comes_and_not_over_a_topics_own() {
    let directory = open(MemoryStorage::new());
    create(&directory, "orders", 1);
    let own = settings(&[("retention.ms", "5")]);
    directory.create_topic("audit", 1, own).unwrap();
    let defaults = PartitionConfig {
        retention_ms: 77,
        max_message_bytes: 90,
        ..PartitionConfig::default()
    };
    directory.set_defaults(defaults).unwrap();
    directory.add_partitions("orders", 2).unwrap();
    create(&directory, "late", 1);
    for (topic, partition, retention_ms) in [
        ("orders", 0, 77),
        ("orders", 1, 77),
        ("audit", 0, 5),
        ("late", 0, 77),
    ] {
        let config = directory.partition(topic, partition).unwrap().config();
        let found = (config.retention_ms, config.max_message_bytes);
        assert_eq!(found, (retention_ms, 90), "{topic}-{partition}");
    }
    directory.alter_topic("audit", BTreeMap::new()).unwrap();
    let log = directory.partition("audit", 0).unwrap();
    assert_eq!(log.config().retention_ms, 77);
}

#[test]
fn settings_that_cannot_be_in_force_are_not_stored() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    create(&directory, "orders", 1);
    let key = ("broker".to_owned(), String::new());
    let store = |retention_ms: i64| {
        let given = settings(&[("log.retention.ms", &retention_ms.to_string())]);
        let defaults = PartitionConfig {
            retention_ms,
            ..PartitionConfig::default()
        };
        directory.store_settings([(key.clone(), given)].into(), Some(defaults))
    };
    let in_force = || {
        directory
            .partition("orders", 0)
            .unwrap()
            .config()
            .retention_ms
    };
    store(5).unwrap();
    assert_eq!(in_force(), 5);
    storage.inject(Fault {
        kind: OperationKind::Write,
        path_contains: "catalogue".to_owned(),
        after: 0,
        error: io::ErrorKind::Other,
    });
    store(7).unwrap_err();
    assert_eq!(in_force(), 5);
    directory.close(0).unwrap();
    store(9).unwrap_err();
    let again = open(storage);
    let kept = again.other_settings();
    assert_eq!(kept[&key], settings(&[("log.retention.ms", "5")]));
}

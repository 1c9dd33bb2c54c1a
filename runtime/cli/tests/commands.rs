//! The binary as a user runs it: a broker on a port of its own, the client commands against it,
//! signals, and the errors of a start that cannot be.
//!
//! Invariants: every process that a test starts is ended by its own id, at the latest when the test
//! ends.
//! Never: a fixed port.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

/// What nothing here comes near; a test that gets there has found a hang.
const PATIENCE: Duration = Duration::from_secs(60);

fn millstream() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.kill_on_drop(true).env_remove("MILLSTREAM_LOG");
    command
}

/// A broker in a process of its own.
struct Broker {
    child: Child,
    address: String,
}

impl Broker {
    async fn start(directory: &Path) -> Broker {
        let mut child = millstream()
            .args(["broker", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(directory)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
        let mut line = String::new();
        tokio::time::timeout(PATIENCE, stdout.read_line(&mut line))
            .await
            .unwrap()
            .unwrap();
        let address = line.trim_end().strip_prefix("listening on ");
        let address = address
            .unwrap_or_else(|| panic!("the first line is {line:?}"))
            .to_owned();
        Broker { child, address }
    }

    /// Sends SIGTERM; answers the exit code and what else was on stdout and stderr.
    async fn terminate(mut self) -> (Option<i32>, String, String) {
        let id = self.child.id().unwrap().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()
                .await
                .unwrap()
                .success()
        );
        let status = tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .unwrap()
            .unwrap();
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut stdout)
            .await
            .unwrap();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .await
            .unwrap();
        (status.code(), stdout, stderr)
    }

    /// Runs a client command against this broker.
    async fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = millstream();
        command.args(arguments).args(["--bootstrap", &self.address]);
        output_of(command, input).await
    }

    /// As `run`, for commands that have to succeed: their stdout.
    async fn text(&self, arguments: &[&str], input: &str) -> String {
        let output = self.run(arguments, input).await;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    async fn consume(&self, topic: &str, more: &[&str]) -> Vec<Value> {
        let mut arguments = vec!["consume", topic, "--json"];
        arguments.extend(more);
        let text = self.text(&arguments, "").await;
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

async fn output_of(mut command: Command, input: &str) -> Output {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that does not read its input may be gone already.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    tokio::time::timeout(PATIENCE, child.wait_with_output())
        .await
        .unwrap()
        .unwrap()
}

fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The fields of records that do not change from run to run, in order of their values.
fn essence(records: &[Value]) -> Vec<Value> {
    let fields = |record: &Value| json!([record["key"], record["value"], record["headers"]]);
    let mut essence: Vec<Value> = records.iter().map(fields).collect();
    essence.sort_by_key(ToString::to_string);
    essence
}

const PRODUCE_WITH_HEADERS: [&str; 14] = [
    "produce",
    "orders",
    "--key-separator",
    ":",
    "--null",
    "NULL",
    "--header",
    "h=1",
    "--header",
    "h=",
    "--header",
    "n",
    "--compression",
    "zstd",
];

#[tokio::test]
async fn records_go_in_come_out_and_are_there_after_a_restart() {
    let directory = TempDir::new().unwrap();
    let broker = Broker::start(directory.path()).await;
    let created = broker
        .text(&["topics", "create", "orders", "--partitions", "3"], "")
        .await;
    assert_eq!(created, "created orders with 3 partitions\n");
    assert!(
        broker
            .text(&["topics", "list"], "")
            .await
            .contains("orders  3")
    );

    broker
        .text(&PRODUCE_WITH_HEADERS, "a:one\nb:\nNULL:three\nc:NULL\n")
        .await;
    let headers = json!([["h", "1"], ["h", ""], ["n", null]]);
    let expected = [
        json!(["a", "one", headers]),
        json!(["b", "", headers]),
        json!(["c", null, headers]),
        json!([null, "three", headers]),
    ];
    let records = broker.consume("orders", &[]).await;
    assert_eq!(essence(&records), expected);
    for record in &records {
        assert_eq!(record["topic"], "orders");
        assert!(
            record["offset"].is_i64() && record["timestamp"].is_i64(),
            "{record}"
        );
        assert!(
            record["partition"]
                .as_i64()
                .is_some_and(|partition| (0..3).contains(&partition))
        );
    }

    let (code, stdout, stderr) = broker.terminate().await;
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert!(
        stderr.contains("durability sync: acknowledged records survive"),
        "{stderr}"
    );
    assert!(stderr.contains("stopped cleanly"), "{stderr}");

    let broker = Broker::start(directory.path()).await;
    assert_eq!(broker.consume("orders", &[]).await, records);
    let description = broker.text(&["topics", "describe", "orders"], "").await;
    assert!(description.contains("partitions  3"), "{description}");
    broker.text(&["topics", "delete", "orders"], "").await;
    let gone = failure(&broker.run(&["consume", "orders", "--json"], "").await);
    assert!(
        gone.contains("topic orders") && gone.contains("millstream topics list"),
        "{gone}"
    );
    broker.terminate().await;
}

#[tokio::test]
async fn a_transaction_shows_once_it_is_committed_and_reading_ends_behind_its_markers() {
    let directory = TempDir::new().unwrap();
    let broker = Broker::start(directory.path()).await;
    let id = ["--transactional-id", "t"];
    let keyed = ["--key-separator", ":"];
    broker
        .text(&[&["produce", "p"][..], &id].concat(), "one\ntwo\n")
        .await;
    let refused = [&["produce", "p"][..], &id, &keyed].concat();
    let refused = failure(&broker.run(&refused, "a:three\nfour\n").await);
    assert!(
        refused.contains("line 2") && refused.contains("nothing was committed"),
        "{refused}"
    );

    let values = |records: Vec<Value>| -> Vec<Value> {
        records
            .into_iter()
            .map(|record| record["value"].clone())
            .collect()
    };
    assert_eq!(values(broker.consume("p", &[]).await), ["one", "two"]);
    let listed = broker.text(&["transactions", "list"], "").await;
    assert!(
        listed.lines().any(|line| line.starts_with("t ")),
        "{listed}"
    );
    let described = broker.text(&["transactions", "describe", "t"], "").await;
    assert!(described.contains("transactional id  t"), "{described}");
    let idle = failure(&broker.run(&["transactions", "abort", "t"], "").await);
    assert!(idle.contains("no open transaction"), "{idle}");
    let unknown = failure(
        &broker
            .run(&["transactions", "describe", "nobody"], "")
            .await,
    );
    assert!(unknown.contains("nobody"), "{unknown}");
    broker.terminate().await;

    let log = directory.path().join("p-0/00000000000000000000.log");
    let mut command = millstream();
    command.args(["log", "dump", "--records"]).arg(&log);
    let dump = String::from_utf8(output_of(command, "").await.stdout).unwrap();
    assert!(
        dump.lines()
            .any(|line| line.contains("base_offset=0 last_offset=1 count=2")),
        "{dump}"
    );
    assert!(
        dump.contains("control=commit") && dump.contains("value=\"two\""),
        "{dump}"
    );
    assert!(
        dump.lines()
            .filter(|line| line.starts_with("position="))
            .all(|line| line.ends_with("crc=ok"))
    );
}

#[tokio::test]
async fn groups_are_listed_with_offsets_and_lag_and_unknown_ones_are_empty() {
    let directory = TempDir::new().unwrap();
    let broker = Broker::start(directory.path()).await;
    broker.text(&["produce", "orders"], "1\n2\n3\n").await;
    commit(&broker.address, "g", 2).await;
    let listed = broker.text(&["groups", "list"], "").await;
    assert!(
        listed.lines().any(|line| line.starts_with("g ")),
        "{listed}"
    );
    let offsets = broker.text(&["groups", "offsets", "g", "--json"], "").await;
    let offsets: Value = serde_json::from_str(&offsets).unwrap();
    assert_eq!(
        (&offsets["committed"], &offsets["end"], &offsets["lag"]),
        (&json!(2), &json!(3), &json!(1))
    );
    let described = broker.text(&["groups", "describe", "g"], "").await;
    assert!(described.contains("state     Empty"), "{described}");
    broker.text(&["groups", "delete", "g"], "").await;
    assert!(!broker.text(&["groups", "list"], "").await.contains("g "));
    broker.terminate().await;
}

#[tokio::test]
async fn a_topics_settings_change_and_are_shown() {
    let directory = TempDir::new().unwrap();
    let broker = Broker::start(directory.path()).await;
    let own = ["--config", "retention.ms=60000"];
    let create = ["topics", "create", "orders", "--partitions", "1"];
    broker.text(&[&create[..], &own].concat(), "").await;
    let alter = [
        "topics",
        "alter",
        "orders",
        "--delete-config",
        "retention.ms",
    ];
    let more = [
        "--config",
        "segment.ms=5000",
        "--append",
        "cleanup.policy=compact",
    ];
    let altered = broker.text(&[&alter[..], &more].concat(), "").await;
    assert!(
        altered.contains("orders has cleanup.policy=delete,compact\n"),
        "{altered}"
    );
    let described = broker.text(&["topics", "describe", "orders"], "").await;
    assert!(described.contains("segment.ms=5000\n"), "{described}");
    assert!(!described.contains("retention.ms"), "{described}");
    let all = ["topics", "describe", "orders", "--configs"];
    let described = broker.text(&all, "").await;
    assert!(
        described.contains("retention.ms=604800000 (default)\n"),
        "{described}"
    );
    let senseless = ["topics", "alter", "orders", "--config", "retention.ms=soon"];
    let refused = failure(&broker.run(&senseless, "").await);
    assert!(
        refused.contains("retention.ms") && refused.contains("at least -1"),
        "{refused}"
    );
    broker.terminate().await;
}

#[tokio::test]
async fn topics_grow_and_lose_records_and_groups_lose_offsets() {
    let directory = TempDir::new().unwrap();
    let broker = Broker::start(directory.path()).await;
    broker
        .text(&["topics", "create", "orders", "--partitions", "1"], "")
        .await;
    broker
        .text(
            &["produce", "orders", "--key-separator", ":"],
            "a:1\na:2\na:3\n",
        )
        .await;
    let grown = broker
        .text(&["topics", "add-partitions", "orders", "--total", "2"], "")
        .await;
    assert_eq!(grown, "orders has 2 partitions\n");
    let fewer = ["topics", "add-partitions", "orders", "--total", "1"];
    let refused = failure(&broker.run(&fewer, "").await);
    assert!(refused.contains("would not be an increase"), "{refused}");
    let before = [
        "topics",
        "delete-records",
        "orders",
        "--partition",
        "0",
        "--before",
        "2",
    ];
    let deleted = broker.text(&before, "").await;
    assert!(
        deleted
            .lines()
            .any(|line| line.trim_end() == "0          2"),
        "{deleted}"
    );
    assert_eq!(broker.consume("orders", &[]).await.len(), 1);
    broker
        .text(&["topics", "delete-records", "orders", "--all"], "")
        .await;
    assert!(broker.consume("orders", &[]).await.is_empty());

    commit(&broker.address, "g", 2).await;
    let empty = ["groups", "list", "--state", "empty", "--type", "classic"];
    assert!(broker.text(&empty, "").await.contains("g "));
    let stable = ["groups", "list", "--state", "stable"];
    assert!(!broker.text(&stable, "").await.contains("g "));
    let offsets = ["groups", "delete-offsets", "g", "--topic", "orders"];
    let deleted = broker.text(&offsets, "").await;
    assert_eq!(deleted, "deleted the offset of g at orders-0\n");
    let nothing = failure(&broker.run(&offsets, "").await);
    assert!(nothing.contains("committed nothing there"), "{nothing}");
    broker.terminate().await;
}

/// Commits an offset of `orders-0` from outside any membership.
async fn commit(address: &str, group: &str, offset: i64) {
    use millstream::client::{Consumer, OffsetAndMetadata};
    let consumer = Consumer::builder()
        .group_id(group)
        .connect(&address)
        .await
        .unwrap();
    let partition = millstream::TopicPartition::new("orders", 0);
    consumer.assign(vec![partition.clone()]).unwrap();
    consumer
        .commit_offsets(&[(partition, OffsetAndMetadata::new(offset))])
        .await
        .unwrap();
    consumer.close().await.unwrap();
}

#[tokio::test]
async fn open_transactions_are_aborted_by_id_or_where_they_hang() {
    use millstream::client::{Producer, ProducerRecord};
    let directory = TempDir::new().unwrap();
    let broker = Broker::start(directory.path()).await;
    let mut holders = Vec::new();
    for id in ["by-id", "hanging"] {
        let address = broker.address.as_str();
        let producer = Producer::transactional(id).connect(address).await.unwrap();
        producer.init_transactions().await.unwrap();
        producer.begin().unwrap();
        let sent = producer
            .send(ProducerRecord::new("t").value("open"))
            .await
            .unwrap();
        sent.await.unwrap();
        holders.push(producer);
    }
    assert!(broker.consume("t", &[]).await.is_empty());
    let at_once = [
        "transactions",
        "find-hanging",
        "--max-transaction-timeout",
        "0",
    ];
    let found = broker.text(&at_once, "").await;
    assert_eq!(found.lines().count(), 1, "both are known: {found}");
    broker.text(&["transactions", "abort", "by-id"], "").await;
    let fenced = holders[0].commit().await.unwrap_err().to_string();
    assert!(fenced.contains("by-id"), "{fenced}");

    let abort = ["transactions", "abort-hanging", "t", "0", "--start-offset"];
    let elsewhere = [&abort[..], &["7", "--force"]].concat();
    let refused = failure(&broker.run(&elsewhere, "").await);
    assert!(
        refused.contains("no transaction that is open in t-0 begins at 7"),
        "{refused}"
    );
    let hanging = [&abort[..], &["1", "--force"]].concat();
    let held = failure(&broker.run(&hanging[..6], "").await);
    assert!(held.contains("a coordinator knows of it"), "{held}");
    broker.text(&hanging, "").await;
    let producers = broker
        .text(&["transactions", "producers", "t", "0"], "")
        .await;
    assert!(
        producers.lines().skip(1).all(|line| line.ends_with('-')),
        "{producers}"
    );

    broker.text(&["produce", "t"], "after\n").await;
    let records = broker.consume("t", &[]).await;
    assert_eq!(records.len(), 1, "{records:?}");
    let everything = broker
        .consume("t", &["--isolation", "read_uncommitted"])
        .await;
    assert_eq!(everything.len(), 3, "{everything:?}");
    broker.terminate().await;
}

#[tokio::test]
async fn a_port_or_a_directory_in_use_is_named_with_the_next_step() {
    let directory = TempDir::new().unwrap();
    let broker = Broker::start(directory.path()).await;

    let mut second = millstream();
    second
        .args(["broker", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(directory.path());
    let locked = failure(&output_of(second, "").await);
    assert!(
        locked.contains(&directory.path().display().to_string()),
        "{locked}"
    );
    assert!(locked.contains("in use by another process"), "{locked}");

    let elsewhere = TempDir::new().unwrap();
    let mut second = millstream();
    second
        .args(["broker", "--listen", &broker.address, "--data-dir"])
        .arg(elsewhere.path());
    let taken = failure(&output_of(second, "").await);
    assert!(
        taken.contains(&broker.address) && taken.contains("choose another port"),
        "{taken}"
    );

    // The one that was there first is not disturbed.
    broker.text(&["topics", "list"], "").await;
    let address = broker.address.clone();
    broker.terminate().await;
    let mut command = millstream();
    command.args(["topics", "list", "--bootstrap", &address]);
    let nobody = failure(&output_of(command, "").await);
    assert!(
        nobody.contains(&address) && nobody.contains("millstream broker"),
        "{nobody}"
    );
}

#[tokio::test]
async fn a_damaged_batch_shows_in_a_dump_and_a_newer_format_is_refused() {
    let directory = TempDir::new().unwrap();
    let broker = Broker::start(directory.path()).await;
    broker.text(&["produce", "orders"], "1\n2\n3\n").await;
    broker.terminate().await;
    let start = || {
        let mut command = millstream();
        command
            .args(["broker", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(directory.path());
        output_of(command, "")
    };

    let log = directory.path().join("orders-0/00000000000000000000.log");
    let good = std::fs::read(&log).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    std::fs::write(&log, &bad).unwrap();
    let mut dump = millstream();
    dump.args(["log", "dump"]).arg(&log);
    let output = output_of(dump, "").await;
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("crc=wrong"),
        "{output:?}"
    );
    assert!(failure(&output).contains("damaged batches: 1"));

    std::fs::write(&log, &good).unwrap();
    let meta = directory.path().join("meta.properties");
    let text = std::fs::read_to_string(&meta).unwrap();
    let newer = text.replace("format.version=1", "format.version=999");
    assert_ne!(newer, text);
    std::fs::write(&meta, newer).unwrap();
    let refused = failure(&start().await);
    assert!(refused.contains("format version 999"), "{refused}");
}

#[tokio::test]
async fn every_command_explains_itself_and_a_closed_pipe_is_no_failure() {
    for command in [
        "broker",
        "topics",
        "groups",
        "transactions",
        "produce",
        "consume",
        "log",
    ] {
        let mut help = millstream();
        help.args([command, "--help"]);
        let output = output_of(help, "").await;
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("Usage: millstream"),
            "{command}: {text}"
        );
        let reaches_a_broker = !matches!(command, "broker" | "log");
        assert_eq!(
            text.contains("--bootstrap"),
            reaches_a_broker,
            "{command}: {text}"
        );
    }

    let directory = TempDir::new().unwrap();
    let broker = Broker::start(directory.path()).await;
    let line = format!("{}\n", "x".repeat(1_000));
    broker.text(&["produce", "many"], &line.repeat(2_000)).await;
    let mut consume = millstream();
    consume.args(["consume", "many", "--bootstrap", &broker.address]);
    let mut child = consume
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    broker.terminate().await;
}

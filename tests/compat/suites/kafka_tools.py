"""Kafka's command-line tools as an operator uses them, and what they print."""

import json
import os
import re

from harness import brokers, cases, jars
from harness.processes import wait_until

SUITE = cases.Suite(
    "kafka-tools",
    f"kafka-tools {jars.KAFKA}: the command-line tools, called in one JVM",
)


def rows(result, head):
    """The lines of a printed table as dictionaries; the head is a word of its first line."""
    names, found = None, []
    for line in result.out.splitlines():
        fields = line.split("\t") if "\t" in line else line.split()
        fields = [field.strip() for field in fields if field.strip()]
        if names is None and head in fields:
            names = fields
        elif names is not None and len(fields) >= len(names) - 1 and fields:
            found.append(dict(zip(names, fields)))
    return found


def produce(bench, topic, lines, *properties, partition_key=False):
    """Lines through ConsoleProducer; with keys where the lines have a colon."""
    arguments = ["--topic", topic]
    for name in properties:
        arguments += ["--command-property", name]
    if partition_key:
        arguments += ["--reader-property=parse.key=true", "--reader-property=key.separator=:"]
    bench.tools("ConsoleProducer", *arguments, stdin="".join(f"{line}\n" for line in lines))


def consume(bench, topic, count, *arguments):
    more = ["--topic", topic, "--max-messages", count, "--timeout-ms=20000", *arguments]
    return bench.tools("consumer.ConsoleConsumer", *more).out.splitlines()


def offsets(bench, topic, time):
    """GetOffsetShell's answer as partition -> offset."""
    result = bench.tools("GetOffsetShell", "--topic", topic, "--time", time)
    found = [line.split(":") for line in result.out.split()]
    return {int(partition): int(offset) for name, partition, offset in found if name == topic}


# What the broker does not serve, or not as Kafka does; ARCHITECTURE.md has the reasons.
NOT_SERVED = {
    "authentication: the listener is plaintext": {
        *("SaslHandshake", "SaslAuthenticate"),
        *("DescribeUserScramCredentials", "AlterUserScramCredentials"),
        *("CreateDelegationToken", "RenewDelegationToken"),
        *("ExpireDelegationToken", "DescribeDelegationToken"),
    },
    "quotas: there are none": {"DescribeClientQuotas", "AlterClientQuotas"},
    "a cluster: there is one node, with one directory": {
        *("AlterReplicaLogDirs", "AlterPartitionReassignments", "UnregisterBroker"),
        *("DescribeQuorum", "UpdateFeatures", "AddRaftVoter", "RemoveRaftVoter"),
    },
    "share groups": {
        *("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge"),
        *("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState"),
        *("DeleteShareGroupState", "ReadShareGroupStateSummary"),
        *("DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"),
    },
    "streams groups: their members are classic or of the consumer protocol": {
        *("StreamsGroupHeartbeat", "StreamsGroupDescribe"),
    },
}
API_VERSIONS = os.path.join(jars.COMPAT, "kafka", "api-versions.txt")


@SUITE.case()
def broker_api_versions(bench):
    """Line by line what Kafka's tool says of Kafka, but for what is not served."""
    with open(API_VERSIONS, encoding="utf-8") as text:
        known = text.read().splitlines()
    result = bench.tools("BrokerApiVersionsCommand")
    head, *found = result.out.splitlines()
    assert re.fullmatch(r"127\.0\.0\.1:\d+ \(id: 1 rack: null isFenced: false\) -> \(", head), head
    if bench.broker.name == brokers.Millstream.name:
        absent = set().union(*NOT_SERVED.values())
        names = [re.match(r"\t(\w+)\((\d+)\): ", line) for line in known]
        assert absent <= {name[1] for name in names if name}, "no API of Kafka's"
        known = [
            re.sub(r": .*?(,?)$", r": UNSUPPORTED\1", line) if name and name[1] in absent else line
            for name, line in zip(names, known)
        ]
    for ours, kafkas in zip(found, known):
        assert ours == kafkas, f"{ours.strip()!r}, and Kafka {kafkas.strip()!r}"
    assert len(found) == len(known), result


@SUITE.case()
def topics_create_list_describe_delete(bench):
    bench.topics(
        "tools-topic", partitions=3, configs=["retention.ms=100000", "cleanup.policy=delete"]
    )
    assert "tools-topic" in bench.tools("TopicCommand", "--list").out.split()
    result = bench.tools("TopicCommand", "--describe", "--topic", "tools-topic")
    assert "PartitionCount: 3" in result.out and "ReplicationFactor: 1" in result.out, result
    assert result.out.count("Leader: 1") == 3 and result.out.count("Isr: 1") == 3, result
    again = bench.tools("TopicCommand", "--create", "--topic", "tools-topic", code=1)
    assert "already exists" in again.out, again
    for arguments in (["--if-not-exists"], []):
        name = ["--topic", "tools-topic" if arguments else "tools-default"]
        bench.tools("TopicCommand", "--create", *name, *arguments)
    refused = bench.tools(
        "TopicCommand", "--create", "--topic=tools-2", "--replication-factor=3", code=1
    )
    assert "replicate the partition 3 time(s)" in refused.out, refused
    refused = bench.tools(
        "TopicCommand", "--create", "--topic=tools-3", "--config=no.such=1", code=1
    )
    assert "Unknown topic config name" in refused.out + refused.err, refused
    bench.tools("TopicCommand", "--delete", "--topic", "tools-topic")
    assert "tools-topic" not in bench.tools("TopicCommand", "--list").out.split()
    missing = bench.tools("TopicCommand", "--describe", "--topic", "tools-topic", code=1)
    assert "does not exist" in missing.out + missing.err, missing


@SUITE.case()
def topics_describe_shows_configs(bench):
    bench.topics("tools-configs", configs=["retention.ms=100000", "max.message.bytes=2000"])
    result = bench.tools("TopicCommand", "--describe", "--topic", "tools-configs")
    assert "retention.ms=100000" in result.out and "max.message.bytes=2000" in result.out, result


@SUITE.case()
def topics_alter_partitions(bench):
    bench.topics("tools-partitions", partitions=2)
    produce(bench, "tools-partitions", [str(n) for n in range(20)])
    alter = ["--alter", "--topic", "tools-partitions"]
    bench.tools("TopicCommand", *alter, "--partitions=5")
    result = bench.tools("TopicCommand", "--describe", "--topic", "tools-partitions")
    assert "PartitionCount: 5" in result.out, result
    fewer = bench.tools("TopicCommand", *alter, "--partitions=3", code=1)
    assert "3 would not be an increase" in fewer.out, fewer
    produce(bench, "tools-partitions", [f"{n}:{n}" for n in range(200)], partition_key=True)
    found = offsets(bench, "tools-partitions", "latest")
    assert len(found) == 5 and sum(found.values()) == 220 and all(found.values()), found


@SUITE.case()
def configs_describe_alter_and_defaults(bench):
    command, entity = (
        "kafka.admin.ConfigCommand",
        ["--entity-type=topics", "--entity-name=tools-config"],
    )
    bench.topics("tools-config")
    everything = bench.tools(command, *entity, "--describe", "--all")
    for line in ("cleanup.policy=delete", "max.message.bytes=1048588", "min.insync.replicas=1"):
        assert line in everything.out, everything
    assert "DEFAULT_CONFIG" in everything.out, everything
    bench.tools(command, *entity, "--alter", "--add-config=retention.ms=5000,segment.bytes=1048576")
    result = bench.tools(command, *entity, "--describe")
    assert "retention.ms=5000" in result.out and "DYNAMIC_TOPIC_CONFIG" in result.out, result
    bench.tools(command, *entity, "--alter", "--add-config=cleanup.policy=[compact,delete]")
    bench.tools(command, *entity, "--alter", "--delete-config=retention.ms")
    result = bench.tools(command, *entity, "--describe")
    assert "cleanup.policy=compact,delete" in result.out, result
    assert "retention.ms=5000" not in result.out, result
    bad = bench.tools(command, *entity, "--alter", "--add-config=retention.ms=soon", code=1)
    assert "retention.ms" in bad.out + bad.err, bad
    bad = bench.tools(command, *entity, "--alter", "--add-config=no.such=1", code=1)
    assert "no.such" in bad.out + bad.err, bad


@SUITE.case()
def configs_of_the_broker(bench):
    command = "kafka.admin.ConfigCommand"
    result = bench.tools(command, "--entity-type=brokers", "--entity-name=1", "--describe", "--all")
    for line in ("node.id=1", "message.max.bytes=1048588", "log.retention.hours=168"):
        assert line in result.out, result


@SUITE.case()
def configs_of_a_broker_that_runs(bench):
    """A topic without a setting of its own follows all brokers', and this one's before that."""
    bench.topics("tools-inherits")
    name = "log.retention.ms"
    default, this = ["--entity-default"], ["--entity-name=1"]

    def brokers(entity, *words, **more):
        words = ("--entity-type=brokers", *entity, *words)
        return bench.tools("kafka.admin.ConfigCommand", *words, **more)

    def told(line):
        words = ("--entity-type=topics", "--entity-name=tools-inherits", "--describe", "--all")
        return line in bench.tools("kafka.admin.ConfigCommand", *words).out

    for entity, value, source in (
        (default, "70000", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        (this, "80000", "DYNAMIC_BROKER_CONFIG"),
    ):
        brokers(entity, "--alter", f"--add-config={name}={value}")
        line = f" retention.ms={value} sensitive=false synonyms={{{source}:{name}={value}"
        wait_until(lambda line=line: told(line), line, 10)
        assert f"{name}={value}" in brokers(entity, "--describe").out
    for entity in (this, default):
        brokers(entity, "--alter", f"--delete-config={name}")
    wait_until(lambda: told(" retention.ms=604800000"), "the default", 10)
    for bad in ("node.id", name):
        refused = brokers(this, "--alter", f"--add-config={bad}=soon", code=1)
        assert bad in refused.out + refused.err, refused


@SUITE.case()
def configs_of_a_group(bench):
    command, entity = (
        "kafka.admin.ConfigCommand",
        ["--entity-type=groups", "--entity-name=g-settings"],
    )
    name = "consumer.session.timeout.ms"
    bench.tools(command, *entity, "--alter", f"--add-config={name}=50000")

    def told(line):
        return line in bench.tools(command, *entity, "--describe", "--all").out

    wait_until(lambda: told(f"{name}=50000"), f"{name}=50000", 10)
    assert "g-settings" in bench.tools(command, "--entity-type=groups", "--describe").out
    for bad in (f"{name}=60001", "no.such=1"):
        refused = bench.tools(command, *entity, "--alter", f"--add-config={bad}", code=1)
        assert bad.partition("=")[0] in refused.out + refused.err, refused
    bench.tools(command, *entity, "--alter", f"--delete-config={name}")
    wait_until(lambda: told(f"{name}=45000"), f"{name}=45000", 10)


@SUITE.case()
def console_producer_and_consumer(bench):
    bench.topics("tools-console", partitions=1)
    lines = [f"k{n}:v{n} \u00fc" for n in range(50)]
    properties = ["acks=all", "compression.type=zstd", "linger.ms=5"]
    produce(bench, "tools-console", lines, *properties, partition_key=True)
    show = ["print.key=true", "print.offset=true", "print.partition=true", "key.separator=:"]
    shown = consume(
        bench, "tools-console", 50, "--from-beginning", *[f"--formatter-property={p}" for p in show]
    )
    wanted = [f"Partition:0:Offset:{n}:{line}" for n, line in enumerate(lines)]
    assert shown == wanted, shown[:3]
    tail = consume(bench, "tools-console", 2, "--partition=0", "--offset=48")
    assert tail == [line.split(":")[1] for line in lines[48:]], tail


@SUITE.case()
def console_consumer_in_a_group_goes_on(bench):
    bench.topics("tools-resume")
    produce(bench, "tools-resume", [str(n) for n in range(10)])
    group = ["--group=g-resume", "--command-property=auto.offset.reset=earliest"]
    assert consume(bench, "tools-resume", 4, *group) == ["0", "1", "2", "3"]
    assert consume(bench, "tools-resume", 6, *group) == ["4", "5", "6", "7", "8", "9"]


@SUITE.case()
def get_offset_shell(bench):
    bench.topics("tools-offsets", partitions=2)
    produce(bench, "tools-offsets", [f"{n}:{n}" for n in range(100)], partition_key=True)
    assert offsets(bench, "tools-offsets", "earliest") == {0: 0, 1: 0}
    latest = offsets(bench, "tools-offsets", "latest")
    assert sum(latest.values()) == 100, latest
    assert offsets(bench, "tools-offsets", 1) == {0: 0, 1: 0}
    largest = offsets(bench, "tools-offsets", "max-timestamp")
    assert all(0 <= largest[p] < latest[p] for p in (0, 1)), largest
    internal = bench.tools("GetOffsetShell", "--exclude-internal-topics")
    assert "__consumer_offsets" not in internal.out, internal


@SUITE.case()
def delete_records(bench):
    bench.topics("tools-delete-records", partitions=2)
    produce(bench, "tools-delete-records", [f"{n}:{n}" for n in range(100)], partition_key=True)
    latest = offsets(bench, "tools-delete-records", "latest")
    wanted = [
        {"topic": "tools-delete-records", "partition": 0, "offset": 5},
        {"topic": "tools-delete-records", "partition": 1, "offset": -1},
    ]
    file = bench.file("offsets.json", json.dumps({"partitions": wanted, "version": 1}))
    result = bench.tools("DeleteRecordsCommand", "--offset-json-file", file)
    assert "low_watermark: 5" in result.out and f"low_watermark: {latest[1]}" in result.out, result
    assert offsets(bench, "tools-delete-records", "earliest") == {0: 5, 1: latest[1]}
    left = consume(bench, "tools-delete-records", latest[0] - 5, "--from-beginning")
    assert len(left) == latest[0] - 5
    wanted[0]["offset"] = latest[0] + 1
    file = bench.file("offsets.json", json.dumps({"partitions": wanted[:1], "version": 1}))
    beyond = bench.tools("DeleteRecordsCommand", "--offset-json-file", file, code=None)
    assert "OffsetOutOfRange" in beyond.out + beyond.err, beyond


@SUITE.case()
def cluster_id(bench):
    arguments = ["cluster-id", "--bootstrap-server", bench.address]
    result = bench.tools("ClusterTool", *arguments, bootstrap=None)
    assert "Cluster ID:" in result.out, result


@SUITE.case()
def log_dirs(bench):
    bench.topics("tools-dirs", partitions=2)
    produce(bench, "tools-dirs", ["x" * 1000])
    result = bench.tools("LogDirsCommand", "--describe", "--topic-list=tools-dirs")
    answer = json.loads([line for line in result.out.splitlines() if line.startswith("{")][0])
    partitions = answer["brokers"][0]["logDirs"][0]["partitions"]
    assert {p["partition"] for p in partitions} == {"tools-dirs-0", "tools-dirs-1"}, result
    assert sum(p["size"] for p in partitions) > 1000, result


@SUITE.case()
def features(bench):
    result = bench.tools("FeatureCommand", "describe")
    assert re.search(r"transaction\.version.*FinalizedVersionLevel: 2", result.out), result


@SUITE.case()
def compaction_keeps_the_newest_of_each_key(bench):
    """Closed segments are compacted while the broker runs; keys, tombstones and order are right."""
    configs = ["cleanup.policy=compact", "segment.bytes=1048576", "min.cleanable.dirty.ratio=0.01"]
    bench.topics("tools-compact", configs=configs)
    lines = [f"k{n % 100}:{n} {'x' * 60}" for n in range(60000)]
    lines += [f"k{n}:NULL" for n in range(10)]
    # These fill the segments after, so that the ones before are closed.
    lines += [f"late{n}:{n} {'x' * 60}" for n in range(30000)]
    arguments = ["--reader-property=null.marker=NULL", "--reader-property=parse.key=true"]
    arguments += ["--reader-property=key.separator=:", "--topic=tools-compact"]
    bench.tools("ConsoleProducer", *arguments, stdin="".join(f"{line}\n" for line in lines))
    newest = dict(line.split(":", 1) for line in lines)
    wanted = {key: value.replace("NULL", "null") for key, value in newest.items()}
    show = ["--formatter-property=print.key=true", "--formatter-property=key.separator=:"]
    show += ["--topic=tools-compact", "--from-beginning", "--timeout-ms=4000"]

    def compacted():
        left = bench.tools("consumer.ConsoleConsumer", *show).out.splitlines()
        assert dict(line.split(":", 1) for line in left) == wanted, "the newest values differ"
        return sum(line.startswith("k") for line in left) < 20000

    wait_until(compacted, "the closed segments to be compacted", 120)


def dump(bench, file, *arguments):
    """DumpLogSegments over one file; it has nothing to complain of."""
    result = bench.tools("DumpLogSegments", "--files", file, *arguments, bootstrap=None)
    said = result.out + result.err
    for complaint in (
        "isvalid: false",
        "Mismatches",
        "Exception",
        "Found invalid",
        "non-consecutive",
    ):
        assert complaint not in said, str(result)
    return result.out


@SUITE.case()
def dump_log_segments(bench):
    """Segments and their indexes, of a topic with commits, aborts and every codec."""
    configs = ["segment.bytes=1048576", "index.interval.bytes=512"]
    bench.topics("tools-dump", configs=configs)
    performance = ["--topic=tools-dump", "--record-size=200", "--throughput=-1"]
    for codec in ("none", "lz4", "zstd", "snappy", "gzip"):
        more = ["--num-records=8000", "--command-property", f"compression.type={codec}"]
        bench.tools("ProducerPerformance", *performance, *more)
    more = ["--num-records=3000", "--transactional-id=tx-dump", "--transaction-duration-ms=20"]
    bench.tools("ProducerPerformance", *performance, *more)
    abort_one(bench, "tools-dump")
    bench.broker.stop()
    try:
        folder = os.path.join(bench.broker.data, "tools-dump-0")
        if not os.path.isdir(folder):
            found = [
                root for root, _, _ in os.walk(bench.broker.data) if root.endswith("/tools-dump-0")
            ]
            assert found, f"no folder of tools-dump-0 below {bench.broker.data}"
            folder = found[0]
        files = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        logs = [file for file in files if file.endswith(".log")]
        assert len(logs) > 2, files
        counted = 0
        for file in logs:
            said = dump(bench, file, "--deep-iteration", "--print-data-log")
            counted += len(re.findall(r"^\| offset: ", said, re.MULTILINE))
        assert counted >= 43000, f"{counted} records were shown"
        for kind, least in ((".index", 2), (".timeindex", 2), (".txnindex", 1)):
            of_kind = [file for file in files if file.endswith(kind)]
            assert len(of_kind) >= least, files
            entries = sum(
                len(dump(bench, f, *INDEX_OPTIONS.get(kind, ())).splitlines()) for f in of_kind
            )
            assert entries > len(of_kind), f"{kind} files have no entries"
    finally:
        bench.broker.start()


INDEX_OPTIONS = {".index": ["--index-sanity-check"]}


def abort_one(bench, topic):
    """A transaction of a killed producer, ended by force."""
    main = "org.apache.kafka.tools.ProducerPerformance"
    arguments = ["--topic", topic, "--num-records=1000000", "--record-size=10", "--throughput=200"]
    arguments += ["--transactional-id=tx-aborted", "--transaction-duration-ms=600000"]
    timeout = [
        "--command-property",
        f"bootstrap.servers={bench.address}",
        "transaction.timeout.ms=300000",
    ]
    before = offsets(bench, topic, "latest")[0]
    program = bench.java("aborted", main, *arguments, *timeout)
    wait_until(
        lambda: offsets(bench, topic, "latest")[0] > before + 10, "records", 60, program.last_words
    )
    program.kill()
    bench.tools("TransactionsCommand", "forceTerminateTransaction", "--transactionalId=tx-aborted")


@SUITE.case()
def dump_internal_topics(bench):
    """Kafka's decoders of `__consumer_offsets` and `__transaction_state` read ours."""
    bench.topics("tools-internal")
    produce(bench, "tools-internal", ["1", "2"])
    group = ["--group=g-internal", "--command-property=auto.offset.reset=earliest"]
    consume(bench, "tools-internal", 2, *group)
    tx = ["--transactional-id=tx-internal", "--transaction-duration-ms=20"]
    more = ["--topic=tools-internal", "--record-size=20", "--throughput=-1", "--num-records=100"]
    bench.tools("ProducerPerformance", *more, *tx)
    bench.broker.stop()
    try:
        decoded = {"--offsets-decoder": "", "--transaction-log-decoder": ""}
        topics = {
            "__consumer_offsets": "--offsets-decoder",
            "__transaction_state": "--transaction-log-decoder",
        }
        for root, _, names in os.walk(bench.broker.data):
            for topic, decoder in topics.items():
                if os.path.basename(root).startswith(topic + "-"):
                    for name in sorted(n for n in names if n.endswith(".log")):
                        decoded[decoder] += dump(bench, os.path.join(root, name), decoder)
        assert "g-internal" in decoded["--offsets-decoder"], decoded["--offsets-decoder"][-2000:]
        transactions = decoded["--transaction-log-decoder"]
        # 4 is CompleteCommit.
        ended = re.search(r'"tx-internal".*"transactionStatus":4', transactions)
        assert ended, transactions[-2000:]
    finally:
        bench.broker.start()

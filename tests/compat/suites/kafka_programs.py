"""Kafka's own test programs: they check for themselves, or what they wrote is checked here."""

import collections
import json
import random
import time

from harness import cases, jars
from harness.processes import wait_until

SUITE = cases.Suite(
    "kafka-programs",
    f"kafka-tools {jars.KAFKA}: ClientCompatibilityTest, TransactionalMessageCopier, Verifiable* …",
)
TOOLS = "org.apache.kafka.tools."
# Fixed, so that a run can be repeated; what the programs draw is not in our hands.
SEED = 20251129


def events(program, name):
    """The JSON lines of one kind that a program has printed so far."""
    found = []
    for line in program.out().splitlines():
        # A killed program's last line may be half a line.
        if line.startswith("{") and line.endswith("}"):
            event = json.loads(line)
            if event.get("name") == name:
                found.append(event)
    return found


@SUITE.case()
def client_compatibility_test(bench):
    supported = [
        "offsets-for-times",
        "cluster-id",
        "create-topics",
        "describe-acls",
        "describe-configs",
        "idempotent-producer",
    ]
    arguments = [f"--{what}-supported=true" for what in supported]
    arguments += ["--expect-record-too-large-exception=false", "--num-cluster-nodes=1"]
    arguments += ["--topic=client-compatibility"]
    result = bench.tools("ClientCompatibilityTest", *arguments)
    assert "SUCCESS." in result.out, result


def verifiable(bench, topic, protocol, strategy=None):
    """Two consumers share, one is killed, a third takes over: every record is seen."""
    bench.topics(topic, partitions=4)
    total = 10000
    arguments = ["--bootstrap-server", bench.address, "--topic", topic, "--group-id", f"g-{topic}"]
    arguments += ["--group-protocol", protocol, "--verbose", "--reset-policy=earliest"]
    if protocol == "classic":
        arguments += ["--session-timeout", 6000]
    if strategy:
        arguments += ["--assignment-strategy", f"org.apache.kafka.clients.consumer.{strategy}"]
    main = TOOLS + "VerifiableConsumer"
    consumers = [bench.java(f"consumer-{n}", main, *arguments) for n in range(2)]
    for consumer in consumers:
        consumer.wait_for('"name":"partitions_assigned"')
    # Keys, so that every partition gets records, and from the first on.
    words = ["--bootstrap-server", bench.address, "--topic", topic, "--max-messages", total]
    words += ["--acks=-1", "--throughput=1000", "--repeating-keys=100"]
    producer = bench.java("producer", TOOLS + "VerifiableProducer", *words)
    wait_until(
        lambda: all(events(consumer, "record_data") for consumer in consumers),
        "records at both consumers",
        60,
        lambda: "\n".join(consumer.last_words() for consumer in consumers),
    )
    consumers[0].kill()
    consumers.append(bench.java("consumer-2", main, *arguments))
    producer.wait(180)
    # The successor has partitions, and gets what comes from now on.
    consumers[2].wait_for('"partitions":[{"topic"', 90)
    words = [*words, "--value-prefix=1"]
    late = bench.java("late-producer", TOOLS + "VerifiableProducer", *words)
    late.wait(180)
    acknowledged = events(producer, "producer_send_success") + events(late, "producer_send_success")
    sent = {event["value"] for event in acknowledged}
    assert len(sent) == 2 * total, f"{len(sent)} of {2 * total} acknowledged"

    def seen():
        return {e["value"] for consumer in consumers for e in events(consumer, "record_data")}

    wait_until(lambda: seen() >= sent, "all records", 90, consumers[1].last_words)
    assert events(consumers[2], "record_data"), consumers[2].last_words()
    for consumer in consumers[1:]:
        consumer.terminate()
        bad = [event for event in events(consumer, "offsets_committed") if not event["success"]]
        # A commit that meets a rebalance is refused; it is repeated afterwards.
        refused = ("rebalanc", "stale member epoch")
        assert all(any(why in event.get("error", "") for why in refused) for event in bad), bad


@SUITE.case()
def verifiable_classic_range(bench):
    verifiable(bench, "verifiable-range", "classic")


@SUITE.case()
def verifiable_classic_cooperative_sticky(bench):
    verifiable(bench, "verifiable-sticky", "classic", "CooperativeStickyAssignor")


@SUITE.case()
def verifiable_consumer_protocol(bench):
    verifiable(bench, "verifiable-consumer", "consumer")


@SUITE.case()
def verifiable_consumer_protocol_static_members(bench):
    """A static member that stops in order comes back to its partitions; nobody else notices."""
    topic = "verifiable-static"
    produce_numbers(bench, topic, 1000, partitions=4)
    arguments = ["--bootstrap-server", bench.address, "--topic", topic, "--group-id", f"g-{topic}"]
    arguments += ["--group-protocol", "consumer", "--verbose", "--reset-policy=earliest"]

    def start(name, instance):
        main = TOOLS + "VerifiableConsumer"
        return bench.java(name, main, *arguments, "--group-instance-id", instance)

    def holds(consumer):
        held = set()
        for line in consumer.out().splitlines():
            event = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            partitions = {found["partition"] for found in event.get("partitions", [])}
            if event.get("name") == "partitions_assigned":
                held |= partitions
            elif event.get("name") == "partitions_revoked":
                held -= partitions
        return held

    first, second = start("static-0", "i-0"), start("static-1", "i-1")
    halves = lambda: len(holds(first)) == 2 and len(holds(second)) == 2  # noqa: E731
    wait_until(halves, "two partitions each", 60, first.last_words)
    half, before = holds(second), len(events(first, "partitions_revoked"))
    second.terminate()
    again = start("static-2", "i-1")
    wait_until(lambda: holds(again) == half, "the same partitions", 30, again.last_words)
    assert len(events(first, "partitions_revoked")) == before, first.last_words()


def produce_numbers(bench, topic, count, partitions):
    bench.topics(topic, partitions=partitions)
    arguments = ["--bootstrap-server", bench.address, "--topic", topic, "--max-messages", count]
    bench.java("input", TOOLS + "VerifiableProducer", *arguments, "--acks=-1").wait(120)


def check_copy(bench, topic, total, partitions):
    """Every number once in what a reader of committed records sees."""
    arguments = ["--topic", topic, "--from-beginning", "--isolation-level=read_committed"]
    result = bench.tools("consumer.ConsoleConsumer", *arguments, "--timeout-ms=5000")
    counts = collections.Counter(int(line) for line in result.out.split())
    lost = [n for n in range(total) if n not in counts]
    doubled = [n for n, times in counts.items() if times > 1]
    assert not lost and not doubled, (
        f"{topic}: {len(lost)} of {total} lost ({lost[:5]}), {len(doubled)} doubled ({doubled[:5]})"
    )
    everything = bench.tools(
        "consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--timeout-ms=5000"
    )
    assert len(everything.out.split()) > total, "nothing was aborted, so nothing was shown"


def copier(bench, name, group_mode, kill_broker=False):
    """Copiers with random aborts, killed with -9 and restarted until the input is copied."""
    draw, total, partitions, deadline = random.Random(SEED), 30000, 2, time.monotonic() + 420
    source, sink = f"{name}-in", f"{name}-out"
    produce_numbers(bench, source, total, partitions)
    bench.topics(sink, partitions=partitions)

    def start(partition, turn):
        arguments = [
            "--broker-list",
            bench.address,
            "--input-topic",
            source,
            "--output-topic",
            sink,
        ]
        arguments += ["--input-partition", partition, "--consumer-group", f"g-{name}"]
        arguments += ["--transactional-id", f"{name}-{partition}", "--transaction-size", 20]
        # An open transaction of a killed copier holds up the offsets and its successor that long.
        arguments += ["--transaction-timeout", 5000, "--enable-random-aborts"]
        arguments += ["--use-group-metadata", "--group-mode"] if group_mode else []
        main = TOOLS + "TransactionalMessageCopier"
        return bench.java(f"copier-{partition}-{turn}", main, *arguments)

    running = {partition: start(partition, 0) for partition in range(partitions)}
    kills, turn = 0, 0
    while kills < 4:
        turn += 1
        partition = kills % partitions
        running[partition].wait_for("ProcessLoop", 90, count=draw.randrange(20, 120))
        if kill_broker and kills % 2 == 1:
            bench.broker.kill()
            bench.broker.start()
        running[partition].kill()
        kills += 1
        running[partition] = start(partition, turn)
    # In group mode a copier stays until it has what was there when partitions were assigned; one
    # that has no partition ends, and its successor goes on.
    while committed(bench, f"g-{name}", source) < total:
        assert time.monotonic() < deadline, "\n".join(p.last_words() for p in running.values())
        for partition, program in running.items():
            if not program.running():
                program.wait()
                turn += 1
                running[partition] = start(partition, turn)
        time.sleep(0.5)
    for program in running.values():
        program.terminate()
    check_copy(bench, sink, total, partitions)


def committed(bench, group, topic):
    """How many records of the topic the group has done with; the input has no markers."""
    arguments = ["--group", group, "--describe", "--offsets"]
    result = bench.tools("consumer.group.ConsumerGroupCommand", *arguments, code=None)
    done = 0
    for line in result.out.splitlines():
        fields = line.split()
        if len(fields) > 4 and fields[1] == topic and fields[3].isdigit():
            done += int(fields[3])
    return done


@SUITE.case()
def transactional_message_copier_by_partition(bench):
    copier(bench, "copy", group_mode=False)


@SUITE.case()
def transactional_message_copier_in_a_group(bench):
    copier(bench, "copy-group", group_mode=True)


@SUITE.case()
def transactional_message_copier_while_the_broker_is_killed(bench):
    copier(bench, "copy-broker", group_mode=False, kill_broker=True)


@SUITE.case()
def producer_performance(bench):
    bench.topics("performance", partitions=3)
    arguments = [
        "--topic",
        "performance",
        "--num-records=50000",
        "--record-size=100",
        "--throughput=-1",
    ]
    result = bench.tools("ProducerPerformance", *arguments)
    assert "50000 records sent" in result.out, result
    arguments = [
        "--topic",
        "performance",
        "--num-records=50000",
        "--timeout=20000",
        "--hide-header",
    ]
    result = bench.tools("ConsumerPerformance", *arguments)
    consumed = [line.split(", ") for line in result.out.splitlines() if line.count(", ") >= 9]
    assert consumed and int(consumed[-1][4]) >= 50000, result


@SUITE.case()
def producer_performance_with_transactions(bench):
    bench.topics("performance-tx", partitions=3)
    arguments = ["--topic", "performance-tx", "--num-records=20000", "--record-size=100"]
    arguments += [
        "--throughput=-1",
        "--transactional-id=performance",
        "--transaction-duration-ms=50",
    ]
    result = bench.tools("ProducerPerformance", *arguments)
    assert "20000 records sent" in result.out, result


@SUITE.case()
def end_to_end_latency(bench):
    bench.topics("latency")
    arguments = [
        "--topic",
        "latency",
        "--num-records=500",
        "--producer-acks=all",
        "--record-size=100",
    ]
    result = bench.tools("EndToEndLatency", *arguments)
    assert "Percentiles" in result.out, result


@SUITE.case()
def log_compaction_tester(bench):
    """What is left after compaction has the newest value of every key and no deleted one."""
    arguments = ["--topics=1", "--messages=30000", "--duplicates=5", "--percent-deletes=20"]
    result = bench.tools("LogCompactionTester", *arguments, "--sleep=5")
    assert "Data verification is completed" in result.out, result

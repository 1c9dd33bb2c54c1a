"""What a client that nobody here wrote (librdkafka) can do with `millstream broker`.

Each check is one capability with topics and groups of its own. It fails by an exception; the others
still run. The broker is a process of ours on a free port and in a temporary directory, and is ended
by its id.

usage: check.py MILLSTREAM_BINARY [CHECK ...]
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

PATIENCE_S = 30
# librdkafka speaks of every lost connection; what matters shows as a failed check.
QUIET = {"log_level": 2}


class Broker:
    """`millstream broker` in a process of its own."""

    def __init__(self, binary):
        self.binary = binary
        self.directory = tempfile.TemporaryDirectory(prefix="millstream-librdkafka-")
        self.address = "127.0.0.1:0"
        self.process, self.admin = None, None
        self.log = open(os.path.join(self.directory.name, "log"), "wb")
        self.start()

    def start(self):
        data = os.path.join(self.directory.name, "data")
        command = [self.binary, "broker", "--data-dir", data, "--listen", self.address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline().strip()
        if not line.startswith("listening on "):
            raise RuntimeError(f"the broker did not start: {line!r}\n{self.log_text()}")
        # The port stays the same from here on, so that clients find the broker again.
        self.address = line.removeprefix("listening on ")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode

    def log_text(self):
        self.log.flush()
        with open(self.log.name, encoding="utf-8", errors="replace") as text:
            return "".join(text.readlines()[-40:])


BROKER = None


def admin():
    """One for all checks: what is asked of an AdminClient fails when the object is collected."""
    if BROKER.admin is None:
        BROKER.admin = AdminClient({"bootstrap.servers": BROKER.address, **QUIET})
    return BROKER.admin


def create(topic, partitions=1):
    for future in admin().create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(PATIENCE_S)
    return topic


def producer(**settings):
    settings = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": BROKER.address, "linger.ms": 5, **QUIET, **settings})


def consumer(group, **settings):
    settings = {key.replace("_", "."): value for key, value in settings.items()}
    defaults = {
        "bootstrap.servers": BROKER.address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
    }
    return Consumer({**defaults, **QUIET, **settings})


class Acknowledgements:
    """Counts delivery reports and keeps what failed."""

    def __init__(self):
        self.offsets, self.errors = [], []

    def __call__(self, error, message):
        if error is not None:
            self.errors.append(error)
        else:
            self.offsets.append((message.partition(), message.offset()))

    def check(self, count):
        assert not self.errors, f"not delivered: {self.errors[:3]}"
        assert len(self.offsets) == count, f"{len(self.offsets)} of {count} acknowledged"


def send(client, topic, values, **more):
    acknowledged = Acknowledgements()
    for value in values:
        while True:
            try:
                client.produce(topic, value, on_delivery=acknowledged, **more)
                break
            except BufferError:
                client.poll(0.1)
    left = client.flush(PATIENCE_S)
    assert left == 0, f"{left} records are still not acknowledged"
    acknowledged.check(len(values))
    return acknowledged


def read(topic, isolation="read_committed", partitions=1, idle_s=2.0, count=None):
    """All messages of a topic, read by partition, without a group's offsets."""
    client = consumer(
        "reader-without-commits", isolation_level=isolation, enable_partition_eof=True
    )
    try:
        client.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
        messages, at_end, deadline = [], set(), time.monotonic() + PATIENCE_S
        while len(at_end) < partitions and time.monotonic() < deadline:
            message = client.poll(idle_s)
            if message is None:
                continue
            if message.error() is None:
                messages.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise KafkaException(message.error())
        assert len(at_end) == partitions, f"the end of {topic} was not reached"
        if count is not None:
            assert len(messages) == count, f"{len(messages)} messages where {count} belong"
        return messages
    finally:
        client.close()


def poll_until(client, condition, what):
    """Polls until the condition holds; answers the messages that came."""
    messages, deadline = [], time.monotonic() + PATIENCE_S
    while not condition(messages):
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"
        message = client.poll(0.1)
        if message is not None:
            if message.error() is not None:
                raise KafkaException(message.error())
            messages.append(message)
    return messages


def committed(group, topic, partitions=1, **settings):
    client = consumer(group, **settings)
    try:
        wanted = [TopicPartition(topic, p) for p in range(partitions)]
        return [found.offset for found in client.committed(wanted, PATIENCE_S)]
    finally:
        client.close()


def refused(call, code):
    """Runs what has to fail with this code."""
    try:
        call()
    except KafkaException as error:
        found = error.args[0].code()
        assert found == code, f"{error} instead of code {code}"
        return error.args[0]
    raise AssertionError(f"succeeded where code {code} was due")


def check_topics_through_admin():
    name = create("admin-topic", 3)
    metadata = admin().list_topics(timeout=PATIENCE_S)
    assert len(metadata.topics[name].partitions) == 3
    assert metadata.cluster_id
    again = admin().create_topics([NewTopic(name, 3, 1)])[name]
    refused(lambda: again.result(PATIENCE_S), KafkaError.TOPIC_ALREADY_EXISTS)
    bad = admin().create_topics([NewTopic("no good", 1, 1)])["no good"]
    refused(lambda: bad.result(PATIENCE_S), KafkaError.TOPIC_EXCEPTION)
    resource = ConfigResource(ResourceType.TOPIC, name)
    configs = admin().describe_configs([resource])[resource].result(PATIENCE_S)
    assert configs["cleanup.policy"].value == "delete", configs.get("cleanup.policy")
    admin().delete_topics([name])[name].result(PATIENCE_S)
    assert name not in admin().list_topics(timeout=PATIENCE_S).topics


def check_topic_created_on_first_use():
    send(producer(), "first-use", [b"1"])
    assert [m.value() for m in read("first-use")] == [b"1"]


def check_headers_nulls_and_empties():
    topic = create("shapes")
    headers = [("h", b"1"), ("h", b"2"), ("empty", b""), ("null", None)]
    headers += [("h", b"\xff\x00"), ("\u00fc", b"u")]
    shapes = [
        (b"k", b"v"),
        (None, b"v"),
        (b"", b""),
        (b"k", None),
        (None, None),
        (b"\xff", b"\x00"),
    ]
    client, acknowledged = producer(), Acknowledgements()
    for index, (key, value) in enumerate(shapes):
        more = {"headers": headers, "timestamp": 1000 + index, "on_delivery": acknowledged}
        client.produce(topic, value, key, **more)
    client.produce(topic, b"bare", on_delivery=acknowledged)
    client.flush(PATIENCE_S)
    acknowledged.check(len(shapes) + 1)
    messages = read(topic, count=len(shapes) + 1)
    assert [(m.key(), m.value()) for m in messages[:-1]] == shapes
    assert all(m.headers() == headers for m in messages[:-1]), messages[0].headers()
    assert [m.timestamp()[1] for m in messages[:-1]] == [
        1000 + index for index in range(len(shapes))
    ]
    assert messages[-1].headers() is None


def stored_codecs(topic):
    """The codecs of the batches of partition 0 as they lie in the log."""
    folder = os.path.join(BROKER.directory.name, "data")
    for root, _, names in os.walk(folder):
        if os.path.basename(root) == f"{topic}-0":
            files = [os.path.join(root, name) for name in names if name.endswith(".log")]
            command = [BROKER.binary, "log", "dump", *files]
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            return set(re.findall(r" codec=(\w+)", said))
    raise AssertionError(f"no folder of {topic}-0 below {folder}")


def codec(name):
    topic = create(f"codec-{name}")
    values = [b"%d %s" % (n, b"compressible " * 20) for n in range(2000)]
    send(producer(compression_type=name, linger_ms=50), topic, values)
    assert stored_codecs(topic) == {name}, stored_codecs(topic)
    assert [m.value() for m in read(topic)] == values


def check_idempotent_producer():
    topic = create("idempotent", 2)
    client = producer(enable_idempotence=True)
    for partition in range(2):
        send(client, topic, [b"%d" % n for n in range(5000)], partition=partition)
    messages = read(topic, partitions=2, count=10000)
    for partition in range(2):
        values = [int(m.value()) for m in messages if m.partition() == partition]
        assert values == list(range(5000)), f"partition {partition} is not in order"


def check_large_and_too_large_records():
    topic = create("large")
    send(producer(), topic, [b"x" * 900_000])
    assert len(read(topic)[0].value()) == 900_000
    client, acknowledged = producer(message_max_bytes=10_000_000), Acknowledgements()
    client.produce(topic, b"x" * 3_000_000, on_delivery=acknowledged)
    client.flush(PATIENCE_S)
    assert [error.code() for error in acknowledged.errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    send(producer(), topic, [b"after"])
    assert [len(m.value()) for m in read(topic)] == [900_000, 5]


def group_rebalance(strategy):
    topic = create(f"group-{strategy}", 4)
    settings = {"partition_assignment_strategy": strategy}
    clients = [consumer(f"g-{strategy}", **settings) for _ in range(2)]
    seen = [[], []]

    def sizes():
        return [len(client.assignment()) for client in clients]

    def poll_both(condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}: {sizes()}"
            for client, messages in zip(clients, seen):
                message = client.poll(0.02)
                if message is not None:
                    if message.error() is not None:
                        raise KafkaException(message.error())
                    messages.append((message.partition(), message.offset()))

    try:
        clients[0].subscribe([topic])
        poll_both(lambda: sizes() == [4, 0], "the first member to have all partitions")
        clients[1].subscribe([topic])
        poll_both(lambda: sizes() == [2, 2], "both members to have half")
        client = producer()
        for partition in range(4):
            send(client, topic, [b"%d" % n for n in range(100)], partition=partition)
        poll_both(lambda: len(seen[0]) + len(seen[1]) >= 400, "all records")
        assert sorted(seen[0] + seen[1]) == [(p, o) for p in range(4) for o in range(100)]
        assert len(seen[0]) == len(seen[1]) == 200
        clients[1].unsubscribe()
        poll_both(lambda: sizes() == [4, 0], "the first member to have all again")
    finally:
        for client in clients:
            client.close()


def check_static_member_keeps_its_place():
    topic = create("static", 2)
    events = []
    settings = {"group_instance_id": "instance-1"}
    first = consumer("g-static", **settings)
    first.subscribe([topic], on_assign=lambda _, partitions: events.append(len(partitions)))
    poll_until(first, lambda _: len(first.assignment()) == 2, "the assignment")
    first.close()
    started = time.monotonic()
    second = consumer("g-static", **settings)
    second.subscribe([topic])
    poll_until(second, lambda _: len(second.assignment()) == 2, "the assignment of the successor")
    took = time.monotonic() - started
    second.close()
    assert took < 5, f"took {took:.1f} s"


def check_committed_offsets_and_resumption():
    topic = create("resume")
    send(producer(), topic, [b"%d" % n for n in range(10)])
    client = consumer("g-resume")
    client.subscribe([topic])
    messages = poll_until(client, lambda messages: len(messages) >= 4, "four records")
    offsets = [TopicPartition(topic, 0, messages[3].offset() + 1, metadata="half-way")]
    client.commit(offsets=offsets, asynchronous=False)
    client.close()
    assert committed("g-resume", topic) == [4]
    client = consumer("g-resume")
    client.subscribe([topic])
    messages = poll_until(client, lambda messages: len(messages) >= 6, "the other six")
    client.close()
    assert [int(m.value()) for m in messages] == list(range(4, 10))


def check_groups_through_admin():
    topic = create("admin-group")
    send(producer(), topic, [b"1", b"2"])
    client = consumer("g-admin")
    client.subscribe([topic])
    poll_until(client, lambda messages: len(messages) >= 2, "two records")
    client.commit(asynchronous=False)
    described = admin().describe_consumer_groups(["g-admin"])["g-admin"].result(PATIENCE_S)
    assert len(described.members) == 1, described.members
    assigned = described.members[0].assignment.topic_partitions
    assert [(p.topic, p.partition) for p in assigned] == [(topic, 0)]
    client.close()
    listed = admin().list_consumer_groups().result(PATIENCE_S)
    assert "g-admin" in [group.group_id for group in listed.valid], listed.errors
    wanted = [ConsumerGroupTopicPartitions("g-admin")]
    found = admin().list_consumer_group_offsets(wanted)["g-admin"].result(PATIENCE_S)
    assert [(p.topic, p.partition, p.offset) for p in found.topic_partitions] == [(topic, 0, 2)]
    admin().delete_consumer_groups(["g-admin"])["g-admin"].result(PATIENCE_S)
    assert committed("g-admin", topic)[0] < 0


def check_offsets_by_time_and_ends():
    topic = create("times")
    client = producer()
    for index in range(5):
        client.produce(topic, b"x", timestamp=1_000_000 + 1000 * index)
    client.flush(PATIENCE_S)
    reader = consumer("g-times")
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (0, 5)
    found = reader.offsets_for_times([TopicPartition(topic, 0, 1_002_500)], PATIENCE_S)
    assert found[0].offset == 3, found
    reader.close()
    partition = TopicPartition(topic, 0)
    wanted = {partition: OffsetSpec.latest()}
    latest = admin().list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
    assert latest[partition].result(PATIENCE_S).offset == 5


def check_transaction_with_offsets():
    source, sink = create("tx-source"), create("tx-sink")
    send(producer(), source, [b"%d" % n for n in range(10)])
    reader = consumer("g-tx")
    reader.subscribe([source])
    writer = producer(transactional_id="tx-offsets")
    writer.init_transactions(PATIENCE_S)
    messages = poll_until(reader, lambda messages: len(messages) >= 10, "ten records")
    for end in (5, 10):
        writer.begin_transaction()
        for message in messages[end - 5 : end]:
            writer.produce(sink, b"out " + message.value())
        offsets = [TopicPartition(source, 0, end)]
        writer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), PATIENCE_S)
        # A read_committed client waits for pending offsets to be decided; the other kind sees what is.
        before = committed("g-tx", source, isolation_level="read_uncommitted")[0]
        assert before == (5 if end == 10 else -1001), (
            f"{before} committed before the transaction is"
        )
        writer.commit_transaction(PATIENCE_S)
        assert committed("g-tx", source) == [end]
    reader.close()
    assert [m.value() for m in read(sink)] == [b"out %d" % n for n in range(10)]


def check_aborted_transaction():
    source, sink = create("abort-source"), create("abort-sink")
    send(producer(), source, [b"1"])
    reader = consumer("g-abort")
    reader.subscribe([source])
    poll_until(reader, lambda messages: len(messages) >= 1, "a record")
    writer = producer(transactional_id="tx-abort")
    writer.init_transactions(PATIENCE_S)
    writer.begin_transaction()
    send(writer, sink, [b"aborted 1", b"aborted 2"])
    offsets = [TopicPartition(source, 0, 1)]
    writer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), PATIENCE_S)
    assert read(sink) == [], "a read_committed reader sees an open transaction"
    writer.abort_transaction(PATIENCE_S)
    writer.begin_transaction()
    writer.produce(sink, b"committed")
    writer.commit_transaction(PATIENCE_S)
    reader.close()
    assert [m.value() for m in read(sink)] == [b"committed"]
    everything = [m.value() for m in read(sink, isolation="read_uncommitted")]
    assert everything == [b"aborted 1", b"aborted 2", b"committed"], everything
    assert committed("g-abort", source)[0] < 0, "offsets of an aborted transaction were committed"


def check_fenced_by_a_second_producer():
    topic = create("fenced")
    first = producer(transactional_id="tx-fenced")
    first.init_transactions(PATIENCE_S)
    first.begin_transaction()
    send(first, topic, [b"lost"])
    second = producer(transactional_id="tx-fenced")
    second.init_transactions(PATIENCE_S)
    second.begin_transaction()
    second.produce(topic, b"kept")
    second.commit_transaction(PATIENCE_S)
    error = refused(lambda: first.commit_transaction(PATIENCE_S), KafkaError._FENCED)
    assert error.fatal(), "the fenced producer may go on"
    assert [m.value() for m in read(topic)] == [b"kept"]


def check_many_transactions():
    topic = create("tx-many", 3)
    writer = producer(transactional_id="tx-many")
    writer.init_transactions(PATIENCE_S)
    kept = []
    for n in range(60):
        writer.begin_transaction()
        for partition in range(3):
            writer.produce(topic, b"%d" % n, partition=partition)
        if n % 3 == 2:
            writer.flush(PATIENCE_S)
            writer.abort_transaction(PATIENCE_S)
        else:
            writer.commit_transaction(PATIENCE_S)
            kept.append(n)
    messages = read(topic, partitions=3)
    for partition in range(3):
        assert [int(m.value()) for m in messages if m.partition() == partition] == kept


def check_restart_after_kill():
    """Records, offsets, an idempotent producer and an open transaction over SIGKILL of the broker."""
    topic, open_topic = create("restart", 2), create("restart-open")
    for partition in range(2):
        send(producer(), topic, [b"%d" % n for n in range(50)], partition=partition)
    reader = consumer("g-restart")
    reader.assign([TopicPartition(topic, p) for p in range(2)])
    offsets = [TopicPartition(topic, 0, 20), TopicPartition(topic, 1, 30)]
    reader.commit(offsets=offsets, asynchronous=False)
    writer = producer(transactional_id="tx-restart")
    writer.init_transactions(PATIENCE_S)
    writer.begin_transaction()
    send(writer, open_topic, [b"before"])
    idempotent = producer(enable_idempotence=True)
    send(idempotent, topic, [b"50"], partition=0)
    BROKER.kill()
    BROKER.start()
    assert committed("g-restart", topic, 2) == [20, 30]
    send(idempotent, topic, [b"51"], partition=0)
    messages = read(topic, partitions=2)
    assert [int(m.value()) for m in messages if m.partition() == 0] == list(range(52))
    assert [int(m.value()) for m in messages if m.partition() == 1] == list(range(50))
    assert read(open_topic) == []
    writer.produce(open_topic, b"after")
    writer.commit_transaction(PATIENCE_S)
    assert [m.value() for m in read(open_topic)] == [b"before", b"after"]
    reader.close()


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
for name in ("none", "gzip", "snappy", "lz4", "zstd"):
    CHECKS[f"codec_{name}"] = lambda name=name: codec(name)
for name in ("range", "roundrobin", "cooperative-sticky"):
    CHECKS[f"group_rebalance_{name}"] = lambda name=name: group_rebalance(name)
# Last, so that everything else has been written when the broker is killed.
CHECKS["restart_after_kill"] = CHECKS.pop("restart_after_kill")


def main():
    global BROKER
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    chosen = sys.argv[2:] or list(CHECKS)
    unknown = [name for name in chosen if name not in CHECKS]
    if unknown:
        sys.exit(f"no check {unknown}; there are {list(CHECKS)}")
    BROKER = Broker(sys.argv[1])
    passed, failed = 0, 0
    try:
        for name in chosen:
            try:
                CHECKS[name]()
            except Exception:
                failed += 1
                print(f"{name}: FAILED", flush=True)
                traceback.print_exc(file=sys.stdout)
            else:
                passed += 1
                print(f"{name}: ok", flush=True)
    finally:
        code = BROKER.stop()
    if code == 0:
        passed += 1
        print("clean_stop: ok")
    else:
        failed += 1
        print(f"clean_stop: FAILED with exit code {code}")
    if failed:
        print(f"the broker's last words:\n{BROKER.log_text()}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

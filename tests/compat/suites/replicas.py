"""Our clients on an Apache Kafka of three brokers, each in a rack of its own: the nearest replica
is read (KIP-392), and what one replica alone has goes with it.

The programs under test are `tests/src/bin/group_member.rs` and `line_producer.rs`; which broker is
read is what the brokers count themselves.
"""

import json
import os
import signal
import subprocess
import time

from harness import cases, jars
from harness.cluster import Cluster
from harness.processes import wait_until

ROOT = os.path.dirname(os.path.dirname(jars.COMPAT))
RECORDS, SIZE = 3000, 400


def build():
    command = ["cargo", "build", "--quiet", "-p", "tests"]
    command += ["--bin", "group_member", "--bin", "line_producer"]
    subprocess.run(command, cwd=ROOT, check=True)
    jars.fetch()


SUITE = cases.Suite(
    "replicas",
    "our consumer on three brokers of Apache Kafka, one of them in its rack",
    prepare=build,
    only_on=Cluster.name,
    kafka=Cluster,
)


def create(bench, topic):
    """Broker 1 leads its one partition."""
    bench.tools("TopicCommand", "--create", "--topic", topic, "--replica-assignment", "1:2:3")


def in_sync(bench, topic, broker):
    """Waits until the broker has all of the topic."""

    def there():
        described = bench.tools("TopicCommand", "--describe", "--topic", topic).out
        isr = described.rpartition("Isr:")[2].split()[0]
        return str(broker) in isr.split(",")

    wait_until(there, f"broker {broker} to be in sync", 60)


class Reader:
    """A member of a group in a rack, over one topic of one partition that broker 1 leads."""

    def __init__(self, bench, topic, **settings):
        self.bench, self.topic = bench, topic
        self.written, self.counted = 0, {}
        create(bench, topic)
        words = [jars.built("group_member"), "--bootstrap-server", bench.address]
        words += ["--group-id", f"g-{topic}", "--topic", topic]
        for name, value in settings.items():
            words += ["--set", f"{name.replace('_', '.')}={value}"]
        self.program = bench.program(topic, words)

    def offsets(self):
        # The last line may not be whole yet.
        lines = self.program.out().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event["offset"] for event in events if event["name"] == "record_data"]

    def reads_from(self, broker, limit_s=60):
        """Writes some; all of it is read, and nearly all of it from this broker."""
        performance = ["--topic", self.topic, "--num-records", RECORDS, "--record-size", SIZE]
        self.bench.tools("ProducerPerformance", *performance, "--throughput", -1)
        self.written += RECORDS

        def there():
            assert self.program.running(), self.program.last_words()
            return len(self.offsets()) >= self.written

        wait_until(there, f"{self.written} records", limit_s, self.program.last_words)
        assert self.offsets() == list(range(self.written)), "lost, repeated, or out of order"
        brokers = self.bench.broker.brokers.items()
        running = {number for number, one in brokers if one.process.poll() is None}
        sent = {number: self.sent(number) for number in running}
        least = RECORDS * SIZE
        assert sent[broker] >= least, f"of {least} bytes at least: {sent}"
        others = sum(count for number, count in sent.items() if number != broker)
        assert others < least / 10, f"from broker {broker}: {sent}"
        return f"broker {broker} of {sorted(running)}: {sent}"

    def sent(self, number):
        """Bytes that a broker has sent of the topic since this was asked last."""
        count = self.bench.broker.bytes_out(number, self.topic)
        before = self.counted.get(number, 0)
        self.counted[number] = count
        return count - before

    def close(self):
        self.program.terminate()
        assert self.program.process.returncode == 0, self.program.last_words()


@SUITE.case()
def without_a_rack_the_leader_is_read(bench):
    reader = Reader(bench, "no-rack")
    said = reader.reads_from(1)
    reader.close()
    return said


def follows(bench, topic, **settings):
    """Reads from the replica of its rack; when that dies, from the leader; then from it again."""
    cluster = bench.broker
    reader = Reader(bench, topic, client_rack="rack-2", **settings)
    said = [reader.reads_from(2)]
    cluster.brokers[2].kill()
    reader.counted[2] = 0
    # The leader sends there until the controller has fenced it.
    said.append(reader.reads_from(1, limit_s=120))
    cluster.start_again(2)
    in_sync(bench, topic, 2)
    said.append(reader.reads_from(2))
    reader.close()
    return "; ".join(said)


@SUITE.case()
def the_replica_in_the_rack_is_read_and_its_death_survived(bench):
    return follows(bench, "classic")


@SUITE.case()
def the_same_under_the_consumer_protocol(bench):
    return follows(bench, "consumer", group_protocol="consumer")


def read(bench, topic):
    words = ["--topic", topic, "--from-beginning", "--timeout-ms=6000"]
    return bench.tools("consumer.ConsoleConsumer", *words).out.splitlines()


@SUITE.case()
def acks_1_loses_what_the_leader_alone_had(bench):
    """Row 63: the leader acknowledges by itself, and dies before anybody has copied the record."""
    topic, cluster = "acks-1", bench.broker
    create(bench, topic)
    words = [jars.built("line_producer"), bench.address, topic, "acks=1"]
    program = bench.program(topic, words, stdin=subprocess.PIPE)

    def write(value, offset):
        program.process.stdin.write(f"{value}\n".encode())
        program.process.stdin.flush()
        program.wait_for(f"{value} at {offset}\n", 90)

    write("copied", 0)
    wait_until(lambda: read(bench, topic) == ["copied"], "the followers to have it", 60)
    followers = [cluster.brokers[number].process for number in (2, 3)]
    for follower in followers:
        follower.send_signal(signal.SIGSTOP)
    try:
        # The fetches that they had sent wait at the leader for half a second, and must not find it;
        # six seconds without a heartbeat, and they would not be candidates any more.
        time.sleep(1)
        write("lost", 1)
        cluster.brokers[1].kill()
    finally:
        for follower in followers:
            follower.send_signal(signal.SIGCONT)
    # The producer knows nothing of it, and does not send again what it has an acknowledgement of.
    write("kept", 1)
    program.process.stdin.close()
    program.wait()
    assert read(bench, topic) == ["copied", "kept"]
    cluster.start_again(1)
    in_sync(bench, topic, 1)
    assert read(bench, topic) == ["copied", "kept"], "the old leader has brought it back"

"""Our consumer and Kafka's in one group, on both brokers: every record is read, and no partition has
two owners at once."""

import json
import os
import subprocess
import time

from harness import cases, jars
from harness.processes import wait_until
from suites.kafka_programs import TOOLS, events

ROOT = os.path.dirname(os.path.dirname(jars.COMPAT))
# Two clocks of one machine, each cut to milliseconds.
CLOCKS_MS = 5
TAKE_OVER_S = 90


def build():
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    command = ["cargo", "build", "--quiet", "-p", "tests", "--bin", "group_member"]
    subprocess.run(command, cwd=ROOT, check=True)
    jars.fetch()
    return os.path.join(target, "debug", "group_member")


SUITE = cases.Suite(
    "mixed-groups",
    f"our consumer in one group with Kafka's {jars.KAFKA} VerifiableConsumer",
    prepare=build,
)


class Members:
    """The members of one group, ours and Kafka's, and what they have said."""

    def __init__(self, bench, topic, settings, java):
        self.bench, self.topic, self.group = bench, topic, f"g-{topic}"
        self.settings, self.java = settings, java
        self.all, self.killed_at = [], {}

    def ours(self, name, *more):
        words = [self.bench.prepared, "--bootstrap-server", self.bench.address]
        words += ["--group-id", self.group, "--topic", self.topic]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={value}"]
        return self.add(self.bench.program(name, [*words, *more]))

    def theirs(self, name):
        words = ["--bootstrap-server", self.bench.address, "--topic", self.topic]
        words += ["--group-id", self.group, "--verbose", "--reset-policy=earliest", *self.java]
        return self.add(self.bench.java(name, TOOLS + "VerifiableConsumer", *words))

    def add(self, member):
        self.all.append(member)
        return member

    def kill(self, member):
        member.kill()
        self.killed_at[member] = time.time() * 1000

    def said(self, member):
        for line in member.out().splitlines():
            # A killed program's last line may be half a line.
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)

    def held(self, member):
        """What a member has now; and it has read nothing else."""
        return self.story(member)[0]

    def story(self, member):
        """What a member has now, and every time that it had a partition: (partition, from, to)."""
        held, times = {}, []
        for event in self.said(member):
            name, at = event["name"], event["timestamp"]
            named = {p["partition"] for p in event.get("partitions", []) if "count" not in p}
            if name == "partitions_assigned":
                again = named & set(held)
                assert not again, f"{member.name} was given {again} twice"
                held.update(dict.fromkeys(named, at))
            elif name in ("partitions_revoked", "partitions_lost"):
                for partition in named & set(held):
                    times.append((partition, held.pop(partition), at))
            elif name == "record_data":
                where = f"{event['partition']} at {event['offset']}"
                assert event["partition"] in held, f"{member.name} read {where}, not its own"
            elif name == "shutdown_complete":
                times += [(p, since, at) for p, since in held.items()]
                held = {}
        return held, times

    def check_owners(self):
        """No partition had two owners at once."""
        every = []
        for member in self.all:
            held, times = self.story(member)
            end = self.killed_at.get(member, time.time() * 1000)
            for partition, since, until in times + [(p, at, end) for p, at in held.items()]:
                every.append((partition, since, until, member.name))
        every.sort()
        for one, two in zip(every, every[1:]):
            together = one[0] == two[0] and two[1] + CLOCKS_MS < one[2]
            assert not together, f"partition {one[0]} had two owners: {one} and {two}"
        return len(every)

    def values(self):
        records = (event for member in self.all for event in self.said(member))
        return {event["value"] for event in records if event["name"] == "record_data"}

    def words(self):
        return "\n".join(member.last_words(6) for member in self.all)

    def wait_shared(self, members, partitions):
        """Until these have everything, and each something."""

        def shared():
            held = [set(self.held(member)) for member in members]
            return all(held) and len(set().union(*held)) == partitions == sum(map(len, held))

        wait_until(shared, f"{len(members)} members to share", TAKE_OVER_S, self.words)


def mixed(bench, topic, settings, java):
    """Joins, leaves and a kill -9 while records come."""
    partitions = 6
    bench.topics(topic, partitions=partitions)
    members = Members(bench, topic, settings, java)
    first = [members.theirs("java-0"), members.ours("ours-0")]
    members.wait_shared(first, partitions)
    words = ["--bootstrap-server", bench.address, "--topic", topic, "--acks=-1"]
    words += ["--repeating-keys=100", "--throughput=200"]
    producer = bench.java("producer", TOOLS + "VerifiableProducer", *words)
    wait_until(
        lambda: all(events(member, "record_data") for member in first),
        "records at both",
        120,
        members.words,
    )
    second = [members.ours("ours-1"), members.theirs("java-1")]
    members.wait_shared([*first, *second], partitions)
    first[1].terminate()
    members.wait_shared([first[0], *second], partitions)
    first[0].terminate()
    members.wait_shared(second, partitions)
    members.kill(second[0])
    last = members.ours("ours-2")
    members.wait_shared([second[1], last], partitions)
    producer.terminate()
    sent = {event["value"] for event in events(producer, "producer_send_success")}
    wait_until(lambda: members.values() >= sent, "all records", 60, members.words)
    assert events(last, "record_data") or len(sent) < 500, members.words()
    for member in (second[1], last):
        member.terminate()
    turns = members.check_owners()
    assert turns > 4 * partitions // 2, f"only {turns} turns of ownership"
    bad = [e for member in members.all for e in events(member, "offsets_committed")]
    bad = [event for event in bad if not event["success"]]
    # A commit that meets a rebalance is refused; it is repeated afterwards.
    refused = ("rebalanc", "stale member epoch")
    bad = [e for e in bad if not any(why in e.get("error", "") for why in refused)]
    assert not bad, bad[:3]


def classic(bench, topic, strategy, java):
    settings = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    settings["partition.assignment.strategy"] = strategy
    java = ["--session-timeout", 6000, "--assignment-strategy", f"{java}"]
    mixed(bench, topic, settings, ["--group-protocol", "classic", *java])


CLASSES = "org.apache.kafka.clients.consumer."


@SUITE.case()
def consumer_protocol(bench):
    java = ["--group-protocol", "consumer"]
    mixed(bench, "mixed-consumer", {"group.protocol": "consumer"}, java)


@SUITE.case()
def consumer_protocol_with_the_range_assignor(bench):
    java = ["--group-protocol", "consumer", "--group-remote-assignor", "range"]
    settings = {"group.protocol": "consumer", "group.remote.assignor": "range"}
    mixed(bench, "mixed-remote-range", settings, java)


@SUITE.case()
def classic_range(bench):
    classic(bench, "mixed-range", "range", CLASSES + "RangeAssignor")


@SUITE.case()
def classic_round_robin(bench):
    classic(bench, "mixed-roundrobin", "roundrobin", CLASSES + "RoundRobinAssignor")


@SUITE.case()
def classic_sticky(bench):
    classic(bench, "mixed-sticky", "sticky", CLASSES + "StickyAssignor")


@SUITE.case()
def classic_cooperative_sticky(bench):
    name = "CooperativeStickyAssignor"
    classic(bench, "mixed-cooperative", "cooperative-sticky", CLASSES + name)


@SUITE.case()
def consumer_protocol_with_transactions(bench):
    """Our members copy a topic, offsets and outputs in one transaction, while members join, leave
    and are killed: every record is copied once."""
    source, sink, total = "mixed-copy-in", "mixed-copy-out", 4000
    bench.topics(source, sink, partitions=6)
    members = Members(bench, source, {"group.protocol": "consumer"}, [])

    def copier(name, identity):
        return members.ours(name, "--copy-to", sink, "--transactional-id", identity)

    first, second = copier("copy-0", "copy-a"), copier("copy-1", "copy-b")
    members.wait_shared([first, second], 6)
    words = ["--bootstrap-server", bench.address, "--topic", source, "--acks=-1"]
    words += ["--repeating-keys=100", "--throughput=100", f"--max-messages={total}"]
    producer = bench.java("producer", TOOLS + "VerifiableProducer", *words)
    for member in (first, second):
        member.wait_for('"transaction_committed"', 120, count=3)
    third = copier("copy-2", "copy-c")
    members.wait_shared([first, second, third], 6)
    second.terminate()
    members.wait_shared([first, third], 6)
    members.kill(first)
    last = copier("copy-3", "copy-a")
    members.wait_shared([third, last], 6)
    producer.wait(180)
    arguments = ["--topic", sink, "--from-beginning", "--isolation-level=read_committed"]

    def copied():
        result = bench.tools("consumer.ConsoleConsumer", *arguments, "--timeout-ms=5000")
        return result.out.split()

    wait_until(lambda: len(set(copied())) == total, "all copies", 90, members.words)
    for member in (third, last):
        member.terminate()
    values = copied()
    assert len(values) == total, f"{len(values)} copies of {total} records"
    members.check_owners()

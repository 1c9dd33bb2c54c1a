"""Kafka Streams' own system-test programs, unmodified; processes are killed and restarted."""

import os
import time

from harness import cases, jars
from harness.processes import PATIENCE_S, wait_until

SUITE = cases.Suite(
    "kafka-streams",
    f"the system-test programs of kafka-streams {jars.KAFKA} (StreamsEosTest: {jars.SYSTEM_TESTS})",
)
TESTS = "org.apache.kafka.streams.tests."
# Everything a test of ours needs of a member that was killed: that its place is free soon.
SESSION = "session.timeout.ms=6000\nheartbeat.interval.ms=1000\n"
SMOKE_TOPICS = """data echo max min min-suppressed min-raw dif sum sws-raw sws-suppressed cnt avg
    tagg wcnt fk"""


class Instance:
    """One `process` of a program; it is killed and started again with the same state folder."""

    def __init__(self, bench, number, main, command, properties):
        self.bench, self.main, self.command, self.starts = bench, main, command, 0
        state = os.path.join(bench.folder, f"state-{number}")
        self.name = f"{command}-{number}"
        self.properties = bench.file(f"{self.name}.properties", properties + f"state.dir={state}\n")
        self.program = None
        self.start()

    def start(self):
        self.starts += 1
        first = [jars.SYSTEM_TEST_JAR] if self.main == "StreamsEosTest" else []
        name = f"{self.name}-{self.starts}"
        arguments = [TESTS + self.main, self.properties, self.command]
        self.program = self.bench.java(name, *arguments, first=first)

    def wait_running(self):
        self.program.wait_for("-> RUNNING", 120)

    def bounce(self):
        self.program.kill()
        self.start()


def properties(bench, guarantee="exactly_once_v2", more=""):
    lines = [f"bootstrap.servers={bench.address}", f"processing.guarantee={guarantee}"]
    return "\n".join([*lines, "group.protocol=classic", SESSION + more])


def smoke(bench, guarantee):
    """A driver that makes and verifies data, and two processes, each killed once on the way."""
    bench.topics(*SMOKE_TOPICS.split(), partitions=5)
    content = properties(bench, guarantee)
    driver_properties = bench.file("driver.properties", content)
    driver = bench.java("driver", TESTS + "StreamsSmokeTest", driver_properties, "run")
    clients = [Instance(bench, n, "StreamsSmokeTest", "process", content) for n in range(2)]
    driver.wait_for("5000 records produced", 180)
    clients[0].bounce()
    driver.wait_for("15000 records produced", 180)
    clients[1].bounce()
    said = driver.wait(480, code=None)
    for client in clients:
        client.program.terminate()
    wanted = (
        ["SUCCESS"]
        if guarantee == "exactly_once_v2"
        else ["SUCCESS", "PROCESSED-MORE-THAN-GENERATED"]
    )
    verdicts = said.splitlines()
    assert any(verdict in verdicts for verdict in wanted), driver.last_words(60)


@SUITE.case()
def smoke_exactly_once_v2(bench):
    smoke(bench, "exactly_once_v2")


def changelogs(stores):
    return [f"EosTest-KSTREAM-AGGREGATE-STATE-STORE-{number:010d}-changelog" for number in stores]


def eos(bench, suffix, topics, stores):
    """Three processes, killed and restarted in turn while data keep coming; then the verifier."""
    # The program asks for three replicas of what it creates; one node has one.
    bench.without_topics(*topics)
    bench.topics(*topics, partitions=5)
    bench.topics(*changelogs(stores), partitions=5, configs=["cleanup.policy=compact"])
    content = properties(bench)
    run_properties = bench.file("run.properties", content)
    first = [jars.SYSTEM_TEST_JAR]
    generator = bench.java("run", TESTS + "StreamsEosTest", run_properties, "run", first=first)
    clients = [Instance(bench, n, "StreamsEosTest", "process" + suffix, content) for n in range(3)]
    for client in clients:
        client.wait_running()
    for client in clients:
        before = generator.out().count("records produced")
        client.bounce()
        client.wait_running()
        enough = before + 3
        wait_until(
            lambda: generator.out().count("records produced") >= enough,
            "more records",
            PATIENCE_S,
            generator.last_words,
        )
    generator.terminate()
    # All is read when a commit interval passes with nothing new.
    time.sleep(10)
    for client in clients:
        client.program.terminate(120)
        assert "EOS-TEST-CLIENT-CLOSED" in client.program.out(), client.program.last_words()
        assert "EOS-TEST-CLIENT-EXCEPTION" not in client.program.out(), client.program.last_words()
    arguments = [TESTS + "StreamsEosTest", run_properties, "verify" + suffix]
    verifier = bench.java("verify", *arguments, first=first, heap="512m")
    said = verifier.wait(300)
    assert "ALL-RECORDS-DELIVERED" in said.splitlines(), verifier.last_words(60)


@SUITE.case()
def eos_with_three_instances_killed_in_turn(bench):
    eos(bench, "", ["data", "echo", "min", "sum"], [3, 7])

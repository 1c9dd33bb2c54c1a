"""The other direction: our own job and client, `orders_enriched`, on Apache Kafka as on our broker."""

import json
import os
import subprocess
import time

from harness import cases, jars
from harness.processes import wait_until



def build():
    command = ["cargo", "build", "--quiet", "-p", "examples", "--example", "orders_enriched"]
    subprocess.run(command, cwd=jars.ROOT, check=True)
    jars.fetch()
    return jars.built(os.path.join("examples", "orders_enriched"))


SUITE = cases.Suite(
    "our-job",
    "examples/orders_enriched over TCP, on both brokers",
    prepare=build,
    everywhere=True,
)


def start(bench, name, application, *arguments):
    words = [bench.prepared, "--bootstrap", bench.address, "--application-id", application]
    # Off, so that what it says of an error is the error.
    return bench.program(name, [*words, *arguments], environment={"RUST_BACKTRACE": "0"})


def read(bench, topic):
    """Values of all committed records."""
    arguments = ["--topic", topic, "--from-beginning", "--isolation-level=read_committed"]
    result = bench.tools("consumer.ConsoleConsumer", *arguments, "--timeout-ms=6000")
    return result.out.splitlines()


def fresh(bench):
    """Without the topics of the case before."""
    names = ["orders", "customers", "orders.enriched", "orders.audit", "orders.dead-letter"]
    bench.without_topics(*names)


def check(bench, expected):
    """Every order that was loaded is audited or a dead letter, and nothing is there twice."""
    orders = len(read(bench, "orders"))
    assert orders == expected, f"{orders} of {expected} loaded"
    audited = [json.loads(line) for line in read(bench, "orders.audit")]
    places = {(one["source_partition"], one["source_offset"]) for one in audited}
    assert len(places) == len(audited), f"{len(audited) - len(places)} orders are audited twice"
    dead = len(read(bench, "orders.dead-letter"))
    assert len(audited) + dead == orders, f"{orders} orders: {len(audited)} audited, {dead} dead"
    enriched = len(read(bench, "orders.enriched"))
    assert enriched == len(audited), f"{enriched} enriched, {len(audited)} audited"


def processing(program):
    return (program.out() + program.err()).count("enriching orders") >= 2


@SUITE.case()
def runs_and_a_second_run_finds_nothing_to_do(bench):
    fresh(bench)
    said = start(bench, "first", "job").wait(240)
    assert "20000 orders read: 19920 enriched, 19920 audited, 80 dead letters" in said, said
    check(bench, 20000)
    said = start(bench, "second", "job").wait(60)
    assert "\n0 orders read" in said, said


@SUITE.case()
def killed_and_started_again(bench):
    """Killed with -9 three times on the way; each successor goes on where the last commit was."""
    fresh(bench)
    arguments = ["killed-job", "--commit-interval-ms=50"]
    for turn in range(3):
        program = start(bench, f"killed-{turn}", *arguments)
        wait_until(
            lambda program=program: not program.running() or processing(program),
            "orders to be processed",
            180,
            program.last_words,
        )
        time.sleep(0.3 * turn)
        program.kill()
    start(bench, "last", *arguments).wait(240)
    check(bench, 20000)


@SUITE.case()
def a_second_instance_takes_over(bench):
    fresh(bench)
    first = start(bench, "first", "fence-job", "--follow")
    first.wait_for("loaded ", 120)

    def audited():
        result = bench.tools("GetOffsetShell", "--topic", "orders.audit")
        return any(not line.endswith(":0") for line in result.out.split())

    wait_until(audited, "the first instance to process", 60, first.last_words)
    second = start(bench, "second", "fence-job")
    first.wait(120, code=1)
    assert "taken over" in first.err(), first.last_words()
    second.wait(240)
    check(bench, 20000)

"""Clients of other makers, each in its own language: client × capability.

Every client is a small program of ours with the same commands, so that each capability is judged in
one place, here: what one wrote is read by itself and by the Java client, and has to be the same.

    produce TOPIC CODEC     writes the standard records to partition 0, with acks=all; says "done"
    produce_codecs TOPIC    to partition n with the n-th codec; of Java and confluent-kafka alone
    dump TOPIC PARTITIONS   prints every committed record, one a line, then "done"
    group TOPIC GROUP       joins, says "assigned N" and "record PARTITION OFFSET"; leaves at SIGTERM
    transactions TOPIC ID   five records committed, five aborted, five committed; says "done"
    fence TOPIC ID          a second producer takes over and commits; says "fenced" of the first
    defaults                name=value lines, as the client itself reports them
    version                 of the client
"""

import re

from harness import cases, clients
from harness.processes import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS, FIRST_TIMESTAMP = 200, 1_700_000_000_000
# The records are older than what a topic keeps by default: Kafka looks half a minute after its start.
FOR_EVER = ("retention.ms=-1",)


def shown(value):
    return "-" if value is None else "x" + value.hex()


def standard(cannot=(), partition=0):
    """What `dump` prints of the standard records, without what a client cannot write."""
    shapes = [(b"key", b"value"), (None, b"no key"), (b"", b""), (b"tombstone", None)]
    shapes += [(None, b"" if "neither key nor value" in cannot else None), (b"\xff", b"\0")]
    lines = []
    for n in range(RECORDS):
        pair = (b"k%d" % n, b"compressible %d " % n * 20)
        key, value = shapes[n] if n < len(shapes) else pair
        line = f"{partition} {n} {FIRST_TIMESTAMP + n} {shown(key)} {shown(value)}"
        if n == 0:
            line += " h=x31 h=x32 empty=x" + ("" if "null header" in cannot else " null=-")
        lines.append(line)
    return lines


def java_dump(bench, topic, partitions=1):
    program = bench.program(
        "java-dump", clients.JAVA.command(bench.address, "dump", topic, partitions)
    )
    return lines_of(program)


def lines_of(program, limit_s=90):
    lines = program.wait(limit_s).splitlines()
    assert lines and lines[-1] == "done", program.last_words()
    return sorted(lines[:-1], key=lambda line: [int(field) for field in line.split()[:2]])


def first_difference(found, wanted):
    for n, (left, right) in enumerate(zip(found, wanted)):
        if left != right:
            return f"line {n}: {left[:200]!r} instead of {right[:200]!r}"
    return f"{len(found)} lines instead of {len(wanted)}"


def stored_codecs(bench, topic, partition=0):
    """The codecs of a partition's batches, as Kafka's tool finds them in the broker's files."""
    files = [file for file in bench.segments(topic, partition) if file.endswith(".log")]
    said = bench.tools("DumpLogSegments", "--files", ",".join(files), bootstrap=None)
    return set(re.findall(r" compresscodec: (\w+)", said.out))


def suite_of(client):
    ours = client.name == "millstream"

    def prepare():
        client.prepare()
        clients.LIBRDKAFKA.prepare()

    suite = cases.Suite(client.name, client.what, prepare=prepare, everywhere=ours)

    def run(bench, command, *arguments):
        words = client.command(bench.address, command, *arguments)
        return bench.program(f"{client.name}-{command}", words)

    def add(name, check):
        suite.case(name, gap=client.gaps.get(name))(check)

    def codec(bench, name):
        topic = f"{client.name}-{name}"
        bench.topics(topic, configs=FOR_EVER)
        run(bench, "produce", topic, name).wait_for("done", 90)
        stored = stored_codecs(bench, topic)
        # A batch that does not get smaller is sent as it is, by librdkafka.
        right = name in stored and stored <= {name, "none"}
        assert right, f"the batches in the log have the codecs {stored}"
        wanted = standard(client.cannot)
        by_java = java_dump(bench, topic)
        assert by_java == wanted, "Java reads " + first_difference(by_java, wanted)
        own = lines_of(run(bench, "dump", topic, 1))
        assert own == wanted, "it reads " + first_difference(own, wanted)

    for name in CODECS:
        add(f"codec_{name}", lambda bench, name=name: codec(bench, name))

    def reads(name, writer):
        """Every codec as another client wrote it, each in a partition of its own."""

        def check(bench):
            topic = f"{client.name}-{name}"
            bench.topics(topic, partitions=len(CODECS), configs=FOR_EVER)
            words = writer.command(bench.address, "produce_codecs", topic)
            bench.program(f"{writer.name}-produce", words).wait(90)
            for partition, codec in enumerate(CODECS):
                stored = stored_codecs(bench, topic, partition)
                assert stored == {codec}, f"partition {partition} has the codecs {stored}"
            found = lines_of(run(bench, "dump", topic, len(CODECS)))
            wanted = [line for p in range(len(CODECS)) for line in standard(partition=p)]
            assert found == wanted, first_difference(found, wanted)

        add(name, check)

    reads("reads_what_java_wrote", clients.JAVA)
    reads("reads_what_librdkafka_wrote", clients.LIBRDKAFKA)

    def group(bench):
        topic, group_id = f"{client.name}-group", f"g-{client.name}"
        bench.topics(topic, partitions=4)
        first = run(bench, "group", topic, group_id)
        first.wait_for("assigned 4", 60)
        words = client.command(bench.address, "group", topic, group_id)
        second = bench.program(f"{client.name}-second", words)
        second.wait_for("assigned 2", 60)
        first.wait_for("assigned 2", 60)
        command = ["--topic", topic, "--num-records=2000", "--record-size=20", "--throughput=-1"]
        bench.tools("ProducerPerformance", *command, "--command-property", "batch.size=200")

        def records(program):
            return [line for line in program.out().splitlines() if line.startswith("record ")]

        wait_until(
            lambda: len(set(records(first) + records(second))) >= 2000,
            "2000 records",
            60,
            second.last_words,
        )
        assert records(first) and records(second), "one member had nothing"
        assert len(records(first) + records(second)) == 2000, "some records came twice"
        second.terminate(30)
        first.wait_for("assigned 4", 60, count=2)
        first.terminate(30)

    add("group_rebalance", group)

    def transactions(bench):
        topic = f"{client.name}-tx"
        bench.topics(topic)
        run(bench, "transactions", topic, f"tx-{client.name}").wait_for("done", 90)
        wanted = [b"%s%d" % (name, n) for name in (b"first", b"second") for n in range(5)]
        for lines in (java_dump(bench, topic), lines_of(run(bench, "dump", topic, 1))):
            values = [line.split()[4] for line in lines]
            assert values == [shown(value) for value in wanted], lines

    add("transactions", transactions)

    def fencing(bench):
        topic = f"{client.name}-fence"
        bench.topics(topic)
        run(bench, "fence", topic, f"fence-{client.name}").wait_for("fenced", 90)
        lines = java_dump(bench, topic)
        assert [line.split()[4] for line in lines] == [shown(b"kept")], lines

    add("fencing", fencing)
    return suite


SUITES = [suite_of(client) for client in clients.MATRIX]

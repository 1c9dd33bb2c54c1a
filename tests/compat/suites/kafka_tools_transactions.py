"""Kafka's command-line tool for transactions, on those that a killed producer leaves open."""

from harness.processes import wait_until
from suites.kafka_tools import SUITE, consume, offsets, produce, rows


def hanging(bench, topic, identifier):
    """A transaction that stays open: its producer is killed while it has sent and not committed."""
    bench.topics(topic)
    main = "org.apache.kafka.tools.ProducerPerformance"
    arguments = ["--topic", topic, "--num-records=1000000", "--record-size=10", "--throughput=100"]
    arguments += ["--transactional-id", identifier, "--transaction-duration-ms=600000"]
    timeout = [
        "--command-property",
        f"bootstrap.servers={bench.address}",
        "transaction.timeout.ms=300000",
    ]
    program = bench.java(f"hanging-{identifier}", main, *arguments, *timeout)
    wait_until(
        lambda: offsets(bench, topic, "latest").get(0, 0) > 10,
        "an open transaction",
        60,
        program.last_words,
    )
    return program


@SUITE.case()
def transactions_list_and_describe(bench):
    program = hanging(bench, "tools-tx", "tx-tools")
    command = "TransactionsCommand"
    found = [row for row in rows(bench.tools(command, "list"), "TransactionalId")]
    mine = [row for row in found if row["TransactionalId"] == "tx-tools"]
    assert len(mine) == 1 and mine[0]["TransactionState"] == "Ongoing", found
    described = bench.tools(command, "describe", "--transactional-id=tx-tools")
    assert "tools-tx-0" in described.out and "Ongoing" in described.out, described
    assert "300000" in described.out, described
    producers = bench.tools(command, "describe-producers", "--topic=tools-tx", "--partition=0")
    row = rows(producers, "ProducerId")[0]
    assert row["ProducerId"] == mine[0]["ProducerId"], producers
    assert row["CurrentTransactionStartOffset"] == "0", producers
    filtered = bench.tools(command, "list", "--duration-filter=3600000")
    assert "tx-tools" not in filtered.out, filtered
    program.kill()


@SUITE.case()
def transactions_abort(bench):
    program = hanging(bench, "tools-abort", "tx-abort")
    program.kill()
    where = ["--topic=tools-abort", "--partition=0"]
    committed = ["--from-beginning", "--isolation-level=read_committed"]
    produce(bench, "tools-abort", ["after"])
    bench.tools("TransactionsCommand", "abort", *where, "--start-offset=0")
    assert consume(bench, "tools-abort", 1, *committed) == ["after"]
    producers = bench.tools("TransactionsCommand", "describe-producers", *where)
    row = rows(producers, "ProducerId")[0]
    assert row["CurrentTransactionStartOffset"] == "None", producers


@SUITE.case()
def transactions_forced_to_end(bench):
    program = hanging(bench, "tools-force", "tx-force")
    program.kill()
    produce(bench, "tools-force", ["after"])
    command = "TransactionsCommand"
    bench.tools(command, "forceTerminateTransaction", "--transactionalId=tx-force")
    committed = ["--from-beginning", "--isolation-level=read_committed"]
    assert consume(bench, "tools-force", 1, *committed) == ["after"]
    described = bench.tools(command, "describe", "--transactional-id=tx-force")
    assert "CompleteAbort" in described.out or "Empty" in described.out, described


@SUITE.case()
def transactions_find_hanging(bench):
    """An open transaction is looked at, and is none that hangs, as its coordinator knows it.

    One that hangs cannot be made: a batch whose transaction does not have its partition is refused,
    and without the coordinators' log the broker does not start. What this shows is that the tool
    finds the open one, its transactional id by its producer's, and its partitions.
    """
    command, where = "TransactionsCommand", ["--topic=tools-hanging", "--partition=0"]
    program = hanging(bench, "tools-hanging", "tx-hanging")
    program.kill()
    (producer,) = rows(bench.tools(command, "describe-producers", *where), "ProducerId")
    assert producer["CurrentTransactionStartOffset"] == "0", producer
    for limits in (where[:1], where, ["--broker-id=1"]):
        # Whatever is older than 0 minutes is asked about.
        found = bench.tools(command, "find-hanging", "--max-transaction-timeout=0", *limits)
        assert "LastTimestamp" in found.out and rows(found, "ProducerId") == [], found
    refused = bench.tools(command, "find-hanging", code=1)
    assert "requires either --topic or --broker-id" in refused.out + refused.err, refused
    force = "forceTerminateTransaction"
    bench.tools(command, force, "--transactionalId=tx-hanging")

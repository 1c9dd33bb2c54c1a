"""What clients do where nothing is set, held against `DEFAULTS.md` (rows 144 and 145)."""

import re

from harness import cases, clients, defaults

# Where ours is meant to differ from Apache Kafka's client; DEFAULTS.md says why.
OURS_DIFFER = {"isolation.level": "read_committed", "enable.auto.commit": "false"}
# Settings that ours does not have.
OURS_LACK = {"partitioner.class"}
# What ours calls Java's classes.
ASSIGNORS = {"RangeAssignor": "range", "CooperativeStickyAssignor": "cooperative-sticky"}
# Rows 86 and 87: what Kafka 4.3 has, by the letter.
KAFKA = {
    "batch.size": "16384",
    "linger.ms": "5",
    "buffer.memory": "33554432",
    "compression.type": "none",
    "max.request.size": "1048576",
    "retries": "2147483647",
    "delivery.timeout.ms": "120000",
    "request.timeout.ms": "30000",
    "retry.backoff.ms": "100",
    "max.in.flight.requests.per.connection": "5",
    "acks": "all",
    "transaction.timeout.ms": "60000",
}


def in_our_words(name, value):
    """A value of Java's as ours writes it: assignors have names there, not classes."""
    if name == "partition.assignment.strategy":
        return ",".join(ASSIGNORS[assignor] for assignor in re.findall(r"\w+", value))
    return value


def prepare():
    for client in clients.ALL:
        client.prepare()
    return {client.name: client for client in clients.ALL}


SUITE = cases.Suite("defaults", "each client's own words beside DEFAULTS.md", prepare=prepare)


@SUITE.case()
def the_table_is_what_the_clients_say(bench):
    """Row 144: the same name, another default; row 145: whose last release was when."""
    found, known = list(defaults.rows()), defaults.recorded()
    assert [row[0] for row in found] == [row[0] for row in known], "other rows"
    for now, then in zip(found, known):
        for client, cell, old in zip(found[0], now, then):
            where = f"{now[0] or 'head'} of {client}"
            assert cell == old, f"{where}: {cell!r}, and {old!r} in the table"
    return f"{len(found) - 2} settings of {len(found[0]) - 1} clients"


@SUITE.case()
def ours_are_kafkas(bench):
    """Rows 86 and 87, and every other setting that both have."""
    java, ours = (defaults.report(bench.prepared[name]) for name in ("java", "millstream"))
    for name, value in KAFKA.items():
        assert ours[name] == value, f"{name} of ours is {ours[name]}, not {value}"
    same = 0
    for name in defaults.SETTINGS:
        if name in OURS_DIFFER:
            assert ours[name] == OURS_DIFFER[name] != java[name], f"{name}: {ours[name]}"
        elif name in OURS_LACK:
            assert ours[name] == defaults.ABSENT, f"{name}: ours has it, {ours[name]}"
        else:
            kafkas = in_our_words(name, java[name])
            assert ours[name] == kafkas, f"{name}: ours {ours[name]}, Java's {kafkas}"
            same += 1
    return f"{same} settings as Java's, {len(OURS_DIFFER)} others on purpose"

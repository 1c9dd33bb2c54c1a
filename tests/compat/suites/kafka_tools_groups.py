"""Kafka's command-line tools for groups: of the classic protocol, and of the consumer protocol."""

import re

from harness.processes import wait_until
from suites.kafka_tools import SUITE, consume, produce, rows

GROUPS = "consumer.group.ConsumerGroupCommand"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"


def group_row(bench, group, topic, partition=0):
    result = bench.tools(GROUPS, "--describe", "--group", group, "--offsets")
    for row in rows(result, "TOPIC"):
        if row.get("TOPIC") == topic and row.get("PARTITION") == str(partition):
            return row
    raise AssertionError(f"no row for {topic}-{partition}\n{result}")


@SUITE.case()
def groups_list_describe_reset_delete(bench):
    bench.topics("tools-group", partitions=1)
    produce(bench, "tools-group", [str(n) for n in range(10)])
    group = ["--group", "g-tools"]
    consume(bench, "tools-group", 10, *group, "--command-property=auto.offset.reset=earliest")
    assert "g-tools" in bench.tools(GROUPS, "--list").out.split()
    listed = bench.tools(GROUPS, "--list", "--state", "Empty")
    assert re.search(r"g-tools\s+Empty", listed.out) or "g-tools" in listed.out, listed
    row = group_row(bench, "g-tools", "tools-group")
    assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == ("10", "10", "0"), row
    state = bench.tools(GROUPS, "--describe", *group, "--state")
    assert "Empty" in state.out, state
    reset = [*group, "--reset-offsets", "--topic", "tools-group"]
    for how, offset in (("--to-offset=3", "3"), ("--shift-by=2", "5"), ("--to-earliest", "0")):
        planned = bench.tools(GROUPS, *reset, how, "--dry-run")
        assert rows(planned, "NEW-OFFSET")[0]["NEW-OFFSET"] == offset, planned
        bench.tools(GROUPS, *reset, how, "--execute")
        assert group_row(bench, "g-tools", "tools-group")["CURRENT-OFFSET"] == offset
    bench.tools(GROUPS, *reset, "--to-datetime=2001-01-01T00:00:00.000", "--execute")
    bench.tools(GROUPS, *reset, "--to-latest", "--execute")
    assert group_row(bench, "g-tools", "tools-group")["CURRENT-OFFSET"] == "10"
    bench.tools(GROUPS, "--delete", *group)
    assert "g-tools" not in bench.tools(GROUPS, "--list").out.split()


@SUITE.case()
def groups_delete_offsets(bench):
    bench.topics("tools-offset-delete")
    produce(bench, "tools-offset-delete", ["1", "2"])
    group = ["--group", "g-offset-delete"]
    consume(
        bench, "tools-offset-delete", 2, *group, "--command-property=auto.offset.reset=earliest"
    )
    bench.tools(GROUPS, *group, "--delete-offsets", "--topic", "tools-offset-delete")
    result = bench.tools(GROUPS, "--describe", *group, "--offsets", code=None)
    assert "tools-offset-delete" not in result.out.replace("g-offset-delete", ""), result


@SUITE.case()
def groups_describe_members(bench):
    bench.topics("tools-members", partitions=4)
    arguments = [
        "--bootstrap-server",
        bench.address,
        "--topic=tools-members",
        "--group-id=g-members",
    ]
    member = bench.java("member", VERIFIABLE_CONSUMER, *arguments, "--group-instance-id=instance-7")
    member.wait_for('"name":"partitions_assigned"')
    result = bench.tools(GROUPS, "--describe", "--group=g-members", "--members", "--verbose")
    assert "instance-7" in result.out and "tools-members" in result.out, result
    state = bench.tools(GROUPS, "--describe", "--group=g-members", "--state")
    assert "Stable" in state.out and "range" in state.out, state
    refused = bench.tools(GROUPS, "--delete", "--group=g-members", code=None)
    assert "GroupNotEmpty" in refused.out + refused.err, refused
    removed = bench.tools("GroupsCommand", "--list")
    assert re.search(r"g-members\s+Classic\s+consumer", removed.out), removed


def consumer_member(bench, topic, group, *more):
    """A member of the consumer protocol that has all four partitions and has committed."""
    arguments = ["--bootstrap-server", bench.address, f"--topic={topic}", f"--group-id={group}"]
    arguments += ["--group-protocol=consumer", "--reset-policy=earliest", *more]
    member = bench.java(f"member-of-{group}", VERIFIABLE_CONSUMER, *arguments)
    member.wait_for('"name":"partitions_assigned"')
    member.wait_for('"name":"offsets_committed"')
    return member


def described(bench, group, *what):
    """The rows of a description, and what else was said."""
    result = bench.tools(GROUPS, "--describe", f"--group={group}", *what)
    return rows(result, "GROUP"), result.err


def refused(bench, group, error, *what):
    result = bench.tools(GROUPS, f"--group={group}", *what)
    assert error in result.out, result


@SUITE.case()
def consumer_protocol_describe(bench):
    """A group with a member, as Kafka's tool describes it."""
    topic, group = "tools-consumer", "g-consumer"
    bench.topics(topic, partitions=4)
    produce(bench, topic, [str(n) for n in range(8)])
    consumer_member(bench, topic, group)
    (member,), _ = described(bench, group, "--members", "--verbose")
    assert member["#PARTITIONS"] == "4" and member["HOST"] == "/127.0.0.1", member
    assert member["CURRENT-ASSIGNMENT"] == member["TARGET-ASSIGNMENT"] == f"{topic}:0,1,2,3", member
    assert member["CURRENT-EPOCH"] == member["TARGET-EPOCH"], member
    assert "GROUP-INSTANCE-ID" not in member, member
    epoch = member["CURRENT-EPOCH"]
    (state,), _ = described(bench, group, "--state", "--verbose")
    # Its coordinator has two fields: the address, and the node in brackets.
    assert (state["COORDINATOR"], state["(ID)"]) == (bench.address, "(1)"), state
    assert (state["ASSIGNMENT-STRATEGY"], state["STATE"]) == ("uniform", "Stable"), state
    assert state["GROUP-EPOCH"] == state["TARGET-ASSIGNMENT-EPOCH"] == epoch, state
    assert state["#MEMBERS"] == "1", state
    offsets, _ = described(bench, group, "--offsets", "--verbose")
    assert [row["PARTITION"] for row in offsets] == ["0", "1", "2", "3"], offsets
    assert {row["CONSUMER-ID"] for row in offsets} == {member["CONSUMER-ID"]}, offsets
    assert {row["HOST"] for row in offsets} == {"/127.0.0.1"}, offsets
    read = [row for row in offsets if row["CURRENT-OFFSET"] != "-"]
    assert read and all(row["LAG"] == "0" for row in read), offsets
    assert sum(int(row["CURRENT-OFFSET"]) for row in read) == 8, offsets
    unread = [row for row in offsets if row not in read]
    assert all((row["LOG-END-OFFSET"], row["LAG"]) == ("0", "-") for row in unread), offsets
    listed = bench.tools(GROUPS, "--list", "--type=consumer").out
    assert re.search(rf"{group} +Consumer", listed), listed
    assert group not in bench.tools(GROUPS, "--list", "--type=classic").out
    assert re.search(rf"{group} +Stable", bench.tools(GROUPS, "--list", "--state").out)
    listed = bench.tools("GroupsCommand", "--list", "--consumer").out
    assert re.search(rf"{group} +Consumer +consumer", listed), listed


@SUITE.case()
def consumer_protocol_reset_and_delete(bench):
    """Refused while there is a member; carried out when it has left."""
    topic, group = "tools-consumer-reset", "g-consumer-reset"
    bench.topics(topic, partitions=4)
    produce(bench, topic, [f"{n}:{n}" for n in range(40)], partition_key=True)
    member = consumer_member(bench, topic, group)
    wait_until(lambda: total_lag(bench, group) == 0, "everything to be committed", 30)
    reset = ["--reset-offsets", f"--topic={topic}"]
    active = f"the group '{group}' is inactive, but the current state is Stable"
    refused(bench, group, active, *reset, "--to-earliest", "--execute")
    refused(bench, group, "GroupNotEmptyException", "--delete")
    subscribed = "GroupSubscribedToTopicException"
    refused(bench, group, subscribed, "--delete-offsets", f"--topic={topic}")
    member.terminate(60)
    nobody = f"Consumer group '{group}' has no active members."
    wait_until(lambda: nobody in described(bench, group, "--state")[1], nobody, 30)
    (state,), _ = described(bench, group, "--state")
    assert (state["STATE"], state["#MEMBERS"]) == ("Empty", "0"), state

    def new_offsets(*how):
        result = bench.tools(GROUPS, f"--group={group}", *reset[:1], *how)
        return {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in rows(result, "NEW-OFFSET")}

    def committed():
        found, _ = described(bench, group, "--offsets")
        return {int(row["PARTITION"]): int(row["CURRENT-OFFSET"]) for row in found}

    ends = committed()
    assert len(ends) == 4 and sum(ends.values()) == 40, ends
    everything = f"--topic={topic}"
    assert new_offsets(everything, "--to-earliest", "--dry-run") == dict.fromkeys(range(4), 0)
    assert committed() == ends
    assert new_offsets(f"--topic={topic}:0,1", "--to-offset=1", "--execute") == {0: 1, 1: 1}
    assert committed() == {**ends, 0: 1, 1: 1}
    back = {0: 0, 1: 0, 2: ends[2] - 1, 3: ends[3] - 1}
    assert new_offsets("--all-topics", "--shift-by=-1", "--execute") == back
    assert committed() == back
    assert new_offsets(everything, "--to-latest", "--execute") == ends == committed()
    deleted = ["--delete-offsets", f"--topic={topic}:3"]
    assert "Successful" in bench.tools(GROUPS, f"--group={group}", *deleted).out
    del ends[3]
    assert committed() == ends
    bench.tools(GROUPS, f"--group={group}", "--delete")
    assert group not in bench.tools(GROUPS, "--list").out.split()


def total_lag(bench, group):
    """Of the partitions that have a committed offset; infinite before there are four of them."""
    found, _ = described(bench, group, "--offsets")
    lags = [row["LAG"] for row in found]
    return sum(map(int, lags)) if len(lags) == 4 and "-" not in lags else float("inf")


@SUITE.case()
def consumer_protocol_static_member_that_left(bench):
    """Its place is kept: epoch -2, and the group waits for it."""
    topic, group = "tools-consumer-static", "g-consumer-static"
    bench.topics(topic, partitions=4)
    produce(bench, topic, ["1"])
    member = consumer_member(bench, topic, group, "--group-instance-id=instance-8")
    (row,), _ = described(bench, group, "--members", "--verbose")
    assert row["GROUP-INSTANCE-ID"] == "instance-8" and row["CURRENT-EPOCH"] != "-2", row
    member.terminate(60)
    warning = f"Consumer group '{group}' is rebalancing."
    wait_until(lambda: warning in described(bench, group, "--members")[1], warning, 30)
    (left,), _ = described(bench, group, "--members", "--verbose")
    assert left == {**row, "CURRENT-EPOCH": "-2"}, left
    refused(bench, group, "GroupNotEmptyException", "--delete")

"""What this broker does not have, asked for by Kafka's own clients and tools: each is told so, by
name, and at once. ARCHITECTURE.md's list of deviations has all of it."""

import tempfile

from harness import brokers, cases, jars, traffic

# An admin client that waits in vain gives up after 12 s. The other two start much before they ask.
QUICK_MS = 10_000
START_MS = {"share-consumer": 20_000, "streams-protocol": 20_000}
TOLD = {
    "share-consumer": "share group protocol",
    "streams-protocol": "STREAMS group protocol",
    "describe-quotas": "DESCRIBE_CLIENT_QUOTAS",
    "alter-quotas": "ALTER_CLIENT_QUOTAS",
    "describe-scram": "DESCRIBE_USER_SCRAM_CREDENTIALS",
    "alter-scram": "ALTER_USER_SCRAM_CREDENTIALS",
    "create-token": "CREATE_DELEGATION_TOKEN",
    "describe-tokens": "DESCRIBE_DELEGATION_TOKEN",
    "describe-share-groups": "SHARE_GROUP_DESCRIBE",
    "describe-streams-groups": "STREAMS_GROUP_DESCRIBE",
    "move-replicas": "ALTER_PARTITION_REASSIGNMENTS",
    "move-directories": "ALTER_REPLICA_LOG_DIRS",
    "quorum": "DESCRIBE_QUORUM",
    "update-features": "UPDATE_FEATURES",
    "unregister-broker": "UNREGISTER_BROKER",
    "metrics-subscription": "InvalidRequestException",
    "telemetry": "nothing was said",
}
CONFIGS = "kafka.admin.ConfigCommand"
SUITE = cases.Suite(
    "refusals",
    f"what there is not, asked for by Kafka's {jars.KAFKA} clients and tools",
    only_on=brokers.Millstream.name,
)


@SUITE.case()
def clients_are_told_what_there_is_not_and_at_once(bench):
    bench.topics("refused")
    with tempfile.TemporaryDirectory() as classes:
        command = traffic.command("Refusals", classes, bench.address, "refused")
        program = bench.program("refusals", command)
        said = program.wait(120)
    found = {}
    for line in said.splitlines():
        name, millis, told = [*line.split(" ", 2), "", ""][:3]
        if told:
            found[name] = (int(millis), told)
    assert set(found) == set(TOLD), said
    for name, words in TOLD.items():
        millis, told = found[name]
        assert words in told, f"{name} was told {told!r}"
        refused = "UnsupportedVersion" in told or name in ("metrics-subscription", "telemetry")
        assert refused, f"{name} was told {told!r}"
        limit = QUICK_MS + START_MS.get(name, 0)
        assert millis < limit, f"{name} took {millis} ms"
    noise = [line for line in program.err().splitlines() if "pushing" in line]
    assert not noise, noise
    return f"{len(found)} attempts, the longest {max(millis for millis, _ in found.values())} ms"


def refused(bench, tool, *arguments, words):
    """The tool fails, or says that it could not; with these words."""
    result = bench.tools(tool, *arguments, code=None)
    said = result.out + result.err
    assert words in said, result
    return result


@SUITE.case()
def quotas_and_scram_users_are_refused_to_kafka_configs(bench):
    user = ["--entity-type", "users", "--entity-name", "orders"]
    for change in ("producer_byte_rate=1000", "SCRAM-SHA-512=[password=secret]"):
        words = "_CLIENT_QUOTAS" if "rate" in change else "_USER_SCRAM_CREDENTIALS"
        result = refused(bench, CONFIGS, *user, "--alter", "--add-config", change, words=words)
        assert result.code == 1, result
    result = refused(
        bench, CONFIGS, *user, "--describe", words="does not support DESCRIBE_CLIENT_QUOTAS"
    )
    assert result.code == 1, result
    result = refused(
        bench,
        CONFIGS,
        "--entity-type=clients",
        "--entity-default",
        "--describe",
        words="does not support DESCRIBE_CLIENT_QUOTAS",
    )
    assert result.code == 1, result


@SUITE.case()
def access_rules_are_refused_as_by_a_kafka_without_an_authorizer(bench):
    rule = ["--allow-principal", "User:orders", "--operation", "Read", "--topic", "t"]
    for command in (["--add", *rule], ["--remove", "--force", *rule], ["--list"]):
        refused(bench, "AclCommand", *command, words="SecurityDisabledException")

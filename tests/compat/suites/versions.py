"""Kafka's Java client in every version of every API that it and a broker have in common.

A proxy shows it a broker that is one version older each time (harness/lowering); what it asks, and
what it must get, is in golden/Traffic.java. What was spoken is held against what the broker offers.
"""

import collections
import tempfile

from harness import cases, jars, traffic
from harness.brokers import free_port
from harness.lowering import API_VERSIONS, NAMES, Proxy, Running, View, ranges

# What brokers tell their clients, as their address.
OUTSIDE = free_port()
# As many as Fetch has versions, and one without features.
VIEWS = [*map(str, range(15)), "0f"]
PATIENCE_S = 240
# What this client does not do at a broker of old versions, and from which level on. With all of it
# Apache Kafka agrees.
UNSUPPORTED = {
    "config-resources": 1, "delete-id": 1, "describe-fenced": 1, "list-by-pattern": 1,
    "list-offsets-7": 1,
    "consume-protocol": 2, "describe-documented": 2, "describe-id": 2, "describe-no-id": 2,
    "describe-protocol": 2, "describe-rights-protocol": 2, "list-long": 2, "list-stable": 2,
    "member-protocol": 2,
    "consume-static": 3, "list-offsets-6": 3, "remove-members": 3,
    "create-default": 4, "describe-rights-classic": 4, "list-offsets-5": 4,
    "list-offsets-4": 5,
    "transaction": 6, "open-transaction": 6, "stable-offset": 6, "list-transactions": 6,
    "list-ongoing": 6, "describe-transactions": 6, "describe-no-transaction": 6,
    "describe-producers": 6, "fence": 6, "fenced": 6, "taken-over": 6,
    "produce-zstd": 7,
    "group-offsets": 9,
    "consume-committed": 10, "delete-records": 10, "list-offsets-0": 10, "list-offsets-1": 10,
    "list-offsets-2": 10, "list-offsets-3": 10, "stable-again": 10,
}  # fmt: skip
# Versions that neither speaks, whatever a broker offers: what is older than they are, what only
# brokers send, and what needs a listener that asks for a password.
UNSPOKEN = {
    "Produce": {0, 1, 2},
    "Metadata": {0},
    "OffsetForLeaderEpoch": {2},
    "AddPartitionsToTxn": {4, 5},
    "SaslHandshake": {0, 1},
    "SaslAuthenticate": {0, 1, 2},
}


class Prepared:
    """The classes of the traffic, and what became of it when it ran."""

    def __init__(self):
        jars.fetch()
        self.classes = tempfile.TemporaryDirectory(prefix="compat-traffic-")
        self.steps = collections.defaultdict(dict)
        self.offered, self.spoken = {}, set()

    def see(self, key, version, direction, _client, frame):
        if direction == "response":
            self.spoken.add((key, version))
            if key == API_VERSIONS and version >= 3 and version < 99:
                self.offered = {line[1]: line[2:] for line in ranges(frame, 4, version)}

    def run(self, bench, main="Traffic", views=VIEWS):
        """The program in all its views, once for all cases; what became of its steps, by view."""
        if not self.steps[main]:
            target = int(bench.address.rsplit(":", 1)[1])
            running = Running(Proxy(OUTSIDE, target, view_of, self.see))
            try:
                command = traffic.command(main, self.classes.name, f"127.0.0.1:{OUTSIDE}", *views)
                said = bench.program(main, command).wait(PATIENCE_S)
            finally:
                running.close()
            for line in said.splitlines():
                view, step, verdict = [*line.split(" ", 2), "", ""][:3]
                if view in views and verdict:
                    self.steps[main].setdefault(view, {})[step] = verdict
        return self.steps[main]


def view_of(client):
    """Of a client of the traffic; nobody else is shown anything older."""
    _, at, view = client.rpartition("@")
    return View(view) if at else None


SUITE = cases.Suite(
    "versions",
    f"Kafka's {jars.KAFKA} client in all versions that it has, and what it gets",
    prepare=Prepared,
    settings=[f"advertised.listeners=PLAINTEXT://127.0.0.1:{OUTSIDE}"],
)


@SUITE.case()
def every_step_of_every_view_is_answered_right(bench):
    steps, wrong = bench.prepared.run(bench), []
    assert set(steps) == set(VIEWS), set(steps)
    for view in VIEWS:
        level = int(view.rstrip("f"))
        for step in {**steps["0"], **steps[view]}:
            # What is left out within another step is not supported, either.
            verdict = steps[view].get(step, "unsupported")
            wanted = "unsupported" if level >= UNSUPPORTED.get(step, len(VIEWS)) else "ok"
            if verdict != wanted:
                wrong.append(f"{view} {step}: {verdict}, not {wanted}")
    assert not wrong, "\n".join(wrong)
    return f"{sum(map(len, steps.values()))} steps in {len(VIEWS)} views"


@SUITE.case()
def an_older_client_replaces_settings_and_has_its_transactions(bench):
    """AlterConfigs in every version, which the release's client has no more."""
    views = ("0", "1", "2")
    steps = bench.prepared.run(bench, "Older", views)
    found = {verdict for view in views for verdict in steps[view].values()}
    assert found == {"ok"} and len(steps["0"]) == 4, steps


@SUITE.case()
def every_version_that_is_offered_is_spoken(bench):
    bench.prepared.run(bench)
    an_older_client_replaces_settings_and_has_its_transactions(bench)
    offered, spoken, missing = bench.prepared.offered, bench.prepared.spoken, []
    assert len(offered) > 40, offered
    for key, name in NAMES.items():
        oldest, newest = offered.get(key, (0, -1))
        wanted = set(range(oldest, newest + 1)) - UNSPOKEN.get(name, set())
        missing += [f"{name} {each}" for each in sorted(wanted) if (key, each) not in spoken]
    assert not missing, f"not spoken: {missing}"
    heard = [pair for pair in spoken if pair[1] <= offered.get(pair[0], (0, -1))[1]]
    return f"{len(heard)} versions of {len({key for key, _ in heard})} APIs"

"""A Kafka of several brokers and a controller, each a process of its own on the loopback address.

Every partition is on every broker, and every broker stands in a rack of its own (`rack-1` …), by
which leaders send consumers that name one to the replica there.
"""

import os
import re
import socket
import subprocess
import time

from harness import brokers, jmx
from harness.processes import wait_until

# How long a controller waits for a broker that says nothing.
SESSION_S = 6
SESSION = f"broker.session.timeout.ms={SESSION_S * 1000}"
QUICK = ("-XX:-UseG1GC", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def node(folder, port, name, role, count, more=()):
    """One of a cluster that begins at this port; the controller listens right above."""
    folder = os.path.join(folder, name)
    os.makedirs(folder, exist_ok=True)
    is_first = role.node == 1
    found = brokers.Kafka(
        port=port if is_first or role == brokers.CONTROLLER else port + role.node,
        folder=folder,
        heap="128m" if role == brokers.CONTROLLER else os.environ.get("KAFKA_HEAP", "384m"),
        more=(SESSION, *brokers.AS_OURS, *replicated(count, role), *more),
    )
    found.role, found.controller_port = role, port + 1
    return found


def replicated(count, role):
    """Every partition on every broker; one of three may be away, and each has its rack."""
    if count == 1:
        return ()
    racks = (f"broker.rack=rack-{role.node}", f"replica.selector.class={SELECTOR}")
    named = ("default", "offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    least = ("min.insync.replicas", "transaction.state.log.min.isr")
    factors = [f"{name}.replication.factor={count}" for name in named]
    return (*racks, *factors, *(f"{name}={count // 2 + 1}" for name in least))


def cluster_of(controller):
    """The id of the cluster that a controller belongs to, when it has its data."""
    try:
        with open(os.path.join(controller, "data", "meta.properties"), encoding="utf-8") as text:
            return re.search("^cluster.id=(.*)$", text.read(), re.MULTILINE)[1]
    except (FileNotFoundError, TypeError):
        return None


def fenced(controller, number, since):
    """Whether the controller expects nothing of the broker that ran before, if any did."""
    with open(os.path.join(controller, "log"), encoding="utf-8", errors="replace") as text:
        said = re.findall(
            rf"Replayed (?:initial )?(RegisterBrokerRecord) .*broker {number}:"
            rf"|Replayed BrokerRegistrationChangeRecord .*broker {number}: .*[( ]fenced=(-?1),",
            text.read(),
        )
    if not said:
        return True
    registered, change = said[-1]
    # One that was killed before it was let in: its last heartbeat may still let it in.
    return change == "1" or (registered and time.monotonic() - since > SESSION_S)


class Cluster(brokers.Broker):
    """Three brokers, and the controller, which no case ends."""

    name = "kafka"
    COUNT = 3

    def __init__(self, more=()):
        super().__init__()
        # Each has a number of its own.
        self.more = [setting for setting in more if not setting.startswith("node.id=")]
        self.port = free_ports()
        self.controller = node(
            self.folder, self.port, "controller", brokers.CONTROLLER, self.COUNT, self.more
        )
        self.brokers = {number: self.broker(number) for number in range(1, self.COUNT + 1)}
        self.jmx_ports = {number: brokers.free_port() for number in self.brokers}
        self.address = ",".join(broker.address for broker in self.brokers.values())

    def broker(self, number):
        role = brokers.BROKER._replace(node=number)
        return node(self.folder, self.port, f"broker-{number}", role, self.COUNT, self.more)

    def start(self):
        self.controller.options = (*QUICK, "-Dcompat.log.level=INFO")
        self.run(self.controller)
        controller = self.controller.folder
        wait_until(lambda: cluster_of(controller), "the controller to have its data", 120)
        for number, broker in self.brokers.items():
            broker.cluster = cluster_of(controller)
            broker.options = (*QUICK, *jmx.options(self.jmx_ports[number]))
            self.run(broker)
        for broker in self.brokers.values():
            wait_until(broker.answers, f"{broker.address} to answer", 180, broker.last_words)
        return self

    def start_again(self, number):
        """A broker that was killed, once the controller has fenced it."""
        broker, since = self.brokers[number], time.monotonic()
        controller = self.controller.folder
        wait_until(lambda: fenced(controller, number, since), "it to be fenced", 120)
        self.run(broker)
        wait_until(broker.answers, f"{broker.address} to answer", 180, broker.last_words)

    @staticmethod
    def run(one):
        one.process = subprocess.Popen(one.command(), stdout=one.log, stderr=one.log)

    def bytes_out(self, number, topic):
        """Bytes of records that a broker has sent to consumers of a topic since its start."""
        beans = "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,*"
        counts = jmx.counts(self.jmx_ports[number], beans, "Count")
        return sum(value for bean, _, value in counts if bean.endswith(f"topic={topic}"))

    def stop(self):
        codes = [one.stop() for one in (*self.brokers.values(), self.controller)]
        # Java ends with 143 when it was asked to.
        return max(0 if code == 143 else code for code in codes)

    def close(self):
        try:
            return self.stop()
        finally:
            for one in (*self.brokers.values(), self.controller):
                one.log.close()
            self.log.close()
            self.directory.cleanup()

    def last_words(self, lines=40):
        return "".join(
            f"{one.log_path}:\n{one.last_words(lines)}"
            for one in (self.controller, *self.brokers.values())
        )


def free_ports():
    """The first of as many ports as the nodes of a cluster take."""
    for _ in range(100):
        port = brokers.free_port()
        if all(is_free(port + above) for above in range(1, Cluster.COUNT + 1)):
            return port
    raise RuntimeError("no free ports")


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

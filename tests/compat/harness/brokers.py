"""The two brokers that the suites run against: `millstream broker` and Apache Kafka.

Each is a process of its own in a temporary directory on a free port of the loopback address; it
keeps the port over a restart, and is ended by its id.
"""

import base64
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
import typing
import uuid

from harness import jars
from harness.processes import wait_until

STOP_S = 60


class Broker:
    """What both have in common. `name` is the column of the table."""

    name = ""

    def __init__(self, folder=None):
        self.directory = None
        if folder is None:
            self.directory = tempfile.TemporaryDirectory(prefix=f"compat-{self.name}-")
            folder = self.directory.name
        self.folder, self.data = folder, os.path.join(folder, "data")
        self.log_path = os.path.join(folder, "log")
        self.log = open(self.log_path, "ab")
        self.address, self.process = None, None

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(STOP_S)

    def stop(self):
        """Answers the exit code of a clean stop."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode

    def close(self):
        try:
            return self.stop()
        finally:
            self.log.close()
            if self.directory is not None:
                self.directory.cleanup()

    def last_words(self, lines=40):
        with open(self.log_path, encoding="utf-8", errors="replace") as text:
            return "".join(text.readlines()[-lines:])


class Millstream(Broker):
    """Ours."""

    name = "millstream"

    def __init__(self, binary, *arguments, port=None):
        super().__init__()
        self.binary, self.arguments, self.listen = binary, arguments, f"127.0.0.1:{port or 0}"

    def start(self):
        command = [self.binary, "broker", "--data-dir", self.data, "--listen", self.listen]
        self.process = subprocess.Popen(
            [*command, *self.arguments], stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        line = self.process.stdout.readline().strip()
        if not line.startswith("listening on "):
            raise RuntimeError(f"the broker did not start: {line!r}\n{self.last_words()}")
        self.address = self.listen = line.removeprefix("listening on ")
        return self


class Role(typing.NamedTuple):
    """What a node of Kafka is, in the words of its settings and of the command that formats."""

    roles: str
    node: int
    listeners: str
    format: str


CLIENTS = "PLAINTEXT://127.0.0.1:@PORT@"
QUORUM = "CONTROLLER://127.0.0.1:@CONTROLLER_PORT@"
BOTH = Role("broker,controller", 1, f"{CLIENTS},{QUORUM}", "--standalone")
BROKER = Role("broker", 1, CLIENTS, "--no-initial-controllers")
CONTROLLER = Role("controller", 100, QUORUM, "--standalone")


class Kafka(Broker):
    """The reference. Stopping it keeps the data; so a start after a stop goes on with them."""

    name = "kafka"

    def __init__(self, port=None, heap="512m", folder=None, more=()):
        super().__init__(folder)
        self.heap, self.port, self.more = heap, port or free_port(), more
        # For a kind of Kafka of its own: of the JVM, and of the command that formats.
        self.options, self.format_options = (), ()
        self.role, self.cluster = BOTH, None
        self.controller_port = port + 1 if port else free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.settings = os.path.join(self.folder, "server.properties")

    def start(self):
        self.process = subprocess.Popen(self.command(), stdout=self.log, stderr=self.log)
        # Its listeners open before it serves; an answer to ApiVersions comes when it does.
        wait_until(self.answers, "Kafka to answer", 120, self.last_words)
        return self

    def command(self):
        """What to run, over data that are there, or are made ready now."""
        jars.fetch()
        if not os.path.exists(self.data):
            self.format()
        options = (*SERVER_OPTIONS, *self.options)
        return jars.java("kafka.Kafka", self.settings, heap=self.heap, options=options)

    def format(self):
        with open(
            os.path.join(jars.COMPAT, "kafka", "server.properties"), encoding="utf-8"
        ) as text:
            content = text.read()
        filled = {
            "ROLES": self.role.roles,
            "NODE": self.role.node,
            "LISTENERS": self.role.listeners,
            "PORT": self.port,
            "CONTROLLER_PORT": self.controller_port,
            "DATA": self.data,
        }
        for name, value in filled.items():
            content = content.replace(f"@{name}@", str(value))
        content += "".join(f"\n{setting}" for setting in self.more) + "\n"
        with open(self.settings, "w", encoding="utf-8") as text:
            text.write(content)
        # As StorageTool's random-uuid makes them, without a JVM; one that begins with a dash would be
        # taken for an option, so the first bits are zero.
        random_id = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        cluster = self.cluster or random_id
        arguments = ["format", self.role.format, "-t", cluster, "-c", self.settings]
        command = jars.java("kafka.tools.StorageTool", *arguments, *self.format_options)
        subprocess.run(command, stdout=self.log, stderr=self.log, check=True)

    def answers(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"Kafka ended with {self.process.returncode}\n{self.last_words()}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(5)
                # ApiVersions v0, correlation id 1, no client id.
                connection.sendall(bytes.fromhex("0000000a0012000000000001ffff"))
                return len(connection.recv(8)) > 0
        except OSError:
            time.sleep(0.2)
            return False


# What our own tests expect of a broker that they did not start: topics that create themselves with
# as many partitions as ours, and transactions that time out as soon.
AS_OURS = (
    "num.partitions=4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
)
SERVER_OPTIONS = ("-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")


def free_port():
    """A port that nothing listens on, below the range that outgoing connections are given."""
    for _ in range(100):
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")

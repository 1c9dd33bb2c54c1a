"""The client programs of the matrix: where their sources are, how they are made and started."""

import os
import shutil
import subprocess
import venv

from harness import crates, jars

SOURCES = os.path.join(jars.COMPAT, "clients")


class Client:
    """`prepare` makes it ready; `command` is how it is started. `gaps`: case -> reason.

    `cannot`: what of the standard records its interface refuses to write.
    """

    def __init__(self, name, what, prepare, words, gaps=None, cannot=()):
        self.name, self.what, self.words, self.gaps = name, what, words, gaps or {}
        self.make, self.cannot = prepare, cannot

    def prepare(self):
        # The Java client reads what the others wrote, and the tools create the topics.
        jars.fetch()
        if self.make:
            self.make()

    def command(self, address, command, *arguments):
        words = self.words()
        return [*words, address, command, *[str(argument) for argument in arguments]]


def folder(name):
    """Where what is made of a client's sources is kept: under the user's cache."""
    return os.path.join(jars.CACHE, "clients", name)


def copy_sources(name, sources=None):
    """The sources in their folder below the cache, so that nothing is left beside the originals."""
    target = folder(name)
    os.makedirs(target, exist_ok=True)
    source = os.path.join(SOURCES, sources or name)
    for entry in os.listdir(source):
        shutil.copy(os.path.join(source, entry), os.path.join(target, entry))
    return target


def make_go(name):
    def make():
        target = copy_sources(name)
        subprocess.run(["go", "build", "-o", "client", "."], cwd=target, check=True)

    return make


def make_node(name):
    def make():
        target = copy_sources(name)
        quiet = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        if not os.path.exists(os.path.join(target, "node_modules")):
            subprocess.run(["npm", "install", *quiet], cwd=target, check=True)

    return make


def make_cargo(name):
    def make():
        target = copy_sources(name)
        crates.run("build", "--quiet", "--locked", folder=target)
        shutil.copy(os.path.join(crates.TARGET, "debug", "client"), os.path.join(target, "client"))

    return make


def make_ours():
    """The program that shows our client: of this source tree, so it is built like the broker."""
    command = ["cargo", "build", "--quiet", "-p", "tests", "--bin", OURS]
    subprocess.run(command, cwd=jars.ROOT, check=True)


def make_python(name, sources=None, requirements="requirements.txt"):
    def make():
        target = copy_sources(name, sources)
        chosen = os.path.join(target, requirements)
        with open(chosen, encoding="utf-8") as text:
            wanted = text.read()
        stamp = os.path.join(target, "installed")
        if os.path.exists(stamp):
            with open(stamp, encoding="utf-8") as text:
                if text.read() == wanted:
                    return
        environment = os.path.join(target, "environment")
        venv.create(environment, clear=True, with_pip=True)
        pip = [os.path.join(environment, "bin", "pip"), "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", "-r", chosen], check=True)
        shutil.copy(chosen, stamp)

    return make


def built(name, *path):
    return lambda: [os.path.join(folder(name), *path)]


def python(name):
    program = folder(name)
    interpreter = os.path.join(program, "environment", "bin", "python")
    return lambda: [interpreter, os.path.join(program, "client.py")]


def node(name):
    return lambda: ["node", os.path.join(folder(name), "client.js")]


JAVA = Client(
    "java",
    f"kafka-clients {jars.KAFKA}, Apache Kafka's own client",
    None,
    lambda: jars.java("JavaClient"),
)
OURS = "compat_client"
ALL = [
    JAVA,
    Client(
        "millstream",
        "our own client, tests/src/bin/compat_client",
        make_ours,
        lambda: [jars.built(OURS)],
    ),
    Client(
        "rdkafka",
        "librdkafka by way of rdkafka for Rust, clients/rdkafka/Cargo.toml",
        make_cargo("rdkafka"),
        built("rdkafka", "client"),
    ),
    Client(
        "franz-go",
        "github.com/twmb/franz-go, by the version in clients/franz-go/go.mod",
        make_go("franz-go"),
        built("franz-go", "client"),
    ),
    Client(
        "sarama",
        "github.com/IBM/sarama, by the version in clients/sarama/go.mod",
        make_go("sarama"),
        built("sarama", "client"),
    ),
    Client(
        "confluent-kafka",
        "librdkafka by way of confluent-kafka for Python, clients/confluent-kafka/requirements.txt",
        make_python("confluent-kafka"),
        python("confluent-kafka"),
    ),
    Client(
        "kafka-python",
        "kafka-python, clients/kafka-python/requirements.txt",
        make_python("kafka-python"),
        python("kafka-python"),
        cannot=("null header", "neither key nor value"),
    ),
    Client(
        "kafkajs",
        "KafkaJS, clients/kafkajs/package.json",
        make_node("kafkajs"),
        node("kafkajs"),
        cannot=("null header",),
    ),
]
# Before 2.11.1 librdkafka looks at the versions of Produce that a broker announces before it
# compresses; distributions still have such a one.
OLDER = Client(
    "confluent-kafka-older",
    "librdkafka before 2.11.1, clients/confluent-kafka/requirements-older.txt",
    make_python("confluent-kafka-older", "confluent-kafka", "requirements-older.txt"),
    python("confluent-kafka-older"),
)
MATRIX = [*ALL, OLDER]
NAMES = {client.name for client in MATRIX}
# Which client writes what all others have to read.
LIBRDKAFKA = next(client for client in ALL if client.name == "confluent-kafka")

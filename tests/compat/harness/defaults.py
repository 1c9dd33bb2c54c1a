"""What each client does where nothing is set: in its own words, under Kafka's names.

`DEFAULTS.md` has the table; `run --defaults` prints it anew from the clients.
"""

import os
import re
import subprocess

from harness import clients, jars

TABLE = os.path.join(jars.COMPAT, "DEFAULTS.md")
ABSENT = "–"

# Kafka's name -> the client's own. A name that is left out is the same, or absent.
LIBRDKAFKA = {
    "acks": "request.required.acks",
    "linger.ms": "queue.buffering.max.ms",
    "buffer.memory": "queue.buffering.max.kbytes",
    "max.request.size": "message.max.bytes",
    "compression.type": "compression.codec",
    "retries": "message.send.max.retries",
    "delivery.timeout.ms": "message.timeout.ms",
    "partitioner.class": "partitioner",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
}
FRANZ_GO = {
    "acks": "RequiredAcks",
    "enable.idempotence": "DisableIdempotentWrite",
    "max.in.flight.requests.per.connection": "MaxProduceRequestsInflightPerBroker",
    "linger.ms": "ProducerLinger",
    "batch.size": "ProducerBatchMaxBytes",
    "buffer.memory": "MaxBufferedBytes",
    "compression.type": "ProducerBatchCompression",
    "retries": "RecordRetries",
    "delivery.timeout.ms": "RecordDeliveryTimeout",
    "request.timeout.ms": "ProduceRequestTimeout",
    "transaction.timeout.ms": "TransactionTimeout",
    "allow.auto.create.topics": "AllowAutoTopicCreation",
    "isolation.level": "FetchIsolationLevel",
    "enable.auto.commit": "DisableAutoCommit",
    "auto.commit.interval.ms": "AutoCommitInterval",
    "auto.offset.reset": "ConsumeResetOffset",
    "session.timeout.ms": "SessionTimeout",
    "heartbeat.interval.ms": "HeartbeatInterval",
    "fetch.min.bytes": "FetchMinBytes",
    "fetch.max.bytes": "FetchMaxBytes",
    "fetch.max.wait.ms": "FetchMaxWait",
    "max.partition.fetch.bytes": "FetchMaxPartitionBytes",
    "partition.assignment.strategy": "Balancers",
    "check.crcs": "DisableFetchCRCValidation",
}
SARAMA = {
    "acks": "Producer.RequiredAcks",
    "enable.idempotence": "Producer.Idempotent",
    "max.in.flight.requests.per.connection": "Net.MaxOpenRequests",
    "linger.ms": "Producer.Flush.Frequency",
    "batch.size": "Producer.Flush.Bytes",
    "max.request.size": "Producer.MaxMessageBytes",
    "compression.type": "Producer.Compression",
    "retries": "Producer.Retry.Max",
    "request.timeout.ms": "Producer.Timeout",
    "retry.backoff.ms": "Producer.Retry.Backoff",
    "transaction.timeout.ms": "Producer.Transaction.Timeout",
    "allow.auto.create.topics": "Metadata.AllowAutoTopicCreation",
    "isolation.level": "Consumer.IsolationLevel",
    "enable.auto.commit": "Consumer.Offsets.AutoCommit.Enable",
    "auto.commit.interval.ms": "Consumer.Offsets.AutoCommit.Interval",
    "auto.offset.reset": "Consumer.Offsets.Initial",
    "session.timeout.ms": "Consumer.Group.Session.Timeout",
    "heartbeat.interval.ms": "Consumer.Group.Heartbeat.Interval",
    "fetch.min.bytes": "Consumer.Fetch.Min",
    "fetch.max.bytes": "Consumer.Fetch.Max",
    "fetch.max.wait.ms": "Consumer.MaxWaitTime",
    "max.partition.fetch.bytes": "Consumer.Fetch.Default",
}
KAFKAJS = {
    "acks": "acks",
    "enable.idempotence": "idempotent",
    "max.in.flight.requests.per.connection": "maxInFlightRequests",
    "retries": "retries",
    "request.timeout.ms": "requestTimeout",
    "retry.backoff.ms": "initialRetryTime",
    "transaction.timeout.ms": "transactionTimeout",
    "partitioner.class": "createPartitioner",
    "allow.auto.create.topics": "allowAutoTopicCreation",
    "isolation.level": "isolationLevel",
    "enable.auto.commit": "autoCommit",
    "auto.commit.interval.ms": "autoCommitInterval",
    "session.timeout.ms": "sessionTimeout",
    "heartbeat.interval.ms": "heartbeatInterval",
    "fetch.min.bytes": "minBytes",
    "fetch.max.bytes": "maxBytes",
    "fetch.max.wait.ms": "maxWaitTimeInMs",
    "max.partition.fetch.bytes": "maxBytesPerPartition",
    "partition.assignment.strategy": "partitionAssigners",
}
OWN_NAMES = {
    "rdkafka": LIBRDKAFKA,
    "confluent-kafka": LIBRDKAFKA,
    "franz-go": FRANZ_GO,
    "sarama": SARAMA,
    "kafkajs": KAFKAJS,
}
PRODUCER = (
    "acks",
    "enable.idempotence",
    "max.in.flight.requests.per.connection",
    "linger.ms",
    "batch.size",
    "buffer.memory",
    "compression.type",
    "max.request.size",
    "retries",
    "delivery.timeout.ms",
    "request.timeout.ms",
    "retry.backoff.ms",
    "max.block.ms",
    "transaction.timeout.ms",
    "partitioner.class",
    "allow.auto.create.topics",
)
CONSUMER = (
    "isolation.level",
    "enable.auto.commit",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "fetch.min.bytes",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "max.partition.fetch.bytes",
    "partition.assignment.strategy",
    "check.crcs",
    "default.api.timeout.ms",
)
SETTINGS = PRODUCER + CONSUMER


def say(client, command):
    """The lines that a client prints; it has to be prepared."""
    words = client.command("127.0.0.1:1", command)
    said = subprocess.run(
        words, stdout=subprocess.PIPE, text=True, encoding="utf-8", timeout=60, check=True
    )
    return said.stdout.splitlines()


def report(client):
    """Kafka's name -> what the client says, with its own name for it where that is another."""
    own = {}
    for line in say(client, "defaults"):
        name, equals, value = line.partition("=")
        # librdkafka has some names twice: what is set of a client counts before a topic's.
        if equals:
            own.setdefault(name, value)
    found = {}
    for name in SETTINGS:
        other = OWN_NAMES.get(client.name, {}).get(name, name)
        if client.name == "kafka-python":
            value = own.get(name.replace(".", "_"))
        else:
            value = own.get(other)
        if value is None:
            found[name] = ABSENT
        else:
            # Of a class of Java the last word says what there is to say.
            value = re.sub(r"class [\w.]+\.(\w+)", r"\1", value)
            found[name] = value if other == name else f"{value} ({other})"
    return found


def rows():
    """The table as lists of cells, the head first."""
    columns = {client.name: report(client) for client in clients.ALL}
    yield ["", *columns]
    yield ["version", *[" ".join(say(client, "version")) for client in clients.ALL]]
    for name in SETTINGS:
        yield [name, *[column[name].replace("|", "/") for column in columns.values()]]


def recorded():
    """The table of the document, as `rows` gives it."""
    with open(TABLE, encoding="utf-8") as text:
        lines = [line.strip() for line in text if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    (head,) = [n for n, cells in enumerate(table) if "millstream" in cells]
    return [["", *table[head][1:]], *table[head + 1 : head + 2 + len(SETTINGS)]]


def print_table():
    for client in clients.ALL:
        client.prepare()
    for n, cells in enumerate(rows()):
        print("| " + " | ".join(cell or "setting" for cell in cells) + " |", flush=True)
        if n == 0:
            print("|---" * len(cells) + "|")

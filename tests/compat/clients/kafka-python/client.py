"""kafka-python as one of the clients of the matrix (suites/clients.py)."""

import signal
import sys

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidProducerEpochError, ProducerFencedError

BOOTSTRAP = sys.argv[1]
FIRST_TIMESTAMP, RECORDS = 1_700_000_000_000, 200


def standard():
    shapes = [(b"key", b"value"), (None, b"no key"), (b"", b""), (b"tombstone", None)]
    # It refuses a record with neither key nor value, and below a header without a value.
    shapes += [(None, b""), (b"\xff", b"\0")]
    for n in range(RECORDS):
        key, value = shapes[n] if n < len(shapes) else (b"k%d" % n, b"compressible %d " % n * 20)
        headers = [("h", b"1"), ("h", b"2"), ("empty", b"")] if n == 0 else []
        yield key, value, headers, FIRST_TIMESTAMP + n


def producer(**more):
    return KafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", **more)


def produce(topic, codec):
    client = producer(compression_type=None if codec == "none" else codec, linger_ms=20)
    sent = [
        client.send(topic, value, key, headers, partition=0, timestamp_ms=timestamp)
        for key, value, headers, timestamp in standard()
    ]
    offsets = [future.get(30).offset for future in sent]
    assert offsets == list(range(RECORDS)), offsets
    print("done", flush=True)


def shown(value):
    return "-" if value is None else "x" + value.hex()


def dump(topic, partitions):
    client = KafkaConsumer(
        bootstrap_servers=BOOTSTRAP, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    every = [TopicPartition(topic, p) for p in range(int(partitions))]
    client.assign(every)
    ends = client.end_offsets(every)
    while any(client.position(p) < ends[p] for p in every):
        for records in client.poll(200).values():
            for r in records:
                fields = [r.partition, r.offset, r.timestamp, shown(r.key), shown(r.value)]
                fields += [f"{name}={shown(value)}" for name, value in r.headers]
                print(*fields)
    client.close()
    print("done", flush=True)


class Stop(Exception):
    pass


def group(topic, name):
    def stop(*_):
        raise Stop

    signal.signal(signal.SIGTERM, stop)
    client = KafkaConsumer(
        bootstrap_servers=BOOTSTRAP,
        group_id=name,
        auto_offset_reset="earliest",
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
    )

    class Listener(kafka.ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked):
            pass

        def on_partitions_assigned(self, assigned):
            print("assigned", len(client.assignment()), flush=True)

    client.subscribe([topic], listener=Listener())
    try:
        while True:
            for records in client.poll(200).values():
                for record in records:
                    print("record", record.partition, record.offset, flush=True)
    except Stop:
        client.close()


def transactions(topic, identifier):
    client = producer(transactional_id=identifier)
    client.init_transactions()
    for name in (b"first", b"aborted", b"second"):
        client.begin_transaction()
        for n in range(5):
            client.send(topic, b"%s%d" % (name, n), partition=0)
        if name == b"aborted":
            client.flush()
            client.abort_transaction()
        else:
            client.commit_transaction()
    print("done", flush=True)
    client.close()


def fence(topic, identifier):
    first, second = producer(transactional_id=identifier), producer(transactional_id=identifier)
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"lost", partition=0).get(30)
    second.init_transactions()
    second.begin_transaction()
    second.send(topic, b"kept", partition=0)
    second.commit_transaction()
    try:
        first.commit_transaction()
    except (ProducerFencedError, InvalidProducerEpochError):
        print("fenced", flush=True)
    first.close(0)
    second.close(5)


def defaults():
    """Where both have a name, the producer's: the rest is the consumer's alone."""
    for name, value in {**KafkaConsumer.DEFAULT_CONFIG, **KafkaProducer.DEFAULT_CONFIG}.items():
        if isinstance(value, tuple):
            value = ", ".join(one.name for one in value if hasattr(one, "name"))
        print(f"{name}={value}")


def version():
    print(kafka.__version__)


if __name__ == "__main__":
    globals()[sys.argv[2]](*sys.argv[3:])

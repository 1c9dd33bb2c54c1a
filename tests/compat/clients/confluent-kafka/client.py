"""librdkafka by way of confluent-kafka, as one of the clients of the matrix (suites/clients.py)."""

import ctypes
import signal
import sys

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

BOOTSTRAP = sys.argv[1]
FIRST_TIMESTAMP, RECORDS = 1_700_000_000_000, 200


def standard():
    shapes = [(b"key", b"value"), (None, b"no key"), (b"", b""), (b"tombstone", None)]
    shapes += [(None, None), (b"\xff", b"\0")]
    for n in range(RECORDS):
        key, value = shapes[n] if n < len(shapes) else (b"k%d" % n, b"compressible %d " % n * 20)
        headers = [("h", b"1"), ("h", b"2"), ("empty", b""), ("null", None)] if n == 0 else []
        yield key, value, headers, FIRST_TIMESTAMP + n


def producer(**more):
    more = {name.replace("_", "."): value for name, value in more.items()}
    return Producer({"bootstrap.servers": BOOTSTRAP, **more})


def consumer(**more):
    more = {name.replace("_", "."): value for name, value in more.items()}
    settings = {"group.id": "none", "auto.offset.reset": "earliest"}
    return Consumer({"bootstrap.servers": BOOTSTRAP, **settings, **more})


def produce(topic, codec, partition=0):
    offsets = []

    def acknowledged(error, message):
        if error is not None:
            raise KafkaException(error)
        offsets.append(message.offset())

    client = producer(compression_type=codec, linger_ms=20)
    for key, value, headers, timestamp in standard():
        more = {"partition": partition, "timestamp": timestamp, "headers": headers or None}
        client.produce(topic, value, key, on_delivery=acknowledged, **more)
    client.flush(30)
    assert offsets == list(range(RECORDS)), offsets
    print("done", flush=True)


def produce_codecs(topic):
    """Each codec in a partition of its own, in the order of suites/clients.py."""
    for partition, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        produce(topic, codec, partition)


def shown(value):
    return "-" if value is None else "x" + value.hex()


def dump(topic, partitions):
    client = consumer(isolation_level="read_committed", enable_partition_eof=True)
    client.assign([TopicPartition(topic, p, 0) for p in range(int(partitions))])
    at_end = set()
    while len(at_end) < int(partitions):
        message = client.poll(1)
        if message is None:
            continue
        if message.error() is None:
            fields = [message.partition(), message.offset(), message.timestamp()[1]]
            fields += [shown(message.key()), shown(message.value())]
            fields += [f"{name}={shown(value)}" for name, value in message.headers() or []]
            print(*fields)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
        else:
            raise KafkaException(message.error())
    client.close()
    print("done", flush=True)


class Stop(Exception):
    pass


def group(topic, name):
    def stop(*_):
        raise Stop

    signal.signal(signal.SIGTERM, stop)
    client = consumer(group_id=name, session_timeout_ms=6000, heartbeat_interval_ms=500)

    def assigned(_, partitions):
        print("assigned", len(partitions), flush=True)

    client.subscribe([topic], on_assign=assigned)
    try:
        while True:
            message = client.poll(0.2)
            if message is not None and message.error() is None:
                print("record", message.partition(), message.offset(), flush=True)
    except Stop:
        client.close()


def transactions(topic, identifier):
    client = producer(transactional_id=identifier)
    client.init_transactions(30)
    for name in (b"first", b"aborted", b"second"):
        client.begin_transaction()
        for n in range(5):
            client.produce(topic, b"%s%d" % (name, n), partition=0)
        if name == b"aborted":
            client.flush(30)
            client.abort_transaction(30)
        else:
            client.commit_transaction(30)
    print("done", flush=True)


def fence(topic, identifier):
    first, second = producer(transactional_id=identifier), producer(transactional_id=identifier)
    first.init_transactions(30)
    first.begin_transaction()
    first.produce(topic, b"lost", partition=0)
    first.flush(30)
    second.init_transactions(30)
    second.begin_transaction()
    second.produce(topic, b"kept", partition=0)
    second.commit_transaction(30)
    try:
        first.commit_transaction(30)
    except KafkaException as error:
        if error.args[0].code() == KafkaError._FENCED:
            print("fenced", flush=True)


def defaults():
    """Out of the library inside: its own names, settings of topics among them."""
    with open("/proc/self/maps", encoding="utf-8") as text:
        path = next(line.split()[-1] for line in text if "librdkafka" in line)
    library = ctypes.CDLL(path)
    for kind in ("rd_kafka_conf", "rd_kafka_topic_conf"):
        new, dump = getattr(library, f"{kind}_new"), getattr(library, f"{kind}_dump")
        new.restype, dump.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]
        dump.restype = ctypes.POINTER(ctypes.c_char_p)
        count = ctypes.c_size_t()
        words = dump(new(), ctypes.byref(count))
        for n in range(0, count.value, 2):
            print(f"{words[n].decode()}={words[n + 1].decode()}")


def version():
    print(confluent_kafka.__version__, "with librdkafka", confluent_kafka.libversion()[0])


if __name__ == "__main__":
    globals()[sys.argv[2]](*sys.argv[3:])

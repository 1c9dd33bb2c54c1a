"""The integration tests of rdkafka, the Rust crate over librdkafka, out of the crate itself."""

from harness import cases, crates, jars, upstream

VERSION = "0.39.0"


def prepare():
    jars.fetch()
    # With the features of the client in the matrix, so that librdkafka is built once.
    return crates.tests("rdkafka", VERSION, "--locked", "--features=zstd")


SUITE = cases.Suite(
    "rdkafka-tests",
    f"the crate rdkafka {VERSION}: its folder tests",
    prepare=prepare,
    # What its tests expect of the broker that its docker-compose.yaml describes.
    partitions=3,
    node=0,
    # Some of its tests know no other.
    port=9092,
)


def add(program, least, gaps=None, hurried=None):
    @SUITE.case(program)
    def case(bench):
        settings = {"KAFKA_HOST": bench.address, "RUST_LOG": "off"}
        words = [bench.prepared[program], "--test-threads=2"]
        started = bench.program(program, words, environment=settings)
        said = started.wait(300, code=None)
        # 101: tests failed, and are judged one by one. An abort is a failure of them all.
        code = started.process.returncode
        assert code in (0, 101), f"{program} ended with {code}\n{started.last_words()}"
        return upstream.of_cargo(said).judge(bench, least, gaps, hurried)


add("test_admin", 6)
add("test_high_consumers", 12)
add(
    "test_high_producers",
    5,
    hurried={"test_future_producer_send_full": "20 ms for a send that is refused"},
)
add(
    "test_low_consumers",
    8,
    hurried={
        "test_produce_consume_message_queue_nonempty_callback": "a second for what was fetched"
    },
)
add(
    "test_low_producers",
    10,
    # A broker that makes a topic at once is quicker than it expects.
    hurried={"test_base_producer_timeout": "100 ms that have to be too short for a new topic"},
)
add("test_metadata", 5)
add("test_topic_partition_list", 1)
add("test_transactions", 3)

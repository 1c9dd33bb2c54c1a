"""The integration tests of rskafka, a client in Rust without groups and transactions.

Its comparisons with other clients are left out: they would build a second librdkafka, and a bridge
to Java that fetches jars of its own. The matrix has these clients.
"""

import os
import re

from harness import cases, crates, jars, upstream

VERSION = "0.6.0"
PROGRAMS = ("client", "consumer", "produce_consume", "producer")
# What only benches, tests without a broker and the comparisons need.
UNUSED = "criterion|j4rs|proptest|proptest-derive|rdkafka"
OTHER_CLIENT = """
use rskafka::client::partition::Compression;
use rskafka::record::{Record, RecordAndOffset};

pub async fn produce(_: &[String], _: Vec<(String, i32, Record)>, _: Compression) -> Vec<i64> {
    unimplemented!("left out")
}

pub async fn consume(_: &[String], _: &str, _: i32, _: usize) -> Vec<RecordAndOffset> {
    unimplemented!("left out")
}
"""
SKIP_JAVA = """
#[macro_export]
macro_rules! maybe_skip_java_interopt {
    () => {};
}
"""


def write(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as text:
        text.write(content)


def fit(folder):
    """Leaves out of its source what is not run, and what keeps it from being built with any Rust."""
    toolchain = os.path.join(folder, "rust-toolchain.toml")
    if os.path.exists(toolchain):
        os.remove(toolchain)
    with open(os.path.join(folder, "Cargo.toml"), encoding="utf-8") as text:
        content = text.read()
    sections = rf"^\[dev-dependencies\.({UNUSED})\]\n(?:.+\n)+|^\[\[bench\]\]\n(?:.+\n)+"
    write(folder, "Cargo.toml", re.sub(sections, "", content, flags=re.M))
    write(folder, os.path.join("tests", "rdkafka_helper.rs"), OTHER_CLIENT)
    write(folder, os.path.join("tests", "java_helper.rs"), OTHER_CLIENT + SKIP_JAVA)
    # Its lock file has one that today's compiler refuses.
    crates.run("update", "--quiet", "--package=rsasl", "--precise=2.2.1", folder=folder)


def prepare():
    jars.fetch()
    return crates.tests("rskafka", VERSION, fit=fit, programs=PROGRAMS)


SUITE = cases.Suite(
    "rskafka-tests",
    f"the crate rskafka {VERSION}: its folder tests, but comparisons with other clients",
    prepare=prepare,
    # As in its docker-compose-kafka.yml.
    creates=False,
)


def add(program, least):
    @SUITE.case(program)
    def case(bench):
        settings = {
            "TEST_INTEGRATION": "1",
            "TEST_BROKER_IMPL": "kafka",
            "KAFKA_CONNECT": bench.address,
        }
        # Without a broker that has SASL, its test would pass by doing nothing.
        words = ["--skip=java", "--skip=rdkafka", "--skip=test_sasl", "--test-threads=2"]
        started = bench.program(program, [bench.prepared[program], *words], environment=settings)
        said = started.wait(300, code=None)
        assert started.process.returncode in (0, 101), started.last_words()
        return upstream.of_cargo(said).judge(bench, least)


add("client", 12)
add("consumer", 9)
add("produce_consume", 5)
add("producer", 1)

"""The other direction, in depth: our own suites of `tests/`, from their one source, on Apache Kafka.

`MILLSTREAM_TEST_BOOTSTRAP` is the parameter. Each case is a suite; it passes when every test of it
either ran on Kafka, or stands in the table of those that need our broker and said so. What was left
out is printed with its reason, and both are counted.
"""

import json
import os
import subprocess

from harness import brokers, cases, jars

ROOT = os.path.dirname(os.path.dirname(jars.COMPAT))
SUITES = ("client", "pipeline", "recovery", "fencing", "kill")
# Most of what they do is to wait: time is real here.
TOGETHER = "12"
LIMIT_S = 600


def build():
    """The path of each suite's program, by name."""
    names = [word for name in SUITES for word in ("--test", name)]
    command = ["cargo", "test", "--quiet", "-p", "tests", "--no-run", *names]
    command += ["--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    found = {
        message["target"]["name"]: message["executable"]
        for message in messages
        if message.get("executable") and message["target"]["name"] in SUITES
    }
    missing = set(SUITES) - set(found)
    assert not missing, f"cargo does not say where {sorted(missing)} are"
    jars.fetch()
    return found


SUITE = cases.Suite(
    "our-tests",
    "the suites of tests/ through our client, and streams, on Apache Kafka",
    prepare=build,
    only_on=brokers.Kafka.name,
    settings=brokers.AS_OURS,
)


def listed(program):
    """The names of its tests."""
    words = [program, "--list", "--format", "terse"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return {line.removesuffix(": test") for line in said.splitlines() if line.endswith(": test")}


def runs(suite):
    def run(bench):
        program, report = bench.prepared[suite], os.path.join(bench.folder, "report")
        environment = {
            "MILLSTREAM_TEST_BOOTSTRAP": bench.address,
            "MILLSTREAM_TEST_REPORT": report,
            "RUST_BACKTRACE": "0",
        }
        words = [program, "--test-threads", TOGETHER]
        tests = bench.program(
            suite, words, environment=environment, cwd=os.path.join(ROOT, "tests")
        )
        tests.wait(LIMIT_S, code=None)
        with open(report, encoding="utf-8") as text:
            said = set(text.read().splitlines())
        ran = {line.removeprefix("ran ") for line in said if line.startswith("ran ")}
        left_out = sorted(line for line in said if line.startswith("left out "))
        for line in left_out:
            print(f"  {suite}: {line}", flush=True)
        print(f"  {suite}: {len(ran)} ran on Apache Kafka, {len(left_out)} left out", flush=True)
        code = tests.process.returncode
        assert code == 0, f"{suite} ended with {code}\n{tests.last_words(100)}"
        accounted = ran | {line.removeprefix("left out ").partition(": ")[0] for line in left_out}
        silent = listed(program) - accounted
        assert not silent, f"passed without a word of Apache Kafka: {sorted(silent)}"

    run.__name__ = suite
    return run


for name in SUITES:
    SUITE.case()(runs(name))

"""franz-go's own integration tests, taken out of the module that the Go proxy serves."""

import json
import os
import shutil
import subprocess

from harness import cases, clients, jars

MODULE, VERSION = "github.com/twmb/franz-go", "v1.22.3"


def prepare():
    """Compiles the tests of `pkg/kgo` once; answers the program."""
    # A run against Apache Kafka starts that from its jars.
    jars.fetch()
    folder = os.path.join(jars.CACHE, f"franz-go-tests-{VERSION}")
    program = os.path.join(folder, "kgo.test")
    if not os.path.exists(program):
        download = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        # Where a go.mod of ours names it, so that its sum is checked.
        where = clients.copy_sources("franz-go")
        said = subprocess.run(download, cwd=where, check=True, capture_output=True, text=True)
        source = os.path.join(folder, "source")
        shutil.rmtree(source, ignore_errors=True)
        # The module cache is read-only; only folders have to be writable for the build.
        shutil.copytree(json.loads(said.stdout)["Dir"], source, copy_function=shutil.copyfile)
        for root, _, _ in os.walk(source):
            os.chmod(root, 0o755)
        subprocess.run(["go", "test", "-c", "-o", program, "./pkg/kgo"], cwd=source, check=True)
    return program


SUITE = cases.Suite(
    "franz-go-tests",
    f"{MODULE} {VERSION}: pkg/kgo, compiled from the module",
    prepare=prepare,
)


def run(bench, *selection):
    """Answers the lines that tell what became of tests."""
    settings = {"KGO_SEEDS": bench.address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "25000"}
    words = [bench.prepared, *selection, "-test.v", "-test.timeout=400s"]
    folder = os.path.join(os.path.dirname(bench.prepared), "source", "pkg", "kgo")
    program = bench.program("kgo", words, environment=settings, cwd=folder)
    said = program.wait(420, code=None)
    lines = [line.strip() for line in said.splitlines() if line.strip().startswith("--- ")]
    bad = [line for line in lines if line.startswith("--- FAIL")]
    assert program.process.returncode == 0, f"{bad}\n{program.last_words()}"
    return lines


def etl(bench, name):
    """Chains of consumers copy from topic to topic, and check; members come and go."""
    lines = run(bench, "-test.run", f"^{name}$")
    passed = [line for line in lines if line.startswith(f"--- PASS: {name}/")]
    assert len(passed) >= 3, f"too few subtests ran: {lines}"


@SUITE.case()
def txn_etl(bench):
    etl(bench, "TestTxnEtl")


@SUITE.case()
def group_etl(bench):
    etl(bench, "TestGroupETL")


@SUITE.case()
def all_others(bench):
    """Those of protocols that we refuse leave themselves out."""
    lines = run(bench, "-test.skip", "TestTxnEtl|TestGroupETL")
    assert sum(line.startswith("--- PASS") for line in lines) > 100, lines

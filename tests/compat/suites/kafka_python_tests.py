"""kafka-python's own integration tests, out of its source distribution."""

import glob
import os
import shutil
import subprocess
import tarfile
import venv

from harness import cases, jars, upstream

VERSION = "3.0.12"
# What its tests import, and the codecs that they use.
PACKAGES = (
    "pytest==8.4.2",
    "pytest-timeout==2.4.0",
    "pytest-mock==3.15.1",
    "py==1.11.0",
    "lz4==4.4.5",
    "python-snappy==0.7.3",
    "zstandard==0.25.0",
)
# The distribution leaves out this module of theirs, which starts Kafka; our broker runs already.
SERVICE = '''
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = stop = dump_logs = open


class SpawnedService(ExternalService):
    pass
'''


def prepare():
    jars.fetch()
    folder = os.path.join(jars.CACHE, f"kafka-python-tests-{VERSION}")
    python = os.path.join(folder, "environment", "bin", "python")
    source = os.path.join(folder, f"kafka_python-{VERSION}")
    if not os.path.exists(os.path.join(folder, "complete")):
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(os.path.dirname(os.path.dirname(python)), with_pip=True)
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *PACKAGES], check=True)
        package = ["--no-deps", "--no-binary=:all:", f"kafka-python=={VERSION}"]
        subprocess.run([*pip, "download", f"--dest={folder}", *package], check=True)
        with tarfile.open(glob.glob(os.path.join(folder, "*.tar.gz"))[0]) as archive:
            archive.extractall(folder, filter="data")
        for name, content in (("__init__.py", ""), ("service.py", SERVICE)):
            with open(os.path.join(source, "test", name), "w", encoding="utf-8") as text:
                text.write(content)
        open(os.path.join(folder, "complete"), "w", encoding="utf-8").close()
    return python, source


SUITE = cases.Suite(
    "kafka-python-tests",
    f"kafka-python {VERSION}: test/integration of its source distribution, but TLS and SASL",
    prepare=prepare,
    partitions=4,
    node=0,
    # The members of test_group have a session of 3 s; a broker takes none below 6 s by default.
    settings=("group.min.session.timeout.ms=1000",),
)


def add(name, least, gaps=None, hurried=None):
    @SUITE.case(name)
    def case(bench):
        python, source = bench.prepared
        results = os.path.join(bench.folder, "results.xml")
        settings = {
            "KAFKA_URI": f"tcp://{bench.address}",
            "KAFKA_VERSION": jars.KAFKA,
            # Where it would find Kafka's scripts; that there is such a folder is enough.
            "KAFKA_ROOT": bench.folder,
        }
        words = [python, "-m", "pytest", f"test/integration/test_{name}_integration.py"]
        words += ["--timeout=60", "-p", "no:cacheprovider", "--junitxml", results]
        program = bench.program(name, words, environment=settings, cwd=source)
        program.wait(400, code=None)
        assert os.path.exists(results), program.last_words()
        return upstream.of_pytest(results).judge(bench, least, gaps, hurried)


ONE_NODE = "one node has nowhere to move a replica to; the broker does not know the request"
add(
    "admin",
    18,
    {
        "test_create_describe_delete_acls": "there are no access rules, which is said by name",
        "test_alter_replica_log_dirs": ONE_NODE,
        "test_alter_partition_reassignments": ONE_NODE,
        "test_describe_metadata_quorum": "there is no quorum; the broker does not know the request",
    },
)
add("consumer", 16, hurried={"test_group": "four members have 15 s"})
add("producer", 17)

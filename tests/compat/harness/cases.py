"""What a suite is, and how its cases are run and judged."""

import os
import shutil
import tempfile
import time
import traceback

from harness import jars
from harness.processes import Program, wait_until
from harness.tools import Tools

PASSED, FAILED, GAP, MENDED, SKIPPED = "ok", "FAILED", "gap", "gap passes", "skipped"
# Of the reference, which is not what is judged.
UNABLE = "unable"


class Case:
    """One thing to show. With `gap` it is known not to work, and that text says why."""

    def __init__(self, name, run, gap=None):
        self.name, self.run, self.gap = name, run, gap


class Suite:
    """Foreign software: what it is, what makes it ready from package registries, its cases.

    `everywhere`: it judges what is ours on Apache Kafka, too, and runs there whether that was asked
    or not. `only_on`: the one broker that it is for, whatever was asked. `settings`: more of the
    broker's, by Kafka's names. `kafka`: a kind of Apache Kafka other than the plain one.
    `partitions`: how many a topic gets that is created by its first use, where it is (`creates`);
    `node`, `port`: the broker's number, and its port where it may not be just any.
    """

    def __init__(self, name, what, prepare=jars.fetch, everywhere=False, only_on=None, **more):
        self.name, self.what, self.prepare = name, what, prepare
        self.everywhere, self.only_on = everywhere, only_on
        self.settings = more.pop("settings", ())
        self.partitions, self.kafka = more.pop("partitions", 1), more.pop("kafka", None)
        self.node, self.port = more.pop("node", 1), more.pop("port", None)
        self.creates = more.pop("creates", True)
        assert not more, f"no such thing of a suite: {more}"
        self.cases = []

    def case(self, name=None, gap=None):
        def add(run):
            self.cases.append(Case(name or run.__name__, run, gap))
            return run

        return add


class Skip(Exception):
    """A case that does not apply to this broker; the text says why."""


class NoVerdict(Exception):
    """A case did not come to what it is to show: that is no gap, and breaks its suite off."""


class Bench:
    """What a case is given: a broker, a folder of its own, programs that end with the case."""

    def __init__(self, broker, prepared):
        self.broker, self.prepared = broker, prepared
        self.tools_process, self.programs, self.folder = None, [], None

    @property
    def address(self):
        return self.broker.address

    @property
    def tools(self):
        if self.tools_process is None or self.tools_process.process.poll() is not None:
            self.tools_process = Tools(self.address, self.broker.log)
        return self.tools_process

    def program(self, name, command, **more):
        name = f"{len(self.programs)}-{name}"
        program = Program(name, command, self.folder, **more)
        self.programs.append(program)
        return program

    def java(self, name, main, *arguments, **more):
        return self.program(name, jars.java(main, *arguments, **more))

    def file(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as text:
            text.write(content)
        return path

    def topics(self, *names, partitions=1, configs=()):
        """Creates topics in one call of the admin client."""
        arguments = [f"--partitions={partitions}", *[f"--config={config}" for config in configs]]
        for name in names:
            self.tools("TopicCommand", "--create", "--topic", name, *arguments)

    def without_topics(self, *names):
        """Deletes what a case before has left, and waits until it is gone."""
        for name in names:
            self.tools("TopicCommand", "--delete", "--topic", name, "--if-exists")

        def gone():
            return not set(names) & set(self.tools("TopicCommand", "--list").out.split())

        wait_until(gone, "the topics to be gone")

    def segments(self, topic, partition=0):
        """The broker's own files of a partition, by name: batches as they lie there."""
        for root, _, names in os.walk(self.broker.data):
            if os.path.basename(root) == f"{topic}-{partition}":
                return sorted(os.path.join(root, name) for name in names)
        raise AssertionError(f"no folder of {topic}-{partition} below {self.broker.data}")

    def run(self, case):
        """Answers what became of it, the seconds it took, and what there is to say.

        A case that passes may answer a line of its own.
        """
        self.folder = tempfile.mkdtemp(prefix="compat-case-")
        started = time.monotonic()
        try:
            said = case.run(self) or ""
            verdict = PASSED
        except Skip as reason:
            verdict, said = SKIPPED, str(reason)
        except NoVerdict:
            raise
        except Exception:
            verdict, said = FAILED, traceback.format_exc(limit=6)
        finally:
            for program in self.programs:
                program.kill()
            self.programs = []
            if os.environ.get("COMPAT_KEEP"):
                print(f"kept {self.folder}", flush=True)
            else:
                shutil.rmtree(self.folder, ignore_errors=True)
        return verdict, time.monotonic() - started, said

    def close(self):
        if self.tools_process is not None:
            self.tools_process.close()

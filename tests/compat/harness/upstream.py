"""Test suites of other projects: many tests in one case, each by its name.

A case passes when no test failed but those with a named gap, when every gap did fail, and when at
least so many passed as are known to: a suite that leaves itself out proves nothing. What a test says
of time is not held against a busy machine: those are named, too, and may fail.
"""

import re
import xml.etree.ElementTree

from harness import brokers


class Outcomes:
    """What became of each test, and what was said of those that failed."""

    def __init__(self):
        self.passed, self.skipped, self.failed = set(), {}, {}

    def counts(self):
        return (
            f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        )

    def judge(self, bench, least, gaps=None, hurried=None):
        """Answers the line that a case says when it passes. `gaps`: test -> why it fails; `hurried`:
        test -> what it takes no longer than."""
        gaps, hurried = gaps or {}, hurried or {}
        if bench.broker.name == brokers.Kafka.name:
            # What the reference cannot do is told in full.
            gaps = {}
        known = {**gaps, **hurried}
        unexpected = {name: said for name, said in self.failed.items() if name not in known}
        told = "\n".join(f"-- {name}:\n{said[-3000:]}" for name, said in unexpected.items())
        assert not unexpected, f"{self.counts()}; {', '.join(unexpected)}\n{told}"
        mended = sorted(self.passed & set(gaps))
        assert not mended, f"{self.counts()}; gaps that pass now, take them out: {mended}"
        missing = sorted(set(gaps) - set(self.failed))
        assert not missing, f"{self.counts()}; gaps of tests that did not run: {missing}"
        least -= len(set(hurried) & set(self.failed))
        assert len(self.passed) >= least, f"{self.counts()}; at least {least} are known to pass"
        whys = [f"{name}: {known[name]}" for name in sorted(self.failed)]
        whys += [f"skipped {name}: {why}" for name, why in sorted(self.skipped.items()) if why]
        return "; ".join([self.counts(), *whys])


def of_cargo(said):
    """Reads what a test program of Rust prints."""
    outcomes = Outcomes()
    for name, verdict in re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (.*)$", said, re.M):
        if verdict.endswith("ok"):
            outcomes.passed.add(name)
        elif verdict.startswith("ignored"):
            outcomes.skipped[name] = verdict.partition(", ")[2]
        else:
            head = rf"^---- {re.escape(name)} std\w+ ----\n"
            words = re.search(head + r"(.*?)(?=^---- |^failures:)", said, re.M | re.S)
            outcomes.failed[name] = words.group(1) if words else said
    return outcomes


def of_pytest(path):
    """Reads the XML that pytest writes."""
    outcomes = Outcomes()
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        name, why = case.get("name"), case.find("skipped")
        bad = [found for kind in ("failure", "error") for found in case.findall(kind)]
        if bad:
            outcomes.failed[name] = "\n".join(one.text or one.get("message", "") for one in bad)
        elif why is not None:
            outcomes.skipped[name] = why.get("message", "")
        else:
            outcomes.passed.add(name)
    return outcomes

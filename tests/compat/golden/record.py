#!/usr/bin/env python3
"""Records golden frames: what the Java client and Apache Kafka say to each other, byte for byte.

usage: record.py [--add] [--out FOLDER] [PASS...]

Proxies on the loopback address stand between clients and an Apache Kafka (harness/brokers), and
between that and itself. So that the older versions are spoken, too, they make the broker look older
(harness/lowering). What is kept is what was sent, before that. The passes: `traffic` (Traffic.java
in every view), `inside` (one broker's requests to another, of an older version where there is one),
`older` (an older client, Older.java), `login` (a listener that asks for a password, Login.java).
With `--add` they only add what no frame is there for yet: version and direction of an API.

The frames go to `runtime/protocol/tests/wire/golden/<API>.txt`, one a line: version, direction,
frame in hexadecimal, without its length. Of each API, version, direction and client id the smallest
and the largest are kept, as far as there is room.
"""

import argparse
import collections
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from harness import brokers, jars, secured, traffic  # noqa: E402
from harness.lowering import NAMES, Proxy, Running, View  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
GOLDEN = os.path.join(ROOT, "runtime", "protocol", "tests", "wire", "golden")
# A frame beyond this is kept only where there is no smaller one.
LARGE_BYTES = 3_000
# Frames of one API, version and direction; Produce and Fetch have one for each codec and more.
KEPT, KEPT_OF_RECORDS = 4, 10
# Records in every codec are worth having in these versions; one or two samples in the others.
RECORD_VERSIONS = {("Produce", 13), ("Fetch", 18)}


class Corpus:
    """What was seen, by (API, version, direction), then by client id."""

    def __init__(self):
        self.frames = collections.defaultdict(lambda: collections.defaultdict(set))

    def see(self, key, version, direction, client, frame):
        if key in NAMES:
            self.frames[NAMES[key], version, direction][client].add(frame)

    def chosen(self):
        """(API, version, direction) and its frames, the same for the same traffic."""
        for place, clients in sorted(self.frames.items()):
            limit = KEPT_OF_RECORDS if place[:2] in RECORD_VERSIONS else KEPT
            candidates = []
            for client in sorted(clients):
                by_size = sorted(clients[client], key=lambda frame: (len(frame), frame))
                fitting = [frame for frame in by_size if len(frame) <= LARGE_BYTES] or by_size[:1]
                candidates.append([fitting[-1], fitting[0]])
            kept = []
            for rank in (0, 1):
                for pair in candidates:
                    frame = pair[rank]
                    if frame not in kept and len(kept) < limit:
                        kept.append(frame)
            yield place, sorted(kept, key=lambda frame: (len(frame), frame))

    def write(self, folder, add):
        """The files anew, or with what they lack."""
        os.makedirs(folder, exist_ok=True)
        files, there = collections.defaultdict(list), set()
        for api in NAMES.values() if add else ():
            path = os.path.join(folder, f"{api}.txt")
            if os.path.exists(path):
                with open(path, encoding="utf-8") as text:
                    files[api] = text.readlines()
                there |= {(api, *line.split(" ")[:2]) for line in files[api]}
        added = 0
        for (api, version, direction), frames in self.chosen():
            if (api, str(version), direction) not in there:
                files[api] += [f"{version} {direction} {frame.hex()}\n" for frame in frames]
                added += len(frames)
        for api, lines in files.items():
            lines.sort(key=lambda line: (int(line.split(" ")[0]), line.split(" ")[1]))
            with open(os.path.join(folder, f"{api}.txt"), "w", encoding="utf-8") as text:
                text.writelines(lines)
        return added


class Recorded(brokers.Kafka):
    """A Kafka that tells its clients the proxy's address, and itself another proxy's."""

    def __init__(self):
        super().__init__()
        self.inside = brokers.free_port()
        self.outside_proxy, self.inside_proxy = brokers.free_port(), brokers.free_port()

    def format(self):
        super().format()
        with open(self.settings, encoding="utf-8") as text:
            lines = dict(
                line.strip().split("=", 1) for line in text if "=" in line and line[0] != "#"
            )
        here, controller = "127.0.0.1", f"CONTROLLER://127.0.0.1:{self.controller_port}"
        outside, inside = f"PLAINTEXT://{here}", f"INSIDE://{here}"
        protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT"
        lines.update({
            "listeners": f"{outside}:{self.port},{inside}:{self.inside},{controller}",
            "advertised.listeners":
                f"{outside}:{self.outside_proxy},{inside}:{self.inside_proxy},{controller}",
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": "INSIDE",
        })  # fmt: skip
        with open(self.settings, "w", encoding="utf-8") as text:
            text.writelines(f"{name}={value}\n" for name, value in lines.items())


def run(main, *arguments):
    with tempfile.TemporaryDirectory() as classes:
        subprocess.run(traffic.command(main, classes, *arguments), check=True, timeout=240)


def plain(corpus, main, views, inside=None):
    """A program in these views of a broker, which itself has one of its own."""
    kafka, shown = Recorded(), []
    outside = Proxy(kafka.outside_proxy, kafka.port, lambda _: shown[-1], corpus.see)
    itself = Proxy(kafka.inside_proxy, kafka.inside, lambda _: inside, corpus.see)
    running = Running(outside, itself)
    try:
        kafka.start()
        for view in views:
            print(f"{main} {view}", flush=True)
            shown.append(View(view))
            run(main, f"127.0.0.1:{outside.port}", view)
    finally:
        kafka.close()
        running.close()


def views(corpus):
    plain(corpus, "Traffic", [*map(str, range(15)), "0f"])


ADD_PARTITIONS_TO_TXN, SASL_HANDSHAKE, SASL_AUTHENTICATE = 24, 17, 36


def inside(corpus):
    views = ["0f", "1", "2"]
    plain(corpus, "Traffic", views, inside=View("1", only={ADD_PARTITIONS_TO_TXN}))


def older(corpus):
    plain(corpus, "Older", ["0", "1", "2"])


class SecuredAndRecorded(secured.SecuredKafka):
    """Whose listener SCRAM is told as the address of a proxy."""

    def __init__(self):
        self.proxy = brokers.free_port()
        super().__init__()

    def lines(self):
        for line in super().lines():
            if line.startswith("advertised.listeners="):
                line = line.replace(f"SCRAM://{self.at('SCRAM')}", f"SCRAM://127.0.0.1:{self.proxy}")
            yield line


def login(corpus):
    kafka, shown = SecuredAndRecorded(), []
    proxy = Proxy(kafka.proxy, kafka.ports["SCRAM"], lambda _: shown[-1], corpus.see)
    running = Running(proxy)
    try:
        kafka.start()
        for view in (
            View("0"),
            View("1", only={SASL_AUTHENTICATE}),
            View("2", only={SASL_AUTHENTICATE}),
            # Who has no SaslAuthenticate sends SaslHandshake 0, and what follows without headers.
            View("1", only={SASL_HANDSHAKE}, hidden={SASL_AUTHENTICATE}),
        ):
            shown.append(view)
            print(f"Login {view.level}", flush=True)
            # Without SaslAuthenticate a refusal is a connection that closes.
            wrong = [] if view.hidden else ["wrong"]
            run("Login", f"127.0.0.1:{proxy.port}", secured.USER, secured.PASSWORD, *wrong)
    finally:
        kafka.close()
        running.close()


PASSES = {"traffic": views, "inside": inside, "older": older, "login": login}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("passes", nargs="*", metavar="PASS", help=f"of {', '.join(PASSES)}")
    parser.add_argument("--add", action="store_true", help="only what no frame is there for yet")
    parser.add_argument("--out", default=GOLDEN)
    arguments = parser.parse_args()
    jars.fetch()
    corpus = Corpus()
    for name in arguments.passes or PASSES:
        PASSES[name](corpus)
        written = corpus.write(arguments.out, arguments.add)
        print(f"{name}: {written} frames in {arguments.out}", flush=True)


if __name__ == "__main__":
    main()

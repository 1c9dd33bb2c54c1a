#!/usr/bin/env python3
"""Records golden frames: what the Java client and Apache Kafka say to each other, byte for byte.

usage: record.py [--first N] [--levels N] [--out FOLDER]

A proxy on the loopback address stands between `Traffic.java` and an Apache Kafka (harness/brokers).
The client always speaks the newest version that both know; so that it speaks the older ones, too,
each further level shows it a broker whose newest version of each API is one lower: the proxy lowers
the numbers in the answers to ApiVersions, and nothing else. What is kept is what was sent, before
that. The broker's own requests to itself are recorded as well, never lowered.

The frames go to `runtime/protocol/tests/wire/golden/<API>.txt`, one a line: version, direction,
frame in hexadecimal, without its length. Of each API, version, direction and client id the smallest
and the largest are kept, as far as there is room.
"""

import argparse
import asyncio
import collections
import os
import struct
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from harness import brokers, jars  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
GOLDEN = os.path.join(ROOT, "runtime", "protocol", "tests", "wire", "golden")
# As `runtime/protocol/src/api.rs` has them.
NAMES = {
    0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 8: "OffsetCommit", 9: "OffsetFetch",
    10: "FindCoordinator", 11: "JoinGroup", 12: "Heartbeat", 13: "LeaveGroup", 14: "SyncGroup",
    15: "DescribeGroups", 16: "ListGroups", 18: "ApiVersions", 19: "CreateTopics",
    20: "DeleteTopics", 21: "DeleteRecords", 22: "InitProducerId", 23: "OffsetForLeaderEpoch",
    24: "AddPartitionsToTxn", 25: "AddOffsetsToTxn", 26: "EndTxn", 27: "WriteTxnMarkers",
    28: "TxnOffsetCommit", 29: "DescribeAcls", 32: "DescribeConfigs", 33: "AlterConfigs",
    35: "DescribeLogDirs", 37: "CreatePartitions", 42: "DeleteGroups", 43: "ElectLeaders",
    44: "IncrementalAlterConfigs", 46: "ListPartitionReassignments", 47: "OffsetDelete",
    60: "DescribeCluster", 61: "DescribeProducers", 65: "DescribeTransactions",
    66: "ListTransactions", 68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe",
    74: "ListConfigResources", 75: "DescribeTopicPartitions",
}  # fmt: skip
API_VERSIONS, METADATA = 18, 3
# The Java client does not speak version 0.
METADATA_OLDEST = 1
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

    def add(self, key, version, direction, client, frame):
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

    def write(self, folder):
        os.makedirs(folder, exist_ok=True)
        files = collections.defaultdict(list)
        for (api, version, direction), frames in self.chosen():
            files[api] += [f"{version} {direction} {frame.hex()}\n" for frame in frames]
        for api, lines in files.items():
            with open(os.path.join(folder, f"{api}.txt"), "w", encoding="utf-8") as text:
                text.writelines(lines)
        return sum(map(len, files.values()))


def lowered(body, at, version, level):
    """The body of an ApiVersions response, from `at`, with newest versions `level` lower."""
    body = bytearray(body)
    flexible = version >= 3
    at += 2
    if flexible:
        count, at = varint(body, at)
        count -= 1
    else:
        (count,) = struct.unpack_from(">i", body, at)
        at += 4
    for _ in range(count):
        key, lowest, newest = struct.unpack_from(">hhh", body, at)
        lowest = max(lowest, METADATA_OLDEST) if key == METADATA else lowest
        struct.pack_into(">h", body, at + 4, max(lowest, newest - level))
        at += 6
        if flexible:
            tags, at = varint(body, at)
            assert tags == 0
    return bytes(body)


def varint(body, at):
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


class Proxy:
    """Between clients and one listener of the broker."""

    def __init__(self, corpus, port, target, lowers):
        self.corpus, self.port, self.target, self.lowers = corpus, port, target, lowers
        self.level = 0

    async def serve(self):
        return await asyncio.start_server(self.connection, "127.0.0.1", self.port)

    async def connection(self, reader, writer):
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        asked = {}
        ways = [
            asyncio.ensure_future(self.pass_on(reader, there[1], self.request, asked)),
            asyncio.ensure_future(self.pass_on(there[0], writer, self.response, asked)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, there[1]):
            end.close()

    async def pass_on(self, reader, writer, see, asked):
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = see(await reader.readexactly(size), asked)
                writer.write(struct.pack(">i", len(frame)) + frame)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass

    def request(self, frame, asked):
        key, version, correlation, length = struct.unpack_from(">hhih", frame)
        client = frame[10 : 10 + max(length, 0)].decode()
        self.corpus.add(key, version, "request", client, frame)
        if key == API_VERSIONS and self.lowers and version > max(4 - self.level, 0):
            # A version that the broker does not have either: it says so, in version 0.
            frame = frame[:2] + struct.pack(">h", 99) + frame[4:]
            asked[correlation] = (key, 99, client)
        elif not (key == 0 and self.acks_nothing(frame, version)):
            asked[correlation] = (key, version, client)
        return frame

    @staticmethod
    def acks_nothing(frame, version):
        """Whether a Produce request has no answer."""
        at = 10 + max(struct.unpack_from(">h", frame, 8)[0], 0)
        if version >= 9:
            # Tags of the header, then the transactional id.
            at += 1
            length, at = varint(frame, at)
            at += max(length - 1, 0)
        else:
            (length,) = struct.unpack_from(">h", frame, at)
            at += 2 + max(length, 0)
        return struct.unpack_from(">h", frame, at)[0] == 0

    def response(self, frame, asked):
        (correlation,) = struct.unpack_from(">i", frame)
        key, version, client = asked.pop(correlation)
        self.corpus.add(key, version, "response", client, frame)
        if key == API_VERSIONS and self.lowers:
            frame = lowered(frame, 4, 0 if version == 99 else version, self.level)
        return frame


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


def running(proxies):
    """The proxies on a loop of their own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    for proxy in proxies:
        asyncio.run_coroutine_threadsafe(proxy.serve(), loop).result(10)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="the first level")
    parser.add_argument("--levels", type=int, default=15, help="the level after the last one")
    parser.add_argument("--out", default=GOLDEN)
    arguments = parser.parse_args()
    jars.fetch()
    corpus, kafka = Corpus(), Recorded()
    outside = Proxy(corpus, kafka.outside_proxy, kafka.port, lowers=True)
    running([outside, Proxy(corpus, kafka.inside_proxy, kafka.inside, lowers=False)])
    with tempfile.TemporaryDirectory() as classes:
        source = os.path.join(HERE, "Traffic.java")
        path = os.path.join(jars.LIBS, "*")
        compiler = ["javac", "-nowarn", "-Xlint:none", "-cp", path, "-d", classes, source]
        subprocess.run(compiler, check=True)
        try:
            kafka.start()
            for level in range(arguments.first, arguments.levels):
                outside.level = level
                print(f"level {level}", flush=True)
                command = jars.java("Traffic", f"127.0.0.1:{outside.port}", level, first=[classes])
                subprocess.run(command, check=True, timeout=180)
                corpus.write(arguments.out)
        finally:
            kafka.close()
    print(f"{corpus.write(arguments.out)} frames in {arguments.out}")


if __name__ == "__main__":
    main()

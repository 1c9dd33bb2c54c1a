"""A proxy that shows clients an older broker: it lowers the numbers in answers to ApiVersions.

The Java client speaks the newest version that both sides know. What a client is shown is its view:
`3` is a broker whose newest version of each API is three lower, and that tells no features, so that
the client has transactions as before version 2; `0f` one that lacks the features alone. Nothing
else is changed.
"""

import asyncio
import struct
import threading

# As `runtime/protocol/src/api.rs` has them.
NAMES = {
    0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 8: "OffsetCommit", 9: "OffsetFetch",
    10: "FindCoordinator", 11: "JoinGroup", 12: "Heartbeat", 13: "LeaveGroup", 14: "SyncGroup",
    15: "DescribeGroups", 16: "ListGroups", 17: "SaslHandshake", 18: "ApiVersions",
    19: "CreateTopics", 20: "DeleteTopics", 21: "DeleteRecords", 22: "InitProducerId",
    23: "OffsetForLeaderEpoch", 24: "AddPartitionsToTxn", 25: "AddOffsetsToTxn", 26: "EndTxn",
    27: "WriteTxnMarkers", 28: "TxnOffsetCommit", 29: "DescribeAcls",
    30: "CreateAcls", 31: "DeleteAcls", 32: "DescribeConfigs",
    33: "AlterConfigs", 35: "DescribeLogDirs", 36: "SaslAuthenticate", 37: "CreatePartitions",
    42: "DeleteGroups", 43: "ElectLeaders", 44: "IncrementalAlterConfigs",
    46: "ListPartitionReassignments", 47: "OffsetDelete", 60: "DescribeCluster",
    61: "DescribeProducers", 65: "DescribeTransactions", 66: "ListTransactions",
    68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe", 74: "ListConfigResources",
    75: "DescribeTopicPartitions",
}  # fmt: skip
API_VERSIONS, METADATA, PRODUCE, SASL_HANDSHAKE = 18, 3, 0, 17
API_VERSIONS_NEWEST = 4
NO_API = 9_999
# From this version on it tells features.
FEATURES_SINCE = 3
# Older versions the Java client does not speak, whatever a broker says.
OLDEST = {PRODUCE: 3, METADATA: 1}
# Of SCRAM, after a SaslHandshake of version 0, which has them without headers.
RAW_FRAMES = 2


class View:
    """What a client is shown; `only` are the keys of the APIs that it holds for, if not all, and
    `hidden` of those that it does not hear of."""

    def __init__(self, name, only=None, hidden=()):
        self.level, self.features = int(name.rstrip("f")), name == "0" or only is not None
        self.only, self.hidden = only, hidden

    def newest(self, key, lowest, newest):
        level = self.level if self.only is None or key in self.only else 0
        return max(lowest, OLDEST.get(key, lowest), newest - level)

    def of(self, frame, version):
        """The response to ApiVersions that the client is shown."""
        changed, at = bytearray(frame), 4
        for at, *line in ranges(frame, 4, version):
            struct.pack_into(">h", changed, at + 4, self.newest(*line))
            if line[0] in self.hidden:
                struct.pack_into(">h", changed, at, NO_API)
        if version < FEATURES_SINCE or self.features:
            return bytes(changed)
        # The last line and its tags, the throttle time; then features would be tagged fields.
        return bytes(changed[: at + 7 + 4]) + b"\0"


def varint(body, at):
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def ranges(body, at, version):
    """Of the body of an ApiVersions response: where a line begins, its key, lowest and newest."""
    at += 2
    if version >= FEATURES_SINCE:
        count, at = varint(body, at)
        count -= 1
    else:
        (count,) = struct.unpack_from(">i", body, at)
        at += 4
    for _ in range(count):
        yield at, *struct.unpack_from(">hhh", body, at)
        at += 6
        if version >= FEATURES_SINCE:
            tags, at = varint(body, at)
            assert tags == 0


class Proxy:
    """Between clients and one listener of a broker.

    `view` answers what the client of this id is shown, or None; `see` is told of every frame as it
    was sent: key, version, direction, client id, frame.
    """

    def __init__(self, port, target, view, see):
        self.port, self.target, self.view, self.see = port, target, view, see

    async def serve(self):
        return await asyncio.start_server(self.connection, "127.0.0.1", self.port)

    async def connection(self, reader, writer):
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        between = Connection(self)
        ways = [
            asyncio.ensure_future(pass_on(reader, there[1], between.request)),
            asyncio.ensure_future(pass_on(there[0], writer, between.response)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The proxy ends.
            pass
        for way in ways:
            way.cancel()
        for end in (writer, there[1]):
            end.close()


async def pass_on(reader, writer, change):
    try:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            frame = change(await reader.readexactly(size))
            writer.write(struct.pack(">i", len(frame)) + frame)
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass


class Connection:
    """One connection: what was asked and is not answered yet."""

    def __init__(self, proxy):
        self.proxy, self.asked = proxy, {}
        self.raw_requests = self.raw_responses = 0

    def request(self, frame):
        if self.raw_requests:
            self.raw_requests -= 1
            return frame
        key, version, correlation, length = struct.unpack_from(">hhih", frame)
        client = frame[10 : 10 + max(length, 0)].decode()
        self.proxy.see(key, version, "request", client, frame)
        view = self.proxy.view(client)
        if key == API_VERSIONS and view and version > view.newest(key, 0, API_VERSIONS_NEWEST):
            # A version that the broker does not have either: it says so, in version 0.
            frame = frame[:2] + struct.pack(">h", 99) + frame[4:]
            self.asked[correlation] = (key, 99, client)
        elif not (key == PRODUCE and acks_nothing(frame, version)):
            self.asked[correlation] = (key, version, client)
        if key == SASL_HANDSHAKE and version == 0:
            self.raw_requests = RAW_FRAMES
        return frame

    def response(self, frame):
        if self.raw_responses:
            self.raw_responses -= 1
            return frame
        (correlation,) = struct.unpack_from(">i", frame)
        key, version, client = self.asked.pop(correlation)
        self.proxy.see(key, version, "response", client, frame)
        view = self.proxy.view(client)
        if key == API_VERSIONS and view:
            frame = view.of(frame, 0 if version == 99 else version)
        if key == SASL_HANDSHAKE and version == 0:
            self.raw_responses = RAW_FRAMES
        return frame


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


class Running:
    """Proxies on a loop of their own, until it is closed."""

    def __init__(self, *proxies):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.servers = [self.run(proxy.serve()) for proxy in proxies]

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    async def end(self):
        for server in self.servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def close(self):
        self.run(self.end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

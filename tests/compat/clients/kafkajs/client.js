// KafkaJS as one of the clients of the matrix (suites/clients.py). Of the codecs it has gzip itself;
// the others are plugged in, as its documentation describes.
"use strict";

const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require("kafkajs");
const snappy = require("kafkajs-snappy");
const lz4 = require("lz4-napi");
const { ZstdCodec } = require("zstd-codec");

const [, , bootstrap, command, topic, argument] = process.argv;
const FIRST_TIMESTAMP = 1700000000000;
const RECORDS = 200;
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });

CompressionCodecs[CompressionTypes.Snappy] = snappy;
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer),
});
// The simple way decompresses only what says its size, which Java and librdkafka leave out.
const zstd = new Promise((resolve) => ZstdCodec.run((module) => resolve(new module.Streaming())));
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from((await zstd).decompress(buffer)),
});

function standard() {
  const shapes = [
    ["key", "value"], [null, "no key"], ["", ""], ["tombstone", null], [null, null],
    [Buffer.from([0xff]), Buffer.from([0])],
  ];
  // It fails on writing a header without a value.
  return [...Array(RECORDS).keys()].map((n) => {
    const [key, value] = shapes[n] ?? [`k${n}`, `compressible ${n} `.repeat(20)];
    const headers = n === 0 ? { h: ["1", "2"], empty: "" } : undefined;
    return { partition: 0, timestamp: String(FIRST_TIMESTAMP + n), key, value, headers };
  });
}

async function produce() {
  const codecs = { none: "None", gzip: "GZIP", snappy: "Snappy", lz4: "LZ4", zstd: "ZSTD" };
  const producer = kafka.producer();
  await producer.connect();
  const compression = CompressionTypes[codecs[argument]];
  await producer.send({ topic, acks: -1, compression, messages: standard() });
  await producer.disconnect();
  console.log("done");
}

const shown = (value) => (value === null || value === undefined ? "-" : "x" + value.toString("hex"));

// It has no way to read without a group, and none to learn the last stable offset: so the end is
// where nothing comes for a while.
async function dump() {
  const consumer = kafka.consumer({ groupId: `dump-${process.pid}-${Date.now()}` });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  let last = Date.now();
  let joined = false;
  consumer.on(consumer.events.GROUP_JOIN, () => {
    joined = true;
    last = Date.now();
  });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      last = Date.now();
      const fields = [partition, message.offset, message.timestamp, shown(message.key)];
      fields.push(shown(message.value));
      for (const [name, values] of Object.entries(message.headers ?? {})) {
        for (const value of Array.isArray(values) ? values : [values]) {
          fields.push(`${name}=${shown(value)}`);
        }
      }
      console.log(fields.join(" "));
    },
  });
  while (!joined || Date.now() - last < 4000) {
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  await consumer.disconnect();
  console.log("done");
}

async function group() {
  const settings = { groupId: argument, sessionTimeout: 6000, heartbeatInterval: 500 };
  const consumer = kafka.consumer({ ...settings, rebalanceTimeout: 10000 });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    console.log("assigned", (payload.memberAssignment[topic] ?? []).length);
  });
  process.on("SIGTERM", async () => {
    await consumer.disconnect();
    process.exit(0);
  });
  await consumer.run({
    eachMessage: async ({ partition, message }) => {
      console.log("record", partition, message.offset);
    },
  });
}

async function transactional() {
  const settings = { transactionalId: argument, maxInFlightRequests: 1, idempotent: true };
  const producer = kafka.producer({ ...settings, retry: { retries: 3 } });
  await producer.connect();
  return producer;
}

async function transactions() {
  const producer = await transactional();
  for (const name of ["first", "aborted", "second"]) {
    const transaction = await producer.transaction();
    for (let n = 0; n < 5; n++) {
      await transaction.send({ topic, messages: [{ partition: 0, value: `${name}${n}` }] });
    }
    await (name === "aborted" ? transaction.abort() : transaction.commit());
  }
  await producer.disconnect();
  console.log("done");
}

async function fence() {
  const first = await (await transactional()).transaction();
  await first.send({ topic, messages: [{ partition: 0, value: "lost" }] });
  const second = await (await transactional()).transaction();
  await second.send({ topic, messages: [{ partition: 0, value: "kept" }] });
  await second.commit();
  try {
    await first.commit();
  } catch (error) {
    const fenced = ["INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"];
    console.log(fenced.includes(error.type) ? "fenced" : `not fenced: ${error}`);
  }
  process.exit(0);
}

function version() {
  console.log(require("kafkajs/package.json").version);
}

// It has no table of its defaults; these are what its functions take where nothing is given.
function defaults() {
  const source = (name) => require("fs").readFileSync(require.resolve(`kafkajs/src/${name}`), "utf8");
  const found = new Map(Object.entries(require("kafkajs/src/retry/defaults.js")));
  const files = ["producer/index", "producer/messageProducer", "producer/eosManager/index"];
  for (const name of [...files, "consumer/index", "cluster/index", "index"]) {
    // `name = value,`, alone on its line or inside of the braces of a function's arguments.
    const pattern = /(?:^\s+|\(\{ )(\w+) = ([\w.[\]-]+),(?: .*)?$/gm;
    for (const [, key, value] of source(`${name}.js`).matchAll(pattern)) {
      found.set(key, value);
    }
  }
  console.log([...found].map(([key, value]) => `${key}=${value}`).join("\n"));
}

const commands = { version, defaults, produce, dump, group, transactions, fence };
Promise.resolve(commands[command]()).catch((error) => {
  console.error(error);
  process.exit(1);
});

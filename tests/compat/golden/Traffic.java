// The Java client asks for everything it can, once a view, and looks at what it gets. Through a proxy
// that makes the broker look older (harness/lowering), it does so in every version.
//
// Usage: Traffic BOOTSTRAP LEVEL, for record.py, or Traffic BOOTSTRAP VIEW..., several at a time,
// each named in its clients' ids. Each step is a client of its own; a line says what became of it.

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeader;

public class Traffic extends Steps {
    private static final int AT_ONCE = 4;
    /// The consumer protocol needs OffsetCommit 9.
    static final int NO_CONSUMER_PROTOCOL = 2;
    /// A static member needs SyncGroup 3.
    static final int NO_STATIC_MEMBERS = 3;
    /// Batches of zstd need Produce 7.
    private static final int NO_ZSTD = 7;
    /// A transactional id's coordinator needs FindCoordinator 1.
    static final int NO_TRANSACTIONS = 6;
    /// What each of the two partitions holds by its producers' word: offset and record.
    private final List<TreeMap<Long, String>> logs = List.of(new TreeMap<>(), new TreeMap<>());
    private final List<TreeMap<Long, String>> aborted = List.of(new TreeMap<>(), new TreeMap<>());
    private final long[] next = {0, 0};

    Traffic(String bootstrap, String view, boolean names) {
        super(bootstrap, view, names);
    }

    public static void main(String[] arguments) throws Exception {
        boolean many = arguments.length > 2;
        var threads = Executors.newFixedThreadPool(AT_ONCE);
        var running = new ArrayList<Future<?>>();
        for (String view : List.of(arguments).subList(1, arguments.length)) {
            running.add(threads.submit(() -> new Traffic(arguments[0], view, many).run()));
        }
        for (Future<?> view : running) {
            view.get();
        }
        System.out.println("done");
        // What a step left half open is of no interest.
        Runtime.getRuntime().halt(0);
    }

    private void run() {
        var administration = new Administration(this);
        administration.topics();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            step("produce-" + codec, () -> {
                below(codec.equals("zstd") ? NO_ZSTD : Integer.MAX_VALUE, level);
                produce("produce-" + codec,
                    Map.of("compression.type", codec, "enable.idempotence", codec.equals("gzip")));
            });
        }
        step("produce-acks0", () -> produce("produce-acks0",
            Map.of("acks", "0", "enable.idempotence", false)));
        step("transaction", this::transaction);
        step("consume-classic", () -> consume("consume-classic", Map.of("group.id", "classic" + topic,
            "heartbeat.interval.ms", 200, "partition.assignment.strategy", RangeAssignor.class.getName())));
        step("consume-static", () -> consume("consume-static", Map.of("group.id", "static" + topic,
            "group.instance.id", "instance", "client.rack", "rack",
            "heartbeat.interval.ms", 200,
            "partition.assignment.strategy", CooperativeStickyAssignor.class.getName())));
        step("consume-protocol", () -> {
            below(NO_CONSUMER_PROTOCOL, level);
            consume("consume-protocol", Map.of("group.id", "protocol" + topic, "group.protocol", "consumer"));
        });
        step("consume-committed", () -> consume("consume-committed",
            Map.of("group.id", "committed" + topic, "isolation.level", "read_committed")));
        step("beyond", this::beyond);
        var groups = new Groups(this);
        groups.steps(next);
        administration.settings();
        transactions();
        administration.ends();
    }

    private static String written(ProducerRecord<byte[], byte[]> record) {
        return said(record.timestamp(), record.key(), record.value(), record.headers());
    }

    private static String said(long timestamp, byte[] key, byte[] value, Headers headers) {
        var words = new StringBuilder().append(timestamp).append(text(key)).append(text(value));
        headers.forEach(header -> words.append(" '").append(header.key()).append("':").append(text(header.value())));
        return words.toString();
    }

    private static String text(byte[] part) {
        return part == null ? " null" : " '" + new String(part) + "'";
    }

    /// Sends, and answers the futures by record.
    private Map<ProducerRecord<byte[], byte[]>, Future<RecordMetadata>> send(
            Producer<byte[], byte[]> producer, List<ProducerRecord<byte[], byte[]>> records) {
        var sent = new LinkedHashMap<ProducerRecord<byte[], byte[]>, Future<RecordMetadata>>();
        records.forEach(record -> sent.put(record, producer.send(record)));
        producer.flush();
        return sent;
    }

    /// Every record has the next offset of its partition, and is kept for what reads it.
    private void acknowledged(Map<ProducerRecord<byte[], byte[]>, Future<RecordMetadata>> sent,
            boolean told) throws Exception {
        for (var one : sent.entrySet()) {
            var metadata = one.getValue().get(WAIT_S, TimeUnit.SECONDS);
            int partition = one.getKey().partition();
            same(told ? next[partition] : -1, metadata.offset(), "offset of " + one.getKey());
            logs.get(partition).put(next[partition]++, written(one.getKey()));
        }
    }

    private void produce(String name, Map<String, Object> more) throws Exception {
        boolean told = !"0".equals(more.get("acks"));
        try (var producer = producer(name, more)) {
            var records = new ArrayList<ProducerRecord<byte[], byte[]>>();
            for (int partition = 0; partition < 2; partition++) {
                var headers = record(partition, "headers", "value");
                headers.headers().add(new RecordHeader("h", "1".getBytes()));
                headers.headers().add(new RecordHeader("h", null));
                headers.headers().add(new RecordHeader("", new byte[0]));
                records.add(headers);
                records.add(record(partition, null, "no key"));
                records.add(record(partition, "tombstone", null));
                records.add(record(partition, "", ""));
                records.add(record(partition, "long", "again and ".repeat(20)));
            }
            acknowledged(send(producer, records), told);
            acknowledged(send(producer, List.of(record(0, "second", "batch"))), told);
        }
        if (!told) {
            try (var reader = consumer(name + "-reader", Map.of())) {
                var ends = Map.of(new TopicPartition(topic, 0), next[0], new TopicPartition(topic, 1), next[1]);
                until(() -> ends.equals(reader.endOffsets(ends.keySet())), "records without acknowledgement");
            }
        }
    }

    private void transaction() throws Exception {
        String group = "txn" + topic;
        var read = new TopicPartition(topic, 0);
        try (var producer = producer("transaction", Map.of("transactional.id", "id" + topic));
                var reader = consumer("transaction-reader", Map.of("group.id", group))) {
            producer.initTransactions();
            for (boolean commits : new boolean[] {true, false}) {
                producer.beginTransaction();
                var records = List.of(record(0, "in", "transaction"), record(1, "in", "transaction"));
                acknowledged(send(producer, records), true);
                var offset = new OffsetAndMetadata(commits ? 3 : 4, Optional.of(0), "metadata");
                producer.sendOffsetsToTransaction(Map.of(read, offset), new ConsumerGroupMetadata(group));
                if (commits) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                for (int partition = 0; partition < 2; partition++) {
                    if (!commits) {
                        var lost = logs.get(partition).pollLastEntry();
                        aborted.get(partition).put(lost.getKey(), lost.getValue());
                    }
                    // The marker.
                    next[partition]++;
                }
                var committed = reader.committed(Set.of(read)).get(read);
                same(3L, committed.offset(), "committed");
                same("metadata", committed.metadata(), "with the offset");
            }
        }
    }

    private void consume(String name, Map<String, Object> more) throws Exception {
        var found = List.of(new TreeMap<Long, String>(), new TreeMap<Long, String>());
        var wanted = new ArrayList<TreeMap<Long, String>>();
        for (int partition = 0; partition < 2; partition++) {
            wanted.add(new TreeMap<>(logs.get(partition)));
            if (!more.containsKey("isolation.level")) {
                wanted.get(partition).putAll(aborted.get(partition));
            }
        }
        try (var consumer = consumer(name, more)) {
            consumer.subscribe(List.of(topic));
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
            while (found.get(0).size() < wanted.get(0).size() || found.get(1).size() < wanted.get(1).size()) {
                holds(System.nanoTime() < deadline, "records to come: " + found);
                keep(consumer.poll(POLL), found);
            }
            // Some heartbeats, and fetches within a session.
            for (int n = 0; n < 6; n++) {
                keep(consumer.poll(POLL), found);
            }
            same(wanted, found, "records");
            consumer.commitSync();
            consumer.committed(consumer.assignment()).forEach((partition, committed) ->
                same(next[partition.partition()], committed.offset(), "committed of " + partition));
        }
    }

    private void keep(ConsumerRecords<byte[], byte[]> records, List<TreeMap<Long, String>> found) {
        for (var record : records) {
            String said = said(record.timestamp(), record.key(), record.value(), record.headers());
            String twice = found.get(record.partition()).put(record.offset(), said);
            same(null, twice, "read before at " + record.offset());
        }
    }

    /// A position that the log does not hold, times, epochs.
    private void beyond() throws Exception {
        var partition = new TopicPartition(topic, 0);
        try (var consumer = consumer("beyond", Map.of("group.id", "beyond" + topic))) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, new OffsetAndMetadata(1, Optional.of(0), ""));
            first(consumer, 1);
            consumer.seek(partition, 1_000_000);
            first(consumer, 0);
            var time = consumer.offsetsForTimes(Map.of(partition, TIMESTAMP)).get(partition);
            same(0L, time.offset(), "offset by time");
            same(TIMESTAMP, time.timestamp(), "its time");
            same(2, consumer.listTopics().get(topic).size(), "partitions listed");
            same(2, consumer.partitionsFor(topic).size(), "partitions");
        }
    }

    private void first(Consumer<byte[], byte[]> consumer, long offset) throws Exception {
        var records = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        until(() -> {
            consumer.poll(POLL).forEach(records::add);
            return !records.isEmpty();
        }, "records from " + offset);
        same(offset, records.get(0).offset(), "first offset");
    }

    /// One is left open, so that there is something to see and to end.
    private void transactions() {
        var partition = new TopicPartition(topic, 0);
        step("open-transaction", () -> {
            var producer = producer("open-transaction", Map.of("transactional.id", "open" + topic));
            producer.initTransactions();
            producer.beginTransaction();
            acknowledged(send(producer, List.of(record(0, "left", "open"))), true);
            admin("stable-offset", admin -> {
                var committed = new ListOffsetsOptions(IsolationLevel.READ_COMMITTED);
                var asked = Map.of(partition, OffsetSpec.latest());
                same(next[0] - 1, get(admin.listOffsets(asked, committed).all()).get(partition).offset(),
                    "last stable offset");
            });
            admin("list-transactions", admin -> {
                var one = get(admin.listTransactions().all()).stream()
                    .filter(t -> t.transactionalId().equals("open" + topic)).findFirst();
                same(TransactionState.ONGOING, one.get().state(), "state");
            });
            admin("list-ongoing", admin -> holds(get(admin.listTransactions(new ListTransactionsOptions()
                .filterStates(Set.of(TransactionState.ONGOING))).all()).stream()
                .anyMatch(t -> t.transactionalId().equals("open" + topic)), "is listed"));
            admin("list-long", admin -> holds(get(admin.listTransactions(new ListTransactionsOptions()
                .filterOnDuration(3_600_000)).all()).stream()
                .noneMatch(t -> t.transactionalId().equals("open" + topic)), "open for an hour"));
            admin("list-by-pattern", admin -> {
                var found = get(admin.listTransactions(new ListTransactionsOptions()
                    .filterOnTransactionalIdPattern("open" + topic + "|nobody.*")).all());
                same(1, found.size(), "by pattern");
            });
            admin("describe-transactions", admin -> {
                var one = get(admin.describeTransactions(List.of("open" + topic)).all()).get("open" + topic);
                same(TransactionState.ONGOING, one.state(), "state");
                same(Set.of(partition), one.topicPartitions(), "partitions");
                same(60_000L, one.transactionTimeoutMs(), "timeout");
            });
            admin("describe-no-transaction", admin -> refused(
                org.apache.kafka.common.errors.TransactionalIdNotFoundException.class,
                () -> get(admin.describeTransactions(List.of("missing" + topic)).all())));
            admin("describe-producers", admin -> {
                var states = get(admin.describeProducers(List.of(partition)).all());
                var open = states.get(partition).activeProducers().stream()
                    .filter(p -> p.currentTransactionStartOffset().isPresent()).findFirst().get();
                same(next[0] - 1, open.currentTransactionStartOffset().getAsLong(), "start of the transaction");
                get(admin.abortTransaction(new AbortTransactionSpec(partition, open.producerId(),
                    (short) open.producerEpoch(), open.coordinatorEpoch().orElse(0))).all());
                next[0]++;
                states = get(admin.describeProducers(List.of(partition)).all());
                holds(states.get(partition).activeProducers().stream()
                    .allMatch(p -> p.currentTransactionStartOffset().isEmpty()), "none is open");
            });
            admin("fence", admin -> get(admin.fenceProducers(List.of("open" + topic)).all()));
            step("fenced", () -> {
                try {
                    producer.commitTransaction();
                } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                    return;
                }
                throw new AssertionError("it may commit");
            });
            step("taken-over", () -> {
                try (var successor = producer("taken-over", Map.of("transactional.id", "open" + topic))) {
                    successor.initTransactions();
                    successor.beginTransaction();
                    successor.send(record(0, "by", "successor")).get(WAIT_S, TimeUnit.SECONDS);
                    successor.commitTransaction();
                }
            });
        });
        admin("stable-again", admin -> {
            var committed = new ListOffsetsOptions(IsolationLevel.READ_COMMITTED);
            var asked = Map.of(partition, OffsetSpec.latest());
            until(() -> get(admin.listOffsets(asked).all()).get(partition).offset()
                == get(admin.listOffsets(asked, committed).all()).get(partition).offset(), "nothing to be open");
        });
    }
}

// Apache Kafka's own client for Java, as one of the clients of the matrix (suites/clients.py).
// Usage: JavaClient BOOTSTRAP COMMAND ARGUMENTS; the commands are those of every client there.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

public class JavaClient {
    private static final long FIRST_TIMESTAMP = 1_700_000_000_000L;
    private static final int RECORDS = 200;
    private static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        String topic = arguments.length > 2 ? arguments[2] : "";
        switch (arguments[1]) {
            case "version" -> System.out.println(AppInfoParser.getVersion());
            case "defaults" -> defaults();
            case "produce" -> produce(topic, arguments[3], 0);
            case "produce_codecs" -> produceCodecs(topic);
            case "dump" -> dump(topic, Integer.parseInt(arguments[3]));
            case "group" -> group(topic, arguments[3]);
            case "transactions" -> transactions(topic, arguments[3]);
            case "fence" -> fence(topic, arguments[3]);
            default -> throw new IllegalArgumentException(arguments[1]);
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        Map<String, Object> settings = new TreeMap<>(more);
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Map<String, Object> settings = new TreeMap<>(more);
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Where both have a name, the producer's: the rest is the consumer's alone. */
    private static void defaults() {
        Map<String, Object> all = new TreeMap<>(ConsumerConfig.configDef().defaultValues());
        all.putAll(ProducerConfig.configDef().defaultValues());
        all.forEach((name, value) -> System.out.println(name + "=" + value));
    }

    private static byte[] bytes(String text) {
        return text.getBytes();
    }

    /** The records that every client writes; suites/clients.py has the same list. */
    private static List<ProducerRecord<byte[], byte[]>> standard(String topic, int partition) {
        List<Header> headers = List.of(new RecordHeader("h", bytes("1")), new RecordHeader("h", bytes("2")),
            new RecordHeader("empty", new byte[0]), new RecordHeader("null", (byte[]) null));
        byte[][][] shapes = {
            {bytes("key"), bytes("value")}, {null, bytes("no key")}, {new byte[0], new byte[0]},
            {bytes("tombstone"), null}, {null, null}, {{(byte) 0xff}, {0}},
        };
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int n = 0; n < RECORDS; n++) {
            byte[][] pair = n < shapes.length ? shapes[n]
                : new byte[][] {bytes("k" + n), bytes(("compressible " + n + " ").repeat(20))};
            records.add(new ProducerRecord<>(topic, partition, FIRST_TIMESTAMP + n, pair[0], pair[1],
                n == 0 ? headers : List.of()));
        }
        return records;
    }

    private static void produce(String topic, String codec, int partition) throws Exception {
        try (var producer = producer(Map.of("compression.type", codec, "linger.ms", 20))) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            standard(topic, partition).forEach(record -> sent.add(producer.send(record)));
            for (int n = 0; n < sent.size(); n++) {
                if (sent.get(n).get().offset() != n) {
                    throw new IllegalStateException("record " + n + " at " + sent.get(n).get());
                }
            }
        }
        System.out.println("done");
    }

    /** Each codec in a partition of its own, in the order of suites/clients.py. */
    private static void produceCodecs(String topic) throws Exception {
        List<String> codecs = List.of("none", "gzip", "snappy", "lz4", "zstd");
        for (int partition = 0; partition < codecs.size(); partition++) {
            produce(topic, codecs.get(partition), partition);
        }
    }

    private static String hex(byte[] value) {
        return value == null ? "-" : "x" + HexFormat.of().formatHex(value);
    }

    private static void show(ConsumerRecord<byte[], byte[]> record) {
        List<String> fields = new ArrayList<>(List.of(Integer.toString(record.partition()),
            Long.toString(record.offset()), Long.toString(record.timestamp()),
            hex(record.key()), hex(record.value())));
        record.headers().forEach(header -> fields.add(header.key() + "=" + hex(header.value())));
        System.out.println(String.join(" ", fields));
    }

    private static void dump(String topic, int partitions) {
        try (var consumer = consumer(Map.of())) {
            List<TopicPartition> all = new ArrayList<>();
            for (int p = 0; p < partitions; p++) {
                all.add(new TopicPartition(topic, p));
            }
            consumer.assign(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            while (all.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                consumer.poll(Duration.ofMillis(200)).forEach(JavaClient::show);
            }
        }
        System.out.println("done");
    }

    private static void group(String topic, String group) throws Exception {
        var consumer = consumer(Map.of("group.id", group, "session.timeout.ms", 6000,
            "heartbeat.interval.ms", 500));
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }));
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) { }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                System.out.println("assigned " + consumer.assignment().size());
            }
        });
        try {
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println("record " + record.partition() + " " + record.offset());
                }
            }
        } catch (WakeupException stopped) {
            consumer.close();
            System.out.println("left");
        }
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String topic, String value) {
        producer.send(new ProducerRecord<>(topic, 0, null, bytes(value)));
    }

    private static void transactions(String topic, String id) {
        try (var producer = producer(Map.of("transactional.id", id))) {
            producer.initTransactions();
            for (String name : List.of("first", "aborted", "second")) {
                producer.beginTransaction();
                for (int n = 0; n < 5; n++) {
                    send(producer, topic, name + n);
                }
                if (name.equals("aborted")) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        System.out.println("done");
    }

    private static void fence(String topic, String id) {
        try (var first = producer(Map.of("transactional.id", id));
                var second = producer(Map.of("transactional.id", id))) {
            first.initTransactions();
            first.beginTransaction();
            send(first, topic, "lost");
            first.flush();
            second.initTransactions();
            second.beginTransaction();
            send(second, topic, "kept");
            second.commitTransaction();
            try {
                first.commitTransaction();
            } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                System.out.println("fenced");
            }
        }
    }
}

// Traffic for golden frames: the Java client asks for everything it can, once, through the proxy of
// record.py. Usage: Traffic BOOTSTRAP LEVEL; each step is a client of its own, whose client
// id names the step, and a step that a broker of old versions cannot serve is passed over.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

public class Traffic {
    private static final long TIMESTAMP = 1_700_000_000_000L;
    private static final int WAIT_S = 10;
    private static String bootstrap;
    private static String topic;

    interface Step {
        void run() throws Exception;
    }

    interface WithAdmin {
        void run(Admin admin) throws Exception;
    }

    public static void main(String[] arguments) {
        bootstrap = arguments[0];
        topic = "t" + arguments[1];
        topics();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            step("produce-" + codec, () -> produce("produce-" + codec,
                Map.of("compression.type", codec, "enable.idempotence", codec.equals("gzip"))));
        }
        step("produce-acks0", () -> produce("produce-acks0",
            Map.of("acks", "0", "enable.idempotence", false)));
        step("transaction", Traffic::transaction);
        step("consume-classic", () -> consume("consume-classic", Map.of("group.id", "classic" + topic,
            "heartbeat.interval.ms", 200, "partition.assignment.strategy", RangeAssignor.class.getName())));
        step("consume-static", () -> consume("consume-static", Map.of("group.id", "static" + topic,
            "group.instance.id", "instance", "client.rack", "rack",
            "heartbeat.interval.ms", 200,
            "partition.assignment.strategy", CooperativeStickyAssignor.class.getName())));
        step("consume-protocol", () -> consume("consume-protocol",
            Map.of("group.id", "protocol" + topic, "group.protocol", "consumer")));
        step("consume-committed", () -> consume("consume-committed",
            Map.of("group.id", "committed" + topic, "isolation.level", "read_committed")));
        step("beyond", Traffic::beyond);
        groups();
        settings();
        transactions();
        ends();
        System.out.println("done");
        // What a step left half open is of no interest.
        Runtime.getRuntime().halt(0);
    }

    private static void step(String name, Step step) {
        try {
            step.run();
        } catch (Exception | Error refused) {
            System.out.println(name + ": " + refused);
        }
    }

    private static Map<String, Object> common(String name) {
        return new TreeMap<>(Map.of("bootstrap.servers", bootstrap, "client.id", name,
            "request.timeout.ms", 5000, "default.api.timeout.ms", 8000));
    }

    private static void admin(String name, WithAdmin step) {
        step(name, () -> {
            try (Admin admin = Admin.create(common(name))) {
                step.run(admin);
            }
        });
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }

    private static KafkaProducer<byte[], byte[]> producer(String name, Map<String, Object> more) {
        Map<String, Object> settings = common(name);
        settings.remove("default.api.timeout.ms");
        settings.put("delivery.timeout.ms", 8000);
        settings.put("max.block.ms", 8000);
        settings.put("linger.ms", 50);
        settings.putAll(more);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String name, Map<String, Object> more) {
        Map<String, Object> settings = common(name);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("fetch.max.wait.ms", 100);
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static ProducerRecord<byte[], byte[]> record(int partition, String key, String value) {
        var record = new ProducerRecord<>(topic, partition, TIMESTAMP, key == null ? null : key.getBytes(),
            value == null ? null : value.getBytes());
        if ("headers".equals(key)) {
            record.headers().add(new RecordHeader("h", "1".getBytes()));
            record.headers().add(new RecordHeader("h", null));
            record.headers().add(new RecordHeader("", new byte[0]));
        }
        return record;
    }

    private static void produce(String name, Map<String, Object> more) throws Exception {
        try (var producer = producer(name, more)) {
            for (int partition = 0; partition < 2; partition++) {
                producer.send(record(partition, "headers", "value"));
                producer.send(record(partition, null, "no key"));
                producer.send(record(partition, "tombstone", null));
                producer.send(record(partition, "", ""));
                producer.send(record(partition, "long", "again and ".repeat(20)));
            }
            producer.flush();
            producer.send(record(0, "second", "batch")).get(WAIT_S, TimeUnit.SECONDS);
        }
    }

    private static void transaction() throws Exception {
        String group = "txn" + topic;
        try (var producer = producer("transaction", Map.of("transactional.id", "id" + topic));
                var reader = consumer("transaction-reader", Map.of("group.id", group))) {
            producer.initTransactions();
            for (boolean commits : new boolean[] {true, false}) {
                producer.beginTransaction();
                producer.send(record(0, "in", "transaction"));
                producer.send(record(1, "in", "transaction"));
                producer.flush();
                var offset = new OffsetAndMetadata(3, Optional.of(0), "metadata");
                producer.sendOffsetsToTransaction(Map.of(new TopicPartition(topic, 0), offset),
                    new ConsumerGroupMetadata(group));
                if (commits) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
    }

    private static void consume(String name, Map<String, Object> more) {
        var consumer = consumer(name, more);
        consumer.subscribe(List.of(topic));
        int seen = 0;
        long deadline = System.currentTimeMillis() + 6000;
        while (seen < 8 && System.currentTimeMillis() < deadline) {
            seen += consumer.poll(Duration.ofMillis(100)).count();
        }
        // Some heartbeats, and fetches within a session.
        for (int n = 0; n < 6; n++) {
            consumer.poll(Duration.ofMillis(100));
        }
        consumer.commitSync();
        consumer.committed(consumer.assignment());
        consumer.close();
    }

    /// A position that the log does not hold, times, epochs.
    private static void beyond() {
        var partition = new TopicPartition(topic, 0);
        try (var consumer = consumer("beyond", Map.of("group.id", "beyond" + topic))) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, new OffsetAndMetadata(1, Optional.of(0), ""));
            consumer.poll(Duration.ofMillis(300));
            consumer.seek(partition, 1_000_000);
            consumer.poll(Duration.ofMillis(300));
            consumer.offsetsForTimes(Map.of(partition, TIMESTAMP));
            consumer.listTopics();
            consumer.partitionsFor(topic);
        }
    }

    private static void topics() {
        admin("create-topics", admin -> {
            var assigned = new NewTopic(topic + "-assigned", Map.of(0, List.of(1), 1, List.of(1)));
            get(admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1).configs(
                Map.of("retention.ms", "100000000")), assigned)).all());
            get(admin.createTopics(List.of(new NewTopic(topic + "-default", Optional.empty(),
                Optional.empty()))).all());
        });
        admin("create-again", admin -> get(admin.createTopics(
            List.of(new NewTopic(topic, 1, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all()));
        admin("create-partitions", admin -> get(admin.createPartitions(
            Map.of(topic + "-assigned", NewPartitions.increaseTo(3, List.of(List.of(1))))).all()));
        admin("describe-topics", admin -> get(admin.describeTopics(List.of(topic, topic + "-assigned"))
            .allTopicNames()));
        admin("describe-missing", admin -> get(admin.describeTopics(List.of("missing")).allTopicNames()));
        admin("describe-id", admin -> get(admin.describeTopics(
            TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).allTopicIds()));
        admin("list-topics", admin -> get(admin.listTopics(new ListTopicsOptions().listInternal(true)).names()));
        admin("describe-cluster", admin -> {
            var options = new DescribeClusterOptions().includeAuthorizedOperations(true);
            get(admin.describeCluster(options).nodes());
            get(admin.describeCluster(new DescribeClusterOptions().includeFencedBrokers(true)).nodes());
        });
        admin("describe-features", admin -> get(admin.describeFeatures().featureMetadata()));
    }

    private static void groups() {
        String classic = "classic" + topic;
        String protocol = "protocol" + topic;
        var partition = new TopicPartition(topic, 0);
        var members = new ArrayList<KafkaConsumer<byte[], byte[]>>();
        for (String name : List.of("classic", "protocol")) {
            step("member-" + name, () -> {
                var consumer = consumer("member-" + name, Map.of("group.id", name + topic,
                    "group.protocol", name.equals("protocol") ? "consumer" : "classic"));
                members.add(consumer);
                consumer.subscribe(List.of(topic));
                for (int n = 0; n < 6; n++) {
                    consumer.poll(Duration.ofMillis(100));
                }
            });
        }
        admin("list-groups", admin -> {
            get(admin.listGroups().all());
            get(admin.listConsumerGroups(new ListConsumerGroupsOptions()
                .inGroupStates(Set.of(org.apache.kafka.common.GroupState.STABLE))).all());
        });
        for (String group : List.of(classic, protocol, "missing")) {
            admin("describe-groups", admin -> get(admin.describeConsumerGroups(List.of(group),
                new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true)).all()));
            admin("describe-classic", admin -> get(admin.describeClassicGroups(List.of(group)).all()));
        }
        members.forEach(consumer -> step("close", consumer::close));
        admin("remove-members", admin -> get(admin.removeMembersFromConsumerGroup("static" + topic,
            new RemoveMembersFromConsumerGroupOptions(
                Set.of(new MemberToRemove("instance")))).all()));
        admin("list-offsets", admin -> {
            for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(),
                    OffsetSpec.forTimestamp(TIMESTAMP), OffsetSpec.maxTimestamp(),
                    OffsetSpec.earliestLocal(), OffsetSpec.latestTiered())) {
                step("list-offsets", () -> get(admin.listOffsets(Map.of(partition, spec)).all()));
            }
        });
        admin("group-offsets", admin -> {
            get(admin.listConsumerGroupOffsets(classic).partitionsToOffsetAndMetadata());
            var both = Map.of(classic, new ListConsumerGroupOffsetsSpec(),
                protocol, new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(partition)));
            get(admin.listConsumerGroupOffsets(both).all());
        });
        admin("alter-offsets", admin -> get(admin.alterConsumerGroupOffsets(classic,
            Map.of(partition, new OffsetAndMetadata(2, "by hand"))).all()));
        admin("delete-offsets", admin -> get(admin.deleteConsumerGroupOffsets(classic,
            Set.of(partition)).all()));
        admin("delete-groups", admin -> get(admin.deleteConsumerGroups(
            List.of(classic, protocol, "missing")).all()));
    }

    private static void settings() {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        admin("describe-configs", admin -> get(admin.describeConfigs(List.of(resource),
            new DescribeConfigsOptions().includeSynonyms(true)).all()));
        admin("describe-documented", admin -> get(admin.describeConfigs(
            List.of(new ConfigResource(ConfigResource.Type.GROUP, "classic" + topic)),
            new DescribeConfigsOptions().includeDocumentation(true)).all()));
        admin("alter-configs", admin -> get(admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "1000000"), AlterConfigOp.OpType.SET),
            new AlterConfigOp(new ConfigEntry("segment.bytes", ""), AlterConfigOp.OpType.DELETE)))).all()));
        admin("alter-wrongly", admin -> get(admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("no.such", "1"), AlterConfigOp.OpType.SET))),
            new AlterConfigsOptions().validateOnly(true)).all()));
        admin("config-resources", admin -> get(admin.listConfigResources().all()));
        admin("client-metrics", admin -> get(admin.listConfigResources(
            Set.of(ConfigResource.Type.CLIENT_METRICS), new ListConfigResourcesOptions()).all()));
        admin("log-dirs", admin -> get(admin.describeLogDirs(List.of(1)).allDescriptions()));
        admin("describe-acls", admin -> get(admin.describeAcls(AclBindingFilter.ANY).values()));
        admin("elect-leaders", admin -> get(admin.electLeaders(ElectionType.PREFERRED,
            Set.of(new TopicPartition(topic, 0))).all()));
        admin("reassignments", admin -> {
            get(admin.listPartitionReassignments().reassignments());
            get(admin.listPartitionReassignments(Set.of(new TopicPartition(topic, 0))).reassignments());
        });
    }

    private static void transactions() {
        var partition = new TopicPartition(topic, 0);
        step("open-transaction", () -> {
            // Left open, so that there is something to see and to end.
            var producer = producer("open-transaction", Map.of("transactional.id", "open" + topic));
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(record(0, "left", "open")).get(WAIT_S, TimeUnit.SECONDS);
            admin("describe-producers", admin -> {
                var states = get(admin.describeProducers(List.of(partition)).all());
                var open = states.get(partition).activeProducers().stream()
                    .filter(p -> p.currentTransactionStartOffset().isPresent()).findFirst();
                get(admin.abortTransaction(new AbortTransactionSpec(partition, open.get().producerId(),
                    (short) open.get().producerEpoch(), open.get().coordinatorEpoch().orElse(0))).all());
            });
            admin("list-transactions", admin -> {
                get(admin.listTransactions().all());
                get(admin.listTransactions(new ListTransactionsOptions()
                    .filterStates(Set.of(TransactionState.ONGOING)).filterOnDuration(1)).all());
            });
            admin("list-by-pattern", admin -> get(admin.listTransactions(new ListTransactionsOptions()
                .filterOnTransactionalIdPattern("open.*")).all()));
            admin("describe-transactions", admin -> get(admin.describeTransactions(
                List.of("open" + topic)).all()));
            admin("describe-no-transaction", admin -> get(admin.describeTransactions(
                List.of("missing")).all()));
            admin("fence", admin -> get(admin.fenceProducers(List.of("open" + topic)).all()));
            step("fenced", producer::commitTransaction);
        });
    }

    private static void ends() {
        admin("delete-records", admin -> get(admin.deleteRecords(Map.of(
            new TopicPartition(topic, 0), RecordsToDelete.beforeOffset(2),
            new TopicPartition(topic, 1), RecordsToDelete.beforeOffset(1_000_000))).all()));
        admin("delete-topics", admin -> {
            get(admin.deleteTopics(List.of(topic + "-default")).all());
            get(admin.deleteTopics(List.of("missing")).all());
        });
        admin("delete-id", admin -> {
            var described = get(admin.describeTopics(List.of(topic + "-assigned")).allTopicNames());
            get(admin.deleteTopics(TopicCollection.ofTopicIds(
                List.of(described.get(topic + "-assigned").topicId()))).all());
        });
    }
}

// What this broker does not have, asked for by Kafka's own client: a line an attempt says how long it
// took and what the client was told. Usage: Refusals BOOTSTRAP TOPIC.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

public class Refusals extends Steps {
    private final String source;

    Refusals(String bootstrap, String source) {
        super(bootstrap, "0", false);
        this.source = source;
    }

    public static void main(String[] arguments) {
        new Refusals(arguments[0], arguments[1]).run();
        System.out.println("done");
        Runtime.getRuntime().halt(0);
    }

    private void attempt(String name, Step step) {
        long begin = System.nanoTime();
        String said = "nothing was said";
        try {
            step.run();
        } catch (Exception | AssertionError refused) {
            Throwable cause = refused instanceof ExecutionException ? refused.getCause() : refused;
            said = cause.getClass().getSimpleName() + ": " + cause.getMessage();
        }
        long millis = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begin);
        System.out.println(name + " " + millis + " " + said.replace('\n', ' '));
    }

    private void asks(String name, WithAdmin step) {
        // Connected before the clock runs.
        try (Admin admin = Admin.create(common(name))) {
            get(admin.describeCluster().nodes());
            attempt(name, () -> step.run(admin));
        } catch (Exception failed) {
            System.out.println(name + " 0 no connection: " + failed);
        }
    }

    private void run() {
        // First, so that what comes next does not wait for a JVM to begin.
        telemetry();
        attempt("share-consumer", this::share);
        attempt("streams-protocol", this::streams);
        var user = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "orders"));
        asks("describe-quotas", admin -> get(admin.describeClientQuotas(ClientQuotaFilter.all()).entities()));
        asks("alter-quotas", admin -> get(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(user,
            List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1000.0))))).all()));
        asks("describe-scram", admin -> get(admin.describeUserScramCredentials().all()));
        asks("alter-scram", admin -> get(admin.alterUserScramCredentials(List.of(
            new UserScramCredentialUpsertion("orders", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096),
                "password"))).all()));
        asks("create-token", admin -> get(admin.createDelegationToken().delegationToken()));
        asks("describe-tokens", admin -> get(admin.describeDelegationToken().delegationTokens()));
        asks("describe-share-groups", admin -> get(admin.describeShareGroups(List.of("shared")).all()));
        asks("describe-streams-groups", admin -> get(admin.describeStreamsGroups(List.of("streams")).all()));
        asks("move-replicas", admin -> get(admin.alterPartitionReassignments(Map.of(
            new TopicPartition(source, 0), Optional.of(new NewPartitionReassignment(List.of(1))))).all()));
        asks("move-directories", admin -> get(admin.alterReplicaLogDirs(Map.of(
            new org.apache.kafka.common.TopicPartitionReplica(source, 0, 1), "/elsewhere")).all()));
        asks("quorum", admin -> get(admin.describeMetadataQuorum().quorumInfo()));
        asks("update-features", admin -> get(admin.updateFeatures(Map.of("transaction.version",
            new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.SAFE_DOWNGRADE)), new UpdateFeaturesOptions())
            .all()));
        asks("unregister-broker", admin -> get(admin.unregisterBroker(1).all()));
        var metrics = new ConfigResource(ConfigResource.Type.CLIENT_METRICS, "all");
        asks("metrics-subscription", admin -> get(admin.incrementalAlterConfigs(Map.of(metrics, List.of(
            new AlterConfigOp(new ConfigEntry("interval.ms", "1000"), AlterConfigOp.OpType.SET)))).all()));
    }

    private void share() {
        Map<String, Object> settings = common("share");
        settings.put("group.id", "shared");
        try (var consumer = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(),
                new ByteArrayDeserializer())) {
            consumer.subscribe(Set.of(source));
            for (int n = 0; n < 300; n++) {
                consumer.poll(POLL);
            }
        }
    }

    private void streams() throws Exception {
        var settings = new Properties();
        settings.putAll(Map.of("application.id", "streams", "bootstrap.servers", bootstrap,
            "group.protocol", "streams", "default.key.serde", Serdes.ByteArraySerde.class,
            "default.value.serde", Serdes.ByteArraySerde.class,
            "state.dir", System.getProperty("java.io.tmpdir") + "/refusals-" + ProcessHandle.current().pid()));
        var builder = new StreamsBuilder();
        builder.stream(source).to(source + "-copied");
        var told = new ArrayBlockingQueue<Throwable>(1);
        try (var streams = new KafkaStreams(builder.build(), settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                told.offer(error);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            Throwable error = told.poll(2 * WAIT_S, TimeUnit.SECONDS);
            if (error != null) {
                throw new ExecutionException(error);
            }
        }
    }

    /// Every client pushes its metrics where a broker takes them; here it goes on without.
    private void telemetry() {
        attempt("telemetry", () -> {
            try (var producer = producer("pushing", Map.of("enable.metrics.push", true));
                    var consumer = consumer("pushing-reader", Map.of("enable.metrics.push", true))) {
                consumer.assign(List.of(new TopicPartition(source, 0)));
                for (int n = 0; n < 20; n++) {
                    producer.send(new ProducerRecord<>(source, 0, null, new byte[1])).get(WAIT_S, TimeUnit.SECONDS);
                }
                int[] read = {0};
                until(() -> {
                    read[0] += consumer.poll(Duration.ofMillis(100)).count();
                    return read[0] == 20;
                }, "20 records");
            }
        });
    }
}

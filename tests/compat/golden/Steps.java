// What the steps of Traffic have in common: their clients, whose ids name the step and, where the
// proxy tells levels apart by them, the view; what is said of a step; what it may claim.

import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.errors.UnsupportedCompressionTypeException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

abstract class Steps {
    static final long TIMESTAMP = 1_700_000_000_000L;
    static final int WAIT_S = 15;
    final String bootstrap;
    final String view;
    final String topic;
    /// How many versions older the broker looks.
    final int level;
    private final boolean names;

    interface Step {
        void run() throws Exception;
    }

    interface WithAdmin {
        void run(Admin admin) throws Exception;
    }

    Steps(String bootstrap, String view, boolean names) {
        this.bootstrap = bootstrap;
        this.view = view;
        this.names = names;
        topic = "t" + view;
        level = Integer.parseInt(view.replace("f", ""));
    }

    /// Says what became of it: `ok`, `unsupported` by a broker of old versions, or what went wrong.
    void step(String name, Step step) {
        String said = "ok";
        try {
            step.run();
        } catch (Exception | AssertionError refused) {
            Throwable cause = refused instanceof ExecutionException ? refused.getCause() : refused;
            boolean unable = cause instanceof UnsupportedVersionException
                || cause instanceof UnsupportedCompressionTypeException;
            said = unable ? "unsupported" : "FAILED: " + cause;
        }
        System.out.println(view + " " + name + " " + said.replace('\n', ' '));
    }

    void admin(String name, WithAdmin step) {
        step(name, () -> {
            try (Admin admin = Admin.create(common(name))) {
                step.run(admin);
            }
        });
    }

    Map<String, Object> common(String name) {
        return new TreeMap<>(Map.of("bootstrap.servers", bootstrap,
            "client.id", names ? name + "@" + view : name,
            "request.timeout.ms", 10000, "default.api.timeout.ms", 12000));
    }

    KafkaProducer<byte[], byte[]> producer(String name, Map<String, Object> more) {
        Map<String, Object> settings = common(name);
        settings.remove("default.api.timeout.ms");
        settings.put("delivery.timeout.ms", 12000);
        settings.put("max.block.ms", 12000);
        settings.put("linger.ms", 50);
        settings.putAll(more);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    KafkaConsumer<byte[], byte[]> consumer(String name, Map<String, Object> more) {
        Map<String, Object> settings = common(name);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("fetch.max.wait.ms", 100);
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    ProducerRecord<byte[], byte[]> record(int partition, String key, String value) {
        return new ProducerRecord<>(topic, partition, TIMESTAMP, key == null ? null : key.getBytes(),
            value == null ? null : value.getBytes());
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }

    static void same(Object wanted, Object found, String what) {
        if (!Objects.equals(wanted, found)) {
            throw new AssertionError(what + ": " + found + ", not " + wanted);
        }
    }

    static void holds(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    /// The call is refused, with this error or one of its kind.
    static void refused(Class<? extends Exception> wanted, Callable<?> call) throws Exception {
        Object answer;
        try {
            answer = call.call();
        } catch (Exception thrown) {
            Throwable cause = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
            if (wanted.isInstance(cause)) {
                return;
            }
            throw thrown;
        }
        throw new AssertionError("answered with " + answer + ", not " + wanted.getSimpleName());
    }

    /// Gives up what the client does not do at this level and beyond, where it would only wait.
    static void below(int beyond, int level) {
        if (level >= beyond) {
            throw new UnsupportedVersionException("not tried");
        }
    }

    static void until(Callable<Boolean> condition, String what) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
        while (!condition.call()) {
            holds(System.nanoTime() < deadline, "waited for " + what);
            Thread.sleep(20);
        }
    }

    static final Duration POLL = Duration.ofMillis(100);
}

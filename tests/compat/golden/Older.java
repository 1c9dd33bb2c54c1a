// What only an older Java client asks: settings replaced as a whole, and transactions of the first
// kind by a client that knows no other. Usage: Older BOOTSTRAP VIEW...; compiled against its jar.

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.utils.AppInfoParser;

public class Older extends Steps {
    Older(String bootstrap, String view, boolean names) {
        super(bootstrap, view, names);
    }

    public static void main(String[] arguments) {
        boolean many = arguments.length > 2;
        for (String view : List.of(arguments).subList(1, arguments.length)) {
            new Older(arguments[0], view, many).run();
        }
        System.out.println("done with " + AppInfoParser.getVersion());
        Runtime.getRuntime().halt(0);
    }

    private String own() {
        return "older-" + topic;
    }

    private void run() {
        admin("create", admin -> get(admin.createTopics(List.of(new NewTopic(own(), 1, (short) 1).configs(
            Map.of("max.message.bytes", "2000000")))).all()));
        admin("alter-configs", this::replace);
        step("transactions", this::transactions);
        step("fenced", this::fenced);
    }

    /// Settings that are not named go.
    @SuppressWarnings("deprecation")
    private void replace(org.apache.kafka.clients.admin.Admin admin) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, own());
        var wanted = new Config(List.of(new ConfigEntry("segment.bytes", "2097152")));
        get(admin.alterConfigs(Map.of(resource, wanted)).all());
        until(() -> "2097152".equals(get(admin.describeConfigs(List.of(resource)).all()).get(resource)
            .get("segment.bytes").value()), "the setting");
        same("1048588", get(admin.describeConfigs(List.of(resource)).all()).get(resource)
            .get("max.message.bytes").value(), "what was not named");
        var wrong = new Config(List.of(new ConfigEntry("segment.bytes", "many")));
        refused(InvalidConfigurationException.class, () -> get(admin.alterConfigs(Map.of(resource, wrong)).all()));
    }

    private void transactions() throws Exception {
        var partition = new TopicPartition(own(), 0);
        String group = "older-group-" + topic;
        try (var producer = producer("older", Map.of("transactional.id", own()));
                var reader = consumer("older-reader", Map.of("group.id", group, "isolation.level", "read_committed"))) {
            producer.initTransactions();
            for (int n = 0; n < 4; n++) {
                producer.beginTransaction();
                producer.send(new org.apache.kafka.clients.producer.ProducerRecord<>(own(), 0, TIMESTAMP,
                    null, ("" + n).getBytes()));
                producer.flush();
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(n)),
                    new ConsumerGroupMetadata(group));
                if (n % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            same(2L, reader.committed(Set.of(partition)).get(partition).offset(), "committed");
            reader.assign(List.of(partition));
            reader.seek(partition, 0);
            var found = new StringBuilder();
            until(() -> {
                reader.poll(POLL).forEach(record -> found.append(new String(record.value())));
                return reader.position(partition) == 8;
            }, "the end of the log, behind the last marker");
            same("02", found.toString(), "committed records");
        }
    }

    private void fenced() throws Exception {
        try (var first = producer("older-first", Map.of("transactional.id", own()));
                var second = producer("older-second", Map.of("transactional.id", own()))) {
            first.initTransactions();
            first.beginTransaction();
            second.initTransactions();
            refused(ProducerFencedException.class, () -> {
                first.send(new org.apache.kafka.clients.producer.ProducerRecord<>(own(), 0, null, new byte[1]));
                first.commitTransaction();
                return "committed";
            });
        }
    }
}

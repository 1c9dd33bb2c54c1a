import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.TopicPartition;

/**
 * What Kafka's own assignors make of groups that are read from standard input, one a line:
 * {@code assignor;topic=count,...;member|instance|topic,...|topic:partition,...|generation;...}. Prints the
 * line again with {@code " => member=topic:partition,...;..."} behind it.
 */
public class Assignors {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (!line.isBlank()) {
                String group = line.split(" => ")[0];
                System.out.println(group + " => " + shares(group.split(";")));
            }
        }
    }

    private static String shares(String[] words) {
        Map<String, Integer> counts = new HashMap<>();
        for (String topic : words[1].split(",")) {
            counts.put(topic.split("=")[0], Integer.parseInt(topic.split("=")[1]));
        }
        Map<String, Subscription> members = new TreeMap<>();
        for (String word : Arrays.copyOfRange(words, 2, words.length)) {
            String[] parts = word.split("\\|", -1);
            members.put(parts[0], subscription(words[0], parts));
        }
        // A leader knows of no other topics.
        counts.keySet().retainAll(members.values().stream().flatMap(m -> m.topics().stream()).toList());
        Map<String, List<TopicPartition>> shares = assignor(words[0]).assign(counts, members);
        return new TreeMap<>(shares).entrySet().stream()
                .map(share -> share.getKey() + "=" + share.getValue().stream()
                        .map(p -> p.topic() + ":" + p.partition())
                        .collect(Collectors.toCollection(TreeSet::new)).stream()
                        .collect(Collectors.joining(",")))
                .collect(Collectors.joining(";"));
    }

    private static Subscription subscription(String assignor, String[] parts) {
        List<String> topics = Arrays.asList(parts[2].split(","));
        List<TopicPartition> owned = new ArrayList<>();
        for (String name : parts[3].split(",")) {
            if (!name.isEmpty()) {
                owned.add(new TopicPartition(name.split(":")[0], Integer.parseInt(name.split(":")[1])));
            }
        }
        int generation = Integer.parseInt(parts[4]);
        ByteBuffer data = null;
        if (assignor.equals("sticky") && generation >= 0) {
            // As a member would write it that was given this before.
            StickyAssignor member = new StickyAssignor();
            ConsumerGroupMetadata group = new ConsumerGroupMetadata("g", generation, parts[0], Optional.empty());
            member.onAssignment(new Assignment(owned), group);
            data = member.subscriptionUserData(new TreeSet<>(topics));
        }
        List<TopicPartition> held = assignor.equals("cooperative-sticky") ? owned : List.of();
        Subscription subscription = new Subscription(topics, data, held, generation, Optional.empty());
        if (!parts[1].isEmpty()) {
            subscription.setGroupInstanceId(Optional.of(parts[1]));
        }
        return subscription;
    }

    private static AbstractPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }
}

// The steps of Traffic about groups that other steps have filled, and about offsets by time.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;

class Groups {
    private final Steps with;
    private final String classic;
    private final String protocol;
    private final TopicPartition partition;
    /// Those of the two that this client can fill.
    private final List<String> filled;
    private final List<KafkaConsumer<byte[], byte[]>> members = new ArrayList<>();

    Groups(Steps with) {
        this.with = with;
        classic = "classic" + with.topic;
        protocol = "protocol" + with.topic;
        filled = with.level < Traffic.NO_CONSUMER_PROTOCOL ? List.of(classic, protocol) : List.of(classic);
        partition = new TopicPartition(with.topic, 0);
    }

    void steps(long[] ends) {
        join("classic", classic);
        if (filled.contains(protocol)) {
            join("protocol", protocol);
        }
        described();
        members.forEach(consumer -> with.step("close", consumer::close));
        with.admin("remove-members", admin -> {
            Steps.below(Traffic.NO_STATIC_MEMBERS, with.level);
            String group = "static" + with.topic;
            get(admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(
                Set.of(new MemberToRemove("instance")))).all());
            same(GroupState.EMPTY, get(admin.describeConsumerGroups(List.of(group)).all()).get(group)
                .groupState(), "state");
        });
        times();
        offsets(ends);
    }

    private void join(String name, String group) {
        with.step("member-" + name, () -> {
            var consumer = with.consumer("member-" + name, Map.of("group.id", group,
                "group.protocol", name.equals("protocol") ? "consumer" : "classic"));
            members.add(consumer);
            consumer.subscribe(List.of(with.topic));
            Steps.until(() -> {
                consumer.poll(Steps.POLL);
                return consumer.assignment().size() == 2;
            }, "both partitions");
        });
    }

    private void described() {
        with.admin("list-groups", admin -> {
            var found = get(admin.listGroups().all()).stream()
                .map(GroupListing::groupId).collect(Collectors.toSet());
            boolean transactions = with.level < Traffic.NO_TRANSACTIONS;
            same(transactions, found.contains("txn" + with.topic), "offsets of a transaction");
            Steps.holds(found.containsAll(filled), "groups: " + found);
        });
        with.admin("list-stable", admin -> {
            var found = get(admin.listConsumerGroups(new ListConsumerGroupsOptions()
                .inGroupStates(Set.of(GroupState.STABLE))).all()).stream()
                .map(ConsumerGroupListing::groupId).collect(Collectors.toSet());
            Steps.holds(found.containsAll(filled), "stable: " + found);
            Steps.holds(!found.contains("committed" + with.topic), "without members: " + found);
        });
        for (String group : filled) {
            String name = group.replace(with.topic, "");
            with.admin("describe-" + name, admin -> describe(admin, group, new DescribeConsumerGroupsOptions()));
            with.admin("describe-rights-" + name, admin -> {
                var options = new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true);
                var may = describe(admin, group, options).authorizedOperations();
                Steps.holds(may != null && !may.isEmpty(), "what may be done: " + may);
            });
        }
        with.admin("describe-missing-group", admin -> {
            String missing = "missing" + with.topic;
            // DescribeGroups says so from version 6 on.
            if (with.level == 0) {
                Steps.refused(GroupIdNotFoundException.class,
                    () -> get(admin.describeConsumerGroups(List.of(missing)).all()));
            } else {
                same(GroupState.DEAD, get(admin.describeConsumerGroups(List.of(missing)).all()).get(missing)
                    .groupState(), "state");
            }
        });
        with.admin("describe-classic", admin -> {
            var found = get(admin.describeClassicGroups(List.of(classic)).all()).get(classic);
            same(1, found.members().size(), "members");
            same("consumer", found.protocol(), "type of protocol");
        });
        with.admin("delete-stable", admin -> Steps.refused(GroupNotEmptyException.class,
            () -> get(admin.deleteConsumerGroups(List.of(classic)).all())));
    }

    private ConsumerGroupDescription describe(Admin admin, String group, DescribeConsumerGroupsOptions how)
            throws Exception {
        var found = get(admin.describeConsumerGroups(List.of(group), how).all()).get(group);
        same(GroupState.STABLE, found.groupState(), "state");
        same(1, found.members().size(), "members");
        var member = found.members().iterator().next();
        Steps.holds(member.clientId().startsWith("member-"), "client: " + member.clientId());
        same(2, member.assignment().topicPartitions().size(), "partitions assigned");
        return found;
    }

    /// Three records whose times are out of order, in a partition of their own.
    private void times() {
        String name = with.topic + "-assigned";
        var other = new TopicPartition(name, 2);
        with.step("produce-times", () -> {
            try (var producer = with.producer("produce-times", Map.of())) {
                for (int later : new int[] {1, 5, 3}) {
                    producer.send(new ProducerRecord<>(name, 2, Steps.TIMESTAMP + later, null, new byte[1]));
                    producer.flush();
                }
            }
        });
        var specs = List.of(OffsetSpec.earliest(), OffsetSpec.latest(),
            OffsetSpec.forTimestamp(Steps.TIMESTAMP + 2), OffsetSpec.forTimestamp(Steps.TIMESTAMP + 6),
            OffsetSpec.maxTimestamp(), OffsetSpec.earliestLocal(), OffsetSpec.latestTiered(),
            OffsetSpec.earliestPendingUpload());
        var wanted = List.of(0L, 3L, 1L, -1L, 1L, 0L, -1L, -1L);
        for (int n = 0; n < specs.size(); n++) {
            var spec = specs.get(n);
            long offset = wanted.get(n);
            with.admin("list-offsets-" + n, admin -> same(offset,
                get(admin.listOffsets(Map.of(other, spec)).all()).get(other).offset(), "" + spec));
        }
    }

    private void offsets(long[] ends) {
        with.admin("group-offsets", admin -> {
            var one = get(admin.listConsumerGroupOffsets(classic).partitionsToOffsetAndMetadata());
            same(ends[0], one.get(partition).offset(), "of partition 0");
            same(ends[1], one.get(new TopicPartition(with.topic, 1)).offset(), "of partition 1");
            String other = "committed" + with.topic;
            var both = Map.of(classic, new ListConsumerGroupOffsetsSpec(),
                other, new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(partition)));
            var found = get(admin.listConsumerGroupOffsets(both).all());
            same(one, found.get(classic), "of one of two groups");
            same(Set.of(partition), found.get(other).keySet(), "the partitions that were asked for");
            same(ends[0], found.get(other).get(partition).offset(), "of the other");
        });
        with.admin("alter-offsets", admin -> {
            var wanted = new OffsetAndMetadata(2, "by hand");
            get(admin.alterConsumerGroupOffsets(classic, Map.of(partition, wanted)).all());
            same(wanted, committed(admin).get(partition), "altered");
        });
        with.admin("delete-offsets", admin -> {
            get(admin.deleteConsumerGroupOffsets(classic, Set.of(partition)).all());
            var left = committed(admin);
            same(null, left.get(partition), "deleted");
            same(ends[1], left.get(new TopicPartition(with.topic, 1)).offset(), "left");
        });
        with.admin("delete-groups", admin -> {
            String missing = "missing" + with.topic;
            var all = new ArrayList<>(filled);
            all.add(missing);
            var gone = admin.deleteConsumerGroups(all).deletedGroups();
            for (String group : filled) {
                get(gone.get(group));
            }
            Steps.refused(GroupIdNotFoundException.class, () -> get(gone.get(missing)));
            var left = get(admin.listGroups().all()).stream()
                .map(GroupListing::groupId).collect(Collectors.toSet());
            Steps.holds(filled.stream().noneMatch(left::contains), "left: " + left);
        });
    }

    private Map<TopicPartition, OffsetAndMetadata> committed(Admin admin) throws Exception {
        var asked = new ListConsumerGroupOffsetsSpec()
            .topicPartitions(List.of(partition, new TopicPartition(with.topic, 1)));
        return get(admin.listConsumerGroupOffsets(Map.of(classic, asked)).all()).get(classic);
    }

    private static <T> T get(org.apache.kafka.common.KafkaFuture<T> future) throws Exception {
        return Steps.get(future);
    }

    private static void same(Object wanted, Object found, String what) {
        Steps.same(wanted, found, what);
    }
}

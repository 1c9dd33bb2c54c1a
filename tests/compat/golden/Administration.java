// The steps of Traffic about topics, settings and the broker itself.

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.resource.*;

class Administration {
    private final Steps with;
    private final String topic;
    private final TopicPartition partition;

    Administration(Steps with) {
        this.with = with;
        topic = with.topic;
        partition = new TopicPartition(topic, 0);
    }

    void topics() {
        with.admin("create-topics", admin -> {
            var assigned = new NewTopic(topic + "-assigned", Map.of(0, List.of(1), 1, List.of(1)));
            var gone = new NewTopic(topic + "-gone", 1, (short) 1);
            // Longer than the records are old.
            get(admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1).configs(
                Map.of("retention.ms", "3000000000000")), assigned, gone)).all());
        });
        with.admin("create-default", admin -> get(admin.createTopics(List.of(
            new NewTopic(topic + "-default", Optional.empty(), Optional.empty()))).all()));
        with.admin("create-again", admin -> Steps.refused(TopicExistsException.class, () -> get(
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1)),
                new CreateTopicsOptions().validateOnly(true)).all())));
        with.admin("create-not", admin -> {
            get(admin.createTopics(List.of(new NewTopic(topic + "-not", 1, (short) 1)),
                new CreateTopicsOptions().validateOnly(true)).all());
            Steps.holds(!get(admin.listTopics().names()).contains(topic + "-not"), "it was to be checked only");
        });
        with.admin("create-partitions", admin -> get(admin.createPartitions(
            Map.of(topic + "-assigned", NewPartitions.increaseTo(3, List.of(List.of(1))))).all()));
        with.admin("fewer-partitions", admin -> Steps.refused(InvalidPartitionsException.class, () -> get(
            admin.createPartitions(Map.of(topic + "-assigned", NewPartitions.increaseTo(2))).all())));
        with.admin("describe-topics", admin -> {
            var names = List.of(topic, topic + "-assigned");
            Steps.until(() -> get(admin.describeTopics(names).allTopicNames()).get(topic + "-assigned")
                .partitions().size() == 3, "more partitions");
            var found = get(admin.describeTopics(names).allTopicNames());
            same(2, found.get(topic).partitions().size(), "partitions");
            for (var described : found.get(topic).partitions()) {
                same(1, described.leader().id(), "leader");
                same(1, described.isr().size(), "in sync");
            }
        });
        with.admin("describe-missing", admin -> Steps.refused(UnknownTopicOrPartitionException.class,
            () -> get(admin.describeTopics(List.of("missing")).allTopicNames())));
        with.admin("describe-id", admin -> {
            var named = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
            var ids = TopicCollection.ofTopicIds(List.of(named.topicId()));
            same(topic, get(admin.describeTopics(ids).allTopicIds()).get(named.topicId()).name(), "by id");
        });
        with.admin("describe-no-id", admin -> Steps.refused(UnknownTopicIdException.class, () -> get(
            admin.describeTopics(TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).allTopicIds())));
        with.admin("list-topics", admin -> Steps.holds(get(admin.listTopics(
            new ListTopicsOptions().listInternal(true)).names()).containsAll(List.of(topic, topic + "-assigned")),
            "it is listed"));
        with.admin("describe-cluster", admin -> {
            var found = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            same(1, get(found.nodes()).size(), "nodes");
            same(1, get(found.controller()).id(), "controller");
            Steps.holds(!get(found.clusterId()).isEmpty(), "a cluster id");
            Steps.holds(!get(found.authorizedOperations()).isEmpty(), "what may be done");
        });
        with.admin("describe-fenced", admin -> same(1, get(admin.describeCluster(
            new DescribeClusterOptions().includeFencedBrokers(true)).nodes()).size(), "nodes, fenced ones, too"));
        with.admin("describe-features", admin -> get(admin.describeFeatures().featureMetadata()));
    }

    void settings() {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        with.admin("describe-configs", admin -> {
            var all = get(admin.describeConfigs(List.of(resource),
                new DescribeConfigsOptions().includeSynonyms(true)).all()).get(resource);
            same("3000000000000", all.get("retention.ms").value(), "retention.ms");
            same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, all.get("retention.ms").source(), "its source");
            same("1073741824", all.get("segment.bytes").value(), "segment.bytes");
            same("log.segment.bytes", all.get("segment.bytes").synonyms().get(0).name(), "where it is from");
        });
        with.admin("describe-documented", admin -> {
            var found = get(admin.describeConfigs(List.of(resource),
                new DescribeConfigsOptions().includeDocumentation(true)).all()).get(resource).get("retention.ms");
            Steps.holds(found.documentation() != null, "what it does");
            same(ConfigEntry.ConfigType.LONG, found.type(), "its type");
        });
        with.admin("describe-group-configs", admin -> {
            var group = new ConfigResource(ConfigResource.Type.GROUP, "classic" + topic);
            Steps.holds(get(admin.describeConfigs(List.of(group)).all()).get(group)
                .get("consumer.session.timeout.ms") != null, "settings of a group");
        });
        with.admin("alter-configs", admin -> {
            get(admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "2000000000000"), AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND),
                new AlterConfigOp(new ConfigEntry("segment.bytes", ""), AlterConfigOp.OpType.DELETE)))).all());
            Steps.until(() -> "2000000000000".equals(get(admin.describeConfigs(List.of(resource)).all())
                .get(resource).get("retention.ms").value()), "what was altered");
            same("delete,compact", get(admin.describeConfigs(List.of(resource)).all()).get(resource)
                .get("cleanup.policy").value(), "appended");
        });
        with.admin("alter-wrongly", admin -> Steps.refused(InvalidConfigurationException.class, () -> get(
            admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("no.such", "1"), AlterConfigOp.OpType.SET))),
                new AlterConfigsOptions().validateOnly(true)).all())));
        with.admin("config-resources", admin -> Steps.holds(
            get(admin.listConfigResources().all()).contains(resource), "the topic has settings"));
        with.admin("client-metrics", admin -> same(0, get(admin.listConfigResources(
            Set.of(ConfigResource.Type.CLIENT_METRICS), new ListConfigResourcesOptions()).all()).size(),
            "settings of metrics"));
        with.admin("log-dirs", admin -> {
            var found = get(admin.describeLogDirs(List.of(1)).allDescriptions()).get(1).values();
            same(1, found.size(), "directories");
            var replica = found.iterator().next().replicaInfos().get(partition);
            Steps.holds(replica != null && replica.size() > 100, "bytes of the partition: " + replica);
        });
        with.admin("describe-acls", admin -> Steps.refused(SecurityDisabledException.class,
            () -> get(admin.describeAcls(AclBindingFilter.ANY).values())));
        with.admin("create-acls", admin -> Steps.refused(SecurityDisabledException.class,
            () -> get(admin.createAcls(List.of(rule("topic"), rule("other"))).all())));
        with.admin("delete-acls", admin -> Steps.refused(SecurityDisabledException.class, () -> get(
            admin.deleteAcls(List.of(rule("topic").toFilter(), AclBindingFilter.ANY)).all())));
        with.admin("elect-leaders", admin -> {
            var found = get(admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions());
            Steps.holds(found.get(partition).get() instanceof ElectionNotNeededException, "election: " + found);
        });
        with.admin("reassignments", admin -> {
            same(Map.of(), get(admin.listPartitionReassignments().reassignments()), "moves");
            same(Map.of(), get(admin.listPartitionReassignments(Set.of(partition)).reassignments()), "its moves");
        });
    }

    void ends() {
        with.admin("delete-records", admin -> {
            var found = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(2),
                new TopicPartition(topic, 1), RecordsToDelete.beforeOffset(1_000_000))).lowWatermarks();
            same(2L, get(found.get(partition)).lowWatermark(), "the first that is left");
            Steps.refused(OffsetOutOfRangeException.class,
                () -> get(found.get(new TopicPartition(topic, 1))));
            try (var reader = with.consumer("delete-records-reader", Map.of())) {
                same(2L, reader.beginningOffsets(Set.of(partition)).get(partition), "earliest");
            }
        });
        with.admin("delete-topics", admin -> {
            get(admin.deleteTopics(List.of(topic + "-assigned")).all());
            Steps.until(() -> !get(admin.listTopics().names()).contains(topic + "-assigned"), "it to be gone");
            Steps.refused(UnknownTopicOrPartitionException.class,
                () -> get(admin.deleteTopics(List.of("missing")).all()));
        });
        with.admin("delete-id", admin -> {
            String gone = topic + "-gone";
            var described = get(admin.describeTopics(List.of(gone)).allTopicNames());
            get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(described.get(gone).topicId()))).all());
            Steps.until(() -> !get(admin.listTopics().names()).contains(gone), "it to be gone");
        });
    }

    private static AclBinding rule(String name) {
        return new AclBinding(new ResourcePattern(ResourceType.TOPIC, name, PatternType.LITERAL),
            new AccessControlEntry("User:anybody", "*", AclOperation.READ, AclPermissionType.ALLOW));
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return Steps.get(future);
    }

    private static void same(Object wanted, Object found, String what) {
        Steps.same(wanted, found, what);
    }
}

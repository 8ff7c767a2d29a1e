package freezeframe.clients;

import static freezeframe.clients.Cluster.get;
import static freezeframe.clients.Steps.equal;
import static freezeframe.clients.Steps.holds;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupAuthorizationException;
import org.apache.kafka.common.errors.SaslAuthenticationException;
import org.apache.kafka.common.errors.SslAuthenticationException;
import org.apache.kafka.common.errors.TopicAuthorizationException;

/** One way to log in. Its topic and its group have the name that its rules are for. */
final class AccessSteps {
    private static final int RECORDS = 20;

    private final String name;
    private final String topic;
    private final String bootstrap;
    private final Security security;
    private final Steps steps;

    private AccessSteps(String name, String topic, String bootstrap, Security security, Steps steps) {
        this.name = name;
        this.topic = topic;
        this.bootstrap = bootstrap;
        this.security = security;
        this.steps = steps;
    }

    /** Runs the cases of a file that security.sh wrote. */
    static void run(Steps steps, Path cases, String run) throws Exception {
        for (String line : Files.readAllLines(cases)) {
            String[] field = line.split(" ");
            for (int i = 0; i < field.length; i++) {
                field[i] = field[i].equals("-") ? null : field[i];
            }
            Path secret = field[7] == null ? null : cases.resolveSibling(field[7]);
            boolean isToken = "OAUTHBEARER".equals(field[3]);
            Security security = new Security(field[3], cases.resolveSibling(field[4] + ".pem"),
                    field[5] == null ? null : cases.resolveSibling(field[5] + ".pem"), field[6],
                    secret == null || isToken ? String.valueOf(secret) : Files.readString(secret));
            AccessSteps access = new AccessSteps(field[1], field[1] + "-" + run, field[2], security, steps);
            if (field[0].equals("served")) {
                access.served();
            } else {
                access.refusedLogin();
            }
        }
    }

    private interface ClusterBody {
        void run(Cluster cluster) throws Exception;
    }

    private void step(String step, ClusterBody body) {
        steps.step(name + " " + step, () -> {
            try (Cluster cluster = new Cluster(bootstrap, security.settings())) {
                body.run(cluster);
            }
        });
    }

    private void served() {
        step("produce-and-consume", this::produceAndConsume);
        for (String other : List.of("without-rule", "described")) {
            step("produce-to-topic-" + other,
                    cluster -> fails(TopicAuthorizationException.class, () -> produce(cluster, new Model(), other, 1)));
            step("consume-topic-" + other,
                    cluster -> fails(TopicAuthorizationException.class, () -> consume(cluster, topic, other, 1)));
        }
        step("consume-in-group-without-rule",
                cluster -> fails(GroupAuthorizationException.class, () -> consume(cluster, "without-rule", topic, 1)));
    }

    private void refusedLogin() {
        boolean hasMechanism = security.mechanism() != null;
        step("login-refused", cluster -> fails(
                hasMechanism ? SaslAuthenticationException.class : SslAuthenticationException.class,
                () -> get(cluster.admin.listTopics().names())));
    }

    private void produceAndConsume(Cluster cluster) throws Exception {
        Model model = new Model();
        cluster.createTopic(topic, 1, Cluster.KEEP);
        produce(cluster, model, topic, RECORDS);
        model.assertEquals(consume(cluster, topic, topic, RECORDS));
        TopicPartition only = new TopicPartition(topic, 0);
        Map<TopicPartition, OffsetAndMetadata> committed =
                get(cluster.admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata());
        equal("partitions committed", Set.of(only), committed.keySet());
        equal("offset", (long) RECORDS, committed.get(only).offset());
    }

    private static void produce(Cluster cluster, Model model, String topic, int count) throws Exception {
        List<Model.Entry> entries = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            entries.add(new Model.Entry("k-" + i, "v-" + i, Scenario.T0 + i, List.of()));
        }
        cluster.produce(model, topic, null, Map.of(), entries);
    }

    /** Reads so many records, or more, in the group, and commits. */
    private static Collection<ConsumerRecord<String, String>> consume(Cluster cluster, String group, String topic, int count)
            throws Exception {
        List<ConsumerRecord<String, String>> seen = new ArrayList<>();
        try (var member = cluster.consumer(Map.of("group.id", group))) {
            member.subscribe(List.of(topic));
            Steps.await(count + " records of " + topic, () -> {
                seen.addAll(Cluster.poll(member));
                return seen.size() >= count;
            });
            member.commitSync();
        }
        return seen;
    }

    private static void fails(Class<? extends Exception> expected, Steps.Body body) throws Exception {
        try {
            body.run();
        } catch (Exception problem) {
            Throwable cause = problem instanceof ExecutionException ? problem.getCause() : problem;
            holds(expected.getSimpleName(), expected.isInstance(cause), cause);
            return;
        }
        throw new Steps.Mismatch("expected " + expected.getSimpleName() + ", saw it succeed");
    }
}

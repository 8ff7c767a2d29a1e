package freezeframe.clients;

import static freezeframe.clients.Cluster.get;
import static freezeframe.clients.Steps.equal;
import static freezeframe.clients.Steps.holds;

import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;

/** Open transactions through the admin client: listed, described, and ended from outside. */
final class TransactionAdminSteps {
    private static final List<Model.Entry> ENTRIES = List.of(
            new Model.Entry("k", "v1", Scenario.T0, List.of()), new Model.Entry("k", "v2", Scenario.T0, List.of()));

    private final Cluster cluster;
    private final Steps steps;
    private final String topic;
    private final TopicPartition zero;

    TransactionAdminSteps(Cluster cluster, Steps steps, String run) {
        this.cluster = cluster;
        this.steps = steps;
        this.topic = "t-java-transactions-" + run;
        this.zero = new TopicPartition(topic, 0);
    }

    void run() {
        try (var producer = cluster.producer(Map.of("transactional.id", topic, "transaction.timeout.ms", 45_000))) {
            steps.step("h transaction-opened", () -> {
                cluster.createTopic(topic, 1, Cluster.KEEP);
                producer.initTransactions();
                begin(producer);
            });
            steps.step("h list-transactions", this::list);
            steps.step("h describe-transactions", this::describe);
            steps.step("h describe-producers", this::describeProducers);
            steps.step("h abort-transaction", () -> abort(producer));
        }
        steps.step("h fence-producers", () -> endFromOutside(() ->
                get(cluster.admin.fenceProducers(List.of(topic)).all())));
        steps.step("h force-terminate-transaction", () -> endFromOutside(() ->
                get(cluster.admin.forceTerminateTransaction(topic).result())));
        steps.step("h transactions-topic-delete", () -> cluster.deleteTopic(topic));
    }

    private void begin(KafkaProducer<String, String> producer) throws Exception {
        producer.beginTransaction();
        Cluster.send(producer, new Model(), topic, 0, ENTRIES);
    }

    private TransactionDescription described() throws Exception {
        return get(cluster.admin.describeTransactions(List.of(topic)).description(topic));
    }

    private ProducerState producerState() throws Exception {
        return get(cluster.admin.describeProducers(List.of(zero)).partitionResult(zero)).activeProducers().get(0);
    }

    private List<TransactionListing> listed(ListTransactionsOptions options) throws Exception {
        return get(cluster.admin.listTransactions(options).all()).stream()
                .filter(listing -> listing.transactionalId().equals(topic)).toList();
    }

    private void list() throws Exception {
        long id = described().producerId();
        List<TransactionListing> mine = List.of(new TransactionListing(topic, id, TransactionState.ONGOING));
        equal("listing", mine, listed(new ListTransactionsOptions()));
        equal("those that are open", mine, listed(options().filterStates(Set.of(TransactionState.ONGOING))));
        equal("those that are empty", List.of(), listed(options().filterStates(Set.of(TransactionState.EMPTY))));
        equal("those of the producer", mine, listed(options().filterProducerIds(Set.of(id))));
        equal("those of another one", List.of(), listed(options().filterProducerIds(Set.of(id + 1_000_000))));
        equal("those of an hour", List.of(), listed(options().filterOnDuration(3_600_000)));
        equal("those of the pattern", mine, listed(options().filterOnTransactionalIdPattern("t-java-trans.*")));
        equal("those of another one", List.of(), listed(options().filterOnTransactionalIdPattern("t-java")));
    }

    private static ListTransactionsOptions options() {
        return new ListTransactionsOptions();
    }

    private void describe() throws Exception {
        TransactionDescription seen = described();
        equal("state", TransactionState.ONGOING, seen.state());
        equal("partitions", Set.of(zero), seen.topicPartitions());
        equal("time limit", 45_000L, seen.transactionTimeoutMs());
        long age = System.currentTimeMillis() - seen.transactionStartTimeMs().orElseThrow();
        holds("a start in the last minute", age >= 0 && age < 60_000, age);
        equal("coordinator", get(cluster.admin.describeCluster().nodes()).iterator().next().id(), seen.coordinatorId());
        equal("refusal", TransactionalIdNotFoundException.class, Steps.refused("an id that is not there", () ->
                get(cluster.admin.describeTransactions(List.of(topic + "-none")).all())).getClass());
    }

    private void describeProducers() throws Exception {
        ProducerState seen = producerState();
        equal("producer", described().producerId(), seen.producerId());
        equal("epoch", described().producerEpoch(), seen.producerEpoch());
        equal("last sequence", ENTRIES.size() - 1, seen.lastSequence());
        equal("start of the transaction", 0L, seen.currentTransactionStartOffset().orElse(-1));
    }

    /** Kafka ends it on that partition only and lets an empty rest be committed; we end the whole of it. */
    private void abort(KafkaProducer<String, String> producer) throws Exception {
        ProducerState state = producerState();
        get(cluster.admin.abortTransaction(new AbortTransactionSpec(zero, state.producerId(),
                (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0))).all());
        equal("start of an open transaction", OptionalLong.empty(), producerState().currentTransactionStartOffset());
        try {
            producer.commitTransaction();
        } catch (KafkaException refused) {
            // Then it is in an error state, and nothing else can be done with it.
        }
        assertNothingSeen();
    }

    private void endFromOutside(Steps.Body end) throws Exception {
        try (var producer = cluster.transactional(topic)) {
            begin(producer);
            end.run();
            TransactionSteps.assertFenced(producer);
        }
        equal("state", TransactionState.EMPTY, described().state());
        assertNothingSeen();
    }

    private void assertNothingSeen() throws Exception {
        try (var consumer = cluster.assigned(topic, Set.of(0), Map.of("isolation.level", "read_committed"))) {
            equal("records read", List.of(), Cluster.readToEnd(consumer));
        }
    }
}

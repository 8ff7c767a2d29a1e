package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// h

func (s *scenario) transactionSteps() {
	s.steps.step("h transaction-commit-and-abort", patience, s.commitAndAbort)
	s.steps.step("h consume-transform-produce", patience, s.consumeTransformProduce)
	s.steps.step("h fencing", patience, s.fencing)
}

const partitions = 3

// transactional is a producer; its transactions are those of the id.
func (s *scenario) transactional(id string) *kgo.Client {
	return s.client(kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()))
}

// send sends some records to each partition, and gives where they went.
func send(ctx context.Context, client *kgo.Client, topic, label string) (model, error) {
	var records []*kgo.Record
	for partition := range int32(partitions) {
		for i := range int64(5) {
			records = append(records, &kgo.Record{
				Topic: topic, Partition: partition, Key: fmt.Appendf(nil, "k-%d", i), Value: fmt.Appendf(nil, "%s-%d", label, i),
				Timestamp: time.UnixMilli(t0 + i*1000),
			})
		}
	}
	sent := model{}
	for _, result := range client.ProduceSync(ctx, records...) {
		if result.Err != nil {
			return nil, result.Err
		}
		if err := sent.put(result.Record.Partition, result.Record.Offset, entryOf(result.Record)); err != nil {
			return nil, err
		}
	}
	return sent, nil
}

// inTransaction begins one, sends to all partitions, calls meanwhile, and ends it.
func inTransaction(ctx context.Context, client *kgo.Client, topic, label string, end kgo.TransactionEndTry,
	meanwhile func(model) error) (model, error) {
	if err := client.BeginTransaction(); err != nil {
		return nil, err
	}
	sent, err := send(ctx, client, topic, label)
	if err != nil {
		return nil, err
	}
	if err := meanwhile(sent); err != nil {
		return nil, err
	}
	return sent, client.EndTransaction(ctx, end)
}

func nothing(model) error { return nil }

// reads says whether a consumer reads exactly this of a topic.
func (s *scenario) reads(ctx context.Context, topic string, isolation kgo.IsolationLevel, expected model) error {
	seen, err := s.read(ctx, topic, isolation, expected.count())
	if err != nil {
		return err
	}
	return expected.equal(seen)
}

// read polls until it has as many records as that, and one time more.
func (s *scenario) read(ctx context.Context, topic string, isolation kgo.IsolationLevel, count int) (
	[]*kgo.Record, error) {
	offsets := map[int32]kgo.Offset{}
	for partition := range int32(partitions) {
		offsets[partition] = kgo.NewOffset().AtStart()
	}
	client := s.client(kgo.FetchIsolationLevel(isolation),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}))
	defer client.Close()
	var seen []*kgo.Record
	for len(seen) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("expected %d records of %s, saw %d and %w", count, topic, len(seen), err)
		}
		seen = append(seen, fetches.Records()...)
	}
	return append(seen, pollBriefly(ctx, client)...), nil
}

func (s *scenario) commitAndAbort(ctx context.Context) error {
	topic := s.topic + "-txn"
	if err := s.create(ctx, topic, partitions); err != nil {
		return err
	}
	producer, plain := s.transactional(topic), s.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	defer plain.Close()
	before, err := send(ctx, plain, topic, "before")
	if err != nil {
		return err
	}
	first, err := inTransaction(ctx, producer, topic, "first", kgo.TryCommit, func(model) error {
		return errors.Join(s.reads(ctx, topic, kgo.ReadCommitted(), before), s.stableTo(ctx, topic, before.ends()))
	})
	if err != nil {
		return err
	}
	var behind model
	committed := union(before, first)
	aborted, err := inTransaction(ctx, producer, topic, "aborted", kgo.TryAbort, func(open model) (err error) {
		if behind, err = send(ctx, plain, topic, "behind"); err != nil {
			return err
		}
		return errors.Join(s.reads(ctx, topic, kgo.ReadCommitted(), committed),
			s.reads(ctx, topic, kgo.ReadUncommitted(), union(committed, open, behind)))
	})
	if err != nil {
		return err
	}
	second, err := inTransaction(ctx, producer, topic, "second", kgo.TryCommit, nothing)
	if err != nil {
		return err
	}
	committed = union(committed, behind, second)
	if err := s.reads(ctx, topic, kgo.ReadCommitted(), committed); err != nil {
		return err
	}
	if err := s.reads(ctx, topic, kgo.ReadUncommitted(), union(committed, aborted)); err != nil {
		return err
	}
	return s.delete(ctx, topic)
}

// stableTo says whether the last stable offsets are these.
func (s *scenario) stableTo(ctx context.Context, topic string, expected map[int32]int64) error {
	listed, err := s.admin.ListCommittedOffsets(ctx, topic)
	if err = errors.Join(err, listed.Error()); err != nil {
		return err
	}
	seen := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { seen[o.Partition] = o.Offset })
	return equal("last stable offsets", expected, seen)
}

func (s *scenario) consumeTransformProduce(ctx context.Context) error {
	in, out, group := s.topic+"-txn-in", s.topic+"-txn-out", "g-txn-"+s.topic
	if err := errors.Join(s.create(ctx, in, partitions), s.create(ctx, out, partitions)); err != nil {
		return err
	}
	plain := s.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer plain.Close()
	input, err := send(ctx, plain, in, "in")
	if err != nil {
		return err
	}
	if err := s.transform(ctx, in, out, group, input.count()); err != nil {
		return err
	}

	seen, err := s.read(ctx, out, kgo.ReadCommitted(), input.count())
	if err != nil {
		return err
	}
	expected, values := map[int32][]string{}, map[int32][]string{}
	for partition := range input {
		for _, offset := range input.offsets(partition) {
			expected[partition] = append(expected[partition], "out of "+*input[partition][offset].value)
		}
	}
	for _, r := range seen {
		values[r.Partition] = append(values[r.Partition], string(r.Value))
	}
	if err := equal("output", expected, values); err != nil {
		return err
	}
	err = await(ctx, fmt.Sprintf("committed offsets %v", input.ends()), func() (bool, error) {
		committed, err := s.committed(ctx, group)
		return err != nil || equal("offsets", input.ends(), committed) == nil, err
	})
	return errors.Join(err, s.delete(ctx, in), s.delete(ctx, out))
}

// transform copies count records from one topic to the other, in several transactions, the second of which is aborted.
// A session that aborts reads its records again.
func (s *scenario) transform(ctx context.Context, in, out, group string, count int) error {
	session, err := kgo.NewGroupTransactSession(append(s.options(), kgo.SeedBrokers(s.bootstrap), kgo.TransactionalID(group),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ConsumerGroup(group), kgo.ConsumeTopics(in),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets())...)
	if err != nil {
		return err
	}
	defer session.Close()
	transactions := 0
	for done := 0; done < count; transactions++ {
		fetches := session.PollRecords(ctx, 4)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("expected %d records of the input, saw %d and %w", count, done, err)
		}
		if err := session.Begin(); err != nil {
			return err
		}
		for _, r := range fetches.Records() {
			session.Produce(ctx, &kgo.Record{
				Topic: out, Partition: r.Partition, Key: r.Key, Value: append([]byte("out of "), r.Value...), Timestamp: r.Timestamp,
			}, nil)
		}
		end := kgo.TransactionEndTry(transactions != 1)
		committed, err := session.End(ctx, end)
		if err != nil {
			return err
		}
		if err := equal("the end of the transaction to be a commit,", bool(end), committed); err != nil {
			return err
		}
		if committed {
			done += fetches.NumRecords()
		}
	}
	return nil
}

func (s *scenario) fencing(ctx context.Context) error {
	topic := s.topic + "-txn-fenced"
	if err := s.create(ctx, topic, partitions); err != nil {
		return err
	}
	first, second := s.transactional(topic), s.transactional(topic)
	defer first.Close()
	defer second.Close()
	var seen model
	_, problem := inTransaction(ctx, first, topic, "fenced", kgo.TryCommit, func(model) (err error) {
		seen, err = inTransaction(ctx, second, topic, "second", kgo.TryCommit, nothing)
		return err
	})
	if !errors.Is(problem, kerr.ProducerFenced) && !errors.Is(problem, kerr.InvalidProducerEpoch) {
		return fmt.Errorf("expected the first producer to be fenced, saw error: %v", problem)
	}
	if err := s.reads(ctx, topic, kgo.ReadCommitted(), seen); err != nil {
		return err
	}
	return s.delete(ctx, topic)
}

// momentOfTransaction reads a moment while a transaction is open, which has nothing of it for ever, and one after its
// commit, which has all.
func (s *scenario) momentOfTransaction(ctx context.Context) error {
	topic := s.topic + "-txn-moment"
	if err := s.create(ctx, topic, partitions); err != nil {
		return err
	}
	producer, plain := s.transactional(topic), s.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	defer plain.Close()
	before, err := send(ctx, plain, topic, "before")
	if err != nil {
		return err
	}
	var m int64
	open, err := inTransaction(ctx, producer, topic, "open", kgo.TryCommit, func(model) error {
		m = nextMillisecond()
		return nil
	})
	if err != nil {
		return err
	}
	all := union(before, open)
	if err := s.reads(ctx, topic, kgo.ReadCommitted(), all); err != nil {
		return err
	}
	m2 := nextMillisecond()
	at := fmt.Sprintf("%s.__at.s%d", topic, m)
	for _, read := range []struct {
		topic     string
		isolation kgo.IsolationLevel
		expected  model
	}{
		{at, kgo.ReadCommitted(), before},
		{at, kgo.ReadUncommitted(), all},
		{fmt.Sprintf("%s.__at.s%d", topic, m2), kgo.ReadCommitted(), all},
	} {
		if err := s.reads(ctx, read.topic, read.isolation, read.expected); err != nil {
			return err
		}
	}
	return s.delete(ctx, topic)
}

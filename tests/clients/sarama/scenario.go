package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	t0         = int64(1_700_000_000_000)
	partitions = 3
	perSend    = 5
)

// scenario has the topics t (for reading what is committed), t-in, t-out and t-fenced.
type scenario struct {
	bootstrap string
	topic     string
	admin     sarama.ClusterAdmin
}

// values are those of a topic's records, by partition, in the order of their offsets.
type values map[int32][]string

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V4_3_1_0
	c.Producer.Return.Successes = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Idempotent = true
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Net.MaxOpenRequests = 1
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	c.Consumer.MaxWaitTime = 100 * time.Millisecond
	c.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	secure(c)
	return c
}

func (s *scenario) topics() []string {
	return []string{s.topic, s.topic + "-in", s.topic + "-out", s.topic + "-fenced"}
}

func (s *scenario) connectAndCreate() (err error) {
	if s.admin, err = sarama.NewClusterAdmin([]string{s.bootstrap}, config()); err != nil {
		return err
	}
	// The records say 2023: by default Kafka deletes them at its next look, every five minutes.
	forever := "-1"
	for _, topic := range s.topics() {
		detail := &sarama.TopicDetail{
			NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &forever},
		}
		if err := s.admin.CreateTopic(topic, detail, false); err != nil {
			return err
		}
	}
	return await("topics to be there", func() (bool, error) { return s.count(partitions) })
}

func (s *scenario) deleteAll() error {
	for _, topic := range s.topics() {
		if err := s.admin.DeleteTopic(topic); err != nil {
			return err
		}
	}
	return await("topics to be gone", func() (bool, error) { return s.count(0) })
}

// count says whether each topic has as many partitions as that.
func (s *scenario) count(expected int) (bool, error) {
	listed, err := s.admin.ListTopics()
	for _, topic := range s.topics() {
		if int(listed[topic].NumPartitions) != expected {
			return false, err
		}
	}
	return true, err
}

// producer's records are in transactions of the id, or in none when it is empty.
func (s *scenario) producer(id string) (sarama.SyncProducer, error) {
	c := config()
	c.Producer.Transaction.ID = id
	return sarama.NewSyncProducer([]string{s.bootstrap}, c)
}

func send(producer sarama.SyncProducer, topic, label string) (values, error) {
	var messages []*sarama.ProducerMessage
	sent := values{}
	for partition := range int32(partitions) {
		for i := range int64(perSend) {
			value := fmt.Sprintf("%s-%d", label, i)
			sent[partition] = append(sent[partition], value)
			messages = append(messages, &sarama.ProducerMessage{
				Topic: topic, Partition: partition, Value: sarama.StringEncoder(value), Timestamp: time.UnixMilli(t0 + i*1000),
			})
		}
	}
	return sent, producer.SendMessages(messages)
}

func joined(parts ...values) values {
	all := values{}
	for partition := range int32(partitions) {
		for _, part := range parts {
			all[partition] = append(all[partition], part[partition]...)
		}
	}
	return all
}

// reads says whether a consumer reads exactly this of a topic: no more comes for twice as long as a fetch waits.
func (s *scenario) reads(topic string, isolation sarama.IsolationLevel, expected values) error {
	c := config()
	c.Consumer.IsolationLevel = isolation
	consumer, err := sarama.NewConsumer([]string{s.bootstrap}, c)
	if err != nil {
		return err
	}
	defer consumer.Close()
	seen := values{}
	for partition := range int32(partitions) {
		part, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		if err != nil {
			return err
		}
		defer part.AsyncClose()
		for limit := patience; limit > 0; {
			select {
			case message := <-part.Messages():
				seen[partition] = append(seen[partition], string(message.Value))
			case <-time.After(limit):
				limit = 0
			}
			if limit > 0 && len(seen[partition]) >= len(expected[partition]) {
				limit = 2 * c.Consumer.MaxWaitTime
			}
		}
	}
	return equal("records of "+topic, expected, seen)
}

func (s *scenario) commitAndAbort() error {
	producer, err := s.producer(s.topic)
	if err != nil {
		return err
	}
	defer producer.Close()
	plain, err := s.producer("")
	if err != nil {
		return err
	}
	defer plain.Close()
	// inTransaction sends with a label, calls meanwhile, and ends the transaction.
	inTransaction := func(label string, end func() error, meanwhile func(sent values) error) (values, error) {
		if err := producer.BeginTxn(); err != nil {
			return nil, err
		}
		sent, err := send(producer, s.topic, label)
		if err == nil {
			err = meanwhile(sent)
		}
		if err != nil {
			return nil, err
		}
		return sent, end()
	}

	before, err := send(plain, s.topic, "before")
	if err != nil {
		return err
	}
	first, err := inTransaction("first", producer.CommitTxn, func(values) error {
		return s.reads(s.topic, sarama.ReadCommitted, before)
	})
	if err != nil {
		return err
	}
	committed := joined(before, first)
	var behind values
	aborted, err := inTransaction("aborted", producer.AbortTxn, func(aborted values) (err error) {
		if behind, err = send(plain, s.topic, "behind"); err != nil {
			return err
		}
		return errors.Join(s.reads(s.topic, sarama.ReadCommitted, committed),
			s.reads(s.topic, sarama.ReadUncommitted, joined(committed, aborted, behind)))
	})
	if err != nil {
		return err
	}
	second, err := inTransaction("second", producer.CommitTxn, func(values) error { return nil })
	if err != nil {
		return err
	}
	return errors.Join(s.reads(s.topic, sarama.ReadCommitted, joined(committed, behind, second)),
		s.reads(s.topic, sarama.ReadUncommitted, joined(committed, aborted, behind, second)))
}

// transform copies each message in a transaction of its own; the second transaction is aborted and done again.
type transform struct {
	producer     sarama.SyncProducer
	group, out   string
	count        int
	done         func()
	mutex        sync.Mutex
	transactions int
	problem      error
}

func (t *transform) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (t *transform) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (t *transform) ConsumeClaim(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		t.mutex.Lock()
		for isDone := false; !isDone && t.problem == nil; {
			isDone, t.problem = t.copy(message)
		}
		if t.count--; t.count == 0 || t.problem != nil {
			t.done()
		}
		t.mutex.Unlock()
	}
	return nil
}

func (t *transform) copy(message *sarama.ConsumerMessage) (isCommitted bool, err error) {
	if err := t.producer.BeginTxn(); err != nil {
		return false, err
	}
	_, _, err = t.producer.SendMessage(&sarama.ProducerMessage{
		Topic: t.out, Partition: message.Partition, Value: sarama.StringEncoder("out of " + string(message.Value)),
	})
	if err != nil {
		return false, err
	}
	if err := t.producer.AddMessageToTxn(message, t.group, nil); err != nil {
		return false, err
	}
	if t.transactions++; t.transactions == 2 {
		return false, t.producer.AbortTxn()
	}
	return true, t.producer.CommitTxn()
}

func (s *scenario) consumeTransformProduce() error {
	in, out, group := s.topic+"-in", s.topic+"-out", "g-"+s.topic
	plain, err := s.producer("")
	if err != nil {
		return err
	}
	defer plain.Close()
	input, err := send(plain, in, "in")
	if err != nil {
		return err
	}
	if err := s.transform(in, out, group, partitions*perSend); err != nil {
		return err
	}
	expected := values{}
	for partition, given := range input {
		for _, value := range given {
			expected[partition] = append(expected[partition], "out of "+value)
		}
	}
	if err := s.reads(out, sarama.ReadCommitted, expected); err != nil {
		return err
	}
	return await("committed offsets at the ends", func() (bool, error) {
		answer, err := s.admin.ListConsumerGroupOffsets(group, map[string][]int32{in: {0, 1, 2}})
		if err != nil {
			return false, err
		}
		return !slices.ContainsFunc([]int32{0, 1, 2}, func(partition int32) bool {
			return answer.GetBlock(in, partition).Offset != perSend
		}), nil
	})
}

func (s *scenario) transform(in, out, group string, count int) error {
	producer, err := s.producer(group)
	if err != nil {
		return err
	}
	defer producer.Close()
	c := config()
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	consumers, err := sarama.NewConsumerGroup([]string{s.bootstrap}, group, c)
	if err != nil {
		return err
	}
	defer consumers.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t := &transform{producer: producer, group: group, out: out, count: count, done: cancel}
	if err := consumers.Consume(ctx, []string{in}, t); err != nil {
		return err
	}
	return errors.Join(t.problem, equal("records left to copy", 0, t.count))
}

func (s *scenario) fencing() error {
	topic := s.topic + "-fenced"
	first, err := s.producer(topic)
	if err != nil {
		return err
	}
	defer first.Close()
	if err := first.BeginTxn(); err != nil {
		return err
	}
	if _, err := send(first, topic, "fenced"); err != nil {
		return err
	}
	second, err := s.producer(topic)
	if err != nil {
		return err
	}
	defer second.Close()
	if err := second.BeginTxn(); err != nil {
		return err
	}
	seen, err := send(second, topic, "second")
	if err != nil {
		return err
	}
	err = first.CommitTxn()
	if !errors.Is(err, sarama.ErrProducerFenced) && !errors.Is(err, sarama.ErrInvalidProducerEpoch) {
		return fmt.Errorf("expected the first producer to be fenced, saw error: %v", err)
	}
	if err := second.CommitTxn(); err != nil {
		return err
	}
	return s.reads(topic, sarama.ReadCommitted, seen)
}

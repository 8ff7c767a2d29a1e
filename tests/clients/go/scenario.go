package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	t0         = int64(1_700_000_000_000)
	perPass    = 300
	leftUnread = 10
)

// keep: the records say 2023, and by default Kafka deletes them at its next look, every five minutes.
var keep = map[string]*string{"retention.ms": kadm.StringPtr("-1")}

var codecs = []struct {
	name  string
	codec kgo.CompressionCodec
}{
	{"none", kgo.NoCompression()},
	{"gzip", kgo.GzipCompression()},
	{"snappy", kgo.SnappyCompression()},
	{"lz4", kgo.Lz4Compression()},
	{"zstd", kgo.ZstdCompression()},
}

// scenario is steps a to h, the same in every language.
type scenario struct {
	credentials
	bootstrap string
	topic     string
	steps     *steps
	admin     *kadm.Client
	model     model
}

func newScenario(bootstrap string, login credentials, steps *steps, topic string) *scenario {
	s := &scenario{credentials: login, bootstrap: bootstrap, topic: topic, steps: steps, model: model{}}
	s.admin = kadm.NewClient(s.client())
	return s
}

// client panics on bad options only; it connects later. Produce is bounded by its context: kgo.RecordDeliveryTimeout
// counts from the record's timestamp, which lies years back here.
func (s *scenario) client(options ...kgo.Opt) *kgo.Client {
	options = append(append(s.options(),
		kgo.SeedBrokers(s.bootstrap),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		// By default metadata is kept for 5 s: ListTopics shows a deleted topic for so long, and a request that came
		// before a new topic's leader was up is tried again only then.
		kgo.MetadataMinAge(20*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	), options...)
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	return client
}

func (s *scenario) run(moments bool) {
	s.steps.step("a create-topic", patience, func(ctx context.Context) error { return s.create(ctx, s.topic, 3) })
	for _, c := range codecs {
		s.steps.step("b produce-"+c.name, patience, func(ctx context.Context) error {
			return s.pass(ctx, c.name, perPass, kgo.ProducerBatchCompression(c.codec))
		})
	}
	s.groupSteps()
	s.steps.step("e seek-by-time", patience, s.seekByTime)
	s.steps.step("e seek-by-time-out-of-order", patience, s.seekOutOfOrder)
	s.transactionSteps()
	s.shareSteps()
	if moments {
		s.momentSteps()
	}
	s.steps.step("g delete-topic", patience, func(ctx context.Context) error { return s.delete(ctx, s.topic) })
	s.admin.Close()
}

// a, g

func (s *scenario) create(ctx context.Context, topic string, partitions int) error {
	if _, err := s.admin.CreateTopic(ctx, int32(partitions), 1, keep, topic); err != nil {
		return err
	}
	return await(ctx, fmt.Sprintf("%s to have %d partitions", topic, partitions), func() (bool, error) {
		topics, err := s.admin.ListTopics(ctx)
		return len(topics[topic].Partitions) == partitions, err
	})
}

func (s *scenario) delete(ctx context.Context, topic string) error {
	answers, err := s.admin.DeleteTopics(ctx, topic)
	if err = errors.Join(err, answers.Error()); err != nil {
		return err
	}
	return await(ctx, topic+" to be gone", func() (bool, error) {
		topics, err := s.admin.ListTopics(ctx)
		return !topics.Has(topic), err
	})
}

// b

func (s *scenario) pass(ctx context.Context, codec string, count int, options ...kgo.Opt) error {
	var records []*kgo.Record
	for i := range count {
		r := &kgo.Record{
			Topic:     s.topic,
			Key:       fmt.Appendf(nil, "k-%d", i),
			Value:     fmt.Appendf(nil, "%s-%d-%s", codec, i, strings.Repeat("x", i%40)),
			Timestamp: time.UnixMilli(t0 + int64(i)*1000),
			Headers: []kgo.RecordHeader{
				{Key: "h", Value: []byte("1")}, {Key: "h", Value: []byte("2")}, {Key: "codec", Value: []byte(codec)},
			},
		}
		if i%50 == 7 {
			r.Value = nil
		}
		records = append(records, r)
	}
	if err := s.produce(ctx, s.model, records, options...); err != nil {
		return err
	}
	return s.model.dense()
}

// produce sends all of them in as few batches as can be, and notes in the model where each went.
func (s *scenario) produce(ctx context.Context, m model, records []*kgo.Record, options ...kgo.Opt) error {
	client := s.client(append(options, kgo.ManualFlushing())...)
	defer client.Close()
	var mutex sync.Mutex
	var problem error
	for _, r := range records {
		client.Produce(ctx, r, func(r *kgo.Record, err error) {
			mutex.Lock()
			defer mutex.Unlock()
			if err == nil {
				err = m.put(r.Partition, r.Offset, entryOf(r))
			}
			if problem == nil {
				problem = err
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return problem
}

// c, d

// member is one consumer of a group, and the partitions it has now.
type member struct {
	*kgo.Client
	mutex sync.Mutex
	share map[int32]bool
}

func (s *scenario) join(group, topic string) *member {
	m := &member{share: map[int32]bool{}}
	note := func(has bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			m.mutex.Lock()
			defer m.mutex.Unlock()
			for _, partition := range partitions[topic] {
				m.share[partition] = has
				if !has {
					delete(m.share, partition)
				}
			}
		}
	}
	m.Client = s.client(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(300*time.Millisecond), kgo.SessionTimeout(patience),
		kgo.OnPartitionsAssigned(note(true)), kgo.OnPartitionsRevoked(note(false)), kgo.OnPartitionsLost(note(false)))
	return m
}

func (m *member) partitions() []int32 {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return slices.Sorted(maps.Keys(m.share))
}

func (s *scenario) groupSteps() {
	group := "g-" + s.topic
	committed := map[int32]int64{}
	s.steps.step("c group-consume", patience, func(ctx context.Context) error {
		if err := equal("count of records produced", len(codecs)*perPass, s.model.count()); err != nil {
			return err
		}
		left, right := s.join(group, s.topic), s.join(group, s.topic)
		defer left.Close()
		defer right.Close()
		// Nothing is polled before both have their share, so no record is read twice for a rebalance.
		err := await(ctx, "two members to share 3 partitions", func() (bool, error) {
			l, r := left.partitions(), right.partitions()
			return len(l) > 0 && len(r) > 0 && len(l)+len(r) == 3, nil
		})
		if err != nil {
			return err
		}
		var seen []*kgo.Record
		for _, m := range []*member{left, right} {
			ends := s.model.ends()
			maps.DeleteFunc(ends, func(partition int32, _ int64) bool { return !slices.Contains(m.partitions(), partition) })
			records, err := readTo(ctx, m.Client, ends)
			if err != nil {
				return err
			}
			seen = append(seen, records...)
			if err := s.commitShortOfEnd(ctx, m, committed); err != nil {
				return err
			}
		}
		return s.model.equal(seen)
	})
	s.steps.step("d committed-offsets-read-back", patience, func(ctx context.Context) error {
		seen, err := s.committed(ctx, group)
		if err != nil {
			return err
		}
		if err := equal("count of partitions committed", 3, len(seen)); err != nil {
			return err
		}
		return equal("offsets", committed, seen)
	})
	s.steps.step("d group-resumes", patience, func(ctx context.Context) error {
		if err := equal("count of partitions committed", 3, len(committed)); err != nil {
			return err
		}
		resumed := s.join(group, s.topic)
		defer resumed.Close()
		seen, err := readTo(ctx, resumed.Client, s.model.ends())
		if err != nil {
			return err
		}
		return s.model.slice(committed, s.model.ends()).equal(seen)
	})
}

func (s *scenario) committed(ctx context.Context, group string) (map[int32]int64, error) {
	answers, err := s.admin.FetchOffsets(ctx, group)
	if err = errors.Join(err, answers.Error()); err != nil {
		return nil, err
	}
	seen := map[int32]int64{}
	answers.Each(func(o kadm.OffsetResponse) { seen[o.Partition] = o.At })
	return seen, nil
}

func (s *scenario) commitShortOfEnd(ctx context.Context, m *member, committed map[int32]int64) error {
	offsets := map[int32]kgo.EpochOffset{}
	for _, partition := range m.partitions() {
		committed[partition] = s.model.ends()[partition] - leftUnread
		offsets[partition] = kgo.EpochOffset{Epoch: -1, Offset: committed[partition]}
	}
	var problem error
	m.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{s.topic: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
			if problem = err; err != nil {
				return
			}
			for _, topic := range response.Topics {
				for _, partition := range topic.Partitions {
					problem = errors.Join(problem, kerr.ErrorForCode(partition.ErrorCode))
				}
			}
		})
	return problem
}

// readTo polls until each partition in ends has been read up to there, and one time more: what comes too much is seen too.
func readTo(ctx context.Context, client *kgo.Client, ends map[int32]int64) ([]*kgo.Record, error) {
	var seen []*kgo.Record
	left := maps.Clone(ends)
	maps.DeleteFunc(left, func(_ int32, end int64) bool { return end == 0 })
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("expected to read to %v, saw %d records and %w", ends, len(seen), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			seen = append(seen, r)
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return append(seen, pollBriefly(ctx, client)...), nil
}

func pollBriefly(ctx context.Context, client *kgo.Client) []*kgo.Record {
	brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	return client.PollFetches(brief).Records()
}

// e

func (s *scenario) seekByTime(ctx context.Context) error {
	last := t0 + (perPass-1)*1000
	return s.found(ctx, s.topic, s.model,
		[]int64{t0 - 1, t0, t0 + 149_999, t0 + 150_000, t0 + 150_001, last, last + 1})
}

func (s *scenario) seekOutOfOrder(ctx context.Context) error {
	late := s.topic + "-late"
	if err := s.create(ctx, late, 1); err != nil {
		return err
	}
	m := model{}
	for _, batch := range [][]int64{{5, 1, 9, 3}, {2, 12, 4, 8}, {7, 20, 6}, {0, 15, 20, 10}} {
		var records []*kgo.Record
		for _, second := range batch {
			records = append(records, &kgo.Record{
				Topic: late, Key: []byte("k"), Value: fmt.Appendf(nil, "s%d", second), Timestamp: time.UnixMilli(t0 + second*1000),
			})
		}
		if err := s.produce(ctx, m, records); err != nil {
			return err
		}
	}
	var times []int64
	for second := int64(-1); second <= 21; second++ {
		times = append(times, t0+second*1000-1, t0+second*1000, t0+second*1000+1)
	}
	if err := s.found(ctx, late, m, times); err != nil {
		return err
	}
	return s.delete(ctx, late)
}

// found says whether the admin client finds the first offset whose time is at or after each of times. After the last
// time the broker answers "none", for which kadm puts the partition's end, with no timestamp.
func (s *scenario) found(ctx context.Context, topic string, m model, times []int64) error {
	for _, t := range times {
		listed, err := s.admin.ListOffsetsAfterMilli(ctx, t, topic)
		if err = errors.Join(err, listed.Error()); err != nil {
			return err
		}
		for partition, end := range m.ends() {
			offset, timestamp, found := m.firstAtOrAfter(partition, t)
			if !found {
				offset = end
			}
			seen, _ := listed.Lookup(topic, partition)
			what := fmt.Sprintf("offset and time at T0+%d in %s/%d", t-t0, topic, partition)
			if err := equal(what, []int64{offset, timestamp}, []int64{seen.Offset, seen.Timestamp}); err != nil {
				return err
			}
		}
	}
	return s.consumedFrom(ctx, topic, m, t0+10_000)
}

// consumedFrom says whether a consumer that starts at a time reads from there to the end.
func (s *scenario) consumedFrom(ctx context.Context, topic string, m model, t int64) error {
	starts, offsets := map[int32]int64{}, map[int32]kgo.Offset{}
	for partition := range m {
		starts[partition], _, _ = m.firstAtOrAfter(partition, t)
		offsets[partition] = kgo.NewOffset().AfterMilli(t)
	}
	client := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}))
	defer client.Close()
	seen, err := readTo(ctx, client, m.ends())
	if err != nil {
		return err
	}
	return m.slice(starts, m.ends()).equal(seen)
}

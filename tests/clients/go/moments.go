package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// f

func (s *scenario) momentSteps() {
	step := func(name string, body func(context.Context) error) { s.steps.step("f "+name, momentPatience, body) }
	starts, first := map[int32]int64{}, s.model.ends()
	m := nextMillisecond()
	step("moments-produce", func(ctx context.Context) error { return s.pass(ctx, "after", 50) })
	second := s.model.ends()
	m2 := nextMillisecond()
	step("moments-produce-later", func(ctx context.Context) error { return s.pass(ctx, "later", 5) })

	at := fmt.Sprintf("%s.__at.s%d", s.topic, m)
	window := fmt.Sprintf("%s..s%d", at, m2)
	for _, read := range []struct {
		name, topic  string
		starts, ends map[int32]int64
	}{
		{"moment-assigned", at, starts, first},
		{"moment-second", fmt.Sprintf("%s.__at.s%d", s.topic, m2), starts, second},
		{"window-assigned", window, first, second},
		{"moment-with-at-sign", fmt.Sprintf("%s@s%d", s.topic, m), starts, first},
		{"window-with-at-sign", fmt.Sprintf("%s@s%d..s%d", s.topic, m, m2), first, second},
	} {
		step(read.name, func(ctx context.Context) error { return s.readSlice(ctx, read.topic, read.starts, read.ends) })
	}
	step("moment-subscribed", func(ctx context.Context) error {
		reader := s.join("g-at-"+s.topic, at)
		defer reader.Close()
		seen, err := readTo(ctx, reader.Client, first)
		if err != nil {
			return err
		}
		return s.model.slice(starts, first).equal(seen)
	})
	step("moment-seek-by-time", func(ctx context.Context) error {
		return s.found(ctx, at, s.model.slice(starts, first), []int64{t0, t0 + 150_000, t0 + perPass*1000})
	})
	for _, readOnly := range []string{at, window} {
		step("produce-refused "+readOnly[len(s.topic):], func(ctx context.Context) error { return s.refused(ctx, readOnly) })
	}
	step("moment-inside-a-batch", s.waitsInsideBatch)
	step("moment-transaction", s.momentOfTransaction)
	step("moment-unchanged", func(ctx context.Context) error { return s.readSlice(ctx, at, starts, first) })
}

// nextMillisecond is a moment that no record produced so far lies after, and every later one does. The clock is this
// machine's.
func nextMillisecond() int64 {
	m := time.Now().UnixMilli() + 1
	for time.Now().UnixMilli() <= m {
	}
	return m
}

func (s *scenario) readSlice(ctx context.Context, topic string, starts, ends map[int32]int64) error {
	listedStarts, err := s.admin.ListStartOffsets(ctx, topic)
	if err = errors.Join(err, listedStarts.Error()); err != nil {
		return err
	}
	listedEnds, err := s.admin.ListEndOffsets(ctx, topic)
	if err = errors.Join(err, listedEnds.Error()); err != nil {
		return err
	}
	offsets := map[int32]kgo.Offset{}
	unread := map[int32]int64{}
	for partition, end := range ends {
		start, _ := listedStarts.Lookup(topic, partition)
		seen, _ := listedEnds.Lookup(topic, partition)
		what := fmt.Sprintf("start and end of %s/%d", topic, partition)
		if err := equal(what, []int64{starts[partition], end}, []int64{start.Offset, seen.Offset}); err != nil {
			return err
		}
		offsets[partition] = kgo.NewOffset().AtStart()
		if starts[partition] < end {
			unread[partition] = end
		}
	}
	client := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}))
	defer client.Close()
	seen, err := readTo(ctx, client, unread)
	if err != nil {
		return err
	}
	return s.model.slice(starts, ends).equal(seen)
}

func (s *scenario) refused(ctx context.Context, topic string) error {
	client := s.client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, momentPatience/2)
	defer cancel()
	err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte("v")}).FirstErr()
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("expected a record for %s to be refused, saw error: %v", topic, err)
	}
	return nil
}

// fetchCount counts the fetches that a client sends.
type fetchCount struct{ atomic.Int64 }

func (c *fetchCount) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == fetchKey {
		c.Add(1)
	}
}

const (
	fetchKey = 1
	// A fetch at the end waits for as long as the client lets it; one that comes back at once is sent thousands of
	// times in a second.
	fetchesMax = 20
)

// waitsInsideBatch reads up to a moment that lies inside of a batch, and windows that hold nothing of it: there is
// nothing more, and the client waits for it.
func (s *scenario) waitsInsideBatch(ctx context.Context) error {
	topic := s.topic + "-inside"
	if err := s.create(ctx, topic, 1); err != nil {
		return err
	}
	var records []*kgo.Record
	for i := range int64(3) {
		records = append(records, &kgo.Record{Topic: topic, Value: []byte("v"), Timestamp: time.UnixMilli(t0 + i*1000)})
	}
	if err := s.produce(ctx, model{}, records); err != nil {
		return err
	}
	for _, read := range []struct {
		moment string
		end    int64
		count  int
	}{
		{fmt.Sprintf("u%d", t0+1500), 2, 2},
		{fmt.Sprintf("u%d..u%d", t0+500, t0+700), 1, 0},
	} {
		if err := s.waitsAtEnd(ctx, topic+".__at."+read.moment, read.end, read.count); err != nil {
			return err
		}
	}
	return s.delete(ctx, topic)
}

func (s *scenario) waitsAtEnd(ctx context.Context, topic string, end int64, count int) error {
	var fetches fetchCount
	offset := kgo.NewOffset().AtStart()
	client := s.client(kgo.WithHooks(&fetches), kgo.FetchMaxWait(500*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: offset}}))
	defer client.Close()
	unread := map[int32]int64{}
	if count > 0 {
		unread[0] = end
	}
	seen, err := readTo(ctx, client, unread)
	if err != nil {
		return err
	}
	if err := equal("count of records of "+topic, count, len(seen)); err != nil {
		return err
	}
	brief, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if more := client.PollFetches(brief).NumRecords(); more != 0 {
		return fmt.Errorf("expected nothing behind the end of %s, saw %d records", topic, more)
	}
	if fetches := fetches.Load(); fetches == 0 || fetches > fetchesMax {
		return fmt.Errorf("expected up to %d fetches at the end of %s, saw %d", fetchesMax, topic, fetches)
	}
	return nil
}

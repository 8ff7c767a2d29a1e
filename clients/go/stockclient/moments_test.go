// Package stockclient tests the Go package with franz-go against a server. It is a module of its own, so that the package has no
// dependencies. MOMENTS_KAFKA and MOMENTS_HTTP say where the server is: tests/clients/history.sh sets them.
package stockclient

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	freezeframe "freezeframe/clients/go"

	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 20 * time.Second

type fixture struct {
	ctx    context.Context
	client *freezeframe.Client
	topic  string
}

func connect(t *testing.T) fixture {
	if os.Getenv("MOMENTS_KAFKA") == "" {
		t.Skip("MOMENTS_KAFKA is not set: run tests/clients/history.sh")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	client, err := freezeframe.Connect(os.Getenv("MOMENTS_HTTP"), freezeframe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); client.Close() })
	return fixture{ctx, client, fmt.Sprintf("%s-%d", t.Name(), time.Now().UnixNano())}
}

func (f fixture) kafka(t *testing.T, options ...kgo.Opt) *kgo.Client {
	options = append(options, kgo.SeedBrokers(os.Getenv("MOMENTS_KAFKA")), kgo.AllowAutoTopicCreation())
	client, err := kgo.NewClient(options...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (f fixture) produce(t *testing.T, values ...string) {
	client := f.kafka(t)
	defer client.Close()
	for _, value := range values {
		record := &kgo.Record{Topic: f.topic, Value: []byte(value)}
		if err := client.ProduceSync(f.ctx, record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// consume reads count values, and then looks for more for as long as the last answer took.
func (f fixture) consume(t *testing.T, client *kgo.Client, count int) []string {
	defer client.Close()
	var values []string
	for len(values) < count {
		fetches := client.PollFetches(f.ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	return values
}

func (f fixture) now(t *testing.T) string {
	moment, err := f.client.Moment(f.ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	return moment
}

func expect(t *testing.T, expected, seen []string) {
	t.Helper()
	if !slices.Equal(expected, seen) {
		t.Errorf("expected %q, saw %q", expected, seen)
	}
}

func TestAStockConsumerReadsAMoment(t *testing.T) {
	f := connect(t)
	f.produce(t, "one", "two")
	before := f.now(t)
	f.produce(t, "three")
	at, err := freezeframe.MomentTopic(f.topic, before)
	if err != nil {
		t.Fatal(err)
	}
	window, err := f.client.MomentTopic(f.ctx, f.topic, before+"..now")
	if err != nil {
		t.Fatal(err)
	}
	start := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
	expect(t, []string{"one", "two"}, f.consume(t, f.kafka(t, kgo.ConsumeTopics(at), start), 2))
	expect(t, []string{"three"}, f.consume(t, f.kafka(t, kgo.ConsumeTopics(window), start), 1))
	cut, err := f.client.Cut(f.ctx, before, f.topic)
	if err != nil || len(cut.Partitions) == 0 {
		t.Fatalf("expected a cut with partitions, saw %v, %v", cut, err)
	}
	again, err := f.client.Cut(f.ctx, before, f.topic)
	if err != nil || again.Hash != cut.Hash || cut.At != before {
		t.Errorf("expected %v at %s again, saw %v, %v", cut, before, again, err)
	}
	ends := int64(0)
	for _, partition := range cut.Partitions {
		ends += partition.End
	}
	if ends != 2 {
		t.Errorf("expected 2 records in %v", cut)
	}
}

func TestAGroupGoesOnFromAMoment(t *testing.T) {
	f := connect(t)
	f.produce(t, "one")
	group := "group-" + f.topic
	member := func() *kgo.Client {
		start := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
		return f.kafka(t, kgo.ConsumerGroup(group), kgo.ConsumeTopics(f.topic), start, kgo.DisableAutoCommit())
	}
	first := member()
	fetches := first.PollFetches(f.ctx)
	if err := fetches.Err(); err != nil {
		t.Fatal(err)
	}
	if err := first.CommitRecords(f.ctx, fetches.Records()...); err != nil {
		t.Fatal(err)
	}
	first.Close()
	before := f.now(t)
	f.produce(t, "two")
	offsets, err := f.client.SeekGroup(f.ctx, group, before)
	if err != nil || len(offsets) == 0 {
		t.Fatalf("expected offsets, saw %v, %v", offsets, err)
	}
	expect(t, []string{"two"}, f.consume(t, member(), 1))
	offsets, err = f.client.SeekGroup(f.ctx, group, "start", f.topic)
	if !freezeframe.HasCode(err, "unknown_topic") && err != nil {
		t.Errorf("expected the start or unknown_topic, saw %v, %v", offsets, err)
	}
}

func TestAPinKeepsItsMomentUntilItIsRemoved(t *testing.T) {
	f := connect(t)
	f.produce(t, "one")
	name := "pin-" + f.topic
	pin, err := f.client.Pin(f.ctx, name, "", time.Hour, f.topic)
	if err != nil || pin.Name != name || !pin.Expires.After(time.Now()) {
		t.Fatalf("expected a pin, saw %v, %v", pin, err)
	}
	if moment, err := f.client.Moment(f.ctx, "pin:"+name); err != nil || moment != pin.At {
		t.Errorf("expected %s, saw %s, %v", pin.At, moment, err)
	}
	if err := f.client.Unpin(f.ctx, name); err != nil {
		t.Fatal(err)
	}
	if err := f.client.Unpin(f.ctx, name); !freezeframe.HasCode(err, "unknown_pin") {
		t.Errorf("expected unknown_pin, saw %v", err)
	}
}

func TestARefusalOfTheServerHasItsCode(t *testing.T) {
	f := connect(t)
	_, err := f.client.Cut(f.ctx, "", "nowhere")
	if !freezeframe.HasCode(err, "unknown_topic") {
		t.Errorf("expected unknown_topic, saw %v", err)
	}
	if _, err := f.client.Moment(f.ctx, "the day before"); !freezeframe.HasCode(err, "bad_moment") {
		t.Errorf("expected bad_moment, saw %v", err)
	}
	if _, err := f.client.Cut(f.ctx, "s4102444800000"); !freezeframe.HasCode(err, "far_future") {
		t.Errorf("expected far_future, saw %v", err)
	}
}

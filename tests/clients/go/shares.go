package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// i

// sharePatience: members of a share group hear of changes with their heartbeats.
const sharePatience = 15 * time.Second

func (s *scenario) shareSteps() {
	s.steps.step("i share-group", sharePatience, s.share)
}

const shared = 12

// share: two members get each record once; what is released comes again, and what is accepted or rejected does not.
func (s *scenario) share(ctx context.Context) error {
	topic, group := s.topic+"-shared", "g-shared-"+s.topic
	if err := s.create(ctx, topic, 1); err != nil {
		return err
	}
	if err := s.fromTheStart(ctx, group); err != nil {
		return err
	}
	producer := s.client()
	defer producer.Close()
	for i := range shared {
		record := &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "v-%d", i)}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
	}
	member := func() *kgo.Client {
		return s.client(kgo.ShareGroup(group), kgo.ConsumeTopics(topic), kgo.ShareMaxRecords(4), kgo.ShareMaxRecordsStrict())
	}
	left, right := member(), member()
	defer left.Close()
	defer right.Close()
	deliveries := map[int64][]int32{}
	done := 0
	for turn := 0; done < shared; turn++ {
		client := []*kgo.Client{left, right}[turn%2]
		polled, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		fetches := client.PollRecords(polled, 4)
		cancel()
		if ctx.Err() != nil {
			return fmt.Errorf("expected %d records to be done, saw %d: %v", shared, done, deliveries)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			deliveries[record.Offset] = append(deliveries[record.Offset], record.DeliveryCount())
			switch {
			case len(deliveries[record.Offset]) == 1 && record.Offset%3 == 0:
				record.Ack(kgo.AckRelease)
			case record.Offset%3 == 1:
				record.Ack(kgo.AckReject)
				done++
			default:
				record.Ack(kgo.AckAccept)
				done++
			}
		})
		if err := client.FlushAcks(ctx); err != nil {
			return err
		}
	}
	for offset := range int64(shared) {
		expected := []int32{1}
		if offset%3 == 0 {
			expected = []int32{1, 2}
		}
		if err := equal(fmt.Sprintf("deliveries of %d", offset), expected, deliveries[offset]); err != nil {
			return err
		}
	}
	return s.delete(ctx, topic)
}

// fromTheStart has a group begin where the topic begins.
func (s *scenario) fromTheStart(ctx context.Context, group string) error {
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = "share.auto.offset.reset", kmsg.StringPtr("earliest")
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	resource.Configs = append(resource.Configs, config)
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	client := s.client()
	defer client.Close()
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(response.Resources[0].ErrorCode)
}

package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

// entry is what must come back of a record. A nil value differs from an empty one.
type entry struct {
	key       string
	value     *string
	timestamp int64
	headers   []string
}

func (e entry) String() string {
	value := "null"
	if e.value != nil {
		value = *e.value
	}
	return fmt.Sprintf("{%s %s %d %v}", e.key, value, e.timestamp, e.headers)
}

func entryOf(r *kgo.Record) entry {
	e := entry{key: string(r.Key), timestamp: r.Timestamp.UnixMilli()}
	if r.Value != nil {
		value := string(r.Value)
		e.value = &value
	}
	for _, h := range r.Headers {
		e.headers = append(e.headers, h.Key+"="+string(h.Value))
	}
	return e
}

// model is what a topic must hold, kept beside it: for each partition, the records by offset.
type model map[int32]map[int64]entry

func (m model) put(partition int32, offset int64, e entry) error {
	if m[partition] == nil {
		m[partition] = map[int64]entry{}
	}
	if before, given := m[partition][offset]; given {
		return fmt.Errorf("expected offset %d of partition %d to be given once, saw it given to %s and %s",
			offset, partition, before, e)
	}
	m[partition][offset] = e
	return nil
}

func union(parts ...model) model {
	all := model{}
	for _, part := range parts {
		for partition, entries := range part {
			if all[partition] == nil {
				all[partition] = map[int64]entry{}
			}
			maps.Copy(all[partition], entries)
		}
	}
	return all
}

func (m model) ends() map[int32]int64 {
	ends := map[int32]int64{}
	for partition := range m {
		offsets := m.offsets(partition)
		ends[partition] = offsets[len(offsets)-1] + 1
	}
	return ends
}

func (m model) count() int {
	count := 0
	for _, entries := range m {
		count += len(entries)
	}
	return count
}

func (m model) offsets(partition int32) []int64 {
	offsets := []int64{}
	for offset := range m[partition] {
		offsets = append(offsets, offset)
	}
	slices.Sort(offsets)
	return offsets
}

// slice is the part in [start, end) of each partition in ends.
func (m model) slice(starts, ends map[int32]int64) model {
	part := model{}
	for partition, end := range ends {
		part[partition] = map[int64]entry{}
		for offset, e := range m[partition] {
			if starts[partition] <= offset && offset < end {
				part[partition][offset] = e
			}
		}
	}
	return part
}

// firstAtOrAfter is the first offset whose timestamp is at or after t, and that timestamp.
func (m model) firstAtOrAfter(partition int32, t int64) (offset, timestamp int64, found bool) {
	for _, offset := range m.offsets(partition) {
		if m[partition][offset].timestamp >= t {
			return offset, m[partition][offset].timestamp, true
		}
	}
	return -1, -1, false
}

func (m model) dense() error {
	for partition, end := range m.ends() {
		if int64(len(m[partition])) != end {
			return fmt.Errorf("expected offsets 0 to %d of partition %d, saw %d of them", end-1, partition, len(m[partition]))
		}
	}
	return nil
}

// equal says whether seen, in the order it was read, is exactly m: each record once, in offset order within its partition.
func (m model) equal(seen []*kgo.Record) error {
	offsets := map[int32][]int64{}
	for _, r := range seen {
		offsets[r.Partition] = append(offsets[r.Partition], r.Offset)
		expected, known := m[r.Partition][r.Offset]
		if !known {
			return fmt.Errorf("expected no record %d/%d, saw %s", r.Partition, r.Offset, entryOf(r))
		}
		if err := equal(fmt.Sprintf("record %d/%d", r.Partition, r.Offset), expected.String(), entryOf(r).String()); err != nil {
			return err
		}
	}
	for partition := range m {
		if !slices.Equal(m.offsets(partition), offsets[partition]) {
			return fmt.Errorf("expected offsets %v of partition %d in this order, saw %v",
				m.offsets(partition), partition, offsets[partition])
		}
	}
	return nil
}

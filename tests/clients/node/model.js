import { equal } from './steps.js'

/** What must come back of a record, as plain values. */
export const entryOf = ({ key, value, timestamp, headers }) => {
  const list = []
  for (const [name, values] of Object.entries(headers ?? {})) {
    for (const one of [values].flat()) list.push(`${name}=${one}`)
  }
  return {
    key: key.toString(),
    value: value === null ? null : value.toString(),
    timestamp: Number(timestamp),
    headers: list,
  }
}

/** What a topic must hold, kept beside it: for each partition, the entries in the order of their offsets, from `start`. */
export class Model {
  partitions = new Map()

  /** Notes an entry that was given the next offset of its partition. */
  append(partition, entry) {
    if (!this.partitions.has(partition)) this.partitions.set(partition, { start: 0, entries: [] })
    this.partitions.get(partition).entries.push(entry)
  }

  end(partition) {
    const { start, entries } = this.partitions.get(partition) ?? { start: 0, entries: [] }
    return start + entries.length
  }

  ends() {
    return new Map([...this.partitions.keys()].sort().map(partition => [partition, this.end(partition)]))
  }

  count() {
    return [...this.partitions.values()].reduce((sum, { entries }) => sum + entries.length, 0)
  }

  /** The part in [start, end) of each partition that `ends` names. */
  slice(starts, ends) {
    const part = new Model()
    for (const [partition, end] of ends) {
      const start = starts.get(partition) ?? 0
      part.partitions.set(partition, { start, entries: this.partitions.get(partition).entries.slice(start, end) })
    }
    return part
  }

  /** The first offset whose timestamp is at or after `t`; the end where there is none, which is how kafkajs says it. */
  firstAtOrAfter(partition, t) {
    const { start, entries } = this.partitions.get(partition)
    const index = entries.findIndex(entry => entry.timestamp >= t)
    return index < 0 ? this.end(partition) : start + index
  }

  /** `seen`, in the order it was read, is exactly this: each record once, in offset order within its partition. */
  assertEquals(seen) {
    for (const [partition, { start, entries }] of this.partitions) {
      const mine = seen.filter(record => record.partition === partition)
      const offsets = mine.map(record => Number(record.offset))
      equal(`offsets read from partition ${partition}`, entries.map((_, index) => start + index), offsets)
      mine.forEach((record, index) =>
        equal(`record ${partition}/${record.offset}`, entries[index], entryOf(record.message)))
    }
    equal('count of records', this.count(), seen.length)
  }
}

import kafkajs from 'kafkajs'
import { setTimeout as delay } from 'node:timers/promises'
import { isDeepStrictEqual } from 'node:util'
import { entryOf } from './model.js'
import { nextMillisecond, T0 } from './scenario.js'
import { equal } from './steps.js'

const { Partitioners } = kafkajs

const PARTITIONS = [0, 1, 2]

/** What is read of transactions, the same in every language. Each step has topics of its own. */
export class Transactions {
  groups = 0

  constructor(scenario) {
    this.scenario = scenario
    this.topic = `${scenario.topic}-txn`
  }

  async run() {
    const { steps } = this.scenario
    await steps.step('h transaction-commit-and-abort', () => this.commitAndAbort())
    await steps.step('h consume-transform-produce', () => this.consumeTransformProduce())
    await steps.step('h fencing', () => this.fencing())
  }

  async commitAndAbort() {
    const { topic } = this
    await this.scenario.create(topic, PARTITIONS.length)
    await this.producing([topic, null], async (producer, plain) => {
      const before = await send(plain, topic, 'before')
      let transaction = await producer.transaction()
      const first = await send(transaction, topic, 'first')
      await this.assertReads(topic, before)
      await transaction.commit()
      const committed = [...before, ...first]
      await this.assertReads(topic, committed)

      transaction = await producer.transaction()
      const aborted = await send(transaction, topic, 'aborted')
      const behind = await send(plain, topic, 'behind')
      await this.assertReads(topic, committed)
      await this.assertReads(topic, [...committed, ...aborted, ...behind], true)
      await transaction.abort()
      committed.push(...behind)
      await this.assertReads(topic, committed)

      transaction = await producer.transaction()
      committed.push(...await send(transaction, topic, 'second'))
      await transaction.commit()
      await this.assertReads(topic, committed)
      await this.assertReads(topic, [...committed, ...aborted], true)
    })
    await this.scenario.delete(topic)
  }

  async consumeTransformProduce() {
    const [source, target, groupId] = [`${this.topic}-in`, `${this.topic}-out`, `g-${this.topic}`]
    await this.scenario.create(source, PARTITIONS.length)
    await this.scenario.create(target, PARTITIONS.length)
    await this.producing([groupId, null], async (producer, plain) => {
      const input = await send(plain, source, 'in')
      await this.transform(producer, source, target, groupId, input.length)
      const output = await this.read(target, input.length)
      for (const partition of PARTITIONS) {
        const values = records => records.filter(record => record.partition === partition).map(({ entry }) => entry.value)
        equal(`output in partition ${partition}`, values(input).map(value => `out of ${value}`), values(output))
      }
      const ends = new Map(PARTITIONS.map(partition => [partition, input.length / PARTITIONS.length]))
      while (!isDeepStrictEqual(ends, await this.scenario.committed(groupId, source))) await delay(10)
    })
    await this.scenario.delete(source)
    await this.scenario.delete(target)
  }

  /** One transaction for each batch. The second is aborted, and kafkajs reads again what was not resolved. */
  async transform(producer, source, target, groupId, count) {
    const consumer = await this.scenario.subscribed(groupId, source)
    let transactions = 0
    let done = 0
    const copy = async ({ partition, messages }, resolveOffset) => {
      const transaction = await producer.transaction()
      await transaction.send({
        topic: target,
        messages: messages.map(({ key, value, timestamp }) => ({ partition, key, value: `out of ${value}`, timestamp })),
      })
      const last = messages.at(-1).offset
      const partitions = [{ partition, offset: String(Number(last) + 1) }]
      await transaction.sendOffsets({ consumerGroupId: groupId, topics: [{ topic: source, partitions }] })
      if (++transactions === 2) {
        await transaction.abort()
      } else {
        await transaction.commit()
        resolveOffset(last)
        done += messages.length
      }
    }
    try {
      await new Promise((resolve, reject) => {
        const eachBatch = async ({ batch, resolveOffset }) => {
          await copy(batch, resolveOffset).catch(reject)
          if (done === count) resolve()
        }
        consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch }).catch(reject)
      })
    } finally {
      await consumer.disconnect()
    }
  }

  async fencing() {
    const topic = `${this.topic}-fenced`
    await this.scenario.create(topic, PARTITIONS.length)
    await this.producing([topic, topic], async (first, second) => {
      const fenced = await first.transaction()
      await send(fenced, topic, 'fenced')
      // kafkajs asks for a producer id when it connects: there the second one took over from the first.
      const transaction = await second.transaction()
      const seen = await send(transaction, topic, 'second')
      const answer = await fenced.commit().catch(problem => problem)
      equal('the answer to the first', 'INVALID_PRODUCER_EPOCH', answer?.type)
      await transaction.commit()
      await this.assertReads(topic, seen)
    })
    await this.scenario.delete(topic)
  }

  /** A moment while a transaction is open has nothing of it for ever; one after its commit has all. */
  async moment() {
    const topic = `${this.topic}-moment`
    await this.scenario.create(topic, PARTITIONS.length)
    await this.producing([topic, null], async (producer, plain) => {
      const before = await send(plain, topic, 'before')
      const transaction = await producer.transaction()
      const all = [...before, ...await send(transaction, topic, 'open')]
      const m = nextMillisecond()
      await transaction.commit()
      await this.assertReads(topic, all)
      const m2 = nextMillisecond()
      await this.assertReads(`${topic}.__at.s${m}`, before)
      await this.assertReads(`${topic}.__at.s${m}`, all, true)
      await this.assertReads(`${topic}.__at.s${m2}`, all)
    })
    await this.scenario.delete(topic)
  }

  /** Calls `body` with a connected producer for each id; without an id, its records are in no transaction. */
  async producing(ids, body) {
    const producers = ids.map(transactionalId => this.scenario.kafka.producer({
      ...transactionalId && { transactionalId }, idempotent: true, maxInFlightRequests: 1, allowAutoTopicCreation: false,
      createPartitioner: Partitioners.DefaultPartitioner,
    }))
    try {
      for (const producer of producers) await producer.connect()
      await body(...producers)
    } finally {
      for (const producer of producers) await producer.disconnect()
    }
  }

  async assertReads(topic, expected, readUncommitted = false) {
    const seen = await this.read(topic, expected.length, readUncommitted)
    const sent = expected.toSorted((a, b) => a.offset - b.offset)
    for (const partition of PARTITIONS) {
      const mine = records => records.filter(record => record.partition === partition)
      const offsets = records => mine(records).map(({ offset }) => offset)
      equal(`offsets read from ${topic}/${partition}`, offsets(sent), offsets(seen))
      equal(`records of ${topic}/${partition}`, mine(sent), mine(seen))
    }
  }

  /** Reads as many records as that, and until a fetch that was sent later has brought what there is beyond them. */
  async read(topic, count, readUncommitted = false) {
    const { consumer, seen } = await this.scenario.join(`g-${this.groups++}-${this.topic}`, topic, { readUncommitted })
    try {
      while (seen.length < count) await delay(10)
      let fetches = 0
      consumer.on(consumer.events.FETCH, () => fetches++)
      while (fetches < 2) await delay(10)
      return seen.map(({ partition, offset, message }) =>
        ({ partition, offset: Number(offset), entry: entryOf(message) }))
    } finally {
      await consumer.disconnect()
    }
  }
}

/** Sends some to each partition, with a producer or in a transaction, and gives where they went. */
const send = async (sender, topic, label) => {
  const messages = PARTITIONS.flatMap(partition => [0, 1, 2, 3, 4].map(i =>
    ({ partition, key: `k-${i}`, value: `${label}-${i}`, timestamp: String(T0 + i * 1000), headers: {} })))
  const answers = await sender.send({ topic, acks: -1, messages })
  return answers.flatMap(({ partition, baseOffset }) => messages.filter(message => message.partition === partition)
    .map((message, i) => ({ partition, offset: Number(baseOffset) + i, entry: entryOf(message) })))
}

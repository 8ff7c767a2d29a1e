import kafkajs from 'kafkajs'
import snappy from 'kafkajs-snappy'
import { setTimeout as delay } from 'node:timers/promises'
import { entryOf, Model } from './model.js'
import { equal, within } from './steps.js'
import { Transactions } from './transactions.js'

const { CompressionCodecs, CompressionTypes, Kafka, KafkaJSProtocolError, logLevel, Partitioners } = kafkajs

// kafkajs brings gzip and takes the others from outside. Its plugins for zstd and lz4 compile C, Node 20 has neither, and
// lz4js writes frames whose blocks depend on each other, which Kafka refuses.
CompressionCodecs[CompressionTypes.Snappy] = snappy
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
}

export const T0 = 1_700_000_000_000
const PER_PASS = 300
const LEFT_UNREAD = 10
const MOMENT_MS = 4000
// The records say 2023: by default Kafka deletes them at its next look, every five minutes.
const KEEP = [{ name: 'retention.ms', value: '-1' }]

/** Steps a to h, the same in every language. kafkajs knows only subscribed consumers, so it assigns none. */
export class Scenario {
  model = new Model()

  constructor(bootstrap, steps, topic, config) {
    this.steps = steps
    this.topic = topic
    this.kafka = new Kafka({
      clientId: 'freezeframe-tests',
      brokers: [bootstrap],
      logLevel: logLevel.NOTHING,
      requestTimeout: 5000,
      retry: { retries: 3, initialRetryTime: 50 },
      ...config,
    })
    this.admin = this.kafka.admin()
  }

  async run(moments) {
    const { steps, topic } = this
    await this.admin.connect()
    await steps.step('a create-topic', () => this.create(topic, 3))
    for (const codec of Object.keys(CODECS)) {
      await steps.step(`b produce-${codec}`, () => this.pass(codec, PER_PASS, CODECS[codec]))
    }
    await this.groupSteps()
    await steps.step('e seek-by-time', () => this.seekByTime())
    await steps.step('e seek-by-time-out-of-order', () => this.seekOutOfOrder())
    const transactions = new Transactions(this)
    await transactions.run()
    if (moments) {
      await this.momentSteps()
      await steps.step('f moment-transaction', () => transactions.moment())
    }
    await steps.step('g delete-topic', () => this.delete(topic))
    await this.admin.disconnect()
  }

  // a, g

  async create(topic, partitions) {
    await this.admin.createTopics({
      waitForLeaders: true,
      topics: [{ topic, numPartitions: partitions, replicationFactor: 1, configEntries: KEEP }],
    })
    const { topics } = await this.admin.fetchTopicMetadata({ topics: [topic] })
    equal(`partitions of ${topic}`, partitions, topics[0].partitions.length)
  }

  async delete(topic) {
    await this.admin.deleteTopics({ topics: [topic] })
    while ((await this.admin.listTopics()).includes(topic)) await delay(10)
  }

  // b

  async pass(codec, count, compression) {
    const messages = []
    for (let i = 0; i < count; i++) {
      messages.push({
        key: `k-${i}`,
        value: i % 50 === 7 ? null : `${codec}-${i}-${'x'.repeat(i % 40)}`,
        timestamp: String(T0 + i * 1000),
        headers: { h: ['1', '2'], codec },
      })
    }
    await this.produce(this.model, this.topic, messages, compression)
  }

  /** One batch for each partition. The broker answers with the offset of its first record, which must be the next. */
  async produce(model, topic, messages, compression = CompressionTypes.None) {
    const chosen = []
    const createPartitioner = () => {
      const partitioner = Partitioners.DefaultPartitioner()
      return args => chosen[chosen.push(partitioner(args)) - 1]
    }
    const producer = this.kafka.producer({
      idempotent: true, maxInFlightRequests: 1, allowAutoTopicCreation: false, createPartitioner,
    })
    await producer.connect()
    try {
      const answers = await producer.send({ topic, acks: -1, compression, messages })
      equal('partitions that answered', [...new Set(chosen)].sort(), answers.map(({ partition }) => partition).sort())
      for (const { partition, baseOffset } of answers) {
        equal(`first offset given in partition ${partition}`, model.end(partition), Number(baseOffset))
      }
      messages.forEach((message, index) => model.append(chosen[index], entryOf(message)))
    } finally {
      await producer.disconnect()
    }
  }

  // c, d

  /** A member of a group, running. `share` is what it has now; it keeps what it reads once `open` resolves. */
  async join(groupId, topic, { open = Promise.resolve(), readUncommitted = false } = {}) {
    const consumer = await this.subscribed(groupId, topic, readUncommitted)
    const member = { consumer, share: [], seen: [] }
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      member.share = payload.memberAssignment[topic] ?? []
    })
    let opened = false
    open.then(() => { opened = true })
    await consumer.run({
      autoCommit: false,
      eachBatchAutoResolve: false,
      // A heartbeat in a rebalance throws, and kafkajs joins again: nothing was taken from the batch by then.
      eachBatch: async ({ batch, heartbeat, resolveOffset }) => {
        while (!opened) {
          await heartbeat()
          await Promise.race([open, delay(20)])
        }
        for (const message of batch.messages) {
          member.seen.push({ partition: batch.partition, offset: message.offset, message })
          resolveOffset(message.offset)
        }
      },
    })
    return member
  }

  async subscribed(groupId, topic, readUncommitted = false) {
    const consumer = this.kafka.consumer({
      groupId, readUncommitted, allowAutoTopicCreation: false, heartbeatInterval: 300, sessionTimeout: 10000,
      maxWaitTimeInMs: 100,
    })
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    return consumer
  }

  async committed(groupId, topic) {
    const [{ partitions }] = await this.admin.fetchOffsets({ groupId, topics: [topic] })
    return new Map(partitions.map(p => [p.partition, Number(p.offset)]).sort())
  }

  async groupSteps() {
    const { steps, topic, model } = this
    const groupId = `g-${topic}`
    const committed = new Map()
    await steps.step('c group-consume', async () => {
      equal('count of records produced', Object.keys(CODECS).length * PER_PASS, model.count())
      let openGate
      const open = new Promise(resolve => { openGate = resolve })
      const [left, right] = await Promise.all([this.join(groupId, topic, { open }), this.join(groupId, topic, { open })])
      try {
        while (!left.share.length || !right.share.length || left.share.length + right.share.length !== 3) await delay(10)
        openGate()
        while (left.seen.length + right.seen.length < model.count()) await delay(10)
        for (const { consumer, share } of [left, right]) {
          const offsets = share.map(partition => [partition, model.end(partition) - LEFT_UNREAD])
          offsets.forEach(([partition, offset]) => committed.set(partition, offset))
          await consumer.commitOffsets(offsets.map(([partition, offset]) => ({ topic, partition, offset: String(offset) })))
        }
        model.assertEquals([...left.seen, ...right.seen])
      } finally {
        await Promise.all([left.consumer.disconnect(), right.consumer.disconnect()])
      }
    })
    await steps.step('d committed-offsets-read-back', async () => {
      equal('count of partitions committed', 3, committed.size)
      equal('offsets', new Map([...committed].sort()), await this.committed(groupId, topic))
    })
    await steps.step('d group-resumes', async () => {
      equal('count of partitions committed', 3, committed.size)
      const rest = model.slice(committed, model.ends())
      rest.assertEquals(await this.read(groupId, topic, rest))
    })
  }

  /** Reads as many records as `expected` holds, and what comes with them. */
  async read(groupId, topic, expected) {
    const { consumer, seen } = await this.join(groupId, topic)
    try {
      while (seen.length < expected.count()) await delay(10)
      return seen
    } finally {
      await consumer.disconnect()
    }
  }

  // e

  async seekByTime() {
    const last = T0 + (PER_PASS - 1) * 1000
    await this.found(this.topic, this.model, [T0 - 1, T0, T0 + 149_999, T0 + 150_000, T0 + 150_001, last, last + 1])
  }

  async seekOutOfOrder() {
    const late = `${this.topic}-late`
    await this.create(late, 1)
    const model = new Model()
    for (const batch of [[5, 1, 9, 3], [2, 12, 4, 8], [7, 20, 6], [0, 15, 20, 10]]) {
      await this.produce(model, late,
        batch.map(second => ({ key: 'k', value: `s${second}`, timestamp: String(T0 + second * 1000) })))
    }
    const times = []
    for (let second = -1; second <= 21; second++) {
      times.push(T0 + second * 1000 - 1, T0 + second * 1000, T0 + second * 1000 + 1)
    }
    await this.found(late, model, times)
    await this.delete(late)
  }

  async found(topic, model, times) {
    for (const time of times) {
      const answers = await this.admin.fetchTopicOffsetsByTimestamp(topic, time)
      for (const partition of model.partitions.keys()) {
        const seen = answers.find(answer => answer.partition === partition)
        equal(`offset at T0+${time - T0} in ${topic}/${partition}`, model.firstAtOrAfter(partition, time), Number(seen?.offset))
      }
    }
  }

  // f

  async momentSteps() {
    const { topic, model } = this
    const step = (name, body) => this.steps.step(`f ${name}`, body, MOMENT_MS)
    const first = model.ends()
    const starts = new Map([...first].map(([partition]) => [partition, 0]))
    const m = nextMillisecond()
    await step('moments-produce', () => this.pass('after', 50))
    const second = model.ends()
    const m2 = nextMillisecond()
    await step('moments-produce-later', () => this.pass('later', 5))

    const at = `${topic}.__at.s${m}`
    const window = `${at}..s${m2}`
    await step('moment-subscribed', () => this.readSlice(at, starts, first))
    await step('moment-second', () => this.readSlice(`${topic}.__at.s${m2}`, starts, second))
    await step('window-subscribed', () => this.readSlice(window, first, second))
    await step('moment-with-at-sign', () => this.readSlice(`${topic}@s${m}`, starts, first))
    await step('window-with-at-sign', () => this.readSlice(`${topic}@s${m}..s${m2}`, first, second))
    await step('moment-seek-by-time', () =>
      this.found(at, model.slice(starts, first), [T0, T0 + 150_000, T0 + PER_PASS * 1000]))
    for (const readOnly of [at, window]) {
      await step(`produce-refused ${readOnly.slice(topic.length)}`, () => this.refused(readOnly))
    }
  }

  async readSlice(topic, starts, ends) {
    const listed = (await this.admin.fetchTopicOffsets(topic)).sort((a, b) => a.partition - b.partition)
    equal('start offsets', starts, new Map(listed.map(({ partition, low }) => [partition, Number(low)])))
    equal('end offsets', ends, new Map(listed.map(({ partition, high }) => [partition, Number(high)])))
    const expected = this.model.slice(starts, ends)
    expected.assertEquals(await this.read(`g-at-${topic.replace('@', '-')}`, topic, expected))
  }

  async refused(topic) {
    const producer = this.kafka.producer({ allowAutoTopicCreation: false, createPartitioner: Partitioners.DefaultPartitioner })
    await producer.connect()
    try {
      await within(MOMENT_MS / 2, 'an answer', producer.send({ topic, messages: [{ key: 'k', value: 'v' }] }))
    } catch (problem) {
      const cause = problem.cause ?? problem
      if (cause instanceof KafkaJSProtocolError && cause.type !== 'UNKNOWN_TOPIC_OR_PARTITION') return
      throw new Error(`expected a record for ${topic} to be refused, saw ${cause.message}`)
    } finally {
      await producer.disconnect()
    }
    throw new Error(`expected a record for ${topic} to be refused, saw it succeed`)
  }
}

/** A moment that no record produced so far lies after, and every later one does. The clock is this machine's. */
export const nextMillisecond = () => {
  const m = Date.now() + 1
  while (Date.now() <= m);
  return m
}

import kafkajs from 'kafkajs'
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { Scenario, T0 } from './scenario.js'
import { security } from './security.js'
import { equal } from './steps.js'

const { KafkaJSConnectionError, KafkaJSProtocolError, KafkaJSSASLAuthenticationError, logLevel } = kafkajs
const RECORDS = 20

/** Runs the cases of a file that security.sh wrote. */
export async function accessSteps(steps, cases, run) {
  const path = (name) => join(dirname(cases), name)
  for (const line of readFileSync(cases, 'utf8').trimEnd().split('\n')) {
    const [expected, name, bootstrap, mechanism, trust, certificate, user, secret] =
      line.split(' ').map((field) => (field === '-' ? undefined : field))
    const access = new Access(bootstrap, steps, name, run, {
      mechanism, user, trust: path(trust), certificate: certificate && path(certificate),
      secret: secret && readFileSync(path(secret), 'utf8'),
    })
    await (expected === 'served' ? access.served() : access.refused())
    await access.admin.disconnect()
  }
}

/** One way to log in. Its topic and its group have the name that its rules are for. */
class Access extends Scenario {
  logged = []

  constructor(bootstrap, steps, name, run, credentials) {
    super(bootstrap, steps, `${name}-${run}`, {
      ...security(credentials), logLevel: logLevel.DEBUG, logCreator: () => ({ log }) => this.logged.push(log),
    })
    Object.assign(this, { name, mechanism: credentials.mechanism })
  }

  step(name, body) {
    return this.steps.step(`${this.name} ${name}`, body)
  }

  async served() {
    const { topic, model } = this
    await this.step('produce-and-consume', async () => {
      await this.admin.connect()
      await this.create(topic, 1)
      await this.pass('none', RECORDS)
      const { consumer, seen } = await this.join(topic, topic)
      try {
        while (seen.length < RECORDS) await delay(10)
        model.assertEquals(seen)
        await consumer.commitOffsets([{ topic, partition: 0, offset: String(RECORDS) }])
        equal('offsets', model.ends(), await this.committed(topic, topic))
      } finally {
        await consumer.disconnect()
      }
    })
    for (const other of ['without-rule', 'described']) {
      await this.step(`produce-to-topic-${other}`, () => fails('TOPIC_AUTHORIZATION_FAILED',
        this.produce(model, other, [{ key: 'k', value: 'v', timestamp: String(T0) }])))
      await this.step(`consume-topic-${other}`, () => fails('TOPIC_AUTHORIZATION_FAILED', this.crash(topic, other)))
    }
    // kafkajs 2.2.4 asks each broker for the coordinator and forgets why none had one; its log has it.
    await this.step('consume-in-group-without-rule', async () => {
      const problem = await this.crash('without-rule', topic).catch((error) => error)
      equal('error', 'KafkaJSGroupCoordinatorNotFound', problem.name)
      const { error } = this.logged.findLast(({ message }) => message.endsWith('Tried to find group coordinator'))
      equal('reason in the log', 'GROUP_AUTHORIZATION_FAILED', error.type)
    })
  }

  refused() {
    return this.step('login-refused', async () => {
      const problem = await this.connects().then(() => null, (error) => error)
      const cause = problem?.cause ?? problem
      if (!this.mechanism) {
        if (!(cause instanceof KafkaJSConnectionError && /SSL|CERT/.test(cause.code))) throw new Error(`expected an error of TLS, saw ${problem}`)
      } else if (this.mechanism === 'OAUTHBEARER') {
        // kafkajs 2.2.4 takes the broker's first answer for a success, whatever is in it (RFC 7628). The request after it comes in
        // the middle of a login, and Kafka's answer to that says so.
        await fails('ILLEGAL_SASL_STATE', Promise.reject(problem))
      } else if (!(cause instanceof KafkaJSSASLAuthenticationError)) {
        throw new Error(`expected an error of SASL, saw ${problem}`)
      }
    })
  }

  async connects() {
    await this.admin.connect()
    await this.admin.fetchTopicMetadata({ topics: [this.topic] })
  }

  /** A consumer until it ends with an error. */
  async crash(groupId, topic) {
    const consumer = await this.subscribed(groupId, topic)
    try {
      await new Promise((_, reject) => {
        consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
        consumer.run({ eachMessage: () => reject(new Error('expected no record, saw one')) }).catch(reject)
      })
    } finally {
      await consumer.disconnect()
    }
  }
}

async function fails(type, promise) {
  const problem = await promise.then(() => null, (error) => error)
  const cause = problem?.cause ?? problem
  if (!(cause instanceof KafkaJSProtocolError && cause.type === type)) throw new Error(`expected ${type}, saw ${problem}`)
}

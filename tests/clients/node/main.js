// kafkajs against a broker: the scenario that all our client programs share.
//
//   node main.js --bootstrap HOST:PORT --run ID [--moments]

import { parseArgs } from 'node:util'
import { Scenario } from './scenario.js'
import { Steps } from './steps.js'

const { values: options } = parseArgs({
  options: { bootstrap: { type: 'string' }, run: { type: 'string' }, moments: { type: 'boolean', default: false } },
})
if (!options.bootstrap || !options.run) {
  console.error('usage: --bootstrap HOST:PORT --run ID [--moments]')
  process.exit(2)
}

const steps = new Steps()
steps.exitAfterSeconds(58)
const scenario = new Scenario(options.bootstrap, steps, `t-node-${options.run}`)
await scenario.run(options.moments)
process.exit(steps.failures === 0 ? 0 : 1)

// kafkajs against a broker: the scenario that all our client programs share.
//
//   node main.js --bootstrap HOST:PORT --run ID [--moments]
//   node main.js --cases FILE --run ID

import { parseArgs } from 'node:util'
import { accessSteps } from './access.js'
import { Scenario } from './scenario.js'
import { credentialsOf, security } from './security.js'
import { Steps } from './steps.js'

const { values: options } = parseArgs({
  options: {
    bootstrap: { type: 'string' }, cases: { type: 'string' }, run: { type: 'string' },
    moments: { type: 'boolean', default: false },
  },
})
if (!options.bootstrap === !options.cases || !options.run) {
  console.error('usage: {--bootstrap HOST:PORT [--moments] | --cases FILE} --run ID')
  process.exit(2)
}

const steps = new Steps()
steps.exitAfterSeconds(180)
if (options.cases) {
  await accessSteps(steps, options.cases, options.run)
} else {
  const scenario = new Scenario(options.bootstrap, steps, `t-node-${options.run}`, security(credentialsOf(process.env)))
  await scenario.run(options.moments)
}
process.exit(steps.failures === 0 ? 0 : 1)

import { isDeepStrictEqual } from 'node:util'

const show = value => (value instanceof Map ? JSON.stringify([...value]) : JSON.stringify(value))

export const equal = (what, expected, seen) => {
  if (!isDeepStrictEqual(expected, seen)) throw new Error(`expected ${what} ${show(expected)}, saw ${show(seen)}`)
}

const timer = (ms, expected) => {
  let handle
  const promise = new Promise((_, reject) => {
    handle = setTimeout(() => reject(new Error(`expected ${expected}, saw none of it within ${ms} ms`)), ms)
  })
  return { promise, stop: () => clearTimeout(handle) }
}

/** `promise`, or an error once `ms` have passed. */
export const within = async (ms, expected, promise) => {
  const limit = timer(ms, expected)
  try {
    return await Promise.race([promise, limit.promise])
  } finally {
    limit.stop()
  }
}

/** Runs named steps and prints one line for each; a step that fails does not stop the next. */
export class Steps {
  failures = 0
  #running = 'start'

  async step(name, body, ms = 12000) {
    this.#running = name
    try {
      await within(ms, 'the step to end', body())
      console.log(`ok ${name}`)
    } catch (problem) {
      this.failures++
      console.log(`FAILED ${name}: ${String(problem.message ?? problem).replaceAll('\n', ' ')}`)
    }
  }

  exitAfterSeconds(seconds) {
    const end = () => {
      console.log(`FAILED ${this.#running}: expected the run to end within ${seconds} s, saw it here`)
      process.exit(1)
    }
    setTimeout(end, seconds * 1000).unref()
  }
}

import { readFileSync } from 'node:fs'
import { join } from 'node:path'

// TLS if FREEZEFRAME_TLS_DIRECTORY names a directory of make-certificates.sh.
export function security() {
  const directory = process.env.FREEZEFRAME_TLS_DIRECTORY
  if (!directory) return {}
  const read = (name) => readFileSync(join(directory, name), 'utf8')
  return { ssl: { ca: [read('trust.pem')], cert: read('other.crt'), key: read('other.key') } }
}

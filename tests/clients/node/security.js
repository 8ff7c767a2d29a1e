import { readFileSync } from 'node:fs'
import { join } from 'node:path'

// TLS if FREEZEFRAME_TLS_DIRECTORY names a directory of make-certificates.sh, and SASL if FREEZEFRAME_SASL_MECHANISM names a
// mechanism.
export function security() {
  const { FREEZEFRAME_TLS_DIRECTORY: directory, FREEZEFRAME_SASL_MECHANISM: mechanism } = process.env
  const config = {}
  if (directory) {
    const read = (name) => readFileSync(join(directory, name), 'utf8')
    config.ssl = { ca: [read('trust.pem')], cert: read('other.crt'), key: read('other.key') }
  }
  if (mechanism) {
    const { FREEZEFRAME_SASL_USER: username, FREEZEFRAME_SASL_PASSWORD: password } = process.env
    config.sasl = { mechanism: mechanism.toLowerCase(), username, password }
  }
  return config
}

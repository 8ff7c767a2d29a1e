import { readFileSync } from 'node:fs'
import { join } from 'node:path'

// How clients speak with the broker: over TLS if they trust somebody, and with SASL if there is a mechanism. `trust` and
// `certificate` are paths without .pem, .crt and .key; `secret` is a password, or a token.
export function security({ mechanism, trust, certificate, user, secret }) {
  const config = {}
  const read = (name) => readFileSync(name, 'utf8')
  if (trust) {
    config.ssl = { ca: [read(`${trust}.pem`)] }
    if (certificate) Object.assign(config.ssl, { cert: read(`${certificate}.crt`), key: read(`${certificate}.key`) })
  }
  if (mechanism === 'OAUTHBEARER') {
    config.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: secret }) }
  } else if (mechanism) {
    config.sasl = { mechanism: mechanism.toLowerCase(), username: user, password: secret }
  }
  return config
}

// FREEZEFRAME_TLS_DIRECTORY is a directory of make-certificates.sh, FREEZEFRAME_SASL_MECHANISM names a mechanism.
export function credentialsOf(environment) {
  const directory = environment.FREEZEFRAME_TLS_DIRECTORY
  return {
    mechanism: environment.FREEZEFRAME_SASL_MECHANISM,
    trust: directory && join(directory, 'trust'),
    certificate: directory && join(directory, 'other'),
    user: environment.FREEZEFRAME_SASL_USER,
    secret: environment.FREEZEFRAME_SASL_PASSWORD,
  }
}

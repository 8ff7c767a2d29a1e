"""How clients speak with the broker: over TLS if FREEZEFRAME_TLS_DIRECTORY names a directory of make-certificates.sh, and with
SASL if FREEZEFRAME_SASL_MECHANISM names a mechanism."""

import os
from pathlib import Path

_sasl = [os.environ.get(f"FREEZEFRAME_SASL_{name}") for name in ("MECHANISM", "USER", "PASSWORD")]


def _files():
    directory = os.environ.get("FREEZEFRAME_TLS_DIRECTORY")
    return directory and [str(Path(directory, name)) for name in ("trust.pem", "other.crt", "other.key")]


def _config(protocol, files, sasl):
    found = _files()
    config = dict(zip(files, found)) if found else {}
    if _sasl[0]:
        config.update(zip(sasl, _sasl))
        config[protocol] = "SASL_SSL" if found else "SASL_PLAINTEXT"
    elif found:
        config[protocol] = "SSL"
    return config


def for_kafka_python():
    return _config("security_protocol", ("ssl_cafile", "ssl_certfile", "ssl_keyfile"),
                   ("sasl_mechanism", "sasl_plain_username", "sasl_plain_password"))


def for_librdkafka():
    return _config("security.protocol", ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
                   ("sasl.mechanism", "sasl.username", "sasl.password"))

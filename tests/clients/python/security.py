"""How clients speak with the broker: over TLS if FREEZEFRAME_TLS_DIRECTORY names a directory of make-certificates.sh."""

import os
from pathlib import Path


def _files():
    directory = os.environ.get("FREEZEFRAME_TLS_DIRECTORY")
    return directory and [str(Path(directory, name)) for name in ("trust.pem", "other.crt", "other.key")]


def for_kafka_python():
    files = _files()
    return dict(zip(("ssl_cafile", "ssl_certfile", "ssl_keyfile"), files), security_protocol="SSL") if files else {}


def for_librdkafka():
    files = _files()
    names = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
    return {**dict(zip(names, files)), "security.protocol": "ssl"} if files else {}

"""How clients speak with the broker: over TLS if they trust somebody, and with SASL if there is a mechanism."""

import os
import time
from pathlib import Path
from typing import NamedTuple, Optional

from kafka.net.sasl.oauth import AbstractTokenProvider


class Credentials(NamedTuple):
    """The secret is a password, or a token; the others are paths of PEM files."""

    mechanism: Optional[str] = None
    user: Optional[str] = None
    secret: Optional[str] = None
    trust: Optional[str] = None
    certificate: Optional[str] = None
    key: Optional[str] = None

    @staticmethod
    def from_environment():
        """FREEZEFRAME_TLS_DIRECTORY is a directory of make-certificates.sh, FREEZEFRAME_SASL_MECHANISM names a mechanism."""
        sasl = [os.environ.get(f"FREEZEFRAME_SASL_{name}") for name in ("MECHANISM", "USER", "PASSWORD")]
        directory = os.environ.get("FREEZEFRAME_TLS_DIRECTORY")
        names = ("trust.pem", "other.crt", "other.key")
        return Credentials(*sasl, *[str(Path(directory, name)) for name in names if directory])

    def _protocol(self):
        return f"{'SASL_' if self.mechanism else ''}{'SSL' if self.trust else 'PLAINTEXT'}"

    def for_kafka_python(self):
        return _without_none({
            "security_protocol": self._protocol(), "ssl_cafile": self.trust, "ssl_certfile": self.certificate,
            "ssl_keyfile": self.key, "sasl_mechanism": self.mechanism, "sasl_plain_username": self.user,
            "sasl_plain_password": self.secret,
            "sasl_oauth_token_provider": _OneToken(self.secret) if self.mechanism == "OAUTHBEARER" else None,
        })

    def for_librdkafka(self):
        config = {
            "security.protocol": self._protocol(), "ssl.ca.location": self.trust,
            "ssl.certificate.location": self.certificate, "ssl.key.location": self.key,
            "sasl.mechanism": self.mechanism,
        }
        if self.mechanism == "OAUTHBEARER":
            config["oauth_cb"] = lambda _: (self.secret, time.time() + 600)
        else:
            config.update({"sasl.username": self.user, "sasl.password": self.secret})
        return _without_none(config)


class _OneToken(AbstractTokenProvider):
    def __init__(self, token):
        self._token = token

    def token(self):
        return self._token


def _without_none(config):
    return {name: value for name, value in config.items() if value is not None}

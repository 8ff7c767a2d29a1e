"""Servers for the tests: the real one, and one that answers whatever a test says."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Optional

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

import freezeframe as ff

REPOSITORY = Path(__file__).resolve().parents[3]
START_S = 60.0
AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def binary() -> Path:
    """The server: FREEZEFRAME_BINARY, or what was built last of release and debug."""
    named = os.environ.get("FREEZEFRAME_BINARY")
    built = [REPOSITORY / "target" / kind / "freezeframe" for kind in ("release", "debug")]
    for path in [Path(named)] if named else built:
        if path.exists():
            return path
    raise FileNotFoundError("no server: set FREEZEFRAME_BINARY, or run cargo build --bin freezeframe")


class RealServer:
    """A server in a process of its own, on free ports."""

    def __init__(self, data: Path, *settings: str, http: str = "127.0.0.1:0") -> None:
        self._data = data
        self._command = [str(binary()), "serve", "--data-dir", str(data), "--kafka", "127.0.0.1:0", "--http", http]
        for setting in settings:
            self._command += ["--set", setting]
        self._process: Optional[subprocess.Popen[str]] = None
        self._addresses: dict[str, str] = {}

    def start(self) -> RealServer:
        self.begin()
        return self.wait_until_ready()

    def begin(self) -> None:
        """Starts the process, and does not wait."""
        with open(f"{self._data}.log", "a") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True, env=_environment())

    def wait_until_ready(self) -> RealServer:
        assert self._process is not None and self._process.stdout is not None
        line = _line_within(self._process.stdout, START_S)
        if not line.startswith("ready "):
            self.stop()
            raise AssertionError(f"the server did not start: {Path(f'{self._data}.log').read_text()}")
        self._addresses = dict(part.split("=", 1) for part in line.split()[1:])
        return self

    def stop(self, with_signal: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(with_signal)
            self._process.wait(START_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def address(self, listener: str) -> str:
        return self._addresses[listener]

    @property
    def kafka(self) -> str:
        return self._addresses["kafka"]

    @property
    def url(self) -> str:
        return f"http://{self._addresses['http']}"

    @property
    def tls_url(self) -> str:
        return f"https://{self._addresses['http-tls']}"

    def run(self, *arguments: str, text: str = "") -> str:
        """A command of the command line, and what it prints."""
        command = [str(binary()), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=START_S, env=_environment())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def cli(self, *arguments: str, text: str = "") -> str:
        return self.run(*arguments, "--bootstrap", self.kafka, text=text)


def _environment() -> dict[str, str]:
    """Without the settings that a developer may have there."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FREEZEFRAME_")}


def _line_within(stream: IO[str], seconds: float) -> str:
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    return lines[0] if lines else ""


class Topics:
    """Creates topics, and produces to them with a stock client."""

    def __init__(self, kafka: str) -> None:
        config: dict[str, Any] = {"bootstrap.servers": kafka, "linger.ms": 5, "log_level": 0}
        self._admin = AdminClient(config)
        self._producer = Producer(config)

    def create(self, name: str, partitions: int = 1, **configs: str) -> str:
        topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in configs.items()})
        self._admin.create_topics([topic])[name].result(START_S)
        return name

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(START_S)

    def produce(self, topic: str, records: Sequence[Sequence[Any]], **more: Any) -> None:
        """Produces pairs of a key and a value, and waits until they are stored."""
        failures: list[Any] = []
        for key, value in records:
            self._producer.produce(
                topic, value, key, on_delivery=lambda error, _: failures.append(error) if error else None, **more
            )
        assert self._producer.flush(START_S) == 0 and not failures, failures


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server without TLS and logins."""
    data = tmp_path_factory.mktemp("real") / "data"
    server = RealServer(data, "group.initial.rebalance.delay.ms=0").start()
    yield server
    server.stop()


@pytest.fixture
def server(real: RealServer) -> Iterator[ff.Server]:
    with ff.connect(real.url) as server:
        yield server


@pytest.fixture(scope="session")
def topics(real: RealServer) -> Topics:
    return Topics(real.kafka)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:80]


class SecureServer:
    """A server with TLS, users, rules and tokens."""

    def __init__(self, directory: Path) -> None:
        self.certificates = directory / "certificates"
        make = REPOSITORY / "tests/zookeeper-clients/make-certificates.sh"
        subprocess.run([str(make), str(self.certificates)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._key = directory / "issuer.key"
        (directory / "keys.json").write_text(json.dumps(self._key_set()))
        data = directory / "data"
        self.real = RealServer(
            data,
            "server.http-tls=127.0.0.1:0",
            f"ssl.keystore.location={self.certificates / 'server.pem'}",
            f"listener.name.http.ssl.truststore.location={self.certificates / 'trust.pem'}",
            "listener.name.http.ssl.client.auth=requested",
            f"sasl.oauthbearer.jwks.endpoint.url=file://{directory / 'keys.json'}",
            "sasl.oauthbearer.expected.audience=freezeframe",
            AUTHORIZER,
            "super.users=User:admin;User:O=Frames,CN=other",
        )
        for user, password in (("admin", "a:secret"), ("alice", "pässword")):
            self.real.run("users", "add", user, "--data-dir", str(data), text=f"{password}\n")
        self.real.start()

    def _key_set(self) -> dict[str, Any]:
        generate = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(self._key)]
        subprocess.run(generate, check=True, stderr=subprocess.DEVNULL)
        show = ["openssl", "rsa", "-in", str(self._key), "-noout", "-modulus"]
        shown = subprocess.run(show, check=True, capture_output=True, text=True).stdout
        modulus = bytes.fromhex(shown.strip().split("=")[1])
        return {"keys": [{"kty": "RSA", "kid": "one", "use": "sig", "alg": "RS256", "n": _base64url(modulus), "e": "AQAB"}]}

    def token(self, user: str, seconds: int = 600) -> str:
        claims = {"sub": user, "aud": "freezeframe", "exp": int(time.time()) + seconds}
        parts = [{"alg": "RS256", "typ": "JWT", "kid": "one"}, claims]
        signed = ".".join(_base64url(json.dumps(part).encode()) for part in parts)
        sign = ["openssl", "dgst", "-sha256", "-sign", str(self._key)]
        signature = subprocess.run(sign, input=signed.encode(), check=True, capture_output=True).stdout
        return f"{signed}.{_base64url(signature)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    server = SecureServer(tmp_path_factory.mktemp("secure"))
    yield server
    server.real.stop()


class FakeServer:
    """Answers each request with the bytes that `respond` makes of it, and closes the connection where it returns None."""

    def __init__(self) -> None:
        self.respond: Callable[[bytes], Optional[bytes]] = lambda request: None
        self.requests: list[bytes] = []
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:{}".format(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while request := _read_request(stream):
                    self.requests.append(request)
                    answer = self.respond(request)
                    if answer is None:
                        return
                    connection.sendall(answer)
                    if b"Connection: close" in answer:
                        return
            except OSError:
                return


def _read_request(stream: Any) -> bytes:
    request, length = bytearray(), 0
    while line := stream.readline():
        request += line
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
        if line == b"\r\n":
            request += stream.read(length)
            return bytes(request)
    return b""


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


def http_answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """The bytes of an answer."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body

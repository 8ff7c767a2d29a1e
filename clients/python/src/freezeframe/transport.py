"""HTTP to one server: connections, logins and failures. It knows no document.

Connections are kept and reused, one a request at a time, so threads may share a transport. Proxies from the environment are
not used, and redirects are not followed.
"""

from __future__ import annotations

import base64
import http.client
import json
import select
import socket
import ssl
import threading
from dataclasses import dataclass
from email.message import Message
from typing import Any, Optional, Union
from urllib.parse import urlsplit

from .errors import Error, RequestError, TlsError, UnavailableError, error_of

# More than a page of records and the largest record together.
ANSWER_BYTES_MAX = 1 << 30
_CHUNK_BYTES = 1 << 20
_IDLE_MAX = 4

Connection = Union[http.client.HTTPConnection, http.client.HTTPSConnection]


@dataclass(frozen=True)
class Login:
    """The user of the client, and the authority that it trusts. At most one of the password and the token is set."""

    user: Optional[str] = None
    password: Optional[str] = None
    token: Optional[str] = None
    ca: Optional[str] = None
    cert: Optional[str] = None
    key: Optional[str] = None

    def authorization(self) -> Optional[str]:
        """The value of the header `Authorization`."""
        if self.token is not None:
            if self.user is not None or self.password is not None:
                raise RequestError("bad_request", "log in by a user and password, or by a token, not both")
            if not self.token.isascii() or not self.token.isprintable() or " " in self.token or not self.token:
                raise RequestError("bad_request", "the token has characters that no token has: is there a newline at its end?")
            return f"Bearer {self.token}"
        if self.user is None and self.password is None:
            return None
        if not self.user or not self.password:
            raise RequestError("bad_request", "a login has both a user and a password")
        if ":" in self.user:
            raise RequestError("bad_request", f"the user {self.user!r} has a colon, which HTTP does not allow")
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class Answer:
    """The status and the headers of an answer, while its body is still to be read. Read it, or close it."""

    def __init__(self, transport: Transport, connection: Connection, response: http.client.HTTPResponse) -> None:
        self._transport = transport
        self._connection = connection
        self._response = response
        self.headers: Message = response.headers

    def read(self) -> bytes:
        """The whole body; an error if the connection ends before it does."""
        try:
            body = self._read()
        except Exception as problem:
            self.close()
            raise self._transport.failure(problem, "while it answered") from problem
        if self._response.will_close:
            self.close()
        else:
            self._transport.give_back(self._connection)
        return body

    def close(self) -> None:
        """Gives up the rest of the body, and its connection."""
        self._response.close()
        self._connection.close()

    def _read(self) -> bytes:
        length = self._response.length
        if length is not None:
            if length > ANSWER_BYTES_MAX:
                raise Error("bad_answer", f"the answer has {length} bytes, and this client takes {ANSWER_BYTES_MAX} at most")
            return self._response.read()
        if not self._response.chunked:
            # Its end could not be told from that of the connection.
            raise Error("bad_answer", "the answer does not say how long it is")
        body = bytearray()
        while chunk := self._response.read(_CHUNK_BYTES):
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise Error("bad_answer", f"the answer is longer than the {ANSWER_BYTES_MAX} bytes that this client takes")
        return bytes(body)


class Transport:
    """Connections to one server."""

    def __init__(self, url: str, login: Login, timeout: float, agent: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            raise RequestError("bad_request", f"the port in {url!r} is not a number below 65536") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError("bad_request", f"{url!r} is not the address of a server, as http://127.0.0.1:8080 is")
        if parts.username is not None or parts.password is not None:
            raise RequestError("bad_request", "give user= and password= beside the address, not in it")
        if parts.query or parts.fragment:
            raise RequestError("bad_request", f"the address {url!r} has more than a host, a port and a path")
        if timeout <= 0:
            raise RequestError("bad_request", f"the timeout is {timeout} s, and must be above 0")
        self.address = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.hostname
        self._port = port
        self._prefix = parts.path.rstrip("/")
        self._timeout = timeout
        self._tls = _tls_context(login) if parts.scheme == "https" else None
        if self._tls is None and (login.ca or login.cert or login.key):
            raise RequestError("bad_request", f"ca, cert and key are for TLS, and {url!r} does not begin with https")
        self._headers = {"User-Agent": agent, "Accept": "*/*"}
        authorization = login.authorization()
        if authorization is not None:
            self._headers["Authorization"] = authorization
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_closed = False

    def connect(self) -> None:
        """Connects, so that a server that is away is found now."""
        self.give_back(self._connect(self._timeout))

    def close(self) -> None:
        """Closes what is idle. Later requests fail."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def send(
        self,
        method: str,
        path: str,
        document: Optional[dict[str, Any]] = None,
        *,
        is_safe: bool = True,
        wait: float = 0.0,
    ) -> Answer:
        """Sends a request, and reads the head of its answer.

        The server may have closed a kept connection meanwhile: a request that changes nothing is then sent once more, on a new
        one. `wait` is the time that the server may take on purpose.
        """
        body = None
        headers = dict(self._headers)
        if document is not None:
            body = json.dumps(document, separators=(",", ":")).encode()
            headers["Content-Type"] = "application/json"
        timeout = self._timeout + wait
        connection = self._take_idle(timeout)
        if connection is not None:
            try:
                return self._exchange(connection, method, path, body, headers)
            except (http.client.RemoteDisconnected, ConnectionError) as problem:
                connection.close()
                if not is_safe:
                    raise self.failure(problem, "before it answered") from problem
            except Exception as problem:
                connection.close()
                raise self.failure(problem, "before it answered") from problem
        connection = self._connect(timeout)
        try:
            return self._exchange(connection, method, path, body, headers)
        except Exception as problem:
            connection.close()
            raise self.failure(problem, "before it answered") from problem

    def _exchange(
        self, connection: Connection, method: str, path: str, body: Optional[bytes], headers: dict[str, str]
    ) -> Answer:
        connection.request(method, self._prefix + path, body=body, headers=headers)
        response = connection.getresponse()
        answer = Answer(self, connection, response)
        if response.status != 200:
            raise _refusal(self.address, response.status, answer.read())
        return answer

    def give_back(self, connection: Connection) -> None:
        """Keeps a connection for the next request."""
        with self._lock:
            if not self._is_closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def failure(self, problem: Exception, when: str) -> Error:
        """An exception of the wire as an error of ours."""
        if isinstance(problem, Error):
            return problem
        if isinstance(problem, ssl.SSLCertVerificationError):
            return TlsError(
                "tls", f"the certificate of {self.address} is not trusted: {problem.verify_message}. Name its authority with ca="
            )
        # A connection that ends without a goodbye is a lost one.
        if isinstance(problem, ssl.SSLError) and not isinstance(problem, ssl.SSLEOFError):
            hint = ": does it want cert=, or speak no TLS?"
            return TlsError("tls", f"TLS to {self.address} failed: {problem.reason or problem}{hint}")
        if isinstance(problem, (socket.timeout, TimeoutError)):
            return UnavailableError("timeout", f"{self.address} said nothing for too long {when}")
        if isinstance(problem, (http.client.IncompleteRead, http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError)):
            return UnavailableError("connection_lost", f"the connection to {self.address} ended {when}")
        if isinstance(problem, http.client.HTTPException):
            return Error("bad_answer", f"{self.address} does not speak HTTP as Freezeframe does: {problem!r}")
        return UnavailableError("connection_lost", f"the connection to {self.address} failed {when}: {problem}")

    def _take_idle(self, timeout: float) -> Optional[Connection]:
        while True:
            with self._lock:
                if self._is_closed:
                    raise RequestError("bad_request", f"the connection to {self.address} was closed by close()")
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.sock is not None and not _is_readable(connection.sock):
                connection.sock.settimeout(timeout)
                return connection
            # It was closed by the server, or has something to say that nobody asked for.
            connection.close()

    def _connect(self, timeout: float) -> Connection:
        connection: Connection
        if self._tls is not None:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.connect()
        except ssl.SSLError as problem:
            connection.close()
            raise self.failure(problem, "as it began") from problem
        except (OSError, UnicodeError) as problem:
            connection.close()
            reason = getattr(problem, "strerror", None) or str(problem)
            raise UnavailableError("unreachable", f"there is no server at {self.address}: {reason}") from problem
        return connection


def _tls_context(login: Login) -> ssl.SSLContext:
    if login.key is not None and login.cert is None:
        raise RequestError("bad_request", "key= is of a certificate: give cert= too")
    try:
        context = ssl.create_default_context(cafile=login.ca)
    except OSError as problem:
        raise RequestError("bad_request", f"{login.ca} has no certificates in PEM: {problem}") from problem
    if login.cert is not None:
        try:
            context.load_cert_chain(login.cert, login.key)
        except OSError as problem:
            raise RequestError("bad_request", f"{login.cert} has no certificate with its key in PEM: {problem}") from problem
    return context


def _is_readable(sock: socket.socket) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


def _refusal(address: str, status: int, body: bytes) -> Error:
    """The error in an answer that is not 200."""
    try:
        error = json.loads(body)["error"]
        code, message = error["code"], error["message"]
        retry_ms, frontier = error.get("retry_ms"), error.get("frontier")
    except (AttributeError, KeyError, TypeError, ValueError):
        start = body[:200].decode("utf-8", "replace").strip()
        return Error("bad_answer", f"{address} answered {status}, and not as Freezeframe does: {start!r}")
    retry_after = float(retry_ms) / 1000 if isinstance(retry_ms, (int, float)) else None
    return error_of(str(code), str(message), retry_after=retry_after, frontier=frontier)

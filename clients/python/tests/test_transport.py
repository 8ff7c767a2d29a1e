"""What a server, or something that is none, can do to a client."""

from __future__ import annotations

import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

import pyarrow as pa
import pytest
from conftest import FakeServer, http_answer

import freezeframe as ff

MOMENT = json.dumps({"at": "s5", "frontier": "s5", "frontier_ms": 5}).encode()
PINS = b'{"pins":[]}'


def refusal(status: str, **error: Any) -> bytes:
    return http_answer(json.dumps({"error": error}).encode(), status)


def line(offset: int, **changes: Any) -> bytes:
    record: dict[str, Any] = {"partition": 0, "offset": offset, "timestamp": 7, "key": None, "value": "v", "headers": []}
    return json.dumps({**record, **changes}).encode() + b"\n"


def test_a_server_that_is_away_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ff.UnavailableError, match=f"there is no server at http://127.0.0.1:{port}") as refused:
        ff.connect(f"http://127.0.0.1:{port}")
    assert refused.value.code == "unreachable"


def test_a_host_without_an_address_is_unreachable() -> None:
    with pytest.raises(ff.UnavailableError) as refused:
        ff.connect("http://" + "a" * 64 + ".invalid")
    assert refused.value.code == "unreachable"


def test_a_server_that_starts_says_when_to_ask_again(fake: FakeServer) -> None:
    fake.respond = lambda request: refusal(
        "503 Service Unavailable", code="starting", message="the data directory is being opened", retry_ms=2000
    )
    with ff.connect(fake.url) as server, pytest.raises(ff.UnavailableError, match="is being opened") as refused:
        server.pins()
    assert (refused.value.code, refused.value.retry_after) == ("starting", 2.0)


def test_a_moment_that_is_not_past_says_when_to_ask_again(fake: FakeServer) -> None:
    fake.respond = lambda request: refusal("425 Too Early", code="not_yet", message="soon", retry_ms=1500, frontier="s5")
    with ff.connect(fake.url) as server, pytest.raises(ff.NotYetError) as refused:
        server.cut("s9")
    assert (refused.value.retry_after, refused.value.frontier) == (1.5, "s5")
    assert str(refused.value) == "soon (not_yet)"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + MOMENT,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n" + MOMENT,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + f"{len(MOMENT):x}\r\n".encode() + MOMENT + b"\r\n",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["length", "chunk", "last-chunk", "refusal"],
)
def test_half_an_answer_is_no_answer(fake: FakeServer, answer: bytes) -> None:
    fake.respond = lambda request: _with_close(answer)
    with ff.connect(fake.url, timeout=5) as server, pytest.raises(ff.UnavailableError) as refused:
        server.moment()
    assert refused.value.code == "connection_lost"


def _with_close(answer: bytes) -> bytes:
    """Makes the server close the connection behind the answer."""
    return answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


def test_half_a_page_of_records_is_an_error_and_not_fewer_records(fake: FakeServer) -> None:
    def respond(request: bytes) -> Optional[bytes]:
        if request.startswith(b"POST"):
            return http_answer(MOMENT)
        if b"after=" not in request:
            return http_answer(line(0), headers="Freezeframe-Next: c\r\nFreezeframe-At: s5\r\n")
        return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n" + line(1)

    fake.respond = respond
    with ff.connect(fake.url) as server:
        records = server.topic("a").records()
        assert next(records).offset == 0
        with pytest.raises(ff.UnavailableError) as refused:
            next(records)
        assert refused.value.code == "connection_lost"


def test_half_a_stream_of_arrow_is_an_error(fake: FakeServer) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("offset", pa.int64())])) as stream:
        stream.write_batch(pa.record_batch([list(range(1000))], ["offset"]))
    whole = sink.getvalue().to_pybytes()
    fake.respond = lambda request: http_answer(MOMENT if request.startswith(b"POST") else whole[: len(whole) // 2])
    with ff.connect(fake.url) as server, pytest.raises(ff.Error, match="not in Arrow's format") as refused:
        server.topic("a").to_arrow()
    assert refused.value.code == "bad_answer"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (http_answer(b"<html>"), "not JSON"),
        (http_answer(b"[]"), "is not one"),
        (http_answer(b'{"pins":[{"name":"a"}]}'), "is not one"),
        (http_answer(b'{"pins":7}'), "is not one"),
        (http_answer(b"<h1>no</h1>", "404 Not Found"), "answered 404, and not as Freezeframe does: '<h1>no</h1>'"),
        (http_answer(b"", "302 Found", "Location: http://elsewhere.example/\r\n"), "answered 302"),
        (http_answer(b'{"error":"no"}', "400 Bad Request"), "answered 400"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + PINS, "does not say how long it is"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n" + PINS, "takes 1073741824 at most"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_what_is_no_answer_of_freezeframe_is_said_so(fake: FakeServer, answer: bytes, says: str) -> None:
    fake.respond = lambda request: answer
    with ff.connect(fake.url) as server, pytest.raises(ff.Error, match=says) as refused:
        server.pins()
    assert refused.value.code == "bad_answer"


@pytest.mark.parametrize("text", [b"{}", b"[1]", b"7", b"nonsense", line(0, timestamp="x"), line(0, key={"base64": "?"})])
def test_a_line_that_is_no_record_is_an_error(fake: FakeServer, text: bytes) -> None:
    fake.respond = lambda request: http_answer(MOMENT if request.startswith(b"POST") else line(0) + text)
    with ff.connect(fake.url) as server:
        records = server.topic("a").records()
        next(records)
        with pytest.raises(ff.Error, match="not a record"):
            next(records)


def test_a_silent_server_is_given_up(fake: FakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with ff.connect(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2) as server:
            with pytest.raises(ff.UnavailableError) as refused:
                server.pins()
    assert refused.value.code == "timeout"


def test_connections_are_kept_and_a_closed_one_is_replaced(fake: FakeServer) -> None:
    fake.respond = lambda request: http_answer(PINS)
    with ff.connect(fake.url) as server:
        for _ in range(3):
            server.pins()
        assert fake.connections == 1
        fake.respond = lambda request: http_answer(PINS, headers="Connection: close\r\n")
        server.pins()
        server.pins()
    assert fake.connections == 2


def test_a_read_is_sent_again_when_its_kept_connection_turns_out_closed(fake: FakeServer) -> None:
    answers = [http_answer(PINS), None, http_answer(PINS)]
    fake.respond = lambda request: answers.pop(0)
    with ff.connect(fake.url) as server:
        assert server.pins() == server.pins() == []
    assert len(fake.requests) == 3


def test_a_change_is_not_sent_twice(fake: FakeServer) -> None:
    answers = [http_answer(PINS), None, http_answer(b'{"removed":"a"}')]
    fake.respond = lambda request: answers.pop(0)
    with ff.connect(fake.url) as server:
        server.pins()
        with pytest.raises(ff.UnavailableError) as refused:
            server.unpin("a")
    assert refused.value.code == "connection_lost"
    assert len(fake.requests) == 2


def test_a_reset_connection_is_lost(fake: FakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with ff.connect(url) as server, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.unpin, "a")
            connection, _ = listener.accept()
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            with pytest.raises(ff.UnavailableError) as refused:
                asked.result()
    assert refused.value.code == "connection_lost"


def test_a_closed_client_says_so(fake: FakeServer) -> None:
    server = ff.connect(fake.url)
    server.close()
    with pytest.raises(ff.RequestError, match="was closed"):
        server.pins()


def test_a_server_behind_a_prefix_is_asked_below_it(fake: FakeServer) -> None:
    fake.respond = lambda request: http_answer(PINS)
    with ff.connect(f"{fake.url}/freezeframe/") as server:
        server.pins()
    assert fake.requests[0].startswith(b"POST /freezeframe/v1 HTTP/1.1\r\n")
    assert b"User-Agent: freezeframe-python/" in fake.requests[0]


def test_an_abandoned_iterator_leaves_the_client_usable(fake: FakeServer) -> None:
    def respond(request: bytes) -> bytes:
        if request.startswith(b"POST"):
            return http_answer(MOMENT)
        return http_answer(line(0), headers="Freezeframe-Next: c\r\nFreezeframe-At: s5\r\n")

    fake.respond = respond
    with ff.connect(fake.url) as server:
        for _ in range(20):
            records = server.topic("a").records()
            next(records)
            records.close()  # type: ignore[attr-defined]
        assert server.moment() == "s5"


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("127.0.0.1:8080", {}, "is not the address of a server"),
        ("ftp://127.0.0.1", {}, "is not the address of a server"),
        ("http://", {}, "is not the address of a server"),
        ("http://127.0.0.1:99999", {}, "not a number below 65536"),
        ("http://alice:secret@127.0.0.1", {}, "beside the address"),
        ("http://127.0.0.1/?a=b", {}, "more than a host"),
        ("http://127.0.0.1", {"user": "alice"}, "both a user and a password"),
        ("http://127.0.0.1", {"user": "a:b", "password": "c"}, "has a colon"),
        ("http://127.0.0.1", {"user": "a", "password": "b", "token": "c"}, "not both"),
        ("http://127.0.0.1", {"token": "abc\n"}, "newline at its end"),
        ("http://127.0.0.1", {"token": ""}, "no token has"),
        ("http://127.0.0.1", {"ca": "ca.pem"}, "does not begin with https"),
        ("https://127.0.0.1", {"ca": "/nowhere/ca.pem"}, "/nowhere/ca.pem has no certificates"),
        ("https://127.0.0.1", {"ca": __file__}, "has no certificates in PEM"),
        ("https://127.0.0.1", {"cert": Path(__file__)}, "has no certificate with its key"),
        ("https://127.0.0.1", {"key": "key.pem"}, "give cert= too"),
        ("http://127.0.0.1", {"timeout": 0}, "must be above 0"),
    ],
)
def test_a_wrong_argument_of_connect_is_named(url: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ff.RequestError, match=says):
        ff.connect(url, **options)


def test_a_wrong_argument_of_a_method_is_named_before_anything_is_sent(fake: FakeServer) -> None:
    with ff.connect(fake.url) as server:
        topic = server.topic("orders")
        for wrong in (
            lambda: server.topic(""),
            lambda: topic.partition(-1),
            lambda: topic.partition(True),
            lambda: topic.at(5),  # type: ignore[arg-type]
            lambda: topic.records(limit=0),
            lambda: topic.partition(0).keys(),
            lambda: server.cut(topics="orders"),
            lambda: server.cut(patience=61),
            lambda: server.group(None),  # type: ignore[arg-type]
        ):
            with pytest.raises(ff.RequestError):
                wrong()
    assert fake.requests == []

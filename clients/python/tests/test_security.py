"""TLS and logins."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import SecureServer

import freezeframe as ff


def connect(secure: SecureServer, **login: Any) -> ff.Server:
    return ff.connect(secure.real.tls_url, ca=secure.certificates / "trust.pem", **login)


def test_each_login_is_known(secure: SecureServer) -> None:
    certificate = {"cert": secure.certificates / "other.crt", "key": secure.certificates / "other.key"}
    for login in (
        {"user": "admin", "password": "a:secret"},
        {"token": secure.token("admin")},
        certificate,
        {"cert": secure.certificates / "other.pem"},
    ):
        with connect(secure, **login) as server:
            assert server.cut().is_complete


def test_plain_http_takes_logins_too(secure: SecureServer) -> None:
    with ff.connect(secure.real.url, user="admin", password="a:secret") as server:
        assert server.pins() == []


@pytest.mark.parametrize(
    "login", [{}, {"user": "admin", "password": "wrong"}, {"user": "nobody", "password": "x"}, {"token": "abc"}]
)
def test_a_missing_or_wrong_login_is_unauthorized(secure: SecureServer, login: dict[str, str]) -> None:
    with connect(secure, **login) as server, pytest.raises(ff.UnauthorizedError) as refused:
        server.moment()
    assert refused.value.code == "unauthorized"


def test_an_expired_token_is_unauthorized(secure: SecureServer) -> None:
    with connect(secure, token=secure.token("admin", seconds=-600)) as server, pytest.raises(ff.UnauthorizedError):
        server.moment()


def test_a_user_without_rules_sees_nothing(secure: SecureServer) -> None:
    with connect(secure, user="alice", password="pässword") as server:
        with pytest.raises(ff.UnauthorizedError):
            server.cut(topics=["orders"])
        with pytest.raises(ff.UnauthorizedError):
            server.pin("audit")


def test_a_server_of_an_unknown_authority_is_not_trusted(secure: SecureServer) -> None:
    with pytest.raises(ff.TlsError, match="Name its authority with ca=") as refused:
        ff.connect(secure.real.tls_url)
    assert refused.value.code == "tls"
    with pytest.raises(ff.TlsError):
        ff.connect(secure.real.tls_url, ca=secure.certificates / "elsewhere.crt")


def test_a_certificate_of_another_authority_is_not_taken(secure: SecureServer) -> None:
    # By TLS 1.3 the server refuses after the client has connected.
    with pytest.raises(ff.Error) as refused:
        with connect(secure, cert=secure.certificates / "stranger.pem") as server:
            server.moment()
    assert isinstance(refused.value, (ff.TlsError, ff.UnavailableError, ff.UnauthorizedError))


def test_tls_to_a_port_that_speaks_none_says_so(secure: SecureServer) -> None:
    with pytest.raises(ff.TlsError, match="speak no TLS"):
        ff.connect(secure.real.url.replace("http:", "https:"))


def test_plain_http_to_a_port_that_speaks_tls_is_an_error(secure: SecureServer) -> None:
    with pytest.raises(ff.Error) as refused:
        with ff.connect(secure.real.tls_url.replace("https:", "http:")) as server:
            server.moment()
    assert refused.value.code in ("bad_answer", "connection_lost")

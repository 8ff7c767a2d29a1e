"""The errors of a server and of the way to it.

There is a subclass wherever a caller acts differently: fix the request, choose another moment, log in, wait and ask again.
`code` says more: it is the server's, as in docs/HISTORY-API.md, or one of `unreachable`, `connection_lost`, `timeout`, `tls` and
`bad_answer`, which arise here.
"""

from __future__ import annotations

from typing import Optional

__all__ = [
    "BeforeHistoryError",
    "ConflictError",
    "Error",
    "NotFoundError",
    "NotYetError",
    "RequestError",
    "TlsError",
    "UnauthorizedError",
    "UnavailableError",
]


class Error(Exception):
    """A request that failed.

    `code` is for programs, `message` is a sentence for people, and `retry_after` is the time to wait before the same request
    may succeed, in seconds; None if the server does not say. `frontier` is the stamp up to which the server can answer, where
    that matters.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry_after: Optional[float] = None,
        frontier: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.frontier = frontier

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {self.message!r}, retry_after={self.retry_after!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # Processes of a pool send exceptions to one another.
        return _rebuild, (type(self), self.code, self.message, self.retry_after, self.frontier)


class RequestError(Error, ValueError):
    """The request is wrong, as with a malformed moment: the same request fails again."""


class NotFoundError(Error, LookupError):
    """The topic, group, pin or path did not exist at the moment."""


class BeforeHistoryError(Error):
    """Records of the moment were removed. The message has each partition with its earliest moment."""


class NotYetError(Error):
    """The moment is not past yet. `retry_after` says when it will be, unless it lies in the far future."""


class ConflictError(Error):
    """Something is in the way, as a group that has members or a pin of that name."""


class UnauthorizedError(Error):
    """The login is missing or wrong, or no rule allows the request."""


class UnavailableError(Error):
    """The server is away, starts, stops, or is busy: the same request may succeed later."""


class TlsError(Error):
    """The server's certificate is not trusted, or the server does not accept this client's."""


_CLASSES: dict[str, type[Error]] = {
    **dict.fromkeys(
        (
            "bad_moment",
            "bad_path",
            "bad_pin",
            "bad_plugin",
            "bad_request",
            "bad_spec",
            "is_directory",
            "not_directory",
            "out_of_range",
            "too_large",
        ),
        RequestError,
    ),
    **dict.fromkeys(
        ("not_found", "unknown_group", "unknown_pin", "unknown_plugin", "unknown_topic"),
        NotFoundError,
    ),
    **dict.fromkeys(("before_history", "gone"), BeforeHistoryError),
    **dict.fromkeys(("far_future", "not_yet"), NotYetError),
    **dict.fromkeys(
        (
            "conflict",
            "group_active",
            "group_busy",
            "pin_taken",
            "too_many_groups",
            "too_many_pins",
        ),
        ConflictError,
    ),
    **dict.fromkeys(("forbidden", "foreign_host", "unauthorized"), UnauthorizedError),
    **dict.fromkeys(
        (
            "connection_lost",
            "fenced",
            "loading",
            "starting",
            "stopping",
            "timeout",
            "too_many_requests",
            "unfinished",
            "unreachable",
        ),
        UnavailableError,
    ),
    "tls": TlsError,
}


def error_of(
    code: str,
    message: str,
    *,
    retry_after: Optional[float] = None,
    frontier: Optional[str] = None,
) -> Error:
    """The error of a code. A code that a newer server has is an `Error`."""
    return _CLASSES.get(code, Error)(code, message, retry_after=retry_after, frontier=frontier)


def _rebuild(
    kind: type[Error], code: str, message: str, retry_after: Optional[float], frontier: Optional[str]
) -> Error:
    return kind(code, message, retry_after=retry_after, frontier=frontier)

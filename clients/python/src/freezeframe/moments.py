"""Moments: their spelling, and the topic names by which stock Kafka clients read them.

A moment is text as in docs/TIME.md (`s1795252948259`, `yesterday 14:00`, `-10m`, `pin:audit`), or a `datetime` with a zone.
The server resolves words; it reads dates without a zone as UTC.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Optional, Union

from .errors import RequestError

__all__ = ["Moment", "MomentLike", "moment_topic"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS_MAX = (1 << 48) - 1

# A number in this range would be read as a time in seconds, and is written as a date.
_LIKE_SECONDS = range(1_000_000_000, 100_000_000_000)

_DATE = r"\d{8}T\d{6}(?:\.\d{1,9})?Z"
_SYSTEM = rf"s(?:\d{{1,15}}|h[0-9a-f]{{16}}|{_DATE})"
_USER = rf"u(?:\d{{1,15}}|{_DATE})(?:@{_SYSTEM})?"
_SPELLED = re.compile(rf"(?:{_SYSTEM}|{_USER})(?:\.\.(?:{_SYSTEM}|{_USER}))?")
_PIN = re.compile(r"pin:[A-Za-z0-9._-]+")


class Moment(str):
    """A moment or a window in full, as the server spells it. It means the same whenever it is used."""

    __slots__ = ()

    @property
    def is_window(self) -> bool:
        """True for two moments with `..` between them."""
        return ".." in self

    @property
    def is_user_time(self) -> bool:
        """True if the moment goes by the times in the records."""
        return self.startswith("u")

    @property
    def time(self) -> datetime:
        """The time of the moment in UTC, down to the millisecond; of a window, that of its end.

        A stamp has more than milliseconds: do not make a moment of this time where exactness matters.
        """
        last = self.split("..")[-1].split("@")[0]
        try:
            return _time_of(last[1:])
        except (OverflowError, ValueError):
            raise RequestError("bad_moment", f"{str(self)!r} has no time that Python can hold") from None


MomentLike = Union[str, datetime]
"""A moment as callers give it: text, or a `datetime` with a zone."""


def spell(moment: MomentLike) -> str:
    """The text of a moment. Words stay as they are: the server knows what they mean.

    Between two milliseconds the bound rounds up, so that a moment includes the whole of the first one.
    """
    if isinstance(moment, str):
        text = moment.strip()
        if not text:
            raise RequestError("bad_moment", "a moment is empty: say it as in 'yesterday 14:00', or 'now'")
        return str(text)
    if isinstance(moment, datetime):
        return "s" + _write_ms(_milliseconds(moment))
    raise RequestError(
        "bad_moment",
        f"a moment is text or a datetime with a zone, and {moment!r} is of type {type(moment).__name__}",
    )


def moment_topic(topic: str, at: MomentLike, until: Optional[MomentLike] = None) -> str:
    """The name under which any Kafka client reads a topic as of a moment, or what came between two.

    The moment is a `datetime` with a zone, a `Moment`, or text in full. For words and other names, ask the server:
    `server.moment_topic("orders", "yesterday 14:00")`.

    >>> moment_topic("orders", "s1795252948259")
    'orders.__at.s1795252948259'
    """
    if not isinstance(topic, str) or not topic:
        raise RequestError("bad_request", f"a topic has a name, and {topic!r} is none")
    spelled = spell(at) if until is None else f"{spell(at)}..{spell(until)}"
    if _PIN.fullmatch(spelled):
        return f"{topic}.__at.{spelled.replace(':', '.', 1)}"
    if not _SPELLED.fullmatch(spelled):
        raise RequestError(
            "bad_moment",
            f"{spelled!r} is not a moment in full, as in s1795252948259: "
            f"let the server say what it means, with server.moment_topic({topic!r}, …)",
        )
    return f"{topic}.__at.{spelled.replace('@', '.as.')}"


def _milliseconds(moment: datetime) -> int:
    if moment.utcoffset() is None:
        raise RequestError(
            "bad_moment",
            f"the datetime {moment} has no zone: add one, as in datetime(2026, 11, 28, 14, tzinfo=timezone.utc), "
            "or take local time with .astimezone()",
        )
    microseconds = (moment - _EPOCH) // timedelta(microseconds=1)
    # A pandas.Timestamp has nanoseconds below its microseconds.
    if getattr(moment, "nanosecond", 0):
        microseconds += 1
    milliseconds = -(-microseconds // 1000)
    if not 0 <= milliseconds <= _MS_MAX:
        raise RequestError("bad_moment", f"the datetime {moment} is before 1970, where no moment can be")
    return milliseconds


def _write_ms(milliseconds: int) -> str:
    if milliseconds in _LIKE_SECONDS:
        time = _EPOCH + timedelta(milliseconds=milliseconds)
        return f"{time:%Y%m%dT%H%M%S}.{milliseconds % 1000:03}Z"
    return str(milliseconds)


def _time_of(time: str) -> datetime:
    if time.startswith("h"):
        return _EPOCH + timedelta(milliseconds=int(time[1:], 16) >> 16)
    if "T" in time:
        return datetime.strptime(time[:15], "%Y%m%dT%H%M%S").replace(
            tzinfo=timezone.utc, microsecond=int(time[15:].strip(".Z").ljust(6, "0")[:6])
        )
    return _EPOCH + timedelta(milliseconds=int(time))

"""Moments without a server: how they are spelled, and the names of topics."""

from __future__ import annotations

import pickle
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pandas as pd
import pytest

import freezeframe as ff
from freezeframe.errors import error_of
from freezeframe.moments import spell

NINE = datetime(2026, 11, 21, 9, 0, 0, 123_000, tzinfo=timezone.utc)
NINE_MS = 1_795_251_600_123


def test_an_aware_datetime_is_spelled_in_milliseconds_of_system_time() -> None:
    assert spell(NINE) == f"s{NINE_MS}"
    assert spell(NINE.astimezone(timezone(timedelta(hours=-5)))) == f"s{NINE_MS}"
    assert spell(pd.Timestamp(NINE)) == f"s{NINE_MS}"


def test_a_bound_between_two_milliseconds_rounds_up() -> None:
    assert spell(NINE + timedelta(microseconds=1)) == f"s{NINE_MS + 1}"
    assert spell(pd.Timestamp(NINE.replace(microsecond=123_999)) + pd.Timedelta(nanoseconds=1)) == f"s{NINE_MS + 1}"
    assert spell(pd.Timestamp(NINE) + pd.Timedelta(nanoseconds=1)) == f"s{NINE_MS + 1}"


def test_a_time_that_would_be_read_as_seconds_is_spelled_as_a_date() -> None:
    assert spell(datetime(1971, 1, 2, 3, 4, 5, 6_000, tzinfo=timezone.utc)) == "s19710102T030405.006Z"


def test_a_datetime_without_a_zone_is_refused() -> None:
    with pytest.raises(ff.RequestError, match="has no zone: add one") as refused:
        spell(datetime(2026, 11, 21))
    assert refused.value.code == "bad_moment"
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("moment", [1795251600, 1795251600123.0, None, date(2026, 11, 21), b"now", "", "  "])
def test_what_is_no_moment_is_refused(moment: Any) -> None:
    with pytest.raises(ff.RequestError) as refused:
        spell(moment)
    assert refused.value.code == "bad_moment"


def test_a_datetime_before_1970_is_refused() -> None:
    with pytest.raises(ff.RequestError, match="before 1970"):
        spell(datetime(1969, 12, 31, tzinfo=timezone.utc))


@pytest.mark.parametrize(
    ("at", "until", "expected"),
    [
        (NINE, None, f"orders.__at.s{NINE_MS}"),
        ("s5", None, "orders.__at.s5"),
        (ff.Moment("sh01a1fe6d31e10000"), None, "orders.__at.sh01a1fe6d31e10000"),
        ("u5@s7", None, "orders.__at.u5.as.s7"),
        ("s5..s7", None, "orders.__at.s5..s7"),
        ("s5", NINE, f"orders.__at.s5..s{NINE_MS}"),
        ("s20261121T090000.123Z", None, "orders.__at.s20261121T090000.123Z"),
        ("pin:audit", None, "orders.__at.pin.audit"),
    ],
)
def test_a_moment_in_full_makes_the_name_of_a_topic(at: ff.MomentLike, until: Any, expected: str) -> None:
    assert ff.moment_topic("orders", at, until) == expected


@pytest.mark.parametrize("at", ["yesterday 14:00", "now", "-10m", "1795252948259", "s5@s7", "s2026-11-21T09:00:00Z", "s5..", "pin:"])
def test_words_make_no_name_of_a_topic_without_the_server(at: str) -> None:
    with pytest.raises(ff.RequestError, match="let the server say what it means"):
        ff.moment_topic("orders", at)


def test_a_topic_has_a_name() -> None:
    with pytest.raises(ff.RequestError, match="has a name"):
        ff.moment_topic("", "s5")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"s{NINE_MS}", NINE),
        (f"sh{NINE_MS << 16 | 7:016x}", NINE),
        (f"u{NINE_MS}@s{NINE_MS + 1000}", NINE),
        (f"s5..s{NINE_MS}", NINE),
        ("s19710102T030405.006Z", datetime(1971, 1, 2, 3, 4, 5, 6_000, tzinfo=timezone.utc)),
    ],
)
def test_a_moment_has_a_time(text: str, expected: datetime) -> None:
    assert ff.Moment(text).time == expected


def test_a_moment_says_what_it_is_of() -> None:
    assert [ff.Moment(text).is_user_time for text in ("s5", "u5", "u5@s7", "u5..u7")] == [False, True, True, True]
    assert [ff.Moment(text).is_window for text in ("s5", "s5..s7")] == [False, True]


def test_a_moment_too_late_for_python_has_no_time() -> None:
    with pytest.raises(ff.RequestError, match="no time that Python can hold"):
        _ = ff.Moment("s281474976710655").time


def test_an_error_survives_the_way_to_another_process() -> None:
    error = error_of("not_yet", "soon", retry_after=1.5, frontier="s5")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is ff.NotYetError
    assert (copy.code, copy.message, copy.retry_after, copy.frontier) == ("not_yet", "soon", 1.5, "s5")


def test_a_code_of_a_newer_server_is_an_error_without_a_class_of_its_own() -> None:
    assert type(error_of("tired", "come back tomorrow")) is ff.Error

"""Dates and times as Slurm and published traces write them, to UTC seconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np

from equipoise.formats.text.columns import Bools, Floats
from equipoise.formats.text.errors import FormatError, shown
from equipoise.formats.text.numbers import decimal

MISSING = frozenset({"", "unknown", "none", "n/a", "null", "(null)", "na", "nan", "0"})
"""Texts (in lower case) that stand for no time: not started, not ended."""

_ISO = re.compile(
    r"([0-9]{4})[-/]([0-9]{1,2})[-/]([0-9]{1,2})"
    r"(?:[T ]([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?)?"
    r" ?(Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_EPOCH = re.compile(r"[0-9]{1,11}(\.[0-9]{1,9})?")
MILLISECONDS_FROM = 1e11
"""Numbers from here on (the year 5138 in seconds) count milliseconds, as Java and JavaScript do."""
_DIGITS = np.array([0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18])
_BLANK = "0" * 19
_QUARTER_S = 900


def zone_of(name: str) -> ZoneInfo | timezone:
    """The time zone of this name. Raises FormatError."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise FormatError(f"unknown time zone {shown(name)}, such as Europe/Berlin is needed") from error


def parse_times(texts: Sequence[str]) -> tuple[Floats, Bools, Bools]:
    """(seconds, without a zone, not a time) of `YYYY-MM-DD[T ]HH:MM:SS`, with or without a zone, or epoch seconds.

    seconds: (rows,), NaN where there is no time; where `without a zone` holds, they are of the local clock.
    """
    seconds, naive = _regular(texts)
    bad = np.zeros(len(texts), dtype=np.bool_)
    known: dict[str, tuple[float, bool, bool]] = {}
    for k in np.flatnonzero(~naive).tolist():
        text = texts[k]
        if text not in known:
            known[text] = _single(text)
        seconds[k], naive[k], bad[k] = known[text]
    return seconds, naive, bad


class TextTimes:
    """A column of times from batches; see `parse_times` for the three parts."""

    def __init__(self) -> None:
        self.seconds: list[Floats] = []
        self.naive: list[Bools] = []
        self.bad: list[Bools] = []

    def add(self, texts: Sequence[str]) -> None:
        """Append rows."""
        seconds, naive, bad = parse_times(texts)
        self.seconds.append(seconds)
        self.naive.append(naive)
        self.bad.append(bad)

    def add_last(self, other: TextTimes) -> None:
        """Append the rows that were last added to another column."""
        self.seconds.append(other.seconds[-1])
        self.naive.append(other.naive[-1])
        self.bad.append(other.bad[-1])


def _regular(texts: Sequence[str]) -> tuple[Floats, Bools]:
    """(seconds, understood) of the rows in the usual form, all at once."""
    joined = "".join([text if len(text) == 19 else _BLANK for text in texts]).encode("latin-1", "replace")
    marks = np.frombuffer(joined, dtype=np.uint8).reshape(len(texts), 19)
    digits = marks - np.uint8(48)
    good = (digits[:, _DIGITS] <= 9).all(axis=1)
    good &= (marks[:, 4] == ord("-")) & (marks[:, 7] == ord("-"))
    good &= (marks[:, 10] == ord("T")) | (marks[:, 10] == ord(" "))
    good &= (marks[:, 13] == ord(":")) & (marks[:, 16] == ord(":"))
    place = np.where(good, digits.T, 1).astype(np.int32)
    month, day, hour, minute, second = (place[k] * 10 + place[k + 1] for k in (5, 8, 11, 14, 17))
    year = (place[0] * 10 + place[1]) * 100 + place[2] * 10 + place[3]
    months = ((year - 1970) * 12 + month - 1).astype("M8[M]")
    days = months.astype("M8[D]") + (day - 1)
    good &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (days.astype("M8[M]") == months)
    good &= (hour <= 23) & (minute <= 59) & (second <= 60)
    seconds = days.astype(np.int64) * 86400.0 + hour * 3600 + minute * 60 + second
    return np.where(good, seconds, np.nan), good


def _single(text: str) -> tuple[float, bool, bool]:
    """(seconds, without a zone, not a time) of one text."""
    if text.lower() in MISSING:
        return np.nan, False, False
    if _EPOCH.fullmatch(text):
        return float(decimal(text) or 0.0), False, False
    match = _ISO.fullmatch(text)
    if match is None:
        return np.nan, False, True
    year, month, day, hour, minute, second = (int(match[k] or 0) for k in range(1, 7))
    try:
        stamp = datetime(year, month, day, hour, minute, tzinfo=UTC)
    except ValueError:
        return np.nan, False, True
    if second > 60:
        return np.nan, False, True
    local_s = (stamp - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() + second
    local_s += float(f"0.{match[7]}") if match[7] else 0.0
    return local_s - _zone_s(match[8] or ""), match[8] is None, False


def _zone_s(zone: str) -> float:
    """Seconds that a zone's clock is ahead of UTC."""
    if zone in ("", "Z", "UTC"):
        return 0.0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    return (60 * int(digits[:2]) + int(digits[2:])) * (-60.0 if zone[0] == "-" else 60.0)


def to_utc(seconds: Floats, naive: Bools, zone: ZoneInfo | timezone) -> tuple[Floats, Bools]:
    """(UTC seconds, local times that stand twice or never) of times read from a clock in `zone`.

    Only rows with `naive` are shifted. A local time that stands twice in autumn is taken as its first. Zones
    change their offset on quarters of an hour.
    """
    rows = np.flatnonzero(naive & np.isfinite(seconds))
    odd = np.zeros(len(seconds), dtype=np.bool_)
    if zone is UTC or not len(rows):
        return seconds, odd
    quarters, of_row = np.unique(np.floor_divide(seconds[rows], _QUARTER_S), return_inverse=True)
    offsets = [_offsets(int(quarter) * _QUARTER_S, zone) for quarter in quarters]
    shifted = seconds.copy()
    shifted[rows] -= np.array([first for first, _ in offsets])[of_row]
    odd[rows] = np.array([first != second for first, second in offsets])[of_row]
    return shifted, odd


def _offsets(local_s: int, zone: ZoneInfo | timezone) -> tuple[float, float]:
    """Seconds ahead of UTC at a local time, taken as its first and as its second occurrence."""
    try:
        local = datetime(1970, 1, 1) + timedelta(seconds=local_s)
        pair = [local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1)]
    except OverflowError:  # the first and last days that a datetime can hold
        return 0.0, 0.0
    first, second = (0.0 if offset is None else offset.total_seconds() for offset in pair)
    return first, second

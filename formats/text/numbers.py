"""Numbers of files, read strictly: ASCII digits, no underscores, no blanks within."""

from __future__ import annotations

import math
import re

MOST = 2.0**62
"""Amounts beyond this are refused: they fit no 64-bit number."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_SCALED = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([KMGTPE]?)(?:i?B)?", re.IGNORECASE)
_CLOCK = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9})(\.[0-9]{1,9})?)?")
_DAYS = re.compile(r"^([0-9]{1,9}) days?,? ?")
_MINUTES = re.compile(r"([0-9]{1,9}):([0-9]{2})(\.[0-9]{1,9})?")
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_NO_LIMIT = frozenset({"unlimited", "infinite"})


def integer(text: str) -> int | None:
    """A whole number of at most 18 digits, None for anything else."""
    return int(text) if _INTEGER.fullmatch(text) else None


def decimal(text: str) -> float | None:
    """A finite decimal number, None for anything else."""
    if not _DECIMAL.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def scaled(text: str, unit: str = "") -> float | None:
    """A number with a binary suffix (`4G` is 4 x 2**30), without one in `unit`. None for none, or above MOST."""
    match = _SCALED.fullmatch(text)
    if match is None:
        return None
    value = float(match[1]) * 1024.0 ** _POWER[match[2].upper() or unit]
    return value if value <= MOST else None


def duration_s(text: str) -> float | None:
    """Seconds of a Slurm duration `[DD-[HH:]]MM:SS[.mmm]` as its tools print it; inf for `UNLIMITED`.

    None for anything else. `D-HH` and `D-HH:MM` carry hours first, as Slurm's time specifications say; `1 day,
    2:03:04`, `1 days 02:03:04` and `1 days` are how Python writes them.
    """
    text = _DAYS.sub(r"\1-0:00:00", text) if text.endswith(("day", "days")) else _DAYS.sub(r"\1-", text)
    if match := _MINUTES.fullmatch(text):
        return 60.0 * int(match[1]) + float(match[2] + (match[3] or ""))
    match = _CLOCK.fullmatch(text)
    if match is None or (match[1] is None and match[4] is None):
        return math.inf if text.lower() in _NO_LIMIT else None
    days, hours, minutes, seconds, fraction = match.groups("0")
    whole = 86400 * int(days) + 3600 * int(hours) + 60 * int(minutes) + int(seconds)
    return whole + float(fraction)


def limit_s(text: str) -> float | None:
    """Seconds of a time limit in a Slurm configuration or option: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`.

    A plain number counts minutes. None for anything else.
    """
    minutes = integer(text)
    if minutes is not None:
        return 60.0 * minutes if minutes >= 0 else math.inf if minutes == -1 else None
    return duration_s(text)

"""Slurm's host lists: `tux[0-31,40],gn01` stands for 34 names."""

from __future__ import annotations

import re
from itertools import product

from equipoise.formats.text.errors import FormatError, shown

MAX_HOSTS = 1_000_000
"""Names one list may stand for: more than any cluster has, little enough to hold."""

_PART = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")


def split_list(text: str) -> list[str]:
    """The members of a comma-separated list; commas within brackets or parentheses do not split."""
    parts, depth, begin = [], 0, 0
    for k, letter in enumerate(text):
        if letter in "[(":
            depth += 1
        elif letter in "])":
            depth = max(depth - 1, 0)
        elif letter == "," and depth == 0:
            parts.append(text[begin:k])
            begin = k + 1
    return [part.strip() for part in [*parts, text[begin:]] if part.strip()]


def expand_hosts(text: str) -> tuple[str, ...]:
    """Every name of a host list, in its order; zero padding is kept. Raises FormatError for a malformed list."""
    if text.strip().lower() in ("", "none assigned", "(null)", "n/a", "none"):
        return ()
    names: list[str] = []
    for member in split_list(text):
        names += _expand(member, MAX_HOSTS - len(names))
    return tuple(names)


def _expand(member: str, room: int) -> list[str]:
    pieces = _PART.split(member)
    if any(mark in piece for piece in pieces for mark in "[]"):
        raise FormatError(f"host list {shown(member)}: brackets do not match")
    choices, total = [], 1
    for k, piece in enumerate(pieces):
        choices.append(_numbers(piece, member, room) if k % 2 else [piece])
        total *= len(choices[-1])
        if total > room:
            raise FormatError(f"host list {shown(member)}: more than {MAX_HOSTS:,} names")
    return ["".join(parts) for parts in product(*choices)]


def _numbers(ranges: str, member: str, room: int) -> list[str]:
    """`0-3,08` to its numbers, padded as its first number is."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise FormatError(f"host list {shown(member)}: {shown(part)} is not a number or a range of them")
        low, high = int(match[1]), int(match[2] or match[1])
        if high - low >= room - len(numbers):
            raise FormatError(f"host list {shown(member)}: more than {MAX_HOSTS:,} names")
        numbers += [str(n).zfill(len(match[1])) for n in range(low, high + 1)]
    return numbers

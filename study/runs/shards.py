"""Shards of a sweep made on separate machines, and merging them.

A shard appends one JSON line per run to `shards/shard-I-of-N.jsonl`. `merge` reads such files from any number
of folders into one ledger, as if one sweep had made all runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from equipoise.base.files import write_whole
from equipoise.base.json_values import from_json
from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.orders import Row
from equipoise.study.runs.store import MemoryStore, StoreError, ledger_with_copy, only_writer

FOLDER = "shards"
_NAME = re.compile(r"shard-([0-9]+)-of-([0-9]+)\.jsonl")


class ShardFile(MemoryStore):
    """The rows of one shard, in a file of lines; use as a context manager."""

    def __init__(self, folder: Path, shard: int, shards: int) -> None:
        self.path = folder / FOLDER / f"shard-{shard}-of-{shards}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole, size = read_lines(self.path)
        self._rows = {row["id"]: row for row in whole}
        self._file = open(self.path, "ab")  # noqa: SIM115 - closed by __exit__
        self._file.truncate(size)  # a killed process can leave half a line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as failure:
            if error is None:
                raise StoreError(f"{self.path}: cannot be written: {failure}") from failure

    def put(self, row: Mapping[str, Any]) -> None:
        """Append one run. Raises StoreError when it cannot be written (disk full)."""
        try:
            self._file.write(_line(row))
            self._file.flush()
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written: {error}") from error
        super().put(row)

    def keep_only(self, planned: Iterable[str]) -> int:
        """Move runs that are not planned to a second file, and move planned ones back from there.

        Returns the number of runs moved away. Raises StoreError when the files cannot be written.
        """
        wanted = set(planned)
        former = {row["id"]: row for row in read_lines(self._former)[0]}
        back = {key: row for key, row in former.items() if key in wanted and key not in self._rows}
        away = {key: row for key, row in self._rows.items() if key not in wanted}
        if back or away:
            kept = {key: row for key, row in self._rows.items() if key in wanted} | back
            try:
                _write_lines(self._former, former | away)  # first: a kill in between loses nothing
                _write_lines(self.path, kept)
                self._file.close()
                self._file = open(self.path, "ab")  # noqa: SIM115 - closed by __exit__
            except OSError as error:
                raise StoreError(f"{self.path}: cannot be written: {error}") from error
            self._rows = kept
        return len(away)

    @property
    def _former(self) -> Path:
        return self.path.with_suffix(".former")

    def set_about(self, **texts: str) -> None:
        """Keep facts about the sweep in the folder of the shards."""
        write_whole(self.path.with_name("about.json"), json.dumps(texts, indent=2) + "\n")


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps({k: None if v != v else v for k, v in row.items()}).encode() + b"\n"


def _write_lines(path: Path, rows: Mapping[str, Row]) -> None:
    """Write a whole file of rows, through a temporary one."""
    write_whole(path, b"".join(map(_line, rows.values())))


def read_lines(path: Path) -> tuple[list[Row], int]:
    """Complete lines of a shard file and their number of bytes; an incomplete line is not counted.

    Raises StoreError for a line in the middle that is not a row.
    """
    lines = list(_lines(path)) if path.exists() else []
    return [row for _, _, row in lines], lines[-1][1] if lines else 0


def _lines(path: Path) -> Iterator[tuple[int, int, Row]]:
    """Complete lines of a shard file, with their begin and end in bytes. Raises StoreError as `read_lines`."""
    end = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = from_json(line)
                row["id"], row["number"], row["status"], row["attempts"]
            except (ValueError, KeyError, TypeError):
                raise StoreError(f"{path}:{number}:1: not a run of a sweep") from None
            begin, end = end, end + len(line)
            yield begin, end, row


class _Place(NamedTuple):
    """Place of the row of a run: byte `begin` of a shard file."""

    path: Path
    begin: int
    status: str


def _rows_at(found: Mapping[str, _Place]) -> Iterator[Row]:
    """The rows of runs, one at a time. Raises StoreError when a file was rewritten after it was read."""
    for path, places in groupby(found.items(), lambda item: item[1].path):
        with open(path, "rb") as file:
            for key, place in places:
                file.seek(place.begin)
                try:
                    row = from_json(file.readline())
                    same = row["id"] == key
                except (ValueError, KeyError, TypeError):
                    same = False
                if not same:
                    raise StoreError(f"{path}: was rewritten during the merge; merge again when its shard has ended")
                yield row


def _facts(path: Path) -> dict[str, str]:
    try:
        facts = from_json(path.read_text(encoding="utf-8"))
        if not isinstance(facts["plan"], str):
            raise TypeError("plan is not a text")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError([f"{path}: is damaged: {error}; start one of its shards again"]) from error
    return {str(key): str(value) for key, value in facts.items()}


def merge(out: Path, sources: Iterable[Path]) -> tuple[int, int, list[str]]:
    """Put the shards in `sources` (folders) into `out/sweep.db`.

    For a run in two shards, a done one replaces a failed one. Returns (runs done, runs failed, notes on missing
    shards). Raises InputError when there are no shards, or they belong to different sweeps, and StoreError when a
    file is damaged or `out` cannot be written.
    """
    found: dict[str, _Place] = {}
    about: dict[str, dict[str, str]] = {}
    seen: dict[int, set[int]] = {}
    for folder in sources:
        for path in sorted((folder / FOLDER).glob("shard-*-of-*.jsonl")):
            match = _NAME.fullmatch(path.name)
            if match is None:
                continue
            seen.setdefault(int(match[2]), set()).add(int(match[1]))
            for begin, _, row in _lines(path):
                old = found.get(row["id"])
                if old is None or (old.status, row["status"]) == ("failed", "done"):
                    found[row["id"]] = _Place(path, begin, row["status"])
        if (folder / FOLDER / "about.json").exists():
            about[str(folder)] = _facts(folder / FOLDER / "about.json")
    if not seen:
        raise InputError([f"{', '.join(map(str, sources))}: no {FOLDER}/shard-I-of-N.jsonl here"])
    if len({facts["plan"] for facts in about.values()}) > 1:
        raise InputError([f"{', '.join(about)}: shards of different sweeps (other file, or other code)"])
    with only_writer(out), ledger_with_copy(out) as ledger:
        ledger.put_all(_rows_at(found))
        ledger.set_about(**next(iter(about.values()), {}))
    notes = [
        f"shards missing of {n}: {', '.join(str(k) for k in range(1, n + 1) if k not in parts)}"
        for n, parts in sorted(seen.items())
        if len(parts) < n
    ]
    done = sum(place.status == "done" for place in found.values())
    return done, len(found) - done, notes

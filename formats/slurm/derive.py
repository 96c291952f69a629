"""Ids, times and amounts of each job from the columns of Slurm's tools."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from itertools import compress
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from equipoise.formats.slurm.jobs import JobTable
from equipoise.formats.slurm.values import (
    NOT_GIVEN,
    JobId,
    gres_gpus,
    parse_job_id,
    parse_memory,
    parse_state,
    parse_tres,
    tres_gpus,
    tres_number,
    whole,
)
from equipoise.formats.text.columns import Bools, Floats, Ints, Text, TextBuilder, constant
from equipoise.formats.text.errors import shown
from equipoise.formats.text.numbers import MOST, decimal, duration_s, integer
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.times import TextTimes, to_utc

_OTHER = "Elapsed is not the time from Start to End (suspended?): Elapsed is the duration"
_ROUNDED_S = 60.0
_PLAIN = ("cluster", "user", "account", "partition", "qos", "name", "reason")
TIMES = ("submit", "eligible", "start", "end")
_BLANK = frozenset(
    {"", "unknown", "none", "n/a", "(null)", "none assigned", "partition_limit", "not_set", "invalid", "notset"}
)


@dataclass
class Derivation:
    """Columns recognised by content: `found` by position, `times` by meaning; `place`: meaning -> position."""

    names: Sequence[str]
    place: Mapping[str, int]
    found: Mapping[int, Text]
    times: Mapping[str, TextTimes]
    lines: Ints
    zone_name: str
    zone: ZoneInfo | timezone
    tally: RowTally

    def __post_init__(self) -> None:
        """No times read so far."""
        self._rows = len(self.lines)
        self._naive = np.zeros(self._rows, dtype=np.bool_)

    def table(self) -> JobTable:
        """The table as the file has it: rows without a job id (array_id -1) and repeated ones too."""
        ids, job_id = self._job_ids()
        times = {target: self._seconds(target) for target in TIMES}
        self.count("noted", f"times without a zone read as {self.zone_name}", self._naive)
        tres, requested = self._tres("tres"), self._tres("tres_requested")
        nodes = _first(
            [
                self._whole("nodes"),
                self._whole("nodes_allocated"),
                tres["node"],
                self._whole("nodes_requested"),
                requested["node"],
            ]
        )
        cpus = _first(
            [
                self._whole("cpus"),
                self._whole("cpus_allocated"),
                tres["cpu"],
                self._whole("cpus_requested"),
                requested["cpu"],
            ]
        )
        gpus, gpu_type, given = self._gpus(nodes)
        columns: dict[str, Any] = dict(ids)
        columns |= {f"{target}_s": seconds for target, seconds in times.items()}
        columns |= {name: self._text(name) for name in _PLAIN}
        return JobTable(
            **columns,
            job_id=job_id,
            attempt=np.ones(self._rows, dtype=np.int64),
            state=self._state(),
            node_list=self._text("node_list").mapped(lambda text: "" if text.lower() in _BLANK else text),
            elapsed_s=self._elapsed(times["start"], times["end"]),
            time_limit_s=self._limit(),
            nodes=nodes,
            cpus=cpus,
            gpus=gpus,
            gpu_type=gpu_type,
            gpu_type_given=given,
            memory_bytes=self._memory(tres["mem"], requested["mem"], nodes, cpus),
            priority=self._floats("priority", decimal),
            line=self.lines,
            other=self._other(),
        )

    def _text(self, target: str) -> Text:
        k = self.place.get(target)
        text = constant("", self._rows) if k is None else self.found[k]
        none = target != "name" and "(null)" in text.values  # a job may be called so
        return text.mapped(lambda value: value.replace("(null)", "")) if none else text

    def _other(self) -> dict[str, Text]:
        other: dict[str, Text] = {}
        used = set(self.place.values())
        for k, text in self.found.items():
            if k not in used:
                name, again = self.names[k], 2
                while name in other:
                    name, again = f"{self.names[k]}_{again}", again + 1
                other[name] = text
        return other

    def _job_ids(self) -> tuple[dict[str, Ints], Text]:
        """Parts of the ids, and the ids. Rows of a file without ids are numbered by their lines."""
        if "job_id" not in self.place:
            text = TextBuilder()
            text.add(list(map(str, self.lines.tolist())))
            job_id = text.finish()
        else:
            job_id = self.found[self.place["job_id"]]
        parts = _id_parts(job_id.values)
        names = ("array_id", "array_index", "array_tasks", "het_part")
        return {name: parts[job_id.codes, k] for k, name in enumerate(names)}, job_id

    def _seconds(self, target: str) -> Floats:
        times = self.times.get(target)
        if times is None or not times.seconds:
            return np.full(self._rows, np.nan)
        name = self.names[self.place[target]]
        naive, bad = np.concatenate(times.naive), np.concatenate(times.bad)
        seconds, odd = to_utc(np.concatenate(times.seconds), naive, self.zone)
        self.count("changed", f"{name} is not a time, ignored", bad)
        self.count("noted", f"{name} falls into a change of {self.zone_name}'s clock, the earlier time is used", odd)
        self._naive |= naive
        return seconds

    def count(self, action: str, reason: str, rows: Bools) -> None:
        """Count these rows, if there are any."""
        if rows.any():
            self.tally.add(action, reason, int(self.lines[rows].min()), int(rows.sum()))

    def _floats(self, target: str, convert: Callable[[str], float | None]) -> Floats:
        """A column as numbers, NaN where there is none; unreadable values are counted."""
        text = self._text(target)
        bad: list[int] = []

        def number(code: int, value: str) -> float:
            """The value, NaN where none is written; notes those that cannot be read."""
            found = convert(value.strip())
            if found is None and value.strip().lower() not in _BLANK:
                bad.append(code)
            return math.nan if found is None else found

        values = np.array([number(*pair) for pair in enumerate(text.values)], dtype=np.float64)
        if bad:
            name, example = self.names[self.place[target]], text.values[bad[0]]
            rows = np.isin(text.codes, bad)
            self.count("changed", f"{name} is not readable and ignored, such as {shown(example)}", rows)
        return values[text.codes]

    def _whole(self, target: str) -> Ints:
        return _as_ints(self._floats(target, lambda text: None if whole(text) == NOT_GIVEN else whole(text)))

    def _state(self) -> Text:
        text = self._text("state")
        unknown = [parse_state(value.strip()) is None and value.strip() != "" for value in text.values]
        if any(unknown):
            example = text.values[unknown.index(True)]
            rows = np.array(unknown, dtype=np.bool_)[text.codes]
            self.count("noted", f"a state unknown to Slurm's manual, such as {shown(example)}", rows)
        return text.mapped(lambda value: parse_state(value.strip()) or value.strip())

    def _tres(self, target: str) -> dict[str, Ints]:
        text = self._text(target)
        parsed = [parse_tres(value) for value in text.values]

        def column(name: str, unit: str = "") -> Ints:
            """The number of one resource for every row."""
            numbers = [tres_number(tres, name, unit) for tres in parsed]
            return np.array([NOT_GIVEN if n is None else int(n) for n in numbers], dtype=np.int64)[text.codes]

        return {"node": column("node"), "cpu": column("cpu"), "mem": column("mem", "M")}

    def _gpus(self, nodes: Ints) -> tuple[Ints, Text, Text]:
        """GPUs as allocated, else as requested; their types as requested; their types as allocated.

        An allocation does not show what a job would have accepted: Slurm may even record a type that it did
        not allocate, where a request names none. Without a request the allocated type counts as requested.
        """
        gpus, given = self._first_gpus((("tres", tres_gpus), ("gres", gres_gpus)), nodes)
        requests = ("gres_per_job", "gres_per_node", "gres_per_task", "gres_per_socket")
        asking = [("tres_requested", tres_gpus), *((request, gres_gpus) for request in requests)]
        wanted, asked = self._first_gpus(asking, nodes)
        told, held, named = wanted > 0, given != "", asked != ""
        for reason, rows in (
            ("GPU type known only from the allocation: taken as requested", held & ~told),
            ("allocated a GPU type without requesting one: may use any", held & told & ~named),
            ("allocated another GPU type than requested: the request counts", held & named & (given != asked)),
        ):
            self.count("changed", reason, rows)
        types = TextBuilder(), TextBuilder()
        types[0].add(np.where(told, asked, given).tolist())
        types[1].add(given.tolist())
        gpus = np.where((gpus <= 0) & (wanted > gpus), wanted, gpus)
        return gpus, types[0].finish(), types[1].finish()

    def _first_gpus(
        self, readers: Sequence[tuple[str, Callable[[str], tuple[int, str]]]], nodes: Ints
    ) -> tuple[Ints, NDArray[np.object_]]:
        """(GPUs of the first of these columns that has some, their types by the first that names any), by row."""
        gpus = np.full(self._rows, NOT_GIVEN, dtype=np.int64)
        types = np.full(self._rows, "", dtype=object)
        for target, reader in readers:
            if target not in self.place:
                continue
            text = self._text(target)
            pairs = [reader(value) for value in text.values]
            here = np.array([count for count, _ in pairs], dtype=np.int64)[text.codes]
            kinds = np.array([kind.lower() for _, kind in pairs], dtype=object)[text.codes]
            here = np.where(here > 0, here * self._units(target, nodes), here)
            types = np.where((types == "") & (here > 0), kinds, types)
            gpus = np.where((gpus <= 0) & (here > gpus), here, gpus)
        return gpus, types

    def _units(self, target: str, nodes: Ints) -> Ints:
        """How many times each job gets the GPUs of a column: per node, task or socket; else once."""
        if target == "gres_per_task":
            return np.maximum(self._whole("tasks"), 1)
        if target not in ("gres_per_node", "gres_per_socket"):
            return np.ones_like(nodes)
        units = np.maximum(nodes, 1)
        if target == "gres_per_socket":
            units *= (
                self._text("sockets").floats(lambda text: float(max(whole(text.split(":")[0]), 1))).astype(np.int64)
            )
        return units

    def _memory(self, allocated: Ints, requested: Ints, nodes: Ints, cpus: Ints) -> Ints:
        asked = self._request("memory", "", nodes, cpus)
        return _first([allocated, requested, asked, self._request("memory_per_node", "n", nodes, cpus)])

    def _request(self, target: str, per: str, nodes: Ints, cpus: Ints) -> Ints:
        text = self._text(target)
        pairs = [parse_memory(value.strip()) or (NOT_GIVEN, "") for value in text.values]
        value = np.array([number for number, _ in pairs], dtype=np.int64)[text.codes]
        unit = np.array([own or per for _, own in pairs], dtype="U1")[text.codes]
        times = np.where(unit == "n", nodes, np.where(unit == "c", cpus, 1))
        total = value.astype(np.float64) * times
        return np.where((value < 0) | (times < 0) | (total > MOST), NOT_GIVEN, total).astype(np.int64)

    def _limit(self) -> Floats:
        limit = self._floats("limit", duration_s)
        minutes = self._floats("limit_raw", _minutes)
        return np.where(np.isnan(limit), minutes * 60.0, limit)

    def _elapsed(self, start_s: Floats, end_s: Floats) -> Floats:
        elapsed = self._floats("elapsed_raw", decimal)
        elapsed = np.where(np.isnan(elapsed), self._floats("elapsed", duration_s), elapsed)
        between_s = end_s - start_s
        self.count("changed", "End is before Start: Elapsed, where there is one, is the duration", between_s < 0)
        self.count("changed", _OTHER, (between_s >= 0) & (np.abs(between_s - elapsed) > _ROUNDED_S))
        return np.where(np.isnan(elapsed), between_s, elapsed)


def _id_parts(texts: Sequence[str]) -> Ints:
    """(job, array index, array tasks, part of a heterogeneous job) of each job id; job is NOT_GIVEN for no id."""
    plain = np.fromiter((t.isdigit() and t.isascii() for t in texts), dtype=np.bool_, count=len(texts))
    parts = np.full((len(texts), 4), (NOT_GIVEN, NOT_GIVEN, 1, NOT_GIVEN), dtype=np.int64)
    parts[plain, 0] = list(map(int, compress(texts, plain)))  # most ids: a tenth of the time
    for k in np.flatnonzero(~plain).tolist():
        found = parse_job_id(texts[k].strip()) or JobId(NOT_GIVEN)
        parts[k] = found.job, found.index, found.tasks, found.part
    return parts


def _minutes(text: str) -> float | None:
    number = integer(text)
    return math.inf if text.lower() in ("unlimited", "infinite") else None if number is None else float(number)


def _as_ints(values: Floats) -> Ints:
    return np.where(np.isnan(values), NOT_GIVEN, values).astype(np.int64)


def _first(columns: Sequence[Ints]) -> Ints:
    """For each row the first number above 0, else 0 where one column has 0, else NOT_GIVEN."""
    result: Any = columns[0]
    for column in columns[1:]:
        result = np.where((result <= 0) & (column > result), column, result)
    return np.asarray(result, dtype=np.int64)

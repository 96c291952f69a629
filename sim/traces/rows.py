"""Rows of a file before they become a trace: each becomes a job, or is left out by choice or with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from equipoise.base.numerals import is_index
from equipoise.formats.text.columns import Text
from equipoise.formats.text.tally import ACTIONS, RowTally, TextChange
from equipoise.sim.scenario.names import nearest
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import MAX_TIME_S
from equipoise.sim.traces.trace import Bools, Column, Floats, Ints, Trace, column_name, make_trace

_CLUSTERS = ("cluster", "account", "partition", "queue")
"""Columns that tell virtual clusters apart: the first of them that a trace has."""


def chosen(columns: Mapping[str, Column], keep: Sequence[str], clusters: Sequence[str], file: str) -> dict[str, Bools]:
    """Masks of selected rows, by the reason for excluding others.

    keep: `column=value`, or several values with commas; all of them must hold. Raises InputError, one line, for a
    column that is not there or a value that no row has.
    """
    found = {}
    for wanted in keep:
        name, equals, values = wanted.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise InputError([f"--keep {wanted}: write column=value, or column=value,value"])
        texts = _texts(columns, name.strip(), f"--keep {wanted}", file)
        found[f"not {wanted}"] = _among(texts, [v.strip() for v in values.split(",")], name.strip(), file)
    if clusters:
        name = next((name for name in _CLUSTERS if name in columns), "cluster")
        texts = _texts(columns, name, "clusters cannot be chosen", file)
        found["of other clusters"] = _among(texts, clusters, "cluster", file)
    return found


def _texts(columns: Mapping[str, Column], name: str, why: str, file: str) -> Text:
    column = columns.get(name, columns.get(column_name(name)))  # `State` and `JobName` as the file has them
    if isinstance(column, Text):
        return column
    known = ", ".join(name for name, column in columns.items() if isinstance(column, Text)) or "none"
    raise InputError([f"{file}: column {name!r} is missing, {why}; columns: {known}"])


def _among(texts: Text, wanted: Sequence[str], name: str, file: str) -> Bools:
    known = sorted(set(texts.values) - {""})
    absent = [value for value in wanted if value not in known]
    if absent:
        raise InputError([f"{file}: no {name} {value!r}; {nearest(value, known)}" for value in absent])
    marks = np.array([value in wanted for value in texts.values], dtype=np.bool_)
    return marks[texts.codes]


_EPOCH_FROM_S = 1e8
"""Times from here on (1973) are dates, below they are seconds of the trace's own clock."""

_MOST_UNITS = 1e9
NO_GPUS = "no GPUs, CPUs only"


@dataclass(eq=False)
class Rows:
    """Equal-length columns over the rows of a file; NaN where the file does not say.

    name: the job's id as the site writes it. arrival_s: when it could first run. duration_s: of the run. units:
    GPUs of the whole job (or what else is counted), a fraction where GPUs are shared. columns: what else is known.
    submit_s: where it may differ from the arrival. keep: rows that are jobs so far. made: how many more rows there
    are here than in the file.
    """

    name: Text
    arrival_s: Floats
    duration_s: Floats
    units: Floats
    line: Ints
    columns: dict[str, Column]
    changes: Sequence[TextChange]
    priority: Floats | None = None
    model: Sequence[str] | None = None
    submit_s: Floats | None = None
    path: str = ""
    made: int = 0
    keep: Bools = field(init=False)

    def __post_init__(self) -> None:
        """Begin with every row, and with what the reader of the file counted."""
        self.keep = np.ones(len(self.line), dtype=np.bool_)
        self.tally = RowTally()
        for change in self.changes:
            self.tally.add(change.action, change.reason, change.first_line, change.count)

    @property
    def read(self) -> int:
        """Rows of the file, those that its reader left out or merged already included."""
        lost = sum(change.count for change in self.changes if change.action in ("left out", "merged"))
        return len(self.line) - self.made + lost

    def drop(self, reason: str, rows: Bools, action: str = "left out") -> None:
        """Remove (or, by `action`, merge) those of these rows that are still kept."""
        self.count(reason, rows, action)
        self.keep &= ~rows

    def count(self, reason: str, rows: Bools, action: str = "changed") -> None:
        """Count those of these rows that are still kept."""
        found = rows & self.keep
        if found.any():
            self.tally.add(action, reason, int(self.line[found].min()), int(found.sum()))

    def sift(self, unit: str) -> None:
        """Remove rows that cannot be simulated: no GPUs, no arrival, no known or no positive duration."""
        self.drop(f"does not state the number of {unit}", np.isnan(self.units))
        self.drop(f"more {unit} than any cluster has", self.units > _MOST_UNITS)
        self.drop(NO_GPUS if unit == "GPUs" else f"no {unit}", ~(self.units > 0))
        self.drop("no submit time", np.isnan(self.arrival_s))
        self.drop("no duration: the end of the job is not given", ~np.isfinite(self.duration_s))
        beyond = (np.abs(self.arrival_s) > MAX_TIME_S) | (self.duration_s > MAX_TIME_S)
        self.drop(f"a time above {MAX_TIME_S:g} s", beyond)
        self.drop("a duration below 0", self.duration_s < 0)
        self.drop("zero duration", self.duration_s == 0)
        part = (self.units < 1) & (self.units > 0)
        self.count(f"a fraction of one of the {unit}", part, "noted")
        broken = (self.units > 1) & (self.units != np.floor(self.units))
        self.count(f"a fractional number of {unit}, rounded up", broken)

    def trace(
        self,
        *,
        unit: str,
        keep: Sequence[str] = (),
        clusters: Sequence[str] = (),
        limit: int | None = None,
        time_scale: float = 1.0,
    ) -> Trace:
        """The jobs. Raises InputError for a column or value that is not there, and when no job is left."""
        self.sift(unit)
        self.columns = {name: c for name, c in self.columns.items() if _says(c, self.keep)}
        for reason, rows in chosen(self.columns, keep, clusters, self.path).items():
            self.drop(reason, ~rows)
        if not self.keep.any():
            raise InputError([f"{self.path}: no jobs in it{_left(self.tally)}{_hint(self.tally, unit)}"])
        first_s = float(self.arrival_s[self.keep].min())
        notes = [f"{self.read} rows, {int(self.keep.sum())} jobs", *told(self.tally)]
        notes += ["each CPU counts as a GPU: energy and money mean nothing"] if unit == "CPUs" else []
        if first_s != 0.0:
            notes.append(f"arrivals counted from {moment(first_s)}")
        ids, names = self._ids()
        return make_trace(
            ids,
            self.arrival_s - first_s,
            np.maximum(np.ceil(np.nan_to_num(self.units)), 1).astype(np.int64),
            self.duration_s,
            priority=self.priority,
            model=self.model,
            gpu_share=np.where((self.units > 0) & (self.units < 1), self.units, 1.0),
            name=names,
            columns=self.columns,
            keep=self.keep,
            limit=limit,
            time_scale=time_scale,
            notes=notes,
            source=Path(self.path).name,
            line=self.line.tolist(),
        )

    def _ids(self) -> tuple[Ints, list[str] | None]:
        """(numbers, names): the ids where they are plain numbers that stand once each, else rows from 0."""
        kept = self.name.take(self.keep)
        used = [self.name.values[code] for code in np.flatnonzero(np.bincount(kept.codes)).tolist()]
        plain = all(is_index(text) and len(text) <= 18 for text in used)
        if plain and len(used) == len(kept):
            numbers = [int(text) if is_index(text) and len(text) <= 18 else 0 for text in self.name.values]
            return np.array(numbers, dtype=np.int64)[self.name.codes], None
        return np.arange(len(self.name), dtype=np.int64), self.name.tolist()


def _says(column: Column, keep: Bools) -> bool:
    """Whether a column holds anything for the jobs that are kept."""
    kept = column.take(keep) if isinstance(column, Text) else column[keep]
    if isinstance(kept, Text):
        return any(kept.values[code] for code in np.flatnonzero(np.bincount(kept.codes)).tolist())
    return bool(np.isfinite(kept).any())


def told(tally: RowTally) -> list[str]:
    """One text per action: `left out: 3 no submit time, 2 zero duration`."""
    found = tally.changes()
    return [
        f"{action}: " + ", ".join(f"{c.count} {c.reason}" for c in found if c.action == action)
        for action in ACTIONS
        if any(c.action == action for c in found)
    ]


def _left(tally: RowTally) -> str:
    parts = [text for text in told(tally) if not text.startswith("noted")]
    return f": {'; '.join(parts)}" if parts else ""


def _hint(tally: RowTally, unit: str) -> str:
    only_cpus = any(change.reason == NO_GPUS for change in tally.changes())
    return "; --set workload.trace.count=cpus counts CPUs in place of GPUs" if only_cpus else ""


def moment(time_s: float) -> str:
    """A date and time, or seconds of a trace's own clock."""
    if time_s < _EPOCH_FROM_S:
        return f"{time_s:g} s"
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def further(other: Mapping[str, Text], taken: Mapping[str, Column]) -> dict[str, Column]:
    """Columns without a meaning in the simulator, renamed where `taken` contains their name."""
    found: dict[str, Column] = {}
    for title, text in other.items():
        name = column_name(title)
        while name in taken or name in found:
            name += "_"
        found[name] = text
    return found

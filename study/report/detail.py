"""Details of one run: its charts, its bars, its decisions, as compressed parts of the page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.policies.contract import Decision, Refusal
from equipoise.policies.record.journal import JournalError, read
from equipoise.sim.scenario.tree import InputError
from equipoise.study.display import digits, show
from equipoise.study.questions.sub_steps import done_to, touched
from equipoise.study.report.chart import Chart
from equipoise.study.report.charts.over_time import charts_over_time
from equipoise.study.report.study import RunFolder
from equipoise.study.report.timeline import FOLDER, Bars, bars, events, job_names, squeeze

ENTRIES = 50_000
"""Most entries of the list of decisions."""
DETAIL_CHARS = 2000
TEXT_CHARS = 160
EVENTS_SHOWN = 2000
FAULTS_DRAWN = 300


@dataclass(frozen=True)
class Detail:
    """Compressed parts of one run. blobs: (identifier, bytes). header: metadata for the page."""

    header: dict[str, Any]
    blobs: tuple[tuple[str, bytes], ...]
    charts: tuple[Chart, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes in the page."""
        return sum(len(content) * 4 // 3 for _, content in self.blobs)


def read_detail(folder: RunFolder, key: str, most_bars: int | None) -> Detail | None:
    """All details of one run; None when it holds neither timeline nor journal.

    Raises InputError when its files are damaged.
    """
    decisions = None if folder.journal is None else read_decisions(folder.journal, job_names(folder.path))
    if not folder.timeline:
        if decisions is None:
            return None
        content: dict[str, Any] = {"charts": [], "decisions": decisions, "events": None}
        return Detail({"key": key, "label": folder.label, "bars": None}, ((f"run-{key}", _json(content)),), ())
    drawn = tuple(charts_over_time(folder, f"-{key}"))
    content = {"charts": [chart.plain() for chart in drawn], "decisions": decisions, "events": _events(folder)}
    packed = bars(folder.path, most_bars)
    header: dict[str, Any] = {"key": key, "label": folder.label, "bars": packed.header()}
    header |= {"note": _bars_note(packed), "faults": fault_times(folder)}
    blobs = ((f"run-{key}", _json(content)), (f"bars-{key}", packed.packed), (f"names-{key}", packed.names))
    return Detail(header, blobs, drawn)


def _json(content: Any) -> bytes:
    return squeeze(json.dumps(content, separators=(",", ":"), allow_nan=False).encode())


def _bars_note(found: Bars) -> str:
    jobs = found.rows - sum(found.beside.values())
    many = f"{jobs:,} job{'s' * (jobs != 1)}, {found.total:,} bar{'s' * (found.total != 1)}"
    note = f"{many}: a bar is a stretch of waiting or running."
    if found.beside:
        note += f" Below the jobs: {', '.join(found.beside)}, and how long each held its GPUs."
    if found.count < found.total:
        note += f" Only the {found.count:,} longest bars are drawn."
    return note


def fault_times(folder: RunFolder) -> list[float]:
    """Times of faults in s, at most `FAULTS_DRAWN`: lines across the Gantt chart."""
    if not (folder.path / FOLDER / "events.parquet").is_file():
        return []
    ends = ("repair", "restored", "taken_back")  # the last is no fault
    found = [t for t, kind, _, _ in events(folder.path) if kind not in ends and not kind.endswith("_end")]
    return [float(f"{t:.9g}") for t in found[:FAULTS_DRAWN]]


def _events(folder: RunFolder) -> dict[str, Any] | None:
    if not (folder.path / FOLDER / "events.parquet").is_file():
        return None
    found = events(folder.path, EVENTS_SHOWN + 1)
    more = len(found) > EVENTS_SHOWN
    rows = [(show("x_s", t), kind.replace("_", " "), subject, digits(value)) for t, kind, subject, value in found]
    note = f"The first {EVENTS_SHOWN:,}." if more else f"{len(rows):,} in this run."
    return {"header": ("time", "what", "where", "value"), "rows": rows[:EVENTS_SHOWN], "note": note}


def read_decisions(path: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """The decisions of a journal as columns, texts by number: time, stage, text, detail.

    A reason is one entry, and so are the changes of one job, by its name (of `names`, by row), and each refusal of
    the world. Raises InputError when the journal is damaged.
    """
    table = _Table()
    note = ""
    try:
        for entry in read(path):
            if len(table.time) >= ENTRIES:
                note = f"The first {len(table.time):,} entries; later ones are in {path.name}."
                break
            for stage, text, detail in _entries(entry.decision, entry.refused, names):
                table.add(entry.decision.observation.time_s, stage, text, detail)
    except JournalError as error:
        raise InputError([str(error)]) from error
    return table.plain() | {"note": note}


def _entries(decision: Decision, refused: Iterable[Refusal], names: Sequence[str]) -> Iterable[tuple[str, str, str]]:
    for reason in decision.plan.reasons:
        values = json.dumps({k: _shown(v) for k, v in reason.values.items()}) if reason.values else ""
        yield reason.stage, reason.text, values[:DETAIL_CHARS]
    for row in touched(decision):
        if done := done_to(decision, row):
            text = f"{names[row] if row < len(names) else f'job {row}'}: {done}"
            cut = len(text) > TEXT_CHARS
            yield "job", text[: TEXT_CHARS - 4] + " ..." if cut else text, text[:DETAIL_CHARS] if cut else ""
    for refusal in refused:
        yield "refused", f"{refusal.what}: {refusal.why}", ""


def _shown(value: Any) -> Any:
    """A value of a reason in JSON: arrays as lists, other types as text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _shown(item) for key, item in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class _Table:
    """Columns of decisions; equal texts are kept once."""

    def __init__(self) -> None:
        self.time: list[float] = []
        self.columns: dict[str, list[int]] = {"stage": [], "text": [], "detail": []}
        self.known: dict[str, dict[str, int]] = {name: {} for name in self.columns}

    def add(self, time_s: float, *texts: str) -> None:
        """One entry: stage, text, detail."""
        self.time.append(float(f"{time_s:.9g}"))
        for (name, column), text in zip(self.columns.items(), texts, strict=True):
            column.append(self.known[name].setdefault(text, len(self.known[name])))

    def plain(self) -> dict[str, Any]:
        """The columns, and the texts that their numbers stand for."""
        texts = {f"{name}s": list(known) for name, known in self.known.items()}
        return {"time": self.time, **self.columns, **texts}

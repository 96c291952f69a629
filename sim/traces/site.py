"""Files that sites hold (`equipoise.formats`), as rows of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from equipoise.formats.read import read
from equipoise.formats.recognise import PUBLISHED_FORMATS
from equipoise.formats.slurm.scontrol import jobs_of
from equipoise.formats.text.errors import FormatError
from equipoise.formats.traces.published import read_csv_trace
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.kubernetes import from_kueue
from equipoise.sim.traces.published import from_published, from_swf
from equipoise.sim.traces.rows import Rows
from equipoise.sim.traces.slurm import from_accounting

_ZONED = ("philly-log", "sacct", "squeue", "scontrol")
"""Formats whose times have no zone of their own."""

_QUEUES = ("squeue", "squeue-json", "scontrol")
_READERS: dict[str, Callable[[Any, str], Rows]] = {
    "sacct": from_accounting,
    "sacct-json": from_accounting,
    "swf": from_swf,
    "philly-log": from_published,
    **dict.fromkeys(PUBLISHED_FORMATS, from_published),
}
JOB_FORMATS = (*sorted({*_READERS, *_QUEUES, "kueue"}),)
"""Formats that hold jobs, by the names that `recognise` gives."""

_NEEDED = ({"arrival", "arrival_s", "submit"}, {"gpus", "cpus"}, {"duration", "duration_s", "end"})


def read_rows(path: Path, form: str, unit: str, zone: str = "", columns: Mapping[str, str] | None = None) -> Rows:
    """The rows of a file in one of JOB_FORMATS, or of any CSV whose `columns` are named.

    unit: `GPUs` or `CPUs`, what is counted. Raises InputError, one line, when it is no such file.
    """
    try:
        rows = _mapped(path, columns, zone, unit) if columns else _known(path, form, zone, unit)
    except (FormatError, MemoryError) as error:
        raise InputError([f"{error or f'{path}: larger than the memory'}"]) from error
    rows.path = str(path)
    return rows


def _known(path: Path, form: str, zone: str, unit: str) -> Rows:
    if zone and form not in _ZONED:
        raise InputError([f"{path}: zone {zone!r} has no effect: times in {form} files are of a known zone"])
    found = read(path, form, **({"zone": zone} if zone and form != "scontrol" else {}))
    if form == "kueue":
        return from_kueue(found, unit, str(path))
    if form in _QUEUES:
        jobs = jobs_of(found, zone=zone or "UTC") if form == "scontrol" else found
        return from_accounting(jobs, unit, queue=True)
    return _READERS[form](found, unit)


def _mapped(path: Path, columns: Mapping[str, str], zone: str, unit: str) -> Rows:
    for group in _NEEDED:
        if not group & set(columns):
            raise InputError([f"{path}: columns: one of {', '.join(sorted(group))} is needed"])
    return from_published(read_csv_trace(path, columns, zone=zone or "UTC"), unit, mapped=True)

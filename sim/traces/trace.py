"""The common form of a job trace, whatever file it came from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.formats.text.columns import Text
from equipoise.formats.text.tally import TextChange

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Texts = NDArray[np.str_]
Bools = NDArray[np.bool_]
Column = Text | Floats
"""One column of what a site knows of its jobs: texts, or numbers with NaN where there is none."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs in order of arrival: equal-length columns.

    job_id: the id in the file, or the row (from 0) in a file without ids. arrival_s: s from the start.
    duration_s: s on full-speed GPUs. priority: 1 where not given. model: a name of the workload's models, ""
    for a rigid job. notes: what the importer changed, one line at most. line: where each job stands in its file,
    empty when it came from elsewhere. gpu_share: of each GPU, below 1 where GPUs are shared. name: the ids as the
    file writes them, none where they are the numbers of job_id. columns: what else the file says of the jobs.
    left_out: rows of the file that are no jobs, where its reader counts them here.
    """

    job_id: Ints
    arrival_s: Floats
    gpus: Ints
    duration_s: Floats
    priority: Floats
    model: Texts
    notes: tuple[str, ...] = ()
    source: str = ""
    line: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    gpu_share: Floats | None = None
    name: tuple[str, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)
    left_out: tuple[TextChange, ...] = ()

    def __len__(self) -> int:
        return len(self.job_id)

    def name_of(self, row: int) -> str:
        """The id of a job as the file writes it."""
        return self.name[row] if self.name else str(self.job_id[row])

    def digest(self) -> bytes:
        """SHA-256 over all columns: equal jobs give equal digests, whatever the file is called."""
        sha = hashlib.sha256()
        columns: list[Any] = [self.job_id, self.arrival_s, self.gpus, self.duration_s, self.priority, self.model]
        columns += [] if self.gpu_share is None else [self.gpu_share]
        columns += [self.name] if self.name else []
        for title, column in self.columns.items():
            columns += [(title,), column]
        for column in columns:
            texts = not isinstance(column, np.ndarray) or column.dtype.kind == "U"
            data = "\0".join(map(str, column)).encode() if texts else column.tobytes()
            sha.update(len(data).to_bytes(8, "little") + data)
        return sha.digest()


def make_trace(
    job_id: Ints,
    arrival_s: Floats,
    gpus: Ints,
    duration_s: Floats,
    *,
    priority: Floats | None = None,
    model: Sequence[str] | None = None,
    gpu_share: Floats | None = None,
    name: Sequence[str] | None = None,
    columns: Mapping[str, Column] | None = None,
    keep: Bools | None = None,
    limit: int | None = None,
    time_scale: float = 1.0,
    notes: Sequence[str] = (),
    source: str = "",
    line: Sequence[int] | None = None,
    told: bool = True,
    left_out: Sequence[TextChange] = (),
) -> Trace:
    """A trace from columns in any order: `keep` selects rows, a stable sort puts them in order of arrival.

    `limit` keeps the earliest jobs, `time_scale` multiplies arrivals. Changes become one note, which
    mentions the sort if `told`.
    """
    changes = [*notes, *(f"{change.count} jobs left out ({change.reason})" for change in left_out)]
    rows = np.arange(len(job_id)) if keep is None else np.flatnonzero(keep)
    order = rows[np.argsort(arrival_s[rows], kind="stable")]
    if told and not np.array_equal(order, rows):
        changes.append("sorted by arrival")
    if limit is not None and limit < len(order):
        changes.append(f"the first {limit} of {len(order)} jobs")
        order = order[:limit]
    if time_scale != 1.0:
        changes.append(f"arrivals multiplied by {time_scale:g}")
    ones = np.ones(len(job_id))
    return Trace(
        job_id=job_id[order],
        arrival_s=arrival_s[order] * time_scale,
        gpus=gpus[order],
        duration_s=duration_s[order],
        priority=(ones if priority is None else priority)[order],
        model=np.array(["" if model is None else model[k] for k in order.tolist()], dtype=np.str_),
        notes=(f"{source}: {'; '.join(changes)}",) if changes else (),
        source=source,
        line=np.array([] if line is None else line, dtype=np.int64)[order if line is not None else []],
        gpu_share=None if gpu_share is None or (gpu_share[order] == 1).all() else gpu_share[order],
        name=() if name is None else tuple(name[k] for k in order.tolist()),
        columns={title: _taken(column, order) for title, column in (columns or {}).items()},
        left_out=tuple(left_out),
    )


def _taken(column: Column, rows: Ints) -> Column:
    return column.take(rows) if isinstance(column, Text) else column[rows]


def column_name(title: str) -> str:
    """A column's title as results name columns: `ReqTRES` is req_tres, `GPU Type` gpu_type."""
    words = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3_\2\4", title)
    return re.sub(r"[^0-9a-z]+", "_", words.lower()).strip("_") or "column"

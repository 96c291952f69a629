"""The timeline of a run directory (`timeline/*.parquet`), read for pictures.

Rows stay in DuckDB and numpy: a million bars become a few megabytes of packed bytes without a Python object per
row. All times are simulated seconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from equipoise.base.database import database
from equipoise.sim.job.account import HELD_USES
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.shown import all_shown

FOLDER = "timeline"
USES = tuple(use.label for use in HELD_USES)
"""Uses of the GPU-seconds held by jobs."""
USES_OF_FEATURES = {use: text for shown in all_shown() for use, text in shown.uses.items()}
HELD_BESIDE = " or ".join(USES_OF_FEATURES.values())
SHARES = (*USES, "idle", "down")
"""Uses of all GPU-seconds of the cluster: with those of features they sum to GPUs x time."""
KINDS = ("queued", "completed", "preempted", "resized", "fault", "open", "beside", "timeout")
"""Kinds of bars: time in the queue, a running segment by its end, or the time for which a feature held GPUs."""

TICKS = 2**26
"""Number of ticks in the span of a chart: 30 days in ticks of 0.04 s."""

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Bars:
    """Bars of a Gantt chart, packed.

    count: bars kept. total: all bars. rows: jobs, then those of features. start_s: time of tick 0.
    tick_s: seconds a tick. packed: gzip of the columns of `pack`. names: gzip of JSON: the `names` in row order,
    the `nodes`, and `node_of`, of the first GPU that each row held. beside: rows of features, by what they are.
    """

    count: int
    total: int
    rows: int
    start_s: float
    tick_s: float
    packed: bytes
    names: bytes
    beside: Mapping[str, int] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        """Metadata for the reader of `packed`."""
        return {
            "count": self.count,
            "rows": self.rows,
            "start": self.start_s,
            "tick": self.tick_s,
            "kinds": list(KINDS),
            "uses": list(USES),
        }


def has_timeline(folder: Path) -> bool:
    """Whether the run directory holds a timeline."""
    return (folder / FOLDER / "segments.parquet").is_file()


def literal(path: Path) -> str:
    """A path as an SQL string."""
    return "'" + str(path).replace("'", "''") + "'"


def table(folder: Path, name: str) -> str:
    """The SQL that reads one table of a timeline. Raises InputError when it is not there."""
    path = folder / FOLDER / f"{name}.parquet"
    if not path.is_file():
        raise InputError([f"{folder}: no timeline here ({FOLDER}/{name}.parquet); make the run with --timeline"])
    return f"read_parquet({literal(path)})"


def read(folder: Path, name: str, columns: str = "*", rest: str = "") -> Columns:
    """Columns of one table of a timeline as numpy arrays; `rest` is SQL behind FROM.

    Raises InputError when the table is not there or cannot be read.
    """
    source = table(folder, name)
    with database() as connection:
        try:
            found = connection.execute(f"SELECT {columns} FROM {source} {rest}").fetchnumpy()
        except duckdb.Error as error:
            where = folder / FOLDER / f"{name}.parquet"
            raise InputError([f"{where}: cannot be read: {' '.join(str(error).split())}"]) from error
    return {key: plain(values) for key, values in found.items()}


def plain(values: NDArray[Any]) -> NDArray[Any]:
    """A column without a mask: missing floats are NaN (numpy's default would be 1e20)."""
    if not np.ma.isMaskedArray(values):
        return values
    return np.ma.filled(values, np.nan) if values.dtype.kind == "f" else np.ma.filled(values)


def usage_shares(folder: Path) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """(edges in s (n + 1,), share of the cluster by use (n,)) over the buckets of `usage`.

    Shares of one bucket sum to 1. Raises InputError when the table is not there.
    """
    usage = read(folder, "usage", rest="ORDER BY start_s")
    edges = np.append(usage["start_s"], usage["end_s"][-1:])
    names = (*USES, *(use for use in USES_OF_FEATURES if f"{use}_gpu_s" in usage), *SHARES[len(USES) :])
    used = {name: np.maximum(np.asarray(usage[f"{name}_gpu_s"], dtype=np.float64), 0.0) for name in names}
    total = np.sum(list(used.values()), axis=0)
    safe = np.where(total > 0, total, 1.0)
    return edges, {name: values / safe for name, values in used.items()}


def job_names(folder: Path) -> list[str]:
    """Names of the jobs of a run directory by row."""
    source = f"read_parquet({literal(folder / 'jobs.parquet')}, file_row_number = true)"
    with database() as db:
        found = db.execute(f"SELECT name FROM {source} ORDER BY file_row_number").fetchnumpy()["name"]
    return [f"job {row}" if name is None else str(name) for row, name in enumerate(found)]


def bars(folder: Path, most: int | None = None) -> Bars:
    """The jobs' segments as packed bars, and those of features; of more than `most` of jobs, the longest.

    Raises InputError when the run directory holds no timeline.
    """
    source, jobs = (
        table(folder, "segments"),
        f"read_parquet({literal(folder / 'jobs.parquet')}, file_row_number = true)",
    )
    use = ", ".join(f"coalesce(s.{name}_gpu_s, 0) AS {name}" for name in USES)
    kinds = ", ".join(f"'{kind}'" for kind in KINDS)
    query = (
        f"SELECT j.file_row_number AS row, s.start_s, s.end_s, s.gpus, {use}, "
        f"CASE WHEN s.state = 'queued' THEN 0 ELSE list_position([{kinds}], s.end_reason) - 1 END AS kind "
        f"FROM {source} s JOIN {jobs} j USING (job_id) "
    )
    with database() as connection:
        total = int(connection.execute(f"SELECT count(*) FROM {source}").fetchall()[0][0])
        if most is not None and total > most:
            longest = "ORDER BY s.end_s - s.start_s DESC, s.job_id, s.segment"
            query += f"QUALIFY row_number() OVER ({longest}) <= {most:d} "
        found = connection.execute(f"{query} ORDER BY j.file_row_number, s.segment").fetchnumpy()
        nodes, node_of = _first_nodes(connection, folder, jobs)
    columns = {key: np.ma.getdata(values) for key, values in found.items()}
    called = job_names(folder)
    beside = dict[str, int]()
    for name, what in (shown.bars for shown in all_shown() if shown.bars is not None):
        more, rows_of, places = _of_feature(folder, name, len(called))
        if rows_of:
            columns = {key: np.concatenate((values, more[key])) for key, values in columns.items()}
            total += len(more["row"])
            called, node_of, beside[what] = called + rows_of, node_of + places, len(rows_of)
    said = {"names": called, "nodes": nodes, "node_of": node_of}
    text, rows = json.dumps(said, separators=(",", ":")), len(called)
    start_s = float(columns["start_s"].min()) if len(columns["row"]) else 0.0
    span_s = float(columns["end_s"].max()) - start_s if len(columns["row"]) else 0.0
    tick_s = span_s / TICKS if span_s > 0 else 1.0
    packed = pack(columns, start_s, tick_s)
    return Bars(len(columns["row"]), total, rows, start_s, tick_s, packed, squeeze(text.encode()), beside)


def _of_feature(folder: Path, name: str, first: int) -> tuple[Columns, list[str], list[int]]:
    """(columns of bars, names, node of the first GPUs) of a feature's table of the timeline, rows from `first` on.

    Its first two columns name a row: a text, and the number of one of its kind; it is in order of these and time.
    """
    if not (folder / FOLDER / f"{name}.parquet").is_file():
        return {}, [], []
    of = read(folder, name)
    owner, number = list(of)[:2]
    keys = list(zip(of[owner].tolist(), of[number].tolist(), strict=True))
    row_of = {key: first + k for k, key in enumerate(dict.fromkeys(keys))}
    node_of = dict(zip(reversed(keys), reversed(of["node"].tolist()), strict=True))  # where each was first
    count = len(keys)
    columns = {
        "row": np.array([row_of[key] for key in keys]),
        "start_s": of["start_s"],
        "end_s": of["end_s"],
        "gpus": of["gpus"],
        "kind": np.full(count, KINDS.index("beside")),
        **{u: np.zeros(count) for u in USES},
    }
    return columns, [f"{name} {number} {k + 1}" for name, k in row_of], [node_of[key] for key in row_of]


def _first_nodes(connection: duckdb.DuckDBPyConnection, folder: Path, jobs: str) -> tuple[list[str], list[int]]:
    """(names of nodes, node of the first GPU that each job held, -1 for a job that never ran)."""
    gpus, held = table(folder, "gpus"), table(folder, "segments")
    nodes = connection.execute(f"SELECT node, any_value(node_name) FROM {gpus} GROUP BY node ORDER BY node")
    names = {int(node): str(name) for node, name in nodes.fetchall()}
    found = connection.execute(
        f"SELECT coalesce(any_value(g.node), -1) AS node FROM {jobs} j LEFT JOIN "
        f"(SELECT job_id, arg_min(first_gpu, segment) AS gpu FROM {held} WHERE first_gpu >= 0 GROUP BY job_id) s "
        f"USING (job_id) LEFT JOIN {gpus} g ON g.gpu = s.gpu GROUP BY j.file_row_number ORDER BY j.file_row_number"
    ).fetchnumpy()["node"]
    place = {node: k for k, node in enumerate(names)}
    return list(names.values()), [place.get(node, -1) for node in np.ma.getdata(found).tolist()]


def pack(columns: Columns, start_s: float, tick_s: float) -> bytes:
    """Bars as gzip of byte planes, in this order for n bars.

    row (uint32), gap (int32), length (uint32), gpus (uint32), then bytes: kind, use, busy. `gap` is the start in
    ticks less the end of the bar before it when that is of the same row, else less the start of the first bar
    of the row before; nearly all gaps are small, which is what makes the bytes small. `row` is the
    difference to the bar before. `use` is the use that took most of the bar's GPU time, `busy` its busy
    share in 255ths. Each 32-bit column is stored as four planes, lowest bytes first.
    """
    row = np.asarray(columns["row"], dtype=np.int64)
    start = np.rint((np.asarray(columns["start_s"]) - start_s) / tick_s).astype(np.int64)
    end = np.rint((np.asarray(columns["end_s"]) - start_s) / tick_s).astype(np.int64)
    used = np.stack([np.asarray(columns[name], dtype=np.float64) for name in USES])
    all_used = used.sum(axis=0)
    busy = np.rint(255 * used[0] / np.where(all_used > 0, all_used, 1.0))
    words = (np.diff(row, prepend=0), start - _expected(row, start, end), end - start, columns["gpus"])
    parts = [_planes(np.asarray(word)) for word in words]
    for small in (columns["kind"], used.argmax(axis=0), busy):
        parts.append(np.asarray(small).astype(np.uint8).tobytes())
    return squeeze(b"".join(parts))


def _expected(row: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where a bar would start if it followed the bar before it in its row, or began as the row before did."""
    n = len(row)
    expected = np.zeros(n, dtype=np.int64)
    if n == 0:
        return expected
    first = np.flatnonzero(np.diff(row, prepend=-1))
    expected[1:] = end[:-1]
    expected[first] = np.concatenate([[0], start[first[:-1]]])
    return expected


def _planes(values: NDArray[Any]) -> bytes:
    """32-bit words as four planes of bytes: equal high bytes lie side by side."""
    words = values.astype(np.int64).astype(np.uint32).astype("<u4")
    return words.view(np.uint8).reshape(-1, 4).T.tobytes() if len(words) else b""


def squeeze(content: bytes) -> bytes:
    """gzip without a time stamp: equal content gives equal bytes."""
    return gzip.compress(content, 6, mtime=0)


def events(folder: Path, most: int = 5000) -> list[tuple[float, str, str, float]]:
    """(time in s, kind, subject, value) of faults and other events, earliest first, at most `most`.

    Raises InputError when the table is not there.
    """
    source = table(folder, "events")
    with database() as connection:
        found: Sequence[tuple[float, str, str, float]] = connection.execute(
            f"SELECT time_s, kind, subject, value FROM {source} ORDER BY time_s, kind, subject LIMIT {int(most)}"
        ).fetchall()
    return list(found)

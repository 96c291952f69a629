"""Operations of training steps as profilers record them: one row an operation of a rank.

Two forms: the per-operation tables of ByteDance's straggler study (CSV or Parquet; Lin et al. 2025, "Understanding
Stragglers in Large Model Training Using What-if Analysis"), and one file a rank of the PyTorch profiler (Kineto
JSON).
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from equipoise.base.regular import RECORD_BYTES, RefusedError, opened, read_unpacked
from equipoise.formats.text.errors import FormatError, shown

COLUMNS = ("step", "rank", "dp_rank", "stage", "optype", "start_ts", "duration", "seq_id")
_STAGE_WIDE = ("grads-reduce-scatter", "params-all-gather")
_REPLICA_WIDE = ("embedding-grads-all-reduce",)
_ALL = ("optimizer-clip-main-grad",)
_STEP = re.compile(r"ProfilerStep#(\d+)")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. lane: of the rank, where operations follow one another (a stream; 0 where there is one).

    kind: its class, e.g. `forward-compute`. group: those of one step with the same text end together (a
    collective, a send and its receive); "" where it depends on no other rank. Seconds; starts count from the step's
    first. like: operations with the same text should take equally long.
    """

    step: int
    rank: int
    lane: int
    kind: str
    start_s: float
    duration_s: float
    group: str = ""
    like: str = ""


OPERATIONS_MOST = 2_000_000
"""Rows of a table; a packed one of a few kilobytes can hold billions."""


def read_operations(paths: Sequence[Path]) -> list[Operation]:
    """The operations in the files, of one form. Raises FormatError, OSError."""
    if not paths:
        raise FormatError("no file of operations was given")
    single = [path for path in paths if ".json" in path.name.lower()]
    if single and len(single) < len(paths):
        raise FormatError(f"{paths[0]}: tables and profiler files cannot be read together")
    if single:
        ranks = [read_kineto(path, number) for number, path in enumerate(paths)]
        if twice := [rank for rank, count in Counter(ops[0].rank for ops in ranks).items() if count > 1]:
            raise FormatError(f"{paths[0]}: rank {twice[0]} is in two files")
        return _aligned(ranks)
    if len(paths) > 1:
        raise FormatError(f"{paths[1]}: one table holds all ranks; name one file")
    return read_table(paths[0])


# -- tables ----------------------------------------------------------------------------------------------------


def read_table(path: Path) -> list[Operation]:
    """A table with the columns `COLUMNS`: seconds, ranks and numbers from 0. Raises FormatError, OSError."""
    rows = _rows(path)
    stages = max((row["stage"] for row in rows), default=0) + 1
    found = []
    for row in rows:
        if not (row["duration"] >= 0 and row["start_ts"] >= 0):
            raise FormatError(f"{path}: step {row['step']}, rank {row['rank']}: a time below 0 or unknown")
        group = _group(row, stages)
        kind = row["optype"]
        found.append(Operation(row["step"], row["rank"], 0, kind, row["start_ts"], row["duration"], group, kind))
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    import duckdb

    from equipoise.base.database import database  # loads DuckDB

    quoted = "'" + str(path).replace("'", "''") + "'"
    read = f"read_parquet({quoted})" if path.suffix == ".parquet" else f"read_csv({quoted})"
    try:
        opened(path).close()
    except RefusedError as error:
        raise FormatError(f"{path}: {error}") from error
    types = {"optype": "VARCHAR", "start_ts": "DOUBLE", "duration": "DOUBLE"}
    columns = ", ".join(f"CAST({name} AS {types.get(name, 'BIGINT')})" for name in COLUMNS)
    try:
        with database() as db:
            some = f"(SELECT {columns} FROM {read} LIMIT {OPERATIONS_MOST + 1})"
            rows = db.execute(f"SELECT * FROM {some} ORDER BY ALL").fetchall()
    except duckdb.Error as error:
        why = " ".join(str(error).split())[:200]
        raise FormatError(f"{path}: needs the columns {', '.join(COLUMNS)}: {why}") from error
    if not rows:
        raise FormatError(f"{path}: holds no operations")
    if len(rows) > OPERATIONS_MOST:
        raise FormatError(f"{path}: more than {OPERATIONS_MOST} operations; replay fewer steps")
    if any(value is None for row in rows for value in row):
        raise FormatError(f"{path}: a value is missing in one of {', '.join(COLUMNS)}")
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def _group(row: Mapping[str, Any], stages: int) -> str:
    """Group of an operation: the k-th send of a stage meets the k-th receive of the next stage.

    An all-reduce of layer norms is among tensor-parallel ranks, which such a table does not hold.
    """
    kind, replica, stage, k = row["optype"], row["dp_rank"], row["stage"], row["seq_id"]
    if kind.endswith(("-send", "-recv")):
        way = kind.rpartition("-")[0]
        ahead = 1 if way.startswith("backward") else -1
        sender = stage if kind.endswith("-send") else (stage + ahead) % stages
        return f"{way} {replica} {sender} {k}"
    if kind in _STAGE_WIDE:
        return f"{kind} {stage} {k}"
    if kind in _REPLICA_WIDE:
        return f"{kind} {replica} {k}"
    return f"{kind} {k}" if kind in _ALL else ""


# -- one file a rank ------------------------------------------------------------------------------------------


def read_kineto(path: Path, number: int = 0) -> list[Operation]:
    """Kernels and copies of one rank, by step and stream; `number`: its rank where the file does not say.

    Collectives are grouped by their process group, name and order. Without `ProfilerStep` marks the whole file is
    one step. Raises FormatError, OSError.
    """
    content = _json(path)
    events = content.get("traceEvents")
    if not isinstance(events, list):
        raise FormatError(f"{path}: no 'traceEvents': not a PyTorch profiler file")
    rank = _rank(content, number)
    kernels = [event for event in events if _is_kernel(event)]
    if not kernels:
        raise FormatError(f"{path}: holds no GPU kernels (profile with ProfilerActivity.CUDA)")
    found: list[Operation] = []
    for step, low_us, high_us in _steps(events):
        inside = [e for e in kernels if low_us <= e["ts"] < high_us]
        found += _of_step(step, rank, sorted(inside, key=lambda e: (e["ts"], e.get("tid", 0))))
    if not found:
        raise FormatError(f"{path}: no kernel lies within a profiled step")
    return found


def _aligned(ranks: Sequence[Sequence[Operation]]) -> list[Operation]:
    """All operations with times shifted to the clock of the first rank.

    Members of a group end together, so the offset of two clocks is the median difference of their ends. Ranks that
    share no group with the first are not shifted.
    """
    reference = {(op.step, op.group): op.start_s + op.duration_s for op in ranks[0] if op.group}
    found = list(ranks[0])
    for operations in ranks[1:]:
        apart: dict[int, list[float]] = defaultdict(list)
        for op in operations:
            if (op.step, op.group) in reference:
                apart[op.step].append(reference[op.step, op.group] - op.start_s - op.duration_s)
        shift = {step: median(values) for step, values in apart.items()}
        found += [replace(op, start_s=op.start_s + shift.get(op.step, 0.0)) for op in operations]
    least: dict[int, float] = {}
    for op in found:
        least[op.step] = min(op.start_s, least.get(op.step, op.start_s))
    return [replace(op, start_s=op.start_s - least[op.step]) for op in found]


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_unpacked(path, RECORD_BYTES))
    except RefusedError as error:
        raise FormatError(f"{path}: {error}") from error
    except RecursionError as error:
        raise FormatError(f"{path}: is nested too deeply") from error
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise FormatError(f"{path}: a section with 'traceEvents' is needed")
    return content


def _rank(content: Mapping[str, Any], number: int) -> int:
    info = content.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else number


def _is_kernel(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and str(event.get("cat", "")).lower() in ("kernel", "gpu_memcpy", "gpu_memset")
        and isinstance(event.get("ts"), int | float)
        and isinstance(event.get("dur"), int | float)
    )


def _steps(events: Sequence[Any]) -> Iterator[tuple[int, float, float]]:
    """(number, begin, end) of each step in us; GPU work outlasts its mark, so a step ends where the next begins."""
    marks = sorted(
        (float(e["ts"]), int(m[1]))
        for e in events
        if isinstance(e, dict) and isinstance(e.get("ts"), int | float) and "gpu" not in str(e.get("cat"))
        if (m := _STEP.fullmatch(str(e.get("name", ""))))
    )
    if not marks:
        yield 0, float("-inf"), float("inf")
    for k, (begin, step) in enumerate(marks):
        yield step, begin, marks[k + 1][0] if k + 1 < len(marks) else float("inf")


def _of_step(step: int, rank: int, kernels: Sequence[Mapping[str, Any]]) -> Iterator[Operation]:
    first_us = min((float(e["ts"]) for e in kernels), default=0.0)
    seen: Counter[str] = Counter()
    for event in kernels:
        kind, group = _named(event)
        seen[group or kind] += 1
        like = f"{group or kind} {seen[group or kind]}"  # the k-th of its name does the same in every step
        group = like if group else ""
        lane = event.get("tid", 0)
        yield Operation(
            step,
            rank,
            lane if isinstance(lane, int) else 0,
            kind,
            (float(event["ts"]) - first_us) / 1e6,
            max(0.0, float(event["dur"])) / 1e6,
            group,
            like,
        )


def _named(event: Mapping[str, Any]) -> tuple[str, str]:
    """(class, group without its number): collectives by name and process group, kernels by their base name."""
    name = str(event.get("name", ""))
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if name.lower().startswith(("nccl", "rccl")) or "Collective name" in args:
        what = str(args.get("Collective name") or name.split("(")[0])
        ranks = str(args.get("Process Group Ranks") or args.get("Group size") or "")
        return f"collective {what}"[:80], f"{what} {ranks}"
    base = re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0].rpartition("::")[2].strip()
    return (base or shown(name))[:80], ""

"""A queue of waiting jobs sorted by a key, updated between decisions at a cost proportional to the changes.

Memory is immutable, so nothing is inserted in place. The queue is a long sorted run, rarely rebuilt, and a short one
for new jobs (copied, at most `SHORT` entries); heads advance past jobs that have left. An entry is valid only while
its job waits with exactly that key, so entries of started jobs expire, and a job requeued with another key leaves an
expired entry. The length of `Observation.waiting` shows whether a job was requeued (a crash, a preemption, a refused
start); it is then found by its queueing time, or else the queue is rebuilt from the observation. An estimate that
changes while its job waits takes effect when the job's old position is reached, or at the next rebuild.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.contract import Memory
from equipoise.policies.kernels.gangs import NO_ROWS, NO_VALUES, frozen
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.observation import Floats, Ints, JobState, Observation

SHORT = 512
_WASTE = 8  # entries passed over for each waiting job that make up for sorting anew
WAITING = int(JobState.WAITING)


class Keys(NamedTuple):
    """Source of a job's key: `value[row]`, or its level when there are thresholds."""

    state: NDArray[np.int8]
    value: Floats
    tie: Ints  # decides between equal keys; empty: the row does
    gpus: Ints
    queued_since_s: Floats
    waited_s: Floats
    thresholds: Floats  # GPU-seconds, ascending; none: the key is the value itself
    relief: float  # GPU-seconds that a second of waiting takes off, per GPU
    time_s: float


Columns = tuple[NDArray[np.int8], Floats, Ints, Ints, Floats, Floats, Floats, float, float]
Runs = tuple[Floats, Ints, int, Floats, Ints, int]  # (key, row, head) of the long run and of the short one


@jit_in_place
def level(attained: float, thresholds: Floats) -> int:
    """Number of thresholds (GPU-seconds) that attained GPU time has reached, with tolerance for rounding."""
    k = 0
    while k < thresholds.size and attained >= thresholds[k] * (1.0 - 1e-9) - 1e-6:
        k += 1
    return k


@jit_in_place
def waited(row: int, k: Keys) -> float:
    """Time (s) a job has spent waiting so far."""
    now_s = max(k.time_s - k.queued_since_s[row], 0.0) if k.state[row] == WAITING else 0.0
    return float(k.waited_s[row] + now_s)


@jit_in_place
def counted_gpu_s(row: int, k: Keys) -> float:
    """Attained GPU-seconds of a job less the deduction for waiting, in whole quanta of the first queue.

    Whole quanta, because a job that returns to the first queue must not leave it again at once.
    """
    quantum = k.thresholds[0]
    quanta = np.floor(k.relief * k.gpus[row] * waited(row, k) / quantum + 1e-9)
    attained = k.value[row]
    return (0.0 if np.isnan(attained) else attained) - (quanta * quantum if quanta > 0.0 else 0.0)


@jit_in_place
def key_of(row: int, k: Keys) -> float:
    """The key of a job now; an unknown one comes last."""
    if k.thresholds.size > 0:
        return 1.0 * level(counted_gpu_s(row, k), k.thresholds)
    value = k.value[row]
    return np.inf if np.isnan(value) else float(value)


@jit_in_place
def before(key_a: float, row_a: int, key_b: float, row_b: int, tie: Ints) -> bool:
    """Whether entry a comes before entry b: by key, then tie, then row."""
    if key_a != key_b:
        return key_a < key_b
    if tie.size > 0 and tie[row_a] != tie[row_b]:
        return bool(tie[row_a] < tie[row_b])
    return row_a < row_b


@jit_in_place
def _fill_keys(rows: Ints, columns: Columns, key: Floats) -> None:
    keys = Keys(*columns)
    for i in range(rows.size):
        key[i] = key_of(rows[i], keys)


def keys_of(rows: Ints, columns: Columns) -> Floats:
    """Keys of some jobs now."""
    key = np.empty(len(rows))
    _fill_keys(frozen(rows), columns, key)
    return key


@jit_in_place
def _holds(run_key: Floats, run_row: Ints, head: int, end: int, key: float, row: int, tie: Ints) -> bool:
    """Whether a sorted run contains exactly that entry in head..end-1."""
    low, high = head, end
    while low < high:
        middle = (low + high) // 2
        if before(run_key[middle], run_row[middle], key, row, tie):
            low = middle + 1
        else:
            high = middle
    return bool(low < end and run_row[low] == row and run_key[low] == key)


@jit_in_place
def _insert(key: Floats, row: Ints, held: int, new_key: float, new_row: int, tie: Ints) -> None:
    """Insert an entry into the first `held` entries of a sorted run."""
    at = held
    while at > 0 and before(new_key, new_row, key[at - 1], row[at - 1], tie):
        key[at], row[at] = key[at - 1], row[at - 1]
        at -= 1
    key[at], row[at] = new_key, new_row


@jit_in_place
def _is_in(rows: Ints, end: int, row: int) -> bool:
    """Whether a row is among the first `end`."""
    for i in range(end):  # noqa: SIM110 (the compiler knows no generators)
        if rows[i] == row:
            return True
    return False


@jit_in_place
def _add_newcomers(
    runs: Runs,
    seen: int,
    expected: int,
    last_s: float,
    again: Ints,
    waiting: Ints,
    columns: Columns,
    key: Floats,
    row: Ints,
) -> int:
    """Write the short run with the jobs that began to wait since to (key, row); returns its length.

    Examines rows from `seen` on and those in `again`; all waiting jobs only when these do not explain the number
    that wait. Returns -1 when that fails too, or space runs out.
    """
    keys = Keys(*columns)
    state, tie = keys.state, keys.tie
    old_key, old_row, old_head, new_key, new_row, new_head = runs
    held = new_row.size - new_head
    for i in range(held):
        key[i], row[i] = new_key[new_head + i], new_row[new_head + i]
    first, known = held, 0  # known: jobs that came back to a place that is still theirs
    for j in range(seen, state.size):
        if state[j] == WAITING:
            _insert(key, row, held, key_of(j, keys), j, tie)
            held += 1
    for i in range(again.size + waiting.size):
        if i >= again.size and waiting.size <= expected + held - first + known:
            break
        j = again[i] if i < again.size else waiting[i - again.size]
        late = i < again.size or keys.queued_since_s[j] >= last_s
        if not (late and 0 <= j < seen and state[j] == WAITING):
            continue
        k = key_of(j, keys)
        if _holds(old_key, old_row, old_head, old_row.size, k, j, tie) or _holds(key, row, 0, held, k, j, tie):
            if i < again.size and keys.queued_since_s[j] >= last_s and not _is_in(again, i, j):
                known += 1
            continue
        if held == row.size:
            return -1
        _insert(key, row, held, k, j, tie)
        held += 1
    return held if expected + held - first + known >= waiting.size else -1


@jit_in_place
def _first_rows(runs: Runs, columns: Columns, rows: Ints, found: Floats) -> tuple[int, int, int, bool, int]:
    """Write the first waiting jobs and their keys.

    Returns (count, the advanced heads, an entry is stale, entries skipped behind the first).
    """
    keys = Keys(*columns)
    old_key, old_row, old_head, new_key, new_row, new_head = runs
    tie, n, a, b = keys.tie, 0, old_head, new_head
    while n < rows.size and (a < old_row.size or b < new_row.size):
        old = b == new_row.size or (a < old_row.size and before(old_key[a], old_row[a], new_key[b], new_row[b], tie))
        key, row = (old_key[a], old_row[a]) if old else (new_key[b], new_row[b])
        if old:
            a += 1
        else:
            b += 1
        waits = keys.state[row] == WAITING
        now = key_of(row, keys) if waits else key
        if waits and now == key:
            if n == 0 or rows[n - 1] != row:
                rows[n], found[n] = row, key
                n += 1
            continue
        moved = waits and (keys.thresholds.size == 0 or now > key)
        if moved and not (
            _holds(old_key, old_row, old_head, old_row.size, now, row, tie)
            or _holds(new_key, new_row, new_head, new_row.size, now, row, tie)
        ):
            return n, old_head, new_head, True, 0
        if n == 0:
            old_head, new_head = a, b
    return n, old_head, new_head, False, a + b - old_head - new_head - n


def key_columns(
    o: Observation, value: Floats, tie: Ints, thresholds: Floats = NO_VALUES, relief: float = 0.0
) -> Columns:
    """The parts of `Keys`, in its order."""
    jobs = o.jobs
    return (
        jobs.state,
        value,
        tie,
        jobs.gpus_requested,
        jobs.queued_since_s,
        jobs.waited_s,
        thresholds,
        relief,
        o.time_s,
    )


def _runs(memory: Memory) -> Runs:
    return (
        frozen(memory["key"]),
        frozen(memory["row"]),
        memory["head"],
        frozen(memory["new_key"]),
        frozen(memory["new_row"]),
        memory["new_head"],
    )


def _rebuilt(o: Observation, columns: Columns) -> Memory:
    row, tie = o.waiting, Keys(*columns).tie
    key = keys_of(row, columns)
    order = np.lexsort((row, tie[row] if len(tie) else row, key))
    return {
        "key": frozen(key[order]),
        "row": frozen(row[order]),
        "head": 0,
        "new_key": NO_VALUES,
        "new_row": NO_ROWS,
        "new_head": 0,
        "jobs": len(o.jobs),
        "waiting": len(o.waiting),
        "time_s": o.time_s,
        "held": o.held,
        "wasted": 0,
    }


def queue_now(memory: Memory, o: Observation, columns: Columns, again: Ints = NO_ROWS) -> Memory:
    """The queue with all jobs that wait now; `again` are rows that may have been requeued or changed key."""
    if not memory or memory["jobs"] > len(o.jobs) or memory["time_s"] > o.time_s:
        return _rebuilt(o, columns)
    if len(memory["held"]) + len(o.held) and not np.array_equal(memory["held"], o.held):
        return _rebuilt(o, columns)
    if memory["jobs"] == len(o.jobs) and memory["waiting"] == len(o.waiting) and not len(again):
        return memory
    held, new = len(memory["new_row"]) - memory["new_head"], len(o.jobs) - memory["jobs"] + len(again)
    key, row = np.empty(held + new + 16), np.empty(held + new + 16, dtype=np.int64)
    held = -1
    if new <= SHORT:
        held = _add_newcomers(
            _runs(memory),
            memory["jobs"],
            memory["waiting"],
            memory["time_s"],
            again,
            frozen(o.waiting),
            columns,
            key,
            row,
        )
    if held < 0 or held > SHORT:
        return _rebuilt(o, columns)
    return {
        "key": memory["key"],
        "row": memory["row"],
        "head": memory["head"],
        "new_key": frozen(key[:held]),
        "new_row": frozen(row[:held]),
        "new_head": 0,
        "jobs": len(o.jobs),
        "waiting": len(o.waiting),
        "time_s": o.time_s,
        "held": o.held,
        "wasted": memory["wasted"],
    }


def first_rows(memory: Memory, o: Observation, columns: Columns, limit: int) -> tuple[Ints, Floats, Memory]:
    """The first `limit` waiting jobs (fewer only when fewer wait), their keys, and the advanced queue."""
    limit = min(limit, len(o.waiting))
    row, key = np.empty(limit, dtype=np.int64), np.empty(limit)
    n, head, new_head, stale, wasted = _first_rows(_runs(memory), columns, row, key)
    wasted += memory["wasted"]
    if stale or n < limit or wasted > _WASTE * (limit + len(o.waiting)):
        memory, wasted = _rebuilt(o, columns), 0
        n, head, new_head, stale, _ = _first_rows(_runs(memory), columns, row, key)
    if head != memory["head"] or new_head != memory["new_head"] or wasted != memory["wasted"]:
        memory = {**memory, "head": head, "new_head": new_head, "wasted": wasted}
    return (row if n == limit else row[:n]), (key if n == limit else key[:n]), memory

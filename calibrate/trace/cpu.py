"""The kinds of operation of a CPU: what `calibrate --device cpu` measures, and the rates that follow.

A CPU queues an operation and runs it before the next, so a step is the sum of its operations: each takes a fixed time
and a time by bytes, within and beyond the caches, and by FLOP. All of it is one non-negative least-squares fit to
pieces of steps and to whole steps, whose caches are as full as in training.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from scipy.optimize import nnls

from equipoise.calibrate.fit.robust import Floats
from equipoise.calibrate.measure.measure import Measure
from equipoise.calibrate.measure.timing import time_calls
from equipoise.calibrate.samples import SampleSet, Scalar
from equipoise.calibrate.trace.cases import CASES, STEPS
from equipoise.calibrate.trace.rates import HostRates, KindRates, OperationRates
from equipoise.calibrate.trace.record import record
from equipoise.calibrate.trace.work import READ, TracedOperation, kind_on_core

CACHE_BYTES = 1e6
"""Bytes that an operation moves before its rate is that of memory; about the second-level cache of a server's core."""
BY_FLOP = ("convolution", "attention", "product", "recurrent")
ROBUST = 0.1
"""Relative error from which on a measured case counts less."""
UNKNOWN = 0.3
"""Error where too few whole steps were measured to know it; assumed."""
FOLDS = 5
"""Parts of the whole steps; each is left out once, for the error of steps that no rate has seen."""
Work = Mapping[tuple[str, str], float]


def operation_measures() -> list[Measure]:
    """Measurements of all cases, on as many threads as PyTorch uses here (OMP_NUM_THREADS)."""
    threads = torch.get_num_threads()
    return [
        Measure(
            "operation",
            {"case": name, "size": " ".join(map(str, size)), "threads": threads},
            partial(_timed, partial(case, *size), threads),
            weight=0.5 if name in STEPS else 0.25,
        )
        for name, (case, sizes) in CASES.items()
        for size in sizes
    ]


def _timed(make: Callable[[], Callable[[], object]], threads: int, budget_s: float) -> Sequence[float]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        step = make()
        step()
        return time_calls(step, budget_s, clock=time.process_time if threads == 1 else time.perf_counter)
    finally:
        torch.set_num_threads(before)


def _work(operations: Sequence[TracedOperation]) -> Work:
    """Columns of the fit: calls, and bytes and FLOP by kind."""
    work: defaultdict[tuple[str, str], float] = defaultdict(float)
    for one in operations:
        if one.kind == READ:
            continue
        work["", one.during if one.kind else "view"] += 1.0
        if not one.kind:
            continue
        name = kind_on_core(one)
        work[name, "cached_bytes_per_s"] += min(one.bytes, CACHE_BYTES)
        work[name, "bytes_per_s"] += max(0.0, one.bytes - CACHE_BYTES)
        if one.flop and name.startswith(BY_FLOP):
            work[name, "flop_per_s"] += one.flop
    return {key: amount for key, amount in work.items() if amount}


def _fitted(rows: Sequence[tuple[Work, float]]) -> dict[tuple[str, str], float]:
    """Seconds per unit of each column: relative errors, single rows far off count little."""
    columns = sorted({key for work, _ in rows for key in work})
    seconds = np.array([s for _, s in rows])
    a = np.array([[work.get(key, 0.0) for key in columns] for work, _ in rows]) / seconds[:, None]
    scale: Floats = a.max(axis=0)
    weight, x = np.ones(len(rows)), np.zeros(len(columns))
    for _ in range(15):
        x, _ = nnls(a / scale * weight[:, None], weight)
        weight = 1.0 / np.sqrt(1.0 + ((a / scale @ x - 1.0) / ROBUST) ** 2)
    return dict(zip(columns, (float(v) for v in x / scale), strict=True))


def fit_operations(
    samples: SampleSet, name: str, tell: Callable[[int, int, str], None] = lambda done, total, case: None
) -> OperationRates:
    """Rates of the CPU that the samples of operations are of. Raises ValueError, one line, where they do not fit.

    tell: called with the number of cases that were traced, their total, and the next one.
    """
    measured: defaultdict[tuple[Scalar, ...], list[float]] = defaultdict(list)
    for one in samples.of("operation"):
        measured[one["case"], one["size"], one["threads"]].append(float(np.median(one.values)))
    (threads, *others) = sorted({key[-1] for key in measured}, key=str)
    if others:
        raise ValueError(f"operations on {threads} and on {others[0]} threads; fit one count at a time")
    pieces: list[tuple[Work, float]] = []
    steps: list[tuple[Work, float]] = []
    for done, ((case, size, _), seconds) in enumerate(measured.items()):
        tell(done, len(measured), f"{case} {size}")
        # Other work only ever makes a round slower.
        row = _work(traced(str(case), str(size))), float(np.quantile(seconds, 0.25))
        (steps if case in STEPS else pieces).append(row)
    errors = []
    for fold in range(FOLDS if len(steps) >= 2 * FOLDS else 0):
        seen = _fitted([*pieces, *(row for k, row in enumerate(steps) if k % FOLDS != fold)])
        errors += [abs(_seconds(work, seen) / s - 1.0) for work, s in steps[fold::FOLDS]]
    found = _fitted([*pieces, *steps])
    kinds: dict[str, dict[str, float]] = {}
    for (kind, what), value in found.items():
        if kind:
            kinds.setdefault(kind, {})
            if value:
                kinds[kind][what] = 1.0 / value
    rates = {kind: KindRates(cache_bytes=CACHE_BYTES, **of) for kind, of in kinds.items()}
    rates["elementwise"] = rates["elementwise_add"]
    host = HostRates(*(found.get(("", what), 0.0) for what in ("forward", "backward", "view")))
    error = float(np.quantile(errors, 0.9)) if errors else UNKNOWN
    origin = f"{len(pieces)} pieces of steps and {len(steps)} whole ones on {threads} threads"
    return OperationRates(name, 0.0, None, rates, host, error, origin, serial=True)


def traced(case: str, size: str) -> Sequence[TracedOperation]:
    """The operations of a case. Raises ValueError for a case that this version does not measure."""
    values = tuple(int(part) if part.isdigit() else part for part in size.split())
    make, sizes = CASES.get(case, (None, ()))
    if make is None or values not in sizes:
        raise ValueError(f"operation {case} {size}: not a case of this version; measure again")
    return record(lambda _: make(*values), 1, device="cpu").operations


def _seconds(work: Work, found: Mapping[tuple[str, str], float]) -> float:
    return sum(found.get(key, 0.0) * amount for key, amount in work.items())

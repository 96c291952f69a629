"""How evenly a cluster served users, accounts and queues: waiting, GPU time, Jain's index, finish-time ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = ("user", "account", "queue", "partition")
Columns = Mapping[str, NDArray[Any]]
USES = (
    "busy",
    "input_stall",
    "barrier_wait",
    "exposed_communication",
    "pipeline_bubble",
    "tensor_exchange",
    "restart",
    "lost_to_faults",
)


def finish_ratios(jobs: Columns) -> NDArray[np.float64]:
    """Time from arrival to completion over the part of it that the job held GPUs, by job; NaN: not completed."""
    span_s = jobs["completion_s"] - jobs["arrival_s"]
    ran_s = span_s - jobs["queueing_s"]
    return np.where(ran_s > 0.0, span_s / np.where(ran_s > 0.0, ran_s, 1.0), np.nan)


def jain(values: NDArray[np.float64]) -> float:
    """Jain's index, (sum x)^2 / (n sum x^2): 1 all alike, 1/n one has everything (Jain, Chiu, Hawe 1984)."""
    known = values[np.isfinite(values)]
    square = float((known**2).sum())
    return float(known.sum()) ** 2 / (len(known) * square) if square > 0.0 else math.nan


def groups(jobs: Columns, kind: str) -> list[dict[str, Any]]:
    """One row per user (account, ...): jobs, GPU time held (`service_gpu_s`), mean waiting, finish-time ratios.

    Groups in order of GPU time, most first; jobs that name none are left out.
    """
    column = jobs.get(kind)
    if column is None or column.dtype != object:
        return []
    codes: dict[str, int] = {}
    code = np.array([codes.setdefault(name, len(codes)) if name else -1 for name in column.tolist()], dtype=np.int64)
    told = np.flatnonzero(code >= 0)
    if not len(told) or not codes:
        return []
    code, n = code[told], len(codes)
    ratio = finish_ratios(jobs)[told]
    done = np.isfinite(ratio)
    held = np.sum([jobs[f"{use}_gpu_s"][told] for use in USES if f"{use}_gpu_s" in jobs], axis=0)
    count, completed = np.bincount(code, minlength=n), np.bincount(code[done], minlength=n)
    worst = np.full(n, -math.inf)
    np.maximum.at(worst, code[done], ratio[done])
    some = np.maximum(completed, 1)
    mean = np.bincount(code[done], weights=ratio[done], minlength=n) / some
    rows = {
        "jobs": count,
        "completed": completed,
        "service_gpu_s": np.bincount(code, weights=held, minlength=n),
        "queueing_mean_s": np.bincount(code, weights=jobs["queueing_s"][told], minlength=n) / np.maximum(count, 1),
        "finish_ratio_mean": np.where(completed, mean, np.nan),
        "finish_ratio_worst": np.where(completed, worst, np.nan),
    }
    names = list(codes)
    order = np.argsort(-rows["service_gpu_s"], kind="stable").tolist()
    return [{kind: names[k], **{key: values[k].item() for key, values in rows.items()}} for k in order if count[k]]


def fairness(jobs: Columns) -> dict[str, float]:
    """Jain's index over users, accounts and queues of 1 / (mean finish-time ratio), and the worst such mean of all.

    Without queues, partitions stand for them. NaN where jobs name none, or all name the same.
    """
    found: dict[str, float] = {}
    worst = math.nan
    for kind in ("user", "account", "queue"):
        rows = groups(jobs, kind) or (groups(jobs, "partition") if kind == "queue" else [])
        means = np.array([row["finish_ratio_mean"] for row in rows], dtype=np.float64)
        found[f"fairness_{kind}"] = jain(1.0 / means) if len(means) > 1 else math.nan
        if len(means) > 1 and np.isfinite(means).any():
            worst = float(np.fmax(worst, np.nanmax(means)))
    return {**found, "fairness_worst": worst}

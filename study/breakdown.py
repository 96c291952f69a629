"""Waiting and completion by group of jobs: by size, user or GPU model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.sim.record import gpus_class

BY = ("gpus", "ran_on", "class", "user", "account", "queue", "partition")
"""Possible groupings of jobs: columns of `jobs.parquet`, if present."""
METRICS = ("jobs", "completion_mean_s", "completion_p95_s", "queueing_mean_s", "queueing_p95_s")
MOST = 12
"""Most groups of one kind: those with most jobs are kept."""
Columns = Mapping[str, NDArray[Any]]


def breakdown(jobs: Columns, kinds: Sequence[str]) -> dict[str, float]:
    """Results of each group of each kind, as `METRIC[KIND GROUP]`; a metric without a completed job is NaN.

    Groups are sorted by size (`gpus`) or by number of jobs, most first; jobs without a group are left out.
    """
    return {key: value for kind in kinds for key, value in _of_kind(jobs, kind)}


def _of_kind(jobs: Columns, kind: str) -> Iterator[tuple[str, float]]:
    if kind not in jobs:
        return
    names = jobs[kind]
    groups, code, count = np.unique(names, return_inverse=True, return_counts=True)
    largest = np.argsort(-count, kind="stable")[:MOST]
    order = np.sort(largest) if kind == "gpus" else largest
    span_s = jobs["completion_s"] - jobs["arrival_s"]
    for k in order.tolist():
        if groups[k] == "":
            continue
        name = gpus_class(int(groups[k])) if kind == "gpus" else f"{kind} {groups[k]}"
        mine = code == k
        done, waited_s = span_s[mine & ~np.isnan(span_s)], jobs["queueing_s"][mine]
        values = (
            float(count[k]),
            *((float(done.mean()), float(np.percentile(done, 95))) if done.size else (np.nan, np.nan)),
            float(waited_s.mean()),
            float(np.percentile(waited_s, 95)),
        )
        yield from ((f"{metric}[{name}]", value) for metric, value in zip(METRICS, values, strict=True))

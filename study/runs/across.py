"""One comparison over several traces: the traces take the place of seeds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from equipoise.study.bounds import Bound
from equipoise.study.display import METRICS
from equipoise.study.runs.compare import Comparison, Result


def across(comparisons: Mapping[str, Comparison]) -> Comparison:
    """All traces together, by name: of each policy and trace the means over its seeds, paired by trace.

    Intervals and tests are over traces: they say what to expect of another trace of their kind, however many seeds
    each has had. A policy that failed on one of them is left out. Raises ValueError when none is left.
    """
    made = list(comparisons.values())
    policies = tuple(policy for policy in made[0].policies if all(policy in one.policies for one in made))
    if not policies:
        raise ValueError("no policy has run on every trace")
    results = tuple(
        _result(policy, number, name, one)
        for policy in policies
        for number, (name, one) in enumerate(comparisons.items())
    )
    bound = Bound(
        float(np.mean([one.bound.makespan_s for one in made])),
        float(np.mean([one.bound.completion_mean_s for one in made])),
        any(one.bound.noise_free for one in made),
    )
    failures = tuple(f"{name}: {line}" for name, one in comparisons.items() for line in one.failures)
    return Comparison(
        "all traces", policies, tuple(range(len(made))), results, bound, (), failures=failures, unit="trace",
    )  # fmt: skip


def _result(policy: str, number: int, name: str, one: Comparison) -> Result:
    runs = one.of(policy)
    groups = [key for key in runs[0].groups if all(key in run.groups for run in runs)]
    return Result(
        policy, number, name, {
            metric: float(np.mean([run.metrics[metric] for run in runs]))
            for metric in METRICS
            if all(metric in run.metrics for run in runs)
        },
        groups={key: float(np.mean([run.groups[key] for run in runs])) for key in groups},
    )  # fmt: skip

"""Racing of search points on the same seeds: early stopping, and the set of best points.

A point is run seed by seed and tested after three, five, eight, ... seeds. It is stopped when it is significantly
worse, in every objective, than one point that has been run on all seeds: paired by seed, on log ratios, one-
sided. With K looks each test has level 0.05 / K, so the probability that a point is stopped by another that is not
better is at most 5 % (Bonferroni, as in study.runs.until).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.study.display import MORE_IS_BETTER

FIRST_LOOK, GROWTH, LEVEL = 3, 1.5, 0.05
Values = Mapping[str, Sequence[float]]
"""Results by objective: one per seed, or infinite where the run failed."""


def looks(seeds: int) -> tuple[int, ...]:
    """Numbers of seeds after which a point is tested, ascending, without `seeds` itself."""
    found, at = list[int](), FIRST_LOOK
    while at < seeds:
        found.append(at)
        at = math.ceil(GROWTH * at)
    return tuple(found)


def log_ratios(metric: str, mine: Sequence[float], other: Sequence[float]) -> NDArray[np.float64]:
    """Logarithms of the ratios of pairs (n,), above 0: worse. Seeds that only one of both has are left out."""
    n = min(len(mine), len(other))
    x, y = np.asarray(mine[:n], dtype=np.float64), np.asarray(other[:n], dtype=np.float64)
    found: NDArray[np.float64] = np.log(np.maximum(x, 1e-300)) - np.log(np.maximum(y, 1e-300))
    return -found if metric in MORE_IS_BETTER else found


def p_better(metric: str, mine: Sequence[float], other: Sequence[float]) -> float:
    """One-sided p of a paired t-test (Student 1908) that `mine` is no better than `other`; NaN for one pair."""
    if len(mine) < 2:
        return math.nan
    if not (np.isfinite(mine).all() and np.isfinite(other).all()):
        return 1.0
    log = log_ratios(metric, mine, other)
    spread = float(log.std(ddof=1))
    if spread == 0.0:
        return 0.0 if log.mean() < 0 else 1.0
    from scipy.special import stdtr

    return float(stdtr(len(log) - 1, log.mean() / (spread / math.sqrt(len(log)))))


def surely_worse(mine: Values, whole: Sequence[Values], level: float) -> bool:
    """Whether some other point, run on all seeds, is significantly better than this one in every objective."""
    return any(all(p_better(m, theirs[m][: len(mine[m])], mine[m]) < level for m in mine) for theirs in whole)


def expected(mine: Values, best: Values) -> dict[str, float]:
    """Means over all seeds of `best` that a stopped point would have had at its ratio on its own seeds."""
    return {
        metric: float(np.mean(best[metric]))
        * math.exp(
            float(log_ratios(metric, mine[metric], best[metric]).mean()) * (-1 if metric in MORE_IS_BETTER else 1)
        )
        for metric in mine
    }


def front(means: Sequence[Mapping[str, float]]) -> list[int]:
    """Points that no other dominates (Pareto front); of equals the first."""
    costs = [[-m[k] if k in MORE_IS_BETTER else m[k] for k in m] for m in means]

    def beaten(k: int) -> bool:
        """Whether another point dominates this one."""
        return any(
            all(a <= b for a, b in zip(other, costs[k], strict=True)) and (other != costs[k] or j < k)
            for j, other in enumerate(costs)
            if j != k
        )

    return [k for k, cost in enumerate(costs) if all(map(math.isfinite, cost)) and not beaten(k)]

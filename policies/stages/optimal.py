"""Exact solvers of the stages' `optimal` modes. SciPy is loaded when first used."""

from __future__ import annotations

import numpy as np

from equipoise.policies.observation import Floats, Ints


def least_cost_transport(cost: Floats, supply: Floats, demand: Floats) -> Floats:
    """Flow (n, m) from `supply` (n,) that meets all `demand` (m,) at the least sum of cost * flow (n, m).

    The transportation problem (Hitchcock 1941), solved by HiGHS. Raises ValueError when the demand cannot
    be met.
    """
    from scipy.optimize import LinearConstraint, milp
    from scipy.sparse import csr_array, eye_array, kron

    n, m = cost.shape
    leaves = csr_array(kron(eye_array(n), np.ones((1, m))))
    arrives = csr_array(kron(np.ones((1, n)), eye_array(m)))
    # Supply may fall short of demand by rounding; that must not count as infeasible.
    enough = LinearConstraint(leaves, ub=supply * (1 + 1e-12))
    solved = milp(cost.ravel(), constraints=[enough, LinearConstraint(arrives, lb=demand)])
    if solved.x is None:
        raise ValueError(f"transportation problem: {solved.message}")
    return np.asarray(solved.x, dtype=np.float64).reshape(n, m)


def least_cost_assignment(cost: Floats) -> Ints:
    """Column of each row of `cost` (n, m), each column used at most once, at the least total cost.

    A row with only infinite costs is left out (-1). Linear assignment by SciPy.
    """
    from scipy.optimize import linear_sum_assignment

    n = len(cost)
    finite = cost[np.isfinite(cost)]
    forbidden = 1.0 + 2.0 * max(n, 1) * (float(np.abs(finite).max()) if len(finite) else 0.0)
    chosen = np.full(n, -1, dtype=np.int64)
    rows, columns = linear_sum_assignment(np.where(np.isfinite(cost), cost, forbidden))
    allowed = np.isfinite(cost[rows, columns])
    chosen[rows[allowed]] = columns[allowed]
    return chosen

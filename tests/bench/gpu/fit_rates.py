"""Fit the rates of operations to measured times: products by their shape, all other kinds by bytes and FLOP.

Each row says which operations ran, and the seconds that the GPU took for all of them together; rows of single
operations and of whole training steps count alike. The host's times follow from steps as a whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares, nnls

from equipoise.calibrate.fit.robust import Floats
from equipoise.calibrate.trace.rates import HostRates, KindRates, OperationRates, ProductRates
from equipoise.calibrate.trace.step import step_times
from equipoise.calibrate.trace.work import READ, TracedOperation

LAUNCH_S = 1.5e-6
"""From the end of a kernel to the begin of the next, at least; part of every operation."""
BY_FLOP = ("convolution", "attention", "product_fp32")
"""Kinds whose FLOP count beside their bytes."""
ROBUST = 0.15
"""Relative error from which on a row counts less."""


@dataclass(frozen=True)
class TimedWork:
    """Operations, and the seconds that the GPU took for them; label: what is left out together."""

    label: str
    operations: Sequence[TracedOperation]
    seconds: float
    weight: float = 1.0


def fit_products(shapes: Sequence[tuple[int, int, int, float]]) -> ProductRates:
    """Rates of products from (m, n, k, seconds); robust to single shapes."""
    start = np.array([6e14, 200.0, 0.3, 0.15, 2.5e12])

    def rates(p: Floats, /) -> ProductRates:
        return ProductRates(*(float(v) for v in start * np.exp(p)))

    def residuals(p: Floats, /) -> list[float]:
        law = rates(p)
        return [math.log((LAUNCH_S + law.seconds(1, m, n, k)) / seconds) for m, n, k, seconds in shapes]

    return rates(least_squares(residuals, np.zeros(5), loss="soft_l1", f_scale=0.1, bounds=(-3.0, 3.0)).x)


def fit_kinds(rows: Sequence[TimedWork], product: ProductRates) -> dict[str, KindRates]:
    """Rates by kind: non-negative least squares of relative errors, reweighted so that single rows count little."""
    sums, rest, sure = [], [], []
    for row in rows:
        work: dict[tuple[str, bool], float] = defaultdict(float)
        known = 0.0
        for one in row.operations:
            if not one.kind or one.kind == READ:
                continue
            known += LAUNCH_S
            if one.kind == "product" and one.product is not None:
                known += product.seconds(*one.product)
                continue
            work[one.kind, False] += one.bytes
            if one.kind.startswith(BY_FLOP):
                work[one.kind, True] += one.flop
        if work and row.seconds - known > 0.2 * row.seconds:
            sums.append(work)
            rest.append(row.seconds - known)
            sure.append(row.weight * min(1.0, (row.seconds / 3e-4) ** 0.25) / row.seconds)
    columns = sorted({key for work in sums for key in work})
    scale = np.array([1e-12] * len(columns))
    a = np.array([[work.get(key, 0.0) for key in columns] for work in sums]) * scale * np.array(sure)[:, None]
    y = np.array(rest) * np.array(sure)
    weight = np.ones(len(y))
    x = np.zeros(len(columns))
    for _ in range(15):
        x, _ = nnls(a * weight[:, None], y * weight)
        weight = 1.0 / np.sqrt(1.0 + ((a @ x - y) / y / ROBUST) ** 2)
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (kind, flop), value in zip(columns, x, strict=True):
        if value > 0.0:
            found[kind]["flop_per_s" if flop else "bytes_per_s"] = 1e12 / float(value)
    return {kind: KindRates(**rates) for kind, rates in sorted(found.items())}


HOST_PRIOR = np.array([4.5e-5, 2.5e-5, 3e-6])
"""Seconds for an operation of the forward pass through Python, of the backward pass, and for a view."""
PRIOR_WEIGHT = 0.1
"""Weight of a factor e away from HOST_PRIOR, in relative errors of steps; few steps are bound by the host."""


def fit_host(steps: Sequence[TimedWork], rates: OperationRates) -> HostRates:
    """The host's times from seconds of whole steps, those that it bounds telling most."""

    def residuals(p: Floats, /) -> list[float]:
        with_host = replace(rates, host=HostRates(*(float(v) for v in HOST_PRIOR * np.exp(p))))
        found = [math.log(step_times(row.operations, with_host).step_s / row.seconds) for row in steps]
        return [*found, *(PRIOR_WEIGHT * v for v in p)]

    found = least_squares(
        residuals, np.zeros(3), loss="soft_l1", f_scale=0.1, bounds=(-2.0, 2.0), diff_step=[0.02, 0.02, 0.02]
    )
    return HostRates(*(float(v) for v in HOST_PRIOR * np.exp(found.x)))

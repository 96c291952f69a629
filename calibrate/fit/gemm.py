"""How long a matrix product of any shape takes, from some that were timed.

A smooth roofline carries the shape's physics and extrapolates; what it misses (tiles, waves, the library's
choice of kernel) is read off the nearest timed shapes. Sources: Williams et al. 2009 (roofline), Isaev et al.
2023 (Calculon, efficiency by size), Shepard 1968 (inverse-distance weights).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares
from scipy.spatial import cKDTree

from equipoise.calibrate.fit.robust import MAD_TO_SIGMA, Estimate, Floats, checked, estimate
from equipoise.policies.physics import overlapped_each

CORRECTION_REACH_OCTAVES = 2.0
"""At this distance (in octaves of m, n, k) one timed shape's residual counts as much as no correction."""

NEIGHBOURS = 8


@dataclass(frozen=True)
class Roofline:
    """time = launch_s + ((flop / flop_per_s)^p + (bytes / bytes_per_s)^p)^(1/p)."""

    launch_s: float
    flop_per_s: float
    bytes_per_s: float
    sharpness: float  # p: 1 adds the two times, large takes the longer

    def time_s(self, flop: Floats, moved_bytes: Floats) -> Floats:
        """Seconds for each amount of work and traffic."""
        x, y = flop / self.flop_per_s, moved_bytes / self.bytes_per_s
        return self.launch_s + overlapped_each(x, y, self.sharpness)


@dataclass(frozen=True)
class GemmFit:
    """Predicts matrix products (m, k) x (k, n); see `predict` and `efficiency`.

    `residual_cov` is the spread of measured times over those predicted from the other shapes.
    """

    roofline: Roofline
    flop_per_s: Estimate
    bytes_per_element: float
    peak_flop_per_s: float
    shapes: Floats  # (points, 3): log2 of m, n, k
    residual: Floats  # (points,): log of measured over roofline time
    residual_cov: float
    n: int

    def predict(self, m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike) -> Floats:
        """Seconds for each shape."""
        shape = _shape(m, n, k)
        base = self.roofline.time_s(flop(shape), traffic(shape, self.bytes_per_element))
        return base * np.exp(_correction(self.shapes, self.residual, np.log2(shape)))

    def efficiency(self, m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike) -> Floats:
        """Share of `peak_flop_per_s` that each shape reaches."""
        return flop(_shape(m, n, k)) / (self.peak_flop_per_s * self.predict(m, n, k))


def flop(shape: Floats) -> Floats:
    """2 m n k for rows (m, n, k)."""
    return np.asarray(2.0 * shape.prod(axis=1))


def traffic(shape: Floats, bytes_per_element: float) -> Floats:
    """Least bytes moved: each operand read once, the result written once."""
    m, n, k = shape.T
    return np.asarray(bytes_per_element * (m * k + k * n + m * n))


def _shape(m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike) -> Floats:
    columns = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (m, n, k)))
    shape = np.stack([np.atleast_1d(column) for column in columns], axis=1)
    if (shape < 1).any():
        raise ValueError("matrix sizes must be at least 1")
    return shape


def fit_gemm_efficiency(
    m: npt.ArrayLike,
    n: npt.ArrayLike,
    k: npt.ArrayLike,
    times_s: npt.ArrayLike,
    peak_flop_per_s: float,
    bytes_per_element: float = 2.0,
) -> GemmFit:
    """Fit times (s) of matrix products (m, k) x (k, n), all of one precision on one device.

    m, n, k: integers >= 1, shape (samples,). `peak_flop_per_s` is what efficiencies are relative to, usually
    the data sheet's. Repeated shapes count by their median. Raises ValueError for fewer than 6 distinct
    shapes.
    """
    shape = _shape(m, n, k)
    _, times = checked(shape[:, 0], times_s, 6, "gemm fit")
    distinct, index = np.unique(shape, axis=0, return_inverse=True)
    index = index.reshape(-1)
    if len(distinct) < 6:
        raise ValueError(f"gemm fit: needs at least 6 distinct shapes, got {len(distinct)}")
    order = np.argsort(index, kind="stable")
    groups = np.split(times[order], np.flatnonzero(np.diff(index[order])) + 1)
    levels = np.array([np.median(group) for group in groups])
    work, moved = flop(distinct), traffic(distinct, bytes_per_element)
    roofline = _fit_roofline(work, moved, levels)
    residual = np.log(levels / roofline.time_s(work, moved))
    shapes = np.log2(distinct)
    rate = _highest_rate(work / levels)
    others = np.exp(residual - _correction(shapes, residual, shapes, skip_nearest=True))
    cov = float(MAD_TO_SIGMA * np.median(np.abs(others - 1.0)))
    return GemmFit(roofline, rate, bytes_per_element, peak_flop_per_s, shapes, residual, cov, len(times))


def _highest_rate(rates: Floats) -> Estimate:
    """The rate of large products: the 99th percentile over shapes, which one lucky sample cannot move."""
    drawn = np.random.default_rng(0).integers(0, len(rates), size=(200, len(rates)))
    value = float(np.quantile(rates, 0.99))
    return estimate(value, np.quantile(rates[drawn], 0.99, axis=1), len(rates))


def _fit_roofline(work: Floats, moved: Floats, times: Floats) -> Roofline:
    """Least robust (soft L1) error of log time over the four constants."""
    start = np.log([times.min() / 2, (work / times).max(), (moved / times).max(), 1.0])

    def unpack(theta: Floats) -> Roofline:
        """The roofline of logarithms of its constants."""
        launch, rate, bandwidth, above_one = np.exp(np.clip(theta, -80.0, 80.0))
        return Roofline(float(launch), float(rate), float(bandwidth), float(1.0 + min(above_one, 20.0)))

    def error(theta: Floats) -> Floats:
        """Log of predicted over measured times."""
        return np.asarray(np.log(unpack(theta).time_s(work, moved) / times))

    return unpack(least_squares(error, start, loss="soft_l1", f_scale=0.1, max_nfev=200).x)


def _correction(shapes: Floats, residual: Floats, wanted: Floats, skip_nearest: bool = False) -> Floats:
    """Inverse-square-distance mean of the nearest residuals, drawn to 0 far from any timed shape.

    `skip_nearest` leaves out the nearest one: the shape itself, where each timed shape is predicted from the
    others.
    """
    count = min(NEIGHBOURS + skip_nearest, len(residual))
    found = cKDTree(shapes).query(wanted, k=count)
    distance, index = (np.asarray(part).reshape(len(wanted), count)[:, int(skip_nearest) :] for part in found)
    weight = 1.0 / (distance**2 + 1e-6)
    prior = 1.0 / CORRECTION_REACH_OCTAVES**2
    return np.asarray((weight * residual[index]).sum(1) / (weight.sum(1) + prior))


def leave_shapes_out(
    m: npt.ArrayLike,
    n: npt.ArrayLike,
    k: npt.ArrayLike,
    times_s: npt.ArrayLike,
    peak_flop_per_s: float,
    bytes_per_element: float = 2.0,
    folds: int = 10,
    seed: int = 0,
) -> Floats:
    """Relative errors |predicted / measured - 1| of shapes that the fit had not seen, by k-fold.

    All samples of a shape are held out together. Shape of the result: (samples,).
    """
    shape = _shape(m, n, k)
    times = np.asarray(times_s, dtype=np.float64)
    _, index = np.unique(shape, axis=0, return_inverse=True)
    index = index.reshape(-1)
    fold = np.random.default_rng(seed).permutation(index.max() + 1)[index] % folds
    errors = np.empty(len(times))
    for held in (fold == f for f in range(folds)):
        if not held.any():
            continue
        seen, unseen = shape[~held].T, shape[held].T
        fit = fit_gemm_efficiency(seen[0], seen[1], seen[2], times[~held], peak_flop_per_s, bytes_per_element)
        errors[held] = np.abs(fit.predict(unseen[0], unseen[1], unseen[2]) / times[held] - 1.0)
    return errors

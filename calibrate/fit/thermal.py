"""Heat: a first-order thermal model and the clock lost above the throttle temperature.

dT/dt = (power * R - (T - T_ambient)) / tau (lumped capacitance, Incropera & DeWitt, chapter 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.calibrate.fit.robust import Estimate, Floats, bisquare_weights, checked, estimate

THERMAL_REPLICATES = 200
TAU_GRID = 64


@dataclass(frozen=True, slots=True)
class ThermalFit:
    """Constants of the heat model; `residual_c` is the typical size of what is left, in degrees."""

    resistance_c_per_w: Estimate
    tau_s: Estimate
    ambient_c: Estimate
    start_c: float
    residual_c: float
    n: int

    def predict(self, time_s: npt.ArrayLike, power_w: npt.ArrayLike) -> Floats:
        """Temperature (C) at each time of a power series that starts at `start_c`."""
        columns = _responses(np.asarray(time_s, float), np.asarray(power_w, float), self.tau_s.value)
        return np.asarray(columns @ [self.start_c, self.ambient_c.value, self.resistance_c_per_w.value])


def fit_thermal(
    time_s: npt.ArrayLike, power_w: npt.ArrayLike, temperature_c: npt.ArrayLike, seed: int = 0
) -> ThermalFit:
    """Thermal resistance (C/W), time constant (s) and ambient temperature (C) from a load and its aftermath.

    time_s increasing, shape (samples,); power_w holds between a reading and the next. For a given tau the
    model is linear in the rest, so only tau is searched (variable projection, Golub & Pereyra 1973). Raises
    ValueError when the power hardly varies: resistance and ambient cannot then be told apart.
    """
    time, power = checked(time_s, np.maximum(np.asarray(power_w, float), 1e-9), 8, "thermal fit")
    _, temperature = checked(time_s, temperature_c, 8, "thermal fit")
    if (np.diff(time) <= 0).any():
        raise ValueError("thermal fit: times must increase")
    if power.max() - power.min() < 0.1 * power.max():
        raise ValueError("thermal fit: needs phases of different power, e.g. idle and full load")
    grid = _tau_grid(time)
    designs = [_responses(time, power, tau) for tau in grid]
    weights = np.ones(len(time))
    for _ in range(6):
        tau, constants = _solve(grid, designs, temperature[:, None], weights)
        prediction = _responses(time, power, float(tau[0])) @ constants[0]
        weights = bisquare_weights(temperature - prediction)
    noise = _block_noise(temperature - prediction, weights > 0, seed)
    taus, draws = _solve(grid, designs, prediction[:, None] + noise, np.ones(len(time)))
    values = ((float(constants[0][2]), draws[:, 2]), (float(tau[0]), taus), (float(constants[0][1]), draws[:, 1]))
    resistance, tau_s, ambient = (estimate(value, spread, len(time)) for value, spread in values)
    left = float(1.4826 * np.median(np.abs(temperature - prediction)))
    return ThermalFit(resistance, tau_s, ambient, float(constants[0][0]), left, len(time))


def _tau_grid(time: Floats) -> Floats:
    """Time constants that a series of this length and resolution can show, evenly spaced in the logarithm."""
    return np.geomspace(float(np.median(np.diff(time))), 3.0 * float(time[-1] - time[0]), TAU_GRID)


def _responses(time: Floats, power: Floats, tau: float) -> Floats:
    """Temperature per start temperature, per ambient, and per unit of resistance; shape (samples, 3).

    Exact for power that is constant between two readings.
    """
    start, ambient, heat = 1.0, 0.0, 0.0
    rows = [(start, ambient, heat)]
    for decay, watts in zip(np.exp(-np.diff(time) / tau).tolist(), power.tolist(), strict=False):
        start *= decay
        ambient = ambient * decay + (1.0 - decay)
        heat = heat * decay + (1.0 - decay) * watts
        rows.append((start, ambient, heat))
    return np.array(rows)


def _solve(grid: Floats, designs: list[Floats], series: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Best tau and (start, ambient, resistance) for each column of `series`; shapes (columns,), (columns, 3).

    The squared error over the grid is refined by a parabola through its least three values.
    """
    root = np.sqrt(weights)[:, None]
    factors = [np.linalg.qr(design * root) for design in designs]
    explained = [q.T @ (series * root) for q, _ in factors]
    errors = ((root * series) ** 2).sum(0) - np.array([(part**2).sum(0) for part in explained])
    best = np.clip(errors.argmin(0), 1, len(grid) - 2)
    column = np.arange(series.shape[1])
    left, middle, right = errors[best - 1, column], errors[best, column], errors[best + 1, column]
    bend = left - 2.0 * middle + right
    shift = np.clip(np.where(bend > 0, 0.5 * (left - right) / np.where(bend > 0, bend, 1.0), 0.0), -1.0, 1.0)
    step = np.log(grid[1] / grid[0])
    solutions = [np.linalg.solve(r, part) for (_, r), part in zip(factors, explained, strict=True)]
    stacked = np.array(solutions).transpose(0, 2, 1)  # (grid, columns, 3)
    side = np.where(shift < 0, best - 1, best + 1)
    part = np.abs(shift)[:, None]
    constants = stacked[best, column] * (1.0 - part) + stacked[side, column] * part
    return grid[best] * np.exp(shift * step), constants


def _block_noise(residuals: Floats, usable: npt.NDArray[np.bool_], seed: int) -> Floats:
    """(samples, THERMAL_REPLICATES) residuals from a moving-block bootstrap (Kunsch 1989).

    Blocks, because a thermometer's errors persist from one reading to the next. Outliers are left out, since
    the estimate gives them no weight.
    """
    kept = residuals[usable]
    n, wanted = len(kept), len(residuals)
    block = max(1, round(n ** (1 / 3)))
    inflated = (kept - kept.mean()) * np.sqrt(n / max(n - 4, 1))
    blocks = -(-wanted // block)
    starts = np.random.default_rng(seed).integers(0, n - block + 1, size=(THERMAL_REPLICATES, blocks))
    index = (starts[:, :, None] + np.arange(block)).reshape(THERMAL_REPLICATES, -1)[:, :wanted]
    return np.asarray(inflated[index].T)


@dataclass(frozen=True, slots=True)
class ThrottleFit:
    """Share of the clock lost per degree above `throttle_c`."""

    throttle_c: float
    slope_per_c: Estimate
    n: int


def fit_throttle(
    temperature_c: npt.ArrayLike, clock_share: npt.ArrayLike, throttle_c: float, seed: int = 0
) -> ThrottleFit | None:
    """Slope of the clock above the throttle temperature (given by the driver), or None: it never got there.

    clock_share: SM clock over its value when cool, in (0, 1].
    """
    temperature, share = checked(temperature_c, clock_share, 2, "throttle fit")
    hot = temperature > throttle_c
    if int(hot.sum()) < 5:
        return None
    excess, lost = temperature[hot] - throttle_c, 1.0 - share[hot]
    drawn = np.random.default_rng(seed).integers(0, len(excess), size=(200, len(excess)))

    def slope(x: Floats, y: Floats) -> Floats:
        """Share of the clock lost per degree, along the last axis; at least 0."""
        return np.asarray(np.maximum((x * y).sum(-1) / (x * x).sum(-1), 0.0))

    value = float(slope(excess, lost))
    spread = slope(excess[drawn], lost[drawn])
    return ThrottleFit(throttle_c, estimate(value, spread, len(excess)), len(excess))

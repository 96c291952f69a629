"""Fit of simulator inputs to a live record: speeds with their changes, fixed cost, exchange, noise.

The simulator's step law is compute = (alpha + beta * samples) * slowness (see `sim.job.cost`). With
c = alpha / beta, a rank's busy time divided by (c + samples) is its time per sample, which is constant but for
changes of its speed and for noise. Levels are means in which an outlier counts at most as twice the usual value, and
a first exchange, which sets up connections, as at most five times. Noise is that of the middle half, because
outliers are not log-normal noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.ndimage import median_filter
from scipy.optimize import brentq, minimize_scalar

from equipoise.policies.observation import Floats
from equipoise.sim.scenario.tree import InputError
from equipoise.study.twin.record import LiveRun

LEAST_ROUNDS = 4  # a change of speed lasts at least as long
LEAST_JUMP = 0.03  # relative; a smaller change of speed is noise
_HICCUP = 2.0  # times the median; what is above counts as that
_LONG_EXCHANGE = 5.0  # likewise; exchanges vary more
_SMOOTHED = 5  # rounds; shorter hiccups are no change of speed
_DEEPEST = 5  # halvings of a record: at most 2**5 speeds of a rank
_WORTH = 0.01  # mean relative error; a fixed cost that explains less than this more is not believed
_LEAST_EXCHANGE = 1e-3  # times the usual one
_VOLUME_BYTES = 1e6  # of an exchange; one run cannot tell latency from bandwidth
_ROUNDING = 1e-6  # relative; a smaller change of speed is none
_DRAWS = 16  # of the noise of a whole record
_MAD_TO_SIGMA = 1.4826  # of a normal distribution


@dataclass(frozen=True)
class FittedSpeeds:
    """Times per sample (s) of one rank: `per_sample_s[k]` from round `begin[k]` on."""

    begin: tuple[int, ...]
    per_sample_s: tuple[float, ...]


@dataclass(frozen=True)
class MeasuredSpeeds:
    """Fitted measurements: seconds per sample by rank and round, and values common to all ranks."""

    speeds: tuple[FittedSpeeds, ...]
    trace: tuple[FittedSpeeds, ...]  # the same per window: speed of the machine
    fixed_samples: float  # fixed part of a step, in samples
    update_samples: float  # of these, the part that the run itself measured as the update
    exchange_s: float  # one exchange, beyond what backward hides
    exchanges: tuple[tuple[int, float], ...]  # (first round, factor) of windows in which it took a different time
    step_cov: float  # coefficient of variation of a local step

    @property
    def reference_s(self) -> float:
        """Seconds per sample of the fastest rank at the start."""
        return min(rank.per_sample_s[0] for rank in self.speeds)

    def fastest_s(self, rank: int) -> float:
        """Seconds per sample of a rank when it was fastest; events can only slow it down."""
        return min(self.speeds[rank].per_sample_s[0], *self.trace[rank].per_sample_s)

    @property
    def least_exchange(self) -> float:
        """The shortest exchange over the usual one, at most 1."""
        return min([1.0, *(factor for _, factor in self.exchanges)])

    def changes(self) -> list[tuple[int, int, float]]:
        """(round, rank, times slower than when it was fastest) of every change of speed in the trace, by round."""
        found = []
        for rank, (speeds, traced) in enumerate(zip(self.speeds, self.trace, strict=True)):
            before_s = fastest_s = self.fastest_s(rank)
            pairs = [(0, speeds.per_sample_s[0])] * (0 not in traced.begin)
            for begin, now_s in [*pairs, *zip(traced.begin, traced.per_sample_s, strict=True)]:
                if abs(now_s - before_s) > _ROUNDING * before_s:
                    found.append((begin, rank, now_s / fastest_s))
                before_s = now_s
        return sorted(found)


def change_points(values: Floats) -> list[int]:
    """Positions where the level of `values` (logarithms) changes by more than `LEAST_JUMP` and the noise.

    Binary segmentation by least squares (Vostrikova 1981) on running medians, which keep the place of a jump;
    then the smallest jumps are removed until all others are large enough. NaN is skipped.
    """
    where = np.flatnonzero(np.isfinite(values))
    if len(where) < 2 * LEAST_ROUNDS:
        return []
    known = values[where]
    # Differences of neighbours tell the noise whatever the levels do.
    spread = _MAD_TO_SIGMA * np.median(np.abs(np.diff(known))) / math.sqrt(2.0)
    least = max(math.log1p(LEAST_JUMP), 3.0 * float(spread))
    cuts = _splits(median_filter(known, size=_SMOOTHED, mode="nearest"), _DEEPEST)
    while cuts:
        parts = np.split(known, cuts)
        jumps = np.abs(np.diff([np.median(part) for part in parts]))
        if jumps.min() > least:
            break
        del cuts[int(np.argmin(jumps))]
    return [int(where[cut]) for cut in cuts]


def _splits(x: Floats, depth: int) -> list[int]:
    """Every place at which binary segmentation would split, to a depth."""
    if depth == 0 or len(x) < 2 * LEAST_ROUNDS:
        return []
    at = _best_split(x)
    return [*_splits(x[:at], depth - 1), at, *(at + k for k in _splits(x[at:], depth - 1))]


def _best_split(x: Floats) -> int:
    """The split into two parts, each at least `LEAST_ROUNDS` long, of least squared deviation."""
    total = np.cumsum(x)
    count = np.arange(LEAST_ROUNDS, len(x) - LEAST_ROUNDS + 1)
    first, rest = total[count - 1], total[-1] - total[count - 1]
    # The squares themselves are the same for every split; what is left is the means' part.
    explained = first**2 / count + rest**2 / (len(x) - count)
    return int(count[int(np.argmax(explained))])


def measure(run: LiveRun) -> MeasuredSpeeds:
    """Fit a run. Raises InputError when too little was recorded."""
    busy_s = run.stall_s + run.compute_s + run.update_s
    works = (run.samples > 0) & np.isfinite(busy_s) & (busy_s > 0)
    if (works.sum(axis=1) < LEAST_ROUNDS).any():
        raise InputError([f"{run.folder}: every rank must have trained {LEAST_ROUNDS} rounds, for a twin"])
    busy_s = np.where(works, busy_s, np.nan)
    samples = np.where(works, run.samples, np.nan)
    grows_s = np.maximum(busy_s - run.update_s, np.finfo(np.float64).tiny)
    fixed = float(np.nanmedian(run.update_s * samples / grows_s))
    fixed, begins = _fixed_samples(busy_s, samples, fixed)
    decided = {point.rounds for point in run.points}
    begins = [_where_told(begin, row, decided) for begin, row in zip(begins, busy_s, strict=True)]
    per_sample_s = busy_s / (fixed + samples)
    levels = [_levels(row, begin) for row, begin in zip(per_sample_s, begins, strict=True)]
    windows = [sorted({*begin, *(k for k in decided if k < run.rounds)}) for begin in begins]
    traced = [_levels(row, window, math.inf) for row, window in zip(per_sample_s, windows, strict=True)]
    spread = [_spread(level, window, run.rounds) for level, window in zip(traced, windows, strict=True)]
    ratio = per_sample_s / np.stack(spread)
    return MeasuredSpeeds(
        _speeds(begins, levels),
        _speeds(windows, traced),
        fixed,
        min(fixed, float(np.nanmedian(run.update_s / per_sample_s))),
        _exchange_s(run),
        _exchanges(run, sorted({0, *(k for k in decided if k < run.rounds)})),
        _apart_cov(float(_MAD_TO_SIGMA * np.nanmedian(np.abs(ratio - np.nanmedian(ratio)))), busy_s, busy_s / ratio),
    )


def _speeds(begins: Sequence[Sequence[int]], levels: Sequence[Floats]) -> tuple[FittedSpeeds, ...]:
    return tuple(FittedSpeeds(tuple(b), tuple(v.tolist())) for b, v in zip(begins, levels, strict=True))


def _apart_cov(step_cov: float, busy_s: Floats, expected_s: Floats) -> float:
    """The variation of steps that is independent per rank: the part that delays the slowest one.

    A common delay of all ranks (a busy machine) also varies their steps, but causes no waiting between ranks.
    """
    whole = np.isfinite(busy_s).all(axis=0)
    if len(busy_s) == 1 or not whole.any():
        return step_cov
    expected_s = expected_s[:, whole]
    # Hiccups count as in the levels, which are means.
    later = float(np.minimum(busy_s[:, whole], _HICCUP * expected_s).max(axis=0).mean())
    noise = np.random.default_rng(0).standard_normal((_DRAWS, *expected_s.shape))

    def beyond(cov: float) -> float:
        """Excess delay of the slowest rank with this independent noise over the measured one."""
        factor = np.exp(cov * noise - 0.5 * cov**2)
        return float((expected_s * factor).max(axis=1).mean()) - later

    if beyond(step_cov) <= 0.0:
        return step_cov
    return 0.0 if beyond(0.0) >= 0.0 else float(brentq(beyond, 0.0, step_cov, xtol=1e-5))


def _where_told(begins: list[int], values: Floats, decided: set[int]) -> list[int]:
    """Changes of speed after untimed rounds, moved to the decision within those rounds, else to the first of them."""
    found = []
    for begin in begins:
        first = begin
        while first > 0 and not math.isfinite(values[first - 1]):
            first -= 1
        found.append(next((k for k in range(first, begin + 1) if k in decided), first))
    return found


def _levels(per_sample_s: Floats, begins: list[int], most: float = _HICCUP) -> Floats:
    """Level of each stretch; one without any value takes the level before it. `most`: as for `_usual`."""
    levels: list[float] = []
    for begin, end in zip(begins, [*begins[1:], len(per_sample_s)], strict=True):
        part = per_sample_s[begin:end]
        levels.append(_usual(part, most) if np.isfinite(part).any() else levels[-1])
    return np.array(levels)


def _usual(values: Floats, most: float) -> float:
    """Mean of values capped at `most` times their median."""
    return float(np.nanmean(np.minimum(values, most * np.nanmedian(values))))


def _spread(levels: Floats, begins: list[int], rounds: int) -> Floats:
    """The level of every round."""
    return np.repeat(levels, np.diff([*begins, rounds]))


def _fixed_samples(busy_s: Floats, samples: Floats, guess: float) -> tuple[float, list[list[int]]]:
    """c = alpha / beta and the changes of speed: of least deviation and fewest changes.

    `guess`, the measured fixed part of a step, is kept unless another c is clearly better: with equal shares
    throughout, the two parts cannot be separated.
    """
    largest = float(np.nanmax(samples))
    candidates = [guess, *(largest * 2.0**k for k in range(-4, 3))]
    changes = [_changes(busy_s, samples, fixed) for fixed in candidates]
    costs = [
        _deviation(busy_s, samples, begins, fixed) + _WORTH * sum(len(b) - 1 for b in begins)
        for fixed, begins in zip(candidates, changes, strict=True)
    ]
    best = int(np.argmin(costs))
    if costs[best] > min(costs[0] - _WORTH, 0.5 * costs[0]):  # in noise, some c is always a little better
        return guess, changes[0]
    near = minimize_scalar(
        lambda fixed: _deviation(busy_s, samples, changes[best], fixed),
        bounds=(candidates[best] / 2.0, candidates[best] * 2.0),
        method="bounded",
    )
    return float(near.x), _changes(busy_s, samples, float(near.x))


def _changes(busy_s: Floats, samples: Floats, fixed: float) -> list[list[int]]:
    """Rounds at which each rank's speeds begin."""
    return [[0, *change_points(row)] for row in np.log(busy_s / (fixed + samples))]


def _deviation(busy_s: Floats, samples: Floats, begins: list[list[int]], fixed: float) -> float:
    """Mean relative deviation of all rounds from the levels."""
    rows = busy_s / (fixed + samples)
    levels = [_spread(_levels(row, begin), begin, len(row)) for row, begin in zip(rows, begins, strict=True)]
    return float(np.nanmean(np.abs(np.log(rows / np.stack(levels)))))


def _exchange_s(run: LiveRun) -> float:
    """The usual exchange time: the last rank to arrive does not wait, so the shortest tail is the exchange."""
    if run.ranks == 1 or not run.exchanged.any():
        return 0.0
    shortest = run.tail_s[:, run.exchanged].min(axis=0)
    return _usual(shortest, _LONG_EXCHANGE) if np.isfinite(shortest).any() else 0.0


def _exchanges(run: LiveRun, begins: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """Factor of the exchanges of each window over the usual time, where it changes."""
    usual_s, found, before = _exchange_s(run), [], 1.0
    if usual_s <= 0.0 or run.manifest.get("sample_bytes"):  # data that moves would be as slow
        return ()
    for begin, end in zip(begins, [*begins[1:], run.rounds], strict=True):
        tails_s = run.tail_s[:, begin:end][:, run.exchanged[begin:end]].min(axis=0)
        took_s = float(np.nanmean(tails_s)) if np.isfinite(tails_s).any() else usual_s
        factor = max(took_s / usual_s, _LEAST_EXCHANGE)
        if abs(factor - before) > _ROUNDING:
            found.append((begin, factor))
            before = factor
    return tuple(found)


def scenario_data(
    run: LiveRun, measured: MeasuredSpeeds, events: list[dict[str, Any]], policy: list[Any]
) -> dict[str, Any]:
    """The run as a scenario, as plain data in SI units. `events`: planned changes of speed.

    One node per rank; the exchange is pure bandwidth, which may change, because one size on one number of ranks
    cannot tell it from latency. An unknown drift is set so high that no interval above 1 pays off, as a policy acts
    without it; a measured one is the last that the policy observed.
    """
    manifest, n = run.manifest, run.ranks
    beta_s = measured.reference_s
    drift, target = manifest.get("drift"), manifest.get("samples_target")
    exchanged = n > 1 and measured.exchange_s > 0.0
    nic = {"nic": _VOLUME_BYTES / (measured.exchange_s * measured.least_exchange)} if exchanged else {}
    nodes = [
        {"name": f"rank-{member}", "speed": beta_s / measured.fastest_s(rank), **nic}
        for rank, member in enumerate(run.members)
    ]
    phi = _last_noise_scale(run)
    model = {
        "fixed_time": measured.fixed_samples * beta_s,
        "sample_time": beta_s,
        "gradient": _VOLUME_BYTES * n / (2 * (n - 1)) if exchanged else 0.0,  # a ring sends 2 (n - 1) / n of it
        "exchange": {"alpha": 0.0, "rate": 1e24},
        "drift": 1.0 if drift is None else _last_drift(run) if drift == "measured" else drift,
        **({"noise_scale": phi} if phi > 0 else {}),
    }
    trained = int(run.samples.sum())
    job = {
        "name": "training",
        "gpus": n,
        "model": "live",
        "samples": max(trained, int(target or 0)),
        "global_batch": manifest["global_batch"],
        "micro_batch": manifest["micro_batch"],
        **{name: manifest[name] for name in ("batch_max", "learning_rate") if manifest.get(name)},
        "data": {
            "samples": manifest["samples"],
            "sample_size": float(manifest.get("sample_bytes") or 0.0),
            "shards": manifest["shards"],
        },
        "checkpoint": {"interval": "never"},
    }
    longest_s = 1e3 * float(np.nansum(run.round_s)) + 1e6
    return {
        "schema_version": 1,
        "name": f"twin of {run.folder.name}",
        "why": f"A live run of {n} ranks and {run.rounds} rounds, from its own record.",
        "cluster": {"nodes": nodes},
        "workload": {"models": {"live": model}, "jobs": [job]},
        "policy": policy,
        "decide": {
            "every_steps": manifest["decide_every"],
            "first_steps": run.windows,
            "delay_rounds": manifest.get("delay_rounds", 0),
            "every": longest_s,
            "on_events": False,
        },
        "noise": {"step_cov": measured.step_cov},
        "faults": {"events": events},
    }


def _last_drift(run: LiveRun) -> float:
    """The last drift that the policy observed; 1 without a decision."""
    seen = [float(p.entry.decision.observation.jobs.drift[0]) for p in run.points]
    return seen[-1] if seen else 1.0


def _last_noise_scale(run: LiveRun) -> float:
    """The last gradient noise scale that the policy observed (samples); -1 if unknown."""
    seen = [float(p.entry.decision.observation.jobs.noise_scale[0]) for p in run.points]
    known = [value for value in seen if np.isfinite(value)]
    return known[-1] if known else -1.0

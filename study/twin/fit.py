"""Fit of simulator inputs to a live record: speeds with their changes, fixed cost, exchange, noise.

The simulator's step law is compute = (alpha + beta * samples) * slowness (see `sim.job.cost`). With
c = alpha / beta, a rank's busy time divided by (c + samples) is its time per sample: the simulation takes it as it was
in each round (the speed of the machine is an input), the text shows its levels. Levels are means in which an outlier
counts at most as twice the usual value, and a first exchange, which sets up connections, as at most five times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.ndimage import median_filter
from scipy.optimize import minimize_scalar

from equipoise.policies.observation import Floats, Ints
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
_MOST_PIECES = 20_000  # of speeds, over all ranks; of a longer record some rounds share their mean speed
_MAD_TO_SIGMA = 1.4826  # of a normal distribution


@dataclass(frozen=True)
class FittedSpeeds:
    """Times per sample (s) of one rank: `per_sample_s[k]` from round `begin[k]` on."""

    begin: tuple[int, ...]
    per_sample_s: tuple[float, ...]


@dataclass(frozen=True)
class MeasuredSpeeds:
    """Fitted measurements: seconds per sample by rank and round, and values common to all ranks.

    A piece is the rounds from one exchange to the next. Its speeds are inputs of the simulation, and the mean exchange
    of the pieces between two decisions.
    """

    speeds: tuple[FittedSpeeds, ...]
    pieces: Ints  # first round of each
    per_sample_s: Floats  # (ranks, pieces)
    exchanges_s: Floats  # (pieces,)
    fixed_samples: float  # fixed part of a step, in samples
    update_samples: float  # of these, the part that the run itself measured as the update
    exchange_s: float  # the usual exchange, beyond what backward hides
    step_cov: float  # coefficient of variation of a local step

    @property
    def reference_s(self) -> float:
        """Seconds per sample of the fastest rank at the start."""
        return min(rank.per_sample_s[0] for rank in self.speeds)

    @property
    def fastest_s(self) -> Floats:
        """Seconds per sample of each rank when it was fastest; events can only slow it down."""
        return np.asarray(self.per_sample_s.min(axis=1))


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
    spread = [_spread(level, begin, run.rounds) for level, begin in zip(levels, begins, strict=True)]
    ratio = per_sample_s / np.stack(spread)
    pieces, usual_s = _pieces(run), _exchange_s(run)
    windows = _windows(run, pieces)
    each_s = np.stack([_means(row, pieces) for row in per_sample_s])
    usual_each_s = np.stack(
        [_spread(_filled(_means(row, pieces[windows])), windows, len(pieces)) for row in per_sample_s]
    )
    return MeasuredSpeeds(
        _speeds(begins, levels),
        pieces,
        np.where(np.isfinite(each_s), each_s, usual_each_s),  # pieces that a pause delayed: as the others
        _exchanges_s(run, pieces, windows, usual_s),
        fixed,
        min(fixed, float(np.nanmedian(run.update_s / per_sample_s))),
        usual_s,
        float(_MAD_TO_SIGMA * np.nanmedian(np.abs(ratio - np.nanmedian(ratio)))),
    )


def _pieces(run: LiveRun) -> Ints:
    """The first round of each piece."""
    begins = np.concatenate(([0], np.flatnonzero(run.exchanged[:-1]) + 1))
    return begins[:: max(1, -(-len(begins) * run.ranks // _MOST_PIECES))]


def _windows(run: LiveRun, pieces: Ints) -> Ints:
    """The first piece after each decision."""
    decided = np.searchsorted(pieces, [0, *(point.rounds for point in run.points)])
    return np.unique(decided[decided < len(pieces)])


def _means(values: Floats, begins: Ints) -> Floats:
    """Mean of the known values of each stretch; NaN without any."""
    known = np.isfinite(values)
    count = np.add.reduceat(known.astype(np.float64), begins)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.add.reduceat(np.where(known, values, 0.0), begins) / count)


def _filled(means: Floats) -> Floats:
    """Unknown values replaced by the next known one, or else the last."""
    some = np.flatnonzero(np.isfinite(means))
    return means[some[np.minimum(np.searchsorted(some, np.arange(len(means))), len(some) - 1)]]


def _speeds(begins: Sequence[Sequence[int]], levels: Sequence[Floats]) -> tuple[FittedSpeeds, ...]:
    return tuple(FittedSpeeds(tuple(b), tuple(v.tolist())) for b, v in zip(begins, levels, strict=True))


def _where_told(begins: list[int], values: Floats, decided: set[int]) -> list[int]:
    """Changes of speed after untimed rounds, moved to the decision within those rounds, else to the first of them."""
    found = []
    for begin in begins:
        first = begin
        while first > 0 and not math.isfinite(values[first - 1]):
            first -= 1
        found.append(next((k for k in range(first, begin + 1) if k in decided), first))
    return found


def _levels(per_sample_s: Floats, begins: list[int]) -> Floats:
    """Level of each stretch; one without any value takes the level before it."""
    levels: list[float] = []
    for begin, end in zip(begins, [*begins[1:], len(per_sample_s)], strict=True):
        part = per_sample_s[begin:end]
        levels.append(_usual(part, _HICCUP) if np.isfinite(part).any() else levels[-1])
    return np.array(levels)


def _usual(values: Floats, most: float) -> float:
    """Mean of values capped at `most` times their median."""
    return float(np.nanmean(np.minimum(values, most * np.nanmedian(values))))


def _spread(levels: Floats, begins: Sequence[int] | Ints, rounds: int) -> Floats:
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


def _exchanges_s(run: LiveRun, pieces: Ints, windows: Ints, usual_s: float) -> Floats:
    """Duration of the exchange of each piece: the mean between two decisions."""
    if usual_s <= 0.0 or run.manifest.get("sample_bytes"):  # data that moves would be as slow
        return np.full(len(pieces), usual_s)
    took_s = _filled(_means(np.where(run.exchanged, run.tail_s.min(axis=0), np.nan), pieces[windows]))
    return _spread(np.maximum(took_s, _LEAST_EXCHANGE * usual_s), windows, len(pieces))


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
    nic = {"nic": _VOLUME_BYTES / float(measured.exchanges_s.min())} if exchanged else {}
    nodes = [
        {"name": f"rank-{member}", "speed": beta_s / fastest_s, **nic}
        for member, fastest_s in zip(run.members, measured.fastest_s.tolist(), strict=True)
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

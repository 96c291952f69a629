"""Jobs drawn from a description: the same for every policy on one seed, whatever else is drawn."""

from __future__ import annotations

import math

import numpy as np

from equipoise.formats.text.columns import Text
from equipoise.sim.randomness import stream
from equipoise.sim.scenario.generate import Arrivals, Durations, Generate, JobClass
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.trace import Floats, Ints, Trace, make_trace

DAY_S = 86400.0
_MEAN_OVER = 100_000
"""Quantiles over which the mean of a cut distribution is taken."""
_STEP_S = 900.0
"""Between points of a diurnal rate; linear in between."""
JOBS_MOST = 5_000_000


def generate(spec: Generate, gpus: int, seed: int) -> Trace:
    """The jobs of a seed, on a cluster of `gpus` GPUs. Raises InputError for more jobs than memory holds."""
    drawn = [_class(spec, kind, gpus, seed) for kind in spec.classes]
    arrival_s, duration_s, wanted = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    count = [len(part[0]) for part in drawn]
    if not sum(count):
        raise InputError([f"workload.generate: no job arrives within {spec.length:g} s on seed {seed}"])
    of = np.repeat(np.arange(len(count), dtype=np.int32), count)
    names = [f"{kind.name}-{k}" for kind, n in zip(spec.classes, count, strict=True) for k in range(n)]
    kinds = Text(of, tuple(kind.name for kind in spec.classes))
    priority = np.array([kind.priority for kind in spec.classes])[of]
    return make_trace(
        np.arange(len(of)),
        arrival_s,
        wanted,
        duration_s,
        priority=priority,
        name=names,
        columns={"class": kinds},
        source="workload.generate",
        told=False,
    )


def rate_per_s(kind: JobClass, gpus: int) -> float:
    """Jobs of a class in a second, before `scale`."""
    if kind.rate is not None:
        return kind.rate
    assert kind.load is not None
    counts, weights = np.array(list(kind.gpus)), np.array(list(kind.gpus.values()))
    mean_gpu_s = float(np.average(counts, weights=weights)) * mean_s(kind.duration)
    return kind.load * gpus / mean_gpu_s


def mean_s(spec: Durations) -> float:
    """Mean duration, cuts included (s)."""
    return float(quantile_s(spec, (np.arange(_MEAN_OVER) + 0.5) / _MEAN_OVER).mean())


def quantile_s(spec: Durations, share: Floats) -> Floats:
    """Durations (n,) below which these shares (n,) of the jobs lie, in s."""
    from scipy.special import ndtri  # not free to load

    if spec.kind == "lognormal":
        assert spec.median is not None
        assert spec.sigma is not None
        drawn = spec.median * np.exp(spec.sigma * ndtri(share))
    elif spec.kind == "pareto":
        assert spec.alpha is not None
        drawn = spec.low * (1.0 - share) ** (-1.0 / spec.alpha)
    else:
        values = np.log(spec.values)
        drawn = np.exp(np.interp(share, np.linspace(0.0, 1.0, len(values)), values))
    cut: Floats = np.clip(drawn, spec.low, spec.high)
    return cut


def _class(spec: Generate, kind: JobClass, gpus: int, seed: int) -> tuple[Floats, Floats, Ints]:
    """(arrival, duration, GPUs) of each job of a class."""
    expected = spec.scale * rate_per_s(kind, gpus) * spec.length
    if expected > JOBS_MOST:
        raise InputError([f"workload.generate: {expected:.0f} jobs of class {kind.name!r}; at most {JOBS_MOST}"])
    random = {what: stream(seed, f"generate:{kind.name}:{what}") for what in ("arrivals", "durations", "gpus")}
    arrival_s = _arrivals(kind.arrivals, expected, spec.length, random["arrivals"])
    n = len(arrival_s)
    share = random["durations"].random(n)
    counts, weights = np.array(list(kind.gpus), dtype=np.int64), np.array(list(kind.gpus.values()))
    wanted = random["gpus"].choice(counts, size=n, p=weights / weights.sum())
    return arrival_s, quantile_s(kind.duration, share), wanted


def _arrivals(spec: Arrivals, expected: float, length_s: float, random: np.random.Generator) -> Floats:
    """Arrivals (n,), not in order. A Poisson process of rate 1 on the expected number that has come so far.

    Cinlar 1975, Introduction to stochastic processes, section 4.7: the inverse of the cumulative rate makes of it
    the process of that rate.
    """
    bursts = expected / spec.burst
    many = math.ceil(bursts + 10.0 * math.sqrt(bursts) + 20.0)
    unit = np.cumsum(random.exponential(1.0, many))
    time_s, cumulative = _cumulative(spec, length_s)
    came = unit[unit < bursts] / max(bursts, 1e-300)
    begin_s = np.interp(came * cumulative[-1], cumulative, time_s)
    if spec.burst == 1.0:
        return np.asarray(begin_s)
    sizes = random.geometric(1.0 / spec.burst, len(begin_s))
    gap_s = random.exponential(spec.within, int(sizes.sum()))
    first = np.cumsum(sizes) - sizes
    gap_s[first] = 0.0
    passed_s = np.cumsum(gap_s)
    late_s = passed_s - np.repeat(passed_s[first], sizes)
    arrival_s: Floats = np.repeat(begin_s, sizes) + late_s
    return arrival_s


def _cumulative(spec: Arrivals, length_s: float) -> tuple[Floats, Floats]:
    """(times, relative number of arrivals until then), ascending; linear in between."""
    if spec.kind == "poisson":
        return np.array([0.0, length_s]), np.array([0.0, 1.0])
    edges = np.append(np.arange(0.0, length_s, step_s(spec)), length_s)
    rate = relative_rate(spec, (edges[:-1] + edges[1:]) / 2.0)
    cumulative = np.concatenate(([0.0], np.cumsum(rate * np.diff(edges))))
    return edges, cumulative


def relative_rate(spec: Arrivals, time_s: Floats) -> Floats:
    """The rate at these times (n,), relative to others of the same kind; not of steps shorter than `step_s`."""
    if spec.kind == "poisson":
        return np.ones(len(time_s))
    if spec.kind == "profile":
        return np.array(spec.weights)[(time_s // spec.every).astype(np.int64) % len(spec.weights)]
    rate = 1.0 + spec.swing * np.cos(2.0 * math.pi * (time_s - spec.peak) / DAY_S)
    told: Floats = rate * np.where((time_s // DAY_S) % 7 >= 5, spec.weekend, 1.0)
    return told


def step_s(spec: Arrivals) -> float:
    """Time for which the rate of a kind of arrivals is taken as constant (s)."""
    return math.inf if spec.kind == "poisson" else spec.every if spec.kind == "profile" else _STEP_S

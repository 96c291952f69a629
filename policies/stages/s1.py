"""S1, data flow: monitor gradients, measure the imbalance between data and speed, move data.

S111 gradient monitoring, S112 imbalance index and demands, S113 flow and moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.contract import Kind, Memory, Plan, Stage
from equipoise.policies.kernels.dataflow import (
    LinkArrays,
    common_ratio,
    gradient_health,
    greedy_flow,
    holt,
    imbalance,
    last_needed_first,
    link,
    match_sorted,
    pick_shards,
)
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.stages.frozen import check_frozen
from equipoise.policies.stages.groups import (
    WorkersByJob,
    append_moves,
    bytes_to_fetch,
    carry,
    free_shards,
    group_workers,
    links_of,
    or_else,
    room_bytes,
)
from equipoise.policies.stages.optimal import least_cost_transport
from equipoise.policies.stages.power import at_full_clock
from equipoise.policies.stages.unhealthy import NO_ROWS, leave_out, suspect_gpus

_STATE = {
    "samples": 0,  # last positive samples per step
    "rate_level": np.nan,
    "rate_trend": 0.0,
    "rate_variance": 0.0,  # of the relative forecast error
    "rate_windows": 0,
    "norm_level": np.nan,  # of its logarithm: norms fall, and spread, by factors
    "norm_trend": 0.0,
    "norm_variance": 0.0,  # of its logarithm's forecast error
    "norm_windows": 0,
    "sick_windows": 0,  # windows in a row with an unsound gradient
    "load": np.nan,  # smoothed load of its node by other jobs
}
_WARM_WINDOWS = 5  # windows before a norm's usual deviation is known
_SIGMA_LEAST = 0.05  # of the logarithm; a norm this far off is never suspicious, however steady it was
_MEMORY_GAIN = 0.2  # of the exponential variance
_MEMORY_WINDOWS = 2.0 / _MEMORY_GAIN - 1.0  # as many in a plain mean are as exact (Brown 1963)
_EXPONENT_MOST = 50.0  # so far off is never reached
_FLOW_LEAST = 1e-9  # samples; a smaller flow is rounding

Flow = tuple[Ints, Ints, Floats]  # donors, receivers, samples


@dataclass(frozen=True)
class DataFlow(Stage):
    """Moves unstarted shards from workers that own too much for their speed to those that own too little.

    `formula` follows the source method; its formula images are lost, so the forms are ours, with each variable
    acting in the direction that the text states: C = forecast gradient rate x samples per gradient; tau = data share
    * (1 + L) / C; I = max(tau) / mean(tau) - 1; F(T) = sum of T_ij * C_j / (1 + L_j) * b_ij / b_max, filled greedily
    by weight; the deficit of a worker is relative to its part of C / (1 + L). `optimal` solves the transportation
    problem that meets all deficits with the least transfer time. L is the smoothed share of the node's interface
    used by other jobs; their use of the node's cores and of the GPU is already in the measured rates, and so in C. A
    worker gives and gets only what both its capacity and its part of the batch split call for, since workers that
    step together read what is assigned to them. Equal workers with equal data change nothing. An unsound gradient
    has weight 0, and its GPU is suspect once that persists.
    """

    name: ClassVar[str] = "s1"
    kind: ClassVar[Kind] = "data"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers", "shards", "paths"})

    mode: str = "formula"
    threshold: float = 0.1  # acts above this imbalance, stops below half of it
    smoothing: float = 0.5  # Holt's gain of the level, and that of the load
    trend_smoothing: float = 0.2  # Holt's gain of the trend
    sigmas: float = 5.0  # a gradient norm that deviates this far is not sound
    sick_windows: int = 3  # windows with unsound gradients in a row, after which a GPU is suspect...
    suspect_s: float = 3600.0  # ... for this time, unless repaired earlier; then it may be used again
    frozen: str = ""  # a sub-step to replace by a simple default: see `policies.stages.frozen`

    def __post_init__(self) -> None:
        if self.mode not in ("formula", "optimal"):
            raise ValueError(f"mode: {self.mode!r} is not one of formula, optimal")
        check_frozen("s1", self.frozen)
        if not (self.threshold > 0 and self.sigmas > 0 and self.sick_windows > 0 and self.suspect_s > 0):
            raise ValueError("threshold, sigmas, sick_windows and suspect_s must be above 0")
        if not (0 < self.smoothing <= 1 and 0 <= self.trend_smoothing <= 1):
            raise ValueError("smoothing must be in (0, 1], trend_smoothing in [0, 1]")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Add moves of shards and gradient weights to `plan`; memory holds the smoothed gradients.

        Memory also holds the jobs being balanced, and the suspect GPUs.
        """
        observation = at_full_clock(observation)
        if not len(observation.workers):
            plan, suspects = suspect_gpus(observation, plan, memory, NO_ROWS, self.suspect_s)
            return plan.because("s1", "no training job runs"), {**memory, **suspects}
        groups = group_workers(observation)
        forecast, healthy, state = self._watch_gradients(observation, groups, memory)
        if self.frozen == "S111":
            rate = observation.workers.gradient_rate_per_s
            forecast, healthy = np.where(rate > 0, rate, forecast), np.ones(len(rate), dtype=np.bool_)
        loaded = self._smooth_load(observation.workers.load_ratio, state["load"])
        plan = leave_out(observation, groups, plan, healthy)
        state["sick_windows"] = np.where(healthy, 0, state["sick_windows"])
        sick = np.flatnonzero(state["sick_windows"] >= self.sick_windows)
        plan, suspects = suspect_gpus(observation, plan, memory, sick, self.suspect_s)
        after: dict[str, Any] = {**state, **suspects}
        values: dict[str, Any] = {
            "s111_unhealthy": int((~healthy).sum()),
            "s111_suspect": len(suspects["suspect_gpu"]),
            "s111_forecast_gradients_per_s": float(np.nansum(forecast)),
            "s111_rate_cov": float(np.sqrt(state["rate_variance"].max())),
        }
        # A job on a node that is down, or with a worker that was not seen, is left alone: NaN goes through.
        seen = (observation.workers.gradient_rate_per_s > 0) | (observation.workers.samples_per_step == 0)
        capacity = np.minimum(forecast * state["samples"], observation.workers.input_samples_per_s)
        capacity = np.where(groups.spread(groups.sound) & seen, capacity, np.nan)
        if self.frozen == "S112":
            capacity = np.where(np.isnan(capacity), np.nan, 1.0)
        owned, free = observation.workers.samples_owned, capacity / loaded
        index, surplus = imbalance(groups.first, free, owned, healthy)
        if (loaded > 1.0).any():  # loaded workers lack less; no worker gives more because of it
            lacking, surplus = surplus, imbalance(groups.first, capacity, owned, healthy)[1]
            surplus = np.where(surplus < 0.0, np.maximum(surplus, np.minimum(lacking, 0.0)), surplus)
        # Workers of a job step together, so what is read is what is dealt: no data goes where it is not.
        dealt = np.maximum(state["samples"], 1e-3)
        _, unread = imbalance(groups.first, np.where(np.isnan(capacity), np.nan, dealt), owned, healthy)
        surplus = np.where(surplus * unread > 0.0, np.sign(surplus) * np.minimum(abs(surplus), abs(unread)), 0.0)
        after["acting"], acting = self._acting(groups, index, memory)
        values |= _imbalance_values(observation, groups, index, surplus)
        values["s112_acting"] = int(acting.sum())
        if not acting.any() or self.frozen == "S113":
            return plan.because("s1", _why_not(index, len(observation.shards) > 0), **values, s113_moves=0), after
        links = links_of(observation)
        solve = _least_time_flow if self.mode == "optimal" else _weighted_flow
        flow, value = solve(groups, acting, surplus, free, observation.workers.node, links)
        rows, owners, refused = _carry_out(observation, plan, flow, capacity, links)
        values |= {
            "s113_flow_samples": float(flow[2].sum()),
            "s113_flow_value": float(value),
            "s113_moves": len(rows),
            "s113_bytes": float(observation.shards.bytes[rows].sum()),
            "s113_not_worth_it": int(refused),
        }
        text = f"moves {len(rows)} shards" if len(rows) else "no whole shard is worth moving"
        return append_moves(plan, observation, rows, owners).because("s1", text, **values), after

    def _watch_gradients(
        self, observation: Observation, groups: WorkersByJob, memory: Memory
    ) -> tuple[Floats, Bools, dict[str, NDArray[Any]]]:
        """S111: forecast gradient rates, sound workers, and the smoothed state by worker."""
        workers = observation.workers
        state = carry(memory, observation, _STATE)
        trained = workers.samples_per_step > 0
        batch = np.where(trained, workers.samples_per_step, state["samples"])
        redealt = (state["samples"] > 0) & (batch != state["samples"])
        with np.errstate(divide="ignore", invalid="ignore"):
            # More samples per gradient make fewer gradients at the same speed.
            scale = np.where(redealt, state["samples"] / batch, 1.0)
            phi, norm = observation.jobs.noise_scale[workers.job], np.log(workers.gradient_norm)
            if not np.isnan(phi).all():
                norm -= np.where(phi >= 0, 0.5 * np.log1p(phi / batch), 0.0)
        norm[~np.isfinite(norm)] = np.nan
        state["samples"] = batch
        for column in ("rate_level", "rate_trend"):
            state[column] *= scale
        state["norm_windows"][redealt & np.isnan(phi)] = 0  # its usual level is not known at this size
        rate = np.where(trained & (workers.gradient_rate_per_s > 0), workers.gradient_rate_per_s, np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            _remember_variance(state, "rate", rate / (state["rate_level"] + state["rate_trend"]) - 1)
        forecast = self._smooth(state, "rate", rate)
        deviation, sigma, warm = _norm_deviation(groups, state, norm)
        seen = np.where(trained, workers.gradient_norm, np.nan)
        wide = sigma * _less_sure(groups, state["norm_windows"], self.sigmas)
        healthy = gradient_health(groups.first, seen, rate, deviation, wide, warm, self.sigmas)
        measured = groups.spread(np.logical_or.reduceat(np.isfinite(norm), groups.first[:-1]))
        healthy = np.where(measured | ~trained, healthy, state["sick_windows"] == 0)  # else nothing new is known
        state["sick_windows"] = state["sick_windows"] + (measured & ~healthy)
        bound = np.where(warm, self.sigmas * sigma, np.inf)
        near = np.clip(deviation, -bound, bound)
        usual = np.where(np.isnan(deviation), norm, norm - deviation + near)  # an outlier moves it a little only
        _remember_variance(state, "norm", near)
        self._smooth(state, "norm", np.where(trained, usual, np.nan), 0.0)
        return forecast, healthy, state

    def _smooth(self, state: dict[str, NDArray[Any]], what: str, value: Floats, least: float = 0.5) -> Floats:
        level, trend, windows = (state[f"{what}_{part}"] for part in ("level", "trend", "windows"))
        forecast: Floats = holt(level, trend, windows, value, self.smoothing, self.trend_smoothing, least)
        return forecast

    def _smooth_load(self, seen: Floats, load: Floats) -> Floats:
        """1 + L by worker, with `load` updated from the observation; 1 where unknown."""
        if not np.isnan(seen).all():
            load += self.smoothing * or_else(seen - load)
            np.copyto(load, seen, where=np.isnan(load))
        factor: Floats = np.where(load > 0.0, 1.0 + load, 1.0)
        return factor

    def _acting(self, groups: WorkersByJob, index: Floats, memory: Memory) -> tuple[Ints, Bools]:
        """S112's hysteresis: (job rows to remember, jobs to balance now)."""
        before = match_sorted(memory.get("acting", NO_ROWS), groups.rows) >= 0
        acting = (index > self.threshold) | (before & (index >= 0.5 * self.threshold))
        return groups.rows[acting | (before & np.isnan(index))], acting


def _imbalance_values(observation: Observation, groups: WorkersByJob, index: Floats, surplus: Floats) -> dict[str, Any]:
    """The largest imbalance, its job, and the sum of deficits in bytes (at the mean size of a sample)."""
    known = ~np.isnan(index)
    if not known.any():
        return {"s112_imbalance": math.nan}
    worst = int(np.argmax(np.where(known, index, -1.0)))
    shards = observation.shards
    samples = float(shards.samples.sum())
    per_sample = float(shards.bytes.sum()) / samples if samples else 0.0
    return {
        "s112_imbalance": float(index[worst]),
        "s112_job": int(groups.rows[worst]),
        "s112_demand_bytes": float(-surplus[surplus < 0].sum() * per_sample),
    }


def _norm_deviation(groups: WorkersByJob, state: dict[str, NDArray[Any]], norm: Floats) -> tuple[Floats, Floats, Bools]:
    """Deviation of the logarithm of each norm from its forecast, its usual deviation, and whether that is known.

    Common changes of a job's workers (falling loss, learning rate) are removed by the median of their ratios, for
    two workers by the smaller one; one norm alone cannot be judged. A worker's usual deviation is at least that of
    its job: a few quiet windows are not enough evidence.
    """
    with np.errstate(over="ignore"):
        ratio = np.exp(norm - state["norm_level"] - state["norm_trend"])
    ratio[~np.isfinite(ratio) | (ratio == 0.0)] = np.nan
    deviation: Floats = np.log(ratio / groups.spread(common_ratio(groups.first, ratio)))
    # Of two norms the one that is less off deviates by nothing, so that only both together tell what is usual.
    pair = groups.spread(np.diff(groups.first) == 2)
    both = groups.spread(np.add.reduceat(state["norm_variance"], groups.first[:-1]))
    own = np.where(pair, both, state["norm_variance"])
    usual = np.where(np.diff(groups.first) >= 3, common_ratio(groups.first, own), 0.0)
    sigma: Floats = np.maximum(np.sqrt(np.maximum(own, groups.spread(usual))), _SIGMA_LEAST)
    return deviation, sigma, state["norm_windows"] >= _WARM_WINDOWS


def _less_sure(groups: WorkersByJob, windows: Ints, sigmas: float) -> Floats:
    """Factor on the allowed deviation, (workers,), because the usual deviation is itself an estimate.

    Quantile of Student's t at the probability of `sigmas` normal standard deviations, over `sigmas`: inverse by
    Wallace (1959), with degrees of freedom equal to half the measurements of the job's workers.
    """
    workers = groups.spread(np.diff(groups.first))
    freedom = np.maximum(np.minimum(windows, _MEMORY_WINDOWS) * workers / 2.0, 1.0)
    exponent = (sigmas * (1.0 + 2.0 / (8.0 * freedom + 1.0))) ** 2 / freedom
    factor: Floats = np.sqrt(freedom * np.expm1(np.minimum(exponent, _EXPONENT_MOST))) / sigmas
    return factor


def _remember_variance(state: dict[str, NDArray[Any]], what: str, error: Floats) -> None:
    """Exponential variance of the relative forecast errors; a plain mean of the first few."""
    variance = state[f"{what}_variance"]
    known = np.isfinite(error)
    gain = np.maximum(_MEMORY_GAIN, 1.0 / np.maximum(state[f"{what}_windows"], 1))
    np.add(variance, gain * (error**2 - variance), out=variance, where=known)


def _why_not(index: Floats, has_data: bool) -> str:
    if not has_data:
        return "no job has data to move"
    if np.isnan(index).all():
        return "every job has unknown capacity or no data left"
    return "data and speed are in balance"


def _weighted_flow(
    groups: WorkersByJob, acting: Bools, surplus: Floats, pull: Floats, node: Ints, links: LinkArrays
) -> tuple[Flow, float]:
    """S113 formula: the flow filled greedily by weight, and F(T)."""
    return greedy_flow(groups.first, acting, surplus, pull, node, links)


def _least_time_flow(
    groups: WorkersByJob, acting: Bools, surplus: Floats, pull: Floats, node: Ints, links: LinkArrays
) -> tuple[Flow, float]:
    """S113 optimal: meet every deficit with the least transfer time, job by job; also F(T) of that flow."""
    parts: list[Flow] = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))]
    value = 0.0
    for k in np.flatnonzero(acting):
        here = np.arange(groups.first[k], groups.first[k + 1])
        donors, receivers = here[surplus[here] > 0], here[surplus[here] < 0]
        if not (len(donors) and len(receivers)):
            continue
        rate = np.array([[link(links, node[i], node[j])[0] for j in receivers] for i in donors])
        finite = rate[np.isfinite(rate)]
        fastest = finite.max() if len(finite) else 1.0
        supply, demand = surplus[donors], -surplus[receivers]
        demand *= min(1.0, supply.sum() / demand.sum())  # all that is there
        flow = least_cost_transport(fastest / rate, supply, demand)
        value += float((flow * pull[receivers] * np.minimum(rate / fastest, 1.0)).sum())
        i, j = np.nonzero(flow > _FLOW_LEAST)
        parts.append((donors[i], receivers[j], flow[i, j]))
    donor, receiver, amount = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return (donor, receiver, amount), value


def _carry_out(
    observation: Observation, plan: Plan, flow: Flow, capacity: Floats, links: LinkArrays
) -> tuple[Ints, Ints, int]:
    """S113: whole shards that carry the flow, last needed first."""
    shards, workers = observation.shards, observation.workers
    gives = np.zeros(len(workers), dtype=np.bool_)
    gives[flow[0]] = True
    movable = free_shards(observation, plan)
    movable &= gives[shards.worker]  # -1, where nobody owns it, is not movable
    rows = np.flatnonzero(movable)
    shard_first, rows = last_needed_first(rows, shards.worker, shards.needed_in_s, len(workers))
    return pick_shards(
        *flow,
        shard_first,
        rows,
        shards.samples.astype(np.float64),
        shards.bytes,
        shards.node,
        workers.node,
        capacity,
        workers.samples_owned.copy(),
        room_bytes(observation, plan),
        *bytes_to_fetch(observation),
        links,
    )

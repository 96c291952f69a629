"""S3, synchronisation frequency and virtual GPUs.

S311 update speed and data before and after the reassignment, S312 synchronisation coefficient, S313 interval; S321
capability and use per virtual GPU, S322 shares, S323 quantisation under a guard; S324 power of waiting GPUs, which
is not part of the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from equipoise.policies.contract import Kind, Memory, Plan, Stage
from equipoise.policies.kernels.dataflow import match_sorted, sum_by
from equipoise.policies.kernels.gangs import frozen
from equipoise.policies.kernels.sync import (
    best_interval,
    busiest_node,
    fair_shares,
    next_interval,
    quantise_shares,
    slowest_other,
    step_spread,
    sync_coefficient,
    weighted_shares,
)
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.stages.coefficient import adapted
from equipoise.policies.stages.frozen import check_frozen
from equipoise.policies.stages.groups import WorkersByJob, group_workers, moved_bytes, or_else
from equipoise.policies.stages.guard import Record, Verdict, guard_blocked, guard_empty, guard_review, guard_watch
from equipoise.policies.stages.intervals import (
    carried,
    first_intervals,
    input_bound_s,
    level_intervals,
    longest_useful,
    no_longer_than_fed,
    step_deviation,
)
from equipoise.policies.stages.power import at_full_clock, caps_lifted, plan_caps
from equipoise.policies.stages.pushes import do_not_wait, push_intervals
from equipoise.policies.stages.reassignment import review_splits
from equipoise.policies.stages.virtual import capability, gpu_room, slice_gpus, virtual_gpus


@dataclass(frozen=True)
class Synchronisation(Stage):
    """Adapts the interval between gradient exchanges, and the GPU shares of co-located workers.

    `formula`: K = alpha / (1 + r) - beta * r with r = exchange / (h * step), the least over a job's workers;
    h <- h * exp(-eta * K) within 1 .. the H of least cost, so fast updates with little delay synchronise more often.
    alpha is 1 and beta 1 / `delay` (h settles near r = 0.09 then), until recorded changes of the interval adapt them
    (`policies.stages.coefficient`). Where some workers have much faster links among each other, near exchanges have
    their own interval, and exchanges of all are less frequent. Asynchronous workers have an interval each, by their
    own r. A waiting job starts at the interval of its estimates. Shares follow R' = R * (E / P) * lambda / (1 +
    delta), and the free share of a GPU is used while no job waits for a share. `optimal`: the H of least expected
    period per useful step, and the shares that minimise the slowest co-located job's slowdown. While a job's step
    times spread wider than `spread` and its work is being reassigned, its interval is kept: tasks first. New splits
    and shares that lower goodput are rolled back. Where power may be capped, nodes whose GPUs all wait get the clock
    at which they just keep pace, plus `slack` (`policies.stages.power`). The source's formula images are lost: the
    forms are ours, with its variables and directions.
    """

    name: ClassVar[str] = "s3"
    kind: ClassVar[Kind] = "sync"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs", "workers", "shards", "speeds", "stores"})

    mode: str = "formula"
    delay: float = 0.1  # exchange over computing at which delay weighs as much as update speed
    eta: float = 0.5  # gain of the interval
    spread: float = 0.1  # spread of step times above which a new split goes first
    interval_max: int = 64  # longest interval that `optimal` considers
    hysteresis: float = 0.02  # least gain for which `optimal` changes the interval, and either mode takes two levels
    share_damping: float = 0.5
    share_floor: float = 0.1
    share_band: float = 0.02  # relative change of a share that is not applied
    noise: float = 0.05  # a loss of goodput below this is noise
    slack: float = 0.02  # lead of GPUs with capped power over what they wait for
    power_least: float = 1 / 3  # least cap, of a node's highest power
    backoff_windows: int = 8  # first back-off after a roll-back, in windows; doubles each time
    frozen: str = ""  # a sub-step to replace by a simple default: see `policies.stages.frozen`

    def __post_init__(self) -> None:
        if self.mode not in ("formula", "optimal"):
            raise ValueError(f"mode: {self.mode!r} is not one of formula, optimal")
        check_frozen("s3", self.frozen)
        if not (self.delay > 0 and self.eta > 0 and self.interval_max >= 1):
            raise ValueError("delay and eta must be above 0, interval_max at least 1")
        if not (0 < self.share_damping <= 1 and 0 < self.share_floor <= 0.5):
            raise ValueError("share_damping must be in (0, 1], share_floor in (0, 0.5]")
        if not (0 <= self.slack < 1 and 0 < self.power_least <= 1):
            raise ValueError("slack must be in [0, 1), power_least in (0, 1]")
        if min(self.spread, self.hysteresis, self.share_band, self.noise, self.backoff_windows) < 0:
            raise ValueError("spread, hysteresis, share_band, noise and backoff_windows must not be negative")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set sync_interval and gpu_share; memory holds the real intervals and the guard's record."""
        observation = at_full_clock(observation)
        if self.frozen != "S312":
            plan = first_intervals(observation, plan, self.delay)
        if not len(observation.workers):
            return caps_lifted(observation, plan).because("s3", "no training job runs"), memory
        groups = group_workers(observation)
        deals: dict[str, Any] = {}
        reviewed: dict[str, Any] = {}
        backoff_s = self.backoff_windows * observation.window_s
        if self.frozen != "S311":
            plan, deals, reviewed = review_splits(observation, groups, plan, memory, self.noise, backoff_s)
        plan, state, sync = self._intervals(observation, groups, plan, memory)
        shares, record, virtual = self._shares(observation, groups, plan, memory.get("guard", guard_empty()))
        done = [
            what
            for what, changes in (("changes intervals", sync["s313_changed"]), ("changes shares", shares is not None))
            if changes
        ]
        if shares is not None:
            plan = plan.with_(gpu_share=shares)
        power: dict[str, Any] = {}
        caps: dict[str, Any] = {}
        if self.frozen != "S324":
            plan, power, caps = plan_caps(
                observation, groups, plan, memory, self.slack, self.power_least, self.noise, backoff_s
            )
            done += ["caps power"] if caps.get("s324_changed") else []
        text = ", ".join(done) or "intervals and shares are unchanged"
        state |= deals | power | {"guard": record}
        return plan.because("s3", text, **reviewed, **sync, **virtual, **caps), state

    def _intervals(
        self, observation: Observation, groups: WorkersByJob, plan: Plan, memory: Memory
    ) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
        """S311-S313: (plan with new intervals of jobs, levels and workers, state by job and worker, values)."""
        jobs, rows = observation.jobs, groups.rows
        held, values = self._tasks_first(observation, groups, plan)
        levels = jobs.far_every[rows] > 1
        far_s = np.where(levels, jobs.far_exchange_s[rows], jobs.exchange_s[rows])
        far_s = far_s * (1 + _planned_traffic(observation, groups, plan))
        planned, every = plan.intervals(observation), plan.far(observation)
        drift = jobs.drift[rows]
        h = carried(memory, "interval", rows, planned[rows])
        # With one level the interval is in force: it may have been changed from outside.
        h = np.where(levels | (np.abs(h - planned[rows]) < 1.0), h, planned[rows])
        current = np.where(levels, np.rint(h).astype(np.int64), planned[rows])
        alpha, beta, recorded = adapted(observation, groups, memory, self.noise)
        step_s, counts = observation.workers.step_s.copy(), plan.weights(observation) > 0.0

        def coefficient(interval: Floats, exchange_s: Floats) -> Floats:
            """K of each job at these intervals and exchange times."""
            return sync_coefficient(groups.first, interval, exchange_s, step_s, counts, alpha, beta / self.delay)

        k = coefficient(h, far_s)
        acts = groups.sound & (~held | (self.frozen == "S311")) & (self.frozen != "S312")
        apart, pushes, rounds = do_not_wait(observation, groups), plan.pushes(observation), planned[rows]
        pushed: dict[str, Any] = {}
        if apart.any():
            pushes, rounds, pushed = push_intervals(
                observation,
                groups,
                plan,
                memory,
                acts & apart,
                alpha,
                beta / self.delay,
                self.eta,
                self.interval_max if self.mode == "optimal" else 0,
                self.hysteresis,
                self.frozen == "S313",
            )
            values["s313_push_interval_max"] = int(pushes.max())
            acts &= ~apart
        gamma, work_s = or_else(jobs.gamma[rows], 1.0), np.maximum.reduceat(step_s, groups.first[:-1])
        input_s, stalls = input_bound_s(observation, groups, memory, far_s)
        if self.mode == "formula":
            bound = longest_useful(work_s, far_s, gamma, drift)
            k, bound = no_longer_than_fed(h, k, bound, work_s, far_s, input_s)
            h, whole = next_interval(h, current, np.where(acts, k, np.nan), bound, self.eta)
        else:
            std_s = step_deviation(observation)
            whole, gain = best_interval(
                groups.first,
                observation.workers.step_s,
                std_s,
                far_s,
                gamma,
                np.where(acts, drift, np.nan),
                input_s,
                current,
                self.interval_max,
            )
            whole = np.where(gain > self.hysteresis, whole, current)
            values["s313_gain"] = float(np.nanmax(gain)) if np.isfinite(gain).any() else 0.0
            h = np.where(acts, whole, h)
        state = {"job": rows, "interval": h, **recorded, **stalls}
        far = np.ones_like(whole)
        if self.frozen != "S313" and not np.isnan(jobs.near_exchange_s[rows]).all():
            whole, far, more = level_intervals(
                observation,
                groups,
                memory,
                whole,
                far_s,
                input_s,
                acts,
                coefficient,
                self.eta,
                self.interval_max if self.mode == "optimal" else 0,
                self.hysteresis,
            )
            state |= more
        whole = np.where(apart, rounds, whole)
        changes = (whole != planned[rows]) | (far != every[rows])
        if not np.array_equal(pushes, plan.pushes(observation)):
            changes |= np.logical_or.reduceat(pushes != plan.pushes(observation), groups.first[:-1])
            plan = plan.with_(push_interval=pushes)
        plan = _with_rows(plan, "sync_interval", planned, rows, whole)
        plan = _with_rows(plan, "far_every", every, rows, far)
        finite = k[np.isfinite(k)]
        values |= {
            "s312_coefficient_min": float(finite.min()) if len(finite) else np.nan,
            "s312_coefficient_max": float(finite.max()) if len(finite) else np.nan,
            "s312_alpha_max": float(alpha.max()),
            "s312_beta_min": float(beta.min()),
            "s313_interval_max": int((whole * far).max()),
            "s313_levels": int((far > 1).sum()),
            "s313_changed": int(changes.sum()),
        }
        return plan, state | pushed, values

    def _tasks_first(self, observation: Observation, groups: WorkersByJob, plan: Plan) -> tuple[Bools, dict[str, Any]]:
        """S311: jobs whose interval waits for the new split, with update speeds and data before and after."""
        workers = observation.workers
        dealt = plan.samples(observation)
        grows = workers.step_s - or_else(workers.fixed_s)
        with np.errstate(invalid="ignore", divide="ignore"):
            after_s = workers.step_s + grows * (dealt / workers.samples_per_step - 1)
        # A writable copy, so that one compiled version serves both calls.
        before = step_spread(groups.first, workers.step_s.copy())
        after = step_spread(groups.first, after_s)
        redealt = np.logical_or.reduceat(dealt != workers.samples_per_step, groups.first[:-1])
        values: dict[str, Any] = {
            "s311_speed_per_s": _slowest_rate(workers.step_s),
            "s311_speed_after_per_s": _slowest_rate(after_s),
            "s311_spread": float(np.nanmax(before)) if np.isfinite(before).any() else np.nan,
            "s311_spread_after": float(np.nanmax(after)) if np.isfinite(after).any() else np.nan,
            **_owned_bytes(observation, plan),
        }
        held = redealt & (before > self.spread)
        return held, values | {"s311_held": int(held.sum())}

    def _shares(
        self, observation: Observation, groups: WorkersByJob, plan: Plan, record: Record
    ) -> tuple[Floats | None, Record, dict[str, Any]]:
        """S321-S323: (new shares or None, the guard's record, values)."""
        workers, now = observation.workers, observation.time_s
        goodput = _goodput(observation)
        share = plan.shares(observation)
        verdict, record = guard_review(
            record,
            workers.id,
            goodput,
            now,
            noise=self.noise,
            settle_s=observation.window_s,
            backoff_s=self.backoff_windows * observation.window_s,
        )
        rows, first = virtual_gpus(observation, groups)
        values: dict[str, Any] = {
            "s321_virtual_gpus": len(rows),
            "s322_changed_gpus": 0,
            "s323_kept": len(verdict.keep),
            "s323_rolled_back": len(verdict.rollback),
        }
        new, undone = _undo(observation, share, verdict)
        if len(rows) and self.frozen not in ("S322", "S323"):
            room = gpu_room(observation, share, rows, first)
            proposal, used = self._propose(observation, groups, share, rows, first, room)
            values["s321_capability_min"] = used
            quantum = observation.gpus.share_quantum[workers.gpu[rows[first[:-1]]]]
            quantised, changed = quantise_shares(first, share[rows], room, proposal, quantum, self.share_band)
            quantised, changed = slice_gpus(observation, rows, first, share, room, proposal, quantised, changed)
            busy = guard_blocked(record, workers.id[rows], now) | np.isin(rows, undone)
            changed &= ~np.logical_or.reduceat(busy, first[:-1])
            moved = np.repeat(changed, np.diff(first))
            values["s322_changed_gpus"] = int(changed.sum())
            at = rows[moved]
            new[at] = quantised[moved]
            ids = workers.id[at]
            record = guard_watch(record, ids, goodput[at], now, share[at], group=workers.gpu[at])
        if np.array_equal(new, share):
            return None, record, values
        return new, record, values

    def _propose(
        self, observation: Observation, groups: WorkersByJob, share: Floats, rows: Ints, first: Ints, room: Floats
    ) -> tuple[Floats, float]:
        """S321 and S322: (shares of the virtual GPUs `rows`, lowest utilisation)."""
        workers = observation.workers
        step_s, others_s = workers.step_s, slowest_other(groups.first, workers.step_s)
        used = capability(observation, share)
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.frozen == "S321":
                used = np.where(np.isfinite(used), 1.0, used)
            load = step_s / np.maximum(step_s, others_s)  # 1 for the worker that its job waits for
            delay = or_else(workers.input_stall_s) / step_s
        least = float(np.nanmin(used[rows])) if np.isfinite(used[rows]).any() else np.nan
        if self.mode == "optimal":
            kappa = workers.share_kappa
            new = fair_shares(first, share[rows], room, step_s[rows], others_s[rows], kappa[rows], self.share_floor)
        else:
            new = weighted_shares(
                first, share[rows], room, used[rows], load[rows], delay[rows], self.share_damping, self.share_floor
            )
        return new, least


def _owned_bytes(observation: Observation, plan: Plan) -> dict[str, float]:
    """Bytes of the worker that owns most, before and after the planned moves."""
    owner, size = observation.shards.worker, observation.shards.bytes
    bytes_of = np.zeros(len(observation.workers))
    sum_by(owner, size, bytes_of)
    most = float(bytes_of.max())
    values = {"s311_most_bytes": most, "s311_most_bytes_after": most}
    if plan.moves is not None:
        moved = frozen(size[plan.moves.shard])
        sum_by(frozen(owner[plan.moves.shard]), frozen(-moved), bytes_of)
        sum_by(frozen(plan.moves.worker), moved, bytes_of)
        values["s311_most_bytes_after"] = float(bytes_of.max())
    return values


def _slowest_rate(step_s: Floats) -> float:
    """Local steps per second of the slowest worker; NaN when none is known."""
    return float(1 / np.nanmax(step_s)) if np.isfinite(step_s).any() else np.nan


def _planned_traffic(observation: Observation, groups: WorkersByJob, plan: Plan) -> Floats:
    """Share of the window in which planned moves use the busiest interface of each job's nodes.

    A transfer halves the rate of an exchange on the same link, so the exchange takes that much longer.
    """
    if plan.moves is None:
        return np.zeros(len(groups.rows))
    out = moved_bytes(observation, plan.moves, incoming=False)
    into = moved_bytes(observation, plan.moves, incoming=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        busy_s = or_else(np.maximum(out, into) / observation.nodes.nic_bytes_per_s)
    longest = busiest_node(groups.first, observation.workers.node, busy_s)
    return np.minimum(longest / max(observation.window_s, np.finfo(np.float64).tiny), 1.0)


def _with_rows(plan: Plan, name: str, planned: Ints, rows: Ints, values: Ints) -> Plan:
    """The plan with new values of field `name` in some rows; unchanged if they are equal."""
    if np.array_equal(planned[rows], values):
        return plan
    new = planned.copy()
    new[rows] = values
    return plan.with_(**{name: new})


def _goodput(observation: Observation) -> Floats:
    """Goodput of each worker's job, throughput where the efficiency is unknown."""
    jobs = observation.jobs
    known = np.isfinite(jobs.goodput_samples_per_s)
    per_job = np.where(known, jobs.goodput_samples_per_s, jobs.throughput_samples_per_s)
    return np.asarray(per_job[observation.workers.job], dtype=np.float64)


def _undo(observation: Observation, share: Floats, verdict: Verdict) -> tuple[Floats, Ints]:
    """Shares with the rolled-back ones restored where their GPU has room for it, and the rows restored."""
    workers, gpus = observation.workers, observation.gpus
    new = share.copy()
    if not len(verdict.rollback):
        return new, np.empty(0, dtype=np.int64)
    rows = match_sorted(workers.id, verdict.rollback)
    new[rows] = verdict.undo
    held = np.bincount(workers.gpu, weights=workers.gpu_share, minlength=len(gpus))
    wanted = np.bincount(workers.gpu, weights=new, minlength=len(gpus))
    full = wanted > held + gpus.share_free + 1e-9
    rows = rows[~full[workers.gpu[rows]]]
    restored = share.copy()
    restored[rows] = new[rows]
    return restored, rows

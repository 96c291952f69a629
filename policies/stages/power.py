"""S324, power: GPUs that wait for others or for input run at a lower clock, without delay, and draw less power.

The idea is that of Perseus (Chung et al., SOSP 2024): a node slowed to the pace of its job saves energy and costs no
time. Dynamic power is proportional to the cube of the clock (docs/decisions/009-energy.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from equipoise.policies.contract import Memory, Plan
from equipoise.policies.observation import Bools, Floats, Nodes, Observation, Workers
from equipoise.policies.stages.groups import WorkersByJob
from equipoise.policies.stages.guard import guard_blocked, guard_empty, guard_review, guard_watch
from equipoise.policies.stages.pushes import do_not_wait

_STARVED = 0.02  # of its computing, above which a worker's wait for input says that input sets its pace...
_STARVED_LEAD = 3.0  # ... and its lead over that, in such parts, of which more than one must be left to see it
_SIGMAS = 2.0  # of the difference of two steps, by which a capped worker stays ahead of the slowest
_LOST, _TOO_MUCH = 0.5, 1.5  # of its lead, at which a node's clock is changed
_LOOK_S = 60.0  # longest time until present caps are reviewed
_NONE = np.empty(0, dtype=np.int64)


def clocks(nodes: Nodes) -> Floats:
    """Clock of each node over its highest, by its power cap; 1 where no plan may cap it, (nodes,)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (nodes.power_cap_w - nodes.power_idle_w) / (_draw_w(nodes) - nodes.power_idle_w)
    clock: Floats = np.where(share > 0.0, np.cbrt(np.minimum(share, 1.0)), 1.0)
    return clock


def _draw_w(nodes: Nodes) -> Floats:
    """Power of a computing GPU of each node at the highest clock (W), (nodes,)."""
    drawn_w: Floats = np.where(np.isfinite(nodes.power_draw_w), nodes.power_draw_w, nodes.power_max_w)
    return drawn_w


def at_full_clock(observation: Observation) -> Observation:
    """The measurements as they would be without the present caps; `observation` itself without caps.

    Splitting work or comparing nodes must not take a node at a capped clock for a slow one.
    """
    nodes, workers, jobs = observation.nodes, observation.workers, observation.jobs
    if not (nodes.power_cap_w < nodes.power_max_w).any() or not len(workers):
        return observation
    clock = clocks(nodes)[workers.node]
    step_s, stall_s = workers.step_s * clock, np.nan_to_num(workers.input_stall_s)
    with np.errstate(invalid="ignore", divide="ignore"):
        slower = (workers.step_s + stall_s) / (np.where(_starved(workers), workers.step_s, step_s) + stall_s)
    slower = np.where(np.isfinite(slower), slower, 1.0)
    sooner_s = (workers.step_s + stall_s) * (1.0 - 1.0 / slower)
    seen = workers.replaced(
        step_s=step_s,
        fixed_s=workers.fixed_s * clock,
        gradient_rate_per_s=workers.gradient_rate_per_s / clock,
        response_s_per_sample=workers.response_s_per_sample / slower,
        capacity_samples_per_s=np.fmin(workers.capacity_samples_per_s * slower, workers.input_samples_per_s),
        input_stall_s=workers.input_stall_s + (workers.step_s - step_s) - sooner_s,
        wait_s=workers.wait_s + sooner_s,
    )
    work_s, capped = jobs.work_s.copy(), np.unique(workers.job[clock < 1.0])
    total_s = np.bincount(workers.job, weights=step_s, minlength=len(jobs))
    work_s[capped] = total_s[capped] / np.bincount(workers.job, minlength=len(jobs))[capped]
    return replace(observation, workers=seen, jobs=jobs.replaced(work_s=work_s))


def plan_caps(
    observation: Observation,
    groups: WorkersByJob,
    plan: Plan,
    memory: Memory,
    slack: float,
    least: float,
    noise: float,
    backoff_s: float,
) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
    """(`plan` with a cap on each node all of whose GPUs wait, new memory, values); only where caps are allowed.

    observation: at the full clock. The slowest worker of a job, or a worker's own input, sets its pace; a node gets
    the highest clock that one of its workers needs to stay ahead of its pace by `slack` and by the variation of
    steps, and no cap below `least` of the highest. The cap is raised once half of that lead is gone, and lowered
    where the lead is half as large again in two measurements in a row since the last change, while no work is
    reassigned. A job whose goodput falls gets full clocks until its back-off ends; so does one that fetches data, or
    did in the window, because its workers then wait at different times.
    """
    o, nodes, rows = observation, observation.nodes, groups.rows
    if plan.power_cap_w is not None or not np.isfinite(nodes.power_max_w).any():
        return plan, {}, {}
    goodput = np.where(
        np.isfinite(o.jobs.goodput_samples_per_s), o.jobs.goodput_samples_per_s, o.jobs.throughput_samples_per_s
    )[rows]
    verdict, record = guard_review(
        memory.get("power_guard", guard_empty()),
        rows,
        goodput,
        o.time_s,
        noise=noise,
        settle_s=o.window_s,
        backoff_s=backoff_s,
    )
    watched = np.isin(rows, record["id"][record["watched"]])
    alone, inside = _whole_nodes(o)
    fetching = np.unique(o.shards.job[~o.shards.local])
    waits_evenly = ~np.isin(rows, fetching) & ~np.isin(rows, memory.get("power_fetching", _NONE))
    able = groups.sound & inside[rows] & waits_evenly & (watched | ~guard_blocked(record, rows, o.time_s))
    pace, lead = _pace(o, groups, plan, slack)
    wanted = np.array(
        [
            _at_pace(o, np.where(groups.spread(able), pace / np.maximum(1.0 - part * lead, 1e-9), 1.0), alone)
            for part in (_TOO_MUCH, 1.0, _LOST)
        ]
    )
    last = memory.get("power_wanted", wanted[:, :0])
    spare, clock, _ = np.maximum(wanted, last if last.shape == wanted.shape else 1.0)
    lowest_w = np.maximum(least * nodes.power_max_w, np.minimum(nodes.power_idle_w + 1.0, nodes.power_max_w))
    cap_w = np.ceil(nodes.power_idle_w + (_draw_w(nodes) - nodes.power_idle_w) * clock**3)
    cap_w = np.where(clock < 1.0, cap_w, nodes.power_max_w)
    cap_w = np.clip(cap_w, lowest_w, nodes.power_max_w)
    before, since_s = clocks(nodes), memory.get("power_since_s", _NONE)
    if len(since_s) != len(nodes):
        since_s = np.full(len(nodes), -np.inf)
    raised = nodes.up & (wanted[2] > before) & (cap_w > nodes.power_cap_w)
    lowered = (spare < before) & (cap_w < nodes.power_cap_w) & (o.time_s - o.window_s > since_s)
    redealt = plan.samples(o) != o.workers.samples_per_step
    settles = groups.spread(watched | np.logical_or.reduceat(redealt, groups.first[:-1])) if len(rows) else redealt
    lowered &= np.bincount(o.workers.node, weights=settles, minlength=len(nodes)) == 0
    fresh = np.logical_or.reduceat(lowered[o.workers.node], groups.first[:-1]) if len(rows) else watched
    record = guard_watch(record, rows[fresh], goodput[fresh], o.time_s, np.zeros(int(fresh.sum())))
    moved = raised | lowered
    since_s = np.where(moved, o.time_s, since_s)
    state = {"power_guard": record, "power_since_s": since_s, "power_fetching": fetching, "power_wanted": wanted}
    new_w = np.where(moved, cap_w, nodes.power_cap_w)
    values = {
        "s324_capped": int((new_w < nodes.power_max_w).sum()),
        "s324_least_w": float(np.nanmin(new_w)),
        "s324_changed": int(moved.sum()),
        "s324_rolled_back": len(verdict.rollback),
    }
    if values["s324_capped"]:
        plan = plan.with_(revisit_s=min(plan.revisit_s, o.time_s + _LOOK_S))
    return (plan.with_(power_cap_w=new_w) if moved.any() else plan), state, values


def _starved(workers: Workers) -> Bools:
    """Workers whose pace is that of their input."""
    starved: Bools = np.nan_to_num(workers.input_stall_s) > _STARVED * workers.step_s
    return starved


def _at_pace(o: Observation, clock: Floats, alone: Bools) -> Floats:
    """The highest clock (nodes,) among those needed by the workers (workers,) of each node; 1 where unknown."""
    most = np.zeros(len(o.nodes))
    np.maximum.at(most, o.workers.node, np.where(clock < 1.0, clock, 1.0))
    found: Floats = np.where(alone & (most > 0.0), most, 1.0)
    return found


def _pace(o: Observation, groups: WorkersByJob, plan: Plan, slack: float) -> tuple[Floats, Floats]:
    """(clock at which each worker just keeps pace at the planned split, wanted lead), (workers,) each."""
    workers, first = o.workers, groups.first[:-1]
    if not len(workers):
        return np.empty(0), np.empty(0)
    stall_s, starved = np.nan_to_num(workers.input_stall_s), _starved(workers)
    with np.errstate(invalid="ignore", divide="ignore"):
        more = plan.samples(o) / workers.samples_per_step
        grows_s = workers.step_s - np.nan_to_num(workers.fixed_s)
        busy_s = workers.step_s + grows_s * (more - 1.0)
        own_s = np.where(starved, (workers.step_s + stall_s) * more, busy_s)
        slowest_s = groups.spread(np.fmax.reduceat(own_s, first))
        pace_s = np.where(groups.spread(do_not_wait(o, groups)), own_s, slowest_s)
        pace_s = np.minimum(pace_s, busy_s + stall_s + np.nan_to_num(workers.wait_s))
        varies = np.fmax.reduceat(np.nan_to_num(workers.step_cov), first)
        lead = slack + _SIGMAS * varies * np.sqrt(2.0 / plan.intervals(o)[groups.rows])
        lead = groups.spread(lead)
        return busy_s / pace_s, np.where(starved, np.maximum(lead, _STARVED_LEAD * _STARVED), lead)


def _whole_nodes(o: Observation) -> tuple[Bools, Bools]:
    """(nodes all of whose GPUs training jobs hold, jobs whose workers hold whole GPUs of one node each)."""
    nodes, workers, jobs = len(o.nodes), o.workers, o.jobs
    held = o.gpus.job >= 0
    pair, holds = np.unique(o.gpus.job[held] * nodes + o.gpus.node[held], return_counts=True)
    begun, workers_there = np.unique(workers.job * nodes + workers.node, return_counts=True)
    uses = workers_there * jobs.gpus_per_worker[begun // nodes]
    either = np.union1d(pair, begun)
    count = np.zeros((2, len(either)), dtype=np.int64)
    count[0, np.searchsorted(either, pair)], count[1, np.searchsorted(either, begun)] = holds, uses
    odd = either[count[0] != count[1]]
    inside, alone = np.ones(len(jobs), dtype=np.bool_), o.nodes.up & (o.nodes.gpus > 0)
    inside[odd // nodes], alone[odd % nodes] = False, False
    alone &= np.bincount(o.gpus.node[held], minlength=nodes) == o.nodes.gpus
    return alone, inside


def caps_lifted(observation: Observation, plan: Plan) -> Plan:
    """`plan` with the highest cap on every node that is up and has a lower one."""
    nodes = observation.nodes
    lower = nodes.up & (nodes.power_cap_w < nodes.power_max_w)
    if plan.power_cap_w is not None or not lower.any():
        return plan
    return plan.with_(power_cap_w=np.where(lower, nodes.power_max_w, nodes.power_cap_w))

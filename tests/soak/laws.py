"""What holds for every run, whatever the scenario and the policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.job.demand import expand
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.record import WASTE, Run
from equipoise.sim.run import RunFailed, run
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.shown import all_shown
from equipoise.study.bounds import lower_bound

COUNTS = ("samples", "lost_samples", "steps", "preemptions", "restarts", "gpus", "job_id", "name")
NEAR = 1e-9
Asked = Callable[[], bool]


class TooLong(Exception):
    """A run takes longer than the checker wants to wait; it says nothing about the run."""


def made(case: Scenario, stop: Asked, **options: Any) -> Run:
    """A run, also one that got nowhere."""
    try:
        return run(case, stop=stop, **options)
    except RunFailed as failed:
        if stop():
            raise TooLong from None
        if failed.run.stopped and "stage " in failed.run.stopped and "failed" in failed.run.stopped:
            raise
        return failed.run


def broken(data: Mapping[str, Any], stop: Asked = lambda: False) -> list[str]:
    """Which laws a scenario breaks, one line each. Raises InputError for a wrong scenario."""
    case = from_mapping(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            with _shares_watched() as found:
                fast = made(case, stop, timeline=True)
            found = [*found[:1], *_conserved(fast), *_ordered(fast)]
            found += [*_held_once(case, fast), *_bounded(case, fast), *_paid(case, fast), *_as_asked(case, fast)]
            found += _equal("again", fast, made(case, stop), exactly=True)
            oracle = made(case, stop, event_by_event=True)
    except (TooLong, InputError):  # refused: no job is left that limits ever let start
        return []
    except Exception as error:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        place = last.tb_frame.f_code.co_name if last is not None else ""
        return [f"{type(error).__name__} in {place}: {' '.join(str(error).split())[:200]}"]
    return found + list(_equal("event by event", fast, oracle, exactly=False))


def _conserved(of: Run) -> Iterator[str]:
    jobs, totals = of.jobs, of.totals
    capacity_s = totals["gpus"] * totals["makespan_s"]
    used_s = jobs["busy_gpu_s"].sum() + sum(jobs[f"{use}_gpu_s"].sum() for use in WASTE[1:])
    used_s += sum(totals.get(f"{use}_gpu_s", 0.0) for shown in all_shown() for use in shown.uses)
    if abs(used_s + totals["idle_gpu_s"] - capacity_s) > NEAR * max(capacity_s, 1.0):
        yield f"GPU-seconds: {used_s} held and {totals['idle_gpu_s']} idle are not {capacity_s}"
    if totals["idle_gpu_s"] < -NEAR * max(capacity_s, 1.0):
        yield f"idle: {totals['idle_gpu_s']}"
    for name, values in jobs.items():
        if name.endswith(("_gpu_s", "_j", "_usd", "samples", "steps")) and (values < -1e-6).any():
            yield f"{name}: {values.min()}"
    if (jobs["useful_gpu_s"] > jobs["busy_gpu_s"] * (1 + NEAR) + 1e-6).any():
        yield "more useful than busy GPU-seconds"
    for name in ("energy_j", "cost_usd"):
        if jobs[name].sum() > totals[name] * (1 + NEAR) + 1e-6:
            yield f"{name}: jobs have {jobs[name].sum()} of {totals[name]}"


def _ordered(of: Run) -> Iterator[str]:
    jobs = of.jobs
    if (jobs["start_s"] < jobs["arrival_s"] - NEAR).any() or (jobs["completion_s"] < jobs["start_s"]).any():
        yield "a job starts before it arrives, or ends before it starts"
    if (jobs["queueing_s"] < -NEAR).any():
        yield "a job waits for less than nothing"
    if of.stopped is None and not np.isfinite(of.totals["makespan_s"]):
        yield f"makespan: {of.totals['makespan_s']}"


@contextmanager
def _shares_watched() -> Iterator[list[str]]:
    """What goes wrong with the shares of GPUs and their nodes, whenever they change, meanwhile."""
    found: list[str] = []
    before = Cluster.set_share, Cluster.book, Cluster.take_down

    def watched(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(self: Cluster, *given: Any) -> Any:
            result = change(self, *given)
            if self._share_free.min(initial=0.0) < -NEAR:
                found.append(f"shares of a GPU: {self._share_free.min()} is left of one")
            if any(not self.up[held.nodes].all() for held in self.holding.values()):
                found.append("a job holds GPUs of a node that is not there")
            return result

        return changed

    Cluster.set_share, Cluster.book, Cluster.take_down = map(watched, before)  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Cluster.set_share, Cluster.book, Cluster.take_down = before  # type: ignore[method-assign]


def _held_once(case: Scenario, of: Run) -> Iterator[str]:
    """No GPU is held by two jobs at once, unless both have asked for a part; the record has a part's last size."""
    assert of.timeline is not None
    if any(job.gpu_share < 1.0 for job in case.workload.jobs):
        return
    segments, held = of.timeline["segments"], of.timeline["holdings"]
    of_segment = {
        (int(j), int(s)): (float(a), float(b))
        for j, s, a, b in zip(*(segments[n] for n in ("job_id", "segment", "start_s", "end_s")), strict=True)
    }
    times = [of_segment[int(j), int(s)] for j, s in zip(held["job_id"], held["segment"], strict=True)]
    for gpu in np.unique(held["gpu"]):
        mine = np.flatnonzero(held["gpu"] == gpu)
        changes = [(times[k][0], 1, float(held["share"][k])) for k in mine if times[k][1] > times[k][0]]
        changes += [(times[k][1], 0, -float(held["share"][k])) for k in mine if times[k][1] > times[k][0]]
        now = 0.0
        for at_s, _, share in sorted(changes):
            now += share
            if now > 1.0 + 1e-6:
                yield f"GPU {gpu} gives {now} of itself at {at_s} s"
                break


def _as_asked(case: Scenario, of: Run) -> Iterator[str]:
    """Jobs hold GPUs of the groups that they name only, and run for no longer than they may without restarting."""
    assert of.timeline is not None
    groups, jobs = (case.cluster.groups, {name: job for spec in case.workload.jobs for name, _, job in expand(spec)})
    group = np.repeat(
        [g.name for g in groups for _ in range(g.count)], [g.gpus for g in groups for _ in range(g.count)]
    )
    accelerator = {g.name: g.accelerator for g in groups}
    spec = dict(zip(of.jobs["job_id"].tolist(), (jobs[name] for name in of.jobs["name"]), strict=True))
    held, part = of.timeline["holdings"], of.timeline["segments"]
    for job, gpu in zip(held["job_id"].tolist(), held["gpu"].tolist(), strict=True):
        if spec[job].gpu_types and not {group[gpu], accelerator[str(group[gpu])]} & {*spec[job].gpu_types}:
            yield f"pin: {spec[job].name} is on {group[gpu]}, not on {spec[job].gpu_types}"
            break
    ran_s = np.where(part["state"] == "running", part["end_s"] - part["start_s"], 0.0)
    for job, took_s in zip(part["job_id"].tolist(), ran_s.tolist(), strict=True):
        limit_s = spec[job].time_limit
        stopped = of.jobs["restarts"].any() or of.jobs["preemptions"].any()
        if limit_s is not None and not stopped and took_s > limit_s * (1 + NEAR):
            yield f"limit: {spec[job].name} runs for {took_s} s of {limit_s} s"


def _paid(case: Scenario, of: Run) -> Iterator[str]:
    """Each group's bill is its node hours times its price; rented nodes are paid for while they are there."""
    assert of.timeline is not None
    pools, span_h = of.pools(), of.totals["makespan_s"] / 3600.0
    if pools and abs(sum(pool["gpu_usd"] for pool in pools) - of.totals["gpu_usd"]) > 1e-6:
        yield f"groups cost {pools}, all of it {of.totals['gpu_usd']}"
    events, origin_s = of.timeline["events"], min(float(of.jobs["arrival_s"].min()), of.totals["end_s"])
    for group, pool in zip(case.cluster.groups, pools, strict=False):
        by_price = group.price is not None and not case.cost.terms  # a contract makes another price of it
        if by_price and abs(pool["gpu_usd"] - (group.price or 0.0) * pool["node_h"]) > 1e-6:
            yield f"{group.name}: {pool['node_h']} h cost {pool['gpu_usd']} USD"
        if not -1e-9 <= pool["node_h"] <= group.count * span_h + 1e-9:
            yield f"{group.name}: {pool['node_h']} node hours of {group.count} nodes in {span_h} h"
        autoscale = getattr(group, "autoscale", None)
        if autoscale is None or group.available is not None or case.faults.model_fields_set - {"events"}:
            continue
        rented_s = autoscale.min * (of.totals["end_s"] - origin_s)
        for kind, at_s in zip(
            *((events[n][_of(events["subject"], group.name)]) for n in ("kind", "time_s")), strict=True
        ):
            left_s = of.totals["end_s"] - max(origin_s, float(at_s))
            rented_s += max(0.0, left_s) * {"rented": 1, "released": -1}.get(kind, 0)
        if abs(rented_s / 3600.0 - pool["node_h"]) > 1e-6:
            yield f"{group.name}: rented for {rented_s / 3600.0} h, paid for {pool['node_h']} h"


def _of(names: Any, group: str) -> list[int]:
    """Rows of a group's nodes."""
    return [k for k, name in enumerate(names.tolist()) if name.rpartition("-")[0] == group]


def _bounded(case: Scenario, of: Run) -> Iterator[str]:
    if (case.noise.step_cov or 0.0) > 0.0 or of.stopped is not None or np.isnan(of.jobs["completion_s"]).any():
        return
    bound, row = lower_bound(case), of.summary()
    for name in ("makespan_s", "completion_mean_s"):
        if row[name] < getattr(bound, name) * (1 - 1e-6) - 1e-6:
            yield f"{name}: {row[name]} beats the bound {getattr(bound, name)}"


def _equal(how: str, one: Run, other: Run, *, exactly: bool) -> Iterator[str]:
    if (one.stopped is None) != (other.stopped is None):
        yield f"{how}: {one.stopped} and {other.stopped}"
        return
    for name, values in one.jobs.items():
        theirs = other.jobs[name]
        if exactly or name in COUNTS or values.dtype == object:
            same = values.tobytes() == theirs.tobytes() if values.dtype != object else (values == theirs).all()
        else:
            same = np.allclose(values, theirs, rtol=NEAR, atol=1e-6, equal_nan=True)
        if not same:
            yield f"{how}: {name} {values.tolist()} and {theirs.tolist()}"
            return
    for name, value in one.totals.items():
        near = np.isclose(value, other.totals[name], rtol=NEAR, atol=1e-6, equal_nan=True)
        if not (near and (not exactly or str(value) == str(other.totals[name]))):
            yield f"{how}: {name} {value} and {other.totals[name]}"
            return

"""The twin of a queue: the jobs in a scheduler's record, simulated under its policy.

    found = twin(read_queue(Path("queue-journal")))
    print(render(found))

Arrivals, GPUs and running times are recorded, and so are the estimates, the first decision that saw each job, and
the time for which the queue manager left its GPUs idle. It is simulated twice: with the recorded decisions, to
validate the simulated queue; and with the policy deciding again, on the jobs that a decision had seen by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from equipoise.policies.contract import Allocation, Decision, Kind, Memory, Plan, Policy, Stage, StageError, refine
from equipoise.policies.kernels.gangs import frozen, request_columns, room_columns, start_in_order
from equipoise.policies.kernels.placement import ANY
from equipoise.policies.observation import RUNNING, WAITING, Bools, Floats, Jobs, Observation, writable
from equipoise.policies.record.journal import JournalError, read
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run as simulate
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import make_trace
from equipoise.study.twin.queue_record import QueueRun, parts

NEAR_S = 5.0
"""Two starts are near when they differ by at most this time."""


_MOMENT_S = 0.01


@dataclass(frozen=True)
class QueueTwin:
    """A queue with its simulation. Starts in seconds from the first arrival, per job.

    reaction_s: mean time from the end of one job to the start of the next that waited for it. seen_s: mean time
    from a job's arrival to the first decision that saw it, or to its start if that came first.
    """

    run: QueueRun
    reaction_s: float
    seen_s: float
    start_s: Floats
    replayed_s: Floats  # with the recorded decisions
    anew_s: Floats  # with the policy deciding anew
    decisions: int
    decisions_again: int  # that are reproduced from the observations

    def apart_s(self, simulated_s: Floats) -> Floats:
        """How much later each job started than in a simulation (s)."""
        apart_s: Floats = self.start_s - simulated_s
        return apart_s

    def near_ratio(self, simulated_s: Floats) -> float:
        """Share of the jobs that started within NEAR_S of a simulation."""
        return float((np.abs(self.apart_s(simulated_s)) <= NEAR_S).mean())

    def waited_s(self, start_s: Floats) -> Floats:
        """Waiting times of starts (s)."""
        waited_s: Floats = start_s - (self.run.arrival_s - self.run.arrival_s[0])
        return waited_s


@dataclass(frozen=True)
class AsLiveQueue(Stage):
    """A stage with the live scheduler's view of jobs: their estimates, and no preemption."""

    name: ClassVar[str] = "as-live"
    kind: ClassVar[Kind] = "allocation"

    stage: Stage
    id: tuple[int, ...] = ()  # ascending
    estimate_s: tuple[float, ...] = ()

    def initial(self) -> Memory:
        """Memory of the stage."""
        return self.stage.initial()

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """The plan of the stage for jobs with these estimates."""
        jobs = Jobs.of(**observation.jobs.as_dict())
        estimate_s = np.array(self.estimate_s)[np.searchsorted(self.id, jobs.id)]
        running = jobs.state == RUNNING
        ran_s = np.where(running, observation.time_s - jobs.started_s, 0.0)
        writable(jobs, "duration_s")[:] = estimate_s
        writable(jobs, "service_s")[:] = np.maximum(estimate_s - ran_s, 0.0)
        writable(jobs, "restart_s")[running] = np.inf
        return self.stage.refine(replace(observation, jobs=jobs), plan, memory)


@dataclass(frozen=True)
class AsStarted(Stage):
    """Starts jobs in the order of the live decisions, each as soon as it fits."""

    name: ClassVar[str] = "as-started"
    kind: ClassVar[Kind] = "allocation"

    id: tuple[int, ...] = ()  # in that order

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start the next jobs; the first that has not arrived or does not fit blocks the others."""
        o, row_of = observation, {job: row for row, job in enumerate(observation.jobs.id.tolist())}
        order = [row_of.get(job, -1) for job in self.id]
        left = [row for row in order if row < 0 or o.jobs.state[row] == WAITING]
        rows = np.array(left[: left.index(-1)] if -1 in left else left, dtype=np.int64)
        grants, _ = start_in_order(frozen(rows), True, ANY, request_columns(o), room_columns(o))
        return (plan.with_(allocation=Allocation(*grants)) if len(grants[0]) else plan), memory


def twin(run: QueueRun, seed: int = 0) -> QueueTwin:
    """Simulate the jobs of a record under its policy and compare. Raises InputError, RunFailed."""
    stages = tuple(stage for stage in run.policy.stages if stage.kind == "allocation")
    order = np.argsort(run.id)
    known = tuple(run.id[order].tolist()), tuple(run.estimate_s[order].tolist())
    as_live = Policy(run.policy.name, tuple(AsLiveQueue(stage, *known) for stage in stages))
    decisions, again, places, first_s = _decisions(run)
    as_started = Policy("as-started", (AsStarted(tuple(_decided_order(run, places))),))
    last_s, waited = reactions_s(run)
    reaction_s = float(last_s[waited].mean()) if waited.any() else 0.0
    seen_s = _seen_s(run, first_s, waited)
    idle_s = _idle_s(run)
    return QueueTwin(
        run,
        reaction_s,
        float((seen_s - run.arrival_s).mean()),
        run.start_s - run.arrival_s[0],
        _simulated(run, as_started, run.arrival_s, idle_s, seed),
        _simulated(run, as_live, seen_s, idle_s, seed),
        decisions,
        again,
    )


def _seen_s(run: QueueRun, first_s: Mapping[int, float], waited: Bools) -> Floats:
    """Time (s) at which each job was visible to the policy: the first decision that saw it, else its arrival.

    A manager's times are truncated to whole seconds, so half a second is subtracted from the scheduler's. Jobs
    started before the changes of that decision were applied were started without it. A job that waited for no
    other's end waited only for the manager, until its start.
    """
    seen_s = np.array([first_s.get(job, -np.inf) for job in run.id.tolist()])
    done = np.searchsorted(run.did_s, seen_s)  # changes are made within a second of their decision, or not at all
    made_s = np.append(run.did_s, np.inf)[done]
    made_s = np.where(made_s < seen_s + 1.0, made_s, seen_s)
    seen_s -= 0.5
    for k in np.flatnonzero(np.isfinite(seen_s)).tolist():
        without = (run.start_s <= made_s[k]) & (run.start_s > seen_s[k] - 1.0) & (run.start_s < run.start_s[k])
        if (without & waited).any():
            seen_s[k] = max(seen_s[k], run.start_s[without & waited].max() + _MOMENT_S)
    seen_s = np.where(seen_s < run.start_s + 1.0, np.maximum(seen_s, run.arrival_s), run.arrival_s)
    came_s = np.maximum.accumulate(np.where(waited, seen_s, run.start_s))  # nobody before who came earlier
    return np.maximum(np.minimum(came_s, run.start_s), run.arrival_s)


def _decided_order(run: QueueRun, places: Sequence[tuple[float, Mapping[int, int]]]) -> list[int]:
    """Ids in order of starts; within one second, the resolution of Slurm, in the order of the decision before it.

    places: time of each decision, and the place of each job in the order that it made.
    """
    place = dict.fromkeys(run.id.tolist(), 0)
    for job, start_s in zip(run.id.tolist(), run.start_s.tolist(), strict=True):
        for time_s, found in places:
            if time_s <= start_s + 1.0 and job in found:
                place[job] = found[job]
    starts = zip(run.start_s.tolist(), run.id.tolist(), strict=True)
    return [job for _, _, job in sorted((start_s, place[job], job) for start_s, job in starts)]


def _simulated(run: QueueRun, policy: Policy, came_s: Floats, idle_s: Floats, seed: int) -> Floats:
    """Start of each job in a simulation (s), in the order of the record, counted from the first arrival.

    A job blocks its GPUs for its running time and the idle time after it.
    """
    took_s = np.maximum(run.end_s - run.start_s + idle_s, 1e-3)
    trace = make_trace(run.id, came_s - run.arrival_s[0], run.gpus, took_s, source=str(run.folder))
    made = simulate(from_mapping(_scenario(run)), policy=policy, seed=seed, trace=trace)
    if made.jobs["preemptions"].any():
        raise InputError([f"{run.folder}: {run.policy.name} stops running jobs in the simulation, but not live"])
    start_of = dict(zip(made.jobs["job_id"].tolist(), made.jobs["start_s"].tolist(), strict=True))
    return np.array([start_of[job] for job in run.id.tolist()])


def reactions_s(run: QueueRun) -> tuple[Floats, Bools]:
    """(time from the last end before each start to that start, whether the job had waited for that end)."""
    ends_s = np.sort(run.end_s)
    before = np.searchsorted(ends_s, run.start_s, side="right") - 1
    last_s = np.where(before >= 0, ends_s[before], -np.inf)
    return run.start_s - last_s, last_s >= run.arrival_s


def _idle_s(run: QueueRun) -> Floats:
    """Idle time (s) of the GPUs of each job after its end: until the next start, if jobs waited.

    The mean where no start shows it, because other jobs ended before the next start.
    """
    last_s, waited = reactions_s(run)
    mean_s = float(last_s[waited].mean()) if waited.any() else 0.0
    idle_s, before_s = np.full(len(run.id), mean_s), run.start_s - last_s
    for end_s in np.unique(run.end_s).tolist():
        after_s = last_s[before_s == end_s]
        if len(after_s) and ((run.arrival_s < end_s) & (run.start_s >= end_s)).any():
            idle_s[run.end_s == end_s] = after_s.min()
    return idle_s


def _scenario(run: QueueRun) -> dict[str, Any]:
    nodes = [{"name": name, "gpus": gpus} for name, gpus in run.nodes]
    return {"schema_version": 1, "name": "queue", "cluster": {"nodes": nodes}, "workload": {}}


def _decisions(run: QueueRun) -> tuple[int, int, list[tuple[float, dict[int, int]]], dict[int, float]]:
    """(recorded decisions, those reproduced from the observations, the order of starts of each, time of the first
    that saw each job)."""
    again, places = 0, list[tuple[float, dict[int, int]]]()
    first_s: dict[int, float] = {}
    try:
        for entry in (e for path in parts(run.folder / "decisions.jsonl") if path.exists() for e in read(path)):
            then = entry.decision
            again += _follows(run.policy, then)
            rows = next((r.values["order"] for r in then.plan.reasons if "order" in r.values), ())
            ids, time_s = then.observation.jobs.id.tolist(), then.observation.time_s
            places.append((time_s, {ids[row]: k for k, row in enumerate(rows)}))
            first_s = dict.fromkeys(ids, time_s) | first_s
    except JournalError as error:
        raise InputError([str(error)]) from error
    return len(places), again, places, first_s


def _follows(policy: Policy, then: Decision) -> bool:
    try:
        now = refine(policy, then.observation, then.memory_before).plan.allocation
    except StageError:
        return False
    was = then.plan.allocation
    if now is None or was is None:
        return now is was
    pairs = ((now.job, was.job), (now.offset, was.offset), (now.gpu, was.gpu))
    return all(np.array_equal(a, b) for a, b in pairs)


def as_data(found: QueueTwin) -> dict[str, Any]:
    """Plain data: seconds."""
    run = found.run
    names = ("id", "name", "gpus", "start_s", "replayed_s", "anew_s")
    columns = (run.id, run.name, run.gpus, found.start_s, found.replayed_s, found.anew_s)
    rows = zip(*(list(column) if isinstance(column, tuple) else column.tolist() for column in columns), strict=True)
    return {
        "run": str(run.folder),
        "policy": run.policy.name,
        "reaction_s": found.reaction_s,
        "seen_s": found.seen_s,
        "jobs": [dict(zip(names, row, strict=True)) for row in rows],
        "waiting_mean_s": float(found.waited_s(found.start_s).mean()),
        "replayed": _outcome(found, found.replayed_s),
        "anew": _outcome(found, found.anew_s),
        "decisions": found.decisions,
        "decisions_again": found.decisions_again,
        "notes": list(run.notes),
    }


def _outcome(found: QueueTwin, simulated_s: Floats) -> dict[str, float]:
    return {
        "waiting_mean_s": float(found.waited_s(simulated_s).mean()),
        "near_ratio": found.near_ratio(simulated_s),
        "near_s": NEAR_S,
        "apart_p90_s": float(np.percentile(np.abs(found.apart_s(simulated_s)), 90)),
    }


def render(found: QueueTwin) -> str:
    """A line for each job, and the summary."""
    run = found.run
    columns = (found.waited_s(s) for s in (found.start_s, found.replayed_s, found.anew_s))
    rows = zip(run.id.tolist(), run.name, run.gpus.tolist(), *columns, strict=True)
    lines = [
        f"twin of {run.folder}: {run.policy.name}, {len(run.id)} jobs on {sum(g for _, g in run.nodes)} GPUs, "
        f"{found.reaction_s:.2f} s between two jobs, {found.seen_s:.2f} s until a job was seen",
        "",
        f"{'job':>8}  {'name':<20}  {'GPUs':>4}  {'waited':>8}  {'in order':>8}  {'anew':>8}",
        *(f"{i:>8}  {n:<20.20}  {g:>4}  {a:>6.0f} s  {b:>6.0f} s  {c:>6.0f} s" for i, n, g, a, b, c in rows),
        "",
        f"mean waiting: {found.waited_s(found.start_s).mean():.1f} s",
    ]
    for title, simulated_s in (("in the live order", found.replayed_s), ("decided anew", found.anew_s)):
        outcome = _outcome(found, simulated_s)
        lines.append(
            f"{title}: mean waiting {outcome['waiting_mean_s']:.1f} s, "
            f"{100 * outcome['near_ratio']:.0f} % of the starts within {NEAR_S:g} s, "
            f"90 % within {outcome['apart_p90_s']:.1f} s"
        )
    again = f"{found.decisions_again} of {found.decisions} are reproduced from the observations"
    return "\n".join([*lines, f"decisions: {again}", *(f"note: {note}" for note in run.notes)]) + "\n"

"""The twin of a queue: the jobs that a scheduler's record holds, simulated under the policy that decided there.

    found = twin(read_queue(Path("queue-journal")))
    print(render(found))

Arrivals, GPUs and running times are those on record; what each job was thought to take is, too. The policy decides
anew, so that what is compared are its decisions and the waiting that they lead to, job by job.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from equipoise.policies.contract import Decision, Kind, Memory, Plan, Policy, Stage, StageError, refine
from equipoise.policies.observation import RUNNING, Floats, Ints, Jobs, Observation, writable
from equipoise.policies.record.journal import JournalError, read
from equipoise.policies.registry import PolicyError, make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run as simulate
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import Trace, make_trace

EVENTS = "events.jsonl"
FORMAT = {"format": "equipoise-queue", "version": 1}
NEAR_S = 5.0
"""Two starts are near when no more than this lies between them."""


@dataclass(frozen=True)
class QueueRun:
    """What a scheduler's record says. Arrays are per job, in order of (arrival, id); times in UTC seconds.

    estimate_s: what the job was thought to take, NaN where nobody knew.
    """

    folder: Path
    policy: Policy
    nodes: tuple[tuple[str, int], ...]  # name and GPUs of each
    id: Ints
    name: tuple[str, ...]
    gpus: Ints
    arrival_s: Floats
    start_s: Floats
    end_s: Floats
    estimate_s: Floats
    notes: tuple[str, ...]


@dataclass(frozen=True)
class QueueTwin:
    """A queue beside its simulation. Starts in seconds from the first arrival, per job."""

    run: QueueRun
    start_s: Floats
    simulated_s: Floats
    decisions: int
    decisions_again: int  # that follow again from what was observed

    @property
    def apart_s(self) -> Floats:
        """How much later each job started than its twin (s)."""
        apart_s: Floats = self.start_s - self.simulated_s
        return apart_s

    @property
    def near_ratio(self) -> float:
        """Share of the jobs that started within NEAR_S of their twin."""
        return float((np.abs(self.apart_s) <= NEAR_S).mean())

    def waited_s(self, start_s: Floats) -> Floats:
        """Waiting times of starts (s)."""
        waited_s: Floats = start_s - (self.run.arrival_s - self.run.arrival_s[0])
        return waited_s


def is_queue(folder: Path) -> bool:
    """Whether the folder holds the record of a queue."""
    return (folder / EVENTS).is_file()


def read_queue(folder: Path, policy: Policy | None = None) -> QueueRun:
    """Read a scheduler's record; `policy` in place of the one that it names. Raises InputError, one line."""
    jobs: dict[int, dict[str, Any]] = {}
    begun: dict[str, Any] = {}
    nodes: list[Any] = []
    requeued = False
    for event in _events(folder / EVENTS):
        kind = event["event"]
        if kind == "begun":
            begun = event
        elif kind == "nodes":
            nodes = event["nodes"]
        elif kind == "job":
            jobs.setdefault(event["id"], event)
        elif kind in ("start", "end") and event["id"] in jobs:
            jobs[event["id"]].update({k: event[k] for k in ("start_s", "end_s") if k in event})
        requeued |= kind == "requeued"
    path = folder / EVENTS
    if not begun or not nodes:
        raise InputError([f"{path}: no scheduler has looked at a queue here"])
    if requeued:
        raise InputError([f"{path}: running jobs were queued again; what such a job still needs has no twin"])
    over = sorted(
        (j for j in jobs.values() if "start_s" in j and "end_s" in j), key=lambda j: (j["arrival_s"], j["id"])
    )
    if not over:
        raise InputError([f"{path}: no job has started and ended on record"])
    missing = len(jobs) - len(over)
    return QueueRun(
        folder=folder,
        policy=policy if policy is not None else _policy(path, begun),
        nodes=tuple((str(name), int(gpus)) for name, gpus, _ in nodes),
        id=np.array([job["id"] for job in over], dtype=np.int64),
        name=tuple(str(job.get("name", "")) for job in over),
        gpus=np.array([job["gpus"] for job in over], dtype=np.int64),
        arrival_s=_column(over, "arrival_s"),
        start_s=_column(over, "start_s"),
        end_s=_column(over, "end_s"),
        estimate_s=_column(over, "estimate_s"),
        notes=(f"{missing} jobs have not started and ended on record, and are left out",) if missing else (),
    )


def _column(jobs: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.array([job.get(name, math.nan) for job in jobs], dtype=np.float64)


def _policy(path: Path, begun: Mapping[str, Any]) -> Policy:
    try:
        return make_policy(str(begun["policy"]))
    except PolicyError as error:
        raise InputError([f"{path}: policy: {error}; name the policy with --policy"]) from error


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Events of a record; a line that a killed scheduler has not written to its end is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError([f"{path}: {error.strerror}"]) from error
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if number == 1 and value != FORMAT:
            raise InputError([f"{path}:1: is not the record of a queue of version 1"])
        if isinstance(value, dict) and "event" in value:
            yield value


@dataclass(frozen=True)
class AsLive(Stage):
    """A stage that sees of each job what the live scheduler saw: its estimate, and that nothing may be stopped."""

    name: ClassVar[str] = "as-live"
    kind: ClassVar[Kind] = "allocation"

    stage: Stage
    id: tuple[int, ...] = ()  # ascending
    estimate_s: tuple[float, ...] = ()

    def initial(self) -> Memory:
        """Of the stage itself."""
        return self.stage.initial()

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """What the stage says to a table of jobs with these estimates."""
        jobs = Jobs.of(**observation.jobs.as_dict())
        estimate_s = np.array(self.estimate_s)[np.searchsorted(self.id, jobs.id)]
        running = jobs.state == RUNNING
        ran_s = np.where(running, observation.time_s - jobs.started_s, 0.0)
        writable(jobs, "duration_s")[:] = estimate_s
        writable(jobs, "service_s")[:] = np.maximum(estimate_s - ran_s, 0.0)
        writable(jobs, "restart_s")[running] = np.inf
        return self.stage.refine(replace(observation, jobs=jobs), plan, memory)


def twin(run: QueueRun, seed: int = 0) -> QueueTwin:
    """Simulate the jobs of a record under its policy and compare. Raises InputError, RunFailed."""
    stages = tuple(stage for stage in run.policy.stages if stage.kind == "allocation")
    order = np.argsort(run.id)
    known = tuple(run.id[order].tolist()), tuple(run.estimate_s[order].tolist())
    policy = Policy(run.policy.name, tuple(AsLive(stage, *known) for stage in stages))
    made = simulate(from_mapping(_scenario(run)), policy=policy, seed=seed, trace=_trace(run))
    if made.totals["refusals"] or made.jobs["preemptions"].any():
        raise InputError(
            [f"{run.folder}: {run.policy.name} stops running jobs in the simulation, and did not live"]
        )
    start_of = dict(zip(made.jobs["job_id"].tolist(), made.jobs["start_s"].tolist(), strict=True))
    simulated_s = np.array([start_of[job] for job in run.id.tolist()])
    decisions, again = _decided_again(run)
    return QueueTwin(run, run.start_s - run.arrival_s[0], simulated_s, decisions, again)


def _scenario(run: QueueRun) -> dict[str, Any]:
    nodes = [{"name": name, "gpus": gpus} for name, gpus in run.nodes]
    return {"schema_version": 1, "name": "queue", "cluster": {"nodes": nodes}, "workload": {}}


def _trace(run: QueueRun) -> Trace:
    """A job holds its GPUs for as long as it did; Slurm writes whole seconds, so half of one is the mean error."""
    took_s = np.maximum(run.end_s - run.start_s, 1e-3)
    return make_trace(run.id, run.arrival_s - run.arrival_s[0], run.gpus, took_s, source=str(run.folder))


def _decided_again(run: QueueRun) -> tuple[int, int]:
    """(decisions on record, those whose allocation follows again from what was observed)."""
    path, count, again = run.folder / "decisions.jsonl", 0, 0
    try:
        for entry in read(path) if path.exists() else ():
            count += 1
            again += _follows(run.policy, entry.decision)
    except JournalError as error:
        raise InputError([str(error)]) from error
    return count, again


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
    columns = (run.id, run.name, run.gpus, found.start_s, found.simulated_s)
    names = ("id", "name", "gpus", "start_s", "simulated_s")
    return {
        "run": str(run.folder),
        "policy": run.policy.name,
        "jobs": [
            dict(zip(names, row, strict=True))
            for row in zip(*(c if isinstance(c, tuple) else c.tolist() for c in columns), strict=True)
        ],
        "waiting_mean_s": float(found.waited_s(found.start_s).mean()),
        "simulated_waiting_mean_s": float(found.waited_s(found.simulated_s).mean()),
        "near_ratio": found.near_ratio,
        "near_s": NEAR_S,
        "decisions": found.decisions,
        "decisions_again": found.decisions_again,
        "notes": list(run.notes),
    }


def render(found: QueueTwin) -> str:
    """A line for each job, and what it comes to."""
    run, live_s, simulated_s = found.run, found.waited_s(found.start_s), found.waited_s(found.simulated_s)
    rows = zip(run.id.tolist(), run.name, run.gpus.tolist(), live_s, simulated_s, found.apart_s, strict=True)
    lines = [
        f"twin of {run.folder}: {run.policy.name}, {len(run.id)} jobs on {sum(g for _, g in run.nodes)} GPUs",
        "",
        f"{'job':>8}  {'name':<20}  {'GPUs':>4}  {'waited':>8}  {'twin':>8}  {'apart':>7}",
        *(f"{i:>8}  {n:<20.20}  {g:>4}  {a:>6.0f} s  {b:>6.0f} s  {d:>+5.0f} s" for i, n, g, a, b, d in rows),
        "",
        f"waiting: mean {live_s.mean():.1f} s, twin {simulated_s.mean():.1f} s",
        f"starts: {100 * found.near_ratio:.0f} % within {NEAR_S:g} s of the twin, "
        f"90 % within {np.percentile(np.abs(found.apart_s), 90):.0f} s",
        f"decisions: {found.decisions_again} of {found.decisions} follow again from what was observed",
        *(f"note: {note}" for note in run.notes),
    ]
    return "\n".join(lines) + "\n"

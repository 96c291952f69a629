"""One simulation from a scenario to its records: `run(scenario) -> Run`."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from policies import make_policy
from policies.contract import Decision, Policy, Refusal, StageError
from policies.jit import initialise
from sim.bill import bill
from sim.books import USES
from sim.cluster import Cluster
from sim.cost import load_book, make_prices
from sim.demand import make_demand
from sim.faults import Faults
from sim.futility import Stalled
from sim.hardware import load_profile
from sim.job import BUSY, EXPOSED, LOST, RESTART, STALL, USEFUL, WAIT
from sim.record import Run, code_hash, identity
from sim.scenario import Scenario
from sim.topology import Topology
from sim.traces import Trace, read_trace
from sim.world import SimWorld

Progress = Callable[[float, int, int], None]
INTERRUPTED = "interrupted"
_PROGRESS_S = 0.5

_USES = (
    ("busy", BUSY), ("input_stall", STALL), ("barrier_wait", WAIT), ("exposed_communication", EXPOSED),
    ("restart", RESTART), ("lost_to_faults", LOST), ("useful", USEFUL),
)  # fmt: skip


class RunFailed(RuntimeError):
    """A run that could not go on; `.run` holds its records up to then."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run

    def __reduce__(self) -> tuple[type[RunFailed], tuple[str, Run]]:
        return type(self), (str(self), self.run)  # so that it comes back whole from another process


class RunInterrupted(RunFailed):
    """A run that was stopped from outside; `.run` holds its records up to then."""


def run(
    scenario: Scenario,
    *,
    policy: Policy | None = None,
    seed: int | None = None,
    trace: Trace | None = None,
    journal: Path | None = None,
    progress: Progress | None = None,
    event_by_event: bool = False,
    timeline: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Simulate a scenario.

    Args:
        scenario: what to simulate.
        policy, seed: instead of the scenario's own.
        trace: jobs, instead of reading `workload.trace.file`.
        journal: file to which every decision is written.
        event_by_event: use the plain time advance, one event per worker and step (slow; for comparison).
        progress: called about twice a second with (simulated s, jobs done, jobs in all).
        timeline: record what happens when, too (`Run.timeline`).
        stop: asked before each event; true ends the run there.

    Raises InputError for a scenario that cannot be run, RunFailed when a stage fails or nothing can go on,
    RunInterrupted when `stop` said so.
    """
    policy = policy if policy is not None else make_policy(list(scenario.policy))
    seed = scenario.seed if seed is None else seed
    trace = trace if trace is not None else trace_of(scenario)
    topology = Topology(scenario.cluster)
    profile = load_profile(scenario.cluster.hardware)
    cluster = Cluster(scenario.cluster, profile, topology)
    demand = make_demand(scenario, trace, cluster)
    writer = _journal(journal)
    initialise()
    began = time.process_time()

    def record(decision: Decision, refused: list[Refusal]) -> None:
        if writer is not None:
            writer.write(decision, refused)

    world = SimWorld(
        scenario, demand, cluster, topology, policy, seed, record if writer is not None else None,
        event_by_event=event_by_event, prices=make_prices(scenario, profile), timeline=timeline,
    )  # fmt: skip
    Faults(world)
    stopped: str | None = None
    try:
        if not _advance(world, scenario, progress, stop):
            stopped = INTERRUPTED
    except (StageError, Stalled) as error:
        stopped = str(error)
    finally:
        if writer is not None:
            writer.close()
    if stopped is not None:
        world.close(world.clock.now)
    result = _collect(world, scenario, policy, seed, trace, stopped, time.process_time() - began)
    if stopped is not None:
        raise (RunInterrupted if stopped == INTERRUPTED else RunFailed)(stopped, result)
    return result


def _journal(path: Path | None) -> Any:
    if path is None:
        return None
    from policies.journal import JournalWriter  # only when asked for: it is not free to load

    return JournalWriter(path)


def trace_of(scenario: Scenario) -> Trace | None:
    """The trace that a scenario names, read from its file."""
    spec = scenario.workload.trace
    if spec is None:
        return None
    return read_trace(spec.file, spec.format, spec.limit, spec.clusters, spec.time_scale)


def _advance(
    world: SimWorld, scenario: Scenario, progress: Progress | None, stop: Callable[[], bool] | None
) -> bool:
    """Step until all jobs are done or the horizon is reached; False when `stop` said so before."""
    clock, queue, done, total = world.clock, world.clock._queue, world.done, len(world.demand)
    horizon_s = scenario.horizon if scenario.horizon is not None else np.inf
    next_report, countdown = time.monotonic() + _PROGRESS_S, 1000
    while not done.triggered:
        if not queue:
            raise Stalled(f"{total - world.completed} jobs are not done and nothing is left to happen")
        if queue[0][0] > horizon_s:
            world.close(horizon_s)
            break
        if stop is not None and stop():
            return False
        clock.step()
        countdown -= 1
        if countdown == 0:
            countdown = 1000
            if progress is not None and time.monotonic() >= next_report:
                progress(clock.now, world.completed, total)
                next_report = time.monotonic() + _PROGRESS_S
    if progress is not None:
        progress(clock.now, world.completed, total)
    return True


def run_identity(scenario: Scenario, policy: Policy, seed: int, trace: Trace | None) -> str:
    """Identity of the run that these inputs give, known before it is made."""
    return run_identities(scenario, policy, [seed], trace)[0]


def run_identities(
    scenario: Scenario, policy: Policy, seeds: Iterable[int], trace: Trace | None
) -> list[str]:
    """Identities of runs that differ in their seeds alone: what they share is written out once."""
    config = scenario.model_dump_json()
    profile = load_profile(scenario.cluster.hardware).model_dump_json()
    prices = load_book(scenario.cost.book).model_dump_json()
    traced = trace.digest() if trace is not None else b""
    code = code_hash() + _plugin_hash(policy)
    return [
        identity(
            config=config,
            profile=profile,
            prices=prices,
            policy=policy.name,
            seed=seed,
            trace=traced,
            code=code,
        )
        for seed in seeds
    ]


def _plugin_hash(policy: Policy) -> str:
    """Hash of the source files of stages that come from elsewhere; "" when there are none."""
    files = {
        module.__file__
        for stage in policy.stages
        if (module := sys.modules.get(type(stage).__module__)) is not None
        and not module.__name__.startswith("policies.")
        and getattr(module, "__file__", None)
    }
    digest = hashlib.sha256()
    for name in sorted(str(file) for file in files):
        digest.update(Path(name).read_bytes())
    return digest.hexdigest()[:16] if files else ""


def _collect(
    world: SimWorld,
    scenario: Scenario,
    policy: Policy,
    seed: int,
    trace: Trace | None,
    stopped: str | None,
    cpu_s: float,
) -> Run:
    jobs = _job_columns(world)
    totals = _totals(world, jobs)
    uses = np.stack([jobs[f"{name}_gpu_s"] for name, _ in _USES[:USES]], axis=1)
    billed, bills = bill(world, uses, totals["makespan_s"])
    jobs, totals = jobs | billed, totals | bills
    inputs = {"code": code_hash(), "trace": trace.digest().hex() if trace is not None else ""}
    notes = list(demand_notes(world, scenario))
    return Run(
        scenario_name=scenario.name,
        policy_name=policy.name,
        seed=seed,
        identity=run_identity(scenario, policy, seed, trace),
        config=scenario.model_dump_json(),
        jobs=jobs,
        totals=totals,
        notes=tuple(notes),
        stopped=stopped,
        cpu_s=cpu_s,
        inputs=inputs,
        timeline=None if world.timeline is None else world.timeline.tables(_end_s(world, jobs)),
    )


def demand_notes(world: SimWorld, scenario: Scenario) -> list[str]:
    """What a reader of the results should know about their input."""
    notes = list(world.demand.notes)
    if not is_random(scenario):
        notes.append("no noise, faults or estimate error: every seed gives the same run")
    if world.prices.note:
        notes.append(f"money at {world.prices.note}; give your own under 'cost'")
    if world.refusals:
        time_s, what, why = world.refusals[0]
        notes.append(
            f"{len(world.refusals)} parts of plans were refused; first at {time_s:.6g} s: {what}: {why}"
        )
    return notes


def is_random(scenario: Scenario) -> bool:
    """Whether runs with different seeds can differ."""
    faults = scenario.faults
    random = (faults.crash, faults.fail_slow, faults.link, faults.rack, faults.spot)
    return bool(scenario.noise.step_cov or scenario.decide.estimate_error or any(random))


def _job_columns(world: SimWorld) -> dict[str, Any]:
    demand, now = world.demand, world.clock.now
    n = len(demand)
    accounts = [world.account(row) for row in range(n)]
    gpu_s = np.array([a[0] for a in accounts]).reshape(n, 7)
    waiting = np.zeros(n, dtype=bool)
    waiting[world.waiting.rows] = True
    columns = world.observer.job_columns()
    since = np.where(waiting, now - columns["queued_since_s"], 0.0)
    jobs: dict[str, Any] = {
        "job_id": demand.id,
        "name": np.array(demand.name, dtype=object),
        "arrival_s": demand.arrival_s,
        "start_s": world.start_s,
        "completion_s": world.completion_s,
        "gpus": demand.gpus,
        "queueing_s": columns["waited_s"] + since,
        "samples": np.array([a[1] for a in accounts], dtype=np.int64),
        "useful_samples": np.array([a[2] for a in accounts], dtype=np.float64),
        "lost_samples": np.array([a[3] for a in accounts], dtype=np.int64),
        "steps": np.array([a[4] for a in accounts], dtype=np.int64),
        "preemptions": world.preemptions,
        "restarts": world.restarts,
    }
    return jobs | {f"{name}_gpu_s": gpu_s[:, row].copy() for name, row in _USES}


def _end_s(world: SimWorld, jobs: dict[str, Any]) -> float:
    """When the run ended: with its last job, or when it was stopped."""
    done = ~np.isnan(jobs["completion_s"])
    return float(jobs["completion_s"][done].max()) if done.all() and done.size else world.clock.now


def _totals(world: SimWorld, jobs: dict[str, Any]) -> dict[str, float]:
    end_s = _end_s(world, jobs)
    start_s = min(float(world.demand.arrival_s[0]), end_s)  # a horizon may end it before
    gpus = float(len(world.cluster.gpus))
    used = sum(float(jobs[f"{name}_gpu_s"].sum()) for name, _ in _USES if name != "useful")
    return {
        "gpus": gpus,
        "nodes": float(len(world.cluster.nodes)),
        "end_s": end_s,
        "makespan_s": end_s - start_s,
        "idle_gpu_s": gpus * (end_s - start_s) - used,
        "decisions": float(world.decisions),
        "refusals": float(len(world.refusals)),
        "exchanged_bytes": sum(job.exchanged_bytes for _, job in sorted(world.training.items())),
        "transferred_bytes": world.transfers.moved_bytes,
    }

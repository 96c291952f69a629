"""One simulation from a scenario to its records: `run(scenario) -> Run`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.base.sources import combined
from equipoise.policies.contract import Policy, StageError
from equipoise.policies.kernels.jit import initialise
from equipoise.policies.registry import PolicyError, make_policy, stages_of
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cost.configuration import Configuration
from equipoise.sim.feature import with_jobs
from equipoise.sim.hardware.prices import make_prices
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.inputs import drawn_jobs, run_inputs, trace_of
from equipoise.sim.job.demand import make_demand
from equipoise.sim.loading.file import with_measured
from equipoise.sim.loading.transformers import bound_scenario, plan_notes
from equipoise.sim.network.topology import Topology
from equipoise.sim.randomness import gpu_times
from equipoise.sim.record import Run
from equipoise.sim.results import Results
from equipoise.sim.scenario.model import (
    GROUPS_WITHOUT_FEATURES,
    WITHOUT_FEATURES,
    Decide,
    FaultsSpec,
    JobSpec,
    Noise,
    Restart,
    Scenario,
)
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.seeds import is_random
from equipoise.sim.traces.trace import Trace
from equipoise.sim.world.stall import Stalled
from equipoise.sim.world.world import SimWorld

Progress = Callable[[float, int, int], None]
INTERRUPTED = "interrupted"
_PROGRESS_S = 0.5


class RunFailed(RuntimeError):
    """The run could not continue; `.run` holds its records up to then."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run

    def __reduce__(self) -> tuple[type[RunFailed], tuple[str, Run]]:
        return type(self), (str(self), self.run)  # so that it comes back whole from another process


class RunInterrupted(RunFailed):
    """The run was stopped from outside; `.run` holds its records up to then."""


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
    asked = bound_scenario(with_measured(scenario))
    scenario = with_jobs(asked, seed)
    trace = trace if trace is not None else trace_of(scenario)
    drawn = drawn_jobs(scenario, seed, trace)
    profile = load_profile(scenario.cluster.hardware)
    topology = Topology(scenario.cluster, profile)
    cluster = Cluster(scenario.cluster, profile, topology)
    gpus = dict(zip(topology.node_names, cluster.nodes.gpus.tolist(), strict=True))
    noise = scenario.noise
    cluster.gpu_time = gpu_times(seed, gpus, noise.gpu_cov, noise.slow_nodes, noise.slow_speed)
    demand = make_demand(scenario, drawn, cluster)
    writer = _journal(journal)
    initialise()
    began = time.process_time()

    world = SimWorld(
        scenario,
        demand,
        cluster,
        topology,
        policy,
        seed,
        None if writer is None else writer.write,
        event_by_event=event_by_event,
        prices=make_prices(scenario, profile),
        timeline=timeline or scenario.energy.region is not None,
    )
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
    cpu_s = time.process_time() - began
    results, inputs = Results(world, keeps_timeline=timeline), run_inputs(asked, policy, seed, trace)
    jobs, totals = results.billed()
    result = Run(
        scenario_name=scenario.name,
        policy_name=policy.name,
        seed=seed,
        identity=combined(inputs.items()),
        config=_as_run(scenario, policy, seed).model_dump_json(),
        jobs=jobs,
        totals=totals,
        notes=(*results.notes(is_random=is_random(scenario)), *plan_notes(scenario)),
        stopped=stopped,
        cpu_s=cpu_s,
        inputs=inputs,
        timeline=results.timeline(),
        tables=results.tables(),
    )
    if stopped is not None:
        raise (RunInterrupted if stopped == INTERRUPTED else RunFailed)(stopped, result)
    return result


def placed_alone(scenario: Scenario, job: JobSpec) -> Configuration:
    """The configuration of a training job that runs alone from its start on, placed by `fifo`, at the clocks of caps.

    Nothing else acts: no faults, noise, heat, features or limits of memory. Raises InputError when the job cannot
    start, as by a limit of its queue.
    """
    groups = tuple(g.model_copy(update={"available": None, **GROUPS_WITHOUT_FEATURES}) for g in scenario.cluster.nodes)
    of_job = {"count": 1, "arrival": 0.0, "workers_min": None, "workers_max": None}
    workload = scenario.workload.model_copy(
        update={"jobs": (job.model_copy(update=of_job),), "trace": None, "generate": None}
    )
    plain = {
        "cluster": scenario.cluster.model_copy(update={"nodes": groups}),
        "workload": workload,
        **WITHOUT_FEATURES,
        "decide": Decide(),
        "noise": Noise(),
        "faults": FaultsSpec(),
        "restart": Restart(initialisation=0.0),
        "thermal": None,
    }
    scenario = bound_scenario(with_measured(scenario.model_copy(update=plain)))
    profile = load_profile(scenario.cluster.hardware)
    roomy = {
        name: a.model_copy(update={"memory_bytes": a.memory_bytes.model_copy(update={"value": math.inf})})
        for name, a in profile.accelerators.items()
    }
    topology = Topology(scenario.cluster, profile)
    cluster = Cluster(scenario.cluster, profile.model_copy(update={"accelerators": roomy}), topology)
    demand, prices = make_demand(scenario, None, cluster), make_prices(scenario, profile)
    world = SimWorld(scenario, demand, cluster, topology, make_policy(["fifo"]), 0, prices=prices)
    while world.clock.peek() <= 0.0:
        world.clock.step()
    config = world.roster.training[0].config
    if not config.workers:
        raise InputError([f"{scenario.name}: job {job.name!r} cannot start on the nodes that it may use"])
    config.work_out()
    return config


def _as_run(scenario: Scenario, policy: Policy, seed: int) -> Scenario:
    """The scenario with the policy and seed that ran; with its own policy where that is not one of named stages."""
    ran: dict[str, Any] = {"seed": seed}
    try:
        if make_policy(policy.name).stages == policy.stages:
            ran["policy"] = stages_of(policy.name)
    except PolicyError:
        pass
    return scenario.model_copy(update=ran)


def _journal(path: Path | None) -> Any:
    if path is None:
        return None
    from equipoise.policies.record.journal import JournalWriter  # only when asked for: it is not free to load

    return JournalWriter(path)


def _advance(world: SimWorld, scenario: Scenario, progress: Progress | None, stop: Callable[[], bool] | None) -> bool:
    """Step until all jobs are done or the horizon is reached; False when `stop` said so before."""
    clock, queue, done, total = world.clock, world.clock._queue, world.done, len(world.demand)
    horizon_s = scenario.horizon if scenario.horizon is not None else np.inf
    next_report, countdown = time.monotonic() + _PROGRESS_S, 1000
    while not done.triggered:
        if not queue:
            raise Stalled(f"{total - world.roster.completed} jobs are not done, but no event is left")
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
                progress(clock.now, world.roster.completed, total)
                next_report = time.monotonic() + _PROGRESS_S
    if progress is not None:
        progress(clock.now, world.roster.completed, total)
    return True

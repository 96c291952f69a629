"""Compiling the kernels before they are needed, in as many processes as there are processors.

Compiled kernels stay in a cache on disk, so this happens once per version of the software. Compilation is split into
portions: the simulator's kernels, and those of each stage. A portion is compiled by a small run that uses its
kernels and as few others as possible; stages that move data use the network's.
"""

from __future__ import annotations

import copy
import gc
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, ClassVar

import numpy as np

from equipoise.base.sources import environment
from equipoise.policies.contract import Allocation, AllocationStage, Memory, Plan, Policy, Stage
from equipoise.policies.kernels.jit import cache_dir
from equipoise.policies.observation import Observation
from equipoise.policies.registry import BUILT_IN, make_policy
from equipoise.sim.clock import Clock
from equipoise.sim.network.network import Network
from equipoise.sim.run import RunFailed, run
from equipoise.sim.scenario.model import Scenario

_NETWORK, _ADVANCE = "network", "time-advance"
_QUEUE = " with a queue"
_COST = {_NETWORK: 5.0, _ADVANCE: 4.0, "s1": 4.0, "s2": 2.0, "s3": 0.5}  # CPU s, about, to share the work out
_COST_OF_ALLOCATION, _COST_OF_OTHERS, _COST_OF_RUNS = 3.7, 1.0, 1.5

_SMALL: dict[str, Any] = {
    "schema_version": 1,
    "name": "warm-up",
    "cluster": {
        "nodes": [{"count": 2, "gpus": 2}, {"name": "slow", "count": 2, "gpus": 2, "speed": 0.5}],
        "slow_links": [{"node": "slow-1", "rate": "1 Gbit/s"}],
    },
    "workload": {
        "models": {
            "model": {
                "fixed_time": 1e-3,
                "sample_time": 1e-3,
                "parameters": 1e6,
                "overlap": 2.0,
                "noise_scale": 100.0,
                "drift": 0.01,
            }
        },
        "jobs": [
            {
                "name": "training",
                "count": 2,
                "model": "model",
                "gpus": 4,
                "steps": 60,
                "global_batch": 32,
                "data": {
                    "samples": 640,
                    "sample_size": 1000,
                    "shards": 32,
                    "placement": {"kind": "skewed", "exponent": 1.0},
                },
            },
            {"name": "rigid", "count": 3, "spacing": 1.0, "gpus": 2, "duration": 5.0},
        ],
    },
    "decide": {"every_steps": 5},
    "noise": {"step_cov": 0.1},
    "faults": {"events": [{"kind": "slow", "node": "slow-0", "at": 1.0, "duration": 2.0}]},
}


def warm(policies: Iterable[str | Policy], scenario: Scenario | None = None) -> None:
    """Compile the kernels that the built-in stages of these policies need and that are not in the cache yet.

    scenario: with a single job, kernels for queues are left out.
    """
    with warming(policies, scenario):
        pass


@contextmanager
def warming(policies: Iterable[str | Policy], scenario: Scenario | None = None) -> Iterator[None]:
    """As `warm`, but returns when this process has done its part, and waits for the others at the end."""
    missing = [portion for portion in _portions(policies, scenario) if not _mark(portion).exists()]
    groups = _share_out(missing, min(processors(), len(missing)))
    if groups:
        print("compiling kernels, this once", file=sys.stderr)
    command = [sys.executable, "-m", "equipoise.study.runs.warm"]
    others = [
        subprocess.Popen([*command, *group], env=environment(), stdout=DEVNULL, stderr=DEVNULL) for group in groups[1:]
    ]
    try:
        compile_portions(*groups[:1])
        yield
        for other in others:  # what fails there is compiled when it is needed, and says why
            other.wait()
    finally:
        for other in others:
            other.kill()
            other.wait()


def compile_portions(portions: Iterable[str] = ()) -> None:
    """Compile these portions, one after the other, and write a marker in the cache's folder for each."""
    with _no_collection():
        for portion in portions:
            with suppress(RunFailed):  # if it fails in the user's case too, the run there says so
                _compile(*portion.partition(_QUEUE)[:2])
                _mark(portion).touch()


def _compile(name: str, queue: str) -> None:
    if name == _NETWORK:
        _compile_network()
    elif name == _ADVANCE:
        run(_case(alone=not queue, moves=False, noise=True), policy=Policy("compile", (_Plainly(),)), seed=0)
    else:
        scenario = _case(alone=not queue, moves=_kind(name) == "data", noise=False)
        run(scenario, policy=_only(name), seed=0, event_by_event=True)


def _compile_network() -> None:
    """Two flows that share a link, and a look at it when one has ended."""
    clock = Clock()
    network, link = Network(clock, np.ones(1)), np.zeros(1, dtype=np.int64)
    for volume_bytes in (1.0, 2.0):
        network.start(volume_bytes, link, np.ones(1), math.inf, lambda _flow: network.count_on(0))
    clock.run()


def _case(*, alone: bool, moves: bool, noise: bool) -> Scenario:
    """The small case: with one training job or with all its jobs, with or without anything on the network."""
    raw = copy.deepcopy(_SMALL)
    if alone:
        raw["workload"]["jobs"] = [{**raw["workload"]["jobs"][0], "count": 1}]
    if not moves:
        raw["workload"]["models"]["model"]["parameters"] = 0
        raw["workload"]["jobs"][0]["data"]["replicas"] = 4
    if not noise:
        del raw["noise"]
    return Scenario.model_validate(raw)


def _kind(name: str) -> str:
    return make_policy(name).stages[0].kind


def _only(name: str) -> Policy:
    """The named stage alone, with a simple stage that starts jobs."""
    stages: tuple[Stage, ...] = make_policy(name).stages
    return Policy("compile", stages if _kind(name) == "allocation" else (stages[0], _Plainly()))


def _portions(policies: Iterable[str | Policy], scenario: Scenario | None) -> list[str]:
    """Portions to compile: by stage and, if jobs train, of the simulator; all of them without a scenario."""
    made = (policy if isinstance(policy, Policy) else make_policy(policy) for policy in policies)
    names = list({stage.name: None for policy in made for stage in policy.stages if stage.name in BUILT_IN})
    if scenario is None:
        return [name + _QUEUE for name in (_NETWORK, _ADVANCE, *names)]
    if scenario.workload.models:
        names[:0] = [_NETWORK, _ADVANCE]
    alone = scenario.workload.trace is None and sum(job.count for job in scenario.workload.jobs) == 1
    return names if alone else [name + _QUEUE for name in names]


def _share_out(portions: Sequence[str], groups: int) -> list[list[str]]:
    """Assign portions, longest first, each to the group with least work; within a group in the given order.

    The first group is for this process, which continues with the runs afterwards.
    """
    movers = [name for name in portions if _plain(name) == _NETWORK or _kind_of(name) == "data"]
    units = [movers, *([name] for name in portions if name not in movers)]  # one process compiles the network
    shared: list[list[str]] = [[] for _ in range(groups)]
    load = [_COST_OF_RUNS, *[0.0] * (groups - 1)]
    for unit in sorted(filter(None, units), key=_cost, reverse=True):
        least = load.index(min(load))
        shared[least] += unit
        load[least] += _cost(unit)
    return [sorted(group, key=portions.index) for group in shared]


def _plain(portion: str) -> str:
    return portion.removesuffix(_QUEUE)


def _kind_of(portion: str) -> str:
    return "" if _plain(portion) in (_NETWORK, _ADVANCE) else _kind(_plain(portion))


def _cost(unit: Sequence[str]) -> float:
    allocation = sum(_COST_OF_ALLOCATION for name in unit if _kind_of(name) == "allocation")
    others = (name for name in map(_plain, unit) if _kind_of(name) != "allocation")
    return allocation + sum(_COST.get(name, _COST_OF_OTHERS) for name in others)


def _mark(portion: str) -> Path:
    return cache_dir() / f"compiled-{portion.replace(' ', '-')}"


def processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection, which takes a tenth of the time of compilation."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass(frozen=True)
class _Plainly(AllocationStage):
    """Starts what fits, without kernels."""

    name: ClassVar[str] = "plainly"
    order: ClassVar[str] = "arrival, then id"
    blocking: ClassVar[str] = "strict"
    preemption: ClassVar[str] = "never"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start the first waiting job where it fits."""
        free = np.flatnonzero(observation.gpus.share_free == 1.0)
        if not len(observation.waiting) or observation.jobs.gpus_requested[observation.waiting[0]] > len(free):
            return plan, memory
        row = int(observation.waiting[0])
        gpus = free[: int(observation.jobs.gpus_requested[row])]
        return plan.with_(allocation=Allocation.of([(row, gpus.tolist())])), memory


if __name__ == "__main__":
    compile_portions(sys.argv[1:])

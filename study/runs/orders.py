"""The runs of a sweep: what each one is, and how one is made in whatever process it lands.

An order is small, plain and complete, so that it can travel to another machine; its id is the identity of the
run that it asks for. What all orders share (where files lie, whether run directories are kept) is `Shared`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.policies.registry import make_policy
from equipoise.policies.sources import code_hash
from equipoise.sim.loading.checks import trace_problems
from equipoise.sim.loading.file import ScenarioFile, read_scenario, to_trace
from equipoise.sim.record import Run
from equipoise.sim.run import RunFailed, is_random, run, run_identities
from equipoise.sim.scenario.model import Scenario, TraceSpec
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import Trace
from equipoise.study.runs.sweep_spec import Point, SweepSpec

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """One run to make. `scenario` is its scenario as JSON, shared by all orders of one point."""

    id: str
    number: int
    point: int
    policy: str
    seed: int
    scenario: str
    values: Mapping[str, Any]

    def row(self) -> Row:
        """The columns that say which run it is."""
        which = {"id": self.id, "number": self.number, "point": self.point}
        return {**which, "policy": self.policy, "seed": self.seed, **self.values}


@dataclass(frozen=True)
class Shared:
    """What all runs of a sweep share.

    folders: where traces are looked up. keep: folder of run directories, None for none. code: hash of the
    sources, against workers of another version. runner: what makes a run. timeline: keep it, too.
    """

    folders: tuple[Path, ...]
    code: str
    keep: Path | None = None
    runner: Callable[..., Run] = run
    timeline: bool = False

    @property
    def token(self) -> str:
        """Differs for sweeps that must not be mixed up on one worker."""
        text = f"{self.folders} {self.code} {self.keep} {self.timeline} "
        text += f"{self.runner.__module__}.{self.runner.__qualname__}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def check(self) -> None:
        """Raises RuntimeError when this process runs other code than the one that made the orders."""
        if self.code != code_hash():
            raise RuntimeError(f"a worker runs other code ({code_hash()}) than this sweep ({self.code})")


def orders_of(spec: SweepSpec, base: Path, source: str) -> tuple[list[Order], Shared, list[str]]:
    """All runs of a sweep in a fixed order, what they share, and notes for people.

    base: folder that the scenario is named from. source: the sweep file, for messages.
    Raises InputError (a point that cannot be run) and PolicyError before anything is run.
    """
    policies = [make_policy(text) for text in spec.policies]
    orders: list[Order] = []
    sure = 0
    folders: tuple[Path, ...] = ()
    for number, point in enumerate(spec.points()):
        file = _at_point(spec, base, point, f"{source}: {_named(number, point)}")
        trace = _cached_trace(file.scenario.workload.trace, file.folders)
        if trace is not None and (wrong := trace_problems(file.scenario, trace, trace.source)):
            raise InputError(f"{source}: {_named(number, point)}: {line}" for line in wrong)
        seeds = spec.seeds if is_random(file.scenario) else 1
        sure, folders = sure + (seeds < spec.seeds), file.folders
        text = file.scenario.model_dump_json()
        for name, policy in zip(spec.policies, policies, strict=True):
            numbers = range(file.scenario.seed, file.scenario.seed + seeds)
            keys = run_identities(file.scenario, policy, numbers, trace)
            for seed, key in zip(numbers, keys, strict=True):
                orders.append(Order(key, len(orders), number, name, seed, text, point))
    notes = [f"{sure} points have nothing random in them and are run on one seed"] if sure else []
    return _distinct(orders), Shared(folders, code_hash()), notes


def _named(number: int, point: Point) -> str:
    values = ", ".join(f"{key}={value}" for key, value in point.items())
    return f"point {number} ({values})" if values else "the scenario"


def _distinct(orders: list[Order]) -> list[Order]:
    """Each run once: two points can stand for the same scenario."""
    return list({order.id: order for order in reversed(orders)}.values())[::-1]


def _at_point(spec: SweepSpec, base: Path, point: Point, where: str) -> ScenarioFile:
    try:
        overrides = [f"{key}={json.dumps(value)}" for key, value in point.items()]
        return read_scenario(base / spec.scenario, overrides, spec.trace)
    except InputError as error:
        raise InputError(f"{where}: {line.removeprefix('--set ')}" for line in error.lines) from error


def _cached_trace(spec: TraceSpec | None, folders: tuple[Path, ...]) -> Trace | None:
    return None if spec is None else _trace(spec.model_dump_json(), folders)


@lru_cache(maxsize=4)
def _trace(spec: str, folders: tuple[Path, ...]) -> Trace:
    return to_trace(TraceSpec.model_validate_json(spec), folders)


@lru_cache(maxsize=4)
def _scenario(text: str) -> Scenario:
    return Scenario.model_validate_json(text)


def perform(order: Order, shared: Shared) -> Row:
    """Make one run and return its row; whatever it raises becomes a failed row."""
    began_wall_s, began_cpu_s = time.perf_counter(), time.process_time()
    try:
        scenario = _scenario(order.scenario)
        trace = _cached_trace(scenario.workload.trace, shared.folders)
        more = {"timeline": True} if shared.timeline else {}
        made = shared.runner(scenario, policy=make_policy(order.policy), seed=order.seed, trace=trace, **more)
        if shared.keep is not None:
            made.write(shared.keep / order.id)
        outcome = {"status": "done", **metrics_of(made)}
    except RunFailed as error:
        if shared.keep is not None:
            error.run.write(shared.keep / order.id)  # its records up to then, marked incomplete
        outcome = failed(f"{type(error).__name__}: {error}")
    except Exception as error:
        outcome = failed(f"{type(error).__name__}: {error}")
    spent = {"cpu_s": time.process_time() - began_cpu_s, "wall_s": time.perf_counter() - began_wall_s}
    return {**order.row(), **outcome, **spent}


def metrics_of(made: Run) -> dict[str, float]:
    """The metrics that a sweep keeps of a run: its summary and its totals."""
    return {**made.totals, **made.summary()}


def failed(why: str) -> Row:
    """The outcome of a run that could not be made."""
    return {"status": "failed", "error": " ".join(why.split())}


def of_shard(orders: list[Order], shard: int, shards: int) -> Iterator[Order]:
    """Every `shards`-th order, beginning with the `shard`-th (from 1), so that shards are alike in size."""
    yield from orders[shard - 1 :: shards]

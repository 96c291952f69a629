"""Asynchronous workers: each pushes every so many of its own steps, by a plan; what that costs and is worth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.registry import make_policy, make_stage
from equipoise.sim.hardware.profile import scenarios_dir
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.run import run
from tests.scenarios import model, scenario


@dataclass(frozen=True)
class Pushes(Stage):
    """Has the workers push every so many steps, and notes what is measured of them."""

    every: tuple[int, ...] = ()
    seen: list[Any] = field(default_factory=list)
    name: ClassVar[str] = "pushes"
    kind: ClassVar[Kind] = "sync"
    needs: ClassVar[frozenset[str]] = frozenset({"jobs", "workers"})

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        workers = observation.workers
        self.seen.append((workers.push_interval.tolist(), workers.push_s.tolist(), workers.step_s.tolist()))
        known = len(workers) == len(self.every) and not np.isnan(workers.push_s).any()
        return plan.with_(push_interval=np.array(self.every)) if known else plan, memory


def test_an_asynchronous_worker_pushes_when_its_interval_says() -> None:
    """Of two alike workers one pushes every third step: a third of its pushes, and local steps cost it samples."""
    spec = {"alpha": 0.05, "rate": 1e9, "algorithm": "async-parameter-server"}
    case = scenario(
        cluster={"nodes": [{"count": 2, "gpus": 1}]},
        workload={
            "models": {"m": model(exchange=spec, drift=0.5)},
            "jobs": [{"name": "t", "gpus": 2, "model": "m", "global_batch": 20, "sync_interval": 60, "steps": 9000}],
        },
        decide={"every": 30.0},
    )
    watching = Pushes((1, 3))
    result = run(case, policy=Policy("push", (make_stage("fifo"), watching)))
    before, after = watching.seen[1], watching.seen[-1]
    assert before == ([1, 1], pytest.approx([0.1, 0.1]), pytest.approx([0.1, 0.1]))  # push, step: two messages
    assert after == ([1, 3], pytest.approx([0.1, 0.1]), pytest.approx([0.1, 0.1]))
    rates = 1 / 0.2, 1 / (0.1 + 0.1 / 3)  # steps/s of both
    kept = (rates[0] + rates[1] / (1 + 0.5 * 2)) / sum(rates)
    assert result.jobs["useful_samples"][0] / result.jobs["samples"][0] == pytest.approx(kept, rel=0.01)


def test_each_worker_s_interval_pays_where_some_push_slowly() -> None:
    file = read_scenario(scenarios_dir() / "slow-pushes.yaml")
    own, one = (run(file.scenario, policy=make_policy(text)) for text in ("s3", "s3(frozen=S313)"))
    assert one.jobs["completion_s"][0] > 1.02 * own.jobs["completion_s"][0]


def test_workers_that_do_not_wait_for_each_other_wait_for_their_input() -> None:
    """Each sample takes 20 ms to come and 10 ms to compute: half of the time of both workers is spent waiting."""
    spec = {"alpha": 0.0, "rate": 1e12, "algorithm": "async-parameter-server"}
    job = {"gpus": 2, "model": "m", "global_batch": 20, "steps": 30, "checkpoint": {"interval": "never"}}
    case = scenario(
        cluster={"nodes": [{"count": 2, "gpus": 1, "ingest": 50.0}]},
        workload={"models": {"m": model(exchange=spec, gradient=0.0)}, "jobs": [job]},
    )
    made = run(case, policy=make_policy("fifo"))
    assert made.jobs["samples"][0] == 600
    assert made.jobs["busy_gpu_s"][0] == pytest.approx(6.0)
    assert made.jobs["input_stall_gpu_s"][0] == pytest.approx(6.0)
    assert made.totals["makespan_s"] == pytest.approx(6.0, rel=0.01)

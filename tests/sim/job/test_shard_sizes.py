"""Shards of unequal sizes: from a list, or drawn, and what they change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.registry import make_stage
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.seeds import is_random
from tests.scenarios import model, scenario


@dataclass(frozen=True)
class Sizes(Stage):
    """Keeps the samples of the shards as the run begins."""

    name: ClassVar[str] = "sizes"
    kind: ClassVar[Kind] = "data"
    seen: list[list[int]] = field(default_factory=list)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        if len(observation.shards) and not self.seen:
            self.seen.append(sorted(observation.shards.samples.astype(int).tolist()))
        return plan, memory


def case(**data: Any) -> Scenario:
    whole = {"samples": 1000, "shards": 4, "sample_size": 1e6} | data
    job = {"gpus": 2, "model": "m", "epochs": 1, "global_batch": 10, "data": whole}
    return scenario(workload={"models": {"m": model()}, "jobs": [job]}, decide={"every": 0.04})


def sizes(spec: Scenario, seed: int = 0) -> list[int]:
    stage = Sizes()
    made = run(spec, policy=Policy("sizes", (make_stage("fifo"), stage)), seed=seed)
    assert made.jobs["samples"].tolist() == [1000]
    return stage.seen[0]


def test_sizes_are_as_listed() -> None:
    assert sizes(case()) == [250, 250, 250, 250]
    assert sizes(case(shard_sizes=[1, 2, 3, 4])) == [100, 200, 300, 400]


def test_sizes_are_drawn_from_the_seed() -> None:
    spread = case(shards=50, shard_sizes={"kind": "lognormal", "cov": 0.7})
    drawn = sizes(spread)
    assert sum(drawn) == 1000
    assert np.std(drawn) / np.mean(drawn) == pytest.approx(0.7, abs=0.2)
    assert sizes(spread) == drawn
    assert sizes(spread, seed=1) != drawn
    assert is_random(spread)
    assert not is_random(case(shard_sizes=[1, 2, 3, 4]))


def test_a_list_of_another_length_is_an_input_error() -> None:
    spec = {"samples": 10, "shards": 3, "shard_sizes": [1, 2]}
    job = {"gpus": 1, "model": "m", "epochs": 1, "data": spec}
    with pytest.raises(InputError, match="'shard_sizes' has 2 sizes for 3 'shards'"):
        from_mapping(
            {
                "schema_version": 1,
                "name": "x",
                "cluster": {"gpus": 1},
                "workload": {"models": {"m": model()}, "jobs": [job]},
            }
        )

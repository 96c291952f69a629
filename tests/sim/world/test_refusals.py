"""What a plan asked for and turned out impossible when its period ended: the next observation tells, once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from equipoise.policies.contract import Kind, Memory, Moves, Plan, Policy, Stage
from equipoise.policies.observation import Observation, Refusal
from equipoise.policies.record.journal import read
from equipoise.policies.registry import make_stage
from equipoise.sim.run import run
from tests.scenarios import model, scenario
from tests.sim.world.small import to, world_of


@dataclass(frozen=True)
class MoveOne(Stage):
    """Moves the next shard that the first worker will read, once."""

    name: ClassVar[str] = "move-one"
    kind: ClassVar[Kind] = "data"
    told: list[tuple[float, tuple[Refusal, ...]]] = field(default_factory=list)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        self.told.append((observation.time_s, observation.refused))
        shards, workers = observation.shards, observation.workers
        unread = np.flatnonzero((shards.worker == 0) & ~shards.started)
        if memory or not len(unread):
            return plan, memory
        shard = unread[:1]
        moves = Moves(shard, shards.node[shard], workers.node[[1]], np.array([1]))
        return plan.with_(moves=moves), {"asked": True}


@pytest.mark.parametrize("event_by_event", [False, True])
def test_a_move_that_comes_too_late_is_told_with_the_next_observation(tmp_path: Path, event_by_event: bool) -> None:
    """An asynchronous round of 5 s reads two shards of each worker: the second is moved while it is read."""
    exchange = {"alpha": 0.0, "rate": 1e10, "algorithm": "async-parameter-server"}
    data = {"samples": 4000, "sample_size": 1e6, "shards": 16}
    job = {"gpus": 2, "model": "m", "steps": 400, "global_batch": 10, "sync_interval": 100, "data": data}
    asking = {"name": "late", "gpus": 1, "duration": 1.0, "count": 3, "spacing": 3.0, "arrival": 1.0}
    case = scenario(workload={"models": {"m": model(exchange=exchange)}, "jobs": [job, asking]})
    stage, journal = MoveOne(), tmp_path / "journal.jsonl"
    policy = Policy("moves", (make_stage("fifo"), stage))
    made = run(case, policy=policy, journal=journal, event_by_event=event_by_event)
    told = [(time_s, refused) for time_s, refused in stage.told if refused]
    assert [time_s for time_s, _ in told] == [7.0]  # asked at 1 s, tried at 5 s
    (refusal,) = told[0][1]
    assert "move of shard piece" in refusal.what
    assert refusal.why == "it has been read meanwhile"
    assert made.totals["refusals"] == 1
    recorded = [entry.decision.observation for entry in read(journal)]
    assert [(o.time_s, o.refused) for o in recorded if o.refused] == told


def test_starts_take_effect_as_they_are_written_down() -> None:
    """Two a second: at 0, 0.5 and 1 s; their GPUs are taken meanwhile, and jobs last as long as ever."""
    world = world_of(*[{"gpus": 1, "duration": 9.0}] * 3, decide={"writes_per_s": 2.0})
    to(world, 0.1)
    assert world.roster.start_s.tolist() == [0.0, 0.5, 1.0]
    assert world.roster.columns["waited_s"].tolist() == [0.0, 0.5, 1.0]
    assert world.cluster.free_gpus == 1
    to(world, 20.0)
    assert world.roster.completion_s.tolist() == [9.0, 9.5, 10.0]

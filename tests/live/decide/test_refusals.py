"""What a live job could not carry out: at once, or told with the next observation; the journal holds both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.live.decide.leader import HEADER, Leader, pack
from equipoise.live.decide.telemetry import Recorder
from equipoise.live.group.places import RankPlace, places_from
from equipoise.live.options import Options
from equipoise.live.train.rounds import COLUMNS, SAMPLES, RoundInfo
from equipoise.live.train.sampler import ShareSampler
from equipoise.policies.contract import Allocation, Kind, Memory, Plan, Policy, Refusal, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.record.journal import read


@dataclass(frozen=True)
class Halving(Stage):
    """Wants half of each device, and the job stopped."""

    name: ClassVar[str] = "halving"
    kind: ClassVar[Kind] = "tasks"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        return plan.with_(gpu_share=np.full(2, 0.5), allocation=Allocation.of([(0, [])])), memory


def gathered(shares: tuple[float, float]) -> Any:
    rows = np.full((4, len(COLUMNS)), 0.01)
    rows[:, SAMPLES] = 4
    return np.stack([pack((4.0, math.nan, math.nan, share, *[math.nan] * (len(HEADER) - 4)), rows) for share in shares])


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    raw = [{**vars(RankPlace(m, "a", f"d{m}")), "memory_bytes": None, "share": None} for m in range(2)]
    options = Options(8, allow=frozenset(("share",)), decision_budget_s=60.0)
    return Leader(options, Policy("x", (Halving(),)), Recorder(tmp_path, 0), places_from(raw))


def test_refusals_reach_the_policy_and_the_journal(leader: Leader, tmp_path: Path) -> None:
    sampler = ShareSampler(96, rank=0, ranks=2, global_batch=8)
    sampler.begin_epoch(0)
    rounds = [RoundInfo(k, 4, True, False, (4, 4), False, (4.0, 4.0)) for k in range(4)]
    leader.begin(gathered((1.0, 1.0)), rounds, sampler, (1, 1))
    change = leader.answer(0)
    assert change.gpu_share == (0.5, 0.5)
    sampler.refused.append("piece 3 to rank 1: it has been started")
    leader.begin(gathered((0.5, 1.0)), rounds, sampler, (1, 1))  # rank 1's device did not take it
    leader.answer(0)
    leader.recorder.close()
    first, second = read(tmp_path / "decisions-0.jsonl")
    resize = Refusal("resize", "ranks stay as started; restart the job on other GPUs, from its checkpoint")
    assert first.refused == second.refused == (resize,)
    assert first.decision.observation.refused == ()
    assert second.decision.observation.refused == (
        Refusal("moves", "piece 3 to rank 1: it has been started"),
        Refusal("share", "rank 1 holds 1, not 0.5"),
    )

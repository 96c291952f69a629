"""Runs of the campaign of faults: no hang, no sample lost or doubled, no stop that nothing explains."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.campaign.plan import EARLY, EARLY_FROM, LEVELS_FROM, PHASES, make
from tests.campaign.run import make_run

SHORT = 34  # three of four ranks are killed, two of them while the group forms anew
SEEDS = (
    SHORT,
    0,
    2,
    3,
    5,
    7,
    8,
    10,
    12,
    13,
    14,
    15,
    17,
    18,
    19,
    20,
    24,
    26,
    27,
    33,
    200,
    201,
    203,
    1019,
    1032,
    LEVELS_FROM,
    2003,
    2004,
)


def test_a_seed_says_what_happens_and_many_of_them_meet_every_phase() -> None:
    plans = [make(seed) for seed in range(200)]
    assert plans == [make(seed) for seed in range(200)]
    assert {fault.where for plan in plans for fault in plan.faults} > set(PHASES)
    early = [make(EARLY_FROM + seed) for seed in range(40)]
    assert {fault.where for plan in early for fault in plan.faults} > set(EARLY)
    kinds = {fault.what for plan in plans for fault in plan.faults}
    assert kinds == {"kill", "stop", "cut", "disk", "join", "launcher", "store", "net"}


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed == SHORT else pytest.mark.long) for seed in SEEDS]
)
def test_a_run(seed: int, tmp_path: Path) -> None:
    row = make_run(make(seed, net=False), tmp_path)
    assert row["problems"] == []
    assert row["faults"]

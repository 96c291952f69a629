"""Runs of the campaign of faults: no hang, no sample lost or doubled, no stop that nothing explains."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.campaign.job import fork_server
from tests.campaign.plan import EARLY, EARLY_FROM, LEVELS_FROM, PHASES, make
from tests.campaign.run import make_run

SHORT = (0, 5, 13, 17, 1019, 2004)
MORE = (2, 3, 6, 7, 10, 14, 15, 18, 22, 26, 34, 201, 203, 2003)
"""Seeds in which nobody is stopped for long: they wait for each other far more than they compute. The first few
have every kind of fault between them, once before a first group and once as a checkpoint is saved."""
LONG = (8, 12, 19, 20, 24, 27, 33, 200, 1032, LEVELS_FROM)
AT_ONCE = 6


def test_a_seed_says_what_happens_and_many_of_them_meet_every_phase() -> None:
    plans = [make(seed) for seed in range(200)]
    assert plans == [make(seed) for seed in range(200)]
    assert {fault.where for plan in plans for fault in plan.faults} > set(PHASES)
    early = [make(EARLY_FROM + seed) for seed in range(40)]
    assert {fault.where for plan in early for fault in plan.faults} > set(EARLY)
    kinds = {fault.what for plan in plans for fault in plan.faults}
    assert kinds == {"kill", "stop", "cut", "disk", "join", "launcher", "store", "net"}


def several_at_a_time(seeds: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    fork_server()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = list(pool.map(lambda seed: make_run(make(seed, net=False), folder), seeds))
    assert {row["seed"]: row["problems"] for row in rows if row["problems"]} == {}
    assert all(row["faults"] for row in rows)
    return rows


def test_six_runs_at_a_time(tmp_path: Path) -> None:
    rows = several_at_a_time(SHORT, tmp_path)
    befallen = {fault.split()[0] for row in rows for fault in row["faults"]}
    assert befallen == {"kill", "cut", "disk", "join", "launcher", "store"}
    assert any(row["stops"] for row in rows), "a run whose store died went on from its checkpoint"


@pytest.mark.long
def test_fourteen_more_runs_several_at_a_time(tmp_path: Path) -> None:
    several_at_a_time(MORE, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG)
def test_a_run(seed: int, tmp_path: Path) -> None:
    row = make_run(make(seed, net=False), tmp_path)
    assert row["problems"] == []
    assert row["faults"]

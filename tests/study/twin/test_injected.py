"""Twins of records whose times are given: what the simulator, the fit and the comparison add of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.study.twin.record import read_run
from equipoise.study.twin.twin import twin
from tests.study.twin.injected import EVERY, Given, write


def pauses(k: int) -> float:
    """An evaluation every 25 rounds, one of them just where rank 0 slows down."""
    return 0.5 if k and k % 25 == 0 else 0.0


def three(k: int) -> Any:
    """Rank 1 slows down, then rank 2."""
    return np.array([1.0, 1.5 if k > 70 else 1.0, 1.0 if k < 120 else 2.5])


on_one_device = Given(
    slow=lambda k: np.array([2.5 if k < 150 else 4.0, 1.6]),
    policy="s1+s2+s3",
    shares=(0.4, 0.6),
    options={"share_backend": "mps", "drift": 0.02},
)


@pytest.mark.parametrize(
    ("given", "within"),
    [
        (Given(), 1e-3),
        (Given(pause=pauses), 0.01),
        (Given(options={"delay_rounds": 1}, pause=pauses), 0.01),
        (Given(options={"delay_rounds": 4}), 1e-3),
        (Given(samples=1000), 1e-3),
        (Given(slow=three), 0.04),  # a speed that changes in the middle of a window, the shortest of 4 rounds
        (Given(fixed_s=100e-3, update_part=0.02), 1e-3),
        (on_one_device, 1e-3),
    ],
    ids=[
        "plain",
        "pauses",
        "delayed",
        "delayed more",
        "short epochs",
        "three ranks",
        "fixed and not measured",
        "parts of one device",
    ],
)
def test_given_times_come_out_again(given: Given, within: float, tmp_path: Path) -> None:
    found = twin(read_run(write(given, tmp_path / "run")))
    assert max(window.error for window in found.windows) < within
    assert found.parted is None
    assert found.decisions_identical == len(found.windows) >= given.rounds // EVERY - 1
    assert len({window.samples for window in found.windows}) > 3
    assert found.replay_differences == ()


@pytest.mark.parametrize(("factor", "best"), [(2.0, 39), (6.0, 48)])
def test_a_slow_rank_is_answered_within_thirty_rounds(factor: float, best: int, tmp_path: Path) -> None:
    """Of 96 samples a rank of 3 that is twice as slow should get 19 of 19, 39, 38; at six times, 8 of 8, 44, 44.

    So a round takes as long as 39 or 48 samples of a healthy rank (2 ms each), where equal shares take 64 or 192.
    """
    slow = Given(
        fixed_s=0.0,
        slow=lambda k: np.array([factor if k >= 63 else 1.0, 1.0, 1.0]),
        rounds=130,
        options={"global_batch": 96, "decide_every": 10},
    )
    found = twin(read_run(write(slow, tmp_path / "run")))
    assert float(found.run.round_s[93:123].mean()) - 8e-3 < best * 2e-3 / 0.95
    assert found.parted is None
    assert {w.last_round + 1 - w.first_round for w in found.windows} == {5, 10}


def test_noise_adds_no_error_of_its_own(tmp_path: Path) -> None:
    found = twin(read_run(write(Given(step_cov=0.02), tmp_path / "run")))
    errors = [window.predicted_s / window.measured_s - 1.0 for window in found.windows]
    assert abs(np.mean(errors)) < 0.005
    assert np.median(np.abs(errors)) < 0.01
    assert found.measured.step_cov > 0.01


def test_what_slows_all_ranks_down_at_once_makes_nobody_wait(tmp_path: Path) -> None:
    given = Given(step_cov=0.01, common_cov=0.1, rounds=300, options={"mode": "advise"})
    found = twin(read_run(write(given, tmp_path / "run")))
    bias = np.mean([window.predicted_s / window.measured_s - 1.0 for window in found.windows])
    assert abs(bias) < 0.015


def test_a_decision_that_failed_live_is_left_out_in_the_twin_too(tmp_path: Path) -> None:
    """Three points without a decision, just where the slow rank would have been dealt less."""
    given = Given(fails=frozenset({26}), options={"delay_rounds": 1})
    found = twin(read_run(write(given, tmp_path / "run")))
    assert 26 in found.run.unheard
    assert {window.decision for window in found.windows}.isdisjoint(found.run.unheard)
    assert found.parted is None
    assert max(window.error for window in found.windows) < 0.01


def test_points_between_lost_lines_are_not_taken_for_failures(tmp_path: Path) -> None:
    folder = write(Given(rounds=60), tmp_path / "run")
    path = folder / "rounds-0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [line for line in lines if line.get("number") != 3]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert read_run(folder).unheard == frozenset()

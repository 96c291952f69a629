"""The laws behind the data sets: each finds constants that are known, from rows made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from equipoise.study.validation.run import run
from equipoise.study.validation.score import Line, judge, line
from equipoise.study.validation.sets import jitter
from tests.bench.predictions import moved, predictions

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


def test_the_wait_at_a_barrier_as_plainly_computed() -> None:
    times = np.random.default_rng(1).gamma(5.0, 1.0, size=(50, 4))
    plain = [max(row[i] for i in (0, 2, 3)) - sum(row[i] for i in (0, 2, 3)) / 3 for row in times.tolist()]
    assert jitter.wait(times, (0, 2, 3)) == pytest.approx(sum(plain) / len(plain))


def made(factor: float, rows: int = 3) -> Line:
    predicted = factor * np.arange(1.0, rows + 1)
    measured = np.arange(1.0, rows + 1)
    keys = [str(k) for k in range(rows)]
    return line("x", 0.1, [judge(keys, predicted, measured * 2, measured, (0.9, 1.1))])


def test_a_score_is_what_it_says() -> None:
    one = made(1.05)
    assert one.median == pytest.approx(0.05)
    assert one.naive == pytest.approx(1.0)
    assert one.covered == 1.0
    assert made(1.2).covered == 0.0


def test_the_gate_sees_a_prediction_that_moves_comes_or_goes() -> None:
    kept = predictions([made(1.0)])
    assert moved(kept, predictions([made(1.001)]))["x"][:2] == (0, 3)
    assert moved(kept, predictions([made(1.01)]))["x"][:2] == (3, 3)
    assert moved(kept, predictions([made(1.0, rows=4)]))["x"][:2] == (1, 4)


@pytest.mark.skipif(not DATA.is_dir(), reason="the public measurements are not beside the checkout")
@pytest.mark.shared_data
@pytest.mark.filterwarnings("ignore::equipoise.study.validation.rows.LeftOutWarning")
@pytest.mark.parametrize(
    ("name", "most"), [("neusight", 0.14), pytest.param("shockwave", 0.10, marks=pytest.mark.long)]
)
def test_public_data_are_predicted_as_well_as_before(name: str, most: float) -> None:
    found = run(name, DATA)[0]
    assert found.median <= most

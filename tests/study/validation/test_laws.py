"""The laws behind the data sets: each finds constants that are known, from rows made of them."""

from __future__ import annotations

import csv
import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from equipoise.study.validation.run import run
from equipoise.study.validation.score import Line, judge, line
from equipoise.study.validation.sets import jitter, mig, pollux, power, storage, train_time
from tests.bench.predictions import moved, predictions

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


def test_several_nodes_follow_from_a_pair_and_one_node() -> None:
    known = [
        pollux.PolluxStep("g", "", 1, k, b, 0.1 * b + 0.01 * (k - 1), 0.01 * (k - 1)) for k in (1, 2, 4) for b in (1, 4)
    ]
    known += [pollux.PolluxStep("g", "", 2, 2, b, 0.1 * b + 0.5, 0.5) for b in (1, 4)]
    law = pollux.StepLaw(known)
    asked = pollux.PolluxStep("g", "", 4, 16, 2.0, 0.0, 0.0)
    assert law.step_s(asked) == pytest.approx(0.2 + 0.5 * 2 * 3 / 4 + 0.03)


def test_time_to_train_finds_its_constants() -> None:
    truth = np.array([0.15, -1.5, 0.1, 3.0])
    rng = np.random.default_rng(0)
    rows = [
        train_time.Scaled(f"{k}", f"b{k % 5}", float(rn), float(rn**share), 10 ** rng.uniform(2.5, 4.5), 1.0)
        for k, (rn, share) in enumerate(
            (rn, s) for rn in (2, 4, 16, 64) for s in (0.0, 0.3, 0.6, 1.0) for _ in range(3)
        )
    ]
    seconds = train_time.predict(truth, rows)
    rows = [replace(r, measured_s=float(s)) for r, s in zip(rows, seconds, strict=True)]
    found = train_time.learn(rows)
    assert np.allclose(train_time.predict(found, rows), seconds, rtol=0.02)
    assert found[0] == pytest.approx(truth[0], abs=0.03)


def test_a_run_of_seconds_has_no_half_minute_of_its_own() -> None:
    """600 s, 64 times the accelerators and the batch: (600 - 28) / 64 = 8.9 s, beside not 28 s but twice 8.9."""
    constants = np.array([1.0, -50.0, 0.0, np.log(28.0)])
    rows = [train_time.Scaled("k", "b", 64.0, 1.0, 600.0, 1.0), train_time.Scaled("k", "b", 2.0, 1.0, 600.0, 1.0)]
    assert train_time.predict(constants, rows) == pytest.approx([3 * 572 / 64, 572 / 2 + 28])


def test_a_workload_that_no_known_system_ran_stalls_for_its_part_of_the_time() -> None:
    """Known at 90 % with batches of 0.9 s: a stall of 0.1 s; of batches of 3 ms it is a ninth of these, too."""
    split = next(k for k in range(99) if storage.fitted_half("known", k) and not storage.fitted_half("other", k))
    rows = [
        storage.Fed("known", "a", "unet3d", 0.9, 0.9),
        storage.Fed("other", "b", "cosmoflow", 0.003, 0.8),
        storage.Fed("other", "c", "unet3d", 0.4, 0.8),
    ]
    points = storage._input(rows, split).points
    assert points is not None
    assert points.predicted == pytest.approx([0.9, 0.4 / 0.5])


def test_a_slice_does_its_share_of_the_work() -> None:
    truth = {"a": np.array([0.02, 0.004, 2e-4]), "b": np.array([0.01, 0.02, 5e-4])}
    share = {1: 0.2, 3: 0.5, 7: 1.0}
    rows = [
        mig.MigRow(name, float(b), f"{n}g.x", n, float(mig._time(c, b, share[n])))
        for name, c in truth.items()
        for b in (16, 32, 64, 128, 256)
        for n in share
    ]
    curves = {name: mig.curve([r for r in rows if r.workload == name and r.sevenths == 7]) for name in truth}
    found = mig.shares([r for r in rows if r.workload == "a" and r.sevenths < 7], curves)
    assert found == pytest.approx({1: 0.2, 3: 0.5}, rel=0.15)
    other = [r for r in rows if r.workload == "b" and r.sevenths < 7]
    guess = mig.predict(other, curves, found)
    assert np.median(np.abs(guess / [r.seconds for r in other] - 1)) < 0.1


def test_a_node_idles_first_and_is_busy_then() -> None:
    truth = power.MeasuredNode(2000.0, 7000.0, 90.0)
    runs = [power.PowerRun("k", "n", "b", t, truth.energy_j(t) / t, 2000.0, 6900.0) for t in (200.0, 500.0, 1500.0)]
    node = power.learn(runs, 2000.0)
    assert node.energy_j(800.0) == pytest.approx(truth.energy_j(800.0), rel=0.03)


def write_staging(folder: Path, rows: list[tuple[str, str, int, float]]) -> None:
    path = folder / storage.STAGING
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["submitter", "system", "scaling", "benchmark", "nodes", "staging_s"])
        writer.writerows(["lab", system, scaling, "cosmo", nodes, s] for system, scaling, nodes, s in rows)


def test_jobs_at_once_share_the_file_system(tmp_path: Path) -> None:
    alone = [("big_alone", "strong", 256, 40.0)] * 3
    few, many = [("big_6", "weak", 128, 180.0)] * 6, [("big_20", "weak", 32, 600.0)] * 20
    write_staging(tmp_path, [*alone, *few, *many])
    found = run("staging", tmp_path)[0]
    assert found.median == pytest.approx(0.0, abs=1e-9)
    assert found.naive > 0.7


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
    ("name", "most"),
    [
        ("pollux", 0.08),
        ("train-time", 0.14),
        ("staging", 0.10),
        ("mig", 0.16),
        ("power", 0.08),
        ("neusight", 0.14),
        pytest.param("shockwave", 0.10, marks=pytest.mark.long),
        ("storage", 0.03),
    ],
)
def test_public_data_are_predicted_as_well_as_before(name: str, most: float) -> None:
    found = run(name, DATA)[0]
    assert found.median <= most

"""What rank 0 makes of the ranks' reports, without ranks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.live.decide import leader as leader_module
from equipoise.live.decide.leader import HEADER, Leader, pack, unpack
from equipoise.live.decide.telemetry import Recorder
from equipoise.live.options import Bounds, Options
from equipoise.live.train.change import Change
from equipoise.live.train.rounds import RoundInfo
from tests.live.decide.test_world import places

NAN = math.nan


def leader(ranks: int = 2, **options: Any) -> Leader:
    return Leader(
        Options(global_batch=12, **options), None, Recorder(None, 0), places(*range(ranks)), resizable=True
    )


def info(number: int = 4, weights: Any = (6, 6), window: Any = (6, 6), **how: bool) -> RoundInfo:
    told = {"exchanged": True, "local": False, "paused": False} | how
    return RoundInfo(number, 6, window=window, weights=weights, **told)  # type: ignore[arg-type]


def rows(squares: Any, mean_squares: Any) -> Any:
    """One round of two ranks, that compute for 0.1 and 0.2 s."""
    return np.array([
        [[6, 0.01, 0.1 * (k + 1), 0.02, 0.001, squares[k], mean_squares[k]]] for k in range(len(squares))
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("squares", "means", "how", "options", "norms", "parts"),
    [
        # Mean 6.5 of the squares, 6 of the mean's: 12 * 0.5 and 6 - 0.5.
        ((4, 9), (1, 5), {}, {}, [2, 3], (6.0, 5.5)),
        # Uneven: what is stored is 1.5 and 0.5 times the rank's own; 12 * (4 - 3.5) and 3.5 - 0.5.
        ((9, 1), (1, 2.5), {"weights": (9, 3)}, {}, [2, 2], (6.0, 3.0)),
        # The same in tokens, ten of a sample: the noise is told in samples.
        ((9, 1), (1, 2.5), {"weights": (90, 30), "window": (9, 3)}, {}, [2, 2], (6.0, 3.0)),
        # Summed: 9 and 3 times, and their mean over two ranks is 6 times that over twelve samples.
        ((324, 36), (100, 26), {"weights": (9, 3)}, {"loss_reduction": "sum"}, [2, 2], (6.0, 3.0)),
        ((4, 9), (1, 5), {"local": True}, {}, [2, 3], (NAN, NAN)),
        ((4, 9), (1, 5), {"exchanged": False}, {}, [2, 3], (NAN, NAN)),
        ((4, math.inf), (1, 5), {}, {}, [2, NAN], (NAN, NAN)),
        ((16, 0), (1, 5), {"weights": (12, 0)}, {}, [2, NAN], (NAN, NAN)),
        ((NAN, NAN), (NAN, NAN), {}, {}, [NAN, NAN], (NAN, NAN)),
    ],
)
def test_norms_and_noise_of_a_round(
    squares: Any, means: Any, how: dict[str, Any], options: dict[str, Any], norms: list[float], parts: Any
) -> None:
    made = leader(**options)
    made._gradients(rows(squares, means), [info(**how)])
    assert made._norm.tolist() == pytest.approx(norms, nan_ok=True)
    assert made._noise.parts == pytest.approx(parts, nan_ok=True)


def report(made: Leader, *rounds: Any, accumulation: int = 1, refused: tuple[str, ...] = ()) -> Leader:
    """Two ranks report; the second has drawn seven rounds and holds half of its GPU."""
    header = {
        "drawn": (5, 7), "memory_free_bytes": (1e9, 2e9), "samples_max": (NAN, 8), "gpu_share": (1.0, 0.5),
        "moved_apart": (2, 4), "moved_mean": (3, 3), "power_cap_w": (300, 250), "power_w": (90, 80),
    }  # fmt: skip
    told = [
        pack(
            [header.get(name, (NAN, NAN))[rank] for name in HEADER],
            np.concatenate([one[rank] for one, _ in rounds]),
        )
        for rank in range(2)
    ]
    sampler: Any = SimpleNamespace(
        deal=None, planned_shares=lambda: np.array([6, 6]), planned_batch=lambda: 12,
        planned_accumulation=lambda: accumulation, planned_rate=lambda: 1.5, refused=list(refused),
        accumulation=accumulation,
    )  # fmt: skip
    made.begin(np.stack(told), [each for _, each in rounds], sampler, (4, 2))
    return made


def test_what_is_reported_is_what_the_policy_will_see() -> None:
    made = report(
        leader(drift="measured"), (rows((4, 9), (1, 5)), info(3)), (rows((NAN, NAN), (NAN, NAN)), info(4))
    )
    world, telemetry = made.world, made.world.telemetry
    assert (world.interval, world.far_every, world.batch, world.passes, world.rate) == (4, 2, 12, 1, 1.5)
    assert (world.samples_done, telemetry.first_free_round, made._trained) == (24, 7, 5)
    assert world.gpu_s == pytest.approx(
        2 * 2 * 0.231
    )  # two ranks, two rounds, as long as the slower one takes
    assert telemetry.window.rounds == 2
    assert telemetry.gradient_norm.tolist() == [2.0, 3.0]
    assert telemetry.noise_scale == pytest.approx(6.0 / 5.5)
    assert telemetry.memory_free_bytes.tolist() == [1e9, 2e9]
    assert telemetry.samples_max.tolist() == pytest.approx([NAN, 8.0], nan_ok=True)
    assert world.shares_of_gpu.tolist() == [1.0, 0.5]
    assert world.power[2].tolist() == [300.0, 250.0]
    assert telemetry.gpu is not None
    assert telemetry.gpu["power_w"].tolist() == [90.0, 80.0]
    # Replicas are 6 of 3 apart after 4 * 2 steps; noise makes q h / (t (t + q)) of it, for two ranks.
    q, h, t = 6.0 / 5.5 / 12, 8.0, 8.0
    assert world.drift == pytest.approx((6 / 3 - q * h / (t * (t + q))) / 7)
    assert (made.points, made.decisions) == (0, 0)  # there is no policy
    report(made, (rows((NAN, NAN), (NAN, NAN)), info(5)))
    assert (world.samples_done, made._trained) == (36, 6)
    assert world.gpu_s == pytest.approx(2 * 3 * 0.231)
    assert np.isnan(world.telemetry.gradient_norm).all()
    change = made.answer(9.0)
    assert (change, world.telemetry.first_free_round) == (Change(9), 9)


def test_a_decision_takes_what_both_its_halves_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter((10.0, 13.0, 20.0, 21.0))
    monkeypatch.setattr(leader_module, "time", SimpleNamespace(perf_counter=lambda: next(now_s)))
    made, seen = leader(), list[Any]()
    made._held_up = SimpleNamespace(news=lambda *took: seen.append(took))  # type: ignore[assignment]
    report(made, (rows((NAN, NAN), (NAN, NAN)), info())).answer(7.0)
    assert seen == [(4.0, pytest.approx(0.231))]


def test_passes_of_a_step_are_one_round_of_the_window() -> None:
    nothing = (NAN, NAN)
    passes = [(rows(nothing, nothing), info(k, ends_step=k % 2 == 1)) for k in range(4)]
    made = report(leader(), *passes, accumulation=2)
    assert made.world.telemetry.window.rounds == 2
    assert made.world.telemetry.window.samples.tolist() == [24.0, 24.0]
    assert made.world.telemetry.window.step_s.tolist() == pytest.approx([0.222, 0.422])
    assert made._passes == 2


def test_what_came_of_the_last_change_is_told() -> None:
    made = leader()
    made.world.change = Change(3, gpu_share=(1.0, 0.75))
    nothing = (NAN, NAN)
    report(made, (rows(nothing, nothing), info()), refused=("piece 3 to rank 1: late",))
    assert [(one.what, one.why) for one in made.world.refused] == [
        ("moves", "piece 3 to rank 1: late"), ("share", "rank 1 holds 0.5, not 0.75")
    ]  # fmt: skip
    made = report(leader(), (rows(nothing, nothing), info()))
    assert made.world.refused == []  # what nobody asked for is what is held


@pytest.mark.parametrize(("interval_max", "least"), [(1, 0.1), (2, 0.1), (3, 0.05), (64, 0.1 / 63)])
def test_a_smaller_drift_would_bound_no_interval(interval_max: int, least: float) -> None:
    assert leader(bounds=Bounds(interval_max=interval_max))._drift.least == pytest.approx(least)


@pytest.mark.parametrize(
    ("ranks", "shares"), [(2, [[6, 6], [9, 3], [10, 2]]), (3, [[4, 4, 4], [6, 4, 2], [7, 4, 1]])]
)
def test_a_policy_warms_up_on_ranks_of_which_the_last_is_ever_slower(
    ranks: int, shares: list[list[int]]
) -> None:
    """Not measured, then alike, then twice and four times as slow, with half of its samples gone to the first."""
    made, seen = leader(ranks), list[Any]()
    made.decider = SimpleNamespace(  # type: ignore[assignment]
        warm_up=lambda observations, budget_s: seen.extend([*observations, budget_s]) or None
    )
    made.warm_up(np.array(shares[0]), None)
    blank, *measured, budget_s = seen
    assert budget_s == 30.0
    assert np.isnan(blank.workers.step_s).all()
    for found, dealt, slowest in zip(measured, shares, (1.0, 2.0, 4.0), strict=True):
        assert found.workers.samples_per_step.tolist() == dealt
        # 10 ms each for reading and updating, beside computing.
        assert found.workers.step_s.tolist() == pytest.approx(
            (np.linspace(0.1, 0.1 * slowest, ranks) + 0.02).tolist()
        )
        assert found.jobs.throughput_samples_per_s[0] == pytest.approx(12 / (0.1 * slowest + 0.03))
        assert found.jobs.exchange_s[0] == pytest.approx(0.01)
        assert found.jobs.noise_scale[0] == 100.0
        assert found.workers.gradient_norm.tolist() == [1.0] * ranks
    assert made.world.telemetry.window.rounds == 0  # nothing of it stays
    seen.clear()
    made.options = Options(global_batch=12, mode="observe")
    made.warm_up(np.array(shares[0]), None)
    assert seen == []


def test_reports_of_files_stand_between_header_and_rounds() -> None:
    header, files = [float(k) for k in range(len(HEADER))], np.array([7.0, 8.0, 9.0])
    columns, reports, back = unpack(np.stack([pack(header, rows((1, 2), (3, 4))[0], files)]), 3)
    assert [columns[name][0] for name in HEADER] == header
    assert reports.tolist() == [[7.0, 8.0, 9.0]]
    np.testing.assert_array_equal(back, rows((1, 2), (3, 4))[:1])

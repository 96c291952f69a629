"""Figures of a round by hand: spans, weights, noise, movements, and what holds a rank to its share."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train import apart, rounds, shares, timing  # noqa: E402
from equipoise.live.train.apart import Drift, Movement  # noqa: E402
from equipoise.live.train.gradients import (  # noqa: E402
    NoiseScale,
    _part,
    _square,
    _total,
    mean_of_pairs,
    noise_statistics,
)
from equipoise.live.train.near import groups_by_host  # noqa: E402
from equipoise.live.train.rounds import RoundMeter  # noqa: E402
from equipoise.live.train.shares import (  # noqa: E402
    DutyCycle,
    GreenContexts,
    HeldShare,
    MpsAtStart,
    WholeDevice,
    make_backend,
)
from equipoise.live.train.timing import CudaTimer, HostTimer, make_timer  # noqa: E402
from equipoise.live.train.weighting import _inverse, contribution_scale  # noqa: E402

NAN = math.nan


def same(found: Any, expected: Any) -> bool:
    return bool(found == pytest.approx(expected, nan_ok=True))


# -- where the time goes ---------------------------------------------------------------------------------------

ROUND = {"begin": 0.0, "forward": 1.0, "local": 4.0, "done": 6.0, "end": 10.0}


@pytest.mark.parametrize(
    ("more", "spans"),
    [
        ({}, (1.0, 3.0, 2.0, 4.0)),
        ({"enter": 7.0, "leave": 8.5}, (1.0, 3.0, 3.5, 2.5)),
        ({"enter": 7.0}, (1.0, 3.0, 2.0, 4.0)),  # it has not been left
        ({"wait0": 2.0, "waited0": 2.5}, (1.0, 2.5, 2.5, 4.0)),
        (
            {"wait0": 2.0, "waited0": 2.5, "wait1": 3.5, "waited1": 5.0},
            (1.0, 2.0, 3.0, 4.0),
        ),  # half behind `local`
        ({"wait0": 4.5, "waited0": 4.8}, (1.0, 3.0, 2.0, 4.0)),
        ({"wait0": 2.0}, (1.0, 3.0, 2.0, 4.0)),
    ],
)
def test_spans_of_a_round(more: dict[str, float], spans: tuple[float, ...]) -> None:
    assert timing._spans(ROUND | more) == spans
    without = {name: value for name, value in (ROUND | more).items() if name != "local"}
    stall_s, compute_s, tail_s, update_s = timing._spans(without)
    assert (stall_s, update_s) == (spans[0], spans[3])
    assert math.isnan(compute_s)
    assert math.isnan(tail_s)


def test_of_two_waits_that_begin_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now_s)
    timer = HostTimer()
    timer.begin_round()
    steps = (
        timer.end_wait, lambda: timer.mark("forward"), timer.begin_wait, timer.begin_wait, timer.end_wait,
        timer.end_wait, timer.begin_wait, lambda: timer.mark("local"), timer.end_wait, lambda: timer.mark("local"),
        lambda: timer.mark("done"), timer.end_round,
    )  # fmt: skip
    for step in steps:  # one second apart; the later of two local gradients counts
        step()
        clock.now_s += 1.0
    # Forward at 1 s, waits from 2 to 4 and from 6 to 8 s, local at 9, done at 10, the end at 11 s.
    assert timer.spans() == [(1.0, 8.0 - 4.0, 1.0 + 4.0, 1.0)]
    timer.begin_round()
    timer.begin_wait()
    assert timer._marks.keys() == {"begin", "wait0"}


def test_marks_of_a_device_are_in_milliseconds() -> None:
    class Event:
        def __init__(self, at_ms: float) -> None:
            self.at_ms, self.waited = at_ms, False

        def elapsed_time(self, other: Event) -> float:
            return other.at_ms - self.at_ms

        def synchronize(self) -> None:
            self.waited = True

    timer = object.__new__(CudaTimer)
    rounds = [{"begin": Event(10.0 * k), "end": Event(10.0 * k + 5.0)} for k in range(2)]
    assert timer._seconds(rounds) == [{"begin": 0.0, "end": 0.005}] * 2  # type: ignore[arg-type]
    assert [one["end"].waited for one in rounds] == [False, True]
    assert timer._seconds([]) == []
    assert all(isinstance(make_timer(torch.device(name)), HostTimer) for name in ("cpu", "meta"))


def meter(accumulation: int = 1, every: int = 1) -> tuple[Any, list[Any]]:
    """A meter without a model, whose rounds all have the same spans and norms; and what it asks of its parts."""
    made, asked = object.__new__(RoundMeter), list[Any]()
    made._accumulation, made._every, made.ends_step = accumulation, every, lambda: None
    made._probe = SimpleNamespace(  # type: ignore[assignment]
        local_square=4.0, mean_square=9.0, measure=lambda wanted: asked.append(wanted), reset=lambda: None
    )
    made._timer = SimpleNamespace(  # type: ignore[assignment]
        end_round=lambda: None, begin_round=lambda: None, mark=lambda name: asked.append(name),
        spans=lambda: [(0.1, 0.2, 0.3, 0.4)] * made.rounds_taken,
    )  # fmt: skip
    made._share = SimpleNamespace(begin=lambda: None)  # type: ignore[assignment]
    made._wrapper = SimpleNamespace(part=lambda rank, ranks: (rank, ranks))  # type: ignore[assignment]
    made.clear()
    return made, asked


def test_samples_of_a_step_are_summed_over_its_rounds() -> None:
    made, _ = meter(accumulation=2)
    for samples, stepped, window in (
        ((3, 5), False, (3, 5)), ((1, 2), True, (4, 7)), ((6, 0), False, (6, 0)), ((2, 3), True, (8, 3))
    ):  # fmt: skip
        assert made.count(samples, [10.0 * n for n in samples]) == stepped
        made.end(7, samples[0], exchanged=stepped, local=False)
        info = made._infos[-1]
        assert (info.window, info.weights) == (window, tuple(10.0 * n for n in window))
        assert (info.number, info.samples, info.exchanged, info.near, info.ends_step) == (
            7,
            samples[0],
            stepped,
            False,
            True,
        )
        assert made.in_window == (not stepped)
    assert (made._steps, made.rounds) == (2, 4)
    assert made.count((1, 1), (1.0, 1.0), stepped=True)
    made.end(8, 1, exchanged=True, local=True)
    assert (made._steps, made.in_window) == (3, 0)


def test_a_round_as_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was waited for in the middle of computing is of the tail; the first round of a group tells nothing."""
    made, _ = meter()
    clock = SimpleNamespace(now_s=5.0)
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: clock.now_s)
    for number in range(2):
        made.begin(0, 2)
        for _ in range(2):
            with made.waiting():
                clock.now_s += 0.0625
        made.count((3, 5), (3.0, 5.0))
        made.end(number, 3, exchanged=True, local=False)
    made.rounds_taken = 2
    rows, infos = made.take()
    assert [info.paused for info in infos] == [True, False]
    assert same(rows[0].tolist(), [3.0, NAN, NAN, NAN, NAN, 4.0, 9.0])
    assert same(rows[1].tolist(), [3.0, 0.1, 0.2 - 0.125, 0.3 + 0.125, 0.4, 4.0, 9.0])
    made.rounds_taken = 0
    rows, infos = made.take()
    assert (rows.shape, infos, made.rounds) == ((0, 7), [], 0)


def test_norms_are_measured_in_the_last_round_of_every_so_manieth_step() -> None:
    made, asked = meter(accumulation=2, every=3)
    training = SimpleNamespace(training=True)
    measured = []
    for number in range(12):
        made.begin(0, 1)
        asked.clear()
        made._before_forward(training, ())
        made._before_forward(training, ())  # a second forward in a round is no other round
        assert (asked[1:], made.in_round) == (["forward"], True)
        measured.append(asked[0])
        made.count((1,), (1.0,))
        made.end(number, 1, exchanged=True, local=False)
    assert [k for k, wanted in enumerate(measured) if wanted] == [1, 7]
    made.begin(0, 1)
    made._before_forward(SimpleNamespace(training=False), ())
    assert not made.in_round
    for told in (True, False):  # where a plan says in how many passes a step is computed
        made.ends_step = lambda told=told: told
        assert made._is_last() == told


# -- weights and noise -----------------------------------------------------------------------------------------


def test_a_rank_contributes_by_its_samples() -> None:
    for samples, total, ranks, factor in ((3, 12, 4, 1.0), (6, 12, 4, 2.0), (1, 8, 2, 0.25), (0, 12, 4, 0.0)):
        assert contribution_scale(samples, total, ranks, "mean") == factor
        assert contribution_scale(samples, total, ranks, "sum") == (samples > 0)
    assert [_inverse(factor) for factor in (0.0, 2.0, 0.25)] == [0.0, 0.5, 4.0]


@pytest.mark.parametrize(
    ("squares", "mean_square", "samples", "trace", "true_square"),
    [
        ((4.0, 9.0), 3.0, (10, 30), 190.0, -1.75),  # 40 * (7.75 - 3) / 1, and 3 - 190 / 40
        ((4.0, 9.0, 1e9), 3.0, (10, 30, 0), 190.0, -1.75),
        ((4.0, 8.0, 6.0), 3.0, (10, 10, 20), 60.0, 1.5),  # 40 * (6 - 3) / 2
        ((4.0, 9.0), 3.0, (1, 3), 19.0, -1.75),
        ((4.0, 9.0), 3.0, (10, 0), NAN, NAN),
        ((4.0,), 4.0, (10,), NAN, NAN),
    ],
)
def test_noise_of_unequal_ranks(
    squares: Any, mean_square: float, samples: Any, trace: float, true_square: float
) -> None:
    assert same(noise_statistics(squares, mean_square, samples), (trace, true_square))


def test_pairs_are_smoothed_each_by_itself() -> None:
    assert mean_of_pairs((NAN, NAN), (1.0, 2.0), 0.8) == (1.0, 2.0)
    assert same(mean_of_pairs((10.0, 20.0), (0.0, 10.0), 0.8), (8.0, 18.0))
    scale = NoiseScale()
    for new, value in (
        ((60.0, 1.5), 40.0), ((NAN, 1.0), 40.0), ((1.0, math.inf), 40.0), ((160.0, 1.5), 70 / 1.5),
        ((-730.0, 1.5), NAN),
    ):  # fmt: skip
        scale.add(*new)
        assert same(scale.value, value)
    assert same(scale.parts, (-10.0, 1.5))
    scale.parts = (1.0, 0.0)
    assert math.isnan(scale.value)


def test_parts_squares_and_totals() -> None:
    ten = torch.arange(10.0)
    assert [_part(ten, rank, 3).tolist() for rank in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    turned = torch.arange(6.0).reshape(2, 3).T
    assert same([float(_square(_part(turned, rank, 2))) for rank in (0, 1)], [55.0, 0.0])
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        assert float(_square(torch.tensor([3.0, 4.0], dtype=kind))) == pytest.approx(25.0, rel=1e-3)
    assert float(_square(torch.tensor([300.0, 400.0], dtype=torch.float16))) == pytest.approx(25e4, rel=1e-3)
    twice = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([1.0, 2.0]), (3,), check_invariants=True
    )
    assert float(_square(twice)) == 9.0
    assert [_total(each) for each in ([], [1.0, torch.tensor(2.0)], [1.0, NAN], [math.inf])] == [
        0.0,
        3.0,
        math.inf,
        math.inf,
    ]


# -- how far replicas move apart -------------------------------------------------------------------------------


def test_squares_of_movements_are_summed_until_they_are_taken() -> None:
    movement, start = Movement(), [torch.zeros(2)]
    assert movement.own(start) is None
    movement.begin(start)
    own = movement.own([torch.tensor([1.0, 2.0])])
    assert own is not None
    movement.add(own, [torch.tensor([3.0, 2.0])], 0.5)
    assert movement.take() == (2.0, 13.0)  # half of 2 squared; 9 and 4
    assert same(movement.take(), (NAN, NAN))
    for _ in range(2):
        movement.add(own, [torch.tensor([3.0, 2.0])], 0.25)
    movement.add(torch.tensor([NAN, NAN]), [torch.tensor([1.0, 0.0])], 0.0)
    assert movement.take() == (2.0, 27.0)
    movement.add(own, start, 1.0)
    movement.forget()
    assert movement.own(start) is None
    assert same(movement.take(), (NAN, NAN))


def test_an_even_sample_of_all_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_SAMPLED", 4)
    assert apart._sample([torch.arange(4.0)]).tolist() == [0, 1, 2, 3]
    assert apart._sample([torch.arange(5.0)]).tolist() == [0, 2, 4]
    both = [torch.arange(5.0).reshape(5, 1), torch.arange(4.0, dtype=torch.bfloat16)]
    assert apart._sample(both).tolist() == [0, 3, 0, 3]  # every third of nine, of each tensor from its first
    assert apart._sample(both[1:]).dtype == torch.float32
    given = torch.zeros(2)
    apart._sample([given])[0] = 7.0
    assert given.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("apart_mean", "noise_ratio", "interval", "every", "ratio", "ranks", "value"),
    [
        ((6.0, 2.0), NAN, 4, 1, 1.0, 3, 3.0 / 3),
        ((6.0, 2.0), 2.0, 4, 1, 1.0, 3, (3.0 - 2 * 2.0 * 4 / (4 * 6)) / 3),
        ((6.0, 2.0), -5.0, 4, 1, 1.0, 3, 1.0),  # no noise is less than none
        ((6.0, 2.0), NAN, 1, 2, 0.5, 3, 3.0 / 0.5),  # h = 1.5 of two steps
        ((6.0, 2.0), 2.0, 1, 2, 0.5, 3, (3.0 - 2 * 2.0 * 1.5 / (2 * 4)) / 0.5),
        ((6.0, 2.0), NAN, 2, 1, 1.0, 2, 3.0),
        ((6.0, 2.0), NAN, 1, 1, 1.0, 3, 0.1),  # one step: they had no time to part
        ((6.0, 2.0), NAN, 4, 1, 1.0, 1, 0.1),
        ((6.0, 0.0), NAN, 4, 1, 1.0, 3, 0.1),
        ((6.0, float("inf")), NAN, 4, 1, 1.0, 3, 0.1),
        ((float("inf"), 2.0), NAN, 4, 1, 1.0, 3, 0.1),
        ((0.0, 2.0), NAN, 4, 1, 1.0, 3, 0.01),  # the least
    ],
)
def test_drift_of_one_window(
    apart_mean: tuple[float, float], noise_ratio: float, interval: int, every: int, ratio: float, ranks: int,
    value: float,
) -> None:  # fmt: skip
    drift = Drift(0.1, 0.01)
    drift.add(*apart_mean, ranks, noise_ratio, interval, every, ratio)
    assert drift.value == pytest.approx(value)


def test_drift_keeps_four_fifths_of_what_it_knew() -> None:
    drift = Drift(0.1, 0.01)
    drift.add(6.0, 2.0, 3, NAN, 4, 1, 1.0)
    drift.add(2.0, 2.0, 3, NAN, 2, 1, 1.0)
    assert same(drift.parts, (0.8 * 3 + 0.2 * 1, 0.8 * 3 + 0.2 * 1))
    drift.add(2.0, 2.0, 3, NAN, 11, 1, 1.0)
    assert drift.value == pytest.approx((0.8 * 2.6 + 0.2) / (0.8 * 2.6 + 0.2 * 10))


def test_near_are_the_ranks_of_one_host() -> None:
    for hosts, groups in (("aba", [0, 1, 0]), ("bba", [1, 1, 0]), ("aaa", None), ("abc", None), ("a", None)):
        assert groups_by_host(list(hosts)) == groups


# -- shares ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "taken"), [(0.4, True), (0.4049, True), (0.3951, True), (0.4051, False), (0.3949, False)]
)
def test_an_mps_share_is_met_to_half_a_percent(
    share: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "40")
    backend = MpsAtStart()
    assert (backend.fixed, backend.quantum) == (0.4, 1.0)
    assert (backend.set(share) is None) == taken
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "4_0")
    with pytest.raises(ValueError, match="share_backend mps: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: "):
        MpsAtStart()


class Contexts:
    """Makes contexts and notes what is entered and left."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []
        self.noted: list[str] = []

    def create(self, num_sms: int, device_id: int) -> Any:
        self.made.append((num_sms, device_id))
        return SimpleNamespace(
            set_context=lambda: self.noted.append(f"in {num_sms}"),
            pop_context=lambda: self.noted.append(f"out {num_sms}"),
        )


def test_a_part_of_a_device_is_at_least_one_processor_and_all_of_it_none() -> None:
    api = Contexts()
    backend = GreenContexts(torch.device("cuda", 3), api, 10)
    assert backend.quantum == 0.1
    for share, noted in (
        (0.0, ["in 1"]), (0.04, []), (0.26, ["out 1", "in 3"]), (0.94, ["out 3", "in 9"]), (0.96, ["out 9"]),
        (1.0, []), (0.3, ["in 3"]),
    ):  # fmt: skip
        api.noted.clear()
        assert backend.set(share) is None
        backend.begin()
        assert api.noted == noted
    assert api.made == [(1, 3), (3, 3), (9, 3)]
    GreenContexts(torch.device("cpu"), api, 10).set(0.5)
    assert api.made[-1] == (5, 0)


def test_each_back_end_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert isinstance(make_backend("duty-cycle", cpu), DutyCycle)
    assert isinstance(make_backend("none", cpu), WholeDevice)
    part = SimpleNamespace(SUPPORTED=True, GreenContext=Contexts())
    monkeypatch.setitem(sys.modules, "torch.cuda.green_contexts", part)
    backend = GreenContexts(cpu, processors=4)
    assert backend.set(0.5) is None
    assert part.GreenContext.made == [(2, 0)]
    part.SUPPORTED = False
    with pytest.raises(ValueError, match="share_backend green-context: this PyTorch has no green contexts"):
        GreenContexts(cpu, processors=4)
    monkeypatch.setattr(shares, "GreenContexts", lambda device: ("green", device))
    assert make_backend("green-context", cpu) == ("green", cpu)


def test_a_share_that_is_refused_is_told_and_the_one_before_is_held() -> None:
    told: list[str] = []
    held = HeldShare(WholeDevice(), told.append)
    held.set(1.0)
    held.set(0.5)
    assert (held.share, told) == (1.0, ["this run was attached without a back end for shares"])
    backend = MpsLike()
    held = HeldShare(backend, told.append)
    held.set(0.5)
    assert (held.share, backend.share) == (0.5, 0.5)
    held.begin()
    assert (held.share, backend.share, told[1:]) == (1.0, 1.0, ["the driver says no"])
    held.end()
    assert backend.ended


class MpsLike:
    quantum, fixed = 0.01, None
    share, ended = 1.0, False

    def set(self, share: float) -> None:
        self.share = share

    def begin(self) -> None:
        if self.share < 1.0:
            raise RuntimeError("the driver says no")

    def end(self) -> None:
        self.ended = True

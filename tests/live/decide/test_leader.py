"""What rank 0 makes of the ranks' reports, without ranks."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from equipoise.live.decide import leader as leader_module
from equipoise.live.decide.decider import Answer
from equipoise.live.decide.leader import HEADER, Leader, pack, unpack
from equipoise.live.decide.telemetry import Recorder
from equipoise.live.options import Bounds, Options
from equipoise.live.train.change import Change
from equipoise.live.train.rounds import RoundInfo
from equipoise.policies.contract import Refusal
from equipoise.policies.record.export import stage_entries
from equipoise.policies.record.journal import encode_memory
from equipoise.policies.registry import make_policy
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


# -- the policy's answers, and what is kept of them ----------------------------------------------------------


def listened(made: Leader, folder: Any = None) -> list[tuple[str, dict[str, Any]]]:
    """The events of a leader from now on."""
    seen: list[tuple[str, dict[str, Any]]] = []
    made.recorder = SimpleNamespace(  # type: ignore[assignment]
        folder=folder,
        event=lambda kind, **values: seen.append((kind, values)),
        decision=lambda decision, refused: seen.append(("journal", {"of": decision, "refused": refused})),
        manifest=lambda content: seen.append(("manifest", content)),
    )
    return seen


def decided(made: Leader, *answers: Answer, **more: Any) -> list[Any]:
    """Let a policy give these answers; returns what it was asked."""
    asked: list[Any] = []
    left = iter(answers)
    made.decider = SimpleNamespace(  # type: ignore[assignment]
        begin=asked.append, answer=lambda world: next(left), failures=5, memory={"x": {"k": 3}}, **more
    )
    return asked


BLANK = rows((NAN, NAN), (NAN, NAN))
SEEN: Any = SimpleNamespace(observation=SimpleNamespace(time_s=8.5))


def test_each_answer_of_a_policy_is_counted_and_noted() -> None:
    made = leader()
    refusal = Refusal("share", "so it is")
    events = listened(made)
    made._slow = SimpleNamespace(news=lambda *_: [])  # type: ignore[assignment]
    late, none, plan = Answer(problem="late"), Answer(), Answer(SEEN, refused=(refusal,))
    asked = decided(made, late, none, plan)
    for points in (1, 2, 3):
        report(made, (BLANK, info(10 * points))).answer(40.0 + points)
        assert (made.points, len(asked)) == (points, points)
    assert asked == [made.world] * 3
    assert (made.failures, made.decisions) == (1, 1)
    noted = {"number": 1, "time_s": 8.5, "point": 3, "rounds": 31, "change": None}
    assert events == [
        ("decision-failed", {"problem": "late", "failures": 5}),
        ("journal", {"of": SEEN, "refused": (refusal,)}),
        ("decision", {**noted, "refused": ["share: so it is"]}),
    ]
    made.world.change = Change(9, interval=4)
    made._note(SEEN, ())
    assert events[-1][1] == {**noted, "number": 2, "change": Change(9, interval=4).to_json(), "refused": []}


def test_a_policy_that_only_looks_on_is_not_asked() -> None:
    made = leader(mode="observe")
    asked = decided(made)
    assert report(made, (BLANK, info())).answer(7.0) == Change(7)
    assert (made.points, made.decisions, asked) == (0, 0, [])
    made = leader(mode="advise")
    asked = decided(made, Answer())
    report(made, (BLANK, info())).answer(7.0)
    assert (made.points, len(asked)) == (1, 1)


def test_late_moves_are_an_event_and_shares_are_none() -> None:
    made = leader()
    events = listened(made)
    made._refused_late([], np.array([1.0, 0.5]))
    assert events == []
    made._refused_late(["a", "b"], np.array([1.0, 0.5]))
    assert events == [("refused", {"lever": "moves", "why": ["a", "b"]})]


def restored(made: Leader, monkeypatch: pytest.MonkeyPatch, drift: float, folder: Any = Path("of")) -> Any:
    """The events of a leader that takes over from another whose last decision saw this drift at 70 s."""
    found = SimpleNamespace(
        memory={"x": {"k": 9}},
        observation=SimpleNamespace(time_s=70.0, jobs=SimpleNamespace(drift=np.array([drift, 0.5]))),
    )
    monkeypatch.setattr(leader_module, "last_decision", lambda folder: found)
    events = listened(made, folder)
    made.restore()
    return events


@pytest.mark.parametrize(
    ("options", "drift", "parts"),
    [
        ({"drift": "measured"}, 0.0625, (0.0625, 1.0)),
        ({"drift": "measured"}, 64.0, (64.0, 1.0)),
        ({"drift": 0.03125}, 0.0625, (NAN, NAN)),
        ({"drift": "measured"}, None, (NAN, NAN)),
    ],
)
def test_who_takes_over_goes_on_with_the_last_decision(
    options: Any, drift: float | None, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory, its clock, and the drift where one was measured."""
    made = leader(**options)
    decided(made)
    before = made.world.drift
    events = restored(made, monkeypatch, made._drift.assumed if drift is None else drift)
    assert events == [("policy-memory-restored", {"time_s": 70.0})]
    assert made.decider is not None
    assert made.decider.memory == {"x": {"k": 9}}
    assert made.world.now_s() == pytest.approx(70.0, abs=5.0)
    assert made._drift.parts == pytest.approx(parts, nan_ok=True)
    assert made.world.drift == (drift if parts[0] == drift else before)


def test_a_memory_that_nobody_wrote_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [("policy-memory-lost", {})]
    assert restored(leader(), monkeypatch, 0.0625) == lost  # without a policy
    made = leader()
    decided(made)
    assert restored(made, monkeypatch, 0.0625, folder=None) == lost
    assert made.world.now_s() < 60.0


def test_what_was_learnt_is_in_a_checkpoint() -> None:
    made = leader(drift="measured")
    decided(made)
    made.world.samples_done, made.world.gpu_s = 480, 33.5
    made._noise.parts, made._drift.parts = (6.0, 3.0), (0.5, 4.0)
    made.world.continue_from(70.0)
    state = made.state()
    assert state.pop("time_s") == pytest.approx(70.0, abs=5.0)
    memory = encode_memory({"x": {"k": 3}})
    assert state == {
        "memory": memory, "samples_done": 480, "gpu_s": 33.5, "noise": (6.0, 3.0), "drift": (0.5, 4.0)
    }  # fmt: skip
    assert leader().state()["memory"] is None
    other = leader(drift="measured")
    decided(other)
    assert other.decider is not None
    other.decider.memory = {"x": {"k": 8}}
    events = listened(other)
    other.load({**state, "time_s": 90.0})
    assert other.world.now_s() == pytest.approx(90.0, abs=5.0)
    assert (other.world.samples_done, other.world.gpu_s, other.world.drift) == (480, 33.5, 0.125)
    assert (other._noise.parts, other._drift.parts) == ((6.0, 3.0), (0.5, 4.0))
    assert (other.decider.memory, events) == ({"x": {"k": 3}}, [])
    other.load({**state, "time_s": 0.0, "memory": None})
    assert (other.decider.memory, events) == ({"x": {"k": 3}}, [])
    other.load({**state, "time_s": 0.0, "memory": encode_memory({"y": {"k": 4}})})
    assert (other.decider.memory, events) == ({"x": {"k": 3}}, [("policy-memory-lost", {})])
    made = leader()  # one without a policy keeps none
    made.load({k: v for k, v in state.items() if k != "drift"} | {"time_s": 0.0})
    assert made.decider is None


def test_another_group_begins_anew() -> None:
    made, forgotten = leader(), []
    decided(made, forget=lambda: forgotten.append(1))
    made.world.change, made._passes = Change(3, interval=4), 2
    made._norm[:] = 5.0
    slow, growth = made._slow, made._growth
    made.set_members(places(0, 1, 2), places(4))
    assert (made.world.change, made._passes, forgotten) == (Change(0), 1, [1])
    assert made._slow is not slow
    assert made._growth is not growth
    assert np.isnan(made._norm).tolist() == [True] * 3
    assert [len(made.world.active), len(made.world.parked)] == [3, 1]


# -- what a window tells ------------------------------------------------------------------------------------


def test_a_window_in_which_nothing_was_timed_takes_no_time() -> None:
    made = leader()
    seen: list[Any] = []
    made._held_up = SimpleNamespace(news=lambda *took: seen.append(took))  # type: ignore[assignment]
    paused = BLANK.copy()
    paused[:, :, 1:5] = NAN
    report(made, (paused, info())).answer(7.0)
    assert (made.world.gpu_s, made.world.samples_done) == (0.0, 12)
    assert np.isnan(seen[0][1])


def grown(rounds: int, passes: int, *, files: bool = False) -> tuple[int, Any]:
    """Windows that were learnt from, of a leader that learnt from three before, in steps of one pass."""
    made = leader()
    made._growth._windows = 3
    if files:
        made.world.data = SimpleNamespace(length=0, update=lambda *_: None)  # type: ignore[assignment]
    before = made._growth
    report(made, *[(BLANK, info(k)) for k in range(rounds)], accumulation=passes)
    return made._growth._windows, made._growth is before


def test_windows_of_three_rounds_tell_what_grows() -> None:
    """Not shorter ones, and not where data comes from files; with other passes all is forgotten."""
    assert grown(2, 1) == (3, True)
    assert grown(3, 1) == (4, True)
    assert grown(4, 1) == (4, True)
    assert grown(3, 1, files=True) == (3, True)
    assert grown(3, 2) == (1, False)
    assert grown(2, 2) == (0, False)


def test_time_that_surely_does_not_grow_is_fixed() -> None:
    made = leader()
    made._growth = SimpleNamespace(  # type: ignore[assignment]
        sure=SimpleNamespace(fixed_s=lambda each, took_s: np.array([0.0005, 0.03])), law=made._growth.law,
    )  # fmt: skip
    report(made, (BLANK, info()))
    assert made.world.telemetry.window.fixed_s.tolist() == [0.001, 0.03]


def test_what_files_report_comes_between_and_goes_to_the_hosts() -> None:
    made, seen = leader(), list[Any]()
    made.world.data = SimpleNamespace(  # type: ignore[assignment]
        length=2, update=lambda reports, hosts: seen.append((reports.tolist(), hosts))
    )
    header = [1.0] * len(HEADER)
    told = np.stack([pack(header, BLANK[rank], np.array([3.0 + rank, 8.0])) for rank in range(2)])
    sampler: Any = SimpleNamespace(
        deal=None, planned_shares=lambda: np.array([12, 0]), planned_batch=lambda: 12,
        planned_accumulation=lambda: 1, planned_rate=lambda: 1.0, refused=[], accumulation=1,
    )  # fmt: skip
    made.begin(told, [info()], sampler, (4, 2))
    assert seen == [([[3.0, 8.0], [4.0, 8.0]], ["a", "a"])]
    assert made.world.samples_done == 12
    assert np.isnan(made._drift.parts).all()  # of two ranks one trains: nothing moves apart


def test_a_rank_that_is_slow_is_told_by_its_member(capsys: pytest.CaptureFixture[str]) -> None:
    made = Leader(Options(global_batch=12), None, Recorder(None, 0), places(3, 7), resizable=True)
    events = listened(made)
    made._held_up = SimpleNamespace(news=lambda *took: None)  # type: ignore[assignment]
    for number in (4, 8, 12):
        report(made, (BLANK, info(number)))
    (told,) = events
    text = "rank 1 (member 7) is slow: compute (1.90 times; 33.3 ms per sample, the others 16.7 ms)"
    assert told == ("warning", {"text": text})
    assert capsys.readouterr().err == f"equipoise: {text}\n"
    made._held_up = SimpleNamespace(news=lambda *took: "decisions take long")  # type: ignore[assignment]
    made.answer(15.0)
    assert events[1:] == [("warning", {"text": "decisions take long"})]


def test_a_policy_that_cannot_warm_up_is_told() -> None:
    for problem, told in ((None, []), ("no", [("policy-warm-up-failed", {"problem": "no"})])):
        made = leader(mode="advise")
        events = listened(made)
        made.decider = SimpleNamespace(warm_up=lambda *_, problem=problem: problem)  # type: ignore[assignment]
        made.warm_up(np.array([6, 6]), None)
        assert events == told


# -- records and metrics ------------------------------------------------------------------------------------


def test_what_a_run_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_module, "dist", SimpleNamespace(get_backend=lambda: "gloo"))
    frozen = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64), requires_grad=False)
    parameters = [torch.nn.Parameter(torch.zeros(3, 2)), frozen]
    sampler: Any = SimpleNamespace(samples=960, shards=8)
    made = leader(batch_max=48, allow=frozenset(("share", "batch")), decide_every=30, sample_bytes=100)
    events = listened(made)
    made.write_manifest("here", sampler, parameters)
    ((_, content),) = events
    assert content.pop("unix_s") > 1e9
    assert content.pop("torch") == str(torch.__version__)
    assert [one["member"] for one in content.pop("members")] == [0, 1]
    assert content == {
        "format": 2, "run": "here", "policy": None, "stages": None, "mode": "act", "allow": ["batch", "share"],
        "global_batch": 12, "batch_max": 48, "learning_rate": made.options.learning_rate, "micro_batch": 1,
        "accumulation": made.options.accumulation, "decide_every": 30,
        "delay_rounds": made.options.delay_rounds, "drift": made.options.drift, "samples": 960,
        "sample_bytes": 100, "shards": 8, "samples_target": None, "parameters": 11, "gradient_bytes": 24,
        "backend": "gloo",
    }  # fmt: skip
    made.decider = SimpleNamespace(policy=make_policy("s4"))  # type: ignore[assignment]
    made.write_manifest("here", sampler, parameters)
    assert (events[1][1]["policy"], events[1][1]["stages"]) == ("s4", stage_entries(make_policy("s4")))
    made.decider = SimpleNamespace(policy=SimpleNamespace(name="own", stages=[5]))  # type: ignore[assignment]
    made.write_manifest("here", sampler, parameters)
    assert (events[2][1]["policy"], events[2][1]["stages"]) == ("own", None)


def test_metrics_go_to_those_who_asked(capsys: pytest.CaptureFixture[str]) -> None:
    made, seen = leader(), list[Any]()
    made.show(3)
    made.close()  # nobody asked
    made._prometheus = SimpleNamespace(update=seen.append, close=lambda: seen.append("closed"))  # type: ignore[assignment]
    report(made, (BLANK, info()))
    made.decisions, made.failures = 8, 9
    made.show(3)
    (told,) = seen
    assert {k: v for k, v in told.items() if not isinstance(v, list)} == pytest.approx(
        {
            "equipoise_samples_total": 12.0, "equipoise_exchange_seconds": 0.02,
            "equipoise_throughput_samples_per_second": 12 / 0.231, "equipoise_sync_interval": 4.0,
            "equipoise_far_every": 2.0, "equipoise_noise_scale_samples": NAN, "equipoise_decisions_total": 8.0,
            "equipoise_decision_failures_total": 9.0, "equipoise_ranks": 2.0,
        },
        nan_ok=True,
    )  # fmt: skip
    assert told["equipoise_step_seconds"] == pytest.approx([0.111, 0.211])
    assert told["equipoise_wait_seconds"] == [0.0, 0.0]
    assert told["equipoise_input_stall_seconds"] == [0.01, 0.01]
    assert told["equipoise_share_samples"] == [6.0, 6.0]
    made.close()
    assert seen[1:] == ["closed"]

    def update(values: Any, step: int) -> None:
        """A server that is gone at the fifth round."""
        seen.append((values["equipoise_ranks"], step))
        if step == 5:
            raise OSError("gone")

    made._prometheus, made._mlflow = None, SimpleNamespace(update=update)  # type: ignore[assignment]
    events = listened(made)
    for step in (4, 5, 6):
        made.show(step)
    assert seen[2:] == [(2.0, 4), (2.0, 5)]
    assert events == [("warning", {"text": "MLflow: gone; no more is sent"})]
    assert capsys.readouterr().err == "equipoise: MLflow: gone; no more is sent\n"


def test_sinks_that_cannot_be_had_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(error: Exception) -> Any:
        """Something that cannot be made."""

        def made(*_: Any) -> None:
            """Raise."""
            raise error

        return made

    monkeypatch.setattr(leader_module, "PrometheusServer", none(OSError("taken")))
    monkeypatch.setattr(leader_module, "MlflowCopy", none(ImportError("none")))
    made = leader(prometheus_port=4)
    events = listened(made)
    made.options = Options(global_batch=12, prometheus_port=4, mlflow=True)
    made._open_sinks()
    assert [values["text"] for _, values in events] == [
        "no metrics on port 4: taken",
        "no copy to MLflow: none",
    ]
    assert (made._prometheus, made._mlflow) == (None, None)
    asked: list[Any] = []
    monkeypatch.setattr(leader_module, "PrometheusServer", lambda *where: asked.append(where))
    monkeypatch.setattr(leader_module, "MlflowCopy", lambda: "copy")
    made = leader()
    assert (asked, made._mlflow) == ([], None)
    assert leader(prometheus_port=0, prometheus_host="::1", mlflow=True)._mlflow == "copy"
    assert asked == [(0, "::1")]

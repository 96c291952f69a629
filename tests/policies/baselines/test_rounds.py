"""Baselines that plan rounds: what they ask of a job's ways, of shares of time and of the cluster, by values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.policies.baselines import gavel, goodput, shockwave
from equipoise.policies.baselines.gavel import Gavel
from equipoise.policies.baselines.goodput import Option, Sia, Ways, climb, with_batches
from equipoise.policies.baselines.rounds import RoundBased, hand_out, job_speeds, model_counts, work_left
from equipoise.policies.contract import UNCHANGED, Memory, Plan
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Speeds
from equipoise.policies.registry import make_stage
from tests.policies.baselines.test_borders import OPEN, entries, site
from tests.policies.baselines.test_field import elastic, kinds
from tests.policies.observations import change

NAN = math.nan
W, R, DONE = JobState.WAITING, JobState.RUNNING, JobState.DONE


# -- rounds ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounds(RoundBased):
    """Decides for ten seconds from now."""

    name: ClassVar[str] = "rounds"

    def decide(self, o: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        return plan.with_(revisit_s=o.time_s + 10.0).because(self.name, "decided"), {}


@pytest.mark.parametrize("state", [W, R])
def test_a_round_begins_where_jobs_wait_or_run(state: int) -> None:
    o = site(state=[DONE, DONE, state, DONE, DONE])
    plan, memory = Rounds(round_s=50.0).refine(o, UNCHANGED, {})
    assert (plan.reasons[-1].text, plan.revisit_s, memory["next_s"]) == ("decided", 110.0, 150.0)


def test_a_round_that_was_to_last_longer_than_a_whole_one_is_over() -> None:
    for next_s, said in ((150.0, "the round is not over"), (150.1, "decided"), (100.0, "decided")):
        plan, _ = Rounds(round_s=50.0).refine(site(), UNCHANGED, {"next_s": next_s})
        assert plan.reasons[-1].text == said


def test_speeds_are_those_of_the_jobs_that_are_open() -> None:
    """Job 1 shares its GPU and is none of them; what is listed of it is nobody's."""
    o = site()
    o.speeds = Speeds.of(
        job=[1, 0, 4, 4, 4], gpu_model=[0, 1, 1, 0, 0], gpus=[1, 2, 1, 1, 3],
        samples_per_s=[55.0, 20.0, 7.0, 0.5, 3.0],
    )  # fmt: skip
    assert job_speeds(o, OPEN).tolist() == [[0.0, 20.0], [1.0, 1.0], [1.0, 1.0], [0.5, 7.0]]


def test_gpus_of_services_and_those_partly_free_are_not_handed_out() -> None:
    o = site()
    o.gpus = Gpus.of(
        node=[0, 0, 0, 0, 1, 1, 2, 2, 3], model=[0, 0, 0, 0, 1, 1, 0, 0, 0], job=[0, 0, -3, -1, 4, -1, -1, -1, -1],
        share_free=[0.0, 0.0, 0.0, 0.5, 0.0, 1.0, 1.0, 1.0, 0.0],
    )  # fmt: skip
    assert model_counts(o, OPEN).tolist() == [4, 2]
    assert model_counts(o, np.array([4])).tolist() == [2, 2]


def test_what_is_left_of_a_job_in_its_own_unit() -> None:
    speed = np.array([[3.0, 5.0], [2.0, 0.0], [4.0, 7.0], [6.0, 2.0]])
    o = site(
        rigid=[False, False, True, False, False], remaining_samples=[500.0, 1.0, 80.0, 0.0, NAN],
        service_s=[50.0, 50.0, 60.0, NAN, 30.0],
    )  # fmt: skip
    assert work_left(o, OPEN, speed).tolist() == [500.0, 60.0, 3600.0 * 7.0, 180.0]


def test_who_runs_keeps_its_gpus_only_where_all_of_them_fit() -> None:
    """Jobs 0 (GPUs 0 and 1 of model 0) and 4 (GPU 4 of model 1) run."""
    o = site(state=[R, R, DONE, DONE, R])
    assert entries(hand_out(o, UNCHANGED, "x", [(4, 0, 1), (0, 0, 2)])) == [(4, [3])]
    assert entries(hand_out(o, UNCHANGED, "x", [(4, 0, 2), (0, 0, 2)])) == [(4, [6, 7])]
    assert entries(hand_out(o, UNCHANGED, "x", [(4, 1, 2), (0, 0, 1)])) == [(4, [4, 5]), (0, [6])]
    plan = hand_out(o, UNCHANGED, "x", [(4, 1, 2)], choices=7)
    assert entries(plan) == [(0, []), (4, [4, 5])]
    assert plan.reasons[-1].text == "starts 0, stops 1, moves or resizes 1"
    assert plan.reasons[-1].values == {"choices": 7}
    down = site(state=[R, R, DONE, DONE, R])
    down.nodes = Nodes.of(**down.nodes.as_dict() | {"up": [1, 0, 1, 0]})
    assert entries(hand_out(down, UNCHANGED, "x", [(4, 1, 1), (0, 0, 2)])) == [(4, [])]


# -- Gavel -----------------------------------------------------------------------------------------------------


def test_gavel_finish_times_are_even_to_a_four_thousandth() -> None:
    """60 / x = 30 + 60 / (1 - x), of which 30 s are past: x = (5 - sqrt 17) / 2."""
    one = np.ones((2, 1))
    age_s, left, alone_s = np.array([0.0, 30.0]), np.array([60.0, 60.0]), np.array([120.0, 120.0])
    share, solves = gavel._fairest(one, np.ones(2), np.ones(1), left, age_s, alone_s)
    first = (5.0 - math.sqrt(17.0)) / 2.0
    assert share.ravel() == pytest.approx([first, 1.0 - first], rel=4e-4)
    assert solves == 13
    # Three times as long alone for the first: 60 / x / 360 = (30 + 60 / (1 - x)) / 120, x**2 - 17/3 x + 2/3 ...
    share, _ = gavel._fairest(one, np.ones(2), np.ones(1), left, age_s, np.array([360.0, 120.0]))
    rho = (age_s + left / share.ravel()) / np.array([360.0, 120.0])
    assert rho[0] == pytest.approx(rho[1], rel=1.5e-3)
    # Work of 90 and 60 with speeds of 3 and 1 on two GPUs of each job's own: nobody is in another's way.
    apart = np.array([[3.0, 0.0], [0.0, 1.0]])
    share, _ = gavel._fairest(apart, np.ones(2), np.ones(2), np.array([90.0, 60.0]), age_s, alone_s)
    assert np.diag(share) == pytest.approx([1.0, 1.0], abs=1e-3)


def test_what_is_due_is_the_share_of_the_age_over_what_was_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 400 s, of rounds of 360 s: jobs that came at 40 s and at 100 s, and one that is yet to come."""
    seen: list[Any] = []
    first_due = gavel._first_due
    monkeypatch.setattr(gavel, "_first_due", lambda *given: seen.append(given) or first_due(*given))
    o = kinds([[4.0, 0.0], [0.0, 2.0], [1.0, 1.0]], gpus=(1, 1), arrival_s=[40.0, 100.0, 500.0])
    o.time_s = 400.0
    had_s = np.array([[20.0, 0.0], [0.0, 7.0], [3.0, 5.0]])
    share = np.array([[0.75, 0.0], [0.0, 0.5], [0.25, 0.5]])
    one, listed = np.ones(3, dtype=np.int64), o.speeds.samples_per_s.reshape(3, 2)
    asks = (np.arange(3), one, one[:2], listed, o.jobs.priority)
    memory = {"share": share, "asks": asks, "solved": 5, "had_s": had_s, "time_s": 100.0}
    plan, after = Gavel().decide(o, UNCHANGED, memory)
    rows, due, _, gpus, _ = seen[0]
    assert due == pytest.approx(
        np.array([
            [0.75 * 720.0 / 20.36, 0.0], [0.0, 0.5 * 660.0 / 7.36], [0.25 * 360.0 / 3.36, 0.5 * 360.0 / 5.36],
        ])
    )  # fmt: skip
    assert (rows.tolist(), gpus.tolist()) == ([0, 1, 2], [1, 1, 1])
    assert (after["solved"], after["time_s"], after["share"] is share) == (5, 400.0, True)
    assert (after["had_s"].tolist(), plan.reasons[-1].values) == (had_s.tolist(), {"solved": 5})
    assert entries(plan) == [(1, [1]), (2, [0])]
    # Whose model has no room, or who is too large for each, is none of the programme.
    o = kinds([[4.0, 3.0], [1.0, 2.0]], gpus=(1, 2), wanted=[2, 3])
    _, after = Gavel(objective="throughput").decide(o, UNCHANGED, {})
    assert [part.tolist() for part in after["asks"]] == [[0], [2], [1, 2], [[0.0, 3.0]], [1.0]]
    assert after["share"].tolist() == [[0.0, 1.0]]


def test_shares_with_unequal_gangs_by_hand() -> None:
    """Three and two jobs of two and of four GPUs on eight: needs of 3 and 1 at speeds of 6 and 4, 0.5 each.

    Each of the first has x, of the others y: 6 x / 3 = 4 y = z and 3 * 2 x + 2 * 4 y = 8 make z = 8 / 5.
    """
    part, least = gavel.shares(
        np.array([[6.0], [4.0]]), np.array([2.0, 4.0]), np.array([8.0]), np.array([3.0, 1.0]), np.array([3.0, 2.0])
    )  # fmt: skip
    assert (part.ravel().tolist(), least) == (
        pytest.approx([0.8, 0.4], rel=1e-6),
        pytest.approx(1.6, rel=1e-6),
    )


# -- Pollux, Sia -----------------------------------------------------------------------------------------------


def three(**jobs: Any) -> Observation:
    """A rigid job of two GPUs, and an elastic one of 2 to 4 GPUs on two models; the third is not listed."""
    columns = {
        "id": range(3), "state": [W] * 3, "rigid": [True, False, False], "gpus_requested": [2, 3, 5],
        "workers_min": [2, 2, 5], "workers_max": [2, 4, 5], "global_batch": [0, 48, 64],
        "batch_reference": [0, 48, 64],
    } | jobs  # fmt: skip
    return Observation.of(
        0.0, jobs=Jobs.of(**columns), gpu_models=("a", "h"),
        nodes=Nodes.of(gpus=[9, 9], first_gpu=[0, 9], gpus_free=[9, 9]),
        gpus=Gpus.of(node=[0] * 9 + [1] * 9, model=[0] * 9 + [1] * 9, job=[-1] * 18),
        speeds=Speeds.of(
            job=[1, 0, 1, 1, 1, 1, 1, 1, 0], gpu_model=[0, 0, 0, 0, 0, 0, 1, 1, 1],
            gpus=[4, 2, 1, 2, 3, 5, 3, 4, 2],
            samples_per_s=[300.0, 5.0, 99.0, 160.0, 240.0, 400.0, 480.0, 0.0, 7.0],
        ),
    )  # fmt: skip


def sizes(
    o: Observation, k: int, room: tuple[int, int], fits: Any = True
) -> list[tuple[int, int, int, float]]:
    rows = np.array([0, 1, 2])
    able = np.ones((3, 2), dtype=np.bool_) if fits is True else np.array(fits)
    ways = Ways(o, rows, job_speeds(o, rows), np.array(room), able).of(k)[1]
    return [(way.model, way.gpus, way.batch, round(way.goodput, 6)) for way in ways]


def test_the_ways_of_a_job_are_its_listed_sizes_where_there_is_room() -> None:
    o = three()
    assert sizes(o, 0, (2, 2)) == [(0, 2, 0, 5.0), (1, 2, 0, 7.0)]
    assert sizes(o, 0, (1, 2)) == [(1, 2, 0, 7.0)]
    assert sizes(o, 1, (9, 9)) == [(0, 2, 48, 160.0), (0, 3, 48, 240.0), (0, 4, 48, 300.0), (1, 3, 48, 480.0)]
    assert sizes(o, 1, (3, 2)) == [(0, 2, 48, 160.0), (0, 3, 48, 240.0)]
    assert sizes(o, 1, (4, 3)) == sizes(o, 1, (9, 9))
    assert sizes(o, 1, (9, 9), [[True, True], [False, True], [True, True]]) == [(1, 3, 48, 480.0)]
    assert sizes(o, 2, (5, 4)) == [(0, 5, 64, 1.0)]  # what it asks for; nothing is known of it
    o.speeds = Speeds.of(job=[0], gpu_model=[1], gpus=[2], samples_per_s=[7.0])
    assert sizes(o, 0, (2, 2)) == [(1, 2, 0, 7.0)]
    pairs = three(gpus_per_worker=[1, 2, 1], workers_min=[2, 1, 5], workers_max=[2, 2, 5])
    assert [way[:2] for way in sizes(pairs, 1, (9, 9))] == [(0, 2), (0, 4)]
    assert sizes(three(gpus_per_worker=[0, 2, 1], workers_max=[2, 3, 5], workers_min=[2, 3, 5]), 1, (9, 9)) == [
        (0, 6, 48, 1.0), (1, 6, 48, 1.0),
    ]  # fmt: skip


def of_sizes(listed: list[tuple[int, float]], exchange_s: float, **jobs: Any) -> Observation:
    o = elastic(1024)
    if jobs:
        o = change(o, "jobs", **jobs)
    n = len(listed)
    o.speeds = Speeds.of(
        job=[0] * n, gpu_model=[0] * n, gpus=[size for size, _ in listed],
        samples_per_s=[32.0 / s for _, s in listed], exchange_s=[exchange_s] * n,
    )  # fmt: skip
    return o


@pytest.mark.parametrize(
    ("listed", "fixed_s", "each_s"),
    [
        # One size, or more work for less: all grows.
        ([(2, 0.5)], 0.0, 0.5 / 16), ([(1, 0.1), (2, 0.2)], 0.0, 0.005),
        ([(1, 0.27), (2, 0.11)], 0.0, (0.27 * 32 + 0.11 * 16) / (32**2 + 16**2)),  # by the line less than nothing
        ([(1, 0.75), (2, 0.43), (4, 0.27)], 0.11, 0.02),
    ],
)  # fmt: skip
def test_the_best_batch_by_the_line_through_the_listed_sizes(
    listed: list[tuple[int, float]], fixed_s: float, each_s: float
) -> None:
    """Goodput M / (fixed + each M / n + 0.2 / 2 s) at efficiency 1032 / (1000 + M); as listed at the own batch."""
    o = of_sizes(listed, 0.2, sync_interval=[2])
    tried = goodput.batches(o, 0)
    assert len(tried) > 5
    for way, (size, step_s) in zip(goodput._on_model(o, 0, np.arange(len(listed)), 0), listed, strict=True):
        worth = tried * (1032 / (1000 + tried)) / (fixed_s + each_s * tried / size + 0.1)
        worth[tried == 32] = 32 / (step_s + 0.1)
        assert (way.gpus, way.batch) == (size, tried[worth.argmax()])
        assert way.goodput == pytest.approx(worth.max())


def test_unknown_exchanges_take_no_time_and_pairs_of_gpus_are_one_worker() -> None:
    o = of_sizes([(2, 0.5), (4, 0.3)], NAN, gpus_per_worker=[2], batch_max=[0], sync_interval=[0])
    assert [(w.model, w.gpus, w.goodput) for w in goodput._on_model(o, 0, np.arange(2), 3)] == [
        (3, 2, pytest.approx(64.0)), (3, 4, pytest.approx(32 / 0.3)),
    ]  # fmt: skip
    o = of_sizes([(2, 0.5), (4, 0.3)], 0.2, gpus_per_worker=[2], batch_max=[0], sync_interval=[0])
    assert [w.goodput for w in goodput._on_model(o, 0, np.arange(2), 3)] == pytest.approx([32 / 0.7, 64.0])


def test_a_plan_has_the_batches_that_differ() -> None:
    o = three()
    assert with_batches(o, UNCHANGED, {1: Option(0, 2, 48, 1.0)}).global_batch is None
    plan = with_batches(o, UNCHANGED, {1: Option(0, 2, 48, 1.0), 2: Option(0, 5, 96, 1.0)})
    assert plan.global_batch is not None
    assert plan.global_batch.tolist() == [0, 48, 96]


def test_what_pollux_leaves_for_the_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 9 and 4 GPUs each of three jobs takes four of model 0; an equal part is of what is left then."""
    asked: list[Any] = []

    def ladder(own: Any, *given: Any) -> list[Option]:
        asked.append(given)
        return [Option(0, 4, 8, 1.0)]

    monkeypatch.setattr(goodput, "_ladder", ladder)
    make_stage("pollux").refine(kinds([[1.0, 1.0]] * 3, gpus=(9, 4)), UNCHANGED, {})
    assert asked == [(0, 0, 0.0, 4), (0, 0, 0.0, 3), (1, 0, 0.0, 1)]


def test_first_steps_go_to_the_smallest_then_to_the_lowest_row() -> None:
    ladders = {7: [Option(0, 2, 8, 1.0)], 3: [Option(0, 2, 8, 1.0)], 9: [Option(0, 1, 8, 1.0)]}
    assert list(climb(ladders, np.array([3]))) == [9, 3]
    assert list(climb(ladders, np.array([4]))) == [9, 3]
    assert list(climb(ladders, np.array([5]))) == [9, 3, 7]


def test_sia_says_how_many_choices_it_had() -> None:
    plan, _ = make_stage("sia").refine(kinds([[4.0, 1.0], [2.0, 3.0]]), UNCHANGED, {})
    assert plan.reasons[-1].values["choices"] == 4
    plan, memory = make_stage("sia").refine(kinds([[4.0]], gpus=(1,), wanted=[2]), UNCHANGED, {})
    assert (plan.reasons[-1].text, plan.reasons[-1].values) == ("all stays as it is", {})
    assert memory == {"next_s": 60.0}
    for wrong in ({"search_limit": 0}, {"time_limit_s": 0.0}, {"search_limit": -1}, {"time_limit_s": NAN}):
        with pytest.raises(ValueError, match="must be above 0"):
            Sia(**wrong)  # type: ignore[arg-type]
    assert Sia(search_limit=1, time_limit_s=0.5).search_limit == 1


def test_the_worth_of_ways_counts_where_nothing_was_started() -> None:
    """Of a job that never started, no age is known: a restart costs all, but for a thousandth."""
    o = site(restart_s=[30.0] * 5, started_s=[NAN] * 5)
    two = [Option(0, 1, 8, 10.0), Option(0, 2, 8, 20.0)]
    worth = Sia(power=0.5)._worth(o, 0, (0, 1), two)
    assert worth.tolist() == pytest.approx([1.0, math.sqrt(0.002)])
    assert Sia(power=0.5)._worth(o, 0, (1, 1), two).tolist() == pytest.approx(
        [math.sqrt(1e-3), math.sqrt(2e-3)]
    )
    assert Sia(penalty=1.5)._worth(o, 0, None, two).tolist() == pytest.approx([0.5, 1.5 - 0.5**0.5])


# -- Shockwave -------------------------------------------------------------------------------------------------


def test_who_has_most_rounds_to_come_runs_first_where_it_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU of model 0 and two of model 1, which job 1 takes whole; job 2 has the least to come."""

    def market(*given: Any) -> None:
        given[-1][:] = [2, 3, 1]

    monkeypatch.setattr(shockwave, "market", market)
    stage = make_stage("shockwave", {"window": 4})
    o = kinds([[4.0, 1.0], [9.0, 5.0], [2.0, 6.0]], gpus=(1, 2), wanted=[1, 2, 1])
    plan, memory = stage.refine(o, UNCHANGED, {})
    assert entries(plan) == [(1, [1, 2]), (0, [0])]
    assert (memory["credit"].tolist(), memory["ahead"], memory["rows"].tolist()) == (
        [0.0, 0.0, 0.25],
        3,
        [0, 1, 2],
    )
    rich = {**memory, "credit": np.array([1.0, 0.5, 1.75]), "next_s": -math.inf}
    plan, memory = stage.refine(o, UNCHANGED, rich)  # 1.5, 1.25 and 2 to come
    assert entries(plan) == [(2, [1]), (0, [0])]
    assert (memory["credit"].tolist(), memory["ahead"]) == ([0.5, 1.25, 1.0], 2)
    equal = {**memory, "credit": np.array([0.5, 0.25, 0.75]), "next_s": -math.inf}
    plan, _ = stage.refine(o, UNCHANGED, equal)  # all one: the lowest rows
    assert entries(plan) == [(0, [0]), (1, [1, 2])]


def test_what_gangs_offer_for_the_rounds_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of two GPUs and of one on three: an equal part is 3 / 2, so that the first is 4 / 3 as long."""
    seen: list[Any] = []
    monkeypatch.setattr(shockwave, "market", lambda *given: seen.append(given))
    o = kinds(
        [[1.0], [2.0]], gpus=(3,), wanted=[2, 1], service_s=[1200.0, 7200.0], attained_gpu_s=[240.0, NAN]
    )
    o.time_s = 600.0
    make_stage("shockwave", {"makespan": 0.5, "power": 2.0}).refine(o, UNCHANGED, {})
    ran, left, gpus, budget, makespan, window, total, _ = seen[0]
    assert (ran.tolist(), left.tolist(), gpus.tolist()) == ([1.0, 0.0], [10.0, 30.0], [2, 1])
    worth = np.array([(600 + 1600) / (1320 * 4 / 3), 4200 / 3600]) ** 2
    assert budget == pytest.approx(worth / worth.sum())
    assert (makespan, window, total) == (pytest.approx(0.5 * 120 / 4800), 20, 3)

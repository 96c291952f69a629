"""The field's baselines at the borders of their rules: GPUs counted, speeds, shares, worths worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.baselines import gavel, goodput, shockwave
from equipoise.policies.baselines.gavel import Gavel, _classes, _equal, _first_due
from equipoise.policies.baselines.goodput import Held, Option, Sia, climb, oldest_first
from equipoise.policies.baselines.lucid import Lucid
from equipoise.policies.baselines.optimus import Drf, Optimus
from equipoise.policies.baselines.power import Zeus
from equipoise.policies.baselines.queueing import _first_left
from equipoise.policies.baselines.rounds import (
    RoundBased,
    fits_memory,
    hand_out,
    job_speeds,
    model_counts,
    open_jobs,
    place_gangs,
    whole_held,
    work_left,
)
from equipoise.policies.baselines.shares import _cores, _per_core, frequent
from equipoise.policies.contract import UNCHANGED, Allocation, Memory, Plan
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Speeds, Workers
from equipoise.policies.plan import BY_CLOCK
from equipoise.policies.registry import make_stage
from tests.policies.baselines.test_field import elastic, kinds, placed

NAN = math.nan
W, R = JobState.WAITING, JobState.RUNNING


def site(time_s: float = 100.0, **columns: Any) -> Observation:
    """GPUs 0 to 3 and 6, 7 are of model 0 on nodes 0 and 2, 4 and 5 of model 1 on node 1; 8 is on a dead node.

    Jobs 0 (GPUs 0, 1), 1 (half of GPU 2) and 4 (GPU 4) run; 2 waits for two GPUs, 3 for half of one.
    """
    jobs = {
        "id": range(5), "state": [R, R, W, W, R], "rigid": [False, False, True, True, False],
        "global_batch": [32, 32, 0, 0, 32],
        "gpus_requested": [2, 1, 2, 1, 1], "gpus_held": [2, 1, 0, 0, 1], "workers_max": [2, 1, 2, 1, 1],
        "gpu_share_requested": [1.0, 0.5, 1.0, 0.5, 1.0], "service_s": [50.0, 50.0, 60.0, NAN, 30.0],
        "remaining_samples": [500.0, 1.0, 9.0, 9.0, 0.0], "started_s": [10.0, 10.0, NAN, NAN, 80.0],
    }  # fmt: skip
    return Observation.of(
        time_s, jobs=Jobs.of(**jobs | columns), gpu_models=("a", "h"),
        nodes=Nodes.of(gpus=[4, 2, 2, 1], first_gpu=[0, 4, 6, 8], gpus_free=[1, 1, 2, 0], up=[1, 1, 1, 0]),
        gpus=Gpus.of(
            node=[0, 0, 0, 0, 1, 1, 2, 2, 3], model=[0, 0, 0, 0, 1, 1, 0, 0, 0],
            job=[0, 0, -2, -1, 4, -1, -1, -1, -1], share_free=[0.0, 0.0, 0.5, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0],
            memory_bytes=[4.0, 8.0, 8.0, NAN, 8.0, 8.0, 8.0, 8.0, 8.0],
        ),
        speeds=Speeds.of(
            job=[0, 0, 0, 2, 4], gpu_model=[0, 1, 0, 0, 1], gpus=[2, 2, 4, 2, 1],
            samples_per_s=[10.0, 20.0, 99.0, 0.0, 7.0],
        ),
    )  # fmt: skip


OPEN = np.array([0, 2, 3, 4])


def test_what_a_round_has_to_hand_out() -> None:
    o = site(memory_bytes=[0.0, 0.0, 5.0, 4.0, 0.0])
    assert open_jobs(o).tolist() == OPEN.tolist()  # job 1 shares its GPU
    assert whole_held(o, np.array([0, 1, 2, 4])).tolist() == [2, 0, 0, 1]
    assert model_counts(o, OPEN).tolist() == [5, 2]
    assert model_counts(o, np.array([2])).tolist() == [3, 1]
    assert fits_memory(o, OPEN).tolist() == [[True, True], [False, True], [True, True], [True, True]]
    assert fits_memory(site(), OPEN).all()
    assert job_speeds(o, OPEN).tolist() == [[10.0, 20.0], [0.0, 1.0], [1.0, 1.0], [0.0, 7.0]]
    # Samples; a duration; one that is not known, 1 h; and a time left at the best speed.
    assert work_left(o, OPEN, job_speeds(o, OPEN)).tolist() == [500.0, 60.0, 3600.0, 210.0]
    none = site(service_s=[0.0] * 5, remaining_samples=[NAN] * 5)
    assert work_left(none, OPEN, job_speeds(none, OPEN)).tolist() == [1e-9] * 4


def entries(plan: Plan) -> list[tuple[int, list[int]]]:
    given = plan.allocation
    return [] if given is None else [(int(job), given.gpus_of(k).tolist()) for k, job in enumerate(given.job)]


def test_who_is_handed_gpus_and_who_keeps_its_own() -> None:
    plan = hand_out(site(), UNCHANGED, "x", [(0, 0, 2), (2, 1, 1)])
    assert entries(plan) == [(4, []), (2, [4]), (3, [2])]  # job 3 takes the other half of GPU 2
    assert plan.reasons[-1].text == "starts 2, stops 1, moves or resizes 0"
    plan = hand_out(site(), UNCHANGED, "x", np.array([[4, 1, 1], [0, 0, 3]]))
    assert entries(plan) == [(0, [0, 1, 3]), (3, [2])]
    assert plan.reasons[-1].text == "starts 1, stops 0, moves or resizes 1"
    assert entries(hand_out(site(), UNCHANGED, "x", [(4, 1, 1), (0, 1, 1)])) == [(0, [5]), (3, [2])]
    assert entries(hand_out(site(), UNCHANGED, "x", [(4, 1, 1), (0, 1, 2)])) == [
        (0, []),
        (3, [2]),
    ]  # no place
    alone = site(state=[R, JobState.DONE, W, JobState.DONE, R])
    assert hand_out(alone, UNCHANGED, "x", [(4, 1, 1), (0, 0, 2)]).reasons[-1].text == "all stays as it is"


@pytest.mark.parametrize(
    ("model", "gpus", "expected"),
    [
        (0, 1, [3]), (0, 2, [6, 7]), (0, 3, [3, 6, 7]), (0, 4, None), (0, 0, None), (1, 1, [5]), (1, 2, None),
    ],
)  # fmt: skip
def test_a_gang_goes_to_the_tightest_node_that_holds_it(
    model: int, gpus: int, expected: list[int] | None
) -> None:
    job, offset, gpu, share = place_gangs(Draft(site()), np.array([[2, model, gpus]]))
    assert (job.tolist(), gpu.tolist()) == (([2], expected) if expected else ([], []))
    assert offset.tolist() == ([0, gpus] if expected else [0])
    assert share.tolist() == [1.0] * len(expected or [])


def test_gangs_take_their_gpus_one_after_another() -> None:
    job, offset, gpu, _ = place_gangs(Draft(site()), np.array([[2, 0, 3], [3, 0, 1], [2, 1, 1], [3, 1, 1]]))
    assert (job.tolist(), offset.tolist(), gpu.tolist()) == ([2, 2], [0, 3, 4], [3, 6, 7, 5])
    need = site(memory_bytes=[0.0, 0.0, 9.0, 0.0, 0.0])  # GPU 3's memory is not known
    assert place_gangs(Draft(need), np.array([[2, 0, 1]]))[2].tolist() == [3]
    assert place_gangs(Draft(need), np.array([[2, 0, 2]]))[2].tolist() == []
    served = Observation.of(
        0.0, jobs=Jobs.of(id=[0]), nodes=Nodes.of(gpus=[2], first_gpu=[0], gpus_free=[1]),
        gpus=Gpus.of(node=[0, 0], job=[-3, -1]),
    )  # fmt: skip
    assert place_gangs(Draft(served), np.array([[0, 0, 1]]))[2].tolist() == [1]


@dataclass(frozen=True)
class Rounds(RoundBased):
    """Notes when it is asked."""

    name: ClassVar[str] = "rounds"
    asked: list[float] = field(default_factory=list)

    def decide(self, o: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        self.asked.append(o.time_s)
        return plan.because(self.name, "decided"), {"mine": 1}


def test_a_round_ends_when_its_time_is_over() -> None:
    stage = Rounds()
    plan, memory = stage.refine(site(), UNCHANGED, {})
    assert (plan.revisit_s, memory) == (460.0, {"mine": 1, "next_s": 460.0})
    plan, same = stage.refine(site(459.9), UNCHANGED, memory)
    assert (plan.revisit_s, plan.reasons[-1].text, same) == (460.0, "the round is not over", memory)
    plan, _ = stage.refine(site(460.0), UNCHANGED.with_(revisit_s=500.0), memory)
    assert plan.revisit_s == 500.0
    stage.refine(site(99.0), UNCHANGED, memory)  # a clock that was set back: the round would last too long
    assert stage.asked == [100.0, 460.0, 99.0]
    stage.refine(site(100.0), UNCHANGED, memory)
    assert len(stage.asked) == 3
    done = site(state=[JobState.DONE] * 5)
    assert stage.refine(done, UNCHANGED, {})[0].reasons[-1].text == "no job waits"
    planned = UNCHANGED.with_(allocation=Allocation.of([(2, [6, 7])]))
    assert stage.refine(site(), planned, {})[0].revisit_s == math.inf
    for wrong in (0.0, -1.0, NAN):
        with pytest.raises(ValueError, match="round_s must be above 0"):
            Rounds(round_s=wrong)


# -- Gavel -----------------------------------------------------------------------------------------------------


def test_time_that_jobs_have_had_on_each_model() -> None:
    old = {"had_s": np.array([[1.0, 2.0], [3.0, 4.0]]), "time_s": 50.0}
    expected = [[51.0, 2.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0], [0.0, 20.0]]  # since 50 s, and since 80 s
    assert Gavel()._had(site(), old).tolist() == expected
    for other in ({}, {"had_s": np.ones((2, 3)), "time_s": 50.0}, {"had_s": np.ones((6, 2)), "time_s": 50.0}):
        assert not Gavel()._had(site(), other).any()
    assert Gavel()._had(site(), {"had_s": np.ones((5, 2)), "time_s": 150.0}).tolist() == [[1.0, 1.0]] * 5


def test_what_is_not_known_is_equal_to_what_is_not_known() -> None:
    one = np.array([1.0, NAN])
    assert _equal(one, one.copy())
    assert not _equal(one, np.array([NAN, 1.0]))
    assert not _equal(one, np.array([1.0, 2.0]))
    assert not _equal(one, np.array([1.0]))
    kind, which, count = _classes(np.array([[2.0, 1.0], [1.0, 5.0], [2.0, 1.0], [1.0, 3.0], [2.0, 1.0]]))
    assert kind.tolist() == [[1.0, 3.0], [1.0, 5.0], [2.0, 1.0]]
    assert (which.tolist(), count.tolist()) == ([2, 1, 2, 0, 2], [1.0, 1.0, 3.0])


def test_gpus_of_a_round_go_to_who_is_furthest_behind_then_to_the_fastest() -> None:
    rows, gpus = np.array([3, 5, 7]), np.array([1, 2, 1])
    due, speed = (
        np.array([[0.0, 2.0], [5.0, 0.0], [1e-10, 0.0]]),
        np.array([[1.0, 1.0], [1.0, 1.0], [0.5, 4.0]]),
    )

    def first(room: list[int], speed: np.ndarray = speed) -> list[list[int]]:
        return _first_due(rows, due, speed, gpus, np.array(room)).tolist()  # type: ignore[no-any-return]

    assert first([2, 1]) == [[5, 0, 2], [3, 1, 1]]
    assert first([3, 1]) == [[5, 0, 2], [3, 1, 1], [7, 0, 1]]
    assert first([3, 2]) == [[5, 0, 2], [3, 1, 1], [7, 1, 1]]
    assert first([4, 1]) == [[5, 0, 2], [3, 1, 1], [7, 0, 1]]
    assert first([1, 2]) == [[3, 1, 1], [7, 1, 1]]
    assert first([1, 0]) == [[3, 0, 1]]  # none is due there; both are fastest relative to their best
    assert first([3, 1], np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 4.0]])) == [[3, 1, 1]]
    assert first([0, 0]) == []


def test_shares_of_gangs_and_what_is_left_over() -> None:
    """Two jobs of two GPUs take turns on two; who needs a quarter as much still gets what nobody else can use."""
    one = np.ones((1, 1))
    part, least = gavel.shares(one, np.array([2.0]), np.array([2.0]), np.ones(1), np.array([2.0]))
    assert (part.tolist(), least) == ([[pytest.approx(0.5)]], pytest.approx(0.5))
    speed, count = np.ones((2, 1)), np.ones(2)
    part, least = gavel.shares(speed, count, np.array([2.0]), np.array([4.0, 1.0]), count)
    assert (part.ravel().tolist(), least) == (pytest.approx([1.0, 1.0]), pytest.approx(0.25))


def test_what_the_objectives_of_gavel_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An equal part of 1 and 3 GPUs: (4 + 3) / 4 and (1 + 9) / 4; of four jobs one of two GPUs has half of its."""
    seen: dict[str, Any] = {}

    def keep(name: str, result: Any) -> Any:
        return lambda *given: seen.update({name: given}) or result

    nothing = np.zeros((4, 2))
    for name, result in (("_worthiest", nothing), ("_by_class", nothing), ("_fairest", (nothing, 7))):
        monkeypatch.setattr(gavel, name, keep(name, result))
    speed = [[4.0, 1.0], [1.0, 3.0], [1.0, 1.0], [1.0, 1.0]]
    o = kinds(speed, gpus=(1, 3), wanted=[1, 2, 1, 1], priority=[2.0, NAN, 1.0, 0.0], service_s=[900.0] * 4)
    o.time_s = 600.0
    solved = {}
    for parts in ("through put", "max- min", "make span", "finish- time"):
        objective = "".join(parts.split())  # not the very text that stands in the code
        solved[objective] = make_stage("gavel", {"objective": objective}).refine(o, UNCHANGED, {})[1][
            "solved"
        ]
    assert solved == {"throughput": 0, "max-min": 1, "makespan": 1, "finish-time": 7}
    able = [[4.0, 1.0], [0.0, 3.0], [1.0, 1.0], [1.0, 1.0]]  # model 0 has no two GPUs
    worth = [[8.0, 2.0], [0.0, 1.5], [1.0, 1.0], [1e-9, 1e-9]]
    assert seen["_worthiest"][0].tolist() == worth
    assert seen["_by_class"][3].tolist() == [900.0] * 4  # makespan, the last that asked
    *_, left, age_s, alone_s = seen["_fairest"]
    assert (seen["_fairest"][0].tolist(), left.tolist(), age_s.tolist()) == (able, [900.0] * 4, [600.0] * 4)
    equal = np.array([7 / 4, 9 / 4, 1.0, 1.0]) * np.array([1.0, 0.5, 1.0, 1.0])
    assert alone_s == pytest.approx(600 + 900 / equal)
    make_stage("gavel").refine(o, UNCHANGED, {})
    equal = np.array([7 / 4, 9 / 4, 1.0, 1.0])
    assert seen["_by_class"][3] == pytest.approx(
        equal * np.array([2.0, 1.0, 1.0, 1e-9]) / np.array([1, 2, 1, 1])
    )


# -- Pollux, Sia, Optimus --------------------------------------------------------------------------------------

WAYS = [Option(0, 1, 8, 10.0), Option(0, 4, 8, 30.0), Option(0, 2, 8, 18.0), Option(1, 1, 8, 99.0)]


def test_the_steps_of_a_ladder_are_each_better_than_the_last() -> None:
    def ladder(*given: Any, ways: list[Option] = WAYS) -> list[tuple[int, int, float]]:
        return [(way.model, way.gpus, way.goodput) for way in goodput._ladder(ways, *given)]

    assert ladder(0, 0, 0.0, 2) == [(0, 1, 10 / 18), (0, 2, 1.0), (0, 4, 30 / 18)]
    assert ladder(0, 2, 0.5, 2) == [(0, 1, 10 / 18 * 0.5), (0, 2, 1.0)]  # a move to 4 GPUs is not worth it
    assert ladder(0, 1, 0.0, 1) == [(0, 1, 1.0), (0, 2, 1.8), (0, 4, 3.0)]
    assert ladder(0, 1, 0.0, 0) == [(0, 1, 1.0), (0, 2, 1.8), (0, 4, 3.0)]  # nothing is as small
    assert ladder(1, 0, 0.0, 2) == [(1, 1, 1.0)]
    assert ladder(5, 0, 0.0, 4)[-1] == (0, 4, 1.0)  # on no model of its own: on the first
    assert ladder(0, 0, 0.0, 2, ways=[]) == []
    assert ladder(0, 0, 0.0, 2, ways=[Option(0, 1, 8, 5.0), Option(0, 2, 8, 5.0)]) == [(0, 1, 1.0)]


def test_gpus_climb_where_one_over_the_speed_up_falls_most_while_they_last() -> None:
    ladders = {
        3: [Option(0, 1, 8, 1.0), Option(0, 2, 8, 2.0), Option(0, 4, 8, 2.5)],
        5: [Option(0, 2, 8, 1.0), Option(0, 3, 8, 1.5)], 7: [Option(1, 1, 8, 1.0)],
    }  # fmt: skip

    def found(*room: int) -> dict[int, int]:
        return {row: way.gpus for row, way in climb(ladders, np.array(room)).items()}

    assert found(1, 1) == {3: 1, 7: 1}
    assert found(2, 0) == {3: 2}  # the other job does not fit beside its first step
    assert found(3, 1) == {3: 1, 5: 2, 7: 1}  # first steps come first
    assert found(4, 1) == {3: 2, 5: 2, 7: 1}  # 1/2 against 1/3
    assert found(5, 1) == {3: 2, 5: 3, 7: 1}  # 1/3 against (1/2 - 1/2.5) / 2
    assert found(7, 1) == {3: 4, 5: 3, 7: 1}


def test_what_open_jobs_hold_and_who_comes_first() -> None:
    held = Held(site(), OPEN)
    assert [held.of(k) for k in range(4)] == [(0, 2), None, None, (1, 1)]
    assert oldest_first(site(), OPEN) == [0, 3, 1, 2]


def test_the_worth_of_a_configuration() -> None:
    o = site(restart_s=[30.0, 0.0, 0.0, 0.0, 0.0])
    two = [WAYS[0], Option(0, 2, 8, 20.0)]
    # 90 s old: the factor of a move is 90 / (90 + 30).
    assert Sia()._worth(o, 0, (0, 1), two).tolist() == pytest.approx([0.1, 1.1 - 1.5**-0.5])
    assert Sia()._worth(o, 0, None, two).tolist() == pytest.approx([0.1, 1.1 - 2.0**-0.5])
    assert Sia(power=0.5)._worth(o, 0, (0, 1), two).tolist() == pytest.approx([1.0, 1.5**0.5])
    assert Sia()._worth(site(10.0, restart_s=[30.0] * 5), 0, (0, 1), two).tolist() == pytest.approx(
        [0.1, 1e-6]
    )
    assert Sia()._worth(site(10.0, restart_s=[0.0] * 5), 0, (0, 1), two)[1] == pytest.approx(1.1 - 2.0**-0.5)
    young = Sia()._worth(site(10.5, restart_s=[0.25] * 5), 0, (0, 1), two)[1]
    assert young == pytest.approx(1.1 - (2 * 2 / 3) ** -0.5)
    sizes = [Option(0, n, 8, 1.0) for n in (2, 3, 4, 6, 8)] + [Option(1, 3, 8, 1.0)]
    assert [(way.model, way.gpus) for way in goodput._powers(sizes)] == [(0, 2), (0, 4), (0, 8), (1, 3)]


@pytest.mark.parametrize(
    ("gamma", "interval", "expected"), [(1.0, 2, 0.05), (1.0, 1, 0.1), (0.0, 1, 0.1), (2.0, 1, None)]
)
def test_goodput_counts_the_exchange(gamma: float, interval: int, expected: float | None) -> None:
    """32 samples in steps of 0.1 s and 0.01 s for each of a worker's."""
    o = elastic()
    o.jobs = o.jobs.replaced(gamma=np.array([gamma]), sync_interval=np.array([interval]))
    o.speeds = Speeds.of(**o.speeds.as_dict() | {"exchange_s": np.full(4, 0.1)})
    ways = goodput._on_model(o, 0, np.arange(4), 0)
    step_s = [0.1 + 0.01 * each for each in (32, 16, 11, 8)]
    total_s = [math.hypot(s, 0.1) if expected is None else s + expected for s in step_s]
    assert [way.goodput for way in ways] == pytest.approx([32 / s for s in total_s])
    assert [(way.gpus, way.batch) for way in ways] == [(n, 32) for n in (1, 2, 3, 4)]


def test_what_pollux_asks_of_a_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart of 30 s in rounds of 60 s costs half of one, at most nine tenths, and who holds none nothing."""
    asked: list[Any] = []
    monkeypatch.setattr(goodput, "_ladder", lambda own, *given: asked.append(given) or [])
    stage = make_stage("pollux")
    stage.refine(site(restart_s=[30.0, 0.0, 30.0, 30.0, 99.0]), UNCHANGED, {})
    # Of 5 and 2 GPUs each of the four open jobs has one; jobs 2 and 3 would go to model 0, where most are left.
    assert sorted(asked) == [(0, 0, 0.0, 1), (0, 0, 0.0, 1), (0, 2, 0.5, 1), (1, 1, 0.9, 1)]


@pytest.mark.parametrize("error", [ValueError("no solution"), TimeoutError("no optimum")])
def test_where_there_is_no_optimum_all_stays(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(goodput, "best_sizes", fails)
    plan, memory = Sia(time_limit_s=7.0).refine(site(), UNCHANGED, {})
    assert plan.reasons[-1].text == f"all stays as it is: {error}"
    assert plan.reasons[-1].values == ({BY_CLOCK: 7.0} if isinstance(error, TimeoutError) else {})
    assert (plan.allocation, memory["next_s"]) == (None, 160.0)


def test_optimus_and_drf_climb_other_worths() -> None:
    assert [(w.gpus, w.goodput) for w in Optimus()._ladder(WAYS, 0, 50.0)] == [(1, 0.2), (2, 0.36), (4, 0.6)]
    assert [(w.gpus, w.goodput) for w in Drf()._ladder(WAYS, 0, 50.0)] == [(1, 1.0), (2, 2.0), (4, 4.0)]
    assert [w.gpus for w in Optimus()._ladder(WAYS, 9, 50.0)] == [1, 2, 4]
    falling = [Option(0, 1, 8, 3.0), Option(0, 2, 8, 3.0), Option(0, 3, 8, 4.0)]
    assert [w.gpus for w in Optimus()._ladder(falling, 0, 1.0)] == [1, 3]


# -- Themis, Shockwave -----------------------------------------------------------------------------------------


def two_jobs(first: int = 0) -> Observation:
    """One GPU; of the first job 1200 s are left after 120.5 s of it, of the other 3600 s; both came 600 s ago."""
    order = [first, 1 - first]
    o = kinds(
        [[1.0]] * 2, gpus=(1,), service_s=np.array([1200.0, 3600.0])[order],
        attained_gpu_s=np.array([120.5, 0.0])[order],
    )  # fmt: skip
    o.time_s = 600.0
    return o


def test_the_worst_off_choose_first() -> None:
    """rho: (600 + 1200) / (2 x 1320.5) against (600 + 3600) / (2 x 3600)."""
    plan, _ = make_stage("themis").refine(two_jobs(), UNCHANGED, {})
    assert plan.reasons[-1].values["rho_worst"] == pytest.approx(1800 / 2641)
    for fairness, expected in ((0.8, 1), (0.5, 1), (1.0, 0)):
        stage = make_stage("themis", {"fairness": fairness})
        assert list(placed(stage.refine(two_jobs(1), UNCHANGED, {})[0], two_jobs())) == [expected]
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="fairness must be 0 to 1"):
            make_stage("themis", {"fairness": wrong})


def test_the_market_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def market(*given: Any) -> None:
        seen.append(given)
        given[-1][:] = [12, 8]

    monkeypatch.setattr(shockwave, "market", market)
    stage, o = make_stage("shockwave"), two_jobs()
    plan, memory = stage.refine(o, UNCHANGED, {})
    ran, left, gpus, budget, makespan, window, total, _ = seen[0]
    assert (ran.tolist(), left.tolist(), gpus.tolist(), window, total) == (
        [120.5 / 120, 0.0],
        [10.0, 30.0],
        [1, 1],
        20,
        1,
    )
    worth = np.array([3000 / 2641, 7800 / 7200]) ** 5  # (age + left x 2) / ((ran + left) x 2)
    assert budget == pytest.approx(worth / worth.sum())
    assert makespan == pytest.approx(120 / 4800)
    # 12 and 8 of 20 rounds are a credit of 0.6 and 0.4; the first one runs, which costs it 1.
    assert (memory["credit"].tolist(), memory["ahead"], list(placed(plan, o))) == ([0.0, 0.4], 19, [0])
    o.time_s += 120.0
    plan, memory = stage.refine(o, UNCHANGED, memory)
    assert (memory["credit"].tolist(), memory["ahead"], list(placed(plan, o))) == ([0.6, 0.0], 18, [1])
    assert len(seen) == 1
    rich = {**memory, "credit": np.array([1.9, 0.5]), "next_s": -math.inf}
    assert stage.refine(o, UNCHANGED, rich)[1]["credit"].tolist() == [1.0, 0.9]  # at most 2, less the round
    stage.refine(o, UNCHANGED, {**memory, "ahead": 0, "next_s": -math.inf})
    stage.refine(o, UNCHANGED, {**memory, "rows": np.array([0]), "next_s": -math.inf})
    assert len(seen) == 3


# -- parts of GPUs, power, queues ------------------------------------------------------------------------------


def test_cores_in_use_are_those_of_jobs_that_run() -> None:
    o = site()
    o.nodes = Nodes.of(**o.nodes.as_dict() | {"cores": [8.0, NAN, 16.0, 4.0]})
    memory = {"cores": ((0, 0, 3.0), (2, 0, 5.0), (4, 2, 6.0))}
    assert _cores(o, memory, count=True)[1].tolist() == [math.inf] * 4  # nobody tells what jobs ask for
    o.told = {"cpus": np.array([3.0, NAN, -1.0, 2.0, 6.0])}
    asked, free, held = _cores(o, memory, count=True)
    assert asked.tolist() == [3.0, 0.0, 0.0, 2.0, 6.0]
    assert (free.tolist(), held) == ([5.0, math.inf, 10.0, 4.0], [(0, 0, 3.0), (4, 2, 6.0)])
    assert _cores(o, memory, count=False)[0].tolist() == [0.0] * 5
    assert (_per_core(o), _per_core(site())) == (4 / 16, 0.0)
    asked = np.array([[1.0, 0.5, 0.0]] * 2 + [[2.0, 1.0, 4.0]] * 5 + [[1.0, 1.0, 0.0]])
    gpus, share, cores, weight = frequent(asked)
    assert (gpus.tolist(), share.tolist(), cores.tolist()) == ([2, 1, 1], [1.0, 0.5, 1.0], [4.0, 0.0, 0.0])
    assert weight.tolist() == [5 / 8, 2 / 8, 1 / 8]


def test_the_sharing_score_and_whose_utilisation_is_known() -> None:
    assert [Lucid()._score(busy) for busy in (0.0, 0.24, 0.25, 0.49, 0.5, 1.0)] == [0, 0, 1, 1, 2, 2]
    for wrong in ({"tiny": 0.6}, {"tiny": -0.1}, {"medium": 1.1}):
        with pytest.raises(ValueError, match="tiny and medium"):
            Lucid(**wrong)  # type: ignore[arg-type]
    assert Lucid(tiny=0.5, medium=0.5)._score(0.5) == 2
    o = site()
    o.workers = Workers.of(job=[0, 0, 1, 4], index=[0, 1, 0, 0], gpu=[0, 1, 2, 4], node=[0, 0, 0, 1])
    o.gpus = Gpus.of(**o.gpus.as_dict() | {"sm_active_ratio": [0.2, 0.6, 0.9, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]})
    known = Lucid()._learnt(o, {"old": np.array(0.3)})
    assert sorted(known.values()) == [0.3, pytest.approx(0.4)]  # job 1 shares its GPU, job 4 does nothing


def test_caps_that_are_tried_and_what_a_sample_costs() -> None:
    zeus = Zeus()
    assert zeus._caps(np.array([300.0]), np.array([50.0])).tolist() == [300.0 - 25.0 * k for k in range(9)]
    assert zeus._caps(np.array([300.0, 200.0]), np.array([50.0, 150.0])).tolist() == [200.0, 175.0]
    assert zeus._caps(np.array([100.0]), np.array([100.0])).tolist() == [100.0]
    assert Zeus(least=1.0)._caps(np.array([300.0]), np.array([0.0])).tolist() == [300.0]
    o = site(throughput_samples_per_s=[4.0, NAN, NAN, NAN, 0.0])
    o.nodes = Nodes.of(**o.nodes.as_dict() | {"power_max_w": [300.0] * 4})
    o.gpus = Gpus.of(**o.gpus.as_dict() | {"power_w": [200.0, 100.0] + [NAN] * 7})
    assert Zeus(eta=0.25)._cost(o, 0, np.array([0, 1]), NAN) == (0.25 * 300.0 + 0.75 * 600.0) / 4.0
    assert zeus._cost(o, 4, np.array([0]), 7.0) == 7.0
    assert zeus._cost(o, 0, np.array([0, 5]), 7.0) == 7.0
    for wrong in ({"eta": 1.1}, {"eta": -0.1}, {"step_w": 0.0}, {"least": 0.0}, {"least": 1.1}):
        with pytest.raises(ValueError, match="eta must be"):
            Zeus(**wrong)


def test_the_key_below_which_nobody_waits_from_now_on() -> None:
    rows, key = np.array([3, 5, 7]), np.array([1.0, 2.0, 3.0])
    found = [
        _first_left(rows, key, np.array(rows[:n]), limit) for n, limit in ((0, 3), (1, 3), (3, 3), (3, 16))
    ]
    assert found == [1.0, 2.0, 3.0, math.inf]
    assert _first_left(rows, key, np.array([5]), 16) == 1.0
    assert _first_left(rows[:0], key[:0], rows[:0], 0) == math.inf

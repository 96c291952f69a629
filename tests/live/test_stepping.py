"""Between two rounds: what a rank's gradients count, what the job's loss is, when decisions are made and act."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.live.runtime import Runtime
from equipoise.live.stepping import Stepping
from equipoise.live.train.change import RoundChange


class Group:
    """Rank 1 of two; the other one's losses and weights are known."""

    rank, ranks, members = 1, 2, (0, 1)

    def __init__(self, other: float = 0.0) -> None:
        self.control, self.other = self, other

    def gather(self, mine: Any) -> Any:
        return np.array([[self.other], mine])

    def gather_later(self, mine: float) -> Any:
        return lambda: [self.other, mine]


def stepping(*, alone: bool = False, other: float = 0.0, plane: Any = None, **options: Any) -> Stepping:
    settings = {
        "loss_reduction": "mean",
        "weighted": False,
        "takes_passes": False,
        "decide_every": 3,
        "delay_rounds": 0,
    }
    meter = SimpleNamespace(in_round=True, rounds=0, waiting=contextlib.nullcontext)
    local = SimpleNamespace(alone=alone, interval=4, far_every=2, movement=None)
    parts: Any = SimpleNamespace(
        options=SimpleNamespace(**(settings | options)),
        group=Group(other),
        meter=meter,
        local=local,
        agreement=SimpleNamespace(plane=plane),
        recorder=SimpleNamespace(holding=contextlib.nullcontext),
        share=SimpleNamespace(share=1.0),
        power=SimpleNamespace(state=()),
    )
    return Stepping(parts, lambda _: None)


def train_on(
    made: Stepping, samples: tuple[int, int], passes: int = 1, of_step: Any = None, rate: float = 0.5
) -> Stepping:
    current = SimpleNamespace(samples=samples, passes=passes, of_step=of_step or samples, rate=rate)
    made.sampler = SimpleNamespace(current=lambda: current, rate=2.0)  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    ("samples", "passes", "of_step", "reduction", "together", "alone"),
    [
        ((30, 10), 1, None, "mean", 2 * 10 / 40, 1.0),
        ((30, 10), 1, None, "sum", 1.0, 40 / (2 * 10)),
        ((40, 0), 1, None, "mean", 0.0, 0.0),
        ((40, 0), 1, None, "sum", 0.0, 0.0),
        ((0, 40), 1, None, "mean", 2.0, 1.0),
        # One of two passes of a step of 80 samples: the script halves its loss.
        ((30, 10), 2, (50, 30), "mean", 2 * 10 / 40, 2 * 10 / 30),
        ((30, 10), 2, (50, 30), "sum", 1.0, 80 / (2 * 30)),
    ],
)
def test_a_rank_counts_by_its_samples_of_the_step(
    samples: Any, passes: int, of_step: Any, reduction: str, together: float, alone: float
) -> None:
    for by_itself, factor in ((False, together), (True, alone)):
        made = train_on(stepping(alone=by_itself, loss_reduction=reduction), samples, passes, of_step)
        assert made.scale() == pytest.approx(factor)
        assert made.scale() == pytest.approx(factor)  # asked for by every parameter
    assert stepping().scale() == 1.0  # outside of any round


def test_weights_that_the_script_gives_count_for_samples() -> None:
    made = train_on(stepping(weighted=True, other=300.0), (30, 10))
    with pytest.raises(ValueError, match=r"call runtime\.weigh"):
        made.scale()
    for wrong in (-1.0, math.inf, math.nan, True):
        with pytest.raises(ValueError, match=r"weight: .* is not allowed; needed: a finite number of at least 0"):
            made.give(wrong)
    for weight, factor in ((100.0, 2 * 100 / 400), (0.0, 0.0), (300.0, 1.0)):
        made.give(weight)
        assert made.scale() == pytest.approx(factor)
    made = train_on(stepping(weighted=True, other=300.0), (30, 0))
    made.give(100.0)  # it has no samples of its own, but for a stand-in
    assert made.scale() == 0.0
    with pytest.raises(ValueError, match=r"runtime.weigh\(\) is not allowed without"):
        train_on(stepping(), (30, 10)).give(1.0)


@pytest.mark.parametrize(
    ("samples", "mine", "mean", "total"),
    [
        ((30, 10), 4.0, 2.5, 3.0),
        ((30, 0), math.nan, 2.0, 1.0),
        ((0, 10), 4.0, 4.0, 2.0),
        ((0, 0), 4.0, math.nan, math.nan),
    ],
)
def test_the_loss_of_all_ranks_is_that_of_one_process(
    samples: tuple[int, int], mine: float, mean: float, total: float
) -> None:
    """The other rank's is 2. Of a summed loss each rank has its part times the number of ranks."""
    for reduction, expected in (("mean", mean), ("sum", total)):
        made = train_on(stepping(loss_reduction=reduction, other=2.0), samples)
        assert made.mean(mine) == pytest.approx(expected, nan_ok=True)


def test_behind_a_round_the_loss_is_that_of_the_last_one() -> None:
    made = train_on(stepping(other=2.0), (30, 10))
    made._parts.meter.in_round, made._last_weights = False, (10.0, 10.0)
    assert made.mean(4.0) == 3.0


def test_the_rate_is_that_of_the_round_or_of_the_next() -> None:
    made = stepping()
    assert made.rate() == 1.0
    assert train_on(made, (1, 1)).rate() == 0.5
    made.sampler.current = lambda: None  # type: ignore[union-attr, method-assign, return-value]
    assert made.rate() == 2.0
    with pytest.raises(RuntimeError, match="without a batch"):
        made.current()


# -- decisions -------------------------------------------------------------------------------------------------


def decided(rounds: int, resize_at: int = 0, meet_every: int = 1, **options: Any) -> list[Any]:
    """What happened behind each of so many rounds; all meet in every so manieth."""
    made, seen = train_on(stepping(**options), (1, 1)), list[Any]()
    meter = made._parts.meter

    def report(*_: Any, **told: Any) -> None:
        seen.append(("asked", made.round, told["trained"], told["intervals"]))
        meter.rounds = 0

    def change(_: Any, resize_to: int | None, *, later: bool) -> RoundChange:
        seen.append(("acts", made.round, resize_to, later))
        return RoundChange(made.round)

    made._parts.agreement.report, made._parts.agreement.change = report, change  # type: ignore[method-assign]
    made.carry_out = lambda change: None  # type: ignore[method-assign]
    for made.round in range(1, rounds + 1):
        meter.rounds += 1
        if made.round == resize_at:
            made.resize_to = 5
        if made.round % meet_every == 0:
            made._decide()
    return seen


def test_a_decision_is_made_every_so_many_rounds_and_acts_at_once() -> None:
    assert decided(7) == [
        ("asked", 3, 3, (4, 2)),
        ("acts", 3, None, False),
        ("asked", 6, 6, (4, 2)),
        ("acts", 6, None, False),
    ]
    assert decided(2) == []


@pytest.mark.parametrize(("delay", "acts"), [(1, [4, 7]), (2, [5, 8])])
def test_or_acts_so_many_rounds_later(delay: int, acts: list[int]) -> None:
    assert decided(8, delay_rounds=delay) == [
        ("asked", 3, 3, (4, 2)),
        ("acts", acts[0], None, True),
        ("asked", 6, 6, (4, 2)),
        ("acts", acts[1], None, True),
    ]


def test_or_when_all_meet_next() -> None:
    assert decided(8, delay_rounds=2, meet_every=4) == [
        ("asked", 4, 4, (4, 2)),
        ("acts", 8, None, True),
        ("asked", 8, 8, (4, 2)),
    ]


def finished(stepped: bool, alone: bool, exchanges: bool, meets: bool, **options: Any) -> tuple[list[Any], Stepping]:
    """What happens at the end of the seventh round; the run began with the third."""
    seen: list[Any] = []
    made = train_on(stepping(alone=alone, **options), (30, 10))
    made.round, made.first = 6, 2
    current, parts = made.current(), made._parts
    current.last, current.ends_step = "last", stepped  # type: ignore[misc, assignment]

    @contextlib.contextmanager
    def exchanging() -> Any:
        seen.append("exchanging")
        yield

    def count(samples: Any, weights: Any, told: bool | None) -> bool:
        seen.append(("counted", samples, weights, told))
        return stepped

    def step(last: Any) -> bool:
        seen.append(("stepped", last))
        return not alone or meets

    sampler: Any = made.sampler
    sampler.finish = lambda stepped: seen.append(("finish", stepped))
    sampler.commit, sampler.commit_near = (lambda: seen.append("commit")), (lambda: seen.append("near"))
    parts.local.count = lambda weights: None  # type: ignore[method-assign]
    parts.local.will_exchange, parts.local.will_meet = (lambda _: exchanges), (lambda _: meets)  # type: ignore[method-assign]
    parts.local.step, parts.meter.exchanging, parts.meter.count = step, exchanging, count  # type: ignore[method-assign, assignment]
    parts.meter.end = lambda *which, **how: seen.append((which, how))  # type: ignore[method-assign]
    made._decide = lambda: seen.append("decide")  # type: ignore[method-assign]
    made.finish(None)
    assert seen[0][1:3] == ((30, 10), (30.0, 10.0))
    assert seen[1] == ("finish", stepped)
    assert (made.round, made._last_weights) == (7, (30.0, 10.0))
    return seen[2:], made


@pytest.mark.parametrize(
    ("stepped", "alone", "exchanges", "meets", "before", "exchanged", "near", "after"),
    [
        (False, False, True, True, [], False, False, []),
        (True, False, False, False, [("stepped", "last")], True, False, ["commit", "decide"]),
        (False, True, True, True, [], False, False, []),
        (True, True, False, False, [("stepped", "last")], False, False, []),
        (True, True, True, False, ["exchanging", ("stepped", "last")], False, True, ["near"]),
        (True, True, True, True, ["exchanging", ("stepped", "last")], True, False, ["commit", "decide"]),
    ],
)
def test_what_a_round_ends_in(
    stepped: bool,
    alone: bool,
    exchanges: bool,
    meets: bool,
    before: list[Any],
    exchanged: bool,
    near: bool,
    after: list[Any],
) -> None:
    """All ranks meet behind every step, or, where they step alone, when it is time: all, or near ones."""
    seen, _ = finished(stepped, alone, exchanges, meets)
    how = {"exchanged": exchanged, "local": alone, "near": near, "ends_step": stepped}
    assert seen == [*before, ((4, 10), how), *after]


def test_what_was_begun_is_settled_with_equal_replicas() -> None:
    done: list[Any] = []
    made = train_on(stepping(), (1, 1))
    made._parts.local.meet = lambda: done.append("meet")  # type: ignore[method-assign, assignment, return-value]
    made.sampler.commit = lambda: done.append("commit")  # type: ignore[union-attr, method-assign]
    made._parts.meter.begin = lambda *place: done.append(place)  # type: ignore[method-assign]
    made._parts.agreement.change = lambda *_, **told: done.append(told)  # type: ignore[method-assign, assignment, return-value]
    made.settle()
    assert done == []
    made.go_on_from(5)
    made.settle()
    assert (made.round, done) == (5, [])
    made._begun_at = 5
    made.settle()
    assert done == ["meet", "commit", {"later": False}, (1, 2)]
    assert made._begun_at is None


def test_a_size_can_be_asked_for_where_members_are_known() -> None:
    for membership in (None, object()):
        made: Any = SimpleNamespace(
            _parts=SimpleNamespace(group=SimpleNamespace(membership=membership)),
            _stepping=SimpleNamespace(resize_to=None),
        )
        if membership is not None:
            Runtime.resize(made, 3)
            assert made._stepping.resize_to == 3
            continue
        with pytest.raises(RuntimeError, match=r"a job started with equipoise\.live\.group\.regroup\.start"):
            Runtime.resize(made, 3)
        assert made._stepping.resize_to is None


def test_a_size_that_is_asked_for_waits_for_nothing() -> None:
    assert decided(2, resize_at=1) == [("asked", 1, 1, (4, 2)), ("acts", 1, 5, False)]
    # What was begun acts first, with the size; nobody is asked twice for it.
    assert decided(5, resize_at=4, delay_rounds=2) == [("asked", 3, 3, (4, 2)), ("acts", 4, 5, True)]
    assert decided(2, resize_at=2, delay_rounds=2) == [("asked", 2, 2, (4, 2)), ("acts", 2, 5, False)]


def test_what_was_agreed_on_is_carried_out_on_this_rank() -> None:
    done: list[Any] = []
    made = train_on(stepping(), (1, 1))
    made._regroup = lambda members: done.append(("regroup", members))
    made.sampler.schedule = lambda change: done.append(("deal", change.round))  # type: ignore[union-attr, method-assign]
    parts = made._parts
    parts.local.change = lambda *steps: done.append(("steps", *steps))  # type: ignore[method-assign]
    parts.power.set = lambda watts: done.append(("power", watts))  # type: ignore[method-assign]
    parts.share.set = lambda share: done.append(("share", share))  # type: ignore[method-assign]
    for change, expected in (
        (RoundChange(7, members=(0, 3)), [("regroup", (0, 3))]),
        (RoundChange(7, (3, 5)), [("deal", 7)]),
        (RoundChange(7, moves=((4, 1),)), [("deal", 7)]),
        (RoundChange(7, order=(4,)), [("deal", 7)]),
        (RoundChange(7, accumulation=2), [("deal", 7)]),
        (RoundChange(7, learning_rate=0.5), [("deal", 7)]),
        (RoundChange(7, interval=8), [("steps", 8, 2)]),
        (RoundChange(7, far_every=3), [("steps", 4, 3)]),
        (RoundChange(7, power_cap_w=(300.0, 250.0)), [("power", 250.0)]),
        (RoundChange(7, gpu_share=(0.25, 0.75)), [("share", 0.75)]),
        (RoundChange(7), []),
    ):
        done.clear()
        made.carry_out(change)
        assert done == expected

"""Local steps by hand: when replicas meet, who of them, with what weight, and what the outer optimiser does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train import sync  # noqa: E402
from equipoise.live.train.sync import LocalSteps, average, optimizer_tensors  # noqa: E402


class Near:
    """Ranks 0, 1 and 3 are near each other, rank 2 is alone."""

    group, own = (0, 0, 1, 0), "own"

    def peers(self, rank: int) -> list[int]:
        """The ranks of its group."""
        return [r for r, g in enumerate(self.group) if g == self.group[rank]]


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(names, weight, group) of the exchanges that rank 1 takes part in."""
    found: list[Any] = []
    monkeypatch.setattr(
        sync, "average", lambda tensors, weight, group=None: found.append((list(tensors), weight, group))
    )
    monkeypatch.setattr(sync.dist, "get_rank", lambda: 1)
    return found


def replica(
    *, parameters: Any = (), moments: Any = (), near: Any = None, **how: Any
) -> tuple[LocalSteps, list[bool]]:
    """One of few parameters, and whether its wrapper exchanges gradients, each time that it is told."""
    told: list[bool] = []
    module = SimpleNamespace(parameters=lambda: iter(parameters), buffers=lambda: iter(()))
    state = {p: {"exp": m} for p, m in zip(parameters, moments, strict=False)}
    optimizer = SimpleNamespace(param_groups=[{"params": list(parameters)}], state=state)
    made = LocalSteps(SimpleNamespace(module=module, exchange=told.append), optimizer, **how)  # type: ignore[arg-type]
    made.near = near
    return made, told


def test_a_replica_begins_with_plain_training(met: list[Any]) -> None:
    made, told = replica()
    assert (made.interval, made.far_every, made.done, made.alone, made.has_apart) == (1, 1, 0, False, False)
    assert (made.outer_lr, made.outer_momentum, made.has_outer, made.movement) == (1.0, 0.0, False, None)
    assert (made.will_exchange(False), made.will_exchange(True)) == (False, False)
    made.count((3.0, 4.0))  # gradients are weighted one by one
    assert made._samples == []
    assert made.step(last=False)
    made.meet()
    assert (met, told) == ([], [True])
    assert replica(outer_lr=0.5)[0].has_outer
    assert replica(outer_momentum=0.25)[0].has_outer
    assert replica(measures=True)[0].movement is not None


def test_replicas_meet_when_the_interval_is_full_and_at_the_end_of_an_epoch(met: list[Any]) -> None:
    made, told = replica()
    made.change(3)
    assert told == [False]
    found = []
    for last in (False, False, False, False, True, True):
        made.count((3.0, 5.0))
        expected = made.will_exchange(last)
        found.append((made.step(last), made.done, made.has_apart))
        assert found[-1][0] == expected
    apart, equal = [(False, 1, True), (False, 2, True)], (True, 0, False)
    assert found == [*apart, equal, apart[0], equal, equal]
    assert [weight for _, weight, _ in met] == [0.625] * 3
    made.change(1)
    assert told[-1]
    assert not made.alone


def test_near_ranks_meet_between_and_all_at_every_third_exchange(met: list[Any]) -> None:
    made, _ = replica(near=Near())
    made.change(2, 3)
    rounds = [(1.0, 3.0, 4.0, 0.0), (2.0, 2.0, 8.0, 0.0), (1.0, 5.0, 9.0, 2.0), (3.0, 4.0, 2.0, 1.0)]
    found = []
    for samples in [*rounds, rounds[0], rounds[1]]:
        made.count(samples)
        found.append(
            (made.will_meet(False), made.will_meet(True), made.step(last=False), made.done, made._turn)
        )
    no, yes = (False, True), (True, True)
    assert found == [
        (*no, False, 1, 0), (*no, False, 0, 1), (*no, False, 1, 1), (*no, False, 0, 2), (*yes, False, 1, 2),
        (*yes, True, 0, 0),
    ]  # fmt: skip
    # Rank 1 of the near three: 5 of 8, then 9 of 16, then of all 5 of 8 in its group, which has 32 of 67.
    assert [(weight, group) for _, weight, group in met] == [
        (0.625, "own"), (0.5625, "own"), (pytest.approx(0.625 * 32 / 67), None)
    ]  # fmt: skip
    assert made._last_weights == pytest.approx([0.375 * 32 / 67, 0.625 * 32 / 67, 35 / 67, 0.0])
    made.count(rounds[0])
    made.step(last=False)
    assert made.step(last=True)  # all meet at the end of an epoch
    assert made._last_weights == pytest.approx([0.125, 0.375, 0.5, 0.0])


def test_near_ranks_without_samples_have_equal_parts() -> None:
    made, _ = replica(near=Near())
    third = pytest.approx(1 / 3)
    assert made.near_weights() == [third, third, 1.0, third]
    made._near_samples = [0.0, 0.0, 6.0, 0.0]
    assert made.near_weights() == [third, third, 1.0, third]
    made._near_samples = [1.0, 0.0, 0.0, 3.0]
    assert made.near_weights() == [0.25, 0.0, 1.0, 0.75]
    made._samples, made._turn = [0.0] * 4, 1
    assert made.weights() == [0.25] * 4
    made._samples = [2.0, 0.0, 4.0, 2.0]
    assert made.weights() == [0.125, 0.0, 0.5, 0.375]
    made._turn = 0
    assert made.weights() == [0.25, 0.0, 0.5, 0.25]
    made.near, made._turn = None, 1
    assert made.weights() == [0.25, 0.0, 0.5, 0.25]


def test_without_near_ranks_all_meet_every_time(met: list[Any]) -> None:
    made, _ = replica()
    made.change(2, 3)
    assert (made.interval, made.far_every) == (2, 1)
    made.reset(4, 3)
    assert (made.interval, made.far_every) == (4, 1)
    made.near = Near()  # type: ignore[assignment]
    made.reset(1, 3)
    assert (made.interval, made.far_every, made.alone) == (1, 3, True)
    made.change(5)
    assert (made.interval, made.far_every) == (5, 1)


def test_moments_are_averaged_when_replicas_are_to_stay_equal(met: list[Any]) -> None:
    """On the way back to plain training, and where all are made equal; not before they have met."""
    weight, moment = torch.nn.Parameter(torch.zeros(2)), torch.tensor([3.0, 4.0])
    made, _ = replica(parameters=[weight], moments=[moment])
    made.change(2)
    made.change(1)
    made.change(2)
    made.meet()
    assert met == []  # they never met
    made.count((3.0, 5.0))
    made.step(last=False)
    made.meet()
    assert [len(tensors) for tensors, _, _ in met] == [1, 1]
    assert met[0][0][0] is weight
    assert met[1][0][0] is moment
    assert [part for _, part, _ in met] == [0.625, 0.625]
    assert not made.has_apart
    made.meet()  # again the moments alone
    assert [each[0][0] is moment for each in met] == [False, True, True]
    made.change(3)
    assert len(met) == 3
    made.change(1)
    assert len(met) == 4
    assert met[3][0][0] is moment
    made.change(2)
    assert len(met) == 4
    made.reset(2)
    made.change(1)
    assert len(met) == 4  # it begins anew


def test_the_outer_optimiser_follows_the_mean(met: list[Any]) -> None:
    """A movement of 4, then of 2, at rate 0.5 and momentum 0.25 of the full reach of 16 steps."""
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    frozen = torch.nn.Parameter(torch.tensor([7.0]), requires_grad=False)
    made, _ = replica(parameters=[weight, frozen], outer_lr=0.5, outer_momentum=0.25)
    made.change(16)
    found = []
    for movement in (4.0, 2.0):
        with torch.no_grad():
            weight += movement
        made.count((3.0, 5.0))
        made.step(last=True)
        found.append((weight.item(), made._velocity[0].item()))
    # v = 4, 1 + 0.5 (4 + 0.25 * 4) = 3.5; v = 0.25 * 4 + 2 = 3, 3.5 + 0.5 (2 + 0.25 * 3) = 4.875
    assert found == [(3.5, 4.0), (4.875, 3.0)]
    made.change(4)  # a sum of movements of a fourth as many steps
    assert made._velocity[0].item() == 0.75
    made.near = Near()  # type: ignore[assignment]
    made.change(2, 8)
    assert made._velocity[0].item() == 3.0
    assert made.outer_parameters() == (0.5, 0.25)
    made.change(16, 4)
    assert made.outer_parameters() == (0.5, 0.25)  # no more than that
    made.change(1)
    assert made.outer_parameters() == (1.0, 0.0)
    made.change(4)
    assert made._velocity[0].item() == 0.0  # it began anew
    assert frozen.item() == 7.0
    assert [tensor is weight for tensor in met[0][0]] == [True]


def test_movements_are_measured_over_whole_periods(met: list[Any]) -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    made, _ = replica(parameters=[weight], near=Near(), measures=True)
    assert made.movement is not None
    added: list[Any] = []
    made.movement.add = lambda own, mean, part: added.append(part)  # type: ignore[method-assign,assignment]
    made.change(3, 2)
    samples = (1.0, 3.0, 4.0, 0.0)
    for last in (False,) * 6:
        made.count(samples)
        made.step(last)
    assert added == [0.375]
    for last in (False, True):  # after two of six steps
        made.count(samples)
        made.step(last)
    assert added == [0.375]
    for _ in range(3):
        made.count(samples)
        made.step(last=False)
    made.reset(3, 2)
    assert made.movement.own([weight]) is not None
    made.change(1)
    assert made.movement.own([weight]) is None
    made.change(3)
    assert made.movement.own([weight]) is not None


def test_whoever_closes_exchanges_gradients_again(met: list[Any]) -> None:
    made, told = replica()
    made.change(3)
    made.close()
    assert told == [False, True]


# -- tensors -------------------------------------------------------------------------------------------------


def test_moments_are_those_of_a_parameters_shape_in_the_order_of_their_names() -> None:
    weight, other = torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(4))
    kept = {"b": torch.zeros(2, 3), "a": torch.ones(2, 3), "step": torch.zeros(()), "n": 5}
    later = {"a": torch.zeros(4), "c": torch.zeros(2, 2)}
    optimizer: Any = SimpleNamespace(
        param_groups=[{"params": [weight, torch.nn.Parameter(torch.zeros(1))]}, {"params": [other]}],
        state={weight: kept, other: later},
    )
    found = optimizer_tensors(optimizer)
    assert [any(t is x for t in found) for x in (kept["b"], kept["a"], later["a"])] == [True] * 3
    assert [len(found), found[0] is kept["a"], found[1] is kept["b"]] == [3, True, True]


def test_a_mean_is_taken_kind_by_kind_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks, of which the other one has three times what this one contributes."""
    exchanged: list[Any] = []

    def all_reduce(flat: Any, group: Any) -> None:
        """The other rank's part comes, too."""
        exchanged.append((flat.dtype, flat.numel(), group))
        flat.mul_(4.0)

    monkeypatch.setattr(sync.dist, "all_reduce", all_reduce)
    a, b = torch.tensor([2.0, 4.0]), torch.tensor([[8.0]])
    half, brain = torch.tensor([6.0], dtype=torch.float16), torch.tensor([10.0], dtype=torch.bfloat16)
    double, empty, whole = torch.tensor([12.0], dtype=torch.float64), torch.zeros(0), torch.tensor([5])
    average([a, half, b, whole, double, empty, brain], 0.125, "near")  # type: ignore[arg-type]
    assert [t.tolist() for t in (a, b, half, brain, double, whole)] == [
        [1.0, 2.0], [[4.0]], [3.0], [5.0], [6.0], [5]
    ]  # fmt: skip
    assert exchanged == [
        (torch.float32, 3, "near"), (torch.float32, 1, "near"), (torch.float64, 1, "near"),
        (torch.float32, 1, "near"),
    ]  # fmt: skip
    assert (half.dtype, brain.dtype) == (torch.float16, torch.bfloat16)

"""A rank's gradients times its part, in one process, and what of a round is measured and told."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train import shares  # noqa: E402
from equipoise.live.train.rounds import COLUMNS, RoundInfo  # noqa: E402
from equipoise.live.train.shares import DutyCycle, GreenContexts, HeldShare, WholeDevice  # noqa: E402
from equipoise.live.train.weighting import (  # noqa: E402
    WeightedGradients,
    _inverse,
    _is_something,
    _tensors,
    contribution_scale,
    is_weighted,
)


class Net(torch.nn.Module):  # type: ignore[misc]
    """Two parameters, of which one may reach the loss past the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 1, bias=False)
        self.other = torch.nn.Parameter(torch.tensor([3.0]))
        self.count = torch.nn.Parameter(torch.tensor([5], dtype=torch.int64), requires_grad=False)
        torch.nn.init.constant_(self.inner.weight, 1.0)

    def forward(self, x: Any) -> Any:
        return {"out": self.inner(x) * self.other}


def weighted(factor: float, **how: Any) -> tuple[Any, Any, WeightedGradients]:
    """A net, its factor (which may change), and what weights it."""
    net, part = Net(), SimpleNamespace(factor=factor)
    wrapper: Any = SimpleNamespace(module=net, model=net)
    made = WeightedGradients(wrapper, dict(net.named_parameters()), lambda: part.factor, **how)
    return net, part, made


X = torch.tensor([[2.0, 4.0]])


def gradients(net: Any) -> list[float]:
    return [*net.inner.weight.grad.reshape(-1).tolist(), net.other.grad.item()]


def test_each_gradient_is_multiplied_until_that_is_over() -> None:
    net, part, made = weighted(2.5)
    assert is_weighted(net)
    assert not net.count.requires_grad
    net(X)["out"].sum().backward()
    assert gradients(net) == [15.0, 30.0, 15.0]  # 2.5 times 3 * 2, 3 * 4 and 6
    part.factor = 0.5
    net(X)["out"].sum().backward()
    assert gradients(net) == [18.0, 36.0, 18.0]  # each pass has its own
    net.zero_grad()
    part.factor = 1.0
    net(X)["out"].sum().backward()
    assert gradients(net) == [6.0, 12.0, 6.0]
    made.close()
    assert not is_weighted(net)
    part.factor = 2.5
    net.zero_grad()
    net(X)["out"].sum().backward()
    assert gradients(net) == [6.0, 12.0, 6.0]
    assert not is_weighted(Net())


def test_a_parameter_that_is_frozen_stays_so_and_is_weighted_once_it_is_not() -> None:
    net = Net()
    net.other.requires_grad_(False)
    wrapper: Any = SimpleNamespace(module=net, model=net)
    made = WeightedGradients(wrapper, dict(net.named_parameters()), lambda: 2.5)
    assert [p.requires_grad for p in (net.inner.weight, net.other, net.count)] == [True, False, False]
    net.other.requires_grad_(True)
    net(X)["out"].sum().backward()
    assert gradients(net) == [15.0, 30.0, 15.0]
    made.close()


@pytest.mark.parametrize("own", [False, True])
def test_without_samples_a_gradient_is_zero_even_where_it_is_none(own: bool) -> None:
    net, part, _ = weighted(0.0, own_weights=own)
    (net(X)["out"] * math.nan).sum().backward()
    assert gradients(net) == [0.0, 0.0, 0.0]
    net.zero_grad()
    part.factor = 0.5
    net(X)["out"].sum().backward()
    assert gradients(net) == [3.0, 6.0, 3.0]
    with torch.no_grad():
        assert net(X)["out"].item() == 18.0


def test_a_penalty_past_the_outputs_of_a_rank_without_samples_is_refused_where_losses_are_summed() -> None:
    net, part, _ = weighted(0.0, own_weights=True)
    loss = net(X)["out"].sum() + net.other.square().sum()
    with pytest.raises(
        ValueError, match=r"loss_reduction: 'sum' is not allowed .* reaches other past the model's"
    ):
        loss.backward()
    part.factor = 0.5
    net.zero_grad()
    (net(X)["out"].sum() + net.other.square().sum()).backward()
    assert net.other.grad.item() == 6.0  # half of 6 and of 6
    net, _, _ = weighted(0.0)
    (net(X)["out"].sum() + net.other.square().sum()).backward()
    assert net.other.grad.item() == 0.0


def test_parts_and_their_inverses() -> None:
    assert contribution_scale(6, 8, 4, "mean") == 3.0
    assert contribution_scale(1, 8, 4, "mean") == 0.5
    assert [contribution_scale(n, 8, 4, "sum") for n in (0, 1, 6)] == [0.0, 1.0, 1.0]
    assert [_inverse(x) for x in (0.0, 4.0, 0.5)] == [0.0, 0.25, 2.0]


def test_what_is_something() -> None:
    zero = torch.tensor([0.0, 0.0])
    found = [
        _is_something(gradient)
        for gradient in (
            zero, torch.tensor([0.0, -2.0]), torch.tensor([math.nan, 0.0]), zero.to_sparse(),
            torch.tensor([0.0, 3.0]).to_sparse(), torch.tensor([math.nan, 1.0]),
        )
    ]  # fmt: skip
    assert found == [False, True, False, False, True, True]


def test_tensors_are_found_wherever_they_are() -> None:
    @dataclasses.dataclass
    class Outputs:
        """As libraries of models have them."""

        loss: Any
        more: Any

    a, b, c = (torch.tensor(float(k)) for k in range(3))
    found = list(_tensors([a, {"x": (Outputs(b, [c, 5]), None)}, Outputs, "text"]))
    assert [t.item() for t in found] == [0.0, 1.0, 2.0]


# -- rounds ----------------------------------------------------------------------------------------------------


def test_what_a_round_tells_by_default() -> None:
    told = RoundInfo(3, 4, True, False, (4, 5), False, (4.0, 5.0))
    assert (told.near, told.ends_step) == (False, True)
    assert COLUMNS == ("samples", "stall_s", "compute_s", "tail_s", "update_s", "local_square", "mean_square")


# -- shares ----------------------------------------------------------------------------------------------------


def test_steps_of_a_share() -> None:
    assert (WholeDevice.quantum, WholeDevice.fixed) == (1.0, None)
    assert (DutyCycle.quantum, DutyCycle.fixed, GreenContexts.fixed) == (0.01, None, None)
    assert (DutyCycle().share, HeldShare(WholeDevice(), print).share) == (1.0, 1.0)
    whole = WholeDevice()
    whole.begin()
    whole.end()


def test_a_rank_sleeps_for_what_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the device: four times as long as it computed."""
    clock, slept = SimpleNamespace(now_s=0.5), list[float]()
    monkeypatch.setattr(
        shares, "time", SimpleNamespace(perf_counter=lambda: clock.now_s, sleep=lambda s: slept.append(s))
    )
    held = DutyCycle()
    assert held.set(0.2) is None
    held.begin()
    assert slept == []  # nothing was computed yet
    clock.now_s = 1.0
    held.end()
    clock.now_s = 1.25
    held.end()  # the last counts
    held.begin()
    assert slept == [pytest.approx(3.0)]
    held.set(1.0)
    clock.now_s = 3.5
    held.end()
    held.begin()
    assert len(slept) == 1


def test_a_context_that_the_driver_refuses_is_told_and_the_last_one_stays() -> None:
    asked: list[int] = []

    def create(num_sms: int, device_id: int) -> Any:
        """As PyTorch does, but that it refuses three."""
        asked.append(num_sms)
        if num_sms == 3:
            raise RuntimeError("too few")
        return SimpleNamespace(set_context=lambda: None, pop_context=lambda: None)

    backend = GreenContexts(torch.device("cuda", 0), SimpleNamespace(create=create), 8)
    assert backend.quantum == 0.125
    assert backend.set(0.5) is None
    backend.begin()
    before = backend._current
    assert backend.set(0.375) == "no green context of 3 of 8 multiprocessors: too few"
    backend.begin()
    backend.end()
    assert backend._current is before
    assert backend.set(0.5) is None
    assert asked == [4, 3]

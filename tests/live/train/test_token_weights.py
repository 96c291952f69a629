"""A loss that is a mean over tokens: as one process on the whole batch, whatever the shares."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.options import Options  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

SAMPLES, BATCH, TOKENS, FEATURES, LR = 96, 12, 7, 4, 0.1
SPLITS = [(9, 3), (6, 6), (1, 11), (12, 0), (4, 8)]


def make_data() -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, TOKENS, FEATURES, generator=generator, dtype=torch.float64)
    lengths = torch.randint(0, TOKENS + 1, (SAMPLES,), generator=generator)  # some have none
    return x, x[..., :1] - 2 * x[..., 1:2], torch.arange(TOKENS) < lengths[:, None]


def make_net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(FEATURES, 1).double()


def token_mean(net: Any, x: Any, y: Any, mask: Any) -> Any:
    square = ((net(x) - y) ** 2)[..., 0] * mask
    return square.sum() / mask.sum().clamp(min=1)


def train(rank: int, interval: int, forgets: bool) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.train.change import RoundChange

    torch.distributed.init_process_group("gloo")
    net = make_net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    runtime = attach(model, optimizer, "none", global_batch=BATCH, mode="observe", weighted=True, decide_every=3)
    data = TensorDataset(*make_data())
    sampler = runtime.sampler(data)
    if interval > 1:
        runtime._parts.local.change(interval)
    found: dict[str, Any] = {"batches": [], "losses": [], "error": ""}
    try:
        for x, y, mask in DataLoader(data, batch_sampler=sampler):
            sampler.schedule(RoundChange(sampler.drawn, shares=SPLITS[runtime.round % len(SPLITS)]))
            found["batches"].append(sampler.current().indices.tolist())
            if not (forgets and runtime.round == 2):
                runtime.weigh(float(mask.sum()))
            loss = token_mean(model, x, y, mask)
            loss.backward()
            found["losses"].append(runtime.mean(loss))
            optimizer.step()
            optimizer.zero_grad()
            runtime.step()
            assert runtime.mean(loss) == found["losses"][-1]
    except ValueError as error:
        found["error"] = str(error)
    runtime.close()
    return found | {"weights": [p.detach().clone() for p in net.parameters()]}


def one_process(batches: list[list[int]]) -> tuple[list[Any], list[float]]:
    x, y, mask = make_data()
    net, losses = make_net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for batch in batches:
        loss = token_mean(net, x[batch], y[batch], mask[batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return [p.detach() for p in net.parameters()], losses


@pytest.mark.parametrize("interval", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_mean_over_tokens_equals_one_process(interval: int) -> None:
    results = live_ranks.run(train, 2, interval, False)
    batches = [a + b for a, b in zip(results[0]["batches"], results[1]["batches"], strict=True)]
    assert len(batches) == SAMPLES // BATCH
    weights, losses = one_process(batches)
    for result in results:
        assert result["error"] == ""
        assert result["losses"] == results[0]["losses"]
        if interval == 1:
            assert result["losses"] == pytest.approx(losses, rel=1e-12)
            for a, b in zip(result["weights"], weights, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.long
def test_a_batch_without_a_weight_is_an_error() -> None:
    for result in live_ranks.run(train, 2, 1, True):
        assert result["error"].startswith("weighted: call runtime.weigh(...) for every batch")
        assert len(result["losses"]) == 2


def test_a_summed_loss_has_no_weights() -> None:
    with pytest.raises(ValueError, match="weighted: True is not allowed with loss_reduction 'sum'"):
        Options(8, weighted=True, loss_reduction="sum")

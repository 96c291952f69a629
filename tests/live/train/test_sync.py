"""Local steps: the interval changes on the fly, replicas meet in the weighted mean, outer steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.live import ranks as live_ranks  # noqa: E402

BATCH, FEATURES, SAMPLES, LR = 12, 6, 120, 0.05
INTERVALS = {0: 4, 12: 1, 16: 2, 30: 8, 50: 1}  # from which round on
FALLING = {0: 16, 64: 2, 112: 1, 128: 4}
SHARES = {8: (9, 3), 36: (4, 8)}


def make_net() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)]
    return torch.nn.Sequential(*layers).double()


def make_data(samples: int = SAMPLES) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)
    return x, x[:, :1] * 2 - x[:, 1:2]


def set_interval(runtime: Any, rounds: int, intervals: dict[int, int]) -> None:
    """At a meeting of the replicas, as a decision would."""
    due = [h for start, h in intervals.items() if start <= rounds]
    if runtime._parts.local.done == 0 and due and due[-1] != runtime.interval:
        runtime._parts.local.change(due[-1])


def train(rounds: int, intervals: dict[int, int], samples: int = SAMPLES, **outer: float) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.train.change import RoundChange

    x, y = make_data(samples)
    net = make_net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    runtime = attach(model, optimizer, policy="none", global_batch=BATCH, mode="observe", **outer)
    dataset = TensorDataset(x, y)
    sampler = runtime.sampler(dataset)
    loader = DataLoader(dataset, batch_sampler=sampler)
    log: dict[str, Any] = {"batches": [], "intervals": [], "losses": [], "met": []}
    done = 0
    while done < rounds:
        for inputs, labels in loader:
            set_interval(runtime, done, intervals)
            current = sampler.current()
            assert current is not None
            log["batches"].append((current.indices.tolist(), current.last))
            log["intervals"].append(runtime.interval)
            loss = torch.nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if done in SHARES:
                sampler.schedule(RoundChange(sampler.drawn, shares=SHARES[done]))
            runtime.step()
            log["losses"].append(float(loss.detach()))
            local = runtime._parts.local
            log["met"].append(not (local.alone and (local.done or local._turn)))
            done += 1
            if done == rounds:
                break
    runtime.close()
    log["weights"] = [p.detach().clone() for p in net.parameters()]
    log["moments"] = [optimizer.state[p]["momentum_buffer"].clone() for p in net.parameters()]
    return log


def all_runs(rank: int) -> list[dict[str, Any]]:
    from equipoise.live.train.sync import LocalSteps

    torch.distributed.init_process_group("gloo")
    outer = {"outer_lr": 0.7, "outer_momentum": 0.9}
    runs = [train(60, INTERVALS), train(40, {}, **outer), train(40, {}), train(160, FALLING, 160 * BATCH, **outer)]
    LocalSteps.outer_parameters = lambda self: (0.7, 0.9)  # type: ignore[method-assign]
    return [*runs, train(160, FALLING, 160 * BATCH, **outer)]


@pytest.fixture(scope="module")
def results() -> list[list[dict[str, Any]]]:
    return live_ranks.run(all_runs, 2)


def reference(logs: list[dict[str, Any]]) -> list[Any]:
    """The same in one process: two replicas that step alone and meet in their weighted mean."""
    x, y = make_data()
    nets = [make_net() for _ in logs]
    optimizers = [torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9) for net in nets]
    weight = [0, 0]
    for k, interval in enumerate(logs[0]["intervals"]):
        parts = [log["batches"][k][0] for log in logs]
        if interval == 1:
            whole = [i for part in parts for i in part]
            for net, optimizer in zip(nets, optimizers, strict=True):
                torch.nn.functional.mse_loss(net(x[whole]), y[whole]).backward()
                optimizer.step()
                optimizer.zero_grad()
            continue
        for net, optimizer, part in zip(nets, optimizers, parts, strict=True):
            torch.nn.functional.mse_loss(net(x[part]), y[part]).backward()
            optimizer.step()
            optimizer.zero_grad()
        weight = [w + len(part) for w, part in zip(weight, parts, strict=True)]
        if logs[0]["met"][k]:
            averaged(nets, optimizers, weight, moments=logs[0]["intervals"][k + 1] == 1)
            weight = [0, 0]
    return [list(net.parameters()) for net in nets]


def averaged(nets: list[Any], optimizers: list[Any], weight: list[int], moments: bool) -> None:
    def mean(tensors: list[Any]) -> None:
        value = sum(w / sum(weight) * t.detach() for w, t in zip(weight, tensors, strict=True))
        for tensor in tensors:
            tensor.data.copy_(value)

    for group in zip(*(net.parameters() for net in nets), strict=True):
        mean(list(group))
        if moments:
            mean([o.state[p]["momentum_buffer"] for o, p in zip(optimizers, group, strict=True)])


def test_local_steps_equal_the_reference_through_changes_of_interval_and_shares(results: Any) -> None:
    logs = [rank[0] for rank in results]
    assert set(logs[0]["intervals"]) == {1, 2, 4, 8}
    for parameters, log in zip(reference(logs), logs, strict=True):
        for expected, found in zip(parameters, log["weights"], strict=True):
            assert float((expected - found).detach().norm() / found.norm()) < 1e-12


def test_replicas_and_moments_are_equal_to_the_bit_after_returning_to_every_step(results: Any) -> None:
    first, second = (rank[0] for rank in results)
    assert first["intervals"][-1] == 1
    for name in ("weights", "moments"):
        assert first[name]
        assert all(torch.equal(a, b) for a, b in zip(first[name], second[name], strict=True))


def test_the_last_round_of_an_epoch_always_meets(results: Any) -> None:
    log = results[0][0]
    ends = [met for (_, last), met in zip(log["batches"], log["met"], strict=True) if last]
    assert len(ends) == 6
    assert all(ends)


def test_every_sample_once_per_epoch_through_changes_of_interval(results: Any) -> None:
    logs = [rank[0] for rank in results]
    per_epoch = SAMPLES // BATCH
    for epoch in range(6):
        rounds = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        seen = [i for k in rounds for log in logs for i in log["batches"][k][0]]
        assert sorted(seen) == list(range(SAMPLES))


def test_the_outer_optimiser_stays_stable_when_the_interval_falls(results: Any) -> None:
    """An outer step tuned for a long interval diverges at a short one, unless it is scaled down with it."""
    scaled, fixed = (results[0][k]["losses"] for k in (3, 4))
    assert {1, 2, 16} <= set(results[0][3]["intervals"])
    assert sum(scaled[-20:]) / 20 < 0.5 * sum(scaled[:20]) / 20
    assert max(scaled) < 20.0
    assert not max(fixed) < 100.0


def test_at_interval_one_the_outer_optimiser_is_plain_training(results: Any) -> None:
    with_outer, plain = results[0][1], results[0][2]
    assert all(torch.equal(a, b) for a, b in zip(with_outer["weights"], plain["weights"], strict=True))


def test_a_nan_replica_of_no_weight_goes_nowhere() -> None:
    import torch.distributed as dist

    from equipoise.live.train.sync import average

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        values = [torch.tensor([float("nan")]), torch.tensor([3], dtype=torch.int64)]
        kept = copy.deepcopy(values)
        average(values, 0.0)
        assert values[0].item() == 0.0
        assert torch.equal(values[1], kept[1])  # integers are left alone
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("tensors", [1, 2])
def test_when_the_exchange_breaks_no_tensor_is_changed(tensors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    from equipoise.live.train.sync import average

    def broken(*_: Any, **__: Any) -> None:
        raise dist.DistError("broken")

    monkeypatch.setattr(dist, "all_reduce", broken)
    values = [torch.full((3,), 2.0) for _ in range(tensors)]
    with pytest.raises(dist.DistError):
        average(values, 0.25)
    assert all(torch.equal(value, torch.full((3,), 2.0)) for value in values)

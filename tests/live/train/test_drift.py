"""Measured drift: the formula against known replicas, real ranks against one process, and what it is worth."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train.drift import Drift, Movement  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

LEAST = 1e-6


def measured(interval, moved, noise_ratio=math.nan, every=1, ratio=1.0, weights=None):
    """kappa_d of replicas (ranks, parameters) that moved so far from the same start."""
    weights = np.full(len(moved), 1 / len(moved)) if weights is None else np.array(weights)
    mean = weights @ moved
    apart, squares = 0.0, []
    for own, weight in zip(moved, weights, strict=True):
        movement = Movement()
        movement.begin([torch.zeros(moved.shape[1], dtype=torch.float64)])
        sample = movement.own([torch.tensor(own)])
        movement.add(sample, [torch.tensor(mean)], float(weight))
        part, square = movement.take()
        apart, squares = apart + part, [*squares, square]
    assert len(set(squares)) == 1
    drift = Drift(0.1, LEAST)
    drift.add(apart, squares[0], int((weights > 0).sum()), noise_ratio, interval, every, ratio)
    return drift.value


def test_it_is_what_replicas_are_apart_over_what_their_mean_moved():
    random = np.random.default_rng(1)
    moved, weights = random.standard_normal((3, 50)) + 1.0, [0.5, 0.3, 0.2]
    square = np.array(weights) @ (moved**2).sum(axis=1)
    mean = np.array(weights) @ moved
    expected = (square / (mean**2).sum() - 1) / (4 - 1)  # D_H as it is defined, with H = 4
    assert measured(4, moved, weights=weights) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("interval", "every"), [(2, 1), (8, 1), (32, 1), (2, 4)])
def test_noise_of_the_gradients_alone_is_no_drift(interval, every):
    """Movements of SGD with a constant gradient and independent noise; near groups of two ranks of four."""
    random = np.random.default_rng(interval)
    ranks, size, batch, phi, drifts = 4, 4000, 64, 640.0, []  # |G|^2 = size, so the trace is phi size
    ratio = 1 / 3 if every > 1 else 1.0
    for _ in range(20):
        noise = random.standard_normal((every, interval, ranks, size)).sum(axis=1)
        noise *= math.sqrt(phi / (batch / ranks))
        if every > 1:  # all but the last exchanges are of pairs, which leave their mean
            means = noise[:-1].reshape(every - 1, 2, 2, size).mean(axis=2).repeat(2, axis=1)
            noise = np.concatenate((means, noise[-1:]))
        drifts.append(measured(interval, interval * every + noise.sum(axis=0), phi / batch, every, ratio))
    untold = measured(interval, interval * every + noise.sum(axis=0), math.nan, every, ratio)
    assert np.mean(drifts) < 0.1 * untold  # what would be taken for drift


# -- on ranks ------------------------------------------------------------------------------------------------


def trained(rank: int, apart: float, drift: Any) -> dict[str, Any]:
    """Logistic regression on two ranks, whose own data calls for weights `apart` from each other's."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.train import sync

    random = torch.Generator().manual_seed(5)
    x = torch.randn(4096, 8, generator=random, dtype=torch.float64)
    truth = torch.ones(8, dtype=torch.float64)
    own = truth + apart * torch.tensor([1.0, -1.0] * 4, dtype=torch.float64) * (1 if rank else -1)
    model = DistributedDataParallel(torch.nn.Linear(8, 1, bias=False).double())
    torch.nn.init.zeros_(model.module.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def late(*arguments: Any, **named: Any) -> None:
        time.sleep(0.02)
        plain(*arguments, **named)

    def hook(_: Any, bucket: Any) -> Any:
        time.sleep(0.02)
        work = torch.distributed.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    hook.__annotations__ = {"bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    model.register_comm_hook(None, hook)
    plain, sync.average = sync.average, late
    runtime = attach(
        model,
        optimizer,
        "s3",
        global_batch=32,
        decide_every=4,
        decision_budget_s=60.0,
        warm_up_budget_s=60.0,
        drift=drift,
        statistics_every=1,
    )
    data = TensorDataset(x)
    log: dict[str, Any] = {"intervals": [], "drifts": [], "starts": [], "ends": []}
    for (inputs,) in DataLoader(data, batch_sampler=runtime.sampler(data)):
        log["intervals"].append(runtime.interval)
        log["starts"].append(model.module.weight.detach().clone())
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], torch.sigmoid(inputs @ own))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log["ends"].append(model.module.weight.detach().clone())
        runtime.step()
        leader = runtime._parts.agreement.leader
        log["drifts"].append(math.nan if leader is None else leader.world.drift)
    runtime.close()
    sync.average = plain
    with torch.no_grad():
        logits = model.module(x)[:, 0]
        log["loss"] = float(torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.sigmoid(x @ own)))
    return log


def runs(rank: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    return [trained(rank, *case) for case in ((0.0, "measured"), (6.0, "measured"), (0.0, math.nan))]


@pytest.fixture(scope="module")
def results() -> list[list[dict[str, Any]]]:
    return live_ranks.run(runs, 2)


def test_it_begins_with_few_local_steps_and_goes_as_far_as_the_drift_allows(results):
    alike, unlike, exact = results[0]
    assert alike["drifts"][0] == 0.1
    later = [h for h in alike["intervals"] if h > 1]
    assert later[0] in (2, 3)  # by what an exchange took of a round
    assert max(alike["intervals"]) > 2 * max(unlike["intervals"])
    assert alike["drifts"][-1] < 0.2 * unlike["drifts"][-1]
    assert max(exact["intervals"]) == 1
    assert np.isnan(exact["drifts"][-1])
    assert alike["loss"] < 1.02 * exact["loss"]  # where little drift is seen, the loss has lost little


def test_the_first_that_is_measured_is_what_the_replicas_show(results):
    """The parameters that both ranks wrote down before and after the first local steps."""
    logs = [rank[1] for rank in results]
    k = next(j for j, interval in enumerate(logs[0]["intervals"]) if interval > 1)
    steps = logs[0]["intervals"][k]
    known = next(d for d in logs[0]["drifts"][k:] if d != 0.1)
    last = next(j for j in range(k, len(logs[0]["drifts"])) if logs[0]["drifts"][j] != 0.1)
    apart = square = 0.0
    for begin in range(k, last, steps):
        start, ends = logs[0]["starts"][begin], [log["ends"][begin + steps - 1] for log in logs]
        mean = logs[0]["starts"][begin + steps]
        apart += sum(0.5 * float((end - mean).square().sum()) for end in ends)
        square += float((mean - start).square().sum())
    assert known <= apart / square + 1e-9  # of which the noise of the gradients is taken off
    assert known > 0

"""Two levels: ranks of one host meet often, all of them rarely; against the same in one process, on 2 x 2 ranks."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train.near import groups_by_host  # noqa: E402
from equipoise.policies.contract import Plan, check  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402
from tests.live.train.test_sync import BATCH, LR, make_data, make_net  # noqa: E402

RANKS, GROUPS, SAMPLES, ROUNDS = 4, ((0, 1), (2, 3)), 20 * BATCH + 5, 52
SHARES = {6: (5, 1, 4, 2), 17: (4, 5, 3, 0), 24: (7, 5, 0, 0), 33: (1, 2, 4, 5)}


def trained(policy: str) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.train.change import Change

    x, y = make_data(SAMPLES)
    net = make_net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    runtime = attach(
        model, optimizer, policy, global_batch=BATCH, drift=0.01, decide_every=4, decision_budget_s=60.0,
        warm_up_budget_s=60.0,
    )  # fmt: skip
    dataset = TensorDataset(x, y)
    sampler = runtime.sampler(dataset)
    log: dict[str, Any] = {"parts": [], "last": [], "levels": [], "met": []}
    while runtime.round < ROUNDS:
        for inputs, labels in DataLoader(dataset, batch_sampler=sampler):
            current, local = sampler.current(), runtime._parts.local
            log["parts"].append(current.indices.tolist())
            log["last"].append(current.last)
            log["levels"].append((local.interval, local.far_every))
            torch.nn.functional.mse_loss(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if runtime.round in SHARES:
                sampler.schedule(Change(sampler.drawn, shares=SHARES[runtime.round]))
            runtime.step()
            log["met"].append(sampler.boundary == sampler.trained)
            if runtime.round == ROUNDS:
                break
    saved = runtime.state_dict()  # here all meet
    leader = runtime._parts.agreement.leader
    log["near_s"] = math.nan if leader is None else leader.world.near_exchange_s
    log["saved"] = saved["interval"], saved["far_every"]
    runtime.close()
    log["weights"] = [p.detach().clone() for p in net.parameters()]
    return log


POLICIES = (
    "hierarchical-local-sgd(interval=2, far_every=3)",
    "hierarchical-local-sgd(interval=1, far_every=4)",
)


def runs(rank: int) -> list[dict[str, Any]]:
    os.environ["EQUIPOISE_HOST"] = f"host-{rank // 2}"
    torch.distributed.init_process_group("gloo")
    return [trained(policy) for policy in POLICIES]


@pytest.fixture(scope="module")
def results() -> list[list[dict[str, Any]]]:
    return live_ranks.run(runs, RANKS)


def emulated(logs: list[dict[str, Any]]) -> tuple[list[Any], list[bool]]:
    """(weights, where all met) of four replicas in one process: means of near ones, and of the groups' means."""
    x, y = make_data(SAMPLES)
    nets = [make_net() for _ in logs]
    optimizers = [torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9) for net in nets]
    since_near, since_all, met, steps, turns = np.zeros(RANKS), np.zeros(RANKS), [], 0, 0

    def mean(members: tuple[int, ...], weights: Any) -> None:
        with torch.no_grad():
            for tensors in zip(*(nets[m].parameters() for m in members), strict=True):
                value = sum(w / sum(weights) * t for w, t in zip(weights, tensors, strict=True))
                for tensor in tensors:
                    tensor.copy_(value)

    def near() -> None:
        for group in GROUPS:
            weights = since_near[list(group)]
            mean(group, weights if weights.any() else [1.0] * len(group))  # momentum moves them all the same
        since_near[:] = 0

    def everyone() -> None:
        near()
        # One replica of each group, which are equal now, stands for it.
        mean((0, 2), [since_all[list(group)].sum() for group in GROUPS])
        for group in GROUPS:
            nets[group[1]].load_state_dict(nets[group[0]].state_dict())
        since_all[:] = 0

    for k in range(ROUNDS):
        parts = [log["parts"][k] for log in logs]
        interval, far_every = logs[0]["levels"][k]
        alone = interval * far_every > 1
        whole = [i for part in parts for i in part]
        for net, optimizer, part in zip(nets, optimizers, parts, strict=True):
            chosen = part if alone else whole
            loss = torch.nn.functional.mse_loss(net(x[chosen or [0]]), y[chosen or [0]])
            (loss if chosen else 0.0 * loss).backward()
            optimizer.step()
            optimizer.zero_grad()
        if not alone:
            met.append(True)
            continue
        counts = [len(part) for part in parts]
        since_near, since_all, steps = since_near + counts, since_all + counts, steps + 1
        last = logs[0]["last"][k]
        if steps == interval or last:
            steps, turns = 0, turns + 1
            if turns == far_every or last:
                everyone()
                turns = 0
            else:
                near()
        met.append(turns == 0 and steps == 0)
    if not met[-1]:
        everyone()
    return [list(net.parameters()) for net in nets], met


@pytest.mark.parametrize("which", range(len(POLICIES)))
def test_weights_and_meetings_equal_one_process(results: Any, which: int) -> None:
    logs = [rank[which] for rank in results]
    weights, met = emulated(logs)
    assert logs[0]["levels"][0] == (1, 1)
    assert logs[0]["levels"][-1] == ((2, 3), (1, 4))[which] == logs[0]["saved"]
    assert all(log["met"] == met for log in logs)
    assert 4 < sum(met) < ROUNDS / 2
    for expected, log in zip(weights, logs, strict=True):
        for a, b in zip(expected, log["weights"], strict=True):
            assert float((a - b).detach().norm() / b.norm()) < 1e-12
    for log in logs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(log["weights"], logs[0]["weights"], strict=True))


def test_every_sample_is_trained_on_once_per_epoch(results: Any) -> None:
    logs = [rank[0] for rank in results]
    first = logs[0]["last"].index(True) + 1
    seen = [i for log in logs for k, part in enumerate(log["parts"]) if k < first for i in part]
    assert sorted(seen) == list(range(SAMPLES))


def test_what_an_exchange_of_near_ranks_takes_is_known_before_there_is_one(results: Any) -> None:
    assert 0 < results[0][0]["near_s"] < 60


def test_near_are_the_ranks_of_one_host_where_there_are_several() -> None:
    assert groups_by_host(["a", "a", "b", "b"]) == [0, 0, 1, 1]
    assert groups_by_host(["b", "a", "b"]) == [1, 0, 1]
    assert groups_by_host(["a", "a"]) is None
    assert groups_by_host(["a", "b"]) is None


def elastic(rank: int) -> tuple[set[tuple[int, int]], list[str] | None]:
    """(interval, exchanges per exchange of all) of rounds of a job whose ranks may die; why levels are refused."""
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.group import regroup

    os.environ["EQUIPOISE_HOST"] = f"host-{rank // 2}"
    regroup.start()
    x, y = make_data(4 * BATCH)
    model = regroup.wrap(make_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    runtime = attach(
        model, optimizer, POLICIES[0], global_batch=BATCH, drift=0.01, decide_every=2, decision_budget_s=60.0,
        warm_up_budget_s=60.0,
    )  # fmt: skip
    dataset, levels = TensorDataset(x, y), set()
    loader = DataLoader(dataset, batch_sampler=runtime.sampler(dataset))
    for _ in runtime.epochs(2):
        for inputs, labels in runtime.batches(loader):
            with runtime.recover():
                torch.nn.functional.mse_loss(model(inputs), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
            runtime.step()
            levels.add((runtime._parts.local.interval, runtime._parts.local.far_every))
    leader, asked = runtime._parts.agreement.leader, Plan(far_every=np.array([3]))
    why = None if leader is None else check(asked, leader.world.observe())
    runtime.close()
    return levels, why


def test_levels_are_refused_in_a_job_whose_ranks_may_die() -> None:
    found = live_ranks.run(elastic, RANKS)
    assert [levels for levels, _ in found] == [{(1, 1), (2, 1)}] * RANKS  # the stage's local steps, one level
    (refused,) = (why for _, why in found if why is not None)
    assert refused

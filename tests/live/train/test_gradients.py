"""Uneven shares, exactly weighted: equal to one process on the whole batch. Gradient statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from equipoise.live.train.gradients import BackwardProbe, noise_statistics  # noqa: E402
from equipoise.live.train.weighting import contribution_scale  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

STEPS, BATCH, FEATURES = 24, 24, 12


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any))
def test_contributions_average_to_the_weighted_mean(samples: list[int]) -> None:
    ranks, total = len(samples), sum(samples)
    scales = [contribution_scale(n, total, ranks, "mean") for n in samples]
    assert sum(scales) / ranks == pytest.approx(1.0)
    assert all(s / ranks == pytest.approx(n / total) for s, n in zip(scales, samples, strict=True))
    assert [contribution_scale(n, total, ranks, "sum") for n in samples] == [float(n > 0) for n in samples]


# -- statistics ----------------------------------------------------------------------------------------------


def test_noise_statistics_are_unbiased_for_uneven_splits() -> None:
    """Against the exact values of a known population of per-sample gradients."""
    rng = np.random.default_rng(0)
    mean = np.array([1.0, -2.0, 0.5])
    population = mean + rng.normal(size=(4000, 3)) * [1.0, 2.0, 0.5]
    exact_square = float((population.mean(axis=0) ** 2).sum())
    exact_trace = float(population.var(axis=0).sum())
    split, found = [3, 9, 4], []
    for _ in range(4000):
        parts = [population[rng.integers(0, 4000, n)].mean(axis=0) for n in split]
        whole = sum(n * p for n, p in zip(split, parts, strict=True)) / sum(split)
        found.append(noise_statistics([float(p @ p) for p in parts], float(whole @ whole), split))
    trace, square = np.mean(found, axis=0)
    assert trace == pytest.approx(exact_trace, rel=0.03)
    assert square == pytest.approx(exact_square, rel=0.03)


def test_every_backward_pass_of_a_round_is_marked() -> None:
    """Two nets that are trained in turn: the second pass reaches both."""
    makes, judges = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    marks: list[str] = []
    leaves = [*makes.parameters(), *judges.parameters()]
    probe = BackwardProbe(leaves, lambda: [], lambda: marks.append("local"), lambda: marks.append("done"))
    for _ in range(3):
        probe.begin()
        marks.clear()
        judges(makes(torch.ones(1, 3)).detach()).sum().backward()
        judges(makes(torch.ones(1, 3))).sum().backward()
        assert marks == ["local", "done"] * 2


# -- real ranks ----------------------------------------------------------------------------------------------


def make_net(dtype: Any) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)]
    return torch.nn.Sequential(*layers).to(dtype)


def make_data(dtype: Any) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(BATCH * 8, FEATURES, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), (inputs[:, :3] ** 2).to(dtype)


def loss_of(kind: str, net: Any, x: Any, y: Any, ranks: int) -> Any:
    import contextlib

    casting = torch.autocast("cpu", dtype=torch.bfloat16) if kind == "autocast" else contextlib.nullcontext()
    with casting:
        predicted = net(x)
    if kind == "sum":
        return torch.nn.functional.mse_loss(predicted.float(), y, reduction="sum") * ranks / BATCH
    if kind == "penalty":
        weight = next(net.parameters())
        return torch.nn.functional.mse_loss(predicted, y) + 0.01 * weight.square().sum()
    return torch.nn.functional.mse_loss(predicted.to(y.dtype), y)


CASES: dict[str, tuple[str, str, int, float]] = {
    # name: (dtype, kind of loss, accumulation, relative error allowed)
    "float32": ("float32", "plain", 1, 1e-6),
    "float64": ("float64", "plain", 1, 1e-14),
    "accumulated": ("float64", "plain", 2, 1e-14),
    "clipped": ("float64", "clipped", 1, 1e-14),
    "penalised": ("float64", "penalty", 1, 1e-14),
    "summed": ("float32", "sum", 1, 1e-6),
    "autocast": ("float32", "autocast", 1, 1e-2),
    "prefetched": ("float64", "plain", 1, 1e-14),
}
SPLITS = {2: [(12, 12), (20, 4), (0, 24), (7, 17)], 4: [(6, 6, 6, 6), (1, 2, 3, 18), (0, 12, 0, 12), (9, 5, 5, 5)]}


def train_case(name: str, ranks: int) -> tuple[list[list[int]], list[Any]]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.train.change import RoundChange

    dtype_name, kind, accumulation, _ = CASES[name]
    x, y = make_data(getattr(torch, dtype_name))
    net = make_net(x.dtype)
    model = DistributedDataParallel(net, find_unused_parameters=name == "float32")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    reduction = "sum" if kind == "sum" else "mean"
    runtime = attach(
        model,
        optimizer,
        policy="none",
        global_batch=BATCH,
        mode="observe",
        accumulation=accumulation,
        loss_reduction=reduction,
        statistics_every=3,
    )
    dataset = TensorDataset(x, y)
    sampler = runtime.sampler(dataset)
    ahead: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True}
    loader = DataLoader(dataset, batch_sampler=sampler, **(ahead if name == "prefetched" else {}))
    trained, count = [], 0
    while count < STEPS * accumulation:
        for inputs, labels in loader:
            current = sampler.current()
            assert current is not None
            trained.append(current.indices.tolist())
            if current.samples[runtime.rank]:
                assert torch.equal(inputs, x[current.indices])
            (loss_of(kind, model, inputs, labels, ranks) / accumulation).backward()
            count += 1
            if count % accumulation == 0:
                if kind == "clipped":
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
                optimizer.zero_grad()
            if count % 3 == 0:  # ranks draw ahead equally far here; a decision gathers how far
                split = SPLITS[ranks][count // 3 % len(SPLITS[ranks])]
                if reduction == "sum" and 0 in split:
                    split = SPLITS[ranks][0]  # it needs samples on every rank
                sampler.schedule(RoundChange(sampler.drawn, shares=split))
            runtime.step()
            if count == STEPS * accumulation:
                break
    runtime.close()
    return trained, [p.detach().clone() for p in net.parameters()]


def all_cases(rank: int, names: list[str], ranks: int) -> dict[str, Any]:
    torch.distributed.init_process_group("gloo")
    return {name: train_case(name, ranks) for name in names}


def single_process(name: str, batches: list[list[int]]) -> list[Any]:
    dtype_name, kind, accumulation, _ = CASES[name]
    x, y = make_data(getattr(torch, dtype_name))
    net = make_net(x.dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for k, batch in enumerate(batches, start=1):
        (loss_of(kind, net, x[batch], y[batch], 1) / accumulation).backward()
        if k % accumulation == 0:
            if kind == "clipped":
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach() for p in net.parameters()]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_uneven_shares_equal_the_single_process(ranks: int) -> None:
    """24 steps with shares changed every third; within 1e-6 (float32) and 1e-14 (float64)."""
    names = list(CASES) if ranks == 2 else ["float32", "float64", "accumulated", "clipped", "autocast"]
    results = live_ranks.run(all_cases, ranks, names, ranks)
    for name in names:
        parts = [result[name] for result in results]
        batches = [[i for part in parts for i in part[0][k]] for k in range(len(parts[0][0]))]
        assert len({len(batch) for batch in parts[0][0]}) >= 3  # its share did change
        expected = single_process(name, batches)
        for part in parts:
            for found, exact in zip(part[1], expected, strict=True):
                error = float((found - exact).norm() / exact.norm())
                assert error <= CASES[name][3], f"{name}: relative error {error}"
        for first, other in zip(parts[0][1], parts[1][1], strict=True):
            assert torch.equal(first, other), f"{name}: replicas differ"


@pytest.mark.parametrize(("norm", "exact"), [("batch", False), ("layer", True)])
def test_only_what_looks_at_the_whole_batch_depends_on_the_shares(norm: str, exact: bool) -> None:
    """Batch normalisation sees the rank's own samples: no weighting of gradients can make its result exact."""
    torch.manual_seed(0)
    middle = torch.nn.BatchNorm1d(16) if norm == "batch" else torch.nn.LayerNorm(16)
    layers = torch.nn.Linear(FEATURES, 16), middle, torch.nn.Tanh(), torch.nn.Linear(16, 3)
    net = torch.nn.Sequential(*layers).double()
    x, y = make_data(torch.float64)
    found = []
    for parts in ([list(range(24))], [list(range(18)), list(range(18, 24))]):
        net.zero_grad()
        for part in parts:
            (torch.nn.functional.mse_loss(net(x[part]), y[part]) * len(part) / 24).backward()
        found.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    error = float((found[1] - found[0]).norm() / found[0].norm())
    assert (error < 1e-14) if exact else (error > 0.01)


def noise_on_ranks(rank: int) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.train.change import RoundChange

    torch.distributed.init_process_group("gloo")
    x, y = make_data(torch.float64)
    net = make_net(x.dtype)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # the gradient stays where it is
    runtime = attach(
        model, optimizer, policy="none", global_batch=BATCH, statistics_every=1, decide_every=8, nvml=False
    )
    dataset = TensorDataset(x, y)
    sampler = runtime.sampler(dataset)
    loader = DataLoader(dataset, batch_sampler=sampler)
    norms = []
    for epoch in range(25):
        for inputs, labels in loader:
            if epoch == 0:
                sampler.schedule(RoundChange(sampler.drawn, shares=(15, 9)))
            loss = torch.nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            current = sampler.current()
            assert current is not None
            own = torch.nn.functional.mse_loss(net(inputs), labels)
            exact = torch.autograd.grad(own, list(net.parameters()))
            norms.append(float(sum(g.square().sum() for g in exact)) ** 0.5)
            runtime.step()
    leader = runtime._parts.agreement.leader
    return {
        "norm": norms[-1],
        "seen": None if leader is None else leader.world.telemetry.gradient_norm.tolist(),
        "noise": None if leader is None else leader.world.telemetry.noise_scale,
    }


def test_norms_and_noise_scale_of_a_live_run() -> None:
    first, second = live_ranks.run(noise_on_ranks, 2)
    assert first["seen"] == pytest.approx([first["norm"], second["norm"]], rel=1e-9)
    x, y = make_data(torch.float64)
    net = make_net(x.dtype)
    losses = [torch.nn.functional.mse_loss(net(x[k : k + 1]), y[k : k + 1]) for k in range(len(x))]
    each = torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(v, list(net.parameters()))]) for v in losses]
    )
    mean = each.mean(dim=0)
    exact = float((each - mean).square().sum(dim=1).mean() / mean.square().sum())
    assert first["noise"] == pytest.approx(exact, rel=0.35)  # batches are drawn without replacement

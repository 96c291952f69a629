"""Every way in which a loss reaches the parameters is weighted exactly: as one process on the whole batch."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train.weighting import WeightedGradients, is_weighted  # noqa: E402
from equipoise.live.train.wrapped import wrapped  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

BATCH, FEATURES, WIDTH, CLASSES, ROUNDS = 24, 6, 8, 5, 18
SPLITS = [(20, 4), (0, 24), (7, 17), (12, 12), (24, 0)]
IN_PARTS = [(20, 4), (7, 17), (12, 12), (22, 2)]
WITH_SAMPLES = [(20, 4), (1, 23), (7, 17), (12, 12), (23, 1)]


class Net(torch.nn.Module):  # type: ignore[misc]
    """Returns hidden features; the head is used by the loss, outside of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = torch.nn.Linear(FEATURES, WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES, bias=False)
        self.aux: Any = None

    def forward(self, x: Any) -> Any:
        hidden = torch.tanh(self.trunk(x))
        self.aux = (hidden**2).mean()
        return hidden


class Tied(Net):
    """The trunk's weight is the head's as well."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(FEATURES, WIDTH, bias=False)
        self.head.weight = self.trunk.weight


class Routed(Net):
    """Some samples pass another layer, so that it is not used where a rank has none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = torch.nn.Linear(FEATURES, WIDTH)

    def forward(self, x: Any) -> Any:
        hidden = super().forward(x)
        rows = (x[:, 0] > 0.8).nonzero()[:, 0]
        return hidden.index_add(0, rows, self.expert(x[rows])) if len(rows) else hidden


class Synchronised(torch.nn.SyncBatchNorm):  # type: ignore[misc]
    """Batch normalisation over all ranks' samples, forward and backward, on the CPU."""

    def forward(self, x: Any) -> Any:
        import torch.distributed as dist
        from torch.distributed.nn.functional import all_reduce

        sums = torch.cat([x.sum(0), (x**2).sum(0), x.new_tensor([float(len(x))])])
        sums = all_reduce(sums) if dist.is_initialized() else sums
        mean, square = sums[:WIDTH] / sums[-1], sums[WIDTH:-1] / sums[-1]
        return (x - mean) / (square - mean**2 + self.eps).sqrt() * self.weight + self.bias


class Normalised(Net):
    """Its samples are seen together by all ranks, and changed in place behind that."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Synchronised(WIDTH)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.relu(self.norm(super().forward(x)), inplace=True)


class FusedHead(torch.autograd.Function):  # type: ignore[misc]
    """Cross-entropy that computes its gradients in forward, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, labels: Any) -> Any:
        with torch.enable_grad():
            inputs = [hidden.detach().requires_grad_(), weight.detach().requires_grad_()]
            loss = torch.nn.functional.cross_entropy(inputs[0] @ inputs[1].T, labels)
            ctx.save_for_backward(*torch.autograd.grad(loss, inputs))
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return *(saved * gradients[0] for saved in ctx.saved_tensors), None


def plain(model: Any, net: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(net.head(model(x)), y)


def fused(model: Any, net: Any, x: Any, y: Any) -> Any:
    return FusedHead.apply(model(x), net.head.weight, y)


def chunked(model: Any, net: Any, x: Any, y: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    def part(hidden: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(hidden @ net.head.weight.T, labels, reduction="sum")

    pieces = zip(model(x).split(5), y.split(5), strict=True)
    return sum(checkpoint(part, *piece, use_reentrant=False) for piece in pieces) / len(x)


def auxiliary(model: Any, net: Any, x: Any, y: Any) -> Any:
    loss = torch.nn.functional.cross_entropy(model(x)[:, :CLASSES], y)
    return loss + 0.1 * net.aux + 0.0 * net.head.weight.sum()


def routed(model: Any, net: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x)[:, :CLASSES], y)


def penalised(model: Any, net: Any, x: Any, y: Any) -> Any:
    return plain(model, net, x, y) + 0.01 * sum(p.square().sum() for p in net.parameters())


def tied(model: Any, net: Any, x: Any, y: Any) -> Any:
    hidden = model(x)
    return torch.nn.functional.mse_loss(hidden @ net.head.weight, x)


def summed(model: Any, net: Any, x: Any, y: Any) -> Any:
    """Normalised over all ranks by the script; the mean over two ranks gives the sum back."""
    import torch.distributed as dist

    ranks = dist.get_world_size() if dist.is_initialized() else 1
    return torch.nn.functional.cross_entropy(net.head(model(x)), y, reduction="sum") * ranks / BATCH


def halves(model: Any, net: Any, x: Any, y: Any) -> list[tuple[Any, Any, float]]:
    """A rank's batch in two parts, the first without an exchange."""
    cut = (len(x) + 1) // 2
    parts = [(x[:cut], y[:cut]), (x[cut:], y[cut:])]
    return [(a, b, len(a) / len(x)) for a, b in parts if len(a)]


def one_optimizer(net: Any) -> list[Any]:
    return [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)]


def two_groups(net: Any) -> list[Any]:
    groups = [{"params": net.trunk.parameters(), "lr": 0.1}, {"params": net.head.parameters()}]
    return [torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1, eps=1e-3)]


def two_optimizers(net: Any) -> list[Any]:
    trunk = torch.optim.SGD(net.trunk.parameters(), lr=0.1, momentum=0.9)
    return [trunk, torch.optim.SGD(net.head.parameters(), lr=0.02, nesterov=True, momentum=0.5)]


def hooked(net: Any) -> None:
    net.trunk.weight.register_hook(lambda gradient: 2 * gradient)

    def halve(parameter: Any) -> None:
        parameter.grad.mul_(0.5)

    net.head.weight.register_post_accumulate_grad_hook(halve)


def compiled(net: Any) -> None:
    net.compile(backend="aot_eager")  # traces forward and backward; generates no code


@dataclass(frozen=True)
class Case:
    """One way to train."""

    loss: Callable[..., Any] = plain
    net: Callable[[], Any] = Net
    dtype: str = "float64"
    error: float = 1e-12
    optimizers: Callable[[Any], list[Any]] = one_optimizer
    accumulation: int = 1
    no_sync: str = ""  # "rounds": all but the last of a window; "parts": the first half of each batch
    reduction: str = "mean"
    scaler: bool = False
    evaluating: bool = False  # the model is in its evaluation mode, as when layers are frozen
    prepare: Callable[[Any], None] = lambda net: None
    communication: bool = False  # a communication hook of the script
    splits: list[tuple[int, int]] = field(default_factory=lambda: SPLITS)
    wrapping: dict[str, Any] = field(default_factory=dict)
    mesh: tuple[int, ...] = ()  # under fully_shard, over these ranks


CASES = {
    "head outside forward": Case(),
    "fused head": Case(fused),
    "chunked head": Case(chunked),
    "auxiliary loss kept in the module": Case(auxiliary),
    "penalty": Case(penalised),
    "tied weights": Case(tied, Tied),
    "unused on some ranks": Case(routed, Routed, wrapping={"find_unused_parameters": True}),
    "no_sync over rounds": Case(accumulation=3, no_sync="rounds"),
    "accumulated, exchanged each time": Case(accumulation=2),
    "no_sync within a round": Case(no_sync="parts"),
    "gradients in the buckets": Case(wrapping={"gradient_as_bucket_view": True}),
    "two groups of parameters": Case(optimizers=two_groups),
    "two optimisers": Case(optimizers=two_optimizers),
    "hooks of the script": Case(prepare=hooked),
    "communication hook": Case(communication=True),
    "compiled": Case(prepare=compiled),
    "evaluation mode": Case(evaluating=True),
    "summed": Case(summed, reduction="sum", splits=WITH_SAMPLES),
    "synchronised batch norm": Case(net=Normalised, splits=WITH_SAMPLES),
    "gradient scaler": Case(dtype="float32", scaler=True, error=1e-5),
    "bf16 parameters": Case(dtype="bfloat16", error=0.02),
    "another global batch": Case(splits=[(20, 4), (30, 18), (0, 8), (12, 12)]),
    "another global batch, no_sync over rounds": Case(
        accumulation=3, no_sync="rounds", splits=[(20, 4), (30, 18), (0, 8), (12, 12)]
    ),
    "static graph": Case(auxiliary, wrapping={"static_graph": True, "bucket_cap_mb": 0.0001}),
    "fully_shard": Case(mesh=(2,)),
    "fully_shard, gathered once": Case(mesh=(2,), wrapping={"reshard_after_forward": False}),
    "fully_shard, no exchange within a round": Case(mesh=(2,), no_sync="parts", splits=IN_PARTS),
    "fully_shard, no exchange over rounds": Case(mesh=(2,), accumulation=3, no_sync="rounds"),
    "fully_shard, two optimisers": Case(mesh=(2,), optimizers=two_optimizers),
    "fully_shard, tied weights": Case(tied, Tied, mesh=(2,)),
    "fully_shard, float32": Case(mesh=(2,), dtype="float32", error=1e-5),
    "fully_shard, summed": Case(summed, reduction="sum", splits=WITH_SAMPLES, mesh=(2,)),
    "HSDP": Case(auxiliary, mesh=(2, 1)),
}


QUICK = (
    "fused head",
    "penalty",
    "no_sync over rounds",
    "another global batch",
    "two optimisers",
    "fully_shard",
    "HSDP",
)
"""Cases that every run of the tests tries; the others are long."""


def deal(split: tuple[int, int], ranks: int) -> tuple[int, ...]:
    """The shares of two ranks, of three of which two have those of one, or of four of which each pair has."""
    a, b = split
    return {2: split, 3: (a, b - b // 3, b // 3), 4: (a // 2, a - a // 2, b - b // 3, b // 3)}[ranks]


def make_net(case: Case) -> Any:
    torch.manual_seed(0)
    net = case.net().to(getattr(torch, case.dtype))
    case.prepare(net)
    return net.eval() if case.evaluating else net


def make_data(case: Case) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH * 6, FEATURES, generator=generator, dtype=torch.float64)
    return x.to(getattr(torch, case.dtype)), (x[:, :CLASSES] ** 2).argmax(dim=1)


class Script:
    """The script's part of training, the same on one rank and on several."""

    def __init__(self, case: Case, model: Any, net: Any) -> None:
        self.case, self.model, self.net = case, model, net
        self.optimizers = case.optimizers(net)
        self.scaler = torch.amp.GradScaler("cpu", enabled=case.scaler, growth_interval=5)
        self.rounds = 0

    @contextlib.contextmanager
    def without_exchange(self) -> Iterator[None]:
        """What `no_sync` is under fully_shard."""
        sharded = hasattr(self.model, "set_requires_gradient_sync")
        if sharded:
            self.model.set_requires_gradient_sync(False)
        yield
        if sharded:
            self.model.set_requires_gradient_sync(True)

    def train(self, x: Any, y: Any) -> None:
        """One round: backward, and the optimisers' step where it is due."""
        case, skip = self.case, contextlib.nullcontext
        self.rounds += 1
        steps = self.rounds % case.accumulation == 0
        quiet = getattr(self.model, "no_sync", self.without_exchange if case.mesh else skip)
        parts = halves(self.model, self.net, x, y) if case.no_sync == "parts" else [(x, y, 1.0)]
        for k, (inputs, labels, weight) in enumerate(parts, start=1):
            alone = (case.no_sync == "rounds" and not steps) or k < len(parts)
            with quiet() if alone else skip():
                loss = case.loss(self.model, self.net, inputs, labels) * weight / case.accumulation
                self.scaler.scale(loss).backward()
        if steps:
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
                optimizer.zero_grad()
            self.scaler.update()


def wrap_model(case: Case, net: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    if case.mesh:
        shape = (*case.mesh[:-1], torch.distributed.get_world_size() // math.prod(case.mesh[:-1]))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        if not isinstance(net, Tied):  # what is tied belongs in one unit
            fully_shard(net.trunk, mesh=mesh, **case.wrapping)
        return fully_shard(net, mesh=mesh, **case.wrapping)
    # The CPU is refused there because PyTorch's own synchronised layer has no kernel for it; this one needs none.
    with mock.patch.object(DistributedDataParallel, "_passing_sync_batchnorm_handle"):
        return DistributedDataParallel(net, **case.wrapping)


def whole(parameter: Any) -> Any:
    """A copy of a parameter, of which a rank may hold a part."""
    return (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).detach().clone()


def on_a_rank(case: Case) -> tuple[list[list[int]], list[Any]]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.train.change import RoundChange

    net = make_net(case)
    model = wrap_model(case, net)
    if case.communication:
        model.register_comm_hook(None, allreduce_hook)
    script = Script(case, model, net)
    options = {"accumulation": case.accumulation, "loss_reduction": case.reduction, "statistics_every": 2}
    runtime = attach(model, script.optimizers, "none", global_batch=BATCH, mode="observe", nvml=False, **options)
    dataset = TensorDataset(*make_data(case))
    sampler = runtime.sampler(dataset)
    loader, trained = DataLoader(dataset, batch_sampler=sampler), []
    while len(trained) < ROUNDS:
        for x, y in loader:
            trained.append(sampler.current().indices.tolist())
            script.train(x, y)
            split = deal(case.splits[len(trained) % len(case.splits)], runtime.ranks)
            sampler.schedule(RoundChange(sampler.drawn, shares=split, global_batch=sum(split)))
            runtime.step()
    runtime.close()
    return trained, [whole(p) for p in net.parameters()]


def some_cases(rank: int, names: tuple[str, ...]) -> dict[str, Any]:
    torch.distributed.init_process_group("gloo")
    return {name: on_a_rank(CASES[name]) for name in names}


@functools.cache
def trained(names: tuple[str, ...], ranks: int) -> list[dict[str, Any]]:
    """What every rank trained on, and its weights then, of some cases; in one go, since starting takes long."""
    return live_ranks.Ranks(some_cases, ranks, names).join(timeout_s=600)


def error_of(name: str, ranks: int, names: tuple[str, ...]) -> float:
    """How far the weights are from those of one process; raises AssertionError where the replicas differ."""
    case, parts = CASES[name], [result[name] for result in trained(names, ranks)]
    assert {len(b) for b in parts[0][0]} >= {deal(split, ranks)[0] for split in case.splits}  # the shares did change
    net = make_net(case)
    script, (x, y) = Script(case, net, net), make_data(case)
    for rounds in zip(*(part[0] for part in parts), strict=True):
        indices = [k for batch in rounds for k in batch]
        script.train(x[indices], y[indices])
    errors = []
    for exact, *found in zip(net.parameters(), *(part[1] for part in parts), strict=True):
        assert all(torch.equal(found[0], same) for same in found[1:]), "the replicas differ"
        errors.append(float((found[0] - exact).detach().double().norm() / exact.detach().double().norm()))
    return max(errors)


LONG = tuple(name for name in CASES if name not in QUICK)
ON_FOUR = tuple(name for name in CASES if CASES[name].splits == SPLITS)
ON_THREE = tuple(name for name in ON_FOUR if name != "HSDP")  # which replicates twice
ON = {2: LONG, 3: ON_THREE, 4: ON_FOUR}


@pytest.mark.parametrize("name", QUICK)
def test_uneven_shares_equal_the_single_process(name: str) -> None:
    assert error_of(name, 2, QUICK) <= CASES[name].error


@pytest.mark.long
@pytest.mark.parametrize(("name", "ranks"), [(name, ranks) for ranks, names in ON.items() for name in names])
def test_all_ways_to_train_equal_the_single_process(name: str, ranks: int) -> None:
    assert error_of(name, ranks, ON[ranks]) <= CASES[name].error


def test_the_page_lists_what_is_tried_here() -> None:
    """The rows of the table of ways to train in docs/live-measured.md are the cases, and no other."""
    page = (Path(__file__).parents[3] / "docs" / "live-measured.md").read_text(encoding="utf-8")
    rows = [line for line in page.split("<!-- cases -->")[1].splitlines() if line.startswith("| ")][1:]
    assert {row.split("|")[1].strip() for row in rows} == set(CASES)


# -- where the factor is applied -----------------------------------------------------------------------------


def weighted(model: Any, factor: Callable[[], float], **options: Any) -> WeightedGradients:
    wrapper = wrapped(model)
    return WeightedGradients(wrapper, wrapper.leaves(), factor, **options)


@pytest.fixture
def wrap() -> Iterator[Callable[[Any], Any]]:
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel
    torch.distributed.destroy_process_group()


def test_gradients_that_are_stored_are_weighted_and_those_that_are_returned_are_not(wrap: Any) -> None:
    net = torch.nn.Linear(2, 1, bias=False)
    weighting = weighted(wrap(net), lambda: 3.0)
    assert is_weighted(net)
    (returned,) = torch.autograd.grad(net.weight.sum(), [net.weight])
    net.weight.sum().backward()
    assert torch.equal(returned, torch.ones(1, 2))
    assert torch.equal(net.weight.grad, torch.full((1, 2), 3.0))
    weighting.close()
    assert not is_weighted(net)
    net.weight.sum().backward()
    assert torch.equal(net.weight.grad, torch.full((1, 2), 4.0))


def test_a_rank_without_samples_contributes_zeros_even_for_nan(wrap: Any) -> None:
    net = torch.nn.ModuleList([torch.nn.Embedding(5, 2, sparse=True), torch.nn.Linear(2, 1)])
    weighting = weighted(wrap(net), lambda: 0.0)
    (net[1](net[0](torch.tensor([1, 3]))).sum() * float("nan")).backward()
    assert torch.equal(net[0].weight.grad.to_dense(), torch.zeros(5, 2))
    assert torch.equal(net[1].weight.grad, torch.zeros(1, 2))
    weighting.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_factor_is_applied_once_to_checkpointed_activations(wrap: Any, dtype: Any) -> None:
    """The reentrant backward inside the pass begins with a gradient that has the factor already."""
    net = torch.nn.Linear(2, 1, bias=False, dtype=dtype)
    weighting = weighted(wrap(net), lambda: 2.0)
    x = torch.ones(1, 2, dtype=dtype, requires_grad=True)
    torch.utils.checkpoint.checkpoint(net, x, use_reentrant=True).sum().backward()
    assert net.weight.grad.tolist() == [[2.0, 2.0]]
    weighting.close()

"""What cannot be attached or written, and who was left out: one line that says what to do instead."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.nn.parallel import DistributedDataParallel

from equipoise.live.attach import attach
from equipoise.live.decide.telemetry import Recorder
from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from tests.live import ranks as live_ranks


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Samples without numbers, though it says how many there are."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


def attached(model: Any, parameters: Any, dataset: Any, **options: Any) -> str:
    """What `attach` says, or the sampler, or how many rounds were trained."""
    from torch.utils.data import DataLoader

    optimizer = torch.optim.SGD(parameters, lr=0.1)
    try:
        runtime = attach(model, optimizer, "none", global_batch=10, **options)
    except (TypeError, ValueError) as error:
        return str(error)
    try:
        for x, y in DataLoader(dataset, batch_sampler=runtime.sampler(dataset)):
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            runtime.step()
    except TypeError as error:
        return str(error)
    finally:
        runtime.close()
    return f"{runtime.round} rounds"


def refused(rank: int) -> dict[str, str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import TensorDataset

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    in_part = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    fully_shard(in_part[0], mesh=mesh["data"])
    sharded = fully_shard(torch.nn.Linear(2, 1), mesh=mesh["data"])
    split = parallelize_module(torch.nn.Linear(2, 2), mesh["tensor"], ColwiseParallel())
    fully_shard(split, mesh=mesh["data"])
    before = FullyShardedDataParallel(torch.nn.Linear(2, 1), device_id=torch.device("cpu"))
    ddp = DistributedDataParallel(torch.nn.Linear(2, 1))
    inside = DistributedDataParallel(torch.compile(torch.nn.Linear(2, 1), backend="eager"))
    data = TensorDataset(torch.randn(40, 2), torch.randn(40, 1))
    tries = {
        "sharded in part": (in_part, data),
        "sharded": (sharded, data),
        "sharded before": (before, data),
        "not sharded over all": (split, data),
        "compiled": (torch.compile(ddp, backend="eager"), data),
        "compiled inside": (inside, data),
        "not wrapped": (torch.nn.Linear(2, 1), data),
        "stream": (ddp, Stream()),
        "generator": (ddp, (x for x in range(40))),
    }
    found = {what: attached(model, list(model.parameters()), data) for what, (model, data) in tries.items()}
    alone = attached(sharded, list(sharded.parameters()), data, drift=0.1)
    return {**found, "sharded and told to step alone": alone}


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    return live_ranks.run(refused, 1)[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("sharded in part", "model: not wrapped; needed: fully_shard(model) after its parts"),
        ("sharded", "4 rounds"),
        ("sharded before", "model: FullyShardedDataParallel is not supported; use fully_shard (FSDP2)"),
        (
            "sharded and told to step alone",
            "drift: 0.1 is not allowed with fully_shard, which exchanges gradients in each step; leave it out",
        ),
        (
            "not sharded over all",
            "model: weight is not sharded over all data-parallel ranks, which is not supported "
            "(tensor or pipeline parallel); needed: fully_shard over a mesh of all ranks",
        ),
        (
            "compiled",
            "model: torch.compile(...) around DistributedDataParallel or fully_shard is not allowed; attach that "
            "wrapper and compile inside it: DistributedDataParallel(torch.compile(module)), "
            "fully_shard(torch.compile(layer))",
        ),
        ("compiled inside", "4 rounds"),
        ("not wrapped", "model: not wrapped; needed: DistributedDataParallel or fully_shard"),
        (
            "stream",
            "dataset: Stream is not supported here, samples are assigned by index; take batches from "
            "runtime.stream(dataset), or pass one with __len__ and __getitem__",
        ),
        (
            "generator",
            "dataset: generator is not supported here, samples are assigned by index; take batches from "
            "runtime.stream(dataset), or pass one with __len__ and __getitem__",
        ),
    ],
)
def test_what_is_not_supported_is_told_with_what_to_do_instead(told: dict[str, str], what: str, says: str) -> None:
    assert told[what] == says


def fill(rank: int, folder: str) -> None:
    """Files may grow to 1000 bytes, as if the disk were full then, and later without bound."""
    recorder = Recorder(Path(folder), 0)
    recorder.event("first")
    recorder.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    recorder.event("long", text="x" * 2000)
    recorder.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    recorder.event("last")
    recorder.close()


def test_a_disk_that_fills_up_leaves_whole_lines(tmp_path: Path) -> None:
    """A part of the long line fits: it must not stand before what is written when there is room again."""
    live_ranks.run(fill, 1, str(tmp_path))
    lines = (tmp_path / "rounds-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["first", "last"]


# -- a loss of the features of all ranks --------------------------------------------------------------------


@dataclass(frozen=True)
class Uneven(Stage):
    """Twelve of sixteen samples for the first rank."""

    name: ClassVar[str] = "uneven"
    kind: ClassVar[Kind] = "tasks"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        return plan.with_(samples_per_step=np.array([12, 4])), memory


def gathering_net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()).double()


def gathering_data() -> Any:
    return torch.randn(64, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def on_gathered_features(rank: int) -> dict[str, tuple[list[list[int]], list[Any]]]:
    """A loss of the features of all ranks, gathered in a way that backward passes through."""
    from torch.distributed.nn.functional import all_gather

    torch.distributed.init_process_group("gloo")
    x, found = gathering_data(), {}
    for lever in ("moves", "samples"):
        net = gathering_net()
        model = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        runtime = attach(
            model,
            optimizer,
            Policy("uneven", (Uneven(),)),
            global_batch=16,
            nvml=False,
            decide_every=1,
            decision_budget_s=600.0,
            allow={lever},
        )
        sampler, trained = runtime.sampler(len(x)), []
        for _ in runtime.epochs(2):
            for batch in sampler:
                trained.append(batch)
                features = all_gather(model(x[batch]).sum(dim=0))
                (sum(features) / 16).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                runtime.step()
        runtime.close()
        found[lever] = trained, [p.detach().clone() for p in net.parameters()]
    return found


def test_a_loss_over_gathered_features_is_exact() -> None:
    """Every rank backpropagates into the others' features, from a loss that has its weight already."""
    results = live_ranks.Ranks(on_gathered_features, 2).join(timeout_s=120)
    x, errors = gathering_data(), {}
    for lever in ("moves", "samples"):
        net = gathering_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for batches in zip(*(result[lever][0] for result in results), strict=True):
            (net(x[[k for batch in batches for k in batch]]).sum(dim=0) / 16).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        pairs = zip(net.parameters(), results[0][lever][1], strict=True)
        errors[lever] = max(float((exact.detach() - found).abs().max()) for exact, found in pairs)
    assert {len(batch) for batch in results[0]["moves"][0]} == {8}
    assert {len(batch) for batch in results[0]["samples"][0]} == {8, 12}
    assert errors["moves"] < 1e-12
    assert errors["samples"] < 1e-12

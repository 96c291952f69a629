"""Scripts unlike those of the docs, on two ranks whose shares change, against one process on the same batches.

    python -m tests.bench.live.setups [NAME ...]

Rank 0 sleeps by its samples, so s1+s2 change the shares. A row: how far the last weights are off, how many different
shares there were, whether every sample was trained on once an epoch; or the line with which the script was refused.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's pages name it
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import default_collate as collated

from tests.live import ranks as live_ranks

SAMPLES, BATCH, EPOCHS, SLEEP_S = 132, 12, 2, 0.004


def drawn(k: int, *shape: int) -> torch.Tensor:
    """A sample's own numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(k), dtype=torch.float64)


class Samples(Dataset[Any]):
    """(number, tensors) of each sample."""

    def __init__(self, make: Callable[[int], tuple[Any, ...]]) -> None:
        self.make = make

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, k: int) -> Any:
        return k, *self.make(k)


class Script:
    """A plain script; what others do in another way is a method of theirs."""

    options: ClassVar[dict[str, Any]] = {}
    loader: ClassVar[dict[str, Any]] = {}
    dtype, within = torch.float64, 1e-12
    runtime: Any = None  # None: the reference, one process

    def sample(self, k: int) -> tuple[Any, ...]:
        return drawn(k, 6), drawn(k + 1000, 1)

    def net(self) -> Any:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def optimizers(self, net: Any) -> list[Any]:
        return [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)]

    def begin(self, net: Any, optimizers: list[Any]) -> None:
        """Before the first step."""

    def collate(self, items: Sequence[Any]) -> Any:
        return collated(items)

    def numbers(self, batch: Any) -> list[int]:
        return [int(k) for k in batch[0]]

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return F.mse_loss(model(batch[1]), batch[2])

    def step(self, model: Any, optimizers: list[Any], batch: Any) -> None:
        self.loss(model, batch).backward()
        self.clip(model)
        for one in optimizers:
            one.step()
            one.zero_grad()

    def clip(self, model: Any) -> None:
        """Before the optimiser's step."""

    def after(self, net: Any, optimizers: list[Any], step: int) -> None:
        """After it."""

    def weights(self, net: Any) -> list[torch.Tensor]:
        return [p.detach().clone() for p in net.parameters()]


class MovingAverage(Script):
    def begin(self, net: Any, optimizers: list[Any]) -> None:
        self.average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def after(self, net: Any, optimizers: list[Any], step: int) -> None:
        self.average.update_parameters(net)

    def weights(self, net: Any) -> list[torch.Tensor]:
        return super().weights(net) + super().weights(self.average)


class Clipped(Script):
    def clip(self, model: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)


class SparseGradients(Script):
    def sample(self, k: int) -> tuple[Any, ...]:
        return torch.tensor([k % 20, (k * 7) % 20]), torch.tensor([k % 3], dtype=torch.float64)

    def net(self) -> Any:
        return nn.Sequential(nn.EmbeddingBag(20, 4, sparse=True), nn.Linear(4, 1))

    def optimizers(self, net: Any) -> list[Any]:
        return [torch.optim.SparseAdam(net[0].parameters(), 0.01), torch.optim.SGD(net[1].parameters(), 0.05)]


class TwoViews(Script):
    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        one, other = model(batch[1]), model(batch[1] + 0.1)
        return (one - other).square().mean() * 10 + F.mse_loss(one, batch[2])


class Closure(Script):
    def step(self, model: Any, optimizers: list[Any], batch: Any) -> None:
        def closure() -> Any:
            optimizers[0].zero_grad()
            loss = self.loss(model, batch)
            loss.backward()
            return loss

        optimizers[0].step(closure)


class LateGroup(Script):
    def optimizers(self, net: Any) -> list[Any]:
        return [torch.optim.SGD(net[2].parameters(), lr=0.05)]

    def after(self, net: Any, optimizers: list[Any], step: int) -> None:
        if step == 5:
            optimizers[0].add_param_group({"params": list(net[0].parameters()), "lr": 0.02})


class TokenMeans(Script):
    options: ClassVar[dict[str, Any]] = {"weighted": True}

    def sample(self, k: int) -> tuple[Any, ...]:
        return (drawn(k, 3 + k % 9, 6),)

    def collate(self, items: Sequence[Any]) -> Any:
        return [k for k, _ in items], torch.cat([x for _, x in items])

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        if self.runtime is not None:
            self.runtime.weigh(len(batch[1]))
        return model(batch[1]).square().mean()


class SequenceFirst(Script):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.head = nn.LSTM(6, 5), nn.Linear(5, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            head: torch.Tensor = self.head(self.cells(x)[0][-1])
            return head

    def sample(self, k: int) -> tuple[Any, ...]:
        return drawn(k, 12, 6), drawn(k + 1000, 1)

    def net(self) -> Any:
        return self.Net()

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return F.mse_loss(model(batch[1].transpose(0, 1).contiguous()), batch[2])


class Dictionaries(Script):
    def collate(self, items: Sequence[Any]) -> Any:
        return dict(zip("kxy", collated(items), strict=True))

    def numbers(self, batch: Any) -> list[int]:
        return list(batch["k"].tolist())

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return F.mse_loss(model(batch["x"]), batch["y"])


class Workers(Script):
    loader: ClassVar[dict[str, Any]] = {"num_workers": 2, "persistent_workers": True}


class Scaler(Script):
    dtype, within = torch.float32, 1e-6

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return F.mse_loss(model(batch[1].float()), batch[2].float())

    def begin(self, net: Any, optimizers: list[Any]) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)

    def step(self, model: Any, optimizers: list[Any], batch: Any) -> None:
        self.scaler.scale(self.loss(model, batch)).backward()
        self.scaler.unscale_(optimizers[0])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.scaler.step(optimizers[0])
        self.scaler.update()
        optimizers[0].zero_grad()


class Autocast(Script):
    dtype, within = torch.float32, 2e-2

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batch[1].float())
        return F.mse_loss(out.float(), batch[2].float())


class Adversarial(Script):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.makes, self.judges = nn.Linear(6, 6), nn.Linear(6, 1)

        def forward(self, x: torch.Tensor, judging: bool) -> Any:
            made = self.makes(x)
            return (self.judges(x), self.judges(made.detach())) if judging else self.judges(made)

    def net(self) -> Any:
        return self.Net()

    def optimizers(self, net: Any) -> list[Any]:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (net.makes, net.judges)]

    def step(self, model: Any, optimizers: list[Any], batch: Any) -> None:
        makes, judges = optimizers
        judges.zero_grad()
        real, made = model(batch[1], True)
        (F.softplus(-real).mean() + F.softplus(made).mean()).backward()
        judges.step()
        makes.zero_grad()
        F.softplus(-model(batch[1], False)).mean().backward()
        makes.step()


class OneCycle(Script):
    def begin(self, net: Any, optimizers: list[Any]) -> None:
        self.rate = torch.optim.lr_scheduler.OneCycleLR(optimizers[0], max_lr=0.1, total_steps=60)

    def after(self, net: Any, optimizers: list[Any], step: int) -> None:
        self.rate.step()


class FrozenBatchNorm(Script):
    def net(self) -> Any:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8).eval(), nn.Tanh(), nn.Linear(8, 1))


class TensorHook(Script):
    def begin(self, net: Any, optimizers: list[Any]) -> None:
        net[0].weight.register_hook(lambda gradient: gradient * 0.5)


class Foreach(Script):
    def optimizers(self, net: Any) -> list[Any]:
        return [torch.optim.AdamW(net.parameters(), lr=0.01, foreach=True)]


class WeightNorm(Script):
    def net(self) -> Any:
        first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
        return nn.Sequential(first, nn.Tanh(), nn.Linear(8, 1))


class Recomputed(Script):
    class Block(nn.Sequential):
        def forward(self, x: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    def net(self) -> Any:
        return nn.Sequential(self.Block(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 1))


class Evaluations(Script):
    def after(self, net: Any, optimizers: list[Any], step: int) -> None:
        net.eval()
        with torch.no_grad():
            net(torch.zeros(3, 6))
        net.train()


class ZeroedBefore(Script):
    def step(self, model: Any, optimizers: list[Any], batch: Any) -> None:
        optimizers[0].zero_grad(set_to_none=False)
        self.loss(model, batch).backward()
        optimizers[0].step()


class BackwardTwice(Script):
    """DistributedDataParallel exchanges the gradients of one backward pass for each forward pass."""

    def step(self, model: Any, optimizers: list[Any], batch: Any) -> None:
        out = model(batch[1])
        F.mse_loss(out, batch[2]).backward(retain_graph=True)
        out.abs().mean().backward()
        optimizers[0].step()
        optimizers[0].zero_grad()


class ThawedLater(Script):
    """DistributedDataParallel exchanges what needed gradients when it was made."""

    def net(self) -> Any:
        net = super().net()
        net[0].requires_grad_(False)
        return net

    def after(self, net: Any, optimizers: list[Any], step: int) -> None:
        if step == 6:
            net[0].requires_grad_(True)


SCRIPTS = {kind.__name__: kind for kind in Script.__subclasses__()}


def make(name: str) -> tuple[Script, Any, list[Any]]:
    """(script, net, optimizers), the same everywhere."""
    script = SCRIPTS[name]()
    torch.set_default_dtype(script.dtype)
    torch.manual_seed(0)
    net = script.net()
    optimizers = script.optimizers(net)
    script.begin(net, optimizers)
    return script, net, optimizers


def trained(rank: int, name: str) -> tuple[list[list[int]], int, list[torch.Tensor]]:
    """One rank: the numbers of its samples by round, how many different shares there were, the last weights."""
    from equipoise.live.attach import attach

    torch.distributed.init_process_group("gloo")
    script, net, optimizers = make(name)
    model = DistributedDataParallel(net, find_unused_parameters=name == "Adversarial")
    options = {"policy": "s1+s2", "global_batch": BATCH, "decide_every": 3, "nvml": False, **script.options}
    script.runtime = runtime = attach(model, optimizers, **options)
    data, fresh = Samples(SCRIPTS[name]().sample), SCRIPTS[name]()  # workers get these without the runtime
    loader = DataLoader(data, batch_sampler=runtime.sampler(data), collate_fn=fresh.collate, **script.loader)
    rounds: list[list[int]] = []
    shares = set()
    for _ in runtime.epochs(EPOCHS):
        for batch in loader:
            rounds.append(script.numbers(batch))
            shares.add(tuple(runtime.shares))
            if rank == 0:
                time.sleep(SLEEP_S * len(rounds[-1]))
            script.step(model, optimizers, batch)
            script.after(net, optimizers, len(rounds) - 1)
            runtime.step()
    runtime.close()
    return rounds, len(shares), script.weights(net)


def row(name: str) -> str:
    """How the script did."""
    try:
        (mine, shares, weights), (others, _, _) = live_ranks.run(trained, 2, name)
    except AssertionError as error:
        return f"refused: {str(error).strip().splitlines()[-1]}"
    script, net, optimizers = make(name)
    data = Samples(script.sample)
    for k, numbers in enumerate(a + b for a, b in zip(mine, others, strict=True)):
        script.step(net, optimizers, script.collate([data[n] for n in numbers]))
        script.after(net, optimizers, k)
    off = max(float((a - b).abs().max()) for a, b in zip(weights, script.weights(net), strict=True))
    seen = sorted(n for rounds in (mine, others) for one in rounds for n in one)
    once = "every sample once" if seen == sorted([*range(SAMPLES)] * EPOCHS) else f"{len(seen)} samples"
    verdict = "exact" if off <= script.within else "OFF"
    return f"{verdict}: {off:.0e} off, {shares} different shares, {once}"


def main() -> None:
    """Try the scripts that are named, or all."""
    for name in sys.argv[1:] or SCRIPTS:
        print(f"{name:16} {row(name)}", flush=True)


if __name__ == "__main__":
    main()

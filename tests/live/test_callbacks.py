"""The adapter inside Hugging Face's Trainer and Lightning: as one process on whole batches."""

from __future__ import annotations

import collections
import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.live import ranks as live_ranks  # noqa: E402

SAMPLES, PER_RANK, FEATURES, LR = 96, 8, 8, 0.1


def record(sampler: Any, seen: list[list[int]]) -> None:
    """Note the running batch, and change the shares once."""
    from equipoise.live.train.change import Change

    inner = sampler.runtime._stepping.sampler
    seen.append(inner.current().indices.tolist())
    if inner.trained == 1:
        inner.schedule(Change(inner.drawn, shares=(12, 4)))


def hugging_face(rank: int, folder: str, accumulation: int) -> tuple[list[list[int]], list[Any]]:
    from transformers import Trainer, TrainingArguments

    from equipoise.live.callbacks import policy_for_trainer

    os.environ["LOCAL_RANK"] = str(rank)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(FEATURES, 2)

        def forward(self, x: Any, labels: Any) -> Any:
            logits = self.layer(x)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    torch.manual_seed(0)
    net = Net()
    x, y = torch.randn(SAMPLES, FEATURES), torch.arange(SAMPLES) % 2
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=PER_RANK,
        num_train_epochs=2,
        gradient_accumulation_steps=accumulation,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        learning_rate=LR,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
    )
    data = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    trainer = Trainer(net, arguments, train_dataset=data)
    sampler = policy_for_trainer(trainer, "none", mode="observe")
    seen: list[list[int]] = []
    step = sampler.step

    def recorded() -> None:
        record(sampler, seen)
        step()

    sampler.step = recorded  # type: ignore[method-assign]
    trainer.train()
    return seen, [p.detach().clone() for p in net.parameters()]


def lightning(rank: int, folder: str, accumulation: int) -> tuple[list[list[int]], list[Any]]:
    import lightning.pytorch as lit
    from lightning.fabric.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.callbacks import lightning_callback

    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    os.environ["TORCHELASTIC_RUN_ID"] = "test"

    class Net(lit.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(FEATURES, 2)

        def training_step(self, batch: Any, index: int) -> Any:
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=LR)

    torch.manual_seed(0)
    net = Net()
    data = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.arange(SAMPLES) % 2)
    callback = lightning_callback("none", global_batch=2 * PER_RANK, mode="observe")
    sampler = callback.sampler(data)
    seen: list[list[int]] = []

    class Watch(lit.Callback):
        def on_train_batch_start(self, *_: Any, **__: Any) -> None:
            record(sampler, seen)

    environment = TorchElasticEnvironment()
    trainer = lit.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", cluster_environment=environment),
        max_epochs=2,
        accumulate_grad_batches=accumulation,
        callbacks=[callback, Watch()],
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(net, DataLoader(data, batch_sampler=sampler))
    return seen, [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize(
    ("package", "script", "accumulation"),
    [("transformers", hugging_face, 2), ("lightning", lightning, 1)],
)
def test_training_equals_one_process(tmp_path: Any, package: str, script: Any, accumulation: int) -> None:
    pytest.importorskip(package)
    ranks = live_ranks.Ranks(script, 2, str(tmp_path), accumulation)
    results = ranks.join(timeout_s=120)
    batches = [first + second for first, second in zip(results[0][0], results[1][0], strict=True)]
    assert [len(b) for b in results[0][0][:4]] == [8, 8, 12, 12]
    assert set(collections.Counter(i for b in batches for i in b).values()) == {2}
    torch.manual_seed(0)
    layer = torch.nn.Linear(FEATURES, 2)
    x, y = torch.randn(SAMPLES, FEATURES), torch.arange(SAMPLES) % 2
    optimizer = torch.optim.SGD(layer.parameters(), lr=LR)
    for k, batch in enumerate(batches, start=1):
        (torch.nn.functional.cross_entropy(layer(x[batch]), y[batch]) / accumulation).backward()
        if k % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    for _, weights in results:
        for found, expected in zip(weights, layer.parameters(), strict=True):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-6)

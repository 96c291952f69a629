"""The adapter inside Hugging Face's Trainer and Lightning: as one process on whole batches."""

from __future__ import annotations

import collections
import os
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.live import ranks as live_ranks  # noqa: E402

SAMPLES, PER_RANK, FEATURES, LR = 96, 8, 8, 0.1


def record(sampler: Any, seen: list[list[int]]) -> None:
    """Note the running batch, and change the shares once."""
    from equipoise.live.train.change import RoundChange

    inner = sampler.runtime._stepping.sampler
    seen.append(inner.current().indices.tolist())
    if inner.trained == 1:
        inner.schedule(RoundChange(inner.drawn, shares=(12, 4)))


def hugging_face(
    rank: int, folder: str, accumulation: int, stop: int = 0, resume: int = 0
) -> tuple[list[list[int]], list[Any], float, list[float]]:
    """Stops after so many steps, and resumes from a checkpoint of so many (0: neither)."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

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
        save_strategy="steps" if stop or resume else "no",
        save_steps=max(1, stop),
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        learning_rate=LR,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
    )
    data = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= state.global_step == stop

    trainer = Trainer(net, arguments, train_dataset=data, callbacks=[Stop()])
    sampler = policy_for_trainer(trainer, "none", mode="observe")
    seen: list[list[int]] = []
    step = sampler.step

    def recorded(stepped: bool | None = None) -> None:
        record(sampler, seen)
        step(stepped)

    sampler.step = recorded  # type: ignore[method-assign]
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{resume}" if resume else None)
    logged = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return seen, [p.detach().clone() for p in net.parameters()], trainer.state.epoch, logged


def lightning(
    rank: int, folder: str, accumulation: int, stop: int = 0, resume: int = 0
) -> tuple[list[list[int]], list[Any], float]:
    """See `hugging_face`."""
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

    saves = lit.callbacks.ModelCheckpoint(folder, f"checkpoint-{stop}", every_n_train_steps=max(1, stop), save_top_k=-1)
    environment = TorchElasticEnvironment()
    trainer = lit.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", cluster_environment=environment),
        max_epochs=2,
        max_steps=stop or -1,
        accumulate_grad_batches=accumulation,
        callbacks=[callback, Watch(), *[saves] * bool(stop)],
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=bool(stop),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    path = f"{folder}/checkpoint-{resume}.ckpt"
    trainer.fit(net, DataLoader(data, batch_sampler=sampler), ckpt_path=path if resume else None)
    return seen, [p.detach().clone() for p in net.parameters()], trainer.current_epoch


def test_the_loader_keeps_what_it_was_told() -> None:
    from torch.utils.data import DataLoader

    from equipoise.live.callbacks import DeferredSampler, rebuilt

    def collate(batch: list[int]) -> list[int]:
        return batch

    def begin(worker: int) -> None:
        pass

    sampler = DeferredSampler(8, 4, lambda: pytest.fail("nobody iterates"))
    without_columns = list(range(8))
    told = DataLoader(
        without_columns, batch_size=3, num_workers=2, collate_fn=collate, worker_init_fn=begin, prefetch_factor=5
    )
    made = rebuilt(told, sampler)
    assert made.dataset is without_columns
    assert (made.collate_fn, made.worker_init_fn, made.batch_sampler) == (collate, begin, sampler)
    assert (made.num_workers, made.prefetch_factor, made.pin_memory) == (2, 5, False)
    assert rebuilt(DataLoader(without_columns), sampler).num_workers == 0


def test_lightning_says_when_its_checkpoint_leaves_nothing_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    """Behind `fit`, it counts an epoch that `max_steps` broke off as a whole one."""
    pytest.importorskip("lightning")
    from equipoise.live.callbacks import lightning_callback

    callback = lightning_callback("none", global_batch=4)
    callback.sampler(list(range(8)))
    trainer = types.SimpleNamespace(is_global_zero=True, max_epochs=2)
    callback.teardown(trainer, None, "fit")
    assert capsys.readouterr().err == ""
    callback.load_state_dict({"round": 1})
    callback.teardown(trainer, None, "fit")
    assert capsys.readouterr().err.startswith(
        "equipoise: nothing was trained: according to its checkpoint Lightning has completed max_epochs=2; after fit,"
    )


@pytest.mark.parametrize(
    ("package", "script", "accumulation"), [("transformers", hugging_face, 2), ("lightning", lightning, 1)]
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
    losses = []
    for k, batch in enumerate(batches, start=1):
        losses.append(torch.nn.functional.cross_entropy(layer(x[batch]), y[batch]))
        (losses[-1] / accumulation).backward()
        if k % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    for _, weights, _, *logged in results:
        if rank_0 := [line for lines in logged for line in lines]:  # Trainer's own log, of each optimiser step
            expected = torch.stack(losses).view(-1, accumulation).mean(dim=1).tolist()
            assert rank_0 == pytest.approx(expected, abs=1e-6)
        for found, expected in zip(weights, layer.parameters(), strict=True):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(("package", "script"), [("transformers", hugging_face), ("lightning", lightning)])
def test_they_resume_in_the_middle_of_an_epoch(tmp_path: Any, package: str, script: Any) -> None:
    """Six rounds an epoch: stopped in the second, which goes on with what nobody trained on."""
    pytest.importorskip(package)
    before = live_ranks.Ranks(script, 2, str(tmp_path), 1, 8).join(timeout_s=120)
    after = live_ranks.Ranks(script, 2, str(tmp_path), 1, 0, 8).join(timeout_s=120)
    parts = [[*first[0], *rest[0]] for first, rest in zip(before, after, strict=True)]
    rounds = [mine + other for mine, other in zip(*parts, strict=True)]
    assert len(rounds) == 2 * SAMPLES // (2 * PER_RANK)
    for epoch in (rounds[:6], rounds[6:]):
        assert collections.Counter(i for batch in epoch for i in batch) == collections.Counter(range(SAMPLES))
    assert after[0][2] == 2

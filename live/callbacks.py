"""The adapter for Hugging Face's Trainer and for Lightning.

Both wrap the model late, so the policy is attached when the first batch is drawn.

    policy_for_trainer(trainer, policy="policy.yaml")                  # before trainer.train()

    callback = lightning_callback(policy="policy.yaml", global_batch=512)
    loader = DataLoader(dataset, batch_sampler=callback.sampler(dataset))
    Trainer(callbacks=[callback], strategy="ddp", use_distributed_sampler=False).fit(model, loader)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from equipoise.live.attach import attach
from equipoise.live.runtime import Runtime
from equipoise.live.train.sampler import ShareSampler
from equipoise.live.unsupported import samples_of


class DeferredSampler:
    """A batch sampler that attaches the policy when it is first iterated."""

    def __init__(self, samples: int, global_batch: int, make: Callable[[], Runtime]) -> None:
        self._samples, self._batch, self._make = samples, global_batch, make
        self._sampler: ShareSampler | None = None
        self.runtime: Runtime | None = None

    def __len__(self) -> int:
        return -(-self._samples // self._batch) if self._sampler is None else len(self._sampler)

    def __iter__(self) -> Iterator[list[int]]:
        if self._sampler is None:
            self.runtime = self._make()
            self._sampler = self.runtime.sampler(self._samples)
        return iter(self._sampler)

    def step(self) -> None:
        """The batch was trained on."""
        if self.runtime is not None:
            self.runtime.step()

    def close(self) -> None:
        """Training ended."""
        if self.runtime is not None:
            self.runtime.close()


def policy_for_trainer(trainer: Any, policy: Any = None, **options: Any) -> DeferredSampler:
    """Let a policy deal the batches of a `transformers.Trainer`; call it before `trainer.train()`.

    The global batch is what the arguments say: per-device batch times processes. Trainer's own sharding of
    batches is bypassed. Where Trainer normalises the loss over all processes itself, nothing is weighted
    a second time. Returns the sampler, whose `runtime` is there once training runs.
    """
    from transformers import TrainerCallback

    arguments, dataset = trainer.args, trainer.train_dataset
    batch = arguments.per_device_train_batch_size * max(1, arguments.world_size)

    def make() -> Runtime:
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        settings = {
            "accumulation": arguments.gradient_accumulation_steps,
            "loss_reduction": "sum" if _normalises_itself(trainer) else "mean",
            "seed": arguments.seed,
            **options,
        }
        return attach(trainer.model_wrapped, optimizer, policy, global_batch=batch, **settings)

    sampler = DeferredSampler(samples_of(dataset), batch, make)

    def loader() -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_sampler=sampler,  # type: ignore[arg-type, unused-ignore]
            collate_fn=trainer.data_collator,
            num_workers=arguments.dataloader_num_workers,
            pin_memory=arguments.dataloader_pin_memory,
        )

    class Steps(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Counts rounds."""

        def on_substep_end(self, *_: Any, **__: Any) -> None:
            """After a batch that is accumulated."""
            sampler.step()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """After the batch that the optimiser's step follows."""
            sampler.step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """After the last."""
            sampler.close()

    trainer.get_train_dataloader = loader
    trainer.add_callback(Steps())
    return sampler


def _normalises_itself(trainer: Any) -> bool:
    """Whether Trainer divides the summed loss by the items of all processes."""
    by_items = getattr(trainer, "model_accepts_loss_kwargs", False) or trainer.compute_loss_func is not None
    return bool(by_items and getattr(trainer.args, "average_tokens_across_devices", False))


def lightning_callback(policy: Any = None, *, global_batch: int, **options: Any) -> Any:
    """A Lightning callback with a method `sampler(dataset)`; use it with `use_distributed_sampler=False`."""
    from lightning.pytorch import Callback

    class Steps(Callback):  # type: ignore[misc, unused-ignore]
        """Attaches the policy and counts rounds."""

        _trainer: Any = None
        _sampler: DeferredSampler | None = None

        def sampler(self, dataset: Any) -> DeferredSampler:
            """The batch sampler of the training data."""
            self._sampler = DeferredSampler(samples_of(dataset), global_batch, self._attach)
            return self._sampler

        def _attach(self) -> Runtime:
            settings = {"accumulation": self._trainer.accumulate_grad_batches, **options}
            model, optimizer = self._trainer.strategy.model, self._trainer.optimizers[0]
            return attach(model, optimizer, policy, global_batch=global_batch, **settings)

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Before anything is set up."""
            self._trainer = trainer

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            """After every batch."""
            if self._sampler is not None:
                self._sampler.step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """After the last."""
            if self._sampler is not None:
                self._sampler.close()

    return Steps()

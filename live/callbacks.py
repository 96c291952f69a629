"""The adapter for Hugging Face's Trainer and for Lightning.

Both wrap the model late, so the policy is attached when the first batch is drawn.

    policy_for_trainer(trainer, policy="policy.yaml")                  # before trainer.train()

    callback = lightning_callback(policy="policy.yaml", global_batch=512)
    loader = DataLoader(dataset, batch_sampler=callback.sampler(dataset))
    Trainer(callbacks=[callback], strategy="ddp", use_distributed_sampler=False).fit(model, loader)
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from equipoise.live.attach import attach
from equipoise.live.runtime import Runtime
from equipoise.live.train.epoch_split import rounds_in
from equipoise.live.train.sampler import ShareSampler
from equipoise.live.unsupported import samples_of


class DeferredSampler:
    """A batch sampler that attaches the policy when it is first iterated."""

    def __init__(
        self, samples: int, global_batch: int, make: Callable[[], Runtime], *, drop_last: bool = False
    ) -> None:
        self._samples, self._make = samples, make
        self._batch, self._drop_last = global_batch, drop_last
        self._sampler: ShareSampler | None = None
        self._resumes_from: Mapping[str, Any] | None = None
        self._ended: dict[str, Any] | None = None  # the state at the end of training
        self.runtime: Runtime | None = None

    def __len__(self) -> int:
        """Rounds of a whole epoch: a resumed run counts the rounds it skips as well."""
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        return rounds_in(self._samples, self._batch, ranks, self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        if self._sampler is None:
            self.runtime = self._make()
            if self._resumes_from is not None:
                self.runtime.load_state_dict(self._resumes_from)
            self._sampler = self.runtime.sampler(self._samples)
        return iter(self._sampler)

    @property
    def was_left(self) -> bool:
        """Whether it loaded a checkpoint and no batch was drawn since."""
        return self._resumes_from is not None and self.runtime is None

    def step(self, stepped: bool | None = None) -> None:
        """Report that the batch was trained on; `stepped` as for `Runtime.step`."""
        if self.runtime is not None:
            self.runtime.step(stepped)

    @property
    def epochs(self) -> float:
        """Epochs trained, as a fraction."""
        return 0.0 if self.runtime is None else self.runtime.round / len(self)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint; empty before training. Collective."""
        if self._ended is not None:
            return self._ended
        return {} if self.runtime is None else self.runtime.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a state, from which training will resume."""
        self._resumes_from = state or None

    def close(self) -> None:
        """Training ended."""
        if self.runtime is not None and self._ended is None:
            with contextlib.suppress(RuntimeError):  # interrupted in the middle of an optimiser step
                self._ended = self.runtime.state_dict()
            self._ended = self._ended or {}
            self.runtime.close()


def policy_for_trainer(trainer: Any, policy: Any = None, **options: Any) -> DeferredSampler:
    """Let a policy split the batches of a `transformers.Trainer`; call it before `trainer.train()`.

    The global batch follows from the arguments: per-device batch times processes. Trainer's own sharding of
    batches is bypassed. If Trainer normalises the loss over all processes itself, gradients are not weighted
    a second time. Checkpoints hold the position in the epoch, and `resume_from_checkpoint` resumes there: Trainer
    itself skips no batches (`ignore_data_skip` is set). Returns the sampler, whose `runtime` exists once training
    runs.
    """
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    if trainer.args.world_size > 1 and _counts_items(trainer) and not trainer.args.average_tokens_across_devices:
        raise ValueError(
            "average_tokens_across_devices: False is not allowed, it weighs ranks with uneven samples equally"
        )
    arguments, dataset, own_loader = trainer.args, trainer.train_dataset, trainer.get_train_dataloader
    arguments.ignore_data_skip = True
    batch = arguments.per_device_train_batch_size * max(1, arguments.world_size)

    drop_last = options.get("drop_last", arguments.dataloader_drop_last)

    def make() -> Runtime:
        """The runtime, once the trainer has its optimizer."""
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        settings: dict[str, Any] = {
            "accumulation": arguments.gradient_accumulation_steps,
            "loss_reduction": "sum" if _normalises_itself(trainer) else "mean",
            "seed": arguments.seed,
            "drop_last": drop_last,
            **options,
        }
        return attach(trainer.model_wrapped, optimizer, policy, global_batch=batch, **settings)

    sampler = DeferredSampler(samples_of(dataset), batch, make, drop_last=drop_last)

    class TrainerSteps(TrainerCallback, ExportableState):  # type: ignore[misc, unused-ignore]
        """Counts rounds, and keeps the position in the epoch in Trainer's state."""

        saved: Mapping[str, Any] | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Before the first batch, or the first one after a checkpoint."""
            found = state.stateful_callbacks.get(type(self).__name__) or {}
            sampler.load_state_dict(found.get("runtime") or {})
            state.stateful_callbacks[type(self).__name__] = self.state()

        def on_substep_end(self, *_: Any, **__: Any) -> None:
            """After an accumulated batch."""
            sampler.step(stepped=False)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """After a batch that ends in an optimiser step."""
            sampler.step(stepped=True)
            state.epoch = sampler.epochs  # Trainer counts from where this process began
            self.keep(control)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """After an epoch."""
            self.keep(control)

        def keep(self, control: Any) -> None:
            """Collect the state here, on all ranks, since Trainer asks for it on one rank only."""
            if control.should_save:
                self.saved = sampler.state_dict()

        def state(self) -> dict[str, Any]:
            """What Trainer writes into its checkpoint."""
            return {"args": {}, "attributes": {}, "runtime": self.saved}

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """After the last."""
            sampler.close()

    train = trainer.training_step

    def training_step(*given: Any, **named: Any) -> Any:
        """The loss that Trainer logs, of which it takes the ranks' plain mean."""
        loss = train(*given, **named)
        return loss if sampler.runtime is None else loss * sampler.runtime.weight_of_loss

    trainer.training_step = training_step
    trainer.get_train_dataloader = lambda: rebuilt(own_loader(), sampler)
    trainer.add_callback(TrainerSteps())
    return sampler


def rebuilt(loader: Any, sampler: DeferredSampler) -> DataLoader[Any]:
    """A loader with the settings of `loader` (columns, workers, collation), for the batches of `sampler`."""
    names = (
        "collate_fn",
        "num_workers",
        "pin_memory",
        "worker_init_fn",
        "multiprocessing_context",
        "timeout",
        "prefetch_factor",
        "persistent_workers",
    )
    kept = {name: getattr(loader, name) for name in names}
    return DataLoader(loader.dataset, batch_sampler=sampler, **kept)  # type: ignore[arg-type, unused-ignore]


def _normalises_itself(trainer: Any) -> bool:
    """Whether Trainer divides the summed loss by the items of all processes."""
    return _counts_items(trainer) and bool(trainer.args.average_tokens_across_devices)


def _counts_items(trainer: Any) -> bool:
    """Whether Trainer's loss is a sum over the batch divided by a number of items."""
    return bool(getattr(trainer, "model_accepts_loss_kwargs", False) or trainer.compute_loss_func is not None)


def lightning_callback(policy: Any = None, *, global_batch: int, **options: Any) -> Any:
    """A Lightning callback with a method `sampler(dataset)`; use it with `use_distributed_sampler=False`."""
    from lightning.pytorch import Callback

    class LightningSteps(Callback):  # type: ignore[misc, unused-ignore]
        """Attaches the policy and counts rounds."""

        _trainer: Any = None
        _sampler: DeferredSampler | None = None
        _steps = 0

        def sampler(self, dataset: Any) -> DeferredSampler:
            """The batch sampler of the training data."""
            drop_last = options.get("drop_last", False)
            samples = samples_of(dataset)
            self._sampler = DeferredSampler(samples, global_batch, self._attach, drop_last=drop_last)
            return self._sampler

        def _attach(self) -> Runtime:
            settings = {"accumulation": self._trainer.accumulate_grad_batches, **options}
            model, optimizers = self._trainer.strategy.model, self._trainer.optimizers
            return attach(model, optimizers, policy, global_batch=global_batch, **settings)

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Before anything is set up."""
            self._trainer = trainer

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            """After every batch; Lightning also makes an optimiser step after the last of an epoch."""
            if self._sampler is not None:
                self._sampler.step(stepped=trainer.global_step != self._steps)
            self._steps = trainer.global_step

        def on_train_start(self, trainer: Any, *_: Any, **__: Any) -> None:
            """Before the first batch."""
            self._steps = trainer.global_step

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """After the last."""
            if self._sampler is not None:
                self._sampler.close()

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Print why training did not resume from a checkpoint in the middle of an epoch."""
            if self._sampler is not None and self._sampler.was_left and trainer.is_global_zero:
                print(
                    f"equipoise: nothing was trained: according to its checkpoint Lightning has completed max_epochs="
                    f"{trainer.max_epochs}; after fit, it counts an interrupted epoch as complete: to "
                    "train its rest, use a checkpoint from ModelCheckpoint, or one more max_epochs",
                    file=sys.stderr,
                )

        def state_dict(self) -> dict[str, Any]:
            """The state for Lightning's checkpoint, which every rank builds."""
            return {} if self._sampler is None else self._sampler.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Load the state from Lightning's checkpoint."""
            if self._sampler is not None:
                self._sampler.load_state_dict(state_dict)

    return LightningSteps()

"""A running attachment: the methods that the script calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import default_collate

from equipoise.live import checkpoint
from equipoise.live.data.movement import FileData
from equipoise.live.options import Options
from equipoise.live.parts import Parts
from equipoise.live.stepping import Stepping
from equipoise.live.train.optimizers import Optimizers
from equipoise.live.train.sampler import Files, ShareSampler
from equipoise.live.train.stream import Reader, StreamLoader, StreamSampler, length_of
from equipoise.live.train.weighting import WeightedGradients
from equipoise.live.train.wrapped import Replicated
from equipoise.live.unsupported import samples_of
from equipoise.policies.contract import Policy


class Runtime:
    """Made by `attach`; the script calls `sampler` once and `step` after every batch."""

    def __init__(
        self,
        wrapper: Replicated,
        optimizer: Optimizers,
        policy: Policy | None,
        options: Options,
        problem: str | None = None,
    ) -> None:
        self.options = options
        self._parts = parts = Parts(wrapper, optimizer, policy, options, problem)
        self._stepping = Stepping(parts)
        self._resumes_from: Mapping[str, Any] | None = None
        self._closed = False
        scaled = options.batch_max is not None and options.learning_rate != "script"
        self._rates = optimizer.scale_rates(self._stepping.rate) if scaled else []
        self._weighting = WeightedGradients(wrapper, parts.leaves, self._stepping.scale)

    # -- training ------------------------------------------------------------------------------------------

    def sampler(self, dataset: Any) -> ShareSampler:
        """The batch sampler of the training data (anything with a length, or the length itself).

        Collective: call it on every rank. Raises ValueError when ranks have different data or options,
        which would assign samples twice and make ranks wait for each other. Raises TypeError for a dataset
        whose samples have no indices.
        """
        samples = samples_of(dataset)
        files = Files(dataset.sizes, dataset.digest) if isinstance(dataset, FileData) else None
        sampler = self._stepping.deal(lambda **options: ShareSampler(samples, files=files, **options))
        if isinstance(dataset, FileData):
            self._parts.agreement.move_data(dataset, sampler)
        self._begin(sampler, None if files is None else files.digest)
        return sampler

    def stream(self, samples: Iterable[Any], collate: Callable[[list[Any]], Any] = default_collate) -> StreamLoader:
        """Batches of samples without indices: an IterableDataset, or another object that is iterated in every epoch.

        A loader, in place of a DataLoader over `sampler`. Every rank must read the same samples in the same order (a
        `set_epoch` method is called), and keeps those assigned to it; costly work belongs in `collate`, which makes
        a batch of the rank's samples.
        Collective. Raises TypeError for an object that can be read only once.
        """
        if isinstance(samples, Iterator):
            raise TypeError(
                f"samples: a {type(samples).__name__} is not allowed, it can be read only once; needed: an object that "
                "gives a new iterator for every epoch, such as an IterableDataset"
            )
        reader, length = Reader(samples), length_of(samples)
        sampler = self._stepping.deal(lambda **options: StreamSampler(reader, length, **options))
        self._begin(sampler)
        return StreamLoader(reader, sampler, collate)

    def _begin(self, sampler: ShareSampler, digest: str | None = None) -> None:
        """Agree on the data with the other ranks, and begin the first round."""
        options, group, leader = self.options, self._parts.group, self._parts.agreement.leader
        told = {"samples in the dataset": sampler.samples, "files of the dataset": digest}
        group.same_on_all_ranks({**told, **options.common()})
        if leader is not None:
            leader.warm_up(sampler.shares, sampler.preview())
            wrapper = self._parts.wrapper
            inside = wrapper.exchanges_inside()
            leader.write_manifest(self.run, sampler, wrapper.module.parameters(), inside=inside)
        if self._resumes_from is not None:
            checkpoint.load(self._parts, self._stepping, self._resumes_from)
        self._resumes_from = None
        self._stepping.begin()

    def step(self, stepped: bool | None = None) -> None:
        """Report that the batch was trained on. Call it once per batch, after the optimiser step, if there was one.

        `stepped`: whether there was one, if that does not follow from `accumulation`, e.g. at the end of an epoch.
        """
        self._stepping.finish(stepped)
        self._stepping.begin()

    def weigh(self, weight: float) -> None:
        """Set the weight of this batch in the loss of all ranks: its tokens, if the loss is a mean over tokens.

        Once per batch, on every rank, before its backward pass; `attach(..., weighted=True)`. Raises ValueError.
        """
        self._stepping.give(weight)

    def mean(self, loss: Any, weight: float | None = None) -> float:
        """The mean loss over all ranks, weighted as their gradients: the loss that a single process would have.

        Collective; call it after the forward pass or right after `step()`. With a summed loss, the ranks' plain mean.
        `weight`: that of this rank's value, if it is not the mean of one round: the samples of a whole epoch, say.
        """
        value = float(loss.detach()) if isinstance(loss, torch.Tensor) else float(loss)
        return self._stepping.mean(value, weight)

    @property
    def weight_of_loss(self) -> float:
        """Factor on this rank's loss in the running round, for loggers that take the ranks' plain mean."""
        return self._stepping.weight_of_loss()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Mark a block that is not part of a step: evaluation, a checkpoint. Rounds delayed by it are not timed.

        Forward passes without gradients and `state_dict` calls are recognised as pauses without it.
        """
        self._parts.meter.pause()
        yield
        self._parts.meter.pause()

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs still to train up to `count`; after a checkpoint, the rest of its epoch is the first."""
        sampler = self._stepping.dealt()
        while True:
            epoch = sampler.epoch + (0 if sampler.resumes else 1)
            if epoch >= count:
                break
            yield epoch

    def close(self) -> None:
        """Write buffered records and stop the threads."""
        self._closed = True
        self._weighting.close()
        for hook in self._rates:
            hook.remove()
        self._parts.close()

    # -- checkpoints ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, besides model and optimiser: position in the epoch, shares, interval, policy
        memory, random numbers.

        Collective, after `step()` and before the model's own `state_dict()`: with local steps, replicas are averaged
        here. It is the same on every rank, so one file is enough. Raises RuntimeError if the optimiser has not
        stepped yet, or after `close()`.
        """
        if self._closed:
            raise RuntimeError("runtime.state_dict() after runtime.close(): call it before")
        self._stepping.settle()
        return checkpoint.save(self._parts, self._stepping)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict()`, on any number of ranks: every sample of its epoch is trained on once.

        Collective, before the first batch.
        Raises ValueError when the state belongs to other data, RuntimeError when a batch was already drawn.
        """
        if self._stepping.sampler is None:
            self._resumes_from = state
        else:
            checkpoint.load(self._parts, self._stepping, state)
            self._stepping.begin()

    # -- status, which can be read at any time, on every rank --------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._parts.group.rank

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self._parts.group.ranks

    @property
    def run(self) -> str:
        """The id of this run; its record is the folder of that name in `run_dir`."""
        return self._parts.group.run

    @property
    def round(self) -> int:
        """Rounds trained since the start."""
        return self._stepping.round

    @property
    def interval(self) -> int:
        """Local steps per exchange now."""
        return self._parts.local.interval

    @property
    def global_batch(self) -> int:
        """Samples per round over all ranks now; a policy may change it if `batch_max` is given."""
        sampler = self._stepping.sampler
        return self._parts.options.global_batch if sampler is None else sampler.global_batch

    @property
    def learning_rate(self) -> float:
        """Factor on the script's learning rate in the running round, applied in optimizer steps."""
        return self._stepping.rate()

    @property
    def shares(self) -> list[int]:
        """Samples of each rank in the running round; before the first, in the first."""
        sampler = self._stepping.sampler
        if sampler is None:
            return []
        current = sampler.current()
        return [int(n) for n in (sampler.shares if current is None else current.samples)]

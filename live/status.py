"""The status of a running attachment, as a script may read it."""

from __future__ import annotations

import torch

from equipoise.live.parts import Parts
from equipoise.live.stepping import Stepping


class Status:
    """Properties that can be read at any time, on every rank."""

    _parts: Parts
    _stepping: Stepping

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._parts.device

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
    def ends_step(self) -> bool:
        """Whether the optimiser steps after the running batch: the last of `accumulation`."""
        return self._parts.meter.is_last()

    @property
    def shares(self) -> list[int]:
        """Samples of each rank in the running round; before the first, in the first."""
        sampler = self._stepping.sampler
        if sampler is None:
            return []
        current = sampler.current()
        return [int(n) for n in (sampler.shares if current is None else current.samples)]

"""A rank's fraction of its accelerator, through one of several back ends.

duty-cycle     a CPU rank sleeps so that it computes `share` of the time; for tests and demonstrations
green-context  a pool of CUDA green contexts, one per share asked for, chosen round by round (beta in PyTorch;
               it partitions one process's own kernels, and against other processes only under MPS)
mps            the percentage that the process was started with; it cannot change while it runs
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from equipoise.base.numerals import strict_float

MPS_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_SAME = 0.005  # of a device: so near to the percentage of MPS, a share is that


class ShareBackend:
    """The whole device; what limits a rank to a fraction of it is derived from this."""

    quantum = 1.0
    """Smallest step of a share; 1: there is no choice."""
    fixed: float | None = None
    """The share that cannot change, where that is so."""

    def set(self, share: float) -> str | None:
        """Use `share` from the next round on; returns why that is not possible, or None."""
        return None if share == 1.0 else "this run was attached without a back end for shares"

    def begin(self) -> None:
        """The first forward of a round begins."""

    def end(self) -> None:
        """The local gradient is computed; may be called several times, the last counts."""


class DutyCycle(ShareBackend):
    """Sleeps before each round for what the last one computed, times (1 - share) / share."""

    quantum = 0.01

    def __init__(self) -> None:
        self.share = 1.0
        self._busy_s = self._began_s = 0.0

    def set(self, share: float) -> str | None:
        """See `ShareBackend`."""
        self.share = share
        return None

    def begin(self) -> None:
        """Sleep in proportion to the last round's computing."""
        idle_s = self._busy_s * (1.0 - self.share) / self.share
        if idle_s > 0:
            time.sleep(idle_s)
        self._began_s = time.perf_counter()

    def end(self) -> None:
        """See `ShareBackend`."""
        self._busy_s = time.perf_counter() - self._began_s


class MpsAtStart(ShareBackend):
    """The share that `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` gave this process."""

    def __init__(self) -> None:
        text = os.environ.get(MPS_VARIABLE)
        if text is None:
            raise ValueError(f"share_backend mps: {MPS_VARIABLE} is not set")
        try:
            self.fixed = strict_float(text) / 100.0
        except ValueError as error:
            raise ValueError(f"share_backend mps: {MPS_VARIABLE}: {error}") from None

    def set(self, share: float) -> str | None:
        """See `ShareBackend`."""
        if self.fixed is not None and abs(share - self.fixed) < _SAME:
            return None
        return f"an MPS percentage is fixed when the process starts; restart with {MPS_VARIABLE}={share:.0%}"


class GreenContexts(ShareBackend):
    """One green context per share, made when first asked for and kept. `api` is torch's class."""

    def __init__(self, device: torch.device, api: Any = None, processors: int | None = None) -> None:
        if api is None:
            from torch.cuda.green_contexts import SUPPORTED, GreenContext

            if not SUPPORTED:
                raise ValueError("share_backend green-context: this PyTorch has no green contexts")
            api = GreenContext
        self._api, self._index = api, device.index or 0
        self._processors = processors or torch.cuda.get_device_properties(device).multi_processor_count
        self.quantum = 1.0 / self._processors
        self._pool: dict[int, Any] = {}
        self._wanted: Any = None
        self._current: Any = None

    def set(self, share: float) -> str | None:
        """See `ShareBackend`."""
        count = max(1, round(share * self._processors))
        if count == self._processors:
            self._wanted = None
            return None
        if count not in self._pool:
            try:
                self._pool[count] = self._api.create(num_sms=count, device_id=self._index)
            except RuntimeError as error:
                return f"no green context of {count} of {self._processors} multiprocessors: {error}"
        self._wanted = self._pool[count]
        return None

    def begin(self) -> None:
        """Enter the context of the share in force."""
        if self._wanted is not self._current:
            if self._current is not None:
                self._current.pop_context()
            if self._wanted is not None:
                self._wanted.set_context()
            self._current = self._wanted


def make_backend(name: str, device: torch.device) -> ShareBackend:
    """The back end called `name`. Raises ValueError when it is not possible here."""
    if name == "duty-cycle":
        return DutyCycle()
    if name == "mps":
        return MpsAtStart()
    if name == "green-context":
        return GreenContexts(device)
    return ShareBackend()


class HeldShare:
    """This rank's present share; refusals by its back end are reported, and never end training."""

    def __init__(self, backend: ShareBackend, refused: Callable[[str], None]) -> None:
        self.backend, self.share = backend, 1.0
        self._refused = refused

    def set(self, share: float) -> None:
        """Use `share` from the next round on, if the back end permits."""
        problem = self.backend.set(share)
        if problem is None:
            self.share = share
        else:
            self._refused(problem)

    def begin(self) -> None:
        """The first forward of a round begins."""
        try:
            self.backend.begin()
        except RuntimeError as error:  # a share that the driver refuses must not end training
            self._refused(str(error))
            self.backend.set(1.0)
            self.share = 1.0

    def end(self) -> None:
        """The local gradient is computed."""
        self.backend.end()

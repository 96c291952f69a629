"""A rank's measurements of its rounds: times, gradients, and the samples of every rank."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from equipoise.live.train.checks import BatchCheck, ForwardCheck
from equipoise.live.train.gradients import BackwardProbe, Square
from equipoise.live.train.optimizers import Optimizers
from equipoise.live.train.shares import HeldShare
from equipoise.live.train.timing import make_timer
from equipoise.live.train.wrapped import Replicated
from equipoise.policies.observation import Floats

# One row per rank and round. Seconds; squared norms are NaN on rounds that were not measured.
COLUMNS = ("samples", "stall_s", "compute_s", "tail_s", "update_s", "local_square", "mean_square")
SAMPLES, STALL, COMPUTE, TAIL, UPDATE, LOCAL_SQUARE, MEAN_SQUARE = range(len(COLUMNS))


@dataclass(slots=True)
class RoundInfo:
    """A finished round as a rank knows it, without its times."""

    number: int
    samples: int  # of this rank
    exchanged: bool  # all ranks exchanged at its end
    local: bool  # ranks stepped on their own gradients
    window: tuple[int, ...]  # samples of every rank since the last optimiser step
    paused: bool  # its times are not used
    weights: tuple[float, ...]  # weights of the losses: samples, if the script gives no weights
    near: bool = False  # only intra-node ranks exchanged at its end


class Pauses:
    """Finds rounds delayed by this rank's pauses, up to the exchange at which the others waited for it."""

    def __init__(self) -> None:
        self._noticed = self._noticed_before = False  # in the running round, in the one before
        # The running round is delayed; the first one sets up connections and memory, up to its exchange.
        self._paused = True
        self._in_next = False  # so is the next one: its exchange is the first after the pause

    def note(self, computing: bool) -> None:
        """A pause begins now; `computing`: in a round whose forward has begun."""
        self._paused = True
        self._in_next = self._in_next or computing

    def notice(self, computing: bool) -> None:
        """Note a possible pause; one in every round counts as part of the rounds."""
        self._noticed = True
        if not self._noticed_before:
            self.note(computing)

    def end_round(self, exchanged: bool) -> bool:
        """Whether the round that ends now was delayed; `exchanged`: the ranks exchanged in it."""
        paused = self._paused
        self._paused = self._in_next or (paused and not exchanged)
        self._in_next = False
        self._noticed_before, self._noticed = self._noticed, False
        return paused


class RoundMeter:
    """Times the rounds of a wrapped model, and measures gradient norms every so many optimiser steps."""

    def __init__(
        self,
        wrapper: Replicated,
        leaves: Mapping[str, torch.Tensor],
        optimizer: Optimizers,
        share: HeldShare,
        *,
        accumulation: int,
        statistics_every: int | None,
    ) -> None:
        """`statistics_every` None: gradients are not measured, nor the update on a device."""
        self._share, self._accumulation, self._every = share, accumulation, statistics_every
        self._computing = False  # in a forward of the running round, or past it
        self._wrapper = wrapper
        device, acts = next(wrapper.module.parameters()).device, statistics_every is not None
        self._timer = timer = make_timer(device, acts)
        self._probe = BackwardProbe(
            leaves.values(),
            wrapper.exchanged,
            self._gradient_ready,
            lambda: timer.mark("done"),
            one_by_one=wrapper.sharded or bool(getattr(wrapper.model, "gradient_as_bucket_view", False)),
            exchanges_inside=wrapper.exchanges_inside,
        )
        self._handles = [
            *(wrapper.watch(timer.begin_wait, timer.end_wait) if acts or device.type == "cpu" else []),
            wrapper.model.register_forward_pre_hook(self._before_forward, prepend=True, with_kwargs=True),
            wrapper.model.register_forward_hook(self._after_forward),
            wrapper.module.register_state_dict_pre_hook(lambda *_: self._notice()),
            *optimizer.on_state_dict(self._notice),
            *optimizer.on_step(self._note_step),
        ]
        self.batches, self._alone = BatchCheck(), ForwardCheck(wrapper.model)
        self.in_window = self._counted = 0  # rounds since the last optimiser step, and in all
        self._pauses = Pauses()
        self._steps = 0  # optimiser steps
        self._stepped = False  # an optimiser step ended the last counted round
        self._made = -1  # the round after which the optimiser last made a step; -1: it was not seen to
        self._window: tuple[int, ...] = ()
        self._weights: tuple[float, ...] = ()
        self._waited: list[float] = []
        self._waited_s = 0.0  # in the running round, before the local gradient was there
        self.rounds = 0  # since the last `take`
        self._infos: list[RoundInfo] = []
        self._squares: list[tuple[Square, Square]] = []

    @property
    def in_round(self) -> bool:
        """Whether the running round's forward has begun."""
        return self._computing

    def begin(self, rank: int, ranks: int) -> None:
        """Begin the next round."""
        self._probe.begin()
        self._probe.part = self._wrapper.part(rank, ranks)
        self._computing = False
        self._waited_s = 0.0
        self._timer.begin_round()

    def count(self, samples: Sequence[int], weights: Sequence[float], stepped: bool | None = None) -> bool:
        """Count the running round of `samples` (by rank); returns whether an optimiser step ended it.

        `stepped` None: it did when that many rounds had been accumulated.
        """
        if self.in_window:
            self._window = tuple(a + b for a, b in zip(self._window, samples, strict=True))
            self._weights = tuple(a + b for a, b in zip(self._weights, weights, strict=True))
        else:
            self._window, self._weights = tuple(samples), tuple(weights)
        self.in_window, self._counted = self.in_window + 1, self._counted + 1
        self._stepped = self.in_window == self._accumulation if stepped is None else stepped
        return self._stepped

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a block that waits for other ranks in the middle of computing."""
        began_s = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - began_s

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        """Mark a block as the exchange of parameters, not the update."""
        self._timer.mark("enter")
        yield
        self._timer.mark("leave")

    def end(self, number: int, samples: int, *, exchanged: bool, local: bool, near: bool = False) -> None:
        """End the last counted round; `samples` are this rank's. The rest is as in `RoundInfo`."""
        self._timer.end_round()
        self._squares.append((self._probe.local_square, self._probe.mean_square))
        paused = self._pauses.end_round(exchanged)
        self._infos.append(RoundInfo(number, samples, exchanged, local, self._window, paused, self._weights, near))
        self._waited.append(self._waited_s)
        self.rounds += 1
        if self._stepped:
            self.in_window = 0
            self._steps += 1

    def take(self, final: bool = False) -> tuple[Floats, list[RoundInfo]]:
        """The rounds since the last call, as (rounds, len(COLUMNS)) and one by one.

        Of a device the last ones are late, and come with the next call; `final`: all.
        """
        spans, self.rounds = self._timer.spans(final), 0
        n = len(spans)
        infos, squares, waited = self._infos[:n], self._squares[:n], self._waited[:n]
        del self._infos[:n], self._squares[:n], self._waited[:n]
        found = [
            (float(info.samples), *span, float(square[0]), float(square[1]))
            for info, span, square in zip(infos, spans, squares, strict=True)
        ]
        rows = np.array(found, dtype=np.float64).reshape(len(found), len(COLUMNS))
        rows[:, COMPUTE] -= waited
        rows[:, TAIL] += waited
        rows[[info.paused for info in infos], STALL : UPDATE + 1] = np.nan
        return rows, infos

    def close(self) -> None:
        """Remove all hooks from the model."""
        self._probe.close()
        for handle in self._handles:
            handle.remove()

    def pause(self) -> None:
        """Note that the script pauses training."""
        self._pauses.note(self._computing)

    def is_last(self) -> bool:
        """Whether the optimiser steps at the end of the running round."""
        return self.in_window == self._accumulation - 1

    def _note_step(self) -> None:
        self._made = self._counted

    def lacks_step(self) -> bool:
        """Whether gradients of trained rounds still wait for the script's own count to reach an optimiser step."""
        if self._made < 0 or self._made == self._counted - 1:
            return False
        return 0.0 < sum(float(gradient.abs().sum()) for gradient in self._wrapper.exchanged()) < math.inf

    def _notice(self) -> None:
        self._pauses.notice(self._computing)

    def _before_forward(self, module: Any, arguments: Any, named: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):
            self._notice()
            return
        self.batches.forward(arguments, named)
        self._alone.begin()
        if not self._computing:
            self._computing = True
            if self._every is not None and self._steps % self._every == 0 and self.is_last():
                self._probe.measure()
            self._timer.mark("forward")
            self._share.begin()

    def _after_forward(self, module: Any, arguments: Any, result: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self._alone.end()

    def _gradient_ready(self) -> None:
        self._timer.mark("local")
        self._share.end()

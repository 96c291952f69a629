"""What happens when a round was trained on: count it, let the replicas meet, decide, carry out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from equipoise.live.parts import Parts
from equipoise.live.train.change import Change
from equipoise.live.train.sampler import Round, ShareSampler
from equipoise.live.train.weighting import contribution_scale


class Stepping:
    """The rounds of one rank, from the first to the last."""

    def __init__(self, parts: Parts, regroup: Callable[[Sequence[int]], None]) -> None:
        """`regroup`: forms the group anew, of these members."""
        self._parts, self._regroup = parts, regroup
        self.sampler: ShareSampler | None = None
        self.round = 0  # rounds trained since the start
        self.first = 0  # of those, the ones before the checkpoint that this run began with
        self.resize_to: int | None = None

    def dealt(self) -> ShareSampler:
        """The sampler. Raises RuntimeError where there is none yet."""
        if self.sampler is None:
            raise RuntimeError("call runtime.sampler(dataset) first, on every rank")
        return self.sampler

    def current(self) -> Round:
        """The round that is trained on. Raises RuntimeError when none was drawn."""
        current = self.sampler.current() if self.sampler is not None else None
        if current is None:
            raise RuntimeError(
                "runtime.step() without a batch: build the loader with "
                "batch_sampler=runtime.sampler(dataset) and call step() once for each of its batches"
            )
        return current

    def scale(self) -> float:
        """Factor on this rank's gradients in the running round."""
        current = self.sampler.current() if self.sampler is not None else None
        if current is None:
            return 1.0
        group, reduction = self._parts.group, self._parts.options.loss_reduction
        samples = current.samples[group.rank]
        if self._parts.local.interval == 1:
            return contribution_scale(samples, current.total, group.ranks, reduction)
        if samples == 0:
            return 0.0
        return 1.0 if reduction == "mean" else current.total / (group.ranks * samples)

    def begin(self) -> None:
        """The next round begins."""
        group = self._parts.group
        self._parts.meter.begin(self.round, group.rank, group.ranks)

    def finish(self) -> None:
        """The running round was trained on. Collective where ranks meet."""
        parts, sampler, current = self._parts, self.dealt(), self.current()
        local, meter = parts.local, parts.meter
        local.count(current.samples)
        stepped, alone = meter.count(current.samples), local.interval > 1
        sampler.finish(stepped)
        exchanged = stepped and (not alone or local.will_exchange(current.last))
        with meter.exchanging() if exchanged and alone else contextlib.nullcontext():
            met = stepped and local.step(current.last)
        meter.end(
            self.round - self.first, current.samples[parts.group.rank], exchanged=exchanged, local=alone
        )
        self.round += 1
        if met:
            sampler.commit()
            if meter.rounds >= parts.options.decide_every or self.resize_to is not None:
                self._decide()

    def _decide(self) -> None:
        parts = self._parts
        change = parts.agreement.next_change(
            parts.meter,
            self.dealt(),
            interval=parts.local.interval,
            gpu_share=parts.share.share,
            resize_to=self.resize_to,
            trained=self.round,
        )
        self.resize_to = None
        if change is not None:
            self.carry_out(change)

    def carry_out(self, change: Change) -> None:
        """Do what all ranks agreed on."""
        if change.members is not None:
            self._regroup(change.members)
            return
        if change.shares is not None or change.moves or change.order is not None:
            self.dealt().schedule(change)
        if change.interval is not None:
            self._parts.local.change(change.interval)
        if change.gpu_share is not None:
            self._parts.share.set(change.gpu_share[self._parts.group.rank])

"""The end of a trained round: count it, exchange, decide, carry out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np

from equipoise.live.parts import Parts
from equipoise.live.train.change import RoundChange
from equipoise.live.train.sampler import Round, ShareSampler
from equipoise.live.train.weighting import contribution_scale


class Stepping:
    """The rounds of one rank, from the first to the last."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.sampler: ShareSampler | None = None
        self.round = 0  # rounds trained since the start
        self.first = 0  # of those, the ones before the checkpoint that this run began with
        self._begun_at: int | None = None  # round at which a pending decision was begun
        self._changed = False  # by the last decision
        self._given: Callable[[], list[float]] | None = None  # weights of the running round, being gathered
        self._weights: tuple[float, ...] = ()  # of every rank in the running round
        self._factor: float | None = None  # on this rank's gradients in the running round
        self._known: tuple[int, ...] = ()  # samples of the round for which the weights were computed
        self._last_weights: tuple[float, ...] = ()  # in the one before

    def dealt(self) -> ShareSampler:
        """The sampler. Raises RuntimeError if there is none yet."""
        if self.sampler is None:
            raise RuntimeError("call runtime.sampler(dataset) first, on every rank")
        return self.sampler

    def deal(self, make: Callable[..., ShareSampler]) -> ShareSampler:
        """Make the sampler. Raises RuntimeError if there is one already."""
        if self.sampler is not None:
            raise RuntimeError("a runtime has one dataset; attach another model for another dataset")
        options, group = self._parts.options, self._parts.group
        self.sampler = make(
            rank=group.rank,
            ranks=group.ranks,
            global_batch=options.global_batch,
            micro_batch=options.micro_batch,
            shards=options.shards,
            shuffle=options.shuffle,
            drop_last=options.drop_last,
            seed=options.seed,
        )
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

    def rate(self) -> float:
        """Factor on the script's learning rate in the running round, or else in the next one."""
        current = self.sampler.current() if self.sampler is not None else None
        return current.rate if current is not None else self.sampler.rate if self.sampler is not None else 1.0

    def scale(self) -> float | None:
        """Factor on this rank's gradients in the running round; None: no round was drawn."""
        if self._factor is None:
            current = self.sampler.current() if self.sampler is not None else None
            if current is None:
                return None
            self._factor = self._scale(current)
        return self._factor

    def _scale(self, current: Round) -> float:
        group, reduction = self._parts.group, self._parts.options.loss_reduction
        weights = self._weigh(current)
        mine, total = weights[group.rank], math.fsum(weights)
        if mine == 0 and reduction == "sum":
            raise ValueError(
                "loss_reduction: 'sum' is not allowed in a round without samples for this rank, which would count its "
                "stand-in; needed: bounds with a samples_min of at least 1, and at least as many samples as ranks"
            )
        if not self._parts.local.alone:
            return contribution_scale(mine, total, group.ranks, reduction)
        if mine == 0:
            return 0.0
        return total / (group.ranks * mine) if reduction == "sum" else 1.0

    def give(self, weight: float) -> None:
        """Set the weight of this rank's batch in the running round. Collective, but it does not wait.

        Raises ValueError for an invalid weight, or without `weighted`.
        """
        if not self._parts.options.weighted:
            raise ValueError("runtime.weigh() is not allowed without attach(..., weighted=True)")
        if isinstance(weight, bool) or not 0 <= float(weight) < math.inf:
            raise ValueError(f"weight: {weight} is not allowed; needed: a finite number of at least 0")
        mine = float(weight) if self.current().samples[self._parts.group.rank] else 0.0
        self._given = self._parts.group.control.gather_later(mine)
        self._weights, self._factor = (), None

    def _weigh(self, current: Round) -> tuple[float, ...]:
        """Weights of all ranks' batches in the running round; the first call waits for them."""
        if not self._parts.options.weighted:
            if current.samples is not self._known:
                self._known, self._weights = current.samples, tuple(map(float, current.samples))
        elif self._given is not None:
            with self._parts.meter.waiting():
                self._weights, self._given = tuple(self._given()), None
        elif not self._weights:
            raise ValueError("weighted: call runtime.weigh(...) for every batch on every rank, before its backward")
        return self._weights

    def mean(self, loss: float, weight: float | None = None) -> float:
        """The mean of the ranks' losses of the running or the last round, as a single process would have it.

        `weight`: of this rank's loss, in place of its samples. Collective.
        """
        known = self._weigh(self.current()) if self._parts.meter.in_round else self._last_weights
        if weight is not None:
            losses, weights = self._parts.group.control.gather(np.array([loss, weight])).T
            return float((losses * weights).sum() / weights.sum()) if weights.any() else math.nan
        losses = self._parts.group.control.gather(np.array([loss]))[:, 0]
        weights = np.array(known)
        if not weights.any():
            return math.nan
        some = weights > 0
        if self._parts.options.loss_reduction == "sum":
            return float(losses[some].sum() / len(weights))
        return float((losses[some] * weights[some]).sum() / weights.sum())

    def weight_of_loss(self) -> float:
        """Factor on this rank's loss with which the ranks' plain mean is that of a single process."""
        weights, group = self._weigh(self.current()), self._parts.group
        return contribution_scale(
            weights[group.rank], math.fsum(weights), group.ranks, self._parts.options.loss_reduction
        )

    def begin(self) -> None:
        """Begin the next round."""
        group, self._given = self._parts.group, None
        self._factor = None
        if self._parts.options.weighted:
            self._weights = ()
        self._parts.meter.begin(group.rank, group.ranks)

    def finish(self, stepped: bool | None) -> None:
        """End the running round; `stepped`: whether the optimiser stepped (None: if it was due).

        Collective if ranks exchange.
        """
        parts, sampler, current = self._parts, self.dealt(), self.current()
        local, meter = parts.local, parts.meter
        weights = self._weigh(current)
        if not parts.options.weighted:
            meter.batches.end_round(len(current.read))
        local.count(weights)
        stepped, alone = meter.count(current.samples, weights, stepped), local.alone
        sampler.finish()
        exchanges = stepped and (not alone or local.will_exchange(current.last))
        exchanged = exchanges and (not alone or local.will_meet(current.last))
        with meter.exchanging() if exchanges and alone else contextlib.nullcontext():
            met = stepped and local.step(current.last)
        meter.end(
            self.round - self.first,
            current.samples[parts.group.rank],
            exchanged=exchanged,
            local=alone,
            near=exchanges and not exchanged,
        )
        self.round, self._last_weights = self.round + 1, weights
        if met:
            self._decide()

    def _decide(self) -> None:
        """Carry out a decision that is due, and begin the next one if it is time. Collective."""
        parts = self._parts
        if self._begun_at is not None and self.round - self._begun_at >= parts.options.delay_rounds:
            self.carry_out(self._agreed())
        if self._begun_at is None and parts.meter.rounds >= self.decide_after():
            change, decides = None, parts.options.mode != "observe"
            with parts.recorder.holding():
                parts.agreement.report(
                    parts.meter,
                    self.dealt(),
                    intervals=(parts.local.interval, parts.local.far_every),
                    gpu_share=parts.share.share,
                    movement=parts.local.movement,
                    trained=self.round,
                    checks=(*parts.replicas.take(), self.dealt().checksum()),
                )
                self._begun_at = self.round if decides else None
                if decides and not parts.options.delay_rounds:
                    change = self._agreed()
            self.carry_out(change)

    def decide_after(self) -> int:
        """Rounds between decisions: fewer after a change, and at first if data lies in files, on slow paths perhaps."""
        every = self._parts.options.half if self._changed else self._parts.options.every
        return min(every, max(2, self.round // 2)) if self._parts.agreement.plane is not None else every

    def _agreed(self) -> RoundChange | None:
        """The decision, once it is due. Collective."""
        later = self.round != self._begun_at
        change = self._parts.agreement.change(self.dealt(), later=later)
        self._begun_at, self._changed = None, change is not None
        return change

    def settle(self) -> None:
        """Carry out a decision that was begun, if there is one, with all replicas equal. Collective."""
        if self._begun_at is not None:
            self._parts.local.meet()
            self.carry_out(self._agreed())
            self.begin()

    def carry_out(self, change: RoundChange | None) -> None:
        """Do what all ranks agreed on, if anything."""
        if change is None:
            return
        dealt = (change.shares, change.order, change.learning_rate)
        if change.moves or any(part is not None for part in dealt):
            self.dealt().schedule(change)
        local = self._parts.local
        if change.interval is not None or change.far_every is not None:
            local.change(change.interval or local.interval, change.far_every or local.far_every)
        if change.gpu_share is not None:
            self._parts.share.set(change.gpu_share[self._parts.group.rank])

"""A running attachment: what the script calls each round, and what happens between rounds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from equipoise.live.decide.change import Change
from equipoise.live.decide.leader import Leader, pack
from equipoise.live.decide.telemetry import Recorder, RoundInfo
from equipoise.live.decide.window import COLUMNS
from equipoise.live.group import rebuild
from equipoise.live.group.group import Group
from equipoise.live.group.places import samples_bound
from equipoise.live.group.regroup import EvictedError, Membership, RegroupError, is_transport_error
from equipoise.live.group.resync import resync
from equipoise.live.options import Options
from equipoise.live.train.devices import GPU_COLUMNS, UNKNOWN, DeviceSampler
from equipoise.live.train.gradients import BackwardProbe
from equipoise.live.train.sampler import Round, ShareSampler
from equipoise.live.train.shares import make_backend
from equipoise.live.train.sync import LocalSteps
from equipoise.live.train.timing import make_timer
from equipoise.live.train.weighting import WeightedGradients, contribution_scale
from equipoise.live.unsupported import samples_of
from equipoise.policies.contract import Policy
from equipoise.policies.observation import Floats

T = TypeVar("T")


class Runtime:
    """Made by `attach`; the script calls `sampler` once and `step` after every batch."""

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        policy: Policy | None,
        options: Options,
        membership: Membership | None,
        problem: str | None = None,
    ) -> None:
        self.options, self._policy = options, policy
        self._model, self._optimizer = model, optimizer
        self._wrapping = rebuild.wrapping(model)
        self.device = next(model.module.parameters()).device
        self.generation = 0  # regroups so far
        self.finished = False  # training ended while this member waited outside
        self._joins = membership is not None and membership.generation > 0
        self._sampler: ShareSampler | None = None
        self._round = 0
        self._computing = False  # in a forward of the running round, or past it
        self._lost_round = False
        self._resize_to: int | None = None
        self._backend = make_backend(options.share_backend, self.device)
        self._local = LocalSteps(
            model, optimizer, outer_lr=options.outer_lr, outer_momentum=options.outer_momentum
        )
        self._group = Group(
            membership,
            self.device,
            backend=self._backend,
            control_timeout_s=options.control_timeout_s,
            problem=problem,
        )
        folder = None if options.run_dir is None else options.run_dir / self.run
        self._recorder = Recorder(folder, self._group.member)
        self._devices: DeviceSampler | None = None
        if options.nvml and self.device.type == "cuda":
            report = self._recorder.event
            self._devices = DeviceSampler.for_cuda(
                self.device.index or 0, lambda problem: report("nvml", problem=problem)
            )
        self._leader: Leader | None = None
        self._lead()
        self._timer = make_timer(self.device)
        self._probe = BackwardProbe(
            model.module.parameters(), self._gradient_ready, lambda: self._timer.mark("done")
        )
        self._forward = model.register_forward_pre_hook(self._before_forward)
        own_weights = options.loss_reduction == "sum"
        self._weighting = WeightedGradients(model, self._scale, own_weights=own_weights)
        self._clear()

    def _clear(self) -> None:
        """Nothing of the running window of rounds is known."""
        self._in_window = 0  # rounds since the last optimiser step
        self._window_samples: tuple[int, ...] = ()
        self._infos: list[RoundInfo] = []
        self._squares: list[tuple[float, float]] = []

    # -- what the script sees ------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's rank in the present group."""
        return self._group.rank

    @property
    def ranks(self) -> int:
        """Ranks in the present group."""
        return self._group.ranks

    @property
    def run(self) -> str:
        """The id of this run; its record is the folder of that name in `run_dir`."""
        return self._group.run

    @property
    def round(self) -> int:
        """Rounds trained since the start."""
        return self._round

    @property
    def interval(self) -> int:
        """Local steps per exchange now."""
        return self._local.interval

    @property
    def shares(self) -> list[int]:
        """Samples of each rank in the running round; before the first, in the first."""
        if self._sampler is None:
            return []
        current = self._sampler.current()
        return [int(n) for n in (self._sampler.shares if current is None else current.samples)]

    def sampler(self, dataset: Any) -> ShareSampler:
        """The batch sampler of the training data (anything with a length, or the length itself).

        Collective: call it on every rank. Raises ValueError when ranks were given different data or options,
        which would deal some samples twice and leave ranks waiting for each other. Raises TypeError for a dataset
        whose samples have no numbers.
        """
        if self._sampler is not None:
            raise RuntimeError("one runtime deals one dataset; attach another model for another one")
        options = self.options
        self._sampler = sampler = ShareSampler(
            samples_of(dataset),
            rank=self.rank,
            ranks=self.ranks,
            global_batch=options.global_batch,
            micro_batch=options.micro_batch,
            shards=options.shards,
            shuffle=options.shuffle,
            seed=options.seed,
        )
        if self._joins:
            self._resync(None, -1)
        else:
            with self._surviving():
                self._group.same_on_all_ranks({"samples in the dataset": sampler.samples, **options.common()})
            if self._leader is not None:
                self._leader.warm_up(sampler.shares, sampler.preview())
        if self._leader is not None:
            self._leader.write_manifest(self.run, sampler, self._model.module.parameters())
        self._begin_round()
        return sampler

    def step(self) -> None:
        """The batch was trained on. Call it once per batch, after the optimiser's step (if it had one)."""
        if self._lost_round:
            self._lost_round = False
        else:
            with self._surviving():
                self._finish_round(self._require_round())
        self._begin_round()

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Batches of the running epoch from `loader`; goes on with the rest of it after a regroup."""
        epoch = None
        while not self.finished and self._sampler is not None:
            generation = self.generation
            for batch in loader:
                epoch = self._sampler.epoch if epoch is None else epoch
                yield batch
                if self.generation != generation:
                    break
            else:
                return
            if self._sampler.epoch != epoch or not self._sampler.resumes:
                return

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs still to train up to `count`; a member that joined later begins with the running one."""
        while not self.finished and self._sampler is not None:
            epoch = self._sampler.epoch + (0 if self._sampler.resumes else 1)
            if epoch >= count:
                break
            yield epoch

    @contextlib.contextmanager
    def recover(self) -> Iterator[None]:
        """Survive the loss of a rank inside the block: the group is formed anew, the round is dealt again.

        Needs `live.group.regroup.start`. Exceptions that are no broken exchange pass through.
        """
        generation = self.generation
        with self._surviving():
            yield
        self._lost_round = self.generation != generation

    def resize(self, ranks: int) -> None:
        """Go on with this many ranks from the next decision on. Call it on every rank at the same round."""
        if self._group.membership is None:
            raise RuntimeError(
                "the group can only change in a job started with equipoise.live.group.regroup.start"
            )
        self._resize_to = ranks

    def close(self) -> None:
        """Write what is buffered, stop the threads, and let the other ranks finish."""
        self._flush_rows()
        if not self.finished:
            with contextlib.suppress(RuntimeError):
                self._group.control.gather(np.zeros(1))
        if self._devices is not None:
            self._devices.close()
        if self._leader is not None:
            self._leader.close()
        self._probe.close()
        self._forward.remove()
        self._weighting.close()
        self._local.close()
        self._recorder.close()
        self._group.control.close()  # so that destroy_process_group can end its threads
        if self._group.membership is not None:
            self._group.membership.close(done=not self.finished)

    # -- hooks ---------------------------------------------------------------------------------------------

    def _before_forward(self, module: Any, arguments: Any) -> None:
        if module.training and torch.is_grad_enabled() and not self._computing:
            self._computing = True
            self._timer.mark("forward")
            try:
                self._backend.begin()
            except RuntimeError as error:  # a share that the driver refuses must not end training
                self._recorder.event("refused", lever="share", why=str(error))
                self._backend.set(1.0)
                self._gpu_share = 1.0

    def _gradient_ready(self) -> None:
        self._timer.mark("local")
        self._backend.end()

    def _scale(self) -> float:
        current = self._sampler.current() if self._sampler is not None else None
        if current is None:
            return 1.0
        samples, reduction = current.samples[self.rank], self.options.loss_reduction
        if self._local.interval == 1:
            return contribution_scale(samples, current.total, self.ranks, reduction)
        if samples == 0:
            return 0.0
        return 1.0 if reduction == "mean" else current.total / (self.ranks * samples)

    # -- a round -------------------------------------------------------------------------------------------

    def _require_round(self) -> Round:
        current = self._sampler.current() if self._sampler is not None else None
        if current is None:
            raise RuntimeError(
                "runtime.step() without a batch: build the loader with "
                "batch_sampler=runtime.sampler(dataset) and call step() once for each of its batches"
            )
        return current

    def _begin_round(self) -> None:
        window = self.options.accumulation
        ends_window = self._in_window == window - 1
        measured = ends_window and self._round // window % self.options.statistics_every == 0
        self._probe.reset()
        self._probe.part = (self.rank, self.ranks)
        self._probe.measure(measured)
        self._computing = False
        self._timer.begin_round()

    def _finish_round(self, current: Round) -> None:
        assert self._sampler is not None
        if self._in_window == 0:
            self._window_samples = current.samples
        else:
            pairs = zip(self._window_samples, current.samples, strict=True)
            self._window_samples = tuple(a + b for a, b in pairs)
        self._local.count(current.samples)
        self._in_window += 1
        stepped, local = self._in_window == self.options.accumulation, self._local.interval > 1
        self._sampler.finish(stepped)
        exchanged = stepped and (not local or self._local.will_exchange(current.last))
        if exchanged and local:
            self._timer.mark("enter")
        met = stepped and self._local.step(current.last)
        if exchanged and local:
            self._timer.mark("leave")
        self._timer.end_round()
        self._squares.append((self._probe.local_square, self._probe.mean_square))
        mine = current.samples[self.rank]
        self._infos.append(RoundInfo(self._round, mine, exchanged, local, self._window_samples))
        self._round += 1
        if stepped:
            self._in_window = 0
        if met:
            self._sampler.commit()
            if len(self._infos) >= self.options.decide_every or self._resize_to is not None:
                self._decide()

    # -- a decision ----------------------------------------------------------------------------------------

    def _take_rows(self) -> tuple[Floats, list[RoundInfo]]:
        infos, squares = self._infos, self._squares
        self._infos, self._squares = [], []
        rows = [
            (float(info.samples), *span, *square)
            for info, span, square in zip(infos, self._timer.spans(), squares, strict=True)
        ]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(COLUMNS)), infos

    def _decide(self) -> None:
        with self._recorder.holding():  # not beyond: who leads the next group reads the last decision
            payload = self._agree()
        self._resize_to = None
        if payload:
            self._carry_out(Change.from_json(payload.decode()))

    def _agree(self) -> bytes:
        """What changes, as rank 0 says; empty for nothing. Collective."""
        assert self._sampler is not None
        rows, infos = self._take_rows()
        self._recorder.rounds(rows, infos)
        self._report_refused_moves()
        device = self._devices.latest() if self._devices is not None else UNKNOWN
        free_bytes, bound = samples_bound(self.device, int(self._sampler.shares[self.rank]))
        own = (float(self._sampler.drawn), free_bytes, bound, self._gpu_share)
        header = (*own, *(device[name] for name in GPU_COLUMNS))
        gathered = self._group.control.collect(pack(header, rows))
        payload = None
        if self._leader is not None and gathered is not None:
            sampler = self._sampler
            change = self._leader.decide(
                gathered, infos, sampler.deal, sampler.planned_shares(), self._local.interval
            )
            members = self._group.wanted(change.members, self._resize_to)
            if members is not None:
                change = Change(change.round, members=members)
            elif change.members is not None:
                self._recorder.event("refused", lever="resize", why="the job was not started to be resized")
                change = replace(change, members=None)
            payload = b"" if change.is_empty() else change.to_json().encode()
            self._leader.show(self._round)
        return self._group.control.broadcast(payload)

    def _report_refused_moves(self) -> None:
        assert self._sampler is not None
        if self._sampler.refused and self._leader is not None:
            self._recorder.event("refused", lever="moves", why=list(self._sampler.refused))
        self._sampler.refused.clear()

    def _carry_out(self, change: Change) -> None:
        assert self._sampler is not None
        if change.members is not None:
            self._regroup(change.members)
            return
        if change.shares is not None or change.moves or change.order is not None:
            self._sampler.schedule(change)
        if change.interval is not None:
            self._local.change(change.interval)
        if change.gpu_share is not None:
            problem = self._backend.set(change.gpu_share[self.rank])
            if problem:
                self._recorder.event("refused", lever="share", why=problem)
            else:
                self._gpu_share = change.gpu_share[self.rank]

    def _flush_rows(self) -> None:
        rows, infos = self._take_rows()
        if infos:
            self._recorder.rounds(rows, infos)

    # -- the group -----------------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Become the rank that decides, or stop being it."""
        self._gpu_share = self._group.places[self.rank].share
        if self.rank != 0:
            if self._leader is not None:
                self._leader.close()
            self._leader = None
        elif self._leader is None:
            self._leader = Leader(self.options, self._policy, self._recorder, self._group.places)
            if self.generation > 0:
                self._leader.restore()
        if self._leader is not None:
            self._leader.set_members(self._group.places, self._group.parked)

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """Turn a broken exchange inside the block into a regroup of those who are left."""
        try:
            yield
        except Exception as error:
            if self._group.membership is None or not is_transport_error(error):
                raise
            why = str(error).partition("\n")[0]
            self._recorder.event("exchange-broken", error=why)
            try:
                self._regroup(None, why)
            except RegroupError as problem:
                error.add_note(f"equipoise: {problem}")
                raise error from problem

    def _regroup(self, target: Sequence[int] | None, why: str = "as planned") -> None:
        """Form the group anew (of `target`, or of who is left) and agree on one state."""
        assert self._sampler is not None
        began_s, before = time.perf_counter(), self._group.members
        self._flush_rows()
        boundary = self._sampler.boundary
        local_steps = self._local.interval > 1 and self._local.done > 0
        mine = rebuild.local_state(self._model) if local_steps else None
        while True:
            try:
                self._group.reform(self._model, self._wrapping, boundary, target)
                self._resync(mine, boundary)
                break
            except EvictedError as left_out:
                if not left_out.planned:
                    raise
                self.finished = True
                self.generation += 1
                return
            except Exception as error:
                if not is_transport_error(error):
                    raise
                target = None
        self.generation += 1
        self._lead()
        took_s = time.perf_counter() - began_s
        if self._leader is not None:
            self._leader.world.restart_s = took_s
            print(f"equipoise: {self._group.what_changed(before, why)}", file=sys.stderr)
        self._recorder.event("regrouped", members=self._group.members, took_s=took_s)

    def _resync(self, mine: list[torch.Tensor] | None, boundary: int) -> None:
        sampler = self._sampler
        assert sampler is not None
        extra = self.options.state
        resync(
            self._group, sampler, self._model, self._optimizer, self._local, extra, mine, boundary
        )  # fmt: skip
        self._round = sampler.trained
        self._joins = False
        self._clear()

"""The working state of one decision that allocates GPUs in several steps."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from equipoise.policies.contract import Allocation
from equipoise.policies.kernels.gangs import NO_ROWS, NO_VALUES, SHARED, GrantColumns, RoomColumns, frozen, node_models
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.kernels.placement import WHOLE, give, take
from equipoise.policies.observation import RUNNING, WAITING, Bools, Floats, Ints, Observation


@jit_in_place
def _book(free: Ints, room: Floats, gpu_node: Ints, gpu: Ints, share: Floats) -> None:
    for e in range(gpu.size):
        take(free, room, gpu_node[gpu[e]], gpu[e], share[e])


@jit_in_place
def _hold(holder: Ints, job: Ints, offset: Ints, gpu: Ints, share: Floats) -> None:
    for k in range(job.size):
        for e in range(offset[k], offset[k + 1]):
            holder[gpu[e]] = job[k] if share[e] >= WHOLE else SHARED


@jit_in_place
def _unbook(free: Ints, room: Floats, holder: Ints, gpu_node: Ints, up: Bools, gpu: Ints, share: Floats) -> None:
    for e in range(gpu.size):
        g = gpu[e]
        if not up[gpu_node[g]]:
            continue
        give(free, room, gpu_node[g], g, share[e])
        if room[g] >= WHOLE:
            holder[g] = -1


class Proposal:
    """Free GPUs, holders of GPUs, and the decisions so far; starts from the observation."""

    def __init__(
        self,
        observation: Observation,
        weight: Floats = NO_VALUES,
        group: Ints | None = None,
        order: Ints = NO_ROWS,
        avoided: Bools | None = None,
        speed: Floats | None = None,
    ) -> None:
        """`avoided` GPUs, by row, are not allocated. speed: of nodes, relative."""
        o = observation
        self.observation, self.avoided = o, avoided
        self.speed: Floats = np.ones(len(o.nodes)) if speed is None else speed
        self._free, self._room = o.nodes.gpus_free.copy(), o.gpus.share_free.copy()
        if avoided is not None:
            self._free -= np.bincount(o.gpus.node, avoided & (o.gpus.job == -1), len(o.nodes)).astype(np.int64)
            np.maximum(self._free, 0, out=self._free)  # of a node that is down none is free anyway
            self._room[avoided] = 0.0
        self.columns = RoomColumns(
            o.nodes.first_gpu,
            o.nodes.gpus,
            o.nodes.up,
            frozen(self._free),
            frozen(self._room),
            o.gpus.memory_bytes,
            frozen(weight),
            frozen(self.speed),
            node_models(o) if group is None else frozen(group),
            frozen(order),
        )
        self._touched = np.zeros(len(o.jobs), dtype=np.bool_)
        self.stopped: list[int] = []
        self.given: dict[int, tuple[Ints, Floats]] = {}
        self._booked: list[GrantColumns] = []  # what `holder` has not heard of

    @cached_property
    def _holder(self) -> Ints:
        """Holder of each GPU; computed on first use, because most decisions do not need it."""
        return self.observation.gpus.job.copy()

    @property
    def holder(self) -> Ints:
        """Job row that holds each GPU alone now, (GPUs,); -1: none, `SHARED`: several."""
        for grants in self._booked:
            _hold(self._holder, *grants)
        self._booked.clear()
        return frozen(self._holder)

    @property
    def free(self) -> int:
        """Whole GPUs that are free now."""
        return int(self._free.sum())

    def without_free(self) -> RoomColumns:
        """The room in which nothing is free: only GPUs released by running jobs can be allocated."""
        free, room = np.zeros_like(self._free), np.zeros_like(self._room)
        return self.columns._replace(free=frozen(free), room=frozen(room))

    def gpus_of(self, job: int) -> tuple[Ints, Floats]:
        """GPUs that a job row holds now, and its share of each; the shared GPUs of a rigid job are unknown."""
        if job in self.given:
            return self.given[job]
        o = self.observation
        gpu = np.flatnonzero(self.holder == job)
        workers = o.workers_of(job)
        partly = o.gpus.job[o.workers.gpu[workers]] == SHARED
        gpu = np.concatenate((gpu, o.workers.gpu[workers][partly])).astype(np.int64)
        return gpu, np.concatenate((np.ones(len(gpu) - partly.sum()), o.workers.gpu_share[workers][partly]))

    def start(self, grants: GrantColumns) -> Ints:
        """Allocate GPUs to jobs that hold none; returns their rows."""
        job, offset, gpu, share = grants
        self._book(job, offset, gpu, share)
        ends = offset.tolist()
        for row, first, end in zip(job.tolist(), ends, ends[1:], strict=False):
            self.given[row] = (gpu[first:end], share[first:end])
        return job

    def stop(self, rows: Iterable[int]) -> None:
        """Take all GPUs from running jobs."""
        for row in rows:
            self._take(*self.gpus_of(row))
            self.given.pop(row, None)
            self.stopped.append(row)
            self._touched[row] = True

    def stop_whole(self, rows: Ints, gpu: Ints) -> None:
        """Take from running jobs without shared GPUs all their GPUs (`gpu`, of all jobs)."""
        self._take(gpu, np.ones(len(gpu)))
        self.stopped += rows.tolist()
        self._touched[rows] = True

    def resize(self, row: int, held: Ints, gpu: Ints) -> None:
        """Replace the GPUs of a job by the whole GPUs `gpu`."""
        self._take(held, np.ones(len(held)))
        share = np.ones(len(gpu))
        self._book(np.array([row]), np.array([0, len(gpu)]), gpu, share)
        self.given[row] = (gpu, share)

    def _take(self, gpu: Ints, share: Floats) -> None:
        o = self.observation
        if self.avoided is not None:
            keep = ~self.avoided[gpu]
            gpu, share = gpu[keep], share[keep]
        _ = self.holder  # as it is by now
        _unbook(self._free, self._room, self._holder, o.gpus.node, o.nodes.up, gpu, share)

    def _book(self, job: Ints, offset: Ints, gpu: Ints, share: Floats) -> None:
        _book(self._free, self._room, self.observation.gpus.node, gpu, share)
        self._booked.append((job, offset, gpu, share))
        self._touched[job] = True

    def allocation(self) -> Allocation | None:
        """All decisions so far as an allocation; None without any."""
        if not self.stopped and not self.given:
            return None
        gpus, shares = zip(*self.given.values(), strict=True) if self.given else ((), ())
        count = np.zeros(1 + len(self.stopped) + len(gpus), dtype=np.int64)
        count[1 + len(self.stopped) :] = [len(gpu) for gpu in gpus]
        return Allocation(
            np.array([*self.stopped, *self.given], dtype=np.int64),
            np.cumsum(count),
            np.concatenate((NO_ROWS, *gpus)).astype(np.int64),
            np.concatenate((NO_VALUES, *shares)),
        )

    def started(self) -> Ints:
        """Rows of the waiting jobs that start."""
        return self._given(WAITING)

    def resized(self) -> Ints:
        """Rows of the running jobs that get other GPUs."""
        return self._given(RUNNING)

    def _given(self, state: int) -> Ints:
        if not self.given:
            return NO_ROWS
        rows = np.fromiter(self.given, dtype=np.int64, count=len(self.given))
        found: Ints = rows[self.observation.jobs.state[rows] == state]
        return found

    def leave(self, rows: Ints) -> None:
        """Mark these job rows as decided: they keep their present GPUs."""
        self._touched[rows] = True

    def touched(self, rows: Ints) -> Bools:
        """Whether each job row is decided: started, resized, stopped or left unchanged."""
        return np.asarray(self._touched[rows])

"""Timeline of a run, recorded on request: segments of jobs, cluster use, links, faults.

Accounts of training jobs are known at the ends of periods that something looked at (a decision, a checkpoint, a
stop); what was booked between two looks is charged evenly over the time between them. Work that a fault takes
back counts as lost for the time at which it was done, so it stays open until a checkpoint makes it last.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.cluster.meter import Meter
from equipoise.sim.job.account import BUSY, HELD, LOST_TO_FAULTS, RESTART, WORK
from equipoise.sim.job.demand import Demand
from equipoise.sim.job.job import Job
from equipoise.sim.job.listener import Listener
from equipoise.sim.ledger.buckets import Buckets
from equipoise.sim.ledger.tables import (
    DOWN_GPU_S,
    DOWN_J,
    DYNAMIC_J,
    NETWORK_BYTES,
    QUEUED,
    REASONS,
    ROW_FIELDS,
    RUNNING,
    USAGE_COLUMNS,
    Holdings,
    Records,
    build,
)
from equipoise.sim.network.transfers import Transfer

Tables = Mapping[str, Mapping[str, NDArray[Any]]]
_COALESCE = 64
_REASON = {name: code for code, name in enumerate(REASONS)}
_NO_USE = (0.0,) * HELD


@dataclass(slots=True)
class TimelineStretch:
    """Booked GPU-seconds by use over an interval, not yet known to last."""

    start_s: float
    end_s: float
    gpu_s: Floats


@dataclass(slots=True)
class _Open:
    """A running job's state since it got its GPUs, and since its last update."""

    segment: int
    start_s: float
    holding: Holding
    account: list[float]  # by use, as the segment began
    looked_s: float
    looked_j: float
    looked: Floats | list[float]  # the account then
    looked_traffic: tuple[float, int]
    to_be_written: list[TimelineStretch] = field(default_factory=list)  # held by the checkpoint under way
    unsaved: list[TimelineStretch] = field(default_factory=list)


class Timeline(Listener):
    """Records a run. `can_lose`: whether faults can take back what was done; uses: of features that hold GPUs."""

    def __init__(
        self, demand: Demand, cluster: Cluster, meter: Meter, *, can_lose: bool, uses: Sequence[str] = ()
    ) -> None:
        self.demand, self.cluster, self.meter, self._can_lose = demand, cluster, meter, can_lose
        self.origin_s = float(demand.arrival_s[0])
        self._column = {use: len(USAGE_COLUMNS) + k for k, use in enumerate(uses)}
        self._beside: set[str] = set()
        self.usage = Buckets(len(USAGE_COLUMNS) + len(uses), self.origin_s)
        self.network = Buckets(8, self.origin_s)
        self._link_column: dict[int, int] = {}
        self._segments = array("d")
        self._holdings = Holdings()
        self._count = [0] * len(demand)  # segments of each job
        self._queued_s: list[float] = demand.arrival_s.tolist()
        self._open: dict[int, _Open] = {}
        self._events: list[tuple[float, str, str, float]] = []
        self._down_s: dict[int, float] = {}

    # -- jobs ----------------------------------------------------------------------------------------------

    def began(self, job: Job, holding: Holding, now_s: float) -> None:
        """A job gets GPUs and leaves the queue."""
        queued_s = self._queued_s[job.row]
        if now_s > queued_s:
            self._queued(job.row, queued_s, now_s, "started")
        row, account = job.row, job.gpu_s.tolist()[:HELD]
        drawn_j = self.meter.drawn_j(row, job.computed_gpu_s)
        self._open[row] = _Open(self._count[row], now_s, holding, account, now_s, drawn_j, account, job.traffic)
        self._count[row] += 1

    def ended(self, job: Job, reason: str, now_s: float) -> None:
        """A job has given back its GPUs."""
        row, opened = job.row, self._open.pop(job.row)
        used = self._segment(job, opened, now_s, reason)
        if job.rigid:
            self._charge_rigid(row, opened, now_s, used)
        elif reason == "fault":
            self._lose(job, opened, now_s)
        else:
            self._look(job, opened, now_s)
        self.usage.add(opened.start_s, now_s, RUNNING, now_s - opened.start_s)
        self._commit(opened.to_be_written + opened.unsaved)
        self._queued_s[row] = now_s

    def _queued(self, row: int, start_s: float, end_s: float, reason: str) -> None:
        self._segments.extend((row, self._count[row], 0, start_s, end_s, 0, 0, -1, _REASON[reason], *_NO_USE))
        self._count[row] += 1
        self.usage.add(start_s, end_s, QUEUED, end_s - start_s)

    def _segment(self, job: Job, opened: _Open, end_s: float, reason: str) -> list[float]:
        """Add a running segment; returns its GPU time by use."""
        used = [after - before for after, before in zip(job.gpu_s.tolist(), opened.account, strict=False)]
        held, gpus = opened.holding, opened.holding.gpu.size
        self._segments.extend(
            (
                job.row,
                opened.segment,
                1,
                opened.start_s,
                end_s,
                gpus,
                held.nodes.size,
                held.gpu.item() if gpus == 1 else int(held.gpu.min()),
                _REASON[reason],
                *used,
            )
        )
        self._holdings.add(job.row, opened.segment, held.gpu, held.share)
        return used

    def _charge_rigid(self, row: int, opened: _Open, end_s: float, used: list[float]) -> None:
        """A rigid job first starts, then computes; what a fault took back was computed last."""
        begin_s = lost_s = opened.start_s
        add, meter, share = self.usage.add, self.meter, opened.holding.share
        if used[RESTART] or used[LOST_TO_FAULTS]:
            weight = float(share.sum())
            begin_s = min(end_s, opened.start_s + used[RESTART] / weight)
            lost_s = max(begin_s, end_s - used[LOST_TO_FAULTS] / weight)
            add(opened.start_s, begin_s, RESTART, used[RESTART])
            add(lost_s, end_s, LOST_TO_FAULTS, used[LOST_TO_FAULTS])
        add(begin_s, lost_s if used[LOST_TO_FAULTS] else end_s, BUSY, used[BUSY])
        energy_j = meter.of_account_j(used[BUSY] + used[LOST_TO_FAULTS])
        if meter.varies:
            energy_j = meter.dynamic_j.item(row) - opened.looked_j
        add(begin_s, end_s, DYNAMIC_J, energy_j)

    # -- training jobs between their ends --------------------------------------------------------------------

    def looked_at(self, job: Job, now_s: float) -> None:
        """A running training job's account is up to date: charge what is new in it."""
        opened, until_s = self._open.get(job.row), job.booked_until_s
        if opened is not None and opened.looked_s < until_s <= now_s:
            self._look(job, opened, until_s)

    def checkpointing(self, job: Job, now_s: float) -> None:
        """A checkpoint begins to be written."""
        opened, until_s = self._open[job.row], job.booked_until_s
        if opened.looked_s < until_s <= now_s:  # else it has not restarted yet
            self._look(job, opened, until_s)
        opened.to_be_written += opened.unsaved
        opened.unsaved = []

    def checkpointed(self, job: Job, now_s: float) -> None:
        """A checkpoint is written, so its work can no longer be lost."""
        opened = self._open[job.row]
        self._commit(opened.to_be_written)
        opened.to_be_written = []

    def _look(self, job: Job, opened: _Open, end_s: float) -> None:
        account = job.gpu_s[:HELD].copy()
        energy_j = self.meter.drawn_j(job.row, job.computed_gpu_s) + self.meter.would_draw_j(
            job.row, *job.not_metered()
        )
        stretch = TimelineStretch(opened.looked_s, end_s, account - opened.looked)
        self._carried(job, opened, end_s)
        self.usage.add(opened.looked_s, end_s, DYNAMIC_J, energy_j - opened.looked_j)
        opened.looked_s, opened.looked_j = end_s, energy_j
        opened.looked = account
        opened.unsaved.append(stretch)
        if not self._can_lose:
            self._commit(opened.unsaved)
            opened.unsaved = []
        elif len(opened.unsaved) >= _COALESCE:
            pairs = zip(opened.unsaved[::2], opened.unsaved[1::2], strict=True)
            opened.unsaved = [TimelineStretch(a.start_s, b.end_s, a.gpu_s + b.gpu_s) for a, b in pairs]

    def _lose(self, job: Job, opened: _Open, end_s: float) -> None:
        """Mark unsaved work as lost after a crash; the account has it already."""
        taken = np.zeros(HELD)
        for stretch in opened.to_be_written + opened.unsaved:
            work = stretch.gpu_s[:WORK]
            taken[:WORK] += work
            stretch.gpu_s[LOST_TO_FAULTS] += float(work.sum())
            work[:] = 0.0
        opened.looked = np.asarray(opened.looked) - taken
        opened.looked[LOST_TO_FAULTS] += float(taken.sum())
        self._look(job, opened, end_s)

    def _commit(self, stretches: list[TimelineStretch]) -> None:
        for stretch in stretches:
            for use, amount in enumerate(stretch.gpu_s.tolist()):
                self.usage.add(stretch.start_s, stretch.end_s, use, amount)

    # -- network ---------------------------------------------------------------------------------------------

    def _carried(self, job: Job, opened: _Open, end_s: float) -> None:
        volume, links, amounts = job.on_links(opened.looked_traffic)
        opened.looked_traffic = job.traffic
        if volume:
            self._on_links(opened.looked_s, end_s, links, amounts.tolist())
            self.usage.add(opened.looked_s, end_s, NETWORK_BYTES, volume)

    def transferred(self, transfer: Transfer, now_s: float) -> None:
        """A transfer of data has arrived."""
        amount = transfer.size_bytes
        self._on_links(transfer.begin_s, now_s, transfer.links, [amount] * len(transfer.links))
        self.usage.add(transfer.begin_s, now_s, NETWORK_BYTES, amount)

    def _on_links(self, start_s: float, end_s: float, links: Ints, amounts: list[float]) -> None:
        for link, amount in zip(links.tolist(), amounts, strict=True):
            column = self._link_column.setdefault(link, len(self._link_column))
            if column >= self.network.totals.shape[1]:
                self.network.grow(column + 1)
            self.network.add(start_s, end_s, column, amount)

    # -- features --------------------------------------------------------------------------------------------

    def used(self, use: str, start_s: float, end_s: float, gpu_s: float, dynamic_j: float) -> None:
        """Record GPU-seconds that a feature held for a use, and its energy above idle."""
        self._beside.add(use)
        self.usage.add(start_s, end_s, self._column[use], gpu_s)
        self.usage.add(start_s, end_s, DYNAMIC_J, dynamic_j)

    # -- faults ----------------------------------------------------------------------------------------------

    def happened(self, kind: str, subject: str, value: float, now_s: float) -> None:
        """Something that a reader of the timeline should see."""
        self._events.append((now_s, kind, subject, value))

    def node_down(self, node: int, now_s: float) -> None:
        """A node is down from now on."""
        self._down_s[node] = max(self.origin_s, now_s)

    def node_up(self, node: int, now_s: float) -> None:
        """A node is back."""
        start_s, end_s = self._down_s.pop(node), max(self.origin_s, now_s)
        gpus, power = self.cluster.nodes.gpus, self.meter.power
        self.usage.add(start_s, end_s, DOWN_GPU_S, float(gpus[node]) * (end_s - start_s))
        self.usage.add(start_s, end_s, DOWN_J, float(power.idling_w(gpus)[node]) * (end_s - start_s))

    # -- the end -----------------------------------------------------------------------------------------------

    def tables(self, end_s: float, now_s: float, waiting: Ints, pue: float) -> Tables:
        """All tables, by file name; call once, when the run has ended. waiting: rows of jobs in the queue."""
        for row in waiting.tolist():
            self._queued(row, self._queued_s[row], end_s, "open")
        for node in list(self._down_s):
            self.node_up(node, now_s)
        self.usage.flush()
        self.usage.widen(end_s - self.origin_s)
        self.network.flush()
        self.network.widen(self.usage.width_s * len(self.usage.totals))
        segments = np.array(self._segments).reshape(-1, ROW_FIELDS)
        records = Records(
            segments,
            self._holdings,
            self.usage,
            self.network,
            self._link_column,
            self._events,
            end_s,
            {use: column for use, column in self._column.items() if use in self._beside},
        )
        idling_w = float(self.meter.power.idling_w(self.cluster.nodes.gpus).sum())
        return build(self.demand, self.cluster, idling_w, pue, records)

"""What happened when: stretches of jobs on GPUs, the cluster's use over time, links, faults. Only when asked for.

Accounts of training jobs are known at the ends of periods that something looked at (a decision, a checkpoint, a
stop); what was booked between two looks is charged evenly over the time between them. Work that a fault takes
back counts as lost for the time at which it was done, so it stays open until a checkpoint makes it last.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from policies.observation import Floats
from sim.buckets import Buckets
from sim.cluster import Holding
from sim.job import BUSY, EXPOSED, LOST, RESTART
from sim.timeline_tables import (
    DOWN_GPU_S,
    DOWN_J,
    DYNAMIC_J,
    NETWORK_BYTES,
    QUEUED,
    REASONS,
    ROW_FIELDS,
    RUNNING,
    USAGE_COLUMNS,
    USES,
    Holdings,
    build,
)
from sim.transfer import Transfer

if TYPE_CHECKING:
    from sim.job import TrainingJob
    from sim.world import SimWorld

Tables = Mapping[str, Mapping[str, NDArray[Any]]]
_COALESCE = 64
_NOTHING: Floats = np.zeros(USES)
_REASON = {name: code for code, name in enumerate(REASONS)}
_NO_USE = (0.0,) * USES


@dataclass(slots=True)
class Stretch:
    """Booked GPU-seconds by use over an interval, not yet known to last."""

    start_s: float
    end_s: float
    gpu_s: Floats


@dataclass(slots=True)
class _Open:
    """A running job since it got its GPUs, and since it was last looked at."""

    segment: int
    start_s: float
    holding: Holding
    account: list[float]  # by use, as the segment began
    earlier: list[int]  # rows of the job's earlier segments whose work may still be lost
    looked_s: float
    looked_j: float
    looked: Floats = field(default_factory=lambda: _NOTHING)  # the account then; training jobs only
    looked_exchanges: int = 0
    to_be_written: list[Stretch] = field(default_factory=list)  # held by the checkpoint under way
    unsaved: list[Stretch] = field(default_factory=list)


class Timeline:
    """Records a run; the world tells it what happens."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.origin_s = float(world.demand.arrival_s[0])
        self.usage = Buckets(len(USAGE_COLUMNS), self.origin_s)
        self.network = Buckets(8, self.origin_s)
        self._link_column: dict[int, int] = {}
        self._segments = array("d")
        self._holdings = Holdings()
        self._count = [0] * len(world.demand)  # segments of each job
        self._queued_s: list[float] = world.demand.arrival_s.tolist()
        self._open: dict[int, _Open] = {}
        self._events: list[tuple[float, str, str, float]] = []
        self._down_s: dict[int, float] = {}
        faults = world.scenario.faults
        self._can_lose = faults != type(faults)()

    # -- jobs ----------------------------------------------------------------------------------------------

    def begins(self, row: int, holding: Holding) -> None:
        """A job gets GPUs: it leaves the queue, or goes on with fewer."""
        world, now_s = self.world, self.world.clock._now
        queued_s, before = self._queued_s[row], self._open.pop(row, None)
        if before is None and now_s > queued_s:
            self._queued(row, queued_s, now_s, "started")
        account, job = world.account(row)[0], world.training.get(row)
        drawn_j = world.meter.dynamic_j.item(row) if job is None else world.meter.booked_j(job)
        opened = _Open(
            self._count[row], now_s, holding, account.tolist()[:USES],
            before.earlier if before is not None else [], now_s, drawn_j,
        )  # fmt: skip
        self._open[row] = opened
        self._count[row] += 1
        if job is not None:
            opened.looked, opened.looked_exchanges = account[:USES].copy(), job.account.exchanges
            if before is not None:
                opened.unsaved = before.to_be_written + before.unsaved

    def ends(self, row: int, reason: str) -> None:
        """A job has given back its GPUs."""
        now_s, opened = self.world.clock._now, self._open[row]
        account, job = self.world.account(row)[0].tolist(), self.world.training.get(row)
        used = [after - before for after, before in zip(account, opened.account, strict=False)]
        self._segment(row, opened, now_s, reason, used)
        if job is None:
            self._charge_rigid(row, opened, now_s, used)
        elif reason == "fault" and job.holding is None:
            self._lose(job, opened, now_s)
        else:
            self._look(job, opened, now_s)
        self.usage.add(opened.start_s, now_s, RUNNING, now_s - opened.start_s)
        if reason == "fault" and job is not None and job.holding is not None:
            return  # it goes on with the workers that are left
        self._commit(opened.to_be_written + opened.unsaved)
        del self._open[row]
        self._queued_s[row] = now_s

    def _queued(self, row: int, start_s: float, end_s: float, reason: str) -> None:
        self._segments.extend((row, self._count[row], 0, start_s, end_s, 0, 0, -1, _REASON[reason], *_NO_USE))
        self._count[row] += 1
        self.usage.add(start_s, end_s, QUEUED, end_s - start_s)

    def _segment(self, row: int, opened: _Open, end_s: float, reason: str, used: list[float]) -> None:
        """Add a running segment."""
        if opened.earlier and min(used[: EXPOSED + 1]) < 0.0:
            used = self._taken_back(opened.earlier, used)
        held, gpus = opened.holding, opened.holding.gpu.size
        opened.earlier.append(len(self._segments) // ROW_FIELDS)
        self._segments.extend((
            row, opened.segment, 1, opened.start_s, end_s, gpus, held.nodes.size,
            held.gpu.item() if gpus == 1 else int(held.gpu.min()), _REASON[reason], *used,
        ))  # fmt: skip
        self._holdings.add(row, opened.segment, held.gpu, held.share)

    def _taken_back(self, earlier: list[int], used: list[float]) -> list[float]:
        """A fault has taken back more than this segment did: that is lost in the segments before it."""
        used = used.copy()
        for use in range(BUSY, EXPOSED + 1):
            for index in reversed(earlier):
                if used[use] >= 0.0:
                    break
                at = index * ROW_FIELDS + ROW_FIELDS - USES
                taken = min(-used[use], self._segments[at + use])
                self._segments[at + use] -= taken
                self._segments[at + LOST] += taken
                used[use] += taken
                used[LOST] -= taken
        return used

    def _charge_rigid(self, row: int, opened: _Open, end_s: float, used: list[float]) -> None:
        """A rigid job first starts, then computes; what a fault took back was computed last."""
        begin_s = lost_s = opened.start_s
        add, meter, share = self.usage.add, self.world.meter, opened.holding.share
        if used[RESTART] or used[LOST]:
            weight = float(share.sum())
            begin_s = min(end_s, opened.start_s + used[RESTART] / weight)
            lost_s = max(begin_s, end_s - used[LOST] / weight)
            add(opened.start_s, begin_s, RESTART, used[RESTART])
            add(lost_s, end_s, LOST, used[LOST])
        add(begin_s, lost_s if used[LOST] else end_s, BUSY, used[BUSY])
        energy_j = meter.of_account_j(used[BUSY] + used[LOST])
        if meter.varies:
            energy_j = meter.dynamic_j.item(row) - opened.looked_j
        add(begin_s, end_s, DYNAMIC_J, energy_j)

    # -- training jobs between their ends --------------------------------------------------------------------

    def looked_at(self, job: TrainingJob) -> None:
        """A running training job's account is up to date: charge what is new in it."""
        opened, now_s = self._open.get(job.row), self.world.clock.now
        if opened is not None and opened.looked_s < job.period_start_s <= now_s:
            self._look(job, opened, job.period_start_s)

    def checkpointing(self, job: TrainingJob) -> None:
        """A checkpoint begins to be written."""
        opened = self._open[job.row]
        if opened.looked_s < job.period_start_s <= self.world.clock.now:  # else it has not restarted yet
            self._look(job, opened, job.period_start_s)
        opened.to_be_written += opened.unsaved
        opened.unsaved = []

    def checkpointed(self, job: TrainingJob) -> None:
        """A checkpoint is written: what it holds lasts."""
        opened = self._open[job.row]
        self._commit(opened.to_be_written)
        opened.to_be_written = []
        opened.earlier = []

    def _look(self, job: TrainingJob, opened: _Open, end_s: float) -> None:
        account, energy_j = job.account.gpu_s[:USES], self.world.meter.so_far_j(job)
        stretch = Stretch(opened.looked_s, end_s, account - opened.looked)
        self._carried(job, opened, end_s)
        self.usage.add(opened.looked_s, end_s, DYNAMIC_J, energy_j - opened.looked_j)
        opened.looked_s, opened.looked_j = end_s, energy_j
        opened.looked[:] = account
        opened.unsaved.append(stretch)
        if not self._can_lose:
            self._commit(opened.unsaved)
            opened.unsaved = []
        elif len(opened.unsaved) >= _COALESCE:
            pairs = zip(opened.unsaved[::2], opened.unsaved[1::2], strict=True)
            opened.unsaved = [Stretch(a.start_s, b.end_s, a.gpu_s + b.gpu_s) for a, b in pairs]

    def _lose(self, job: TrainingJob, opened: _Open, end_s: float) -> None:
        """A crash: what was not saved is lost, and the account already says so."""
        taken = np.zeros(USES)
        for stretch in opened.to_be_written + opened.unsaved:
            work = stretch.gpu_s[: EXPOSED + 1]
            taken[: EXPOSED + 1] += work
            stretch.gpu_s[LOST] += float(work.sum())
            work[:] = 0.0
        opened.looked -= taken
        opened.looked[LOST] += float(taken.sum())
        self._look(job, opened, end_s)

    def _commit(self, stretches: list[Stretch]) -> None:
        for stretch in stretches:
            for use, amount in enumerate(stretch.gpu_s.tolist()):
                self.usage.add(stretch.start_s, stretch.end_s, use, amount)

    # -- network ---------------------------------------------------------------------------------------------

    def _carried(self, job: TrainingJob, opened: _Open, end_s: float) -> None:
        exchange = job.exchange
        volume = (job.account.exchanges - opened.looked_exchanges) * exchange.volume_bytes
        opened.looked_exchanges = job.account.exchanges
        if volume:
            amounts = (volume * exchange.usage).tolist()
            self._on_links(opened.looked_s, end_s, exchange.links.tolist(), amounts)
            self.usage.add(opened.looked_s, end_s, NETWORK_BYTES, volume)

    def transferred(self, transfer: Transfer) -> None:
        """A transfer of data has arrived."""
        now_s, amount = self.world.clock.now, transfer.size_bytes
        self._on_links(transfer.begin_s, now_s, transfer.links.tolist(), [amount] * len(transfer.links))
        self.usage.add(transfer.begin_s, now_s, NETWORK_BYTES, amount)

    def _on_links(self, start_s: float, end_s: float, links: list[int], amounts: list[float]) -> None:
        for link, amount in zip(links, amounts, strict=True):
            column = self._link_column.setdefault(link, len(self._link_column))
            if column >= self.network.totals.shape[1]:
                self.network.grow(column + 1)
            self.network.add(start_s, end_s, column, amount)

    # -- faults ----------------------------------------------------------------------------------------------

    def happened(self, kind: str, subject: str, value: float) -> None:
        """Something that a reader of the timeline should see."""
        self._events.append((self.world.clock.now, kind, subject, value))

    def node_down(self, node: int) -> None:
        """A node is down from now on."""
        self._down_s[node] = max(self.origin_s, self.world.clock.now)

    def node_up(self, node: int) -> None:
        """A node is back."""
        start_s, end_s = self._down_s.pop(node), max(self.origin_s, self.world.clock.now)
        gpus = float(self.world.cluster.nodes.gpus[node])
        self.usage.add(start_s, end_s, DOWN_GPU_S, gpus * (end_s - start_s))
        self.usage.add(start_s, end_s, DOWN_J, self.world.idle_w(node) * (end_s - start_s))

    # -- the end -----------------------------------------------------------------------------------------------

    def tables(self, end_s: float) -> Tables:
        """All tables, by file name; call once, when the run has ended."""
        world = self.world
        for row in world.waiting.rows.tolist():
            self._queued(row, self._queued_s[row], end_s, "open")
        for node in list(self._down_s):
            self.node_up(node)
        self.usage.flush()
        self.usage.widen(end_s - self.origin_s)
        self.network.flush()
        self.network.widen(self.usage.width_s * len(self.usage.totals))
        return build(
            world, np.array(self._segments).reshape(-1, ROW_FIELDS), self._holdings, self.usage, self.network,
            self._link_column, self._events, end_s,
        )  # fmt: skip

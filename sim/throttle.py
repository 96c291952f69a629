"""Clocks below the highest: power caps of GPUs and of the cluster, and GPUs that get too hot.

    dT/dt = (power * R - (T - T_ambient)) / tau          clock = 1 - slope * (T - T_throttle) above T_throttle

Between two looks the power is constant, so the temperature is exact there. A node computes at the clock of its
hottest GPU, held or not; a lower clock acts as a fail-slow factor does, from the running period's end on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from simpy.events import Event

from policies.observation import Floats
from sim.clock import DECISION
from sim.energy import EXPONENT, NodePower, clock_under_cap

if TYPE_CHECKING:
    from sim.job import TrainingJob
    from sim.world import SimWorld

_SAME_CLOCK = 1e-3
"""Clocks that differ by less are left as they are."""


def shared_clock(
    power: NodePower, up: Floats, held: Floats, gpus: Floats, limit: Floats, cap_w: float
) -> Floats:
    """Clocks (nodes,) at which the cluster draws at most `cap_w` when every held GPU computes all the time.

    All clocks are the same but where `limit` (nodes,) is lower. up, held, gpus (nodes,): whether the node is up,
    its GPUs that jobs hold, and all it has. The idle draw must be below the cap.
    """
    idle_w = float((up * (gpus * power.idle_w + power.base_w)).sum())
    span_w = up * held * (power.max_w - power.idle_w)
    clock = limit.copy()
    free = span_w > 0.0
    while free.any():
        fixed_w = float((span_w * clock**EXPONENT)[~free].sum())
        left = max(0.0, cap_w - idle_w - fixed_w) / float(span_w[free].sum())
        common = min(1.0, left) ** (1.0 / EXPONENT)
        below = free & (limit < common)
        if not below.any():
            clock[free] = common
            break
        free &= ~below
    return clock


def warmed(temperature_c: Floats, settles_c: Floats, tau_s: Floats, seconds: float) -> Floats:
    """Temperatures after so many seconds at constant power; `settles_c` is where they would end."""
    after: Floats = settles_c + (temperature_c - settles_c) * np.exp(-seconds / tau_s)
    return after


@dataclass(slots=True)
class _Seen:
    """A training job at the last look: how busy each of its workers was until then."""

    generation: int
    at_s: float
    busy_s: Floats
    utilisation: Floats


class Throttle:
    """Sets the clocks of a world's nodes. Does nothing, at no cost, unless the scenario asks for it."""

    def __init__(self, world: SimWorld) -> None:
        self.world, energy = world, world.scenario.energy
        power = self.power = world.meter.power
        self.limit = np.ones(len(power.idle_w))  # by the cap of each GPU
        if energy.power_cap is not None:
            self.limit = clock_under_cap(power.idle_w, power.max_w, energy.power_cap)
        self.cap_w, self.thermal = energy.cluster_power_cap, world.scenario.thermal
        self.hot = np.ones(len(self.limit))  # clocks that heat allows
        self._pending: Event | None = None
        self._ticking = False
        self.next_look_s = math.inf
        if self.thermal is not None:
            self._prepare_heat()
        world.set_clocks(self.limit)

    @property
    def varies(self) -> bool:
        """Whether clocks change as the run goes on."""
        return self.cap_w is not None or self.thermal is not None

    def changed(self) -> None:
        """Jobs have taken or given back GPUs, or nodes have come or gone."""
        if self.cap_w is not None and self._pending is None:
            self._pending = self.world.clock.at(self.world.clock.now, self._share_out, DECISION)
        if self.thermal is not None and not self._ticking and self.world.running:
            self._ticking = True
            self._warm(utilised=False)  # it has been cooling since
            self._next_look()

    def _share_out(self, _: Event | None) -> None:
        self._pending = None
        clock = np.minimum(self.limit, self.hot)
        if self.cap_w is not None:
            cluster = self.world.cluster
            clock = shared_clock(
                self.power, cluster.up.astype(float), cluster.held_gpus(), cluster.nodes.gpus.astype(float),
                clock, self.cap_w,
            )  # fmt: skip
        self.world.set_clocks(clock)

    # -- heat ------------------------------------------------------------------------------------------------

    def _prepare_heat(self) -> None:
        cluster, ambient_c = self.world.cluster, self.world.scenario.energy.ambient
        rows = []
        for a in cluster.accelerators:
            parts = (a.thermal_c_per_w, a.tau_s, a.throttle_c, a.throttle_slope)
            rows.append([np.nan if part is None else part.value for part in parts])
        per_gpu = np.array(rows)[cluster.gpus.model].T
        self.c_per_w, self.tau_s, self.throttle_c, self.slope = per_gpu
        self.node = cluster.gpus.node
        self.temperature_c = np.full(len(self.node), ambient_c)
        self._looked_s = self.world.clock.now
        self._seen: dict[int, _Seen] = {}

    def _next_look(self) -> None:
        assert self.thermal is not None
        self.next_look_s = self.world.clock.now + self.thermal.every
        self.world.clock.at(self.next_look_s, self._look, DECISION)

    def _look(self, _: Event) -> None:
        self.next_look_s = math.inf
        self._warm(utilised=True)
        assert self.thermal is not None
        over_c = np.maximum(0.0, self.temperature_c - self.throttle_c)
        clock = np.maximum(self.thermal.clock_min, 1.0 - self.slope * over_c)
        self._set_hot(np.minimum.reduceat(clock, self.world.cluster.nodes.first_gpu))
        self._ticking = bool(self.world.running)
        if self._ticking:
            self._next_look()

    def _set_hot(self, hot: Floats) -> None:
        moved = np.abs(hot - self.hot) > _SAME_CLOCK
        moved |= (hot == 1.0) & (self.hot < 1.0)
        if not moved.any():
            return
        began, ended = moved & (self.hot == 1.0), moved & (hot == 1.0)
        self.hot[moved] = hot[moved]
        self._share_out(None)
        for kind, nodes in (("throttle", began), ("throttle_end", ended)):
            for node in np.flatnonzero(nodes).tolist():
                self.world.happened(kind, node, float(self.hot[node]))
        if began.any() or ended.any():
            self.world.noticed()

    def _warm(self, *, utilised: bool) -> None:
        """Bring temperatures up to now."""
        world, now_s = self.world, self.world.clock.now
        seconds, self._looked_s = now_s - self._looked_s, now_s
        busy = self._utilisation(now_s) if utilised else np.zeros(len(self.node))
        drawn_w = self.power.idle_w[self.node] + world.meter.busy_w[self.node] * np.minimum(1.0, busy)
        drawn_w *= world.cluster.up[self.node]
        settles_c = world.scenario.energy.ambient + self.c_per_w * drawn_w
        self.temperature_c = warmed(self.temperature_c, settles_c, self.tau_s, seconds)

    def _utilisation(self, now_s: float) -> Floats:
        """Busy share of each GPU since the last look, (gpus,)."""
        world, busy = self.world, np.zeros(len(self.node))
        for row in world.running.rows.tolist():
            job, holding = world.training.get(row), world.cluster.holding[row]
            if job is None:
                share: Floats = holding.share * (world.rigid.begin_s[row] < now_s)
            else:
                share = np.repeat(self._of_workers(job, now_s), job.gpus_per_worker) * holding.share
            np.add.at(busy, holding.gpu, share)
        return busy

    def _of_workers(self, job: TrainingJob, now_s: float) -> Floats:
        """Busy share of each worker over the whole periods since the last look, else as before."""
        self.world.engine.settle(job)
        self.world.meter.training(job)
        seen = self._seen.get(job.row)
        if seen is None or seen.generation != job.generation:
            nothing = np.zeros(job.workers)
            seen = self._seen[job.row] = _Seen(job.generation, job.begun_s, nothing, np.ones(job.workers))
        if job.begun_s >= now_s:  # it is starting
            return np.zeros(job.workers)
        passed_s = min(now_s, job.period_start_s) - seen.at_s
        if passed_s > 0.0:
            seen.utilisation = (job.busy_total_s - seen.busy_s) / passed_s
            seen.at_s, seen.busy_s = seen.at_s + passed_s, job.busy_total_s.copy()
        return seen.utilisation

"""Reduced clocks: power caps of GPUs and of the cluster, and thermal throttling.

    dT/dt = (power * R - (T - T_ambient)) / tau          clock = 1 - slope * (T - T_throttle) above T_throttle

Between two updates the power is constant, so the temperature is exact there. A node computes at the clock of its
hottest GPU, held or not; a lower clock acts as a fail-slow factor does, from the running period's end on.
"""

from __future__ import annotations

import math

import numpy as np
from simpy.events import Event

from equipoise.policies.observation import Floats, writable
from equipoise.sim.clock import DECISION, Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.meter import Meter
from equipoise.sim.cluster.power import EXPONENT, NodePower, clock_under_cap
from equipoise.sim.hardware.kinds import power_share
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.world.nodes import NodeEvents

_SAME_CLOCK = 1e-3
"""Clocks that differ by less are left as they are."""


def shared_clock(power: NodePower, up: Floats, held: Floats, gpus: Floats, limit: Floats, cap_w: float) -> Floats:
    """Clocks (nodes,) at which the cluster draws at most `cap_w` when every held GPU computes all the time.

    All clocks are the same but where `limit` (nodes,) is lower. up, held, gpus (nodes,): whether the node is up,
    its GPUs that jobs hold (each as its job's share of the highest power), and all it has. The idle draw must be
    below the cap.
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
    """Temperatures after an interval at constant power; `settles_c` is the steady state."""
    after: Floats = settles_c + (temperature_c - settles_c) * np.exp(-seconds / tau_s)
    return after


def clocks_vary(scenario: Scenario) -> bool:
    """Whether clocks change during the run."""
    energy = scenario.energy
    if energy.power_cap is not None and any(power_share(m) < 1.0 for m in scenario.workload.models.values()):
        return True  # with the jobs that a node has
    return energy.cluster_power_cap is not None or energy.policy_caps or scenario.thermal is not None


class Throttle:
    """Sets the clocks of nodes; does nothing unless the scenario has caps or heat.

    power: what GPUs can draw; meter: what they do draw.
    """

    def __init__(
        self, scenario: Scenario, clock: Clock, cluster: Cluster, power: NodePower, meter: Meter, nodes: NodeEvents
    ) -> None:
        self.energy, self.thermal = scenario.energy, scenario.thermal
        self.clock, self.cluster = clock, cluster
        self.power, self.meter, self.nodes = power, meter, nodes
        self.uneven = bool((meter.share < 1.0).any())  # jobs do not all draw the highest power
        self.draw_w = power.max_w  # of the GPU of each node that would draw most at the highest clock
        site_w = math.inf if self.energy.power_cap is None else self.energy.power_cap
        self.site_w = np.full(len(power.idle_w), site_w)
        self.gpu_cap_w = self.site_w
        if self.energy.policy_caps:
            self._allow_caps()
        self.cap_w = self.energy.cluster_power_cap
        self.hot = np.ones(len(self.site_w))  # clocks that heat allows
        self._pending: Event | None = None
        self._ticking = False
        self.next_look_s = math.inf
        if self.thermal is not None:
            self._prepare_heat()
        nodes.set_clocks(self._limit())

    def changed(self) -> None:
        """Update clocks after jobs took or released GPUs, or nodes came or went."""
        if (self.cap_w is not None or self.uneven) and self._pending is None:
            self._pending = self.clock.at(self.clock.now, self._share_out, DECISION)
        if self.thermal is not None and not self._ticking and self._at_work:
            self._ticking = True
            self._warm(utilised=False)  # it has been cooling since
            self._next_look()

    def _allow_caps(self) -> None:
        """Set the range of power caps that policies may use for each node."""
        cap_w = self.power.max_w if self.energy.power_cap is None else self.energy.power_cap
        highest_w = np.where(self.cluster.nodes.gpus > 0, np.minimum(self.power.max_w, cap_w), np.nan)
        shown = {"idle": self.power.idle_w, "max": highest_w, "cap": highest_w, "draw": self.power.max_w}
        for name, values in shown.items():
            writable(self.cluster.nodes, f"power_{name}_w")[:] = values

    def set_caps(self, cap_w: Floats) -> None:
        """Cap each node's GPUs at this power (nodes,), set by a policy; NaN: the site's cap."""
        now_w = writable(self.cluster.nodes, "power_cap_w")
        changed = np.flatnonzero(cap_w != now_w)
        changed = changed[~np.isnan(cap_w[changed])]
        now_w[:] = cap_w
        self.gpu_cap_w = np.fmin(cap_w, self.site_w)
        self._share_out(None)
        for node in changed.tolist():
            self.nodes.happened("power_cap", node, float(cap_w[node]))

    def _limit(self) -> Floats:
        """Clocks (nodes,) that the caps of GPUs allow."""
        limit, capped = np.ones(len(self.gpu_cap_w)), np.isfinite(self.gpu_cap_w)
        limit[capped] = clock_under_cap(self.power.idle_w[capped], self.draw_w[capped], self.gpu_cap_w[capped])
        return limit

    def _held(self) -> Floats:
        """GPUs of each node that are held, each as its job's share of the highest power; records the largest draw."""
        cluster, power = self.cluster, self.power
        if not self.uneven:
            return cluster.held_gpus()
        each = np.zeros(len(cluster.gpus))
        for row, held in cluster.holding.items():
            share = float(self.meter.share[row]) if row >= 0 else 1.0  # a feature draws all
            each[held.gpu] = np.maximum(each[held.gpu], share)
        most = np.zeros(len(power.idle_w))
        np.maximum.at(most, cluster.gpus.node, each)
        self.draw_w = power.idle_w + np.where(most > 0.0, most, 1.0) * (power.max_w - power.idle_w)
        if self.energy.policy_caps:
            writable(cluster.nodes, "power_draw_w")[:] = np.where(cluster.nodes.gpus > 0, self.draw_w, np.nan)
        return np.bincount(cluster.gpus.node, each, len(most)).astype(np.float64)

    @property
    def _at_work(self) -> bool:
        return bool(self.cluster.holding)

    def _share_out(self, _: Event | None) -> None:
        self._pending = None
        cluster, held = self.cluster, self._held()
        clock = np.minimum(self._limit(), self.hot)
        if self.cap_w is not None:
            clock = shared_clock(
                self.power, cluster.up.astype(float), held, cluster.nodes.gpus.astype(float), clock, self.cap_w
            )
        self.nodes.set_clocks(clock)

    # -- heat ------------------------------------------------------------------------------------------------

    def _prepare_heat(self) -> None:
        cluster, ambient_c = self.cluster, self.energy.ambient
        rows = []
        for a in cluster.accelerators:
            parts = (a.thermal_c_per_w, a.tau_s, a.throttle_c, a.throttle_slope)
            rows.append([np.nan if part is None else part.value for part in parts])
        per_gpu = np.array(rows)[cluster.gpus.model].T
        self.c_per_w, self.tau_s, self.throttle_c, self.slope = per_gpu
        self.node = cluster.gpus.node
        self.temperature_c = np.full(len(self.node), ambient_c)
        self._looked_s = self.clock.now

    def _next_look(self) -> None:
        assert self.thermal is not None
        self.next_look_s = self.clock.now + self.thermal.every
        self.clock.at(self.next_look_s, self._look, DECISION)

    def _look(self, _: Event) -> None:
        self.next_look_s = math.inf
        self._warm(utilised=True)
        assert self.thermal is not None
        over_c = np.maximum(0.0, self.temperature_c - self.throttle_c)
        clock = np.maximum(self.thermal.clock_min, 1.0 - self.slope * over_c)
        slowest = np.ones(len(self.hot))  # of a node that only stores data, too
        np.minimum.at(slowest, self.node, clock)
        self._set_hot(slowest)
        self._ticking = self._at_work
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
                self.nodes.happened(kind, node, float(self.hot[node]))
        if began.any() or ended.any():
            self.nodes.event()

    def _warm(self, *, utilised: bool) -> None:
        """Bring temperatures up to now."""
        now_s = self.clock.now
        seconds, self._looked_s = now_s - self._looked_s, now_s
        busy = self.nodes.drawn_share(now_s) if utilised else np.zeros(len(self.node))
        drawn_w = self.power.idle_w[self.node] + self.meter.busy_w[self.node] * np.minimum(1.0, busy)
        drawn_w *= self.cluster.up[self.node]
        settles_c = self.energy.ambient + self.c_per_w * drawn_w
        self.temperature_c = warmed(self.temperature_c, settles_c, self.tau_s, seconds)

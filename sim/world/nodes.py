"""Changes of nodes: failures and repairs, slowdowns, clocks and links."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from equipoise.policies.observation import Floats, writable
from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.meter import Meter
from equipoise.sim.job.job import Job
from equipoise.sim.job.listener import Listeners
from equipoise.sim.network.transfers import Transfers
from equipoise.sim.world.roster import Roster


class NodeEvents:
    """Changes nodes, and informs their jobs and listeners; the part that `sim.world.faults` and `.throttle` act on.

    set_capacity(link, bytes/s) changes a link, event() tells that policies should look, stop(job, reason) stops a job,
    and changed() is called after each change; None: no listener.
    """

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        roster: Roster,
        stop: Callable[[Job, str], None],
        changed: Callable[[], None] | None,
        meter: Meter,
        transfers: Transfers,
        listeners: Listeners,
        set_capacity: Callable[[int, float], None],
        event: Callable[[], None],
    ) -> None:
        self.clock, self.cluster, self.roster, self._stop, self._changed = clock, cluster, roster, stop, changed
        self.meter, self.transfers, self.listeners = meter, transfers, listeners
        self._set_capacity, self.event = set_capacity, event
        self._fault_slow = np.ones(len(cluster.nodes))
        self._down_s = np.zeros(len(cluster.nodes))
        self._down_since_s: dict[int, float] = {}
        self._away_s = np.zeros(len(cluster.nodes))
        self._away_since_s: dict[int, float] = {}
        self.reclaimed_nodes: set[int] = set()  # back with their owner
        self.released_nodes: set[int] = set()  # not rented
        self.scaled: set[int] = set()  # rented when they are needed
        self._failed: set[int] = set()  # that a fault, or their owner, keeps down
        self._first_s = float(roster.demand.arrival_s[0])

    def _jobs_on(self, node: int) -> list[Job]:
        return [self.roster.running_jobs[row] for row in self.cluster.jobs_on(node)]

    def node_down(self, node: int, *, saved: bool = False) -> None:
        """Take a node down; its jobs lose unsaved work unless they could save first."""
        self._failed.add(node)
        if not self.cluster.up[node]:
            return
        for job in self._jobs_on(node):
            self._stop(job, "preempted" if saved else "fault")
            self.roster.preemptions[job.row] += saved
        self._off(node)

    def node_up(self, node: int) -> None:
        """A node is repaired; one that is not rented stays away."""
        self._failed.discard(node)
        self._on(node)

    def _off(self, node: int) -> None:
        """It goes down, whatever the cause."""
        for tell in self.listeners.node_leaving:
            tell(node)
        self.cluster.take_down(node)
        self.transfers.node_changed(node)
        self._down_since_s[node] = max(self.clock.now, self._first_s)
        if self._changed is not None:
            self._changed()
        for tell in self.listeners.node_down:
            tell(node, self.clock.now)
        self.event()

    def _on(self, node: int) -> None:
        """Bring a node up, unless another cause keeps it down."""
        if self.cluster.up[node] or node in self._failed or node in self.released_nodes:
            return
        self.cluster.bring_up(node)
        self.transfers.node_changed(node)
        self._down_s[node] += max(0.0, self.clock.now - self._down_since_s.pop(node))
        if self._changed is not None:
            self._changed()
        for tell in self.listeners.node_up:
            tell(node, self.clock.now)
        self.event()

    def released(self, node: int) -> None:
        """A node that holds no job is given back: it is not paid for until it is `rented`."""
        self.released_nodes.add(node)
        self._account_away(node)
        if self.cluster.up[node]:
            self._off(node)

    def rented(self, node: int) -> None:
        """Add a rented node, which is paid for from now on."""
        self.released_nodes.discard(node)
        self._account_away(node)
        self._on(node)

    def reclaimed(self, node: int) -> None:
        """A spot node goes back to its owner: it is not paid for until it is `returned`."""
        self.reclaimed_nodes.add(node)
        if node in self.scaled:  # it does not come back by itself
            self.released_nodes.add(node)
        self._account_away(node)

    def returned(self, node: int) -> None:
        """Make a reclaimed spot node available again."""
        self.reclaimed_nodes.discard(node)
        self._account_away(node)
        if node in self.scaled:
            self.event()

    def _account_away(self, node: int) -> None:
        """A node is paid for while it is rented and not with its owner."""
        away = node in self.reclaimed_nodes or node in self.released_nodes
        if away and node not in self._away_since_s:
            self._away_since_s[node] = max(self.clock.now, self._first_s)
        elif not away and node in self._away_since_s:
            self._away_s[node] += max(0.0, self.clock.now - self._away_since_s.pop(node))

    def down_s(self) -> Floats:
        """Time that each node has been down since the first arrival, (nodes,)."""
        return self._until_now(self._down_s, self._down_since_s)

    def unpaid_s(self) -> Floats:
        """Time for which each node was with its owner, or not rented, since the first arrival, (nodes,)."""
        return self._until_now(self._away_s, self._away_since_s)

    def _until_now(self, passed_s: Floats, since_s: dict[int, float]) -> Floats:
        total_s = passed_s.copy()
        for node, began_s in since_s.items():
            total_s[node] += max(0.0, self.clock.now - began_s)
        return total_s

    def can_save(self, node: int, notice_s: float) -> bool:
        """Whether every job on the node can write a checkpoint within the notice; without notice none can."""
        return all(notice_s > 0.0 and job.notice_s <= notice_s for job in self._jobs_on(node))

    def set_slow(self, node: int, factor: float) -> None:
        """A node computes `factor` times slower from now on (1: healthy)."""
        self._fault_slow[node] = factor
        self.cluster.slow[node] = factor / self.meter.clock[node]
        for job in self._jobs_on(node):
            job.speed_changed()
        for tell in self.listeners.speeds_changed:
            tell()
        self.event()

    def set_corrupt(self, gpu: int, factor: float) -> None:
        """A GPU multiplies gradients by this from now on (1: correct, and the GPU is no longer suspected)."""
        self.cluster.corrupt[gpu] = factor
        if factor == 1.0:
            writable(self.cluster.gpus, "suspect")[gpu] = False
        for job in self._jobs_on(int(self.cluster.gpus.node[gpu])):
            job.speed_changed()

    def set_nics(self, node: int, share: float) -> None:
        """The NICs of a node have this share of their rate from now on; its jobs' steps follow from the next one on."""
        self.cluster.set_nics(node, share)
        links = self.cluster.links
        for link in links.nics(node):
            self._set_capacity(link, float(links.capacity_bytes_per_s[link]))
        for job in self._jobs_on(node):
            job.speed_changed()

    def set_clocks(self, clock: Floats) -> None:
        """Nodes compute at these clocks, relative to their highest, from now on; (nodes,)."""
        slower = clock != self.meter.clock
        changed = np.flatnonzero(slower)
        if not changed.size:
            return
        rows = sorted(row for row, held in self.cluster.holding.items() if row >= 0 and slower[held.nodes].any())
        jobs = [self.roster.running_jobs[row] for row in rows]
        for job in jobs:
            job.meter_until_now()
        for tell in self.listeners.speeds_changing:
            tell()
        self.meter.set_clock(clock)
        self.cluster.slow[changed] = self._fault_slow[changed] / clock[changed]
        for job in jobs:
            job.speed_changed()
        for tell in self.listeners.speeds_changed:
            tell()

    def drawn_share(self, now_s: float) -> Floats:
        """Part of its highest power beyond idling that each GPU drew since the last call, (gpus,)."""
        busy = np.zeros(len(self.cluster.gpus))
        for row in self.roster.running.rows.tolist():
            share = self.roster.running_jobs[row].utilisation(now_s) * self.meter.share[row]
            np.add.at(busy, self.cluster.holding[row].gpu, share)
        for tell in self.listeners.add_utilisation:
            tell(busy, now_s)
        return busy

    def happened(self, kind: str, node: int, value: float) -> None:
        """Something happened on a node that a reader of the run should see; not on one that is not rented."""
        if node in self.released_nodes and kind not in ("rented", "released"):
            return
        for tell in self.listeners.happened:
            tell(kind, self.cluster.topology.node_names[node], value, self.clock.now)

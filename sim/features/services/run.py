"""Services in a run: their replicas take GPUs, from jobs if necessary, and release them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from simpy.events import Event

from equipoise.policies.observation import Columns, Floats, Ints
from equipoise.policies.physics import speed_at
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.cost.measured import interference, share_kappa
from equipoise.sim.features.services.room import allowed_gpus, cheapest_victims, free_room, room_on, speeds
from equipoise.sim.features.services.section import services_of
from equipoise.sim.features.services.state import ServiceState, ServiceWindow
from equipoise.sim.features.services.tables import (
    columns_of,
    observed_columns,
    replica_columns,
    service_row,
    window_row,
)
from equipoise.sim.ledger.bill import Biller
from equipoise.sim.ledger.gpu_account import GpuAccount
from equipoise.sim.world.feature import FeatureRun, Lack, WorldParts
from equipoise.sim.world.stall import Stalled

USE = "serving"
"""Use of the GPU time that replicas hold."""
IDLE_S = 30 * 86400.0
"""Jobs that wait for so long while none runs, beside services alone, wait for ever."""


@dataclass(eq=False)
class Replica:
    """A copy of a service's model on GPUs of one node. booked_s: until when its account is complete."""

    key: int  # of its holding
    slot: int  # in the queue of its service
    node: int
    holding: Holding
    booked_s: float
    since_s: float
    lane: int  # the lowest number that no other replica of the service has
    leaving: bool = False
    busy_s: float = 0.0  # on batches, since its GPUs' utilisation was last asked for
    asked_s: float = 0.0


class Tenant:
    """One service with its replicas, the oldest first, and its account."""

    def __init__(self, state: ServiceState, cluster: Cluster, speed: Floats) -> None:
        self.state, self.spec = state, state.spec
        self.speed = speed  # (GPU models,), of a replica relative to the stated time
        self.allowed = allowed_gpus(self.spec, cluster)
        self.replicas: list[Replica] = []
        self.account = GpuAccount()
        self.window_gpu_s = 0.0
        self.taken = 0  # jobs stopped to make room
        self.records: list[ServiceWindow] = []

    @property
    def active(self) -> int:
        """Replicas that stay."""
        return sum(not replica.leaving for replica in self.replicas)

    @property
    def lack(self) -> int:
        """Number of wanted replicas without room."""
        return max(0, self.state.wanted - self.active)


class ServicesRun(FeatureRun):
    """All services of a run."""

    def __init__(self, parts: WorldParts) -> None:
        scenario, self.cluster, self.roster = parts.scenario, parts.cluster, parts.roster
        self.clock, self.allocator, self.meter = parts.clock, parts.allocator, parts.meter
        self.usd_per_gpu_s, self._timeline, self.event = parts.usd_per_gpu_s, parts.timeline, parts.decisions.event
        self.restart, self.begin_s = scenario.restart, float(self.roster.demand.arrival_s[0])
        self.holds_open = scenario.horizon is not None
        self.tenants = [
            Tenant(ServiceState(spec, parts.seed, self.begin_s), self.cluster, speeds(spec, scenario, self.cluster))
            for spec in services_of(scenario)
        ]
        self.short = False  # some service has fewer replicas than it wants
        self.scales = any(group.rented for group in scenario.cluster.groups)
        self._made = 0
        self._begun = False
        self._idle_since_s = math.inf
        self._held: list[tuple[str, int, float, float, int, int, int]] = []  # for the timeline
        self.clock.at(self.begin_s, self._begin)

    # -- replicas come and go ----------------------------------------------------------------------------------

    def _begin(self, _: Event) -> None:
        self._begun = True
        for tenant in self.tenants:
            state = tenant.state
            factor = 1.0 / float(tenant.speed.max())
            state.wanted = state.replicas_for(state.requests.rate_per_s(self.begin_s), factor)
            self._fill(tenant, ready_s=self.begin_s)
            state.open_window()
            self.clock.at(state.next_s, self._next_window(tenant))
        self._note_shortage()
        if self.scales and self.short:
            self.event()

    def _next_window(self, tenant: Tenant) -> Callable[[Event], None]:
        def ended(_: Event) -> None:
            """End a window of the service and begin the next."""
            state = tenant.state
            self._close(tenant)
            state.look(tenant.records[-1], self._factor(tenant))
            before = len(tenant.replicas), tenant.taken
            self.look()
            state.open_window()
            self.clock.at(state.next_s, self._next_window(tenant))
            if before != (len(tenant.replicas), tenant.taken) or (self.scales and self.short):
                self.event()
            self._check_not_stalled()

        return ended

    def gpus_released(self) -> None:
        """Start replicas that had no room."""
        if self.short:
            self.look()

    def look(self) -> None:
        """Give every service its wanted replicas, if there are GPUs for them."""
        for tenant in self.tenants:
            self._fill(tenant)
            over = tenant.active - tenant.state.wanted
            if over > 0:
                stay = [replica for replica in tenant.replicas if not replica.leaving]
                for replica in reversed(stay[-over:]):
                    self._leave(tenant, replica)
        self._note_shortage()

    def _note_shortage(self) -> None:
        self.short = any(tenant.active < tenant.state.wanted for tenant in self.tenants)

    def _fill(self, tenant: Tenant, ready_s: float | None = None, late_s: float = 0.0) -> None:
        """Start replicas up to the number wanted; ready_s: at this time, else when they have started."""
        spec, now_s = tenant.spec, self.clock._now
        while tenant.active < tenant.state.wanted:
            gpus, delay_s = free_room(spec, tenant.allowed, self.cluster), late_s + spec.replicas.start
            if gpus is None and spec.placement.preempt:
                gpus, delay_s = self._take_back(tenant), delay_s + spec.placement.take_back
            if gpus is None:
                return
            self._start(tenant, gpus, now_s + delay_s if ready_s is None else ready_s)

    def _start(self, tenant: Tenant, gpus: Ints, ready_s: float) -> None:
        self._made += 1
        key, now_s = -self._made, self.clock._now
        holding = self.cluster.book(key, gpus, np.full(len(gpus), tenant.spec.share))
        taken = {replica.lane for replica in tenant.replicas}
        lane = next(number for number in range(len(taken) + 1) if number not in taken)
        replica = Replica(key, -1, int(holding.nodes[0]), holding, now_s, now_s, lane, asked_s=now_s)
        self._settle(tenant)
        replica.slot = tenant.state.queue.add(ready_s, self._factor_of(tenant, replica))
        tenant.replicas.append(replica)
        self._changed(holding)

    def _leave(self, tenant: Tenant, replica: Replica) -> None:
        """A replica ends its batch and then gives back its GPUs."""
        self._settle(tenant)
        replica.leaving = True
        done_s = tenant.state.queue.leave(replica.slot, self.clock._now)
        if done_s <= self.clock._now:
            self._give_back(tenant, replica)
            return

        def done(_: Event) -> None:
            """The last batch is done."""
            if replica in tenant.replicas:
                tenant.state.queue.advance(math.nextafter(done_s, math.inf))  # answers of this instant, too
                self._settle(tenant)
                self._give_back(tenant, replica)
                self.event()

        self.clock.at(done_s, done)

    def _give_back(self, tenant: Tenant, replica: Replica) -> None:
        tenant.state.queue.gone(replica.slot, self.clock._now)
        tenant.replicas.remove(replica)
        self._record(tenant, replica, self.clock._now)
        self._changed(self.cluster.release(replica.key))

    def _record(self, tenant: Tenant, replica: Replica, end_s: float) -> None:
        if self._timeline is not None and end_s > replica.since_s:
            gpu = replica.holding.gpu
            row = (tenant.spec.name, replica.lane, replica.since_s, end_s, gpu.size, replica.node, int(gpu.min()))
            self._held.append(row)

    def _changed(self, holding: Holding) -> None:
        """Update speeds and clocks after GPUs were taken or released."""
        if holding.weight < holding.gpu.size:
            for row, other in sorted(self.cluster.holding.items()):
                if row >= 0 and np.isin(other.gpu, holding.gpu).any():
                    self.roster.running_jobs[row].speed_changed()
            self.shares_changed(holding.gpu)
        if self.allocator.changed is not None:
            self.allocator.changed()

    def _take_back(self, tenant: Tenant) -> Ints | None:
        """Stop jobs so that a replica has room in some node, and return its GPUs; None: nothing would help."""
        spec, columns = tenant.spec, self.roster.columns
        found = cheapest_victims(spec, tenant.allowed, self.cluster, columns["priority"], columns["started_s"])
        if found is None:
            return None
        node, chosen = found
        for row in chosen:
            job = self.roster.running_jobs[row]
            saved = job.notice_s <= spec.placement.take_back
            self.allocator.stop(job, "preempted" if saved else "fault")
            self.roster.preemptions[row] += saved
        tenant.taken += len(chosen)
        for tell in self.allocator.listeners.happened:
            tell("taken_back", spec.name, float(len(chosen)), self.clock._now)
        return room_on(node, spec, tenant.allowed, self.cluster)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def node_leaving(self, node: int) -> None:
        """A node is about to go down: its replicas are gone, and their batches wait again."""
        for tenant in self.tenants:
            lost = [replica for replica in tenant.replicas if replica.node == node]
            if lost:
                self._settle(tenant)
            for replica in lost:
                self._give_back(tenant, replica)

    def node_down(self, node: int, now_s: float) -> None:
        """Make up for replicas that were lost."""
        self._refill()

    def node_up(self, node: int, now_s: float) -> None:
        """Start replicas on a node that is back."""
        self._refill()

    def _refill(self) -> None:
        if not self._begun:
            return
        for tenant in self.tenants:
            self._fill(tenant, late_s=self.restart.detection)
        self._note_shortage()

    def speeds_changing(self) -> None:
        """Book everything up to now, at the clocks as they are."""
        for tenant in self.tenants:
            self._settle(tenant)

    def speeds_changed(self) -> None:
        """Nodes run at other speeds: batches that begin from now on take another time."""
        for tenant in self.tenants:
            self._settle(tenant)
            for replica in tenant.replicas:
                tenant.state.queue.set_factor(replica.slot, self._factor_of(tenant, replica))

    def shares_changed(self, gpus: Ints) -> None:
        """Others have taken or left a part of these GPUs."""
        for tenant in self.tenants:
            beside = [replica for replica in tenant.replicas if np.isin(replica.holding.gpu, gpus).any()]
            if beside:
                self._settle(tenant)
            for replica in beside:
                if replica.slot >= 0:
                    tenant.state.queue.set_factor(replica.slot, self._factor_of(tenant, replica))

    def _factor_of(self, tenant: Tenant, replica: Replica) -> float:
        """How much longer than stated a batch takes on a replica's GPUs now."""
        cluster, node = self.cluster, replica.node
        model = cluster.node_model[node]
        speed = float(cluster.node_speed[node] / cluster.slow[node] * tenant.speed[model])
        slowest = math.inf
        accelerator = cluster.accelerators[model]
        kappa = share_kappa(tenant.spec.share_kappa, accelerator)
        iota = interference(tenant.spec.interference, accelerator)
        for gpu, share in zip(replica.holding.gpu.tolist(), replica.holding.share.tolist(), strict=True):
            own = 1.0 / cluster.gpu_time.item(gpu)
            if share < 1.0:
                own *= speed_at(share, kappa)
            if iota:
                own /= 1.0 + iota * cluster.co_located(gpu, replica.key)
            slowest = min(slowest, own)
        return 1.0 / (speed * slowest)

    def _factor(self, tenant: Tenant) -> float:
        """Mean factor of a service's replicas; without any, on its fastest GPUs."""
        factors = [self._factor_of(tenant, replica) for replica in tenant.replicas]
        return math.fsum(factors) / len(factors) if factors else 1.0 / float(tenant.speed.max())

    # -- accounts ------------------------------------------------------------------------------------------------

    def _settle(self, tenant: Tenant) -> None:
        """Answer requests up to now, and book what the replicas have held and done."""
        now_s, queue = self.clock._now, tenant.state.queue
        queue.advance(now_s)
        for replica in tenant.replicas:
            held_s, busy_s = now_s - replica.booked_s, queue.busy_s.item(replica.slot)
            queue.busy_s[replica.slot] = 0.0
            if held_s <= 0.0:
                continue
            weight = replica.holding.weight
            drawn_j = tenant.account.book(
                self.meter, self.usd_per_gpu_s, replica.node, held_s * weight, busy_s * weight
            )
            if self._timeline is not None:
                self._timeline.used(USE, replica.booked_s, now_s, held_s * weight, drawn_j)
            tenant.window_gpu_s += held_s * weight
            replica.busy_s += busy_s
            replica.booked_s = now_s

    def _close(self, tenant: Tenant) -> None:
        self._settle(tenant)
        window = tenant.state.close_window(self.clock._now, tenant.active, tenant.window_gpu_s)
        tenant.window_gpu_s = 0.0
        tenant.records.append(window)

    def close(self, end_s: float) -> None:
        """The run has ended: book everything up to now."""
        for tenant in self.tenants:
            if end_s > tenant.state.window_s:
                self._close(tenant)
            for replica in tenant.replicas:
                self._record(tenant, replica, end_s)

    def add_utilisation(self, busy: Floats, now_s: float) -> None:
        """Add the busy share of each GPU since this was last asked, to (gpus,)."""
        self.speeds_changing()
        for tenant in self.tenants:
            for replica in tenant.replicas:
                passed_s = now_s - replica.asked_s
                if passed_s > 0.0:
                    np.add.at(busy, replica.holding.gpu, replica.holding.share * replica.busy_s / passed_s)
                replica.busy_s, replica.asked_s = 0.0, now_s

    def may_release(self) -> bool:
        """Whether any service may release GPUs later."""
        return any(len(tenant.replicas) > tenant.spec.kept for tenant in self.tenants)

    def _check_not_stalled(self) -> None:
        """Raise Stalled when jobs have waited very long and none ran."""
        roster, now_s = self.roster, self.clock._now
        if roster.running or not roster.waiting:
            self._idle_since_s = math.inf
            return
        self._idle_since_s = min(self._idle_since_s, now_s)
        if now_s - self._idle_since_s > IDLE_S:
            name = roster.demand.name[int(roster.waiting.rows[0])]
            raise Stalled(
                f"job {name} and {len(roster.waiting) - 1} more wait and no job has run for "
                f"{IDLE_S / 86400:g} days: the services leave too few GPUs"
            )

    # -- answers to the engine -------------------------------------------------------------------------------------

    def lacks(self) -> Iterator[Lack]:
        """Room for the replicas that are wanted and have none."""
        for tenant in self.tenants:
            yield Lack(tenant.lack, tenant.spec.replicas.gpus, tenant.spec.share, tenant.allowed)

    def observed(self) -> Mapping[str, Columns]:
        """The current services; measured values are those of the last window."""
        return {"services": observed_columns([(t.state, t.active) for t in self.tenants])}

    def account(self) -> GpuAccount:
        """What all replicas held."""
        return GpuAccount.total(tenant.account for tenant in self.tenants)

    def totals(self) -> Mapping[str, float]:
        """GPU time of replicas, and its price."""
        held = self.account()
        return {"serving_gpu_s": held.gpu_s, "serving_usd": held.usd}

    def tables(self, biller: Biller, end_s: float) -> Mapping[str, Columns]:
        """A row per service, and a row per window of each."""
        rows = [service_row(t.state, t.account, t.taken, end_s, *biller.bill_of(t.account)) for t in self.tenants]
        windows = [window_row(tenant.spec.name, window) for tenant in self.tenants for window in tenant.records]
        return {"services": columns_of(rows), "service_windows": columns_of(windows)}

    def timeline(self) -> Mapping[str, Columns]:
        """When each replica held GPUs."""
        return {"replicas": replica_columns(self._held)} if self._held else {}


RUN = ServicesRun

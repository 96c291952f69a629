"""The simulated world: jobs arrive, run and end, faults strike, and policies observe and act.

Handlers change state and ask for a decision; one decision per instant, after all else, sees them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from simpy.events import Event

from policies.contract import (
    Allocation,
    AllocationStage,
    Decision,
    Memory,
    Plan,
    Policy,
    Refusal,
    refine,
)
from policies.observation import (
    DONE,
    RUNNING,
    WAITING,
    Floats,
    Ints,
    Jobs,
    Observation,
    resize,
    writable,
)
from sim.advance import EventByEvent
from sim.books import Books
from sim.clock import DECISION, Clock
from sim.cluster import Cluster
from sim.cost import Prices
from sim.data import JobData, place_shards
from sim.demand import Demand
from sim.energy import Meter, node_power
from sim.fast import Fast
from sim.futility import Futility, Stalled
from sim.job import TrainingJob
from sim.network import Network
from sim.observe import Observer
from sim.queue import RowQueue
from sim.randomness import stream
from sim.rigid import RigidJobs
from sim.scenario import Data, OnNodes, Scenario, Skewed
from sim.throttle import Throttle
from sim.timeline import Timeline
from sim.topology import Topology
from sim.transfer import Transfer, Transfers

DecisionHook = Callable[[Decision, list[Refusal]], None]


def _first_after(time_s: float, arrival_s: memoryview, first: int) -> int:
    """The first row from `first` on that arrives after `time_s`."""
    while first < len(arrival_s) and arrival_s[first] <= time_s:
        first += 1
    return first


class SimWorld:
    """One side of the seam between policies and worlds: the simulator.

    Args:
        scenario, demand, cluster, topology: what is simulated.
        policy: the stages that decide.
        seed: of noise, faults and estimates.
        on_decision: called with each decision and what of it was refused.
        event_by_event: use the plain time advance (the oracle) instead of the fast one.
        prices: of the cluster.
        timeline: record what happens when.
    """

    def __init__(
        self,
        scenario: Scenario,
        demand: Demand,
        cluster: Cluster,
        topology: Topology,
        policy: Policy,
        seed: int,
        on_decision: DecisionHook | None = None,
        *,
        event_by_event: bool = False,
        prices: Prices,
        timeline: bool = False,
    ) -> None:
        self.scenario, self.demand, self.cluster, self.policy = scenario, demand, cluster, policy
        self.seed, self.on_decision = seed, on_decision
        self.clock = Clock()
        self.network = Network(self.clock, topology.capacity_bytes_per_s)
        self.engine = self._make_engine(event_by_event, topology)
        self.transfers = Transfers(
            self.clock, self.network, topology, cluster.up, self.engine.links_changed, self._transferred
        )
        self.jobs = Jobs(0, len(demand))
        self.waiting, self.running = RowQueue(), RowQueue()
        self.training: dict[int, TrainingJob] = {}  # running training jobs, and those that will run again
        self.rigid = RigidJobs(
            self.clock, cluster, demand, self._rigid_ended, self.mtbf_s, scenario.restart.checkpoint_write
        )
        self.start_s = np.full(len(demand), np.nan)
        self.completion_s = np.full(len(demand), np.nan)
        self.preemptions = np.zeros(len(demand), dtype=np.int64)
        self.restarts = np.zeros(len(demand), dtype=np.int64)
        self.restart_s = np.zeros(len(demand))  # cost that the next start has to pay
        self._down_s = np.zeros(len(cluster.nodes))
        self._down_since_s: dict[int, float] = {}
        self.futility = Futility(self)
        self.done = Event(self.clock)
        self.completed = self.decisions = 0
        self.refusals: list[tuple[float, str, str]] = []
        self.memory: dict[str, Memory] = policy.initial()
        self._starts_only = all(
            isinstance(stage, AllocationStage) and stage.starts_only for stage in policy.stages
        )
        self._fractions = bool((demand.gpu_share < 1.0).any())
        self._fixed_gangs = self._starts_only and not self._fractions and not demand.training
        self._horizon_s = math.inf if scenario.horizon is None else scenario.horizon
        self._arrival_s = memoryview(demand.arrival_s)  # type: ignore[arg-type]  # (single numbers, fast)
        self._arrived = 0
        self._decision: Event | None = None
        self._revisit: Event | None = None
        self._tick: Event | None = None
        self._fill_jobs()
        self.fault_slow = np.ones(len(cluster.nodes))
        self.prices = prices
        self.meter = Meter(node_power(cluster), cluster.gpus.node, len(demand), prices.pays_energy)
        self.throttle = Throttle(self)
        self._clocks_vary = self.throttle.varies
        self.books: Books | None = None
        if not (prices.uniform and self.meter.power.uniform) or self._clocks_vary:
            self.meter.varies = True
            self.books = Books(self, self.meter, prices.usd_per_gpu_s)
        self.timeline = Timeline(self) if timeline else None
        self._listeners: list[Books | Timeline] = [x for x in (self.books, self.timeline) if x is not None]
        self.observer = Observer(self)
        self._next_arrival()
        if scenario.decide.every is not None:
            self._ticks, self._tick = 0, self.clock.at(0.0, self._on_tick)

    def _make_engine(self, event_by_event: bool, topology: Topology) -> EventByEvent:
        if event_by_event:
            return EventByEvent(self.clock, self.network, self._period_ended, self._refused)
        return Fast(
            self.clock, self.network, topology.capacity_bytes_per_s, self._period_ended, self._refused,
            self._steps_to_decision, self._next_planned_s,
        )  # fmt: skip

    # -- jobs ----------------------------------------------------------------------------------------------

    def _fill_jobs(self) -> None:
        demand, jobs = self.demand, self.jobs
        resize(jobs, len(demand))
        rigid = np.array([row not in demand.training for row in range(len(demand))])
        factor = self._estimate_factor(len(demand))
        for name, values in (
            ("id", demand.id), ("arrival_s", demand.arrival_s), ("queued_since_s", demand.arrival_s),
            ("rigid", rigid), ("priority", demand.priority), ("gpus_requested", demand.gpus),
            ("gpu_share_requested", demand.gpu_share), ("duration_s", demand.duration_s * factor),
            ("service_s", demand.duration_s * factor), ("restart_s", self.scenario.restart.initialisation),
        ):  # fmt: skip
            writable(jobs, name)[:] = values
        self.estimate_factor = factor
        self.state = writable(jobs, "state")
        self.held = writable(jobs, "gpus_held")
        resize(jobs, 0)

    def _estimate_factor(self, count: int) -> Floats:
        spread = self.scenario.decide.estimate_error
        if spread == 0.0:
            return np.ones(count)
        factor: Floats = np.exp(spread * stream(self.seed, "estimates").standard_normal(count))
        return factor

    def _next_arrival(self) -> None:
        if self._arrived < len(self._arrival_s):
            self.clock.at(self._arrival_s[self._arrived], self._on_arrival)

    def _on_arrival(self, _: Event) -> None:
        arrival_s, first = self._arrival_s, self._arrived
        end = _first_after(self.clock._now, arrival_s, first)
        if self._fixed_gangs and not self.cluster.free_gpus and self.running:
            # Nobody looks at the queue before the next event: those who join it until then do so now.
            until_s = min(self.clock.peek(), self._horizon_s)
            end = max(end, _first_after(math.nextafter(until_s, -math.inf), arrival_s, end))
        self._arrived = end
        resize(self.jobs, end)
        for row in range(first, end):
            if row in self.demand.training:
                self._make_training(row)
            self.waiting.add(row)
        self._next_arrival()
        self._last_event()

    def _make_training(self, row: int) -> None:
        spec = self.demand.training[row]
        assert spec.model is not None
        job = TrainingJob(
            row, self.demand.name[row], spec, self.scenario.workload.models[spec.model], self.cluster,
            seed=self.seed, step_cov=self.scenario.noise.step_cov, mtbf_s=self.mtbf_s,
        )  # fmt: skip
        job.meter, job.timeline = self.meter, self.timeline
        self.training[row] = job
        self.observer.arrived(job)

    @property
    def mtbf_s(self) -> float:
        """Mean time between crashes of one node, all causes together."""
        faults = self.scenario.faults
        rates = [1.0 / f.mtbf for f in (faults.crash, faults.rack, faults.spot) if f is not None]
        return 1.0 / sum(rates) if rates else math.inf

    def _place_data(self, job: TrainingJob, spec: Data) -> None:
        place, worker_nodes = spec.placement, list(dict.fromkeys(job.holding.nodes.tolist()))  # type: ignore[union-attr]
        if isinstance(place, OnNodes):
            nodes = self.cluster.nodes_named(place.nodes)
        else:
            nodes = worker_nodes if place.over == "job" else list(range(len(self.cluster.nodes)))
        exponent = place.exponent if isinstance(place, Skewed) else 0.0
        weights = np.arange(1.0, len(nodes) + 1.0) ** -exponent
        shards = min(spec.shards, spec.samples)
        homes = place_shards(shards, nodes, weights, spec.replicas)
        sizes = np.full(shards, spec.samples // shards, dtype=np.int64)
        sizes[: spec.samples % shards] += 1
        free = writable(self.cluster.nodes, "storage_free_bytes")
        for shard, home in enumerate(homes):
            for node in home:
                free[node] -= sizes[shard] * spec.sample_size
        job.data = JobData(sizes, spec.sample_size, homes, self.transfers, free)

    # -- decisions -----------------------------------------------------------------------------------------

    def _event(self) -> None:
        """Something happened: decide at this instant when the scenario decides on events."""
        if self.scenario.decide.on_events:
            self.request_decision()

    def _last_event(self) -> None:
        """As `_event`, for what a handler does last: with nothing else at this instant, decide right away."""
        if self._decision is None and self.clock.peek() > self.clock._now:
            if self.scenario.decide.on_events:
                self._decide(None)
        else:
            self._event()

    def request_decision(self) -> None:
        """Decide once at this instant, after everything else."""
        if self._decision is None:
            self._decision = self.clock.at(self.clock._now, self._decide, DECISION)

    def _on_tick(self, _: Event) -> None:
        every = self.scenario.decide.every
        assert every is not None
        self._ticks += 1
        self._tick = self.clock.at(self._ticks * every, self._on_tick)
        if self.waiting or self.running:
            self.request_decision()

    def _next_planned_s(self) -> float:
        """Time of the next decision that is planned already."""
        tick_s, every = math.inf, self.scenario.decide.every
        if every is not None:
            tick_s = self._ticks * every
        return min(tick_s, self._revisit_s, self.throttle.next_look_s)

    def _steps_to_decision(self, job: TrainingJob) -> int:
        every = self.scenario.decide.every_steps
        return 2**40 if every is None else max(1, every - job.steps_since_decision)

    def _on_revisit(self, _: Event) -> None:
        self._revisit, self._revisit_s = None, math.inf
        self.request_decision()

    def _nothing_to_start(self) -> bool:
        """Whether the policy can only start jobs, and none can be: nothing waits, or nothing is free."""
        return self._starts_only and not (
            self.waiting and (self.cluster.free_gpus > 0 or self._fractions or not self.running)
        )

    def _decide(self, _: Event | None) -> None:
        self._decision = None
        if self._nothing_to_start():
            return
        decision = refine(self.policy, self.observe(), self.memory)
        self.memory, plan = decision.memory, decision.plan
        self.decisions += 1
        refused = self.apply(plan)
        self.clock.cancel(self._revisit)
        self._revisit, self._revisit_s = None, plan.revisit_s
        if plan.revisit_s < math.inf:
            self._revisit = self.clock.at(plan.revisit_s, self._on_revisit)
        if self.on_decision is not None:
            self.on_decision(decision, refused)
        if self.waiting and not self.running and plan.allocation is None:
            self._check_not_stalled()

    def _check_not_stalled(self) -> None:
        """Raise Stalled when no event is left that could ever start a waiting job."""
        if self._arrived < len(self.demand) or self._revisit is not None or not self.cluster.up.all():
            return
        if self._tick is not None and self._idle_ticks < 1000:
            self._idle_ticks += 1
            return
        rows = self.waiting.rows[:3].tolist()
        names = ", ".join(self.demand.name[row] for row in rows)
        raise Stalled(
            f"policy {self.policy.name} leaves {len(self.waiting)} jobs waiting on an idle cluster ({names})"
        )

    _idle_ticks = 0
    _revisit_s = math.inf

    def observe(self) -> Observation:
        """Everything a policy may see, now."""
        return self.observer.observe()

    def apply(self, plan: Plan) -> list[Refusal]:
        """Carry out a feasible plan: stops and starts at once, the rest at the end of each running period."""
        if plan.changes_nothing():
            return []
        replaced: set[int] = set()
        if plan.allocation is not None:
            replaced = self._allocate(plan.allocation)
        self.observer.hand_over(plan, replaced)
        return []

    def _allocate(self, allocation: Allocation) -> set[int]:
        listed = allocation.job.tolist()
        resized = set()
        for k, row in enumerate(listed):
            if self.state[row] == RUNNING:
                ousted = bool(allocation.offset[k + 1] == allocation.offset[k])
                self._stop(row, "preempted" if ousted else "resized")
                self.preemptions[row] += ousted
                resized.add(row)
        for k, row in enumerate(listed):
            gpus = allocation.gpus_of(k)
            if gpus.size:
                self._start(row, gpus, allocation.share[allocation.offset[k] : allocation.offset[k + 1]])
        return resized

    def _start(self, row: int, gpus: Ints, share: Floats) -> None:
        now = self.clock._now
        holding = self.cluster.book(row, gpus.copy(), share.copy())
        for listener in self._listeners:
            listener.begins(row, holding)
        self.waiting.remove(row)
        self.running.add(row)
        self.state[row], self.held[row] = RUNNING, gpus.size
        self.observer.started(row, now)
        if math.isnan(self.start_s[row]):
            self.start_s[row] = now
        delay_s, self.restart_s[row] = float(self.restart_s[row]), 0.0
        job = self.training.get(row)
        if job is None:
            self.rigid.start(row, holding, delay_s)
            if self._clocks_vary:
                self.throttle.changed()
            return
        if job.data is None and job.spec.data is not None:
            job.holding = holding
            self._place_data(job, job.spec.data)
        job.start(holding, now, delay_s)
        self._neighbours_changed(row)
        self.engine.begin(job)
        if self._clocks_vary:
            self.throttle.changed()

    def _stop(self, row: int, reason: str) -> None:
        """Take the GPUs from a running job and put it back in the queue; for `fault` it loses what is not saved."""
        job, lost = self.training.get(row), reason == "fault"
        restart = self.scenario.restart
        cost_s = restart.initialisation
        if lost:
            cost_s += restart.detection + restart.rescheduling
            self.restarts[row] += 1
        if job is None:
            self.rigid.stop(row, lost=lost)
        else:
            self.engine.settle(job, before=lost)
            self.engine.halt(job)
            cost_s += job.save_s * (1 if lost else 2)  # read back; when preempted, written first too
            self.meter.cut_off(job, self.clock.now)
            job.stop(self.clock.now, lost=lost)
        for listener in self._listeners:
            listener.ends(row, reason)
        self._neighbours_changed(row)
        self.cluster.release(row)
        self.running.remove(row)
        self.waiting.add(row)
        self.state[row], self.held[row] = WAITING, 0
        self.restart_s[row] = cost_s
        self.observer.stopped(row, self.clock.now)
        if self._clocks_vary:
            self.throttle.changed()
        if lost:
            self.futility.restarted(row)

    def _neighbours_changed(self, row: int) -> None:
        """Training jobs that share a GPU with this one run at another speed from their next period on."""
        holding = self.cluster.holding[row]
        if (holding.share == 1.0).all():
            return
        for other, job in self.training.items():
            if other != row and job.holding is not None and np.isin(job.holding.gpu, holding.gpu).any():
                self.engine.reconfigure(job)

    # -- ends ----------------------------------------------------------------------------------------------

    def _period_ended(self, job: TrainingJob) -> None:
        if job.done:
            self.engine.halt(job)
            job.generation += 1
            if job.data is not None:
                job.data.release()
            self.meter.training(job)
            self._neighbours_changed(job.row)
            self._finish(job.row)
            self._event()
            return
        every = self.scenario.decide.every_steps
        if every is not None and job.steps_since_decision >= every:
            job.steps_since_decision = 0
            self.request_decision()

    def _finish(self, row: int) -> None:
        now = self.clock._now
        for listener in self._listeners:
            listener.ends(row, "completed")
        self.cluster.release(row)
        self.running.remove(row)
        self.state[row], self.held[row] = DONE, 0
        self.completion_s[row] = now
        self.observer.finished(row, now)
        self.completed += 1
        if self.completed == len(self.demand):
            self.done.succeed()
        if self._clocks_vary:
            self.throttle.changed()

    def _rigid_ended(self, row: int) -> None:
        self._finish(row)
        self._last_event()

    def _transferred(self, transfer: Transfer) -> None:
        self.observer.transferred(transfer)

    def _refused(self, what: str, why: str) -> None:
        self.refusals.append((self.clock.now, what, why))

    # -- faults (called by sim.faults) ---------------------------------------------------------------------

    def node_down(self, node: int, *, saved: bool = False) -> None:
        """A node dies; its jobs lose what is not saved, unless they could save first."""
        if not self.cluster.up[node]:
            return
        for row in self.cluster.jobs_on(node):
            job = self.training.get(row)
            if job is None or not self._regroups(job, node):
                self._stop(row, "preempted" if saved else "fault")
                self.preemptions[row] += saved
        self.cluster.take_down(node)
        self.transfers.node_changed(node)
        self._down_since_s[node] = max(self.clock.now, float(self.demand.arrival_s[0]))
        if self.timeline is not None:
            self.timeline.node_down(node)
        if self._clocks_vary:
            self.throttle.changed()
        self.futility.node_failed()
        self._event()

    def _regroups(self, job: TrainingJob, node: int) -> bool:
        """Let a job go on with the workers that are left, when it may; returns whether it does."""
        per, held = job.gpus_per_worker, job.holding
        assert held is not None
        lost = (self.cluster.gpus.node[held.gpu] == node).reshape(-1, per).any(axis=1)
        alive = np.repeat(~lost, per)  # a worker over several nodes needs them all
        left, fewest = int(alive.sum()) // per, job.spec.workers_min or 1
        if job.spec.on_worker_loss != "regroup" or left < fewest:
            return False
        self.engine.settle(job, before=True)
        self.engine.halt(job)
        self.meter.cut_off(job, self.clock.now)
        self.observer.traffic(job)
        job.cut(self.clock.now)
        for listener in self._listeners:
            listener.ends(job.row, "fault")
        self.cluster.release(job.row)
        holding = self.cluster.book(job.row, held.gpu[alive], held.share[alive])
        for listener in self._listeners:
            listener.begins(job.row, holding)
        restart = self.scenario.restart
        job.regroup(holding, self.clock.now, restart.detection + restart.initialisation)
        self.restarts[job.row] += 1
        self.held[job.row] = holding.gpu.size
        self.observer.regrouped(job.row, self.clock.now)
        self.engine.begin(job)
        if self._clocks_vary:
            self.throttle.changed()
        self.futility.restarted(job.row)
        return True

    def node_up(self, node: int) -> None:
        """A node is repaired."""
        if not self.cluster.up[node]:
            self.cluster.bring_up(node)
            self.transfers.node_changed(node)
            self._down_s[node] += max(0.0, self.clock.now - self._down_since_s.pop(node))
            if self.timeline is not None:
                self.timeline.node_up(node)
            if self._clocks_vary:
                self.throttle.changed()
            self._event()

    def down_s(self) -> Floats:
        """Time that each node has been down since the first arrival, (nodes,)."""
        down_s = self._down_s.copy()
        for node, since_s in self._down_since_s.items():
            down_s[node] += max(0.0, self.clock.now - since_s)
        return down_s

    def set_slow(self, node: int, factor: float) -> None:
        """A node computes `factor` times slower from now on (1: healthy)."""
        self.fault_slow[node] = factor
        self.cluster.slow[node] = factor / self.meter.clock[node]
        for row in self.cluster.jobs_on(node):
            job = self.training.get(row)
            if job is None:
                self.rigid.speed_changed(row)
            else:
                self.engine.reconfigure(job)
        self._event()

    def set_clocks(self, clock: Floats) -> None:
        """Nodes compute at these clocks, relative to their highest, from now on; (nodes,)."""
        changed = np.flatnonzero(clock != self.meter.clock)
        if not changed.size:
            return
        slower = clock != self.meter.clock
        rows = sorted(row for row, held in self.cluster.holding.items() if slower[held.nodes].any())
        for row in rows:
            job = self.training.get(row)
            if job is not None:
                self.engine.settle(job)
                self.meter.training(job)
            else:
                self.rigid.book_running(row)
                if self.books is not None:
                    self.books.meter_rigid(row)
        self.meter.set_clock(clock)
        self.cluster.slow[changed] = self.fault_slow[changed] / clock[changed]
        for row in rows:
            job = self.training.get(row)
            if job is None:
                self.rigid.speed_changed(row)
            else:
                self.engine.reconfigure(job)

    def happened(self, kind: str, node: int, value: float) -> None:
        """Note an event on a node in the timeline."""
        if self.timeline is not None:
            self.timeline.happened(kind, self.cluster.topology.node_names[node], value)

    def noticed(self) -> None:
        """Something happened that policies should see."""
        self._event()

    def idle_w(self, node: int) -> float:
        """What a node draws while nobody computes on it (W)."""
        power = self.meter.power
        return float(self.cluster.nodes.gpus[node] * power.idle_w[node] + power.base_w[node])

    def total_idle_w(self) -> float:
        """What all nodes draw while nobody computes (W)."""
        power = self.meter.power
        return float((self.cluster.nodes.gpus * power.idle_w + power.base_w).sum())

    def close(self, time_s: float) -> None:
        """The run ends at `time_s` with jobs still running: book what they have done by then."""
        self.clock._now = time_s
        for row in self.running.rows.tolist():
            job = self.training.get(row)
            if job is None:
                self.rigid.book_until_now(row)
            else:
                self.engine.settle(job)
                self.observer.traffic(job)
                self.meter.cut_off(job, time_s)
                job.book_unfinished(time_s)
            for listener in self._listeners:
                listener.ends(row, "open")

    # -- accounts ------------------------------------------------------------------------------------------

    def account(self, row: int) -> tuple[Floats, int, float, int, int]:
        """(GPU-seconds by use, samples, useful samples, lost samples, steps) of one job."""
        job = self.training.get(row)
        if job is None:
            return self.rigid.gpu_s[row], 0, 0.0, 0, 0
        a = job.account
        return a.gpu_s, a.samples, a.useful_samples, a.lost_samples, a.steps

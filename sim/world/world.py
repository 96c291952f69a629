"""The simulated world: jobs arrive, run and end, faults strike, and policies observe and act.

Handlers change state and ask for a decision; one decision per instant, after all else, sees them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from simpy.events import Event

from equipoise.policies.contract import AllocationStage, Decision, Memory, Plan, Policy, Refusal, decide, refine
from equipoise.policies.observation import Observation, writable
from equipoise.policies.plan import BY_CLOCK
from equipoise.policies.queues.within import within_queues
from equipoise.sim.advance.event_by_event import EventByEvent
from equipoise.sim.advance.fast import Fast
from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.meter import Meter
from equipoise.sim.cluster.power import node_power
from equipoise.sim.feature import modules
from equipoise.sim.hardware.contracts import acting_faults
from equipoise.sim.hardware.kinds import power_share
from equipoise.sim.hardware.prices import Prices
from equipoise.sim.job.dataset import JobData
from equipoise.sim.job.demand import Demand
from equipoise.sim.job.listener import Listeners
from equipoise.sim.job.rigid import RigidJob, RigidJobs
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.ledger.bill import CostAccounts
from equipoise.sim.ledger.late import HeldLate, RanOn
from equipoise.sim.ledger.timeline import Timeline
from equipoise.sim.network.network import Network
from equipoise.sim.network.topology import Topology
from equipoise.sim.network.transfers import Transfer, Transfers
from equipoise.sim.randomness import estimate_factors, stream
from equipoise.sim.scenario.model import Data, FaultsSpec, Scenario
from equipoise.sim.shown import all_shown
from equipoise.sim.world.allocate import Allocator, Writes
from equipoise.sim.world.apply import hand_over
from equipoise.sim.world.arrivals import JobArrivals, place_data
from equipoise.sim.world.decisions import Decisions
from equipoise.sim.world.faults import Faults, LossRates
from equipoise.sim.world.feature import FeatureRun, WorldParts
from equipoise.sim.world.nodes import NodeEvents
from equipoise.sim.world.observe import Observer, PathWatch, Traffic
from equipoise.sim.world.roster import Roster
from equipoise.sim.world.stall import StallDetection, Stalled
from equipoise.sim.world.throttle import Throttle, clocks_vary

DecisionHook = Callable[[Decision, list[Refusal]], None]

IDLE_TICKS = 1000
"""A policy that starts nothing on an idle cluster at so many decisions in a row never will."""


def _refine_copy(policy: Policy, observation: Observation, memory: Mapping[str, Memory]) -> Decision:
    """As `refine`, for a decision that is recorded: it copies the observation, whose tables change afterwards."""
    return refine(policy, observation.snapshot(), memory)


class SimWorld:
    """The simulated world behind the interface between policies and worlds, composed of its parts.

    Args:
        scenario, demand, cluster, topology: what is simulated.
        policy: the stages that decide.
        seed: of noise, faults and estimates.
        on_decision: called with each decision and what of it was refused at once.
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
        policy = within_queues(policy) if demand.claims.queues.restricts else policy
        self.scenario, self.demand, self.cluster, self.policy = scenario, demand, cluster, policy
        self.seed, self.on_decision, self.prices = seed, on_decision, prices
        self._ask = refine if on_decision is None else _refine_copy
        self.clock = Clock()
        self.done = Event(self.clock)
        self.memory: dict[str, Memory] = policy.initial()
        self.decided = 0  # decisions made
        self.refusals: list[tuple[float, Refusal]] = []
        self.by_clock = 0  # decisions in which a limit of wall time was reached
        self._idle_ticks = 0
        self._idle = False  # jobs wait, none runs, and the policy has started none
        drawn = estimate_factors(seed, demand.drawn_as, scenario.decide.estimate_error)
        factor = np.where(np.isnan(demand.spare_s), drawn, 1.0)
        self.roster = Roster(demand, factor, scenario.restart.initialisation)
        self.decisions = Decisions(
            scenario.decide, self.clock, self.roster, self._decide, lambda: self.throttle.next_look_s
        )
        self._starts_only = all(isinstance(stage, AllocationStage) and stage.starts_only for stage in policy.stages)
        self._fractions = bool((demand.gpu_share < 1.0).any())
        rented = any(group.rented for group in scenario.cluster.groups)
        self._fixed_gangs = self._starts_only and not self._fractions and not demand.training and not rented
        per_s = scenario.decide.writes_per_s
        self.writes = None if per_s is None else Writes(per_s, scenario.decide.writes_burst)
        self._horizon_s = math.inf if scenario.horizon is None else scenario.horizon
        self.network = Network(self.clock, topology.capacity_bytes_per_s)
        self.engine = self._make_engine(event_by_event, topology)
        self.transfers = Transfers(
            self.clock, self.network, topology, cluster.up, self.engine.links_changed, self._transferred
        )
        self._connect(timeline)
        self.runtimes = self._start_features()
        self.arrivals.plan_next()
        self.decisions.begin()
        self.faults = Faults(acting_faults(scenario), self.clock, cluster, self.nodes, seed)
        for runtime in self.runtimes:
            runtime.begin()

    def _make_engine(self, event_by_event: bool, topology: Topology) -> EventByEvent:
        if event_by_event:
            return EventByEvent(self.clock, self.network, self._period_ended, self._refused)
        return Fast(
            self.clock,
            self.network,
            topology.capacity_bytes_per_s,
            self._period_ended,
            self._refused,
            self.decisions.steps_left,
            self.decisions.next_planned_s,
        )

    def _connect(self, timeline: bool) -> None:
        """Create the parts that act on jobs and nodes, and the listeners."""
        clock, cluster, scenario, demand, roster = (self.clock, self.cluster, self.scenario, self.demand, self.roster)
        power, varying = node_power(cluster), clocks_vary(scenario)
        share, models = np.ones(len(demand)), scenario.workload.models
        for row, spec in demand.training.items():
            share[row] = power_share(models[spec.model or ""])
        self.meter = meter = Meter(
            power,
            cluster.gpus.node,
            share,
            self.prices.pays_energy,
            varies=varying or not (self.prices.uniform and power.uniform),
        )
        uneven = meter.varies
        self.costs = CostAccounts(len(demand), meter, self.prices.usd_per_gpu_s) if uneven else None
        faults = acting_faults(scenario)
        can_lose = faults != FaultsSpec() or any(g.available is not None for g in scenario.cluster.groups)
        uses = [use for shown in all_shown() for use in shown.uses]
        self.timeline = Timeline(demand, cluster, meter, can_lose=can_lose, uses=uses) if timeline else None
        traffic, paths = Traffic(cluster), PathWatch(cluster.topology)
        losses = LossRates(faults, cluster)
        self.mtbf_s = losses.mtbf_s
        several = len(cluster.gpu_models) > 1
        self.ran_on = RanOn(len(demand), cluster.gpu_models, cluster.gpus.model) if several else None
        self.held_late = HeldLate(float(demand.arrival_s[-1]))
        stall = StallDetection(demand, roster.waiting, roster.running, losses.worst_s)
        heard = (self.costs, traffic, paths, self.timeline, stall, self.ran_on, self.held_late)
        self.listeners = Listeners(listener for listener in heard if listener is not None)
        self.rigid = RigidJobs(
            clock,
            cluster,
            demand,
            self._rigid_ended,
            meter.computed_evenly if uneven else None,
            self.mtbf_s,
            scenario.restart,
        )
        self.allocator = Allocator(
            clock,
            cluster,
            roster,
            self.rigid,
            scenario.restart,
            self.writes,
            self.listeners,
            (lambda: self.throttle.changed()) if varying else None,
        )
        self.nodes = NodeEvents(
            clock,
            cluster,
            roster,
            self.allocator.stop,
            self.allocator.changed,
            meter,
            self.transfers,
            self.listeners,
            self.engine.set_capacity,
            self.decisions.event,
        )
        self.throttle = Throttle(scenario, clock, cluster, power, meter, self.nodes)
        self.observer = Observer(clock, cluster, roster, self.rigid, self.policy, self.listeners, traffic, paths)
        self.observer.draws = meter if scenario.energy.policy_caps else None
        self.arrivals = JobArrivals(
            clock, roster, self._make_training, self.decisions.last_event, self._unasked_until_s
        )

    def _start_features(self) -> tuple[FeatureRun, ...]:
        """The features that the scenario uses; they hear of events after all others."""
        engine = WorldParts(
            self.scenario,
            self.seed,
            self.clock,
            self.cluster,
            self.roster,
            self.allocator,
            self.nodes,
            self.decisions,
            self.meter,
            self.prices.usd_per_gpu_s,
            self.timeline,
            lambda: (lack for runtime in self.runtimes for lack in runtime.lacks()),
        )
        started: tuple[FeatureRun, ...] = tuple(module.RUN(engine) for module in modules(self.scenario, "run"))
        for runtime in started:
            self.listeners.add(runtime)
        return started

    # -- jobs ----------------------------------------------------------------------------------------------

    def _make_training(self, row: int) -> TrainingJob:
        spec, scenario = self.demand.training[row], self.scenario
        assert spec.model is not None
        return TrainingJob(
            row,
            self.demand.name[row],
            spec,
            scenario.workload.models[spec.model],
            self.cluster,
            self.engine,
            self.meter,
            self.listeners,
            lambda data, nodes: self._place_data(row, data, nodes),
            drawn_as=self.demand.drawn_as[row],
            seed=self.seed,
            noise=scenario.noise,
            mtbf_s=self.mtbf_s,
            restart=scenario.restart,
        )

    def _place_data(self, row: int, data: Data, nodes: list[int]) -> JobData:
        random = stream(self.seed, f"shards:{self.demand.drawn_as[row]}")
        return place_data(data, nodes, self.cluster, self.transfers, row, random)

    def _unasked_until_s(self) -> float:
        """When the queue is looked at again, at the earliest: with everything taken, not before the next event."""
        if self._fixed_gangs and not self.cluster.free_gpus and self.roster.running:
            return min(self.clock.peek(), self._horizon_s)
        return -math.inf

    def _period_ended(self, job: TrainingJob) -> None:
        if job.progress.done:
            job.finish()
            self._finish(job)
            self.decisions.event()
        else:
            self.decisions.stepped(job)

    def _rigid_ended(self, job: RigidJob) -> None:
        self._finish(job, "timeout" if self.rigid.timed_out[job.row] else "completed")
        self.decisions.last_event()

    def _finish(self, job: TrainingJob | RigidJob, reason: str = "completed") -> None:
        self.allocator.finish(job, reason)
        for tell in self.listeners.gpus_released:
            tell()
        if self.roster.completed == len(self.demand) and not self.lasts:
            self.done.succeed()

    def _transferred(self, transfer: Transfer) -> None:
        for tell in self.listeners.transferred:
            tell(transfer, self.clock.now)

    def _refused(self, what: str, why: str) -> None:
        refusal = Refusal(what, why)
        self.refusals.append((self.clock.now, refusal))
        self.observer.refused.append(refusal)

    @property
    def lasts(self) -> bool:
        """Whether the run continues to its horizon after all jobs are done."""
        return any(runtime.holds_open for runtime in self.runtimes)

    # -- decisions -----------------------------------------------------------------------------------------

    def observe(self) -> Observation:
        """The current observation for policies."""
        found = self.observer.observe()
        if self.runtimes:
            found.beside = {name: table for runtime in self.runtimes for name, table in runtime.observed().items()}
        return found

    def apply(self, plan: Plan) -> list[Refusal]:
        """Carry out a feasible plan: stops and starts at once, the rest at the end of each running period.

        What turns out impossible then, the next observation tells.
        """
        if plan.changes_nothing():
            return []
        if plan.suspect is not None:
            writable(self.cluster.gpus, "suspect")[:] = plan.suspect
        if plan.power_cap_w is not None:
            self.throttle.set_caps(plan.power_cap_w)
        replaced: set[int] = set()
        refused: list[Refusal] = []
        if plan.allocation is not None:
            replaced = self.allocator.apply(plan.allocation)
            refused = self.allocator.refused
            if refused:
                self.decisions.request()  # what is free now was not foreseen
        if self.roster.training:
            seen = self.observer
            hand_over(
                plan,
                replaced,
                self.roster.training,
                seen.members,
                seen.shards,
                seen.workers,
                self.engine.plan_changed,
                self.scenario.decide.delay_rounds,
            )
        return refused

    def _decide(self) -> None:
        for tell in self.listeners.gpus_released:
            tell()
        self._ask_policy()
        for tell in self.listeners.decided:
            tell()
        if self._idle:
            self._check_not_stalled()

    def _ask_policy(self) -> None:
        self._idle = False
        if self._nothing_to_start():
            return
        decision, refused = decide(self.policy, self, self.memory, self._ask)
        self.memory, plan = decision.memory, decision.plan
        self.decided += 1
        self.by_clock += any(BY_CLOCK in reason.values for reason in plan.reasons)
        if self.writes is not None:
            told_s = self.writes.take(self.clock.now, plan.told)
            stopped_s = -math.inf if plan.allocation is None else self.allocator.stopped_s
            self.decisions.busy_until_s = max(told_s, stopped_s)
        self.decisions.revisit_at(plan.revisit_s)
        if self.on_decision is not None:
            self.on_decision(decision, refused)
        self._idle = bool(self.roster.waiting) and not self.roster.running and plan.allocation is None
        if not self._idle:
            self._idle_ticks = 0

    def _nothing_to_start(self) -> bool:
        """Whether the policy can only start jobs, and none can be: nothing waits, or nothing is free."""
        roster = self.roster
        return self._starts_only and not (
            roster.waiting and (self.cluster.free_gpus > 0 or self._fractions or not roster.running)
        )

    def _check_not_stalled(self) -> None:
        """Raise Stalled when no event is left that could ever start a waiting job."""
        if not self.arrivals.all_here or self._nodes_may_come():
            return
        if any(runtime.may_release() for runtime in self.runtimes):
            return
        if (self.decisions.ticks or self.decisions.revisits) and self._idle_ticks < IDLE_TICKS:
            self._idle_ticks += 1
            return
        waiting = self.roster.waiting
        names = ", ".join(self.demand.name[row] for row in waiting.rows[:3].tolist())
        raise Stalled(f"policy {self.policy.name} leaves {len(waiting)} jobs waiting on an idle cluster ({names})")

    def _nodes_may_come(self) -> bool:
        """Whether a node is away that something may bring back."""
        away = set(np.flatnonzero(~self.cluster.up).tolist()) - self.faults.gone
        nodes = self.nodes
        if not nodes.scaled:
            return bool(away)
        coming = any(runtime.brings_nodes() for runtime in self.runtimes)
        return coming or bool(away & nodes.reclaimed_nodes) or not away <= nodes.released_nodes

    def close(self, time_s: float) -> None:
        """The run ends at `time_s` with jobs still running: book what they have done by then."""
        self.clock._now = time_s
        self.allocator.close(time_s)

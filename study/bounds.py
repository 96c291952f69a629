"""Lower bounds on makespan and mean completion time for all policies.

With p_j the least GPU-seconds that job j can need, f_j its shortest possible duration, G the cluster's
GPUs and a_j the arrivals:

    makespan        >= max( max_j (a_j + f_j),  max_a (a + sum of p_j over jobs arriving at or after a, / G) )
    mean completion >= max( preemptive SRPT of sizes p_j / G on one machine,  mean f_j )

The cluster as one machine that can always give all of itself to any job is a relaxation of every schedule,
and shortest remaining processing time is optimal on it (Schrage 1968). GPUs are counted in units of the
best one: a group that no job runs on faster than u times its best rate counts as u per GPU.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.inputs import trace_of
from equipoise.sim.job.demand import Demand, make_demand
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.seeds import step_noise
from equipoise.sim.traces.trace import Trace
from equipoise.study.needs import Capacity, LowerBound

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Needs:
    """The least that each job can need; all arrays (jobs,), in order of arrival.

    arrival_s; fastest_s: shortest possible duration; gpu_s: least GPU-seconds on the best GPUs;
    gpus: the cluster in best-GPU equivalents.
    """

    arrival_s: Floats
    fastest_s: Floats
    gpu_s: Floats
    gpus: float

    def makespan_s(self) -> float:
        """Lower bound on the last completion less the first arrival, in O(n)."""
        later_gpu_s = np.cumsum(self.gpu_s[::-1])[::-1]
        needed_s = np.maximum(self.fastest_s, later_gpu_s / self.gpus)
        return float((self.arrival_s + needed_s).max() - self.arrival_s[0])

    def completion_mean_s(self) -> float:
        """Lower bound on the mean of completion minus arrival, in O(n log n)."""
        total_s = srpt_total_completion_s(self.arrival_s, self.gpu_s / self.gpus)
        return max(total_s / self.arrival_s.size, float(self.fastest_s.mean()))


def lower_bound(scenario: Scenario, trace: Trace | None = None) -> LowerBound:
    """Lower bounds of a scenario for all policies. Raises InputError when it has no jobs."""
    trace = trace if trace is not None else trace_of(scenario)
    if trace is None and scenario.workload.generate is not None:
        return LowerBound(math.nan, math.nan, noise_free=True)  # other jobs on every seed, other bounds
    profile = load_profile(scenario.cluster.hardware)
    cluster = Cluster(scenario.cluster, profile, Topology(scenario.cluster, profile))
    needs = needs_of(make_demand(scenario, trace, cluster), scenario, Capacity(scenario.cluster, profile))
    return LowerBound(needs.makespan_s(), needs.completion_mean_s(), step_noise(scenario))


def needs_of(demand: Demand, scenario: Scenario, capacity: Capacity) -> Needs:
    """The least that each job of a scenario can need."""
    fastest_s, gpu_s = capacity.rigid(demand.gpus, demand.gpu_share, demand.duration_s, demand.paces)
    fewest = demand.gpus.copy()
    for row, (least_gpus, _) in demand.shrinks.items():
        fewest[row] = least_gpus
    fastest_s = np.minimum(fastest_s, demand.limit_s)
    gpu_s = np.minimum(gpu_s, (fewest * demand.gpu_share * demand.limit_s)[:, None])
    known: dict[int, tuple[float, Floats]] = {}  # copies of one job share their specification
    for row, spec in demand.training.items():
        if id(spec) not in known:
            assert spec.model is not None  # a training job has one
            known[id(spec)] = capacity.training(spec, scenario.workload.models[spec.model])
        fastest_s[row], gpu_s[row] = known[id(spec)]
    least = gpu_s.min(axis=1)
    relative = np.divide(least[:, None], gpu_s, out=np.zeros_like(gpu_s), where=gpu_s > 0)
    gpus = float((relative.max(axis=0) * capacity.gpus).sum())  # 0 when no job needs any time
    return Needs(demand.arrival_s, fastest_s, least, gpus or float(capacity.gpus.sum()))


def srpt_total_completion_s(arrival_s: Floats, size_s: Floats) -> float:
    """Sum of completion minus arrival under preemptive SRPT on one machine; arrivals ascending, all (n,)."""
    arrivals, sizes = arrival_s.tolist(), size_s.tolist()
    total_s, now_s, k, n = 0.0, 0.0, 0, len(arrivals)
    remaining: list[tuple[float, float]] = []  # (seconds left, arrival)
    while k < n or remaining:
        if not remaining:
            now_s = max(now_s, arrivals[k])
        while k < n and arrivals[k] <= now_s:
            heapq.heappush(remaining, (sizes[k], arrivals[k]))
            k += 1
        left_s, arrived_s = heapq.heappop(remaining)
        if k < n and now_s + left_s > arrivals[k]:
            heapq.heappush(remaining, (left_s - (arrivals[k] - now_s), arrived_s))
            now_s = arrivals[k]
        else:
            now_s += left_s
            total_s += now_s - arrived_s
    return total_s

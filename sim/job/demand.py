"""The jobs of a scenario in order of (arrival, id), from its list and its trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.formats.text.columns import Text
from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cost.step import replica_cost_s
from equipoise.sim.job.claims import Claims, charge_accounts, make_claims, refuse_too_large, texts_by_kind
from equipoise.sim.job.declared import Declared
from equipoise.sim.job.paces import Paces, make_paces
from equipoise.sim.scenario.model import Checkpoint, Data, JobSpec, Model, Scenario, TraceSpec, TrainingJobs
from equipoise.sim.scenario.names import unknown
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import MAX_TIME_S
from equipoise.sim.traces.trace import Trace


@dataclass(frozen=True)
class Demand:
    """Parallel columns over jobs; `training[row]` is the specification of a training job, else it is rigid.

    columns: other properties of jobs (submitter and further columns of a trace), "" or NaN where unknown.
    claims: the same as codes, with the declarations of queues.
    """

    id: Ints
    name: list[str]
    arrival_s: Floats
    gpus: Ints
    gpu_share: Floats
    priority: Floats
    duration_s: Floats
    checkpoint: list[Checkpoint]
    training: dict[int, JobSpec]
    notes: tuple[str, ...]
    mixes: Bools  # its GPUs may be of several models
    paces: Paces
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    claims: Claims = field(default_factory=Claims)
    limit_s: Floats = field(default_factory=lambda: np.empty(0))  # longest running time (jobs,), inf: no limit
    by_limit: bool = False  # policies plan with time limits
    shrinks: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # duration jobs: (fewest GPUs, in steps of)

    def __len__(self) -> int:
        return len(self.id)

    @cached_property
    def drawn_as(self) -> list[str]:
        """Key of each job's random numbers: its name, with a number if earlier jobs have the same name."""
        seen: dict[str, int] = {}
        found = []
        for name in self.name:
            times = seen[name] = seen.get(name, -1) + 1
            found.append(f"{name}#{times}" if times else name)
        return found

    @cached_property
    def spare_s(self) -> Floats:
        """The given time limit minus the effective one, (jobs,); NaN where policies do not plan with it."""
        given_s = self.columns.get("time_limit_s")
        if not self.by_limit or given_s is None:
            return np.full(len(self), np.nan)
        spare_s: Floats = np.where(np.isfinite(self.limit_s), given_s, np.nan) - self.limit_s
        return spare_s

    def estimates_s(self, factor: Floats) -> Floats:
        """Total duration that policies assume for each job (jobs,); factor: estimated over real duration."""
        worked_s = np.minimum(self.duration_s * factor, self.limit_s)
        estimates_s: Floats = np.where(np.isnan(self.spare_s), worked_s, self.limit_s + self.spare_s)
        return estimates_s


def expand(job: JobSpec) -> list[tuple[str, float, JobSpec]]:
    """(name, arrival, specification) of `count` copies of a job."""
    if job.count == 1:
        return [(job.name, job.arrival, job)]
    return [(f"{job.name}-{k}", job.arrival + k * job.spacing, job) for k in range(job.count)]


def make_demand(scenario: Scenario, trace: Trace | None, cluster: Cluster) -> Demand:
    """All jobs of a scenario. Raises InputError when there are none, or one is larger than the cluster."""
    listed = [entry for job in scenario.workload.jobs for entry in expand(job)]
    traced = 0 if trace is None else len(trace.job_id)
    if not listed and not traced:
        raise InputError([f"{scenario.name}: workload: no jobs; give workload.jobs, or a trace with --trace FILE"])
    ids = np.arange(len(listed), dtype=np.int64)
    arrival = np.array([a for _, a, _ in listed], dtype=np.float64)
    gpus = np.array([j.gpus for _, _, j in listed], dtype=np.int64)
    share = np.array([j.gpu_share for _, _, j in listed], dtype=np.float64)
    priority = np.array([j.priority for _, _, j in listed], dtype=np.float64)
    duration = np.array([math.nan if j.duration is None else j.duration for _, _, j in listed])
    specs: dict[int, JobSpec] = {k: j for k, (_, _, j) in enumerate(listed) if j.model is not None}
    names = [name for name, _, _ in listed]
    checkpoints = [j.checkpoint for _, _, j in listed]
    mixes = np.array([j.mix_gpus or j.model is not None for _, _, j in listed], dtype=np.bool_)
    types = [j.job_type for _, _, j in listed]
    recorded = np.arange(len(listed) + traced) >= len(listed)
    notes: tuple[str, ...] = ()
    if trace is not None:
        spec = scenario.workload.trace or TraceSpec(file=trace.source or "trace")
        offset, notes = len(listed), trace.notes
        ids = np.concatenate((ids, trace.job_id + (int(ids.max()) + 1 if offset else 0)))
        arrival = np.concatenate((arrival, trace.arrival_s))
        gpus, duration = np.concatenate((gpus, trace.gpus)), np.concatenate((duration, trace.duration_s))
        share = np.concatenate((share, np.ones(traced) if trace.gpu_share is None else trace.gpu_share))
        priority = np.concatenate((priority, trace.priority))
        names += trace.name or [str(k) for k in trace.job_id.tolist()]
        checkpoints += [spec.checkpoint] * traced
        mixes = np.concatenate((mixes, np.full(traced, spec.mix_gpus)))
        named = trace.columns.get("job_type")
        types += list(named) if isinstance(named, Text) else [""] * traced
        for row, job in _trained(scenario, spec, trace, cluster).items():
            specs[offset + row] = job
            duration[offset + row], mixes[offset + row] = math.nan, True
    order = np.lexsort((ids, arrival))
    gpus, mixes, rigid = gpus[order], mixes[order], ~np.isnan(duration[order])
    paces = make_paces(scenario, cluster, gpus, [types[k] for k in order.tolist()], rigid, recorded[order])
    back = {int(old): new for new, old in enumerate(order.tolist())}
    demand = Demand(
        ids[order],
        [names[k] for k in order],
        arrival[order],
        gpus,
        share[order],
        priority[order],
        duration[order],
        [checkpoints[k] for k in order],
        {back[k]: job for k, job in sorted(specs.items(), key=lambda item: back[item[0]])},
        (*notes, paces.note) if paces.note else notes,
        mixes,
        paces,
        {} if trace is None else _columns(trace, len(listed), order),
        by_limit=scenario.decide.estimate == "time-limit",
    )
    demand = replace(demand, shrinks=_shrinks(demand, {back[k]: job for k, (_, _, job) in enumerate(listed)}))
    demand = _limited(demand, {back[k]: job for k, (_, _, job) in enumerate(listed)})
    demand = _whole_nodes(scenario, demand, cluster, {back[k]: job for k, (_, _, job) in enumerate(listed)})
    _check_fits(scenario, demand, cluster)
    return _claimed(scenario, demand, cluster, {back[k]: job for k, (_, _, job) in enumerate(listed)})


def _shrinks(demand: Demand, listed: Mapping[int, JobSpec]) -> dict[int, tuple[int, int]]:
    """Duration jobs that may start with fewer GPUs, by row: a trace's columns `gpus_min` and `pods`, or the key."""
    none = np.full(len(demand), np.nan)
    least, pods = (demand.columns.get(name, none) for name in ("gpus_min", "pods"))
    found = {row: (job.gpus_min, 1) for row, job in listed.items() if job.gpus_min and job.gpus_min < job.gpus}
    for row in [] if least.dtype == object else np.flatnonzero((least >= 1) & (least < demand.gpus)).tolist():
        fewest, gpus = math.ceil(least[row]), int(demand.gpus[row])
        each = gpus / pods[row] if pods.dtype != object and pods[row] >= 1 else 1.0
        whole = each == int(each) and (gpus - fewest) % each == 0 and fewest % each == 0
        found[row] = fewest, int(each) if whole else 1
    for row in demand.training:  # these say their fewest workers
        found.pop(row, None)
    return found


def _whole_nodes(scenario: Scenario, demand: Demand, cluster: Cluster, listed: Mapping[int, JobSpec]) -> Demand:
    """Give jobs of a duration in exclusive partitions all GPUs of their nodes."""
    if not any(partition.exclusive for partition in scenario.queues.partitions):
        return demand
    declared, gpus = Declared(scenario, cluster), demand.gpus.copy()
    texts = texts_by_kind(demand.columns, list(listed.values()), np.array(list(listed), dtype=np.int64), len(demand))
    named = texts.get("partition", np.full(len(demand), "", dtype=object))
    sizes = {name: declared.gpus_of_a_node(str(name)) for name in dict.fromkeys(named.tolist())}
    for row, name in enumerate(named.tolist()):
        if sizes[name] and row not in demand.training:
            gpus[row] = -(-gpus[row] // sizes[name]) * sizes[name]
    return replace(demand, gpus=gpus)


def _limited(demand: Demand, listed: Mapping[int, JobSpec]) -> Demand:
    """Add the time limits of duration jobs; a trace's job that ended late has its recorded end."""
    given_s = demand.columns.get("time_limit_s")
    given_s = np.full(len(demand), np.nan) if given_s is None or given_s.dtype == object else given_s.copy()
    limit_s = np.where(given_s > 0.0, np.fmax(given_s, demand.duration_s), np.inf)
    for row, job in listed.items():
        if job.time_limit is not None:
            given_s[row] = limit_s[row] = job.time_limit
    limit_s[np.isnan(demand.duration_s)] = np.inf
    columns = {**demand.columns, "time_limit_s": given_s}
    return replace(demand, limit_s=limit_s, columns=demand.columns if np.isnan(given_s).all() else columns)


def _claimed(scenario: Scenario, demand: Demand, cluster: Cluster, listed: Mapping[int, JobSpec]) -> Demand:
    """Add the submitters, and remove jobs that can never start where the scenario leaves these out."""
    rows = np.array(list(listed), dtype=np.int64)
    texts = texts_by_kind(demand.columns, list(listed.values()), rows, len(demand))
    charged = charge_accounts(texts, scenario.queues.users)
    least, sizes = demand.gpus.copy(), dict[int, range]()
    for row, job in demand.training.items():
        model = scenario.workload.models[job.model or ""]
        per = model.parallel.tensor * model.parallel.pipeline
        least[row] = (job.workers_min or max(1, job.gpus // per)) * per
        sizes[row] = range(int(least[row]), job.gpus // per * per + 1, per)
    for row, (fewest, step) in demand.shrinks.items():
        least[row] = fewest
        sizes[row] = range(fewest, int(demand.gpus[row]) + 1, step)
    share = np.minimum(demand.gpu_share, 1.0)
    claims = make_claims(
        scenario,
        cluster,
        texts,
        demand.columns,
        listed,
        least,
        share,
        _tres(demand, listed, -(-least // max(1, int(cluster.nodes.gpus.max(initial=0))))),
        {row: size for row, size in sizes.items() if len(size) > 1},
    )
    notes = (*demand.notes, *charged, *claims.notes)
    found = replace(demand, columns={**demand.columns, **texts}, claims=claims, notes=notes)
    stay = refuse_too_large(scenario, claims, demand.name, least, scenario.queues.too_large == "leave-out")
    return found if stay.all() else _without(found, stay)


def _tres(demand: Demand, listed: Mapping[int, JobSpec], fewest: Ints) -> list[tuple[float, ...]]:
    """Request of each job of RESOURCES; where not given, 0, and the fewest nodes that hold its GPUs."""
    found = np.zeros((len(demand), 3))
    for k, name in enumerate(("cpus", "host_memory_bytes", "nodes")):
        column = demand.columns.get(name)
        if column is not None and column.dtype != object:
            found[:, k] = np.nan_to_num(column)
    for row, job in listed.items():
        found[row] = job.cpus or 0, job.host_memory or 0.0, job.nodes or 0
    found[:, 2] = np.where(found[:, 2] > 0, found[:, 2], fewest)
    return list(map(tuple, found.tolist()))


def _without(demand: Demand, stay: Bools) -> Demand:
    """Only the jobs that stay, and a note on the others."""
    kept, out = np.flatnonzero(stay), np.flatnonzero(~stay)
    if not len(kept):
        raise InputError(["queues: no job is left, because the limits let none of them start"])
    first, claims = int(out[0]), demand.claims
    note = f"{len(out)} jobs left out: they can never start; first {demand.name[first]}: {claims.too_large[first]}"
    new = {old: k for k, old in enumerate(kept.tolist())}
    part: dict[str, Any] = {}
    for name, value in ((f.name, getattr(demand, f.name)) for f in fields(demand)):
        if isinstance(value, list | np.ndarray):
            part[name] = [value[k] for k in kept] if isinstance(value, list) else value[kept]
    return replace(
        demand,
        **part,
        training={new[row]: job for row, job in demand.training.items() if row in new},
        notes=(*demand.notes, note),
        paces=replace(demand.paces, kind=demand.paces.kind[kept]),
        columns={name: column[kept] for name, column in demand.columns.items()},
        claims=replace(
            claims,
            claim=claims.claim[kept],
            gpu_types=claims.gpu_types[kept],
            together=claims.together[kept],
            segment=claims.segment[kept],
            too_large=(),
            smaller={new[row]: most for row, most in claims.smaller.items() if row in new},
        ),
        shrinks={new[row]: pair for row, pair in demand.shrinks.items() if row in new},
    )


def _columns(trace: Trace, listed: int, order: Ints) -> dict[str, NDArray[Any]]:
    """A trace's further columns over all jobs, `listed` jobs of the scenario's own before its rows."""
    found: dict[str, NDArray[Any]] = {}
    for name, column in trace.columns.items():
        if isinstance(column, Text):
            texts = np.array(("", *column.values), dtype=object)
            found[name] = texts[np.concatenate((np.zeros(listed, dtype=np.int64), column.codes + 1))][order]
        else:
            found[name] = np.concatenate((np.full(listed, np.nan), column))[order]
    return found


def _check_fits(scenario: Scenario, demand: Demand, cluster: Cluster) -> None:
    most = int(np.bincount(cluster.gpus.model).max())
    for too_large, of, has, advice in (
        (demand.gpus > len(cluster.gpus), "", len(cluster.gpus), ""),
        (
            ~demand.mixes & (demand.gpus > most),
            " of one model",
            most,
            "; a gang over several models needs mix_gpus: true (of the job, or of workload.trace)",
        ),
    ):
        rows = np.flatnonzero(too_large).tolist()
        if rows:
            more = f" (and {len(rows) - 1} more such jobs)" if len(rows) > 1 else ""
            raise InputError(
                [
                    f"{scenario.name}: job {demand.name[rows[0]]} asks for {demand.gpus[rows[0]]} GPUs{of}, "
                    f"the cluster has {has}{more}{advice}"
                ]
            )


def _models_of(scenario: Scenario, wanted: TrainingJobs, trace: Trace) -> dict[int, str]:
    """Training rows of a trace with their models: rows that name a model, and `count` more, evenly spread."""
    named = {int(row): str(trace.model[row]) for row in np.flatnonzero(trace.model != "")}
    count = min(wanted.count, len(trace))
    for k, row in enumerate(np.unique(np.linspace(0, len(trace) - 1, count).astype(int)).tolist()):
        named.setdefault(row, wanted.models[k % len(wanted.models)])
    for row, name in named.items():
        if name not in scenario.workload.models:
            told = unknown("model", name, sorted(scenario.workload.models))
            raise InputError([f"{scenario.name}: job {trace.name_of(row)} of the trace: {told}"])
    return dict(sorted(named.items()))


def _trained(scenario: Scenario, spec: TraceSpec, trace: Trace, cluster: Cluster) -> dict[int, JobSpec]:
    """Training jobs of a trace, by row: elastic, with as many steps as make their ideal duration the trace's."""
    wanted, jobs = spec.training, {}
    for row, name in _models_of(scenario, wanted, trace).items():
        model, duration_s = scenario.workload.models[name], float(trace.duration_s[row])
        per_worker = model.parallel.tensor * model.parallel.pipeline
        workers = int(trace.gpus[row]) // per_worker
        if workers == 0:
            raise InputError(
                [
                    f"{scenario.name}: job {trace.name_of(row)} of the trace asks for {trace.gpus[row]} GPUs, "
                    f"one replica of model {name!r} needs {per_worker}"
                ]
            )
        batch = max(wanted.global_batch, workers * wanted.micro_batch)
        step_s = _step_s(model, cluster, batch // workers)
        arrival_s = float(trace.arrival_s[row])
        if not (step_s > 0.0 and arrival_s <= MAX_TIME_S):
            why = f"arrives at {arrival_s:g} s" if step_s > 0.0 else f"trains {name!r}, whose steps take zero time"
            raise InputError([f"{scenario.name}: job {trace.name_of(row)} of the trace {why}"])
        if duration_s > step_s * wanted.steps_max:
            longer = duration_s / (step_s * wanted.steps_max)
            batch = wanted.micro_batch * math.ceil(batch * longer / wanted.micro_batch)
            step_s = _step_s(model, cluster, batch // workers)
        steps = max(1, round(duration_s / step_s))
        jobs[row] = JobSpec(
            name=trace.name_of(row),
            arrival=arrival_s,
            gpus=workers * per_worker,
            model=name,
            steps=steps,
            global_batch=batch,
            micro_batch=wanted.micro_batch,
            workers_min=1,
            workers_max=2 * workers,
            data=Data(samples=steps * batch, sample_size=wanted.sample_size, shards=wanted.shards),
            checkpoint=spec.checkpoint,
        )
    return jobs


def _step_s(model: Model, cluster: Cluster, samples: int) -> float:
    fabric = float(cluster.topology.fabric_bytes_per_s[0])
    return replica_cost_s(model, cluster.accelerators[0], max(1, samples), fabric)[1]

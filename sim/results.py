"""Results of a finished run: columns of jobs, totals, notes and the timeline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.contract import AllocationStage
from equipoise.sim.assumptions import assumptions, failures
from equipoise.sim.cost.configuration import Configuration
from equipoise.sim.cost.measured import measured_notes
from equipoise.sim.cost.step import UNBOUNDED, samples_per_pass
from equipoise.sim.feature import features
from equipoise.sim.hardware.carbon import KWH_J, emitted_kg, load_carbon
from equipoise.sim.hardware.contracts import HOUR_S
from equipoise.sim.job.account import BUSY, HELD, HELD_USES, LOST_TO_FAULTS, Use
from equipoise.sim.job.checkpoints import writes_are_given
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.ledger.bill import RESIDUE, Biller
from equipoise.sim.ledger.gpu_account import GpuAccount
from equipoise.sim.llm.shape import NARROW
from equipoise.sim.scenario.units import format_seconds
from equipoise.sim.world.world import SimWorld

Columns = dict[str, NDArray[Any]]


def _input_free(world: SimWorld) -> bool:
    """Whether some job reads data while no input cost is given."""
    said = any(g.ingest is not None or g.local_read is not None for g in world.scenario.cluster.groups)
    reading = [job for job in world.roster.training.values() if job.config.sample_bytes > 0.0]
    return bool(reading) and not said and all(job.model.preprocess_time is None for job in reading)


def _passes(jobs: Iterable[TrainingJob]) -> list[str]:
    """A note on the first job whose step memory splits into several passes."""
    found = [(job, _first_pass(job.config)) for job in jobs]
    split = [(job, most, part) for job, (most, part) in found if most < part]
    if not split:
        return []
    job, most, part = split[0]
    more = f" (and {len(split) - 1} more jobs)" if len(split) > 1 else ""
    return [
        f"job {job.name}{more}: memory holds {most} of the {part} samples of a worker's step, which takes "
        f"{-(-part // most)} passes"
    ]


def _left_aside(world: SimWorld) -> list[str]:
    """Declared settings of queues that the policy does not use; limits and placements always apply."""
    q = world.scenario.queues
    weights = q.priority
    declared = {
        "priority": weights is not None,
        "fair share": weights is not None and weights.fairshare > 0,
        "backfill": q.backfill is not None and q.backfill.depth > 0,
        "reclaim": any(queue.reclaim != "never" or queue.within != "never" for queue in q.queues),
        "preemption": q.preemption is not None,
        "preemption while borrowing": any(queue.borrow_within != "never" for queue in q.queues),
        "queue order": any(queue.order == "strict" for queue in q.queues),
        "fair sharing": q.fair_sharing,
        "topology preferred": any("preferred" in (job.together or "") for job in world.scenario.workload.jobs),
    }
    return [what for what, there in declared.items() if there and what not in _honoured(world)]


def _honoured(world: SimWorld) -> set[str]:
    """What the policy's stages declare to apply."""
    return {what for s in world.policy.stages if isinstance(s, AllocationStage) for what in s.honours}


def _first_pass(config: Configuration) -> tuple[int, int]:
    """(most samples of one pass that memory holds, samples of a step) of one of the workers asked for."""
    part = -(-config.spec.global_batch // config.asked)
    kinds = range(len(config.cluster.accelerators))
    fits = [samples_per_pass(config.model, config.memory_bytes(k), config.asked) for k in kinds]
    limit = config.model.samples_per_pass
    return (UNBOUNDED if max(fits) == limit else max(1, max(fits))), part


def _unknown_drift(jobs: Iterable[TrainingJob]) -> Iterator[str]:
    """A note on models whose interval between exchanges s3 keeps."""
    if names := sorted({job.spec.model for job in jobs if job.spec.model and job.model.drift is None}):
        yield f"s3 keeps the exchange interval of {', '.join(map(repr, names))}: what it loses is unknown; give 'drift'"


def _intervals(jobs: Iterable[TrainingJob]) -> list[str]:
    """A note on the derived checkpoint interval of the first job."""
    found = [
        job for job in jobs if job.checkpoints.spec.interval == "young-daly" and job.checkpoints.interval_s < math.inf
    ]
    if not found:
        return []
    job, saves = found[0], found[0].checkpoints
    more = f" (and {len(found) - 1} more jobs)" if len(found) > 1 else ""
    every, write, mtbf = map(format_seconds, (saves.interval_s, saves.pause_s, saves.mtbf_s(saves.nodes)))
    nodes = f"{len(saves.nodes)} node{'s' * (len(saves.nodes) != 1)}"
    told = f"job {job.name}{more}: a checkpoint every {every}, by young-daly sqrt(2 C M)"
    return [f"{told} from C {write} to write it and M {mtbf} between failures of its {nodes}"]


class Results:
    """Reads a world whose run has ended."""

    def __init__(self, world: SimWorld, *, keeps_timeline: bool) -> None:
        self.world, self.keeps_timeline = world, keeps_timeline
        rigid = world.rigid.gpu_s
        self.gpu_s, self.computed_gpu_s = rigid.copy(), rigid[:, BUSY] + rigid[:, LOST_TO_FAULTS]
        for row, job in world.roster.training.items():
            self.gpu_s[row], self.computed_gpu_s[row] = job.gpu_s, job.computed_gpu_s
        done_s = world.roster.completion_s
        all_done = not bool(np.isnan(done_s).any()) and done_s.size > 0 and not world.lasts
        self.end_s = float(done_s.max()) if all_done else world.clock.now  # with its last job, or when stopped
        self.start_s = min(float(world.demand.arrival_s[0]), self.end_s)  # a horizon may end it before
        for runtime in world.runtimes:
            runtime.close(self.end_s)
        accounts = [account for runtime in world.runtimes if (account := runtime.account()) is not None]
        self.beside, self.shared = GpuAccount.total(accounts), bool(accounts)  # with features that hold GPUs

    def billed(self) -> tuple[Columns, dict[str, float]]:
        """(columns of jobs, totals), with energy and money."""
        world, totals, biller = self.world, self._totals(), self._biller()
        billed, bills = biller.bill(
            self.gpu_s[:, :HELD],
            self.computed_gpu_s,
            world.nodes.down_s(),
            world.nodes.unpaid_s(),
            totals["makespan_s"],
            self.beside,
        )
        jobs = self._jobs() | billed
        for runtime in world.runtimes:
            bills |= runtime.totals()
        bills |= self._carbon(bills["energy_j"]) | self._pools(totals["makespan_s"])
        told = {(f"trace_{k}" if k in jobs else k): column for k, column in self.world.demand.columns.items()}
        return jobs | told, totals | bills

    def _pools(self, span_s: float) -> dict[str, float]:
        """Where nodes come and go: paid hours of each group of nodes, their price, and GPU time away."""
        world, groups = self.world, self.world.scenario.cluster.groups
        if world.scenario.faults.spot is None and not any(group.may_be_away for group in groups):
            return {}
        unpaid_s = world.nodes.unpaid_s()
        paid_h = (span_s - unpaid_s) / HOUR_S
        found, first = {"away_gpu_s": float(world.cluster.nodes.gpus @ unpaid_s)}, 0
        for group in groups:
            of = slice(first, first + group.count)
            found[f"node_h[{group.name}]"] = float(paid_h[of].sum())
            found[f"gpu_usd[{group.name}]"] = float(world.prices.usd_per_h[of] @ paid_h[of])
            first += group.count
        return found

    def _biller(self) -> Biller:
        world = self.world
        return Biller(world.cluster, world.demand, world.prices, world.meter, world.costs, world.scenario.energy.pue)

    def tables(self) -> dict[str, Mapping[str, NDArray[Any]]]:
        """The tables of features, by name."""
        biller, found = self._biller(), dict[str, Mapping[str, NDArray[Any]]]()
        for runtime in self.world.runtimes:
            found |= runtime.tables(biller, self.end_s)
        return found

    def _carbon(self, energy_j: float) -> dict[str, float]:
        """CO2 of the energy drawn, where the scenario gives a carbon intensity."""
        energy, tables = self.world.scenario.energy, self._tables
        found = load_carbon(energy)
        if found is not None and tables is not None:
            usage, day = tables["usage"], found[1].day()
            drawn = (usage["start_s"], usage["end_s"], usage["energy_j"])
            return {"carbon_kg": emitted_kg(*drawn, day, energy.begin)}
        return {} if energy.carbon is None else {"carbon_kg": energy_j / KWH_J * energy.carbon / 1000.0}

    def _jobs(self) -> Columns:
        demand, roster = self.world.demand, self.world.roster
        columns: Columns = {
            "job_id": demand.id,
            "name": np.array(demand.name, dtype=object),
            "arrival_s": demand.arrival_s,
            "start_s": roster.start_s,
            "completion_s": roster.completion_s,
            "gpus": demand.gpus,
            "queueing_s": roster.queueing_s(self.world.clock.now),
            "samples": np.zeros(len(demand), dtype=np.int64),
            "useful_samples": np.zeros(len(demand)),
            "lost_samples": np.zeros(len(demand), dtype=np.int64),
            "steps": np.zeros(len(demand), dtype=np.int64),
            "preemptions": roster.preemptions,
            "restarts": roster.restarts,
        }
        for row, job in roster.training.items():
            for name in ("samples", "useful_samples", "lost_samples", "steps"):
                columns[name][row] = getattr(job.progress.account, name)
        ran_on = {} if self.world.ran_on is None else {"ran_on": self.world.ran_on.column()}
        if np.isfinite(demand.limit_s).any():
            ended = np.where(np.isnan(roster.completion_s), "", "completed").astype(object)
            columns["status"] = np.where(self.world.rigid.timed_out, "timeout", ended)
        return columns | ran_on | {use.column: self.gpu_s[:, use].copy() for use in Use}

    def _totals(self) -> dict[str, float]:
        world, gpus = self.world, float(len(self.world.cluster.gpus))
        used = math.fsum([*(self.gpu_s[:, use].sum() for use in HELD_USES), self.beside.gpu_s])
        there = gpus * (self.end_s - self.start_s)
        late = gpus * max(0.0, self.end_s - world.held_late.after_s)
        idle_late = late - world.held_late.gpu_s
        ends = {"idle_late_gpu_s": 0.0 if abs(idle_late) <= RESIDUE * late else idle_late}
        return {
            "gpus": gpus,
            "nodes": float(len(world.cluster.nodes)),
            "end_s": self.end_s,
            "makespan_s": self.end_s - self.start_s,
            "idle_gpu_s": 0.0 if abs(there - used) <= RESIDUE * there else there - used,
            **({} if self.shared else ends),  # features go on after the last arrival
            "decisions": float(world.decided),
            "refusals": float(len(world.refusals)),
            "exchanged_bytes": math.fsum(job.exchanged_bytes for _, job in sorted(world.roster.training.items())),
            "transferred_bytes": world.transfers.moved_bytes,
            **self._model_work(),
        }

    def _model_work(self) -> dict[str, float]:
        """Model FLOP of training, peak FLOP of the GPUs held, and tokens.

        0 where no job's model states its FLOP, or has tokens.
        """
        world, flop, peak_flop, tokens = self.world, list[float](), list[float](), list[float]()
        counts = np.bincount(world.cluster.gpus.model)
        for row, job in sorted(world.roster.training.items()):
            model, account = job.model, job.progress.account
            if model.flop_per_sample is not None:
                precision = "bf16" if model.precision in NARROW else model.precision
                peaks = [a.flop_per_s[precision].value for a in world.cluster.accelerators if precision in a.flop_per_s]
                if len(peaks) == len(counts):
                    flop.append(account.samples * model.flop_per_sample)
                    peak_flop.append(float(self.gpu_s[row, :HELD].sum()) * float(np.average(peaks, weights=counts)))
            if model.tokens:
                tokens.append(account.samples * model.tokens)
        named = {"model_flop": flop, "peak_flop": peak_flop, "tokens": tokens}
        return {name: math.fsum(found) for name, found in named.items()}

    def notes(self, *, is_random: bool) -> list[str]:
        """Notes for the reader of the results; is_random: whether seeds matter."""
        world = self.world
        notes = list(world.demand.notes)
        if late := int(world.rigid.timed_out.sum()):
            notes.append(f"jobs ended at their time limit: {late}")
        if not is_random:
            notes.append("no noise, faults or estimate error: every seed gives the same run")
        if left := _left_aside(world):
            notes.append(f"policy {world.policy.name} does not apply these settings of 'queues': {', '.join(left)}")
        if np.ptp(world.demand.priority) > 0.0 and "job priority" not in _honoured(world):
            notes.append(f"policy {world.policy.name} does not apply the 'priority' of jobs")
        if _input_free(world):
            notes.append(
                "preprocessing and reads from a node's own disk are never a bottleneck: "
                "no preprocess_time, ingest or local_read is given"
            )
        notes += _passes(world.roster.training.values())
        notes += assumptions(world.scenario, world.cluster)
        notes += _intervals(world.roster.training.values())
        given = (writes_are_given(spec, world.scenario.restart) for spec in world.demand.checkpoint)
        if any(has and not math.isnan(d) for has, d in zip(given, world.demand.duration_s.tolist(), strict=True)):
            notes.append(
                "the duration of a job contains its checkpoints: writing more often does not make it longer, and their "
                "interval and writing time only decide what a fault or a short notice loses"
            )
        if any(stage.name == "s3" for stage in world.policy.stages):
            notes += _unknown_drift(world.roster.training.values())
        scenario, cluster = world.scenario, world.cluster
        on = dict(zip(cluster.gpu_models, cluster.accelerators, strict=True))
        notes += measured_notes(scenario.noise, scenario.workload.models, on)
        for feature in features(scenario):
            notes += feature.notes(world.scenario, world.cluster)
        notes += failures(world.scenario.faults, world.cluster, world.demand.gpus)
        flop, peak_flop, _ = self._model_work().values()
        if flop > peak_flop > 0.0:
            notes.append(
                f"models compute {flop / peak_flop:.3g} times the FLOP of their GPUs' dense peak rate: a "
                "measured step is too short, or 'flop_per_sample' too large"
            )
        if (carbon := load_carbon(scenario.energy)) is not None:
            notes.append(f"CO2 of {scenario.energy.region}, {carbon[0].date}: {carbon[0].source}")
        if world.prices.note:
            notes.append(f"money at {world.prices.note}; give your own under 'cost'")
        if world.by_clock:
            notes.append(
                f"not reproducible: {world.by_clock} of {world.decided} decisions reached a limit of wall time "
                "(time_limit_s), and so depend on this machine's speed"
            )
        if world.refusals:
            time_s, first = world.refusals[0]
            notes.append(
                f"{len(world.refusals)} planned actions were refused; the first at {time_s:.6g} s: "
                f"{first.what}: {first.why}"
            )
        return notes

    def timeline(self) -> Mapping[str, Mapping[str, NDArray[Any]]] | None:
        """The tables of the timeline, if it was requested."""
        return self._tables if self.keeps_timeline else None

    @cached_property
    def _tables(self) -> Mapping[str, Mapping[str, NDArray[Any]]] | None:
        world = self.world
        if world.timeline is None:
            return None
        waiting, pue = world.roster.waiting.rows, world.scenario.energy.pue
        found = dict(world.timeline.tables(self.end_s, world.clock.now, waiting, pue))
        for runtime in world.runtimes:
            found |= runtime.timeline()
        return found

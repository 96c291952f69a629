"""Goodput of jobs over GPUs and batch: Pollux (greedy growth) and Sia (integer programme).

Pollux (Qiao et al., OSDI 2021), section 3: goodput = throughput(GPUs, batch M) x efficiency(M), with
T_grad = a + b m for m = M / workers samples of one worker, T_iter = (T_grad^g + T_sync^g)^(1/g) and
efficiency (phi + M0) / (phi + M); the batch that is best for each number of GPUs goes with it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.ranking import gpus_wanted
from equipoise.policies.allocation.sizes import WALL_LIMIT_S, best_sizes
from equipoise.policies.baselines.rounds import (
    Grant,
    RoundBased,
    fits_memory,
    hand_out,
    job_speeds,
    model_counts,
    open_jobs,
)
from equipoise.policies.contract import Memory, Plan
from equipoise.policies.kernels.gangs import holdings
from equipoise.policies.learning import batch_worth, with_rates
from equipoise.policies.observation import WAITING, Bools, Floats, Ints, Observation
from equipoise.policies.physics import overlapped_each
from equipoise.policies.plan import BY_CLOCK
from equipoise.policies.stages.batches import batches

_COUNTS = (
    "rigid",
    "gpus_per_worker",
    "workers_min",
    "workers_max",
    "global_batch",
    "gamma",
    "sync_interval",
    "micro_batch",
    "batch_reference",
    "batch_max",
    "batch_given",
    "noise_scale",
    "rate_rule",
)
"""Columns of the jobs table on which the options of a job depend."""


@dataclass(frozen=True, slots=True)
class Option:
    """One configuration of a job: GPUs of a model, the best batch for them, and the goodput (samples/s)."""

    model: int
    gpus: int
    batch: int
    goodput: float


class Ways:
    """All options of each open job: sizes listed in its speeds, on models with room; a rigid job only as requested.

    Jobs that are equal in all relevant columns are computed once. rows: of the jobs table; speed: of `job_speeds`
    (rows, models); room: GPUs (models,).
    """

    def __init__(self, o: Observation, rows: Ints, speed: Floats, room: Ints, fits: Bools) -> None:
        self._o, self._rows, self._speed, self._room, self._fits = o, rows, speed, room, fits
        self._order = np.argsort(o.speeds.job, kind="stable")
        job = o.speeds.job[self._order]
        self._first, self._end = np.searchsorted(job, rows), np.searchsorted(job, rows, side="right")
        self._asked = gpus_wanted(o, rows)
        columns = [np.asarray(getattr(o.jobs, name)[rows], dtype=np.float64) for name in _COUNTS]
        self._own = np.column_stack((self._asked, *columns, speed, fits))
        self._listed = [
            np.asarray(column[self._order])
            for column in (o.speeds.gpu_model, o.speeds.gpus, o.speeds.samples_per_s, o.speeds.exchange_s)
        ]
        self._known: dict[tuple[bytes, ...], list[Option]] = {}

    def of(self, k: int) -> tuple[tuple[bytes, ...], list[Option]]:
        """(key shared by equal jobs, options) of the job at position k of the rows."""
        listed = slice(int(self._first[k]), int(self._end[k]))
        alike = (self._own[k].tobytes(), *(column[listed].tobytes() for column in self._listed))
        if alike not in self._known:
            self._known[alike] = self._work_out(k, self._order[listed])
        return alike, self._known[alike]

    def _work_out(self, k: int, mine: Ints) -> list[Option]:
        """The options of one job from its rows of the speeds."""
        o, room, row, asked = self._o, self._room, int(self._rows[k]), int(self._asked[k])
        per = max(int(o.jobs.gpus_per_worker[row]), 1)
        low, high = per * int(o.jobs.workers_min[row]), per * int(o.jobs.workers_max[row])
        gpus = o.speeds.gpus[mine]
        mine = mine[(o.speeds.samples_per_s[mine] > 0) & (gpus >= low) & (gpus <= high) & (gpus % per == 0)]
        if o.jobs.rigid[row] or not len(mine):
            return [
                Option(m, asked, int(o.jobs.global_batch[row]), float(v))
                for m, v in enumerate(self._speed[k].tolist())
                if v > 0 and asked <= room[m]
            ]
        found: list[Option] = []
        for model in np.unique(o.speeds.gpu_model[mine]).tolist():
            here = mine[o.speeds.gpu_model[mine] == model]
            here = here[np.argsort(o.speeds.gpus[here], kind="stable")]
            if self._fits[k, model]:
                found += [option for option in _on_model(o, row, here, model) if option.gpus <= room[model]]
        return found


def _on_model(o: Observation, row: int, here: Ints, model: int) -> list[Option]:
    """The best batch for each number of GPUs that is listed for a job on a model."""
    jobs, speeds, per = o.jobs, o.speeds, max(int(o.jobs.gpus_per_worker[row]), 1)
    workers, now = speeds.gpus[here] // per, float(jobs.global_batch[row])
    each, step_s = now / workers, now / speeds.samples_per_s[here]
    # T_grad = a + b m, least squares over the sizes that are listed; a and b are times, so not negative
    slope = float(np.polyfit(each, step_s, 1)[0]) if len(here) > 1 else 0.0
    fixed_s = max(float((step_s - slope * each).mean()), 0.0) if slope > 0 else 0.0
    slope_s = float(((step_s - fixed_s) * each).sum() / (each * each).sum())
    gamma = float(jobs.gamma[row]) if jobs.gamma[row] >= 1.0 else 1.0
    exchange_s = np.nan_to_num(speeds.exchange_s[here], nan=0.0) / max(int(jobs.sync_interval[row]), 1)
    tried, found = batches(o, row), []
    credit = batch_worth(o, row, tried, 1.0, 0.0)
    for k, size in enumerate(workers.tolist()):
        grad_s = np.where(tried == now, step_s[k], fixed_s + slope_s * tried / size)
        goodput = tried * credit / np.maximum(overlapped_each(grad_s, float(exchange_s[k]), gamma), 1e-12)
        best = int(goodput.argmax())
        found.append(Option(model, size * per, int(tried[best]), float(goodput[best])))
    return found


def with_batches(o: Observation, plan: Plan, chosen: dict[int, Option]) -> Plan:
    """The plan with the batch of each chosen option, where it differs from the job's, and its learning rate."""
    batch = o.jobs.global_batch.copy()
    for row, option in chosen.items():
        batch[row] = option.batch
    return with_rates(o, plan if (batch == o.jobs.global_batch).all() else plan.with_(global_batch=batch))


@dataclass(frozen=True)
class Pollux(RoundBased):
    """Pollux-like (Qiao et al., OSDI 2021): GPUs and batches that maximise the power mean of speed-ups.

    The speed-up of a job is its goodput over that with an equal part of the cluster's GPUs (equation 13, the
    paper's "fair" allocation). The mean has p = -1 (section 4.2), so the next GPUs go where 1 / speed-up falls most
    per GPU. The paper's genetic search is replaced by this greedy choice, which finds the same optimum where
    speed-ups flatten with GPUs. Pollux knows one kind of GPU: a job runs on the model that it is on, or the one with
    most GPUs left. A running job is moved only if the gain within `round_s` exceeds its restart cost. On the
    authors' workload 6 the mean completion is 3,148 s, published 2,446 s.
    """

    name: ClassVar[str] = "pollux"
    order: ClassVar[str] = "gain in 1 / speed-up per GPU"
    starvation: ClassVar[str] = "a gang may wait for as long as smaller jobs gain more per GPU"
    fidelity: ClassVar[str] = "not compared: no public completion times by job are at hand"

    round_s: float = 60.0

    def decide(self, o: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Assign the GPUs in greedy increments."""
        rows = open_jobs(o)
        room, speed, fits = model_counts(o, rows), job_speeds(o, rows), fits_memory(o, rows)
        ways, held, restart_s = (Ways(o, rows, speed, room, fits), Held(o, rows), np.nan_to_num(o.jobs.restart_s))
        ladders, left, known = {}, room.copy(), dict[object, list[Option]]()
        for k in oldest_first(o, rows):
            row, (alike, own) = int(rows[k]), ways.of(k)
            model, gpus = held.of(k) or (int(left.argmax()), 0)
            cost = min(float(restart_s[row]) / self.round_s, 0.9) if gpus else 0.0
            fair = max(int(left.sum()) // max(len(rows), 1), 1)
            asks = (alike, model, gpus, cost, fair)
            if asks not in known:
                known[asks] = _ladder(own, model, gpus, cost, fair)
            ladder = known[asks]
            if ladder:
                ladders[row] = ladder
                left[ladder[0].model] -= ladder[0].gpus
        chosen = climb(ladders, room)
        grants = [(row, option.model, option.gpus) for row, option in chosen.items()]
        plan = with_batches(o, plan, chosen)
        return hand_out(o, plan, self.name, grants, batches=[c.batch for c in chosen.values()]), {}


def _ladder(ways: list[Option], model: int, held: int, cost: float, fair: int) -> list[Option]:
    """Options of a job on one model by GPUs, each better than the last; a move costs `cost`.

    Goodput is relative to the goodput with `fair` GPUs.
    """
    here = [way for way in ways if way.model == model] or ways
    here = sorted((way for way in here if way.model == here[0].model), key=lambda way: way.gpus)
    base = max((way.goodput for way in here if way.gpus <= fair), default=here[0].goodput if here else 1.0)
    ladder: list[Option] = []
    for way in here:
        worth = way.goodput / base * (1.0 if way.gpus == held else 1.0 - cost)
        if not ladder or worth > ladder[-1].goodput:
            ladder.append(Option(way.model, way.gpus, way.batch, worth))
    return ladder


class Held:
    """The whole GPUs that each open job holds."""

    def __init__(self, o: Observation, rows: Ints) -> None:
        offset, gpu = holdings(rows, o.gpus.job)
        self._gpus = np.diff(offset).tolist()
        self._model = o.gpus.model[np.append(gpu, 0)[np.minimum(offset[:-1], len(gpu))]].tolist()

    def of(self, k: int) -> tuple[int, int] | None:
        """(GPU model, GPUs) of the job at position k; None where it holds none."""
        return (self._model[k], self._gpus[k]) if self._gpus[k] else None


def oldest_first(o: Observation, rows: Ints) -> list[int]:
    """Positions: running jobs, then waiting ones by arrival."""
    order: list[int] = np.lexsort((rows, o.jobs.state[rows] == WAITING)).tolist()
    return order


def climb(ladders: dict[int, list[Option]], room: Ints) -> dict[int, Option]:
    """Greedy growth by the decrease of 1 / speed-up per GPU (first increment: from speed-up 0) while GPUs last."""
    left, chosen = room.copy(), dict[int, Option]()
    heap = [(0, ladder[0].gpus, row, 0) for row, ladder in ladders.items()]  # all first steps come first
    steps = [(float(kind), float(gain), row, k) for kind, gain, row, k in heap]
    heapq.heapify(steps)
    while steps:
        _, _, row, k = heapq.heappop(steps)
        way, before = ladders[row][k], chosen.get(row)
        more = way.gpus - (before.gpus if before else 0)
        if more > left[way.model]:
            continue
        left[way.model] -= more
        chosen[row] = way
        if k + 1 < len(ladders[row]):
            then = ladders[row][k + 1]
            gain = (1.0 / way.goodput - 1.0 / then.goodput) / (then.gpus - way.gpus)
            heapq.heappush(steps, (1.0, -gain, row, k + 1))
    return chosen


@dataclass(frozen=True)
class Sia(RoundBased):
    """Sia (Jayaram Subramanya et al., SOSP 2023): an integer programme over configurations of jobs.

    Section 3.4: a configuration is a number of GPUs of one model, in powers of two; its worth is the goodput of the
    job there (batch adapted) over the least goodput of that job, times (age - restarts x cost) / (age + cost) where
    the job would have to move. The sum of worth^p - worth of none (p = -0.5, lambda 1.1) over jobs is minimised: at
    most one configuration per job, no more GPUs of a model than available. The restart discount uses the job's last
    start only. Beyond 1,000 nodes of the programme's search nothing changes; nor beyond `time_limit_s` of
    wall time, which the notes of a run report.
    """

    name: ClassVar[str] = "sia"
    order: ClassVar[str] = "integer programme over goodputs"
    starvation: ClassVar[str] = "a gang may wait for as long as smaller jobs are worth more per GPU"
    fidelity: ClassVar[str] = "not compared: no public completion times by job are at hand"

    round_s: float = 60.0
    power: float = -0.5
    penalty: float = 1.1  # lambda: what a job without GPUs costs
    time_limit_s: float = WALL_LIMIT_S

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.time_limit_s > 0:
            raise ValueError("time_limit_s must be above 0")

    def decide(self, o: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Solve for one configuration per job."""
        rows = open_jobs(o)
        room, speed, fits = model_counts(o, rows), job_speeds(o, rows), fits_memory(o, rows)
        ways, held = Ways(o, rows, speed, room, fits), Held(o, rows)
        each = [_powers(ways.of(k)[1]) for k in range(len(rows))]
        index = np.repeat(np.arange(len(rows)), [len(ways) for ways in each])
        flat = [way for own in each for way in own]
        if not flat:
            return hand_out(o, plan, self.name, []), {}
        worth = np.concatenate([self._worth(o, int(rows[k]), held.of(k), own) for k, own in enumerate(each)])
        must = np.zeros(len(rows), dtype=np.bool_)
        gpus, model = (np.array([getattr(way, name) for way in flat]) for name in ("gpus", "model"))
        try:
            picked = np.flatnonzero(best_sizes(gpus, model, worth, index, must, room, self.time_limit_s))
        except (TimeoutError, ValueError) as error:
            by_clock = {BY_CLOCK: self.time_limit_s} if isinstance(error, TimeoutError) else {}
            return plan.because(self.name, f"no change: {error}", **by_clock), {}
        chosen = {int(rows[index[k]]): flat[k] for k in picked.tolist()}
        grants: list[Grant] = [(row, way.model, way.gpus) for row, way in chosen.items()]
        return hand_out(o, with_batches(o, plan, chosen), self.name, grants, choices=len(flat)), {}

    def _worth(self, o: Observation, row: int, now: tuple[int, int] | None, ways: list[Option]) -> Floats:
        """Contribution of each configuration of a job to the objective, always above 0; now: the present one."""
        age_s = max(o.time_s - float(np.nan_to_num(o.jobs.started_s[row], nan=o.time_s)), 0.0)
        cost_s = float(np.nan_to_num(o.jobs.restart_s[row]))
        factor = age_s / (age_s + cost_s) if now is not None and age_s + cost_s > 0 else 1.0
        least = min((way.goodput for way in ways), default=1.0)
        stay = np.array([1.0 if (way.model, way.gpus) == now else max(factor, 1e-3) for way in ways])
        value = stay * np.array([way.goodput for way in ways]) / least
        worth: Floats = self.penalty - value**self.power if self.power < 0 else value**self.power
        return np.maximum(worth, 1e-6)


def _powers(ways: list[Option]) -> list[Option]:
    """Options whose GPU count is the smallest on their model times a power of two."""
    fewest: dict[int, int] = {}
    for way in ways:
        fewest[way.model] = min(way.gpus, fewest.get(way.model, way.gpus))
    return [way for way in ways if _is_power(way.gpus / fewest[way.model])]


def _is_power(ratio: float) -> bool:
    return ratio == int(ratio) and int(ratio) & (int(ratio) - 1) == 0

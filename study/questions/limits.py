"""The limit of each job, from its time accounts, and the lever that helps most, from runs with each lever.

The time of a job from arrival to completion is its wait for GPUs plus the time that it held them, which its accounts
divide into computing, waiting for data, for other workers, for the exchange, and losses by faults and restarts.
Computing is divided again into the cost of memory (bandwidth, and additional passes because of its size) and the
rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from equipoise.base.json_values import plain
from equipoise.policies.contract import Policy
from equipoise.policies.registry import make_policy
from equipoise.sim.cost.step import replica_cost_s
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.llm.certainty import StepCertainty, ratio_of
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.network.topology import link_bytes_per_s
from equipoise.sim.record import Run, undone
from equipoise.sim.run import run
from equipoise.sim.scenario.model import JobSpec, Model, Scenario
from equipoise.sim.scenario.units import format_bytes, format_scaled
from equipoise.sim.traces.trace import Trace
from equipoise.study.display import digits, show
from equipoise.study.findings import Findings, FindingsTable
from equipoise.study.questions.levers import LIMITS, POLICIES, STAGE, Lever, levers
from equipoise.study.runs.orders import policy_text
from equipoise.study.runs.variants import DEFAULT, RunOptions, Variant, VariantOutcome, run_all
from equipoise.study.statistics import CONFIDENCE, Interval, mean_interval, paired_ratio
from equipoise.study.sure import between, certainty_of_times, ends, reasons

FILE = "limits.json"
ALL = "all jobs"
_SMALL_SHARE = 0.005
_OF_STEP = ("compute", "memory", "network", "layout")
NOTHING = 5e-4
"""Relative change of the time below which a lever has no effect."""
_USES = {
    "compute": ("busy_gpu_s",),
    "input": ("input_stall_gpu_s",),
    "barrier": ("barrier_wait_gpu_s",),
    "network": ("exposed_communication_gpu_s",),
    "layout": ("pipeline_bubble_gpu_s", "tensor_exchange_gpu_s"),
    "faults": ("restart_gpu_s", "lost_to_faults_gpu_s"),
}


@dataclass(frozen=True)
class Effect:
    """A lever and its effect: the ratio of the mean time with it to that without, paired by seed.

    `problem` says why there is no ratio.
    """

    lever: Lever
    ratio: Interval
    problem: str | None = None

    @property
    def helps(self) -> bool:
        """Whether the time is shorter with it; significantly shorter if runs are random."""
        high = self.ratio.high if math.isfinite(self.ratio.high) else self.ratio.mean
        return high < 1.0 and self.ratio.mean < 1.0 - NOTHING

    def between(self, sure: StepCertainty | None) -> tuple[float, float] | None:
        """The 90 % interval of the ratio over errors of predicted steps; None where these cancel.

        They do unless the lever changes the step: then both times are predicted, of one model on one GPU.
        """
        if sure is None or self.lever.against not in _OF_STEP or self.problem is not None or self.idle:
            return None
        low, high = ratio_of(sure, replace(sure, layout=self.lever.name)).interval()
        return self.ratio.mean * low, self.ratio.mean * high

    @property
    def idle(self) -> bool:
        """Whether the time is equal with and without it, to three digits."""
        return self.problem is None and 1.0 - NOTHING <= self.ratio.mean < 1.0 + 10 * NOTHING


@dataclass(frozen=True)
class Limited:
    """A group of equal jobs: mean time from arrival to completion, its shares by limit, effects of levers.

    `effects`: the best first.
    """

    name: str
    jobs: int
    time_s: Interval
    shares: Mapping[str, float]
    effects: tuple[Effect, ...]
    host: str = ""  # host resources per GPU at its full rate, if jobs read or prepare data

    @property
    def account(self) -> str:
        """The limit with the most time in the accounts."""
        return max(self.shares, key=lambda limit: self.shares[limit])

    @property
    def limit(self) -> str:
        """The limit of the group: its largest use of time; for waits on other workers, the cause of their delay.

        Workers wait for one with late data or a failed node as for a slow one; the accounts cannot distinguish
        these, so the lever that shortens the time most decides.
        """
        if self.account != "barrier":
            return self.account
        causes = [e for e in self.effects if e.helps and e.lever.against in ("barrier", "input", "faults")]
        return causes[0].lever.against if causes else "barrier"

    @property
    def best(self) -> Effect | None:
        """The lever that helps most; None when none helps."""
        return next((e for e in self.effects if e.helps and e.lever.against != STAGE), None)

    @property
    def stage(self) -> Effect | None:
        """The stage missing in the policy that helps most against the limit; None when none does."""
        return next((e for e in self.effects if e.helps and e.lever.against == STAGE), None)

    @property
    def worth_showing(self) -> list[Effect]:
        """The three best levers, and the best one against the named limit."""
        helping = [e for e in self.effects if e.helps and e.lever.against != STAGE]
        against = self.best_against(self.limit)
        return helping[:3] if against is None or against in helping[:3] else [*helping[:3], against]

    def best_against(self, limit: str) -> Effect | None:
        """The lever against one limit that helps most; None when none helps."""
        return next((e for e in self.effects if e.helps and e.lever.against == limit), None)


@dataclass(frozen=True)
class LimitReport:
    """Groups of jobs by descending time taken; the first group holds all jobs."""

    scenario: str
    policy: str
    seeds: int
    groups: tuple[Limited, ...]
    notes: tuple[str, ...]
    certainty: StepCertainty | None = None  # of times; None where each step was measured

    @property
    def answer(self) -> tuple[str, ...]:
        """What limits the jobs, what would help most, and whether a stage would."""
        first = self.groups[0]
        many = f"The job of {self.scenario}" if first.jobs == 1 else f"The {first.jobs} jobs of {self.scenario}"
        limit = first.limit if first.limit == first.account else f"{first.limit} (which makes workers wait for others)"
        told = [
            f"{many} under {self.policy} {'is' if first.jobs == 1 else 'are'} limited by {limit}: "
            f"{100 * first.shares[first.account]:.0f} % of the {self._time(first)} from arrival to completion."
        ]
        best = [effect for effect in first.effects if effect.helps and effect.lever.against != STAGE]
        if best:
            listed = "; ".join(f"{e.lever.name}, {_effect(e, self.certainty)}" for e in best[:2])
            told.append(f"What would help most: {listed}.")
        else:
            told.append("No change that was tried certainly helps; more seeds may tell.")
        if first.stage is not None:
            told.append(f"Stage {first.stage.lever.name} would reduce it: {_effect(first.stage)}.")
        elif any(effect.lever.against == STAGE for effect in first.effects):
            told.append("No stage (s1 to s4) reduces it.")
        return tuple(told)

    def _time(self, group: Limited) -> str:
        sure = self.certainty
        between_ = "" if sure is None else between("completion_mean_s", group.time_s.mean, sure.spread)
        time = show("time_s", group.time_s.mean, group.time_s.half_width)
        return time + (f" (90 %: {between_})" if between_ else "")

    def findings(self, every: bool = False) -> Findings:
        """The answer, the time of each group by limit, and the levers that help, best first; every: all of them."""
        times = [("jobs", "", "time", "limited by", "where the time goes")]
        levers_ = [("jobs", "change", "time with it")]
        remarks = list(self.certainty.lines()) if self.certainty is not None else []
        for group in self.groups:
            shares = sorted(group.shares.items(), key=lambda item: -item[1])
            told = ", ".join(f"{limit} {100 * share:.1f} %" for limit, share in shares[:4] if share >= _SMALL_SHARE)
            times.append((group.name, f"{group.jobs:,}", self._time(group), group.limit, told))
            shown = [effect for effect in group.effects if not effect.idle] if every else group.worth_showing
            levers_ += [(group.name, effect.lever.name, _effect(effect, self.certainty)) for effect in shown]
            remarks += [f"{group.name}: {group.host}"] if group.host else []
            if every and (idle := [effect.lever.name for effect in group.effects if effect.idle]):
                remarks.append(f"{group.name}: no effect: {', '.join(idle)}")
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        tables = (
            FindingsTable(f"time from arrival to completion, {seeds}", times, [False, True, True, False, False]),
            FindingsTable("", levers_, [False, False, False]),
        )
        return Findings(f"Limits: {self.scenario}", self.answer, tables[: 1 + (len(levers_) > 1)], tuple(remarks))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in `limits.json`; unknown values are None."""
        data = {
            "schema_version": 1,
            "answer": " ".join(self.answer),
            "scenario": self.scenario,
            "policy": self.policy,
            "seeds": self.seeds,
            "confidence": CONFIDENCE,
            "groups": [_group_dict(group, self.certainty) for group in self.groups],
            "sure": reasons(self.certainty) if self.certainty is not None else {},
            "notes": self.notes,
        }
        found: dict[str, Any] = plain(data)
        return found


def _effect(effect: Effect, certainty: StepCertainty | None = None) -> str:
    """The ratio of the time with a lever to that without it."""
    if effect.problem is not None:
        return effect.problem
    half = effect.ratio.half_width
    sure = f" ±{digits(half, 2)}" if half >= 5e-4 else ""
    ends_ = effect.between(certainty)
    between_ = f" (90 %: x{digits(ends_[0])} .. x{digits(ends_[1])})" if ends_ else ""
    doubt = ", not certain" if ends_ and ends_[0] < 1.0 < ends_[1] else ""
    return f"x{digits(effect.ratio.mean)}{sure}{between_}{doubt}"


def _group_dict(group: Limited, sure: StepCertainty | None) -> dict[str, Any]:
    return {
        "name": group.name,
        "jobs": group.jobs,
        "time_s": group.time_s.mean,
        "time_interval_s": None if sure is None else ends("completion_mean_s", group.time_s.mean, sure.spread),
        "limit": group.limit,
        "account": group.account,
        "shares": dict(group.shares),
        "host": group.host,
        "best_lever": None if group.best is None else group.best.lever.name,
        "stage": None if group.stage is None else group.stage.lever.name,
        "levers": [
            {
                "lever": effect.lever.name,
                "against": effect.lever.against,
                "ratio": effect.ratio.mean,
                "low": effect.ratio.low,
                "high": effect.ratio.high,
                "interval": effect.between(sure),
                "problem": effect.problem,
            }
            for effect in group.effects
        ],
    }


RATE = "samples per second of computing on a GPU"


@dataclass(frozen=True)
class PerJob:
    """Makes a run whose totals also hold, per group of jobs, the mean time by limit: `limit:GROUP:LIMIT`.

    groups: group by name of job; other jobs count only among all. memory: share of computing by group.
    """

    groups: Mapping[str, str]
    memory: Mapping[str, float]
    simulates: ClassVar[bool] = True  # kernels are compiled before

    def __call__(self, scenario: Scenario, *, policy: Policy, seed: int, trace: Trace | None) -> Run:
        """The run, as `sim.run.run` makes it."""
        made = run(scenario, policy=policy, seed=seed, trace=trace)
        times = times_by_limit(made)
        names = np.array([self.groups.get(str(name), "") for name in made.jobs["name"]], dtype=object)
        more: dict[str, float] = {}
        for group in dict.fromkeys([ALL, *self.groups.values()]):
            rows = np.ones(names.size, dtype=bool) if group == ALL else names == group
            if not rows.any():
                continue
            mean = {limit: float(values[rows].mean()) for limit, values in times.items()}
            mean["memory"] = mean["compute"] * self.memory.get(group, 0.0)
            mean["compute"] -= mean["memory"]
            more |= {key(group, limit): value for limit, value in mean.items()}
            more[key(group, "jobs")] = float(rows.sum())
            busy_s = float(made.jobs["busy_gpu_s"][rows].sum())
            more[key(group, RATE)] = float(made.jobs["samples"][rows].sum()) / busy_s if busy_s > 0.0 else 0.0
        return replace(made, totals={**made.totals, **more})


def key(group: str, limit: str) -> str:
    """Name of a group's number in a run's totals."""
    return f"limit:{group}:{limit}"


def times_by_limit(made: Run) -> dict[str, NDArray[np.float64]]:
    """Seconds of each job (jobs,) by limit, memory still part of compute; they sum to its time.

    The time held is divided as its GPU-seconds are. A job that is not completed counts until the end of the run.
    """
    jobs = made.jobs
    used = {  # what was booked and taken back may leave a rounding below zero
        limit: np.maximum(np.sum([jobs[use] for use in uses], axis=0), 0.0) for limit, uses in _USES.items()
    }
    total = np.sum(list(used.values()), axis=0)
    done = ~np.isnan(jobs["completion_s"])
    held_s = np.where(
        done, jobs["completion_s"] - jobs["arrival_s"] - jobs["queueing_s"], total / np.maximum(jobs["gpus"], 1)
    )
    held_s = np.maximum(held_s, 0.0)
    share = {limit: np.divide(u, total, out=np.zeros_like(total), where=total > 0) for limit, u in used.items()}
    share["compute"] = np.where(total > 0, share["compute"], 1.0)
    return {**{limit: held_s * s for limit, s in share.items()}, "queue": jobs["queueing_s"].astype(float)}


def memory_share(scenario: Scenario, job: JobSpec, model: Model) -> float:
    """Share (0 to 1) of a job's computing that memory costs, on the mean GPU that it may use.

    The time saved if memory were infinitely fast, one pass held all samples and nothing were recomputed.
    """
    free = model.model_copy(
        update={
            "bytes_per_sample": 0.0,
            "samples_per_pass": None,
            "memory": model.memory.model_copy(update={"recompute": False}),
        }
    )
    per = model.parallel.tensor * model.parallel.pipeline
    samples = max(1, job.global_batch // max(1, job.gpus // per))
    profile = load_profile(scenario.cluster.hardware)
    saved = total = 0.0
    for group in scenario.cluster.groups:
        if job.gpu_types and not {group.name, group.accelerator} & set(job.gpu_types):
            continue
        accelerator, gpus = profile.accelerator(group.accelerator), group.count * group.gpus / group.speed
        now_s, then_s = (
            replica_cost_s(m, accelerator, samples, link_bytes_per_s(group, profile))[1] for m in (model, free)
        )
        saved, total = saved + gpus * (now_s - then_s), total + gpus * now_s
    return max(0.0, saved / total) if total > 0 else 0.0


def limits(
    path: Path,
    *,
    policy: str | None = None,
    policies: Sequence[str] = POLICIES,
    overrides: Sequence[str] = (),
    trace: str | None = None,
    most: int = 10,
    options: RunOptions = DEFAULT,
) -> LimitReport:
    """Find the limit of each job of the scenario in `path`, and run it with every lever.

    policies: other policies to try. most: groups of jobs to look at, those that take the most time. Copies of one
    job are one group; each job of a trace is its own group.

    Raises InputError for a wrong scenario, PolicyError for an unknown stage, RuntimeError when the base fails.
    """
    file = read_scenario(path, overrides, trace)
    read = file.trace()
    scenario, name = file.scenario, policy_text(file.scenario, policy)
    for other in policies:
        make_policy(other)
    groups = chosen_groups(scenario, read, name, most)
    memory = _memory_by_group(scenario)
    runner = PerJob(groups, memory)
    found = levers(scenario, name, policies)
    variants = [Variant("base", scenario, name)]
    variants += [Variant(lever.name, lever.scenario, lever.policy) for lever in found]
    outcomes = run_all(variants, replace(options, trace=read, folders=file.folders, runner=runner))
    if outcomes[0].failed is not None:
        raise RuntimeError(f"{scenario.name}: {outcomes[0].failed}")
    names = [ALL, *dict.fromkeys(groups.values())]
    limited = [_limited(group, found, outcomes) for group in names if key(group, "jobs") in outcomes[0].rows[0]]
    rate = {g.name: float(np.mean(outcomes[0].values(key(g.name, RATE)))) for g in limited}
    limited = [replace(g, host=host_needs(scenario, g.name, rate[g.name])) for g in limited]
    notes = [f"{lever.name}: {o.failed}" for lever, o in zip(found, outcomes[1:], strict=True) if o.failed]
    open_jobs = sum(undone(row) for row in outcomes[0].rows)
    if open_jobs:
        notes.append(f"{open_jobs:.0f} jobs did not complete and are counted until the end of their run")
    ordered = [limited[0], *sorted(limited[1:], key=lambda g: -g.jobs * g.time_s.mean)][: most + 1]
    if len(ordered) == 2 and ordered[0].jobs == ordered[1].jobs:
        ordered = ordered[1:]  # one group is all jobs
    sure = certainty_of_times(scenario)
    return LimitReport(scenario.name, name, len(outcomes[0].rows), tuple(ordered), tuple(notes), sure)


def host_needs(scenario: Scenario, job: str, rate: float) -> str:
    """Cores and disk rate that a GPU needs for the input of a job at `rate` (samples/s); "" without input."""
    spec = next((one for one in scenario.workload.jobs if one.name == job and one.model is not None), None)
    hosts = [group for group in scenario.cluster.nodes if group.gpus]
    if spec is None or spec.model is None or not rate or not hosts:
        return ""
    each_s, data = scenario.workload.models[spec.model].preprocess_time, spec.data
    parts = []
    if each_s:
        cores = min(group.cores / group.gpus for group in hosts)
        parts.append(f"{each_s * rate:.3g} cores to prepare them (there are {cores:.3g})")
    if data is not None and data.sample_size:
        disk = min(group.storage_rate / group.gpus for group in hosts)
        read = format_scaled(data.sample_size * rate, "B/s")
        parts.append(f"{read} to read them (its node's own disk gives {format_scaled(disk, 'B/s')})")
        whole = format_bytes(data.samples * data.sample_size)
        parts.append(f"{whole} of disks or host memory for all data")
    return f"each GPU computes {rate:,.4g} samples/s, and for that needs {', '.join(parts)}" if parts else ""


def chosen_groups(scenario: Scenario, trace: Trace | None, policy: str, most: int) -> dict[str, str]:
    """Group by name of job: copies of a listed job are one; of a trace, the `most` jobs that take longest.

    One run determines these.
    """
    groups: dict[str, str] = {}
    for job in scenario.workload.jobs:
        copies = [job.name] if job.count == 1 else [f"{job.name}-{k}" for k in range(job.count)]
        groups |= dict.fromkeys(copies, job.name)
    if trace is not None:
        made = run(scenario, policy=make_policy(policy), trace=trace)
        seconds = np.sum(list(times_by_limit(made).values()), axis=0)
        longest = np.argsort(-seconds, kind="stable")[:most]
        groups |= {n: n for n in (str(made.jobs["name"][row]) for row in longest) if n not in groups}
    return groups


def _memory_by_group(scenario: Scenario) -> dict[str, float]:
    """Share of computing that memory costs, by group; for all jobs, the mean weighted by their GPUs."""
    found: dict[str, float] = {}
    weighted = total = 0.0
    for job in scenario.workload.jobs:
        share = 0.0
        if job.model is not None:
            share = memory_share(scenario, job, scenario.workload.models[job.model])
            found[job.name] = share
        weighted, total = weighted + job.count * job.gpus * share, total + job.count * job.gpus
    return found | ({ALL: weighted / total} if total and scenario.workload.trace is None else {})


def _limited(group: str, found: Sequence[Lever], outcomes: Sequence[VariantOutcome]) -> Limited:
    base = outcomes[0]
    by_limit = {limit: float(np.mean(base.values(key(group, limit)))) for limit in LIMITS}
    total = math.fsum(by_limit.values())
    times = _times(group, base)
    unknown = Interval(math.nan, math.nan, math.nan, 0)
    effects = [
        Effect(lever, unknown, outcome.failed)
        if outcome.failed is not None
        else Effect(lever, paired_ratio(_times(group, outcome), times))
        for lever, outcome in zip(found, outcomes[1:], strict=True)
    ]
    effects.sort(key=lambda e: e.ratio.mean if math.isfinite(e.ratio.mean) else math.inf)
    shares = {limit: value / total if total > 0 else 0.0 for limit, value in by_limit.items()}
    jobs = int(base.rows[0][key(group, "jobs")])
    return Limited(group, jobs, mean_interval(times), shares, tuple(effects))


def _times(group: str, outcome: VariantOutcome) -> list[float]:
    """Mean time of the group's jobs by seed."""
    return np.sum([outcome.values(key(group, limit)) for limit in LIMITS], axis=0).tolist()  # type: ignore[no-any-return]

"""The twin of a recorded queue: its jobs under the site's own scheduler, and under a policy in front of it, simulated.

    found = orders(read_queue(Path("seen")), make_policy("s4"))
    print(render(found))

The site is imported from what its manager printed (DIR/site): nodes, partitions, QOS, limits, fair shares, weights,
backfill. `python -m equipoise.study.twin.queue DIR` prints whether a policy that acts does worse than that.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from equipoise.base.json_values import from_json
from equipoise.base.tables import aligned
from equipoise.formats.text.columns import TextBuilder
from equipoise.policies.contract import Policy
from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.policies.queues.multifactor import Multifactor
from equipoise.policies.queues.steered import Steered
from equipoise.policies.registry import PolicyError, make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.loading.site.read import import_site
from equipoise.sim.run import run as simulate
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import make_trace
from equipoise.study.findings import screen

EVENTS = "events.jsonl"
FORMAT = {"format": "equipoise-queue", "version": 1}


@dataclass(frozen=True)
class QueueRun:
    """Content of a scheduler's record. Arrays are per job, in order of (arrival, id); times in UTC seconds.

    start_s: NaN if not yet. end_s: as expected if not yet. limit_s: time limit, NaN if unknown. mine: whether a job is
    among those to schedule; others held GPUs of the same nodes. scope: partition and account to schedule, "" for all.
    """

    folder: Path
    policy: Policy
    nodes: tuple[tuple[str, int], ...]  # name and GPUs of each
    id: Ints
    name: tuple[str, ...]
    gpus: Ints
    arrival_s: Floats
    start_s: Floats
    end_s: Floats
    limit_s: Floats
    claim: Mapping[str, tuple[str, ...]]  # user, account, partition and QOS of each
    mine: Bools
    scope: tuple[str, str]
    until_s: float  # last arrival, start or end
    acted: bool  # the policy made the order of the record, not the manager
    across_qos: bool
    notes: tuple[str, ...]

    def own(self) -> QueueRun:
        """The record of the jobs to schedule alone."""
        arrays = ("id", "gpus", "arrival_s", "start_s", "end_s", "limit_s", "mine")
        texts = {kind: tuple(compress(of, self.mine)) for kind, of in {**self.claim, "name": self.name}.items()}
        cut: dict[str, Any] = {key: getattr(self, key)[self.mine] for key in arrays}
        return replace(self, name=texts.pop("name"), claim=texts, **cut)


def parts(path: Path) -> list[Path]:
    """The file that was full and put aside, if there is one, and the file."""
    return [part for part in (path.with_suffix(f".1{path.suffix}"), path) if part.exists()] or [path]


def is_queue(folder: Path) -> bool:
    """Whether the folder holds the record of a queue."""
    return (folder / EVENTS).is_file()


def read_queue(folder: Path, policy: Policy | None = None, whole: bool = False) -> QueueRun:
    """Read a scheduler's record; `policy` replaces the one that it names. Raises InputError, one line.

    whole: with the jobs that wait or run at its end.
    """
    jobs: dict[int, dict[str, Any]] = {}
    begun: dict[str, Any] = {}
    nodes: list[Any] = []
    requeued = False
    for event in chain.from_iterable(map(_events, parts(folder / EVENTS))):
        kind = event["event"]
        if kind == "begun":
            if any(begun.get(key) != event.get(key) for key in ("policy", "mode")):
                jobs.clear()  # of another scheduler
            begun = event
        elif kind == "nodes":
            nodes = event["nodes"]
        elif kind == "job":
            jobs.setdefault(event["id"], event)
        elif kind in ("start", "end", "changed") and event["id"] in jobs:
            known = ("start_s", "end_s", "gpus")
            jobs[event["id"]].update({k: event[k] for k in known if k in event})
        requeued |= kind == "requeued"
    path = folder / EVENTS
    if not begun or not nodes:
        raise InputError([f"{path}: no scheduler has looked at a queue here"])
    if requeued:
        raise InputError([f"{path}: running jobs were requeued; a twin of their remaining work is not possible"])
    over = sorted(
        (j for j in jobs.values() if "start_s" in j and "end_s" in j), key=lambda j: (j["arrival_s"], j["id"])
    )
    if not over:
        raise InputError([f"{path}: no job has started and ended on record"])
    until_s = max(job[key] for job in jobs.values() for key in ("arrival_s", "start_s", "end_s") if key in job)
    missing = 0 if whole else len(jobs) - len(over)
    if whole:
        _expect(over, jobs.values(), until_s)
        over = sorted(jobs.values(), key=lambda j: (j["arrival_s"], j["id"]))[-_MOST_JUDGED:]
    return QueueRun(
        folder=folder,
        policy=policy if policy is not None else _policy(path, begun),
        nodes=tuple((str(name), int(gpus)) for name, gpus, _ in nodes),
        id=np.array([job["id"] for job in over], dtype=np.int64),
        name=tuple(str(job.get("name", "")) for job in over),
        gpus=np.array([job["gpus"] for job in over], dtype=np.int64),
        arrival_s=_column(over, "arrival_s"),
        start_s=_column(over, "start_s"),
        end_s=_column(over, "end_s"),
        limit_s=_column(over, "limit_s"),
        claim={kind: tuple(str(job.get(kind, "")) for job in over) for kind in ("user", "account", "partition", "qos")},
        mine=np.array([job.get("mine", True) for job in over]),
        scope=(str(begun.get("partition", "")), str(begun.get("account", ""))),
        until_s=until_s,
        acted=begun.get("mode") == "act",
        across_qos=begun.get("across_qos") is True,
        notes=(f"{missing} jobs have not started and ended on record, and are left out",) if missing else (),
    )


def _expect(over: Sequence[Mapping[str, Any]], jobs: Iterable[dict[str, Any]], until_s: float) -> None:
    """Let jobs that wait or run take the same share of their limits as those that are over, the median."""
    took_s, limit_s = _column(over, "end_s") - _column(over, "start_s"), _column(over, "limit_s")
    share = float(np.median((took_s / limit_s)[known])) if (known := np.isfinite(limit_s)).any() else 1.0
    for job in jobs:
        if "end_s" not in job:
            takes_s = share * job["limit_s"] if "limit_s" in job else float(np.median(took_s))
            job["end_s"] = max(job.get("start_s", until_s) + takes_s, until_s)


def _column(jobs: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.array([job.get(name, math.nan) for job in jobs], dtype=np.float64)


def _policy(path: Path, begun: Mapping[str, Any]) -> Policy:
    try:
        return make_policy(str(begun["policy"]))
    except PolicyError as error:
        raise InputError([f"{path}: policy: {error}; name the policy with --policy"]) from error


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Events of a record; an incomplete last line is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError([f"{path}: {error.strerror}"]) from error
    for number, line in enumerate(lines, start=1):
        try:
            value = from_json(line)
        except ValueError:
            continue
        if number == 1 and value != FORMAT:
            raise InputError([f"{path}:1: not the record of a queue of version 1"])
        if isinstance(value, dict) and "event" in value:
            yield value


SITE = "site"
NEAR_S = 5.0  # two starts are near when they differ by at most this time
_BOOT = re.compile(r"(?m)^BOOT_TIME\s*= (\d+)$")
_DRAWS, _MOST_IDLE_S, _LEAST_JUDGED, _MOST_JUDGED = 2000, 10.0, 20, 5000


@dataclass(frozen=True)
class Orders:
    """Waiting times (s) of the jobs of a record: measured, under the site's own order, and under the policy."""

    run: QueueRun
    policy: str
    measured_s: Floats
    own_s: Floats
    steered_s: Floats
    urgent: Bools  # of the QOS with the highest priority, where jobs of several were seen

    @property
    def same_s(self) -> Floats:
        """Simulated waiting times under the order that was in force."""
        return self.steered_s if self.run.acted else self.own_s

    @property
    def error(self) -> float:
        """Relative error of the simulated mean wait under the order that was in force, at most that of one second."""
        measured_s, same_s = float(self.measured_s.mean()), float(np.nanmean(self.same_s))
        return abs(same_s - measured_s) / max(measured_s, 1.0)


def orders(run: QueueRun, policy: Policy, until_s: float = math.inf) -> Orders:
    """Simulate the jobs of a record at its site; jobs wait until `until_s` at most. Raises InputError, RunFailed."""
    scenario, urgent, first_s = _site(run)
    steered = Steered(policy=policy, across_qos=run.across_qos, scope=run.scope)
    starts_s = [run.start_s]
    for stage in (Multifactor(), steered):
        starts_s.append(_starts_s(run, scenario, Policy(stage.name, (stage,)), first_s))
    if math.isfinite(until_s):
        starts_s = [np.fmin(start_s, until_s) for start_s in starts_s]
    measured_s, own_s, steered_s = ((start_s - run.arrival_s)[run.mine] for start_s in starts_s)
    return Orders(run.own(), policy.name, measured_s, own_s, steered_s, urgent[run.mine])


def _site(run: QueueRun) -> tuple[Scenario, Bools, float]:
    """(the site, urgent jobs, time of the first arrival since priorities were calculated at the site)."""
    files = sorted((run.folder / SITE).glob("*.txt"))
    if not files:
        raise InputError([f"{run.folder / SITE}: no description of the site, which `schedule` keeps there"])
    value = yaml.safe_load(import_site(files, out=run.folder / "site.yaml"))
    scenario = from_mapping({**value, "name": "queue"})
    priority = {qos.name: qos.priority for qos in scenario.queues.qos}
    ranks = np.array([priority.get(name, 0.0) for name in run.claim["qos"]])
    begun = _BOOT.search("".join(file.read_text() for file in files))
    period_s = scenario.queues.priority.period if scenario.queues.priority is not None else 0.0
    first_s = (run.arrival_s[0] - float(begun[1])) % period_s if begun and period_s else 0.0
    return scenario, (ranks == ranks.max()) & (ranks > ranks.min()), first_s


def _starts_s(run: QueueRun, scenario: Scenario, policy: Policy, first_s: float) -> Floats:
    """Start of each job; the first comes `first_s` after the begin, and GPUs stay idle after a job as at the site."""
    ends_s = np.sort(run.end_s)
    last = np.searchsorted(ends_s, run.start_s, side="right") - 1
    before_s = np.where(last >= 0, run.start_s - ends_s[last], np.inf)  # since the end before a start
    waited = run.start_s - before_s >= run.arrival_s
    quick = before_s[waited & (before_s <= _MOST_IDLE_S)]
    begun_s = np.fmin(run.start_s, run.until_s)  # what waits ends as late after the record as it takes
    took_s = np.maximum(run.end_s - begun_s + (float(np.median(quick)) if len(quick) else 0.0), 1e-3)
    columns: dict[str, Any] = {"time_limit_s": np.where(np.isfinite(run.limit_s), run.limit_s, np.nan)}
    for kind, texts in run.claim.items():
        builder = TextBuilder()
        builder.add(texts)
        columns[kind] = builder.finish()
    begin_s = float(run.arrival_s[0]) - first_s
    arrival_s = run.arrival_s - begin_s
    trace = make_trace(run.id, arrival_s, run.gpus, took_s, columns=columns, source=str(run.folder))
    made = simulate(scenario, policy=policy, seed=0, trace=trace)
    start_of = dict(zip(made.jobs["job_id"].tolist(), made.jobs["start_s"].tolist(), strict=True))
    starts_s: Floats = np.array([start_of.get(job, np.nan) for job in run.id.tolist()])
    return begin_s + starts_s


def change_s(found: Orders, which: Bools | None = None) -> tuple[float, float, float]:
    """(mean change of the wait by the policy, and the bounds of its 90 % interval over draws of the jobs) in s."""
    apart_s = found.steered_s - found.own_s
    return _interval(apart_s if which is None else apart_s[which])


def _interval(apart_s: Floats) -> tuple[float, float, float]:
    apart_s = apart_s[np.isfinite(apart_s)]
    if not len(apart_s):
        return np.nan, np.nan, np.nan
    draws = np.random.default_rng(0).choice(apart_s, (_DRAWS, len(apart_s))).mean(axis=1)
    low_s, high_s = np.percentile(draws, (5, 95)).tolist()
    return float(apart_s.mean()), low_s, high_s


def sentence(found: Orders) -> str:
    """What the policy would have changed, in one sentence."""
    own_s = float(np.nanmean(found.own_s))
    mean_s, low_s, high_s = change_s(found)
    text = (
        f"{found.policy} would have changed the mean wait of {len(found.own_s)} jobs by {mean_s:+.0f} s "
        f"({low_s:+.0f} to {high_s:+.0f} s; {_percent(mean_s, own_s)})"
    )
    if found.urgent.any():
        theirs_s, low_s, high_s = change_s(found, found.urgent)
        text += f", of the {found.urgent.sum()} urgent ones by {theirs_s:+.0f} s ({low_s:+.0f} to {high_s:+.0f} s)"
    return f"{text}; Slurm's own order waits {own_s:.0f} s simulated, {found.measured_s.mean():.0f} s on record"


def _percent(change_s: float, of_s: float) -> str:
    return f"{100 * change_s / of_s:+.0f} %" if of_s > 0 else "nothing waited"


def verdict(run: QueueRun) -> dict[str, float | str]:
    """Whether jobs have waited longer so far than under the site's own order; `why` is "" if not.

    Longer: all jobs or the urgent ones, by more than a tenth, by more than the simulation is wrong about the policy
    itself, and so that the 90 % interval over draws of the jobs is above 0.
    """
    found, why = orders(run, run.policy, run.until_s), []
    groups = {"jobs": np.ones(len(found.own_s), dtype=np.bool_), "urgent jobs": found.urgent}
    for name, some in groups.items():
        measured_s, own_s, same_s = found.measured_s[some], found.own_s[some], found.steered_s[some]
        more_s, low_s, _ = _interval(measured_s - own_s)
        if (
            some.sum() >= _LEAST_JUDGED
            and low_s > 0.0
            and more_s > max(abs(np.nanmean(measured_s - same_s)), 0.1 * np.nanmean(own_s))
        ):
            mean_s, by_own_s = np.nanmean(measured_s), np.nanmean(own_s)
            why.append(f"{some.sum()} {name} have waited {mean_s:.0f} s, by Slurm's own order {by_own_s:.0f} s")
    waits_s = zip(("measured_s", "own_s", "steered_s"), (found.measured_s, found.own_s, found.steered_s), strict=True)
    return {"why": "; ".join(why), **{name: float(np.nanmean(wait_s)) for name, wait_s in waits_s}}


def as_data(found: Orders) -> Mapping[str, Any]:
    """Plain data: seconds."""
    mean_s, low_s, high_s = change_s(found)
    urgent_s = change_s(found, found.urgent)[0] if found.urgent.any() else None
    run, names = found.run, ("id", "name", "gpus", "measured_s", "own_s", "steered_s")
    columns = (run.id, run.name, run.gpus, found.measured_s, found.own_s, found.steered_s)
    rows = zip(*(list(c) if isinstance(c, tuple) else np.round(c, 3).tolist() for c in columns), strict=True)
    own_s = float(np.nanmean(found.own_s))
    return {
        "run": str(run.folder),
        "policy": found.policy,
        "jobs": [dict(zip(names, row, strict=True)) for row in rows],
        "waiting_mean_s": float(found.measured_s.mean()),
        "error": found.error,
        "notes": list(run.notes),
        "own_s": own_s,
        "change_s": mean_s,
        "low_s": low_s,
        "high_s": high_s,
        "urgent_change_s": urgent_s,
    }


def render(found: Orders, wide: bool = False) -> str:
    """What the policy would change, how far the simulation is from the record, and the waiting times of each job."""
    run, near = found.run, np.abs(found.same_s - found.measured_s) <= NEAR_S
    columns = (run.gpus.tolist(), found.measured_s, found.own_s, found.steered_s)
    rows = [
        (str(job), name[:20], str(gpus), *(f"{value:.0f} s" for value in waits))
        for job, name, gpus, *waits in zip(run.id.tolist(), run.name, *columns, strict=True)
    ]
    order = found.policy if run.acted else "Slurm's own order"
    answer = [
        f"{sentence(found)}.",
        f"{run.folder} has {len(run.id)} jobs on {sum(gpus for _, gpus in run.nodes)} GPUs: under {order} they waited "
        f"{found.measured_s.mean():.1f} s on the mean, {np.nanmean(found.same_s):.1f} s simulated, with "
        f"{near.mean():.0%} of the starts within {NEAR_S:g} s.",
    ]
    head = ("job", "name", "GPUs", "waited", "own order", found.policy)
    table = aligned([head, *rows], [True, False, *[True] * 4])
    return screen(answer, [*(f"note: {note}" for note in run.notes), "", *table], wide) + "\n"


if __name__ == "__main__":
    os.nice(10)
    print(json.dumps(verdict(read_queue(Path(sys.argv[1]), whole=True))))

"""Changes that might have started a job sooner, each tried by running it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from equipoise.formats.text.columns import Text
from equipoise.policies.registry import make_policy
from equipoise.sim.job.demand import expand
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.record import Run
from equipoise.sim.run import RunFailed, run
from equipoise.sim.scenario.model import Explicit, JobSpec, LinkSpec, Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import Trace
from equipoise.study.questions.explain import Folder

_EACH = 3
"""Most other queues, partitions and QOS tried, per kind."""


@dataclass(frozen=True)
class WhatIf:
    """One change to a case. size: measure of the change, for sorting."""

    text: str
    size: float
    scenario: Scenario
    trace: Trace | None


@dataclass(frozen=True)
class Tried:
    """A change, and the job's start with it (s); NaN: it does not start."""

    text: str
    size: float
    start_s: float
    error: str = ""


def case_of(folder: Folder, trace: str | None) -> tuple[Scenario, Trace | None]:
    """The scenario of a run, and its trace. Raises InputError where the trace is not found."""
    file = read_scenario(folder.path / "config.yaml", (), trace)
    spec = file.scenario.workload.trace
    try:
        return file.scenario, file.trace()
    except InputError as error:
        if spec is not None and trace is None:
            raise InputError([f"{error.lines[0]}; name it with --trace FILE"]) from error
        raise


def try_changes(
    folder: Folder, row: int, trace: str | None = None, tell: Callable[[int, int, str], None] | None = None
) -> list[Tried]:
    """Runs the case with each change that could start the job (row) sooner, smallest change first.

    Raises InputError when the unchanged case does not reproduce the recorded start.
    """
    scenario, read = case_of(folder, trace)
    same = _start(folder, scenario, read, row)
    before = float(folder.jobs["start_s"][row])
    if not (same == before or (math.isnan(same) and math.isnan(before))):
        raise InputError(
            [
                f"{folder.path}: run again, job {folder.name(row)} starts at {same:g} s, not {before:g} s: "
                "the version differs, or the policy is not built in"
            ]
        )
    changes = sorted(_changes(folder, scenario, read, row), key=lambda change: change.size)
    found = []
    for k, change in enumerate(changes):
        if tell is not None:
            tell(k, len(changes), change.text)
        try:
            found.append(Tried(change.text, change.size, _start(folder, change.scenario, change.trace, row)))
        except (InputError, RunFailed) as error:
            found.append(Tried(change.text, change.size, math.nan, str(error).splitlines()[0]))
    return found


def _start(folder: Folder, scenario: Scenario, trace: Trace | None, row: int) -> float:
    """First start (s) of a job; the run ends at it."""
    made: Run = run(scenario, policy=make_policy(folder.policy), seed=folder.seed, trace=trace)
    ids = made.jobs["job_id"] == folder.jobs["job_id"][row]
    return float(made.jobs["start_s"][ids][0]) if ids.any() else math.nan


def _changes(folder: Folder, scenario: Scenario, trace: Trace | None, row: int) -> Iterator[WhatIf]:
    gpus = int(folder.jobs["gpus"][row])
    edit = _Editor(folder, scenario, trace, row)
    for fewer in dict.fromkeys((gpus - 1, gpus // 2)):
        if fewer >= 1:
            yield edit.job(
                f"{fewer} GPUs in place of {gpus}, running longer in proportion", 1.0 - fewer / gpus, gpus=fewer
            )
    yield from _more_nodes(scenario, trace)
    yield from _higher_limits(folder, scenario, trace, row)
    queues = scenario.queues
    names = {
        "partition": [p.name for p in queues.partitions],
        "qos": [q.name for q in queues.qos],
        "queue": [q.name for q in queues.queues],
    }
    of_partition = {p.qos for p in queues.partitions}  # their limits hold without being named
    names["qos"] = [name for name in names["qos"] if name not in of_partition]
    for kind, known in names.items():
        own = str(folder.jobs[kind][row]) if kind in folder.jobs else ""
        if kind == "queue":  # jobs may name one of its doors
            own = next((q.name for q in queues.queues if own in q.names), own)
        for other in [name for name in known if name != own][:_EACH]:
            word = "QOS" if kind == "qos" else kind
            yield edit.job(f"in {word} {other}" + (f" in place of {own}" if own else ""), 0.5, **{kind: other})


def _more_nodes(scenario: Scenario, trace: Trace | None) -> Iterator[WhatIf]:
    """One more node of each group, or GPUs of a pool."""
    cluster = scenario.cluster
    total = sum(group.count * group.gpus for group in cluster.groups)
    if cluster.gpus is not None:
        more = cluster.model_copy(update={"gpus": cluster.gpus + 8})
        yield WhatIf("8 more GPUs", 8 / total, scenario.model_copy(update={"cluster": more}), trace)
    for k, group in enumerate(cluster.nodes):
        if not group.gpus:
            continue
        nodes = list(cluster.nodes)
        nodes[k] = group.model_copy(update={"count": group.count + 1})
        update: dict[str, Any] = {"nodes": tuple(nodes)}
        if isinstance(cluster.topology, Explicit):
            update["topology"] = _linked(
                cluster.topology, f"{group.name}-{group.count - 1}", f"{group.name}-{group.count}"
            )
        more = cluster.model_copy(update=update)
        text = f"one more node of {group.name} ({group.gpus} GPUs)"
        yield WhatIf(text, group.gpus / total, scenario.model_copy(update={"cluster": more}), trace)


_LIMITS = ("gpus", "jobs", "gpus_per_user", "jobs_per_user", "gpus_per_account", "jobs_per_account")


def _higher_limits(folder: Folder, scenario: Scenario, trace: Trace | None, row: int) -> Iterator[WhatIf]:
    """Each limit and quota of the job's QOS, partition, account, user and queue, raised so that it fits on top."""
    queues, gpus = scenario.queues, int(folder.jobs["gpus"][row])
    total = sum(group.count * group.gpus for group in scenario.cluster.groups)
    who = {
        kind: str(folder.jobs[kind][row]) if kind in folder.jobs else ""
        for kind in ("user", "account", "partition", "qos", "queue")
    }
    partition = next(
        (p for p in queues.partitions if p.name == who["partition"] or (p.default and not who["partition"])), None
    )
    above, accounts = who["account"], dict[str, str]()
    while above and above not in accounts:
        accounts[above] = next((a.parent for a in queues.accounts if a.name == above), "")
        above = accounts[above]
    mine: dict[str, Callable[[Any], bool]] = {
        "qos": lambda one: one.name in (who["qos"], partition.qos if partition else ""),
        "partitions": lambda one: one is partition,
        "accounts": lambda one: one.name in accounts,
        "users": lambda one: (one.name, one.account) == (who["user"], who["account"]),
        "queues": lambda one: who["queue"] in (one.name, *one.names),
    }
    for section, applies in mine.items():
        entries = getattr(queues, section)
        for k, entry in enumerate(entries):
            for key in _LIMITS if applies(entry) else ():
                old = getattr(entry, key, None)
                if not isinstance(old, (int, float)):
                    continue
                new = old + (gpus if key.startswith("gpus") else 1)
                changed = (*entries[:k], entry.model_copy(update={key: new}), *entries[k + 1 :])
                update = {"queues": queues.model_copy(update={section: changed})}
                text = f"{section} {entry.name}: {key} {new:g} in place of {old:g}"
                yield WhatIf(text, gpus / total, scenario.model_copy(update=update), trace)


def _linked(topology: Explicit, like: str, name: str) -> Explicit:
    """The links of a node also for another one."""
    more = [
        link.model_copy(
            update={
                "source": name if link.source == like else link.source,
                "target": name if link.target == like else link.target,
            }
        )
        for link in topology.links
        if like in (link.source, link.target)
    ]
    links: tuple[LinkSpec, ...] = (*topology.links, *more)
    return topology.model_copy(update={"links": links})


class _Editor:
    """Changes one job of a case, in the scenario's list or in its trace."""

    def __init__(self, folder: Folder, scenario: Scenario, trace: Trace | None, row: int) -> None:
        self.scenario, self.trace = scenario, trace
        self.number = int(folder.jobs["job_id"][row])
        self.listed = [entry for job in scenario.workload.jobs for entry in expand(job)]

    def job(self, text: str, size: float, **values: Any) -> WhatIf:
        """The case with other values of the job; fewer GPUs run longer in proportion."""
        if self.number < len(self.listed):
            return WhatIf(text, size, self._of_list(values), self.trace)
        return WhatIf(text, size, self.scenario, self._of_trace(values))

    def _of_list(self, values: dict[str, Any]) -> Scenario:
        jobs = []
        for k, (name, arrival, job) in enumerate(self.listed):
            update: dict[str, Any] = {"name": name, "arrival": arrival, "count": 1, "spacing": 0.0}
            jobs.append(job.model_copy(update=update | (_scaled(job, values) if k == self.number else {})))
        workload = self.scenario.workload.model_copy(update={"jobs": tuple(jobs)})
        return self.scenario.model_copy(update={"workload": workload})

    def _of_trace(self, values: dict[str, Any]) -> Trace:
        assert self.trace is not None
        trace = self.trace
        row = int(np.flatnonzero(trace.job_id == self.number - self._offset)[0])
        if "gpus" in values:
            gpus, duration_s = trace.gpus.copy(), trace.duration_s.copy()
            duration_s[row] *= gpus[row] / values["gpus"]
            gpus[row] = values["gpus"]
            return replace(trace, gpus=gpus, duration_s=duration_s)
        columns = dict(trace.columns)
        for kind, name in values.items():
            texts = columns[kind].tolist() if isinstance(columns.get(kind), Text) else [""] * len(trace)
            texts[row] = name
            columns[kind] = _text(texts)
        return replace(trace, columns=columns)

    @property
    def _offset(self) -> int:
        """Offset of a trace's job numbers after the jobs listed in the scenario."""
        return len(self.listed)


def _scaled(job: JobSpec, values: dict[str, Any]) -> dict[str, Any]:
    if "gpus" in values and job.duration is not None:
        return {**values, "duration": job.duration * job.gpus / values["gpus"]}
    return values


def _text(texts: list[str]) -> Text:
    known = {text: k for k, text in enumerate(dict.fromkeys(texts))}
    return Text(np.array([known[text] for text in texts], dtype=np.int32), tuple(known))


def smallest(tried: list[Tried], before_s: float, arrival_s: float) -> Tried | None:
    """The smallest change that at least halves the wait; None if none does."""
    limit_s = arrival_s + (before_s - arrival_s) / 2 if math.isfinite(before_s) else math.inf
    return next((one for one in tried if one.start_s <= limit_s), None)

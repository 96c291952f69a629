"""Checks of the section `queues`, and of jobs that name what it declares: names that must exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from equipoise.sim.job.declared import copies
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.names import unknown
from equipoise.sim.scenario.tree import KeyPath

Problem = tuple[KeyPath, str]


def queue_problems(scenario: Scenario) -> Iterator[Problem]:
    """Names of nodes, accelerators, accounts, partitions, QOS and queues that do not exist."""
    q, groups = scenario.queues, scenario.cluster.groups
    kinds = {g.name for g in groups if g.gpus} | {g.accelerator for g in groups if g.gpus}
    if any(part.nodes for part in q.partitions):  # a million names take a while
        nodes = {g.name for g in groups} | {f"{g.name}-{k}" for g in groups for k in range(g.count)}
        for i, part in enumerate(q.partitions):
            yield from _each(("queues", "partitions", i, "nodes"), part.nodes, nodes, "node or group of nodes")
    for section in ("flavors", "gpu_types"):
        for name, words in getattr(q, section).items():
            yield from _each(("queues", section, name), words, kinds, "accelerator or group of nodes")
    for section in ("accounts", "users", "qos", "partitions"):
        for i, part in enumerate(getattr(q, section)):
            path = ("queues", section, i, "gpus_of_type")
            yield from _each(path, tuple(part.gpus_of_type), kinds, "accelerator or group of nodes", keys=True)
    yield from _jobs(scenario, kinds)


def _jobs(scenario: Scenario, kinds: set[str]) -> Iterator[Problem]:
    q = scenario.queues
    known = {
        "account": {a.name for a in q.accounts},
        "partition": {p.name for p in q.partitions},
        "qos": {x.name for x in q.qos},
        "queue": {n for x in q.queues for n in (*copies(x), *x.names)},
    }
    for k, job in enumerate(scenario.workload.jobs):
        yield from _each(("workload", "jobs", k, "gpu_types"), job.gpu_types, kinds, "accelerator or group of nodes")
        for kind, names in known.items():
            name = getattr(job, kind)
            if names and name and name not in names:
                yield ("workload", "jobs", k, kind), unknown(kind, name, names)


def _each(path: KeyPath, words: Sequence[str], known: set[str], what: str, *, keys: bool = False) -> Iterator[Problem]:
    for k, word in enumerate(words):
        if word not in known:
            yield (*path, word if keys else k), unknown(what, word, known)

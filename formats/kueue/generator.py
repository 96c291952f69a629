"""The workload generator's YAML of Kueue's performance test: cohorts, queues and their workloads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from equipoise.formats.kueue.values import Thing
from equipoise.formats.text.textfile import TextFile
from equipoise.formats.text.yamlfile import load_documents


@dataclass(frozen=True)
class GeneratedWork:
    """`count` workloads of one class submitted to each queue, one every `interval_s`.

    request: units of quota of each of its `pods`. topology: `required`, `preferred`, `balanced` or "", within a
    place of `level`.
    """

    name: str
    count: int
    interval_s: float
    run_s: float
    priority: int
    request: float
    pods: int = 1
    topology: str = ""
    level: str = ""


@dataclass(frozen=True)
class GeneratedQueues:
    """`count` equal queues in each cohort, and their workloads. Limits None: no limit."""

    name: str
    count: int
    nominal_quota: float
    borrowing_limit: float | None
    reclaim_within_cohort: str
    within_cluster_queue: str
    work: tuple[GeneratedWork, ...]


@dataclass(frozen=True)
class GeneratedCohorts:
    """`count` equal cohorts."""

    name: str
    count: int
    queues: tuple[GeneratedQueues, ...]


@dataclass(frozen=True)
class GeneratedLevel:
    """A topology level: `count` domains in each domain above it; the lowest level is nodes with `cpus` CPUs."""

    label: str
    count: int
    cpus: float


@dataclass(frozen=True)
class GeneratedTest:
    """levels: of the topology, coarse to fine; none where the test has no nodes."""

    cohorts: tuple[GeneratedCohorts, ...]
    levels: tuple[GeneratedLevel, ...] = ()


def read_generator(source: str | Path | bytes, *, name: str = "") -> GeneratedTest:
    """The cohorts and nodes of a generator's YAML. Raises FormatError for another file, or a wrong value."""
    file = TextFile(source, name)
    documents = load_documents(file)
    if not documents or not isinstance(documents[0], dict) or "cohorts" not in documents[0]:
        raise file.error(0, "no key `cohorts`, which the generator of Kueue's performance test has")
    top = Thing(documents[0], f"{file.name}: ")
    levels = tuple(
        GeneratedLevel(
            part.get("nodeLabel").text(), part.get("count").whole(1), part.get("capacity", "cpu").quantity(0.0) or 0.0
        )
        for part in top.get("topology", "levels").members()
    )
    return GeneratedTest(tuple(_cohorts(part) for part in top.get("cohorts").members()), levels)


def _cohorts(part: Thing) -> GeneratedCohorts:
    queues = tuple(_queues(member) for member in part.get("queuesSets").members())
    return GeneratedCohorts(part.get("className").text(), part.get("count").whole(1), queues)


def _queues(part: Thing) -> GeneratedQueues:
    return GeneratedQueues(
        name=part.get("className").text(),
        count=part.get("count").whole(1),
        nominal_quota=part.get("nominalQuota").quantity(0.0) or 0.0,
        borrowing_limit=part.get("borrowingLimit").quantity(),
        reclaim_within_cohort=part.get("reclaimWithinCohort").text("Never"),
        within_cluster_queue=part.get("withinClusterQueue").text("Never"),
        work=tuple(
            work
            for member in part.get("workloadsSets").members()
            for kind in member.get("workloads").members()
            for work in [_work(member, kind)]
        ),
    )


def _work(member: Thing, kind: Thing) -> GeneratedWork:
    return GeneratedWork(
        name=kind.get("className").text(),
        count=member.get("count").whole(1),
        interval_s=member.get("creationIntervalMs").whole(0) / 1000.0,
        run_s=kind.get("runtimeMs").whole(0) / 1000.0,
        priority=kind.get("priority").whole(0),
        request=kind.get("request").quantity(0.0) or 0.0,
        pods=kind.get("podCount").whole(1),
        topology=kind.get("tasConstraint").text(),
        level=kind.get("tasLevel").text(),
    )

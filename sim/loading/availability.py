"""Series of availability: read from their files into the scenario, and checked with what scales."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from equipoise.sim.scenario.model import NodeGroup, OnNodes, Scenario
from equipoise.sim.scenario.pools import Available, Supply
from equipoise.sim.scenario.tree import InputError, KeyPath, WrongValueError
from equipoise.sim.traces.table import TextTable

_TIME = "time_s"


def with_availability(scenario: Scenario, base: Path | None) -> Scenario:
    """The scenario with the rows of its availability files in it. Raises InputError, WrongValueError."""
    if all(group.available is None or group.available.file is None for group in scenario.cluster.nodes):
        return scenario
    groups = tuple(_filled(group, k, base) for k, group in enumerate(scenario.cluster.nodes))
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"nodes": groups})})


def _filled(group: NodeGroup, k: int, base: Path | None) -> NodeGroup:
    spec = group.available
    if spec is None or spec.file is None:
        return group
    path = Path(os.path.normpath((base or Path()) / spec.file))
    at: KeyPath = ("cluster", "nodes", k, "available")
    if not path.is_file():
        raise WrongValueError((*at, "file"), f"{spec.file}: no such file in {base or Path()}")
    table = TextTable(path)
    table.need((_TIME,))
    known = [name for name in table.header if name != _TIME]
    if spec.series is None and len(known) != 1:
        text = f"which of the columns of {spec.file}? allowed: {', '.join(known) or 'none'}"
        raise WrongValueError((*at, "series"), text)
    series = spec.series or known[0]
    if series not in known:
        text = f"{spec.file} has no column {series!r}; allowed: {', '.join(known)}"
        raise WrongValueError((*at, "series"), text)
    time_s, nodes = table.floats(_TIME), table.ints(series, low=0)
    if not len(table):
        raise InputError([f"{path}:1:1: no rows"])
    late = [j for j in range(1, len(table)) if time_s[j] <= time_s[j - 1]]
    table.fail(
        [
            f"{path}:{table.line[j]}:1: time_s {time_s[j]:g} does not come after {time_s[j - 1]:g}"
            for j in late
        ]
    )
    rows = tuple(Supply(at=float(at_s), nodes=int(count)) for at_s, count in zip(time_s, nodes, strict=True))
    filled = Available(supply=rows, begin=spec.begin, notice=spec.notice)
    return group.model_copy(update={"available": filled})


def pool_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Nodes that come and go, where something needs them always."""
    for k, group in enumerate(scenario.cluster.nodes):
        at: KeyPath = ("cluster", "nodes", k)
        if group.autoscale is not None and group.autoscale.min > group.count:
            yield (
                (*at, "autoscale", "min"),
                f"{group.autoscale.min} nodes, but the group has a count of {group.count}",
            )
        spot = scenario.faults.spot
        if group.available is not None and spot is not None and spot.group == group.name:
            yield (*at, "available"), "'faults.spot' takes nodes of this group already; leave out one of them"
    away = {group.name for group in scenario.cluster.nodes if group.may_be_away}
    for j, job in enumerate(scenario.workload.jobs):
        if not away or job.data is None:
            continue
        place, path = job.data.placement, ("workload", "jobs", j, "data", "placement")
        if isinstance(place, OnNodes):
            named = {name.rpartition("-")[0] for name in place.nodes} & away
            if named:
                yield (
                    (*path, "nodes"),
                    f"nodes of {', '.join(sorted(named))} are not always there to store data",
                )
        elif place.over == "cluster":
            yield (*path, "over"), f"nodes of {', '.join(sorted(away))} are not always there; allowed: job"

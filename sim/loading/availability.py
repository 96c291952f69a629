"""Availability series: reads their files into the scenario, and checks groups that come and go."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.jsonfile import load_json
from equipoise.formats.text.jsonfile import path as within
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile
from equipoise.sim.scenario.model import NodeGroup, OnNodes, Scenario
from equipoise.sim.scenario.pools import Available, Supply
from equipoise.sim.scenario.tree import InputError, KeyPath, WrongValueError
from equipoise.sim.traces.table import TextTable

_TIME = "time_s"
_BY_SERIES = ("series", "gap_s", "available")
"""Columns of the other format: a row for each series, with a digit for each stretch of `gap_s`."""


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
    if ".json" in path.suffixes:
        return _with_supply(group, spec, _probes(path, spec, at))
    table = TextTable(path)
    if not len(table):
        raise InputError([f"{path}:1:1: no rows"])
    if set(_BY_SERIES) <= set(table.header):
        table.need(_BY_SERIES)
        rows = _digits(table, _chosen(spec, table.text("series"), "series", at))
    elif _TIME in table.header:
        table.need((_TIME,))
        known = [name for name in table.header if name != _TIME]
        rows = _counts(table, _chosen(spec, known, "column", at))
    else:
        text = (
            f"{path}:1:1: no series of counts; found: {', '.join(table.header)}; allowed: {_TIME} and a column "
            f"of counts for each series, or {', '.join(_BY_SERIES)} with a row of digits for each"
        )
        raise InputError([text])
    return _with_supply(group, spec, rows)


def _with_supply(group: NodeGroup, spec: Available, rows: Sequence[tuple[float, int]]) -> NodeGroup:
    supply = tuple(Supply(at=at_s, nodes=count * spec.nodes_each) for at_s, count in rows)
    filled = Available(supply=supply, begin=spec.begin, notice=spec.notice)
    return group.model_copy(update={"available": filled})


def _probes(path: Path, spec: Available, at: KeyPath) -> list[tuple[float, int]]:
    """(time (s), count) at each change in a file of SkyPilot's spot traces. Raises InputError, WrongValueError.

    It is `{"metadata": {"gap_seconds": 600}, "data": [1, 0, ...]}`: how many could be had at each probe.
    """
    if spec.series is not None:
        raise WrongValueError((*at, "series"), f"{spec.file} holds one series without a name; leave this key out")
    try:
        content = load_json(TextFile(path), RowTally())
    except FormatError as error:
        raise InputError([str(error)]) from error
    gap_s, counts = within(content, "metadata", "gap_seconds"), within(content, "data")
    if not _is_number(gap_s) or not 0.0 < gap_s < math.inf:
        raise InputError([f"{path}: metadata.gap_seconds: {gap_s!r}; seconds above 0 are needed"])
    if not isinstance(counts, list) or not counts:
        raise InputError([f"{path}: data: a list of counts is needed, one for each probe"])
    for k, count in enumerate(counts):
        if not _is_number(count) or count != int(count) or count < 0:
            raise InputError([f"{path}: data[{k}]: {count!r}; whole numbers from 0 are needed"])
    changed = [k for k, count in enumerate(counts) if k == 0 or count != counts[k - 1]]
    return [(k * float(gap_s), int(counts[k])) for k in changed]


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _chosen(spec: Available, known: Sequence[str], what: str, at: KeyPath) -> str:
    """The named series, or the only one. Raises WrongValueError."""
    there = f"allowed: {', '.join(known) or 'none'}"
    if spec.series is None and len(known) != 1:
        plural = what if what == "series" else f"{what}s"
        raise WrongValueError((*at, "series"), f"{spec.file} has several {plural}, name one; {there}")
    series = spec.series or known[0]
    if series not in known:
        raise WrongValueError((*at, "series"), f"{spec.file} has no {what} {series!r}; {there}")
    return series


def _counts(table: TextTable, series: str) -> list[tuple[float, int]]:
    """(time (s), count) of each row of a table of times. Raises InputError."""
    time_s, nodes = table.floats(_TIME), table.ints(series, low=0)
    late = [j for j in range(1, len(table)) if time_s[j] <= time_s[j - 1]]
    table.fail([f"{table.at(j, _TIME)}: time_s {time_s[j]:g} does not come after {time_s[j - 1]:g}" for j in late])
    return list(zip(time_s.tolist(), nodes.tolist(), strict=True))


def _digits(table: TextTable, series: str) -> list[tuple[float, int]]:
    """(time (s), count) at each change in the row of a series. Raises InputError."""
    names = table.text("series")
    row = names.index(series)
    if (again := names[row + 1 :].count(series)) > 0:
        raise InputError([f"{table.at(row, 'series')}: series {series!r} appears {again + 1} times"])
    text, gap_s = table.text("available")[row], float(table.floats("gap_s", low=0.0)[row])
    if not gap_s > 0.0:
        raise InputError([f"{table.at(row, 'gap_s')}: gap_s: {gap_s:g}, must be above 0"])
    if not (text.isascii() and text.isdigit()):
        wrong = next((c for c in text if not (c.isascii() and c.isdigit())), "")
        raise InputError(
            [f"{table.at(row, 'available')}: available: {wrong!r} is not a digit; each digit stands for {gap_s:g} s"]
        )
    changed = [k for k in range(len(text)) if k == 0 or text[k] != text[k - 1]]
    return [(k * gap_s, int(text[k])) for k in changed]


def pool_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Problems with nodes that come and go where they are needed permanently."""
    for k, group in enumerate(scenario.cluster.nodes):
        at: KeyPath = ("cluster", "nodes", k)
        spot = scenario.faults.spot
        if group.available is not None and spot is not None and spot.group == group.name:
            yield (*at, "available"), "'faults.spot' already reclaims nodes of this group; leave out one of the two"
    away = {group.name for group in scenario.cluster.nodes if group.may_be_away}
    for j, job in enumerate(scenario.workload.jobs):
        if not away or job.data is None:
            continue
        place, path = job.data.placement, ("workload", "jobs", j, "data", "placement")
        if isinstance(place, OnNodes):
            named = {name.rpartition("-")[0] for name in place.nodes} & away
            if named:
                yield ((*path, "nodes"), f"nodes of {', '.join(sorted(named))} can be absent and cannot store data")
        elif place.over == "cluster":
            yield (*path, "over"), f"nodes of {', '.join(sorted(away))} can be absent; allowed: job"

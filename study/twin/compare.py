"""The first difference of simulated and live decisions, and the observed columns that cause it.

A policy is a pure function of observation and memory, so the cause can be tested: the live observations are decided
again, with one column taken from the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from equipoise.policies.contract import Decision, Memory, Policy, StageError, refine
from equipoise.policies.observation import Observation, Table, writable

_SCALARS = ("time_s", "window_s")


@dataclass(frozen=True)
class Parting:
    """The first decision that differs."""

    decision: int
    what: str  # field of the plan
    live: str
    simulated: str
    columns: tuple[str, ...]  # observed, as table.column: each alone, taken from the simulation, changes the decision


def actions(decision: Decision) -> dict[str, Any]:
    """Changes of a decision as plain data: shards by id, values equal to the present ones left out."""
    o, plan = decision.observation, decision.plan
    found: dict[str, Any] = {}
    now = (
        ("samples_per_step", plan.samples_per_step, o.workers.samples_per_step),
        ("global_batch", plan.global_batch, o.jobs.global_batch),
        ("accumulation", plan.accumulation, o.jobs.accumulation),
        ("sync_interval", plan.sync_interval, o.jobs.sync_interval),
        ("gpu_share", plan.gpu_share, o.workers.gpu_share),
    )
    for name, planned, present in now:
        if planned is not None and not np.array_equal(planned, present):
            found[name] = planned.tolist()
    if plan.moves is not None and len(plan.moves.shard):
        pairs = zip(o.shards.id[plan.moves.shard].tolist(), plan.moves.worker.tolist(), strict=True)
        found["moves"] = sorted(pairs)
    if plan.fetch_order is not None:
        found["fetch_order"] = o.shards.id[plan.fetch_order].tolist()
    if plan.allocation is not None:
        counts = np.diff(plan.allocation.offset).tolist()
        found["allocation"] = list(zip(plan.allocation.job.tolist(), counts, strict=True))
    return found


def first_difference(live: Mapping[str, Any], simulated: Mapping[str, Any]) -> str | None:
    """Name of the first field in which two decisions' actions differ, or None."""
    for name in sorted({*live, *simulated}):
        if live.get(name) != simulated.get(name):
            return name
    return None


def identical(live: Sequence[Decision], simulated: Sequence[Decision]) -> int:
    """Number of first decisions with equal changes."""
    for k, (a, b) in enumerate(zip(live, simulated, strict=False)):
        if first_difference(actions(a), actions(b)) is not None:
            return k
    return min(len(live), len(simulated))


def parting(policy: Policy, live: Sequence[Decision], simulated: Sequence[Decision]) -> Parting | None:
    """The first decision that differs and the columns that cause it; None when all are equal."""
    k = identical(live, simulated)
    if k == min(len(live), len(simulated)):
        return None
    mine, other = actions(live[k]), actions(simulated[k])
    what = first_difference(mine, other)
    assert what is not None
    before, after = live[: k + 1], simulated[: k + 1]
    candidates = _candidates(live[k].observation, simulated[k].observation)
    columns = tuple(name for name in candidates if _flips(policy, before, after, name))
    return Parting(k + 1, what, str(mine.get(what)), str(other.get(what)), columns)


def _candidates(live: Observation, simulated: Observation) -> Iterator[str]:
    """Measured columns that can be exchanged: those of tables with equal rows whose values differ."""
    for name in _SCALARS:
        if getattr(live, name) != getattr(simulated, name):
            yield name
    others = simulated.tables()
    for table_name, table in live.tables().items():
        other = others[table_name]
        if len(table) != len(other):
            continue
        for column, spec in table.columns.items():
            if spec.dtype is np.float64 and not _equal(table, other, column):
                yield f"{table_name}.{column}"


def _equal(table: Table, other: Table, column: str) -> bool:
    return np.array_equal(getattr(table, column), getattr(other, column), equal_nan=True)


def _flips(policy: Policy, live: Sequence[Decision], simulated: Sequence[Decision], name: str) -> bool:
    """Whether the policy decides differently on the live run with this column simulated."""
    memory: Mapping[str, Memory] = live[0].memory_before
    decided = None
    for a, b in zip(live, simulated, strict=True):
        seen = _with_column(a.observation, b.observation, name)
        try:
            decided = refine(policy, seen, memory)
        except StageError:
            return True
        memory = decided.memory
    assert decided is not None
    return first_difference(actions(decided), actions(live[-1])) is not None


def _with_column(live: Observation, simulated: Observation, name: str) -> Observation:
    """The live observation with one value or column of the simulated one, where rows are equal in number."""
    table_name, _, column = name.partition(".")
    if not column:
        return replace(live, **{name: getattr(simulated, name)})
    table, other = live.tables()[table_name], simulated.tables()[table_name]
    if len(table) != len(other):
        return live
    changed = type(table).of(**table.as_dict())
    writable(changed, column)[:] = getattr(other, column)
    new: Any = {table_name: changed}
    return replace(live, **new)

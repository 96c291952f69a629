"""Before/after guard: compare measured goodput after a change, undo a harmful change, back off.

A record is plain arrays sorted by id (a job's or worker's), kept inside a stage's memory:

    record = guard_watch(record, ids, goodput, now, undo)        # when a change is planned
    verdict, record = guard_review(record, known_ids, goodput, now, noise=0.05, settle_s=window)
    ... plan the undo of verdict.rollback, with verdict.undo ...
    free = ~guard_blocked(record, ids, now)                       # neither watched nor in back-off

Every function returns a new record and leaves the old one as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.observation import Bools, Floats, Ints

Record = Mapping[str, Any]

_COLUMNS: dict[str, tuple[type, float]] = {
    "id": (np.int64, -1),
    "group": (np.int64, -1),  # changes that are judged together
    "watched": (np.bool_, False),
    "since_s": (np.float64, np.nan),  # time of the change
    "before": (np.float64, np.nan),  # goodput before it
    "undo": (np.float64, np.nan),  # value to go back to
    "reports": (np.int64, 0),  # measurements since
    "last": (np.float64, np.nan),  # latest of those
    "slope": (np.float64, 0.0),  # latest minus the one before
    "failures": (np.int64, 0),  # roll-backs in a row
    "blocked_until_s": (np.float64, -np.inf),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ids whose change is kept, and ids whose change is to be undone, with the values to restore."""

    keep: Ints
    rollback: Ints
    undo: Floats


def guard_empty() -> Record:
    """A record that watches nothing."""
    return {name: np.empty(0, dtype) for name, (dtype, _) in _COLUMNS.items()}


def _full(record: Record) -> dict[str, NDArray[Any]]:
    return {name: record[name] for name in _COLUMNS} if record else dict(guard_empty())


def _find(ids: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """Positions of `wanted` in the sorted `ids`, and whether each is there."""
    at = np.searchsorted(ids, wanted)
    clipped = np.minimum(at, max(len(ids) - 1, 0)).astype(np.int64)
    found = ids[clipped] == wanted if len(ids) else np.zeros(len(wanted), dtype=np.bool_)
    return clipped, found


def guard_watch(
    record: Record, ids: Ints, before: Floats, time_s: float, undo: Floats, group: Ints | None = None
) -> Record:
    """Watch changes made now to `ids` (distinct), whose goodput was `before`; `undo` holds the values to restore.

    Ids of one `group` are judged together, by the mean of their goodput ratios: a change that takes from
    one and gives to another must pay in sum. Without `group` each id is its own group. Ids whose `before`
    is not finite and positive cannot be judged and are not watched.
    """
    known = np.isfinite(before) & (before > 0)
    new: dict[str, NDArray[Any]] = {
        name: np.full(int(known.sum()), value, dtype) for name, (dtype, value) in _COLUMNS.items()
    }
    new["id"], new["before"], new["undo"] = ids[known], before[known], undo[known]
    new["group"] = (ids if group is None else group)[known]
    new["since_s"][:], new["watched"][:] = time_s, True
    old = _full(record)
    at, found = _find(old["id"], new["id"])
    new["failures"][found] = old["failures"][at[found]]
    rest = ~np.isin(old["id"], ids)
    joined = {name: np.concatenate((old[name][rest], new[name])) for name in _COLUMNS}
    order = np.argsort(joined["id"], kind="stable")
    return {name: values[order] for name, values in joined.items()}


def guard_review(
    record: Record,
    ids: Ints,
    goodput: Floats,
    time_s: float,
    *,
    noise: float,
    settle_s: float,
    backoff_s: float = 300.0,
    reports: int = 2,
) -> tuple[Verdict, Record]:
    """Judge the watched changes by the goodput of the known `ids` (sorted), measured over `settle_s`.

    A measurement counts once its window began after the change. After `reports` of them a group is kept
    when the mean ratio after/before of the last two is at least 1 - noise, is watched for up to twice as many while
    its trend would reach that within one more window, and is rolled back otherwise; its ids are then blocked for
    backoff_s * 2**(failures before). Groups with an id that vanished are forgotten.
    """
    if not record or not len(record["id"]):  # most decisions: nothing is watched
        return Verdict(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)), record or guard_empty()
    state = {name: values.copy() for name, values in _full(record).items()}
    at, there = _find(ids, state["id"])
    now = np.where(there, goodput[at] if len(ids) else np.nan, np.nan)
    _measure(state, now, time_s, settle_s)
    groups, member = np.unique(state["group"], return_inverse=True)
    member = member.reshape(-1)
    size = np.bincount(member, weights=state["watched"], minlength=len(groups)).astype(np.float64)
    lost = np.bincount(member, weights=state["watched"] & ~there, minlength=len(groups)) > 0
    fewest = np.full(len(groups), np.iinfo(np.int64).max)
    np.minimum.at(fewest, member[state["watched"]], state["reports"][state["watched"]])
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = _mean_ratio(state, member, size, state["last"] - 0.5 * state["slope"])
        forecast = _mean_ratio(state, member, size, state["last"] + state["slope"])
    due = (size > 0) & ~lost & (fewest >= reports)
    good = due & (ratio >= 1 - noise)
    recovering = due & ~good & (forecast >= 1 - noise) & (fewest < 2 * reports)
    keep = state["watched"] & good[member]
    rollback = state["watched"] & (due & ~good & ~recovering)[member]
    verdict = Verdict(state["id"][keep], state["id"][rollback], state["undo"][rollback])
    with np.errstate(over="ignore"):
        block_s = backoff_s * np.exp2(np.minimum(state["failures"][rollback], 60))
    state["blocked_until_s"][rollback] = time_s + block_s
    state["failures"][rollback] += 1
    state["failures"][keep] = 0
    state["watched"] &= ~keep & ~rollback & ~lost[member]
    stays = there & (state["watched"] | (state["failures"] > 0))
    return verdict, {name: values[stays] for name, values in state.items()}


def _measure(state: dict[str, NDArray[Any]], now: Floats, time_s: float, settle_s: float) -> None:
    """Add this window's goodput to the changes whose window lies wholly after them."""
    counts = state["watched"] & np.isfinite(now) & (time_s - settle_s >= state["since_s"])
    first = counts & (state["reports"] == 0)
    state["slope"][counts] = np.where(first, 0.0, now - state["last"])[counts]
    state["last"][counts] = now[counts]
    state["reports"][counts] += 1


def _mean_ratio(state: dict[str, NDArray[Any]], member: Ints, size: Floats, after: Floats) -> Floats:
    """Mean over each group's watched ids of after/before."""
    ratio = np.where(state["watched"], after / state["before"], 0.0)
    total = np.bincount(member, weights=ratio, minlength=len(size)).astype(np.float64)
    return total / size


def guard_blocked(record: Record, ids: Ints, time_s: float) -> Bools:
    """Whether each id must be left alone now: its last change is still watched, or it is in back-off."""
    state = _full(record)
    at, found = _find(state["id"], ids)
    if not len(state["id"]):
        return found
    result: Bools = found & (state["watched"][at] | (time_s < state["blocked_until_s"][at]))
    return result


def guard_acquit(record: Record, ids: Ints) -> Record:
    """Cancel the latest failure of `ids` and its back-off: the change was not the cause."""
    state = {name: values.copy() for name, values in _full(record).items()}
    at, found = _find(state["id"], ids)
    state["failures"][at[found]] = np.maximum(state["failures"][at[found]] - 1, 0)
    state["blocked_until_s"][at[found]] = -np.inf
    stays = state["watched"] | (state["failures"] > 0)
    return {name: values[stays] for name, values in state.items()}

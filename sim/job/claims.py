"""Submitter, queue and allowed GPUs of each job, and jobs that can never start under a limit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.declared_queues import (
    EMPTY,
    KINDS,
    NODE_PREFERRED,
    NODE_REQUIRED,
    RACK_PREFERRED,
    RACK_REQUIRED,
    Queues,
)
from equipoise.policies.observation import Bools, Ints
from equipoise.policies.quotas.limits import Quota, bound, describe
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.job.declared import Claim, Declared, Places
from equipoise.sim.scenario.model import JobSpec, Scenario
from equipoise.sim.scenario.queues import User
from equipoise.sim.scenario.tree import InputError

_TOGETHER = {
    None: 0,
    "rack-preferred": RACK_PREFERRED,
    "rack-required": RACK_REQUIRED,
    "node-preferred": NODE_PREFERRED,
    "node-required": NODE_REQUIRED,
}
Texts = NDArray[Any]
_MOST = 50_000
"""Claims of jobs that are looked at where a scenario declares nothing of them."""


@dataclass(frozen=True)
class Claims:
    """Declared queues, and by job: its claim (-1: none), allowed GPU models, and placement.

    too_large: why a job can never start, "" where it can. smaller: by row, the GPUs that a job starts with at most,
    where a limit or its nodes never allow it all that it asks for.
    """

    queues: Queues = EMPTY
    claim: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    gpu_types: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    together: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, dtype=np.int8))
    segment: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    too_large: Sequence[str] = ()
    smaller: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def texts_by_kind(columns: Mapping[str, Texts], listed: Sequence[JobSpec], rows: Ints, jobs: int) -> dict[str, Texts]:
    """Names of each of KINDS by job, "" where not given; rows: those of the scenario's own jobs."""
    found: dict[str, Texts] = {}
    for kind in KINDS:
        column = columns.get(kind)
        if column is None and not any(getattr(job, kind) for job in listed):
            continue
        texts = np.full(jobs, "", dtype=object) if column is None or column.dtype != object else column.copy()
        own = np.array([getattr(job, kind) for job in listed], dtype=object)
        texts[rows] = own
        if any(texts):
            found[kind] = texts
    return found


def charge_accounts(texts: dict[str, Texts], users: Sequence[User]) -> list[str]:
    """Charge jobs that name a user and no account to the user's first account, as Slurm does; returns a note."""
    first = {user.name: user.account for user in reversed(users)}
    if not first or "user" not in texts:
        return []
    named = texts.get("account", np.full(len(texts["user"]), "", dtype=object))
    free = [row for row in np.flatnonzero(named == "").tolist() if texts["user"][row] in first]
    if not free:
        return []
    named[free] = [first[texts["user"][row]] for row in free]
    texts["account"] = named
    return [f"{len(free)} jobs name a user and no account: charged to the user's first account in 'queues'"]


def make_claims(
    scenario: Scenario,
    cluster: Cluster,
    texts: Mapping[str, Texts],
    told: Mapping[str, Texts],
    listed: Mapping[int, JobSpec],
    least: Ints,
    share: NDArray[np.float64],
    tres: Sequence[tuple[float, ...]],
    sizes: Mapping[int, range] = MappingProxyType({}),
) -> Claims:
    """Claims of all jobs; sizes: of jobs that may start with fewer GPUs than they ask for, all their sizes.

    texts: names by kind (`texts_by_kind`). told: a trace's columns, of which `gpu_type` and `together` count.
    listed: the scenario's own jobs by row. least: fewest GPUs of each job, each by its `share`. tres: what each
    takes of RESOURCES. Raises InputError for wrong names.
    """
    jobs, declared = len(least), Declared(scenario, cluster)
    asked = bool(listed) and any(job.gpu_types or job.together or job.segment for job in listed.values())
    asked = asked or "together" in told or "segment" in told or ("gpu_type" in told and len(cluster.gpu_models) > 1)
    if not (texts or declared.weighs or asked or scenario.queues.gpu_types):
        return Claims()
    types, pins, together, notes = _types(scenario, Places(cluster), told, listed, jobs)
    segment = np.zeros(jobs, dtype=np.int64)
    if (parts := told.get("segment")) is not None and parts.dtype != object:
        segment[:] = np.nan_to_num(parts.astype(np.float64))
    for row, job in listed.items():
        segment[row] = job.segment or 0
    segment[(together == RACK_REQUIRED) | (together == NODE_REQUIRED)] = 0  # which is closer
    none = np.full(jobs, "", dtype=object)
    names = zip(
        *(texts.get(kind, none).tolist() for kind in KINDS),
        tres if declared.counts_tres else repeat(()),
        pins,
        strict=False,
    )
    number: dict[Claim, int] = {}
    plain: dict[Claim, int] = {}
    claim = np.empty(jobs, dtype=np.int64)
    for row, raw in enumerate(names):
        if raw not in plain:
            plain[raw] = number.setdefault(declared.standard(raw), len(number))
        claim[row] = plain[raw]
    if len(number) > _MOST and not declared.weighs and not any(pins):
        return Claims()  # columns of that name which say something else, such as seconds in the queue
    queues = declared.build(list(number), bool((types != -1).any() or together.any() or segment.any()))

    def large(gpus: Ints, rows: Ints | slice = slice(None)) -> list[str]:
        """Why jobs (rows) can never start with the given GPUs, "" where they can."""
        millionths = np.round(share[rows] * 1e6).astype(np.int64)
        of = (claim[rows], types[rows], together[rows], segment[rows], gpus, millionths)
        return _too_large(declared, queues, cluster, list(number), of)

    never, wanted = large(least), least.copy()
    for row, size in sizes.items():
        wanted[row] = size[-1]
    smaller: dict[int, int] = {}
    for row in [row for row, why in enumerate(large(wanted) if sizes else []) if why and not never[row]]:
        size = sizes[row]
        mine = np.array([row])
        fits = [not large(np.array([gpus]), mine)[0] for gpus in size]
        smaller[row] = max(gpus for gpus, fit in zip(size, fits, strict=True) if fit)
    if smaller:
        notes.append(f"jobs that start with fewer GPUs than requested, because a limit allows no more: {len(smaller)}")
    return Claims(
        queues, claim, types, together, segment, never, smaller, (*notes, *_unknown(scenario, declared, queues, claim))
    )


def _types(
    scenario: Scenario, places: Places, told: Mapping[str, Texts], listed: Mapping[int, JobSpec], jobs: int
) -> tuple[Ints, list[tuple[str, ...]], NDArray[np.int8], list[str]]:
    """(models that each job may use, groups that it is pinned to, how close together, notes)."""
    pins: list[tuple[str, ...]] = [()] * jobs
    types, together = np.full(jobs, -1, dtype=np.int64), np.zeros(jobs, dtype=np.int8)
    if (close := told.get("together")) is not None:
        together[:] = [_TOGETHER.get(word or None, 0) for word in close.tolist()]
    words = told.get("gpu_type")
    for row, job in listed.items():
        together[row] = _TOGETHER[job.together]
        if job.gpu_types:
            types[row] = places.models(job.gpu_types, f"gpu_types of job {job.name}")
            pins[row] = places.pin(job.gpu_types)
    meaning, notes = scenario.queues.gpu_types, []
    bits = {word.lower(): places.models(names, f"gpu_types.{word}") for word, names in meaning.items()}
    wanted = {word.lower(): names for word, names in meaning.items()}
    several = len(places.cluster.gpu_models) > 1
    unknown: Counter[str] = Counter()
    for row, word in enumerate(words.tolist() if words is not None and (meaning or several) else ()):
        parts = [part for part in re.split("[|,]", str(word).lower()) if part]
        if row in listed or not parts:
            continue
        if all(part in bits for part in parts):
            types[row] = np.bitwise_or.reduce([bits[part] for part in parts])
            pins[row] = places.pin(tuple(name for part in parts for name in wanted[part]))
        else:
            unknown[word] += 1
    if unknown:
        first, total = unknown.most_common(1)[0][0], unknown.total()
        notes.append(
            f"{total} jobs ask for a GPU type that queues.gpu_types does not name (such as {first}): "
            f"these jobs may use any GPU"
        )
    return types, pins, together, notes


def _unknown(scenario: Scenario, declared: Declared, q: Queues, claim: Ints) -> list[str]:
    """Notes on names of jobs that are not declared."""
    spec, notes = scenario.queues, []
    for kind, known in (
        ("account", declared.accounts),
        ("partition", declared.partitions),
        ("qos", declared.qos),
        ("queue", declared.queues),
    ):
        codes = q.codes(claim, kind)
        strange = [code for code, name in enumerate(q.names[kind]) if name not in known]
        count = int(np.isin(codes, strange).sum()) if known else 0
        if count:
            first = q.names[kind][strange[0]]
            notes.append(f"{count} jobs name a {kind} that 'queues' does not declare ({first}): no limit applies")
    of_all = ("queue", bool(spec.queues), "quota"), ("account", bool(spec.accounts), "limit of an account")
    for kind, given, what in of_all:
        if given and (absent := int((q.codes(claim, kind) < 0).sum())):
            notes.append(f"{absent} jobs name no {kind}: no {what} applies to them")
    return notes


def _too_large(
    declared: Declared, q: Queues, cluster: Cluster, claims: Sequence[Claim], asked: Sequence[Texts]
) -> list[str]:
    """Why each job can never start, "" for all others: a limit is below its request, or its nodes are too few.

    asked: by job its claim, GPU models, closeness, segment, GPUs, and millionths of each.
    """
    why = [""] * len(asked[0])
    alone = [declared.of_one_job(c) for c in claims]
    if not q.restricts and not any(gpus < np.inf or (most < np.inf).any() for gpus, most in alone):
        return why
    quota = Quota.unused(q, len(cluster.gpu_models))
    kinds = np.unique(np.column_stack(asked), axis=0).tolist()
    told = {tuple(row): _never(declared, q, cluster, quota, claims[row[0]], row) for row in kinds}
    if not any(told.values()):
        return why
    return [told[key] for key in zip(*(part.tolist() for part in asked), strict=True)]


def _never(declared: Declared, q: Queues, cluster: Cluster, quota: Quota, names: Claim, asked: Sequence[int]) -> str:
    claim, bits, close, segment, gpus, millionths = asked
    whole = gpus * millionths / 1e6
    room = [left if bits >> model & 1 else 0.0 for model, left in enumerate(quota.room(claim))]
    if whole > max(room) + 1e-9:
        limit = quota.first(claim, whole)
        if limit >= 0 and q.resource[limit] >= 0:
            return f"more than the limit {describe(q, limit)} allows: {bound(q, limit)}"
        return f"the limit {describe(q, limit) if limit >= 0 else 'its GPU types'} allows {max(room):g}"
    most, amounts = declared.of_one_job(names)
    if whole > most + 1e-9:
        return f"one job may have {most:g}"
    if names[5] and (np.array(names[5]) > amounts + 1e-9).any():
        return "and more CPUs, memory or nodes than one job may have"
    allowed: Bools = (bits >> cluster.node_model) & 1 == 1
    if q.nodes.shape[1]:
        allowed &= q.nodes[claim]
    sizes = np.where(allowed, cluster.nodes.gpus, 0)
    here = int(sizes.sum())
    if close == RACK_REQUIRED:
        here = int(np.bincount(cluster.nodes.rack, weights=sizes).max())
    elif close == NODE_REQUIRED:
        here = int(sizes.max())
    elif segment:
        racks = np.bincount(cluster.nodes.rack, weights=sizes).astype(np.int64)
        rest = int((racks % segment).max())
        here = int((racks // segment).sum()) * segment + rest
    return "" if gpus <= here else f"the nodes that it may use have {here}"


def refuse_too_large(scenario: Scenario, claims: Claims, names: Sequence[str], least: Ints, leave_out: bool) -> Bools:
    """Which jobs stay. Raises InputError for the first that can never start, unless they are to be left out."""
    bad = [row for row, why in enumerate(claims.too_large) if why]
    if bad and not leave_out:
        row, more = bad[0], f" (and {len(bad) - 1} more such jobs)" if len(bad) > 1 else ""
        text = f"job {names[row]} asks for {least[row]} GPUs, {claims.too_large[row]}: it can never start{more}"
        raise InputError([f"{scenario.name}: {text}; 'queues.too_large: leave-out' skips such jobs"])
    stay = np.ones(len(names), dtype=np.bool_)
    stay[bad] = False
    return stay

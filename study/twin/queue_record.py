"""A scheduler's record, read for the twin of its queue: jobs, nodes, policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.base.json_values import from_json
from equipoise.policies.contract import Policy
from equipoise.policies.observation import Floats, Ints
from equipoise.policies.registry import PolicyError, make_policy
from equipoise.sim.scenario.tree import InputError

EVENTS = "events.jsonl"
FORMAT = {"format": "equipoise-queue", "version": 1}


@dataclass(frozen=True)
class QueueRun:
    """Content of a scheduler's record. Arrays are per job, in order of (arrival, id); times in UTC seconds.

    limit_s: time limit, NaN if unknown.
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
    acted: bool  # the policy made the order of the record, not the manager
    across_qos: bool
    notes: tuple[str, ...]


def parts(path: Path) -> list[Path]:
    """The file that was full and put aside, if there is one, and the file."""
    return [part for part in (path.with_suffix(f".1{path.suffix}"), path) if part.exists()] or [path]


def is_queue(folder: Path) -> bool:
    """Whether the folder holds the record of a queue."""
    return (folder / EVENTS).is_file()


def read_queue(folder: Path, policy: Policy | None = None) -> QueueRun:
    """Read a scheduler's record; `policy` replaces the one that it names. Raises InputError, one line."""
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
    missing = len(jobs) - len(over)
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
        acted=begun.get("mode") == "act",
        across_qos=begun.get("across_qos") is True,
        notes=(f"{missing} jobs have not started and ended on record, and are left out",) if missing else (),
    )


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

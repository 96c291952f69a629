"""A live run's record, read for its twin: members, times of every round, every decision."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from equipoise.base.json_values import from_json
from equipoise.base.regular import RECORD_BYTES, RefusedError, read_file
from equipoise.policies.contract import Policy
from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.policies.rate_rules import RateRule
from equipoise.policies.record.journal import Entry, JournalError, read
from equipoise.policies.registry import PolicyError, make_policy
from equipoise.sim.scenario.tree import InputError

Count = Annotated[int, Field(ge=0, le=10**15)]
Seconds = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]
Time = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]


NEEDED = ("members", "policy", "global_batch", "micro_batch", "decide_every", "samples", "shards", "mode")
"""Keys of every manifest."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Place(_Part):
    member: Count
    host: str
    device: str
    model: str = ""
    share: Annotated[float, Field(ge=0.0, le=1e3, allow_inf_nan=False)] = 1.0  # of the device
    share_fixed: bool = False


class _Manifest(_Part):
    members: list[_Place] = Field(min_length=1)
    policy: str | None
    stages: list[Any] | None = None
    mode: str
    allow: list[str] = []
    global_batch: Count | None
    batch_max: Count | None = None
    learning_rate: RateRule | None = None
    micro_batch: Count | None
    accumulation: Count = 1
    decide_every: Count | None
    samples: Count | None
    sample_bytes: Seconds = 0.0
    shards: Count | None
    unix_s: Time = 0.0

    @model_validator(mode="after")
    def _is_whole(self) -> _Manifest:
        """Whether the manifest is complete; a run in mode observe needs no batch."""
        unknown = [k for k in NEEDED if k != "policy" and getattr(self, k) is None]
        if self.policy is not None and unknown:
            raise ValueError(f"{unknown[0]} is null")
        return self


class _Round(_Part):
    round: Count
    exchanged: bool
    samples: Seconds
    stall_s: Seconds | None
    compute_s: Seconds | None
    tail_s: Seconds | None
    update_s: Seconds | None


class _Event(_Part):
    event: str
    unix_s: Time


class _Decision(_Event):
    event: Literal["decision"]
    number: Count
    point: Count
    rounds: Count
    time_s: Time
    refused: list[str] = []


class _Device(_Event):
    event: Literal["device"]
    rounds: Count = 0
    queued_s: Seconds | None = None
    clock_ratio: Seconds | None = None
    temperature_c: Time | None = None


_LINES: dict[str, type[_Part]] = {"decision": _Decision, "device": _Device}


def check_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Raises InputError, one line with the key, when the manifest of a live run is damaged."""
    missing = [name for name in NEEDED if name not in manifest]
    if missing:
        raise InputError([f"{path}: {missing[0]}: is missing"])
    _validated(_Manifest, str(path), manifest)
    members = [place["member"] for place in manifest["members"]]
    if len(set(members)) < len(members):
        raise InputError([f"{path}: members: a rank is listed twice"])


def check_line(place: str, line: dict[str, Any]) -> None:
    """Raises InputError, one line, when a line of a member's record is damaged."""
    event = line.get("event")
    kind = _Round if event is None else _LINES.get(event, _Event) if isinstance(event, str) else _Event
    _validated(kind, place, line)


def _validated(kind: type[_Part], place: str, value: dict[str, Any]) -> None:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError([": ".join(filter(None, (place, key, first["msg"])))]) from None


FORMAT = 2
_TIMES = ("stall_s", "compute_s", "tail_s", "update_s")
_ROUNDING = 1e-9  # of shares that are added up


@dataclass(frozen=True)
class DecisionPoint:
    """One decision that was made live."""

    point: int  # how many times the policy was due to decide by then, this one included
    rounds: int  # rounds trained by then
    entry: Entry


@dataclass(frozen=True)
class LiveRun:
    """A live run. Arrays are (ranks, rounds); ranks by member id."""

    folder: Path
    manifest: Mapping[str, Any]
    policy: Policy
    members: tuple[int, ...]
    samples: Ints
    stall_s: Floats
    compute_s: Floats
    tail_s: Floats
    update_s: Floats
    exchanged: Bools  # (rounds,)
    points: tuple[DecisionPoint, ...]
    windows: tuple[int, ...]  # rounds between the points, as far as they are known from the start on
    unheard: frozenset[int]  # points at which the policy was due, and failed, came late or was not asked
    notes: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks that trained."""
        return len(self.members)

    @property
    def rounds(self) -> int:
        """Number of rounds recorded for every rank."""
        return int(self.samples.shape[1])

    @property
    def has_fixed_shares(self) -> bool:
        """Whether some rank had a fixed share of its device."""
        return any(place.get("share", 1.0) < 1.0 for place in self.manifest["members"])

    @property
    def round_s(self) -> Floats:
        """Duration of each round at the deciding rank (s); NaN where a rank's pause delayed it."""
        total: Floats = self.stall_s + self.compute_s + self.tail_s + self.update_s
        return np.where(np.isnan(total).any(axis=0), np.nan, total[self._leading])

    @property
    def _leading(self) -> int:
        return self.members.index(int(self.manifest["members"][0]["member"]))


def read_run(folder: Path, policy: Policy | None = None) -> LiveRun:
    """Read the record of a run; `policy` replaces the one in its manifest.

    `folder` is that record, or a `run_dir` with a single one in it. Raises InputError, one line, for a folder
    that holds no live run, or several, or one that has no twin.
    """
    folder = the_run_in(folder)
    manifest = manifest_of(folder)
    _check(folder / "manifest.json", manifest)
    members = tuple(sorted(int(place["member"]) for place in manifest["members"]))
    lines = {member: list(lines_of(folder / f"rounds-{member}.jsonl")) for member in members}
    if any(line.get("near") for found in lines.values() for line in found):
        raise InputError([f"{folder}: ranks exchanged at two levels; a twin has one interval for all"])
    rows = _rounds_of(lines)
    columns, exchanged = _columns(rows, members)
    leader = int(manifest["members"][0]["member"])
    notes = []
    failed = sum(line.get("event") == "decision-failed" for line in lines[leader])
    if failed:
        notes.append(f"{failed} decisions failed or were late live; the twin leaves them out, too")
    samples, stall_s, compute_s, tail_s, update_s = columns
    return LiveRun(
        folder=folder,
        manifest=manifest,
        policy=policy if policy is not None else _policy(folder, manifest),
        members=members,
        samples=samples.astype(np.int64),
        stall_s=stall_s,
        compute_s=compute_s,
        tail_s=tail_s,
        update_s=update_s,
        exchanged=exchanged,
        points=tuple(_points(folder, leader, lines[leader], len(exchanged))),
        windows=_lengths(lines[leader], manifest["decide_every"]),
        unheard=_unheard(lines[leader]),
        notes=tuple(notes),
    )


def journals(folder: Path) -> list[Path]:
    """The decision journals of a run, by member."""
    return sorted(folder.glob("decisions-*.jsonl"))


def the_run_in(folder: Path) -> Path:
    """The record in `folder`, or `folder` itself if it holds none."""
    found = sorted(path.parent for path in (*folder.glob("manifest.json"), *folder.glob("*/manifest.json")))
    if len(found) > 1:
        raise InputError(
            [f"{folder}: holds the records of {len(found)} runs; name one, the latest of them is {found[-1]}"]
        )
    return found[0] if found else folder


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of the run in `folder`. Raises InputError, one line."""
    path = folder / "manifest.json"
    try:
        manifest = from_json(read_file(path, RECORD_BYTES))
    except OSError as error:
        raise InputError([f"{path}: {error.strerror}; a folder given to attach as run_dir is needed"]) from error
    except ValueError as error:
        raise InputError([f"{path}: is not JSON: {error}"]) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise InputError([f"{path}: format: {found!r}; this version reads the record of live runs {FORMAT}"])
    check_manifest(path, manifest)
    return manifest


def _check(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raises InputError for live runs that cannot be simulated."""
    if manifest["policy"] is None or manifest["mode"] == "observe":
        raise InputError([f"{path}: the run has no decisions (no policy, or mode observe), so a twin is not possible"])
    if manifest.get("accumulation", 1) != 1:
        raise InputError([f"{path}: accumulation: a twin of {manifest['accumulation']} is not possible, only of 1"])
    if manifest["shards"] == 0:
        raise InputError([f"{path}: shards: a run over a stream has none, so a twin is not possible"])
    on: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for place in manifest["members"]:
        on.setdefault((place["host"], place["device"]), []).append(place)
    for (_, device), places in on.items():
        if len(places) > 1:
            _check_shares(f"{path}: members: ranks that share a device ({device})", places)


def _check_shares(ranks: str, places: Sequence[Mapping[str, Any]]) -> None:
    """Raises InputError unless ranks of one device have fixed shares, and so separate speeds."""
    allowed = "allowed: fixed shares (share_backend 'mps' on each rank) of at most 1 together"
    if not all(place.get("share_fixed") for place in places):
        raise InputError([f"{ranks} by turns or in shares that may change: a twin is not possible; {allowed}"])
    total = math.fsum(place.get("share", 1.0) for place in places)
    if total > 1.0 + _ROUNDING:
        raise InputError([f"{ranks} and have {total:.4g} of it slow each other: a twin is not possible; {allowed}"])


def _policy(folder: Path, manifest: Mapping[str, Any]) -> Policy:
    stages = manifest.get("stages")
    path = folder / "manifest.json"
    if stages is None:
        raise InputError([f"{path}: stages: not on record; name the policy with --policy"])
    try:
        policy = make_policy(stages)
    except PolicyError as error:
        raise InputError([f"{path}: stages: {error}; name the policy with --policy"]) from error
    return Policy(str(manifest["policy"]), policy.stages)


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a member's record; an incomplete last line is left out."""
    try:
        raw = read_file(path, RECORD_BYTES)
    except (OSError, RefusedError) as error:
        raise InputError([f"{path}: {getattr(error, 'strerror', error)}"]) from error
    for number, line in enumerate(raw.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            return
        try:
            value = from_json(line)
        except ValueError as error:
            raise InputError([f"{path}:{number}: is not JSON: {error}"]) from error
        if not isinstance(value, dict) or not ("round" in value or "event" in value):
            raise InputError([f"{path}:{number}: is neither a round nor an event"])
        check_line(f"{path}:{number}", value)
        yield value


def _rounds_of(lines: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[int, list[Mapping[str, Any]]]:
    """Rounds of every member."""
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for member, found in lines.items():
        rows[member] = [line for line in found if "round" in line]
        if [line["round"] for line in rows[member]] != list(range(len(rows[member]))):
            raise InputError([f"rounds-{member}.jsonl: rounds are not 0, 1, 2, ...: several runs in one folder?"])
    return rows


def _columns(rows: Mapping[int, Sequence[Mapping[str, Any]]], members: Sequence[int]) -> tuple[list[Floats], Bools]:
    """(samples and times as (ranks, rounds), exchanged) of the rounds recorded by every rank."""
    count = min(len(rows[member]) for member in members)
    try:
        columns = [
            np.array([[_number(line[name]) for line in rows[m][:count]] for m in members], dtype=np.float64)
            for name in ("samples", *_TIMES)
        ]
        exchanged = np.array([bool(line["exchanged"]) for line in rows[members[0]][:count]], dtype=np.bool_)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError([f"rounds of members {list(members)}: {type(error).__name__}: {error}"]) from error
    return columns, exchanged


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)


def _points(folder: Path, leader: int, lines: Sequence[Mapping[str, Any]], rounds: int) -> Iterator[DecisionPoint]:
    """The decisions of the leading rank."""
    path = folder / f"decisions-{leader}.jsonl"
    try:
        entries = {e.decision.observation.time_s: e for e in read(path)} if path.exists() else {}
    except JournalError as error:
        raise InputError([str(error)]) from error
    for line in lines:
        if line.get("event") == "decision":
            if line["rounds"] > rounds:
                return
            if line["time_s"] in entries:  # a full disk may have cost one or the other
                yield DecisionPoint(int(line["point"]), int(line["rounds"]), entries[line["time_s"]])


def _lengths(lines: Sequence[Mapping[str, Any]], every: int) -> tuple[int, ...]:
    """Rounds of each window up to the last decision; the first after one may be shorter, then all are `every` long."""
    found: list[int] = []
    last = 0
    for line in lines:
        if line.get("event") == "decision":
            more, rounds = line["point"] - len(found) - 1, line["rounds"] - last
            if rounds <= every * more:  # lines were lost
                break
            found += [rounds - every * more, *[every] * more]
            last = line["rounds"]
    return tuple(found)


def _unheard(lines: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Points between consecutive decisions; unknown where a full disk lost lines."""
    told = [(0, 0), *((line["number"], line["point"]) for line in lines if line.get("event") == "decision")]
    pairs = itertools.pairwise(told)
    between = (range(a + 1, b) for (one, a), (next_one, b) in pairs if next_one == one + 1)
    return frozenset(point for points in between for point in points)

"""Which rank of a live run is slow, and why: compute, input, host or heat, from what the ranks wrote down.

A rank is slow when a sample takes it more than `SLOW` times what it takes the others (their median). The part of
its round that exceeds the others' most is the cause. Slow computing is put down to heat when the clock is lower,
and to the host when the process was preempted more often. The exchange is the time of the rank that waits least:
a slow link holds up all ranks alike, so that it is shown for the job, and no rank is blamed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.observation import Floats
from equipoise.policies.plain import plain
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import format_seconds, format_share
from equipoise.study.twin.record import lines_of, manifest_of, the_run_in

SLOW = 1.1  # times the others' time per sample
LEAST_ROUNDS = 8
_LOW_CLOCK = 0.95  # of the others' clock
_PREEMPTED = 3.0  # times as often as the others, per second
_NETWORK = 0.3  # of a round
_PARTS = {"compute": "compute_s", "input": "stall_s", "host": "update_s"}
_TIMES = ("stall_s", "compute_s", "tail_s", "update_s")


@dataclass(frozen=True)
class Rank:
    """One rank's usual round: medians, per sample where samples are named."""

    member: int
    host: str
    samples: float  # per round
    per_sample_s: float  # computing, waiting for data and updating
    compute_s: float  # per sample
    stall_s: float  # per sample
    update_s: float  # per round
    wait_s: float  # for the others, per round
    clock_ratio: float  # of the highest clock; NaN: unknown
    temperature_c: float
    preempted_per_s: float
    slower: float  # times the others' time per sample
    cause: str | None  # None: it is not slow
    evidence: str


@dataclass(frozen=True)
class Diagnosis:
    """The ranks of a run, and what an exchange takes."""

    folder: Path
    rounds: int
    ranks: tuple[Rank, ...]
    exchange_s: float
    round_s: float


def diagnose(folder: Path, last: int | None = None) -> Diagnosis:
    """Read a run's record, of the `last` rounds only where given. Raises InputError when it says too little."""
    folder = the_run_in(folder)
    places = {int(place["member"]): str(place["host"]) for place in manifest_of(folder)["members"]}
    lines = {member: list(lines_of(folder / f"rounds-{member}.jsonl")) for member in sorted(places)}
    rows = {
        member: {line["round"]: line for line in found if "round" in line} for member, found in lines.items()
    }
    common = sorted(set.intersection(*(set(found) for found in rows.values())))
    timed = [k for k in common if all(_is_timed(found[k]) for found in rows.values())][-(last or 0) :]
    if len(timed) < LEAST_ROUNDS:
        raise InputError(
            [f"{folder}: {len(timed)} rounds were timed on every rank, {LEAST_ROUNDS} are needed"]
        )
    table = {
        name: np.array([[float(rows[member][k][name]) for k in timed] for member in rows])
        for name in ("samples", *_TIMES)
    }
    tail = table["tail_s"]
    shortest = tail.min(axis=0)
    exchanged = np.array([any(found[k]["exchanged"] for found in rows.values()) for k in timed])
    exchange_s = float(np.median(shortest[exchanged])) if exchanged.any() else math.nan
    spent = sum(table[name] for name in _TIMES)
    usual = [_usual(table, k, tail[k] - shortest, _device(lines[m])) for k, m in enumerate(rows)]
    found = [_judged(m, places[m], k, usual) for k, m in enumerate(rows)]
    return Diagnosis(folder, len(timed), tuple(found), exchange_s, float(np.median(np.asarray(spent))))


def _is_timed(line: Mapping[str, Any]) -> bool:
    return all(line.get(name) is not None for name in _TIMES)


def _usual(table: Mapping[str, Floats], k: int, wait_s: Floats, device: dict[str, float]) -> dict[str, float]:
    samples = table["samples"][k]
    some = samples > 0
    if not some.any():
        return {"samples": 0.0, "wait_s": float(np.median(wait_s)), **device}
    per_sample = {name: float(np.median(table[name][k][some] / samples[some])) for name in _PARTS.values()}
    busy = sum(table[name][k][some] for name in _PARTS.values())
    return {
        **per_sample,
        "samples": float(np.median(samples)),
        "per_sample_s": float(np.median(busy / samples[some])),
        "wait_s": float(np.median(wait_s)),
        **device,
    }


def _device(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the rank noted of its device and processors at decisions: medians, and preemptions per second."""
    notes = [line for line in lines if line.get("event") == "device"]
    found = {}
    for name in ("clock_ratio", "temperature_c"):
        values = [float(note[name]) for note in notes if note.get(name) is not None]
        found[name] = float(np.median(values)) if values else math.nan
    span_s = notes[-1]["unix_s"] - notes[0]["unix_s"] if notes else 0.0
    count = notes[-1]["preempted"] - notes[0]["preempted"] if notes else 0
    found["preempted_per_s"] = count / span_s if span_s > 0 else math.nan
    return found


def _judged(member: int, host: str, k: int, usual: Sequence[Mapping[str, float]]) -> Rank:
    mine = dict.fromkeys(("per_sample_s", *_PARTS.values()), math.nan) | dict(usual[k])
    others = [u for j, u in enumerate(usual) if j != k and u["samples"] > 0]

    def theirs(name: str) -> float:
        """Median over the other ranks."""
        known = [u[name] for u in others if math.isfinite(u[name])]
        return float(np.median(known)) if known else math.nan

    slower = mine["per_sample_s"] / theirs("per_sample_s") if others else math.nan
    cause, evidence = None, ""
    if slower > SLOW:
        excess = {part: mine[column] - theirs(column) for part, column in _PARTS.items()}
        cause = max(excess, key=lambda part: excess[part])
        column = _PARTS[cause]
        evidence = f"{format_seconds(mine[column])} per sample, the others {format_seconds(theirs(column))}"
        if cause == "compute":
            cause, more = _why_computing(mine, theirs("clock_ratio"), theirs("preempted_per_s"))
            evidence += more
    values = {name: mine[name] for name in (*_PARTS.values(), "samples", "per_sample_s", "wait_s")}
    device = {name: mine[name] for name in ("clock_ratio", "temperature_c", "preempted_per_s")}
    return Rank(member=member, host=host, **values, **device, slower=slower, cause=cause, evidence=evidence)


def _why_computing(mine: Mapping[str, float], clock: float, preempted: float) -> tuple[str, str]:
    if mine["clock_ratio"] < _LOW_CLOCK * clock:
        heat = f" at {mine['temperature_c']:.0f} degrees" if math.isfinite(mine["temperature_c"]) else ""
        return "thermal", f"; clock at {mine['clock_ratio']:.0%} of its highest{heat}, the others {clock:.0%}"
    if mine["preempted_per_s"] > max(_PREEMPTED * preempted, 1.0):
        often = f"{mine['preempted_per_s']:.0f} times a second, the others {preempted:.0f}"
        return "host", f"; other programs took its processor {often}"
    return "compute", ""


def as_data(found: Diagnosis) -> dict[str, Any]:
    """Plain data; null for what is unknown."""
    data: dict[str, Any] = plain(
        {
            "run": str(found.folder),
            "rounds": found.rounds,
            "exchange_s": found.exchange_s,
            "round_s": found.round_s,
            "ranks": [asdict(rank) for rank in found.ranks],
        }
    )
    return data


def render(found: Diagnosis) -> str:
    """Sentences for people."""
    lines = [f"{found.folder}: {len(found.ranks)} ranks, {found.rounds} rounds"]
    for rank in found.ranks:
        speed = (
            f"{format_seconds(rank.per_sample_s)} per sample, waits {format_seconds(rank.wait_s)} per round"
        )
        lines.append(f"  rank {rank.member} on {rank.host}: {rank.samples:.0f} samples per round, {speed}")
    for rank in sorted((r for r in found.ranks if r.cause), key=lambda r: -r.slower):
        lines.append(f"rank {rank.member} is {rank.slower:.2f} times slower: {rank.cause} ({rank.evidence})")
    if not any(rank.cause for rank in found.ranks):
        lines.append("no rank is slow")
    part = found.exchange_s / found.round_s
    if part > _NETWORK:
        lines.append(
            f"network: an exchange takes {format_seconds(found.exchange_s)}, {format_share(part)} of a round, on "
            "all ranks; whose link is slow does not show here"
        )
    return "\n".join(lines) + "\n"

"""Diagnosis of slow ranks of a live run from their records; `policies.slow_ranks` says who is slow, and why.

The fixed part of a round is learnt from the rounds around changes of shares (`policies.growth`); if these never
changed, a rank that is slower per sample but not per round is neither slow nor cleared. The exchange is the time of
the rank that waits least: a slow link delays all ranks equally, so it is shown for the job, not for a rank. What a
rank computes after its last gradient is recorded as computing, except with `fully_shard` or a communication hook,
where it is a part of the exchange, and the text says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.base.json_values import plain
from equipoise.base.tables import aligned
from equipoise.policies.growth import LEAST_ROUNDS as LEAST_LEARNT
from equipoise.policies.growth import Growth, Law
from equipoise.policies.observation import Floats
from equipoise.policies.slow_ranks import of_others, slow_ranks
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import format_seconds, format_share
from equipoise.study.findings import screen
from equipoise.study.twin.record import lines_of, manifest_of, the_run_in

SLOW = 1.1  # times the others' time for as much work
LEAST_ROUNDS = 8
STRETCHES = 10  # of a run, in which speeds are shown
_PIECE = 8  # rounds of the same shares that are looked at together
_UNEQUAL = 1.1  # times the others' samples
_NETWORK = 0.3  # of a round
_PARTS = {"compute": "compute_s", "input": "stall_s", "update": "update_s"}
_SHOWN = (
    *("samples", "per_sample_s", "fixed_s", "compute_s", "stall_s", "update_s", "wait_s"),
    *("clock_ratio", "temperature_c", "queued_s"),
)
_TIMES = ("stall_s", "compute_s", "tail_s", "update_s")


@dataclass(frozen=True)
class Rank:
    """One rank's usual round: medians, per sample where the name says so."""

    member: int
    host: str
    samples: float  # per round
    per_sample_s: float  # computing, waiting for data and updating
    fixed_s: float  # of a round, as far as it is known not to grow with the samples
    compute_s: float  # per sample
    stall_s: float  # per sample
    update_s: float  # per sample
    wait_s: float  # for the others, per round
    clock_ratio: float  # of the highest clock; NaN: unknown
    temperature_c: float
    queued_s: float  # ready, while another program had its processor, per round; NaN: unknown
    slower: float  # times the others' time for equal work
    cause: str | None  # None: it is not slow; "unclear": that cannot be told
    evidence: str


@dataclass(frozen=True)
class RankStretch:
    """Speed of the ranks in some rounds."""

    first_round: int
    last_round: int
    samples: tuple[float, ...]  # per round, by rank
    samples_per_s: tuple[float, ...]  # by rank, in a round of `Diagnosis.usual_samples`; NaN: it had none


@dataclass(frozen=True)
class RankDiagnosis:
    """The ranks of a run, and the exchange time."""

    folder: Path
    rounds: int
    ranks: tuple[Rank, ...]
    exchange_s: float
    round_s: float
    fixed_samples: float  # fixed part of a round, in samples; NaN: shares never changed enough
    usual_samples: float  # of a rank's round
    speeds: tuple[RankStretch, ...]
    exchange_only: bool  # the exchange holds no computing after the last gradient


def diagnose(folder: Path, last: int | None = None) -> RankDiagnosis:
    """Diagnose a run's record, of the `last` rounds only if given. Raises InputError when it is too short."""
    folder = the_run_in(folder)
    manifest = manifest_of(folder)
    places = {int(place["member"]): str(place["host"]) for place in manifest["members"]}
    lines = {member: list(lines_of(folder / f"rounds-{member}.jsonl")) for member in sorted(places)}
    rows = {member: {line["round"]: line for line in found if "round" in line} for member, found in lines.items()}
    common = sorted(set.intersection(*(set(found) for found in rows.values())))
    timed = [k for k in common if all(_is_timed(found[k]) for found in rows.values())]
    growth = _learnt(_table(rows, timed))  # from all there is
    timed = timed[-(last or 0) :]
    if len(timed) < LEAST_ROUNDS:
        raise InputError([f"{folder}: {len(timed)} rounds were timed on every rank, {LEAST_ROUNDS} are needed"])
    table = _table(rows, timed)
    exchanged = np.array([any(found[k]["exchanged"] for found in rows.values()) for k in timed])
    tail = table["tail_s"]
    shortest = tail.min(axis=0)
    exchange_s = float(np.median(shortest[exchanged])) if exchanged.any() else math.nan
    spent = sum(table[name] for name in _TIMES)
    law = growth.law
    devices = [_device(lines[member]) for member in rows]
    usual = _usual(table, law) | {name: np.array([device[name] for device in devices]) for name in devices[0]}
    usual["wait_s"] = _medians(tail - shortest)
    found = _judged(list(rows), places, usual, law, known=growth.is_known)
    each = float(np.mean(table["samples"]))
    return RankDiagnosis(
        folder,
        len(timed),
        tuple(found),
        exchange_s,
        float(np.median(np.asarray(spent))),
        law.fixed_samples if growth.is_known else math.nan,
        each,
        tuple(_speeds(table, timed, law, each)),
        manifest.get("compute_ends") == "backward",
    )


def _table(rows: Mapping[int, Mapping[int, Mapping[str, Any]]], rounds: Sequence[int]) -> dict[str, Floats]:
    """Samples and times of these rounds, (ranks, rounds) each."""
    return {
        name: np.array([[float(rows[member][k][name]) for k in rounds] for member in rows])
        for name in ("samples", *_TIMES)
    }


def _busy_s(table: Mapping[str, Floats]) -> Floats:
    return np.asarray(sum(table[name] for name in _PARTS.values()))


def _learnt(table: Mapping[str, Floats]) -> Growth:
    """The fixed part of all ranks' rounds, learnt from changes of shares."""
    growth, samples, busy_s = Growth(forgotten=2**62), table["samples"], _busy_s(table)
    begin, rounds = 0, samples.shape[1]
    for k in range(1, rounds + 1):
        if k == rounds or k - begin == _PIECE or (samples[:, k] != samples[:, begin]).any():
            if k - begin >= LEAST_LEARNT:
                dealt = samples[:, begin]
                growth.learn(dealt, np.where(dealt > 0, np.median(busy_s[:, begin:k], axis=1), np.nan))
            begin = k
    return growth


def _speeds(table: Mapping[str, Floats], rounds: Sequence[int], law: Law, each: float) -> Iterator[RankStretch]:
    """Medians of stretches with at least `LEAST_ROUNDS` rounds each."""
    samples = table["samples"]
    with np.errstate(divide="ignore", invalid="ignore"):
        unit_s = np.where(samples > 0, _busy_s(table) / law.work(samples), np.nan)
    per_s = each / float(law.work(np.array(each)))
    for part in np.array_split(np.arange(len(rounds)), max(1, min(STRETCHES, len(rounds) // LEAST_ROUNDS))):
        yield RankStretch(
            rounds[part[0]],
            rounds[part[-1]],
            tuple(np.median(samples[:, part], axis=1).tolist()),
            tuple((per_s / _medians(unit_s[:, part])).tolist()),
        )


def _is_timed(line: Mapping[str, Any]) -> bool:
    return all(line.get(name) is not None for name in _TIMES)


def _medians(values: Floats) -> Floats:
    """The median of each rank's known values, (ranks,); NaN for none."""
    found = np.ma.median(np.ma.masked_invalid(values), axis=1)  # type: ignore[no-untyped-call]
    return np.asarray(found.filled(np.nan))


def _usual(table: Mapping[str, Floats], law: Law) -> dict[str, Floats]:
    """Medians of each rank's rounds with samples, (ranks,) each."""
    some = table["samples"] > 0
    samples = np.where(some, table["samples"], np.nan)
    work, busy_s = np.where(some, law.work(samples), np.nan), np.where(some, _busy_s(table), np.nan)
    unit_s, parts = _medians(busy_s / work), {part: _medians(table[name] / work) for part, name in _PARTS.items()}
    whole = unit_s / np.maximum(sum(parts.values()), np.finfo(np.float64).tiny)  # medians do not add up
    return {
        **{name: _medians(table[name] / samples) for name in _PARTS.values()},
        **{part: values * whole for part, values in parts.items()},
        "samples": np.median(table["samples"], axis=1),
        "round_s": _medians(busy_s),
        "per_sample_s": _medians(busy_s / samples),
        "unit_s": unit_s,
        "fixed_s": _medians(law.fixed_s(samples, busy_s)),
    }


def _device(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Device values of a rank at decisions, medians, and its waiting for a processor per round."""
    notes = [line for line in lines if line.get("event") == "device"]
    found = {}
    for name in ("clock_ratio", "temperature_c"):
        values = [float(note[name]) for note in notes if note.get(name) is not None]
        found[name] = float(np.median(values)) if values else math.nan
    marks = [(note["rounds"], note["queued_s"]) for note in notes if note.get("queued_s") is not None]
    rounds = marks[-1][0] - marks[0][0] if marks else 0
    found["queued_s"] = (marks[-1][1] - marks[0][1]) / rounds if rounds > 0 else math.nan
    return found


def _judged(
    members: Sequence[int], hosts: Mapping[int, str], usual: Mapping[str, Floats], law: Law, *, known: bool
) -> list[Rank]:
    slow = slow_ranks(usual["samples"], {cause: usual[cause] for cause in _PARTS}, usual, law, SLOW)
    found = []
    for k, member in enumerate(members):
        why = slow.get(k)
        cause, evidence = (why.cause, why.evidence) if why is not None else (None, "")
        fewer = usual["samples"][k] * _UNEQUAL < of_others(usual["samples"], k)
        longer = usual["round_s"][k] > SLOW * of_others(usual["round_s"], k)
        if why is not None and not known and fewer and not longer:
            cause = "unclear"
        slower = float(usual["unit_s"][k]) / of_others(usual["unit_s"], k)
        shown = {name: float(usual[name][k]) for name in _SHOWN}
        found.append(Rank(member, hosts[member], **shown, slower=slower, cause=cause, evidence=evidence))
    return found


def _round_of(samples: float) -> str:
    return f"round of {samples:.0f} samples"


def as_data(found: RankDiagnosis) -> dict[str, Any]:
    """Plain data; null for unknown values, and for an infinite `fixed_samples` (nothing grows)."""
    data: dict[str, Any] = plain({**asdict(found), "run": str(found.folder)})
    del data["folder"]
    return data


def render(found: RankDiagnosis, wide: bool = False) -> str:
    """Which ranks are slow and why, then the ranks, and their speed over time."""
    lines = [""]
    for rank in found.ranks:
        speed = f"{format_seconds(rank.per_sample_s)} per sample"
        if rank.fixed_s > 0:
            speed += f", of which {format_seconds(rank.fixed_s)} of a round do not grow with its samples"
        waits = f"waits {format_seconds(rank.wait_s)} per round"
        lines.append(f"rank {rank.member} on {rank.host}: {rank.samples:.0f} samples per round, {speed}, {waits}")
    return screen(_answer(found), [*lines, "", *_speed_lines(found)], wide) + "\n"


def _answer(found: RankDiagnosis) -> Iterator[str]:
    of = f"of {len(found.ranks)} in {found.folder}, {found.rounds} rounds"
    for text in verdicts(found):
        yield f"{text[0].upper()}{text[1:]} ({of})."
    part = found.exchange_s / found.round_s
    if part > _NETWORK:
        yield (
            f"The exchange takes {format_seconds(found.exchange_s)}, {format_share(part)} of a round, on all ranks: "
            f"the network{'' if found.exchange_only else ', or a rank that is slow after its last gradient'}."
        )


def verdicts(found: RankDiagnosis) -> list[str]:
    """A line for each slow rank, with the cause, the slowest first; one line where none is slow."""
    lines = []
    for rank in sorted((r for r in found.ranks if r.cause), key=lambda r: -r.slower):
        if rank.cause == "unclear":
            lines.append(
                f"rank {rank.member} may be slow: {rank.evidence}, but its rounds of fewer samples take no longer; "
                "as shares never changed, a fixed part of a round cannot be told from a slow rank"
            )
        else:
            lines.append(f"rank {rank.member} is {rank.slower:.2f} times slower: {rank.cause} ({rank.evidence})")
    return lines or ["no rank is slow"]


def _speed_lines(found: RankDiagnosis) -> Iterator[str]:
    """A row for each stretch of rounds: every rank's speed, and its samples."""
    yield f"samples per second in a {_round_of(found.usual_samples)} (and samples per round):"
    header = ("rounds", *(f"rank {rank.member}" for rank in found.ranks))
    rows = [
        (
            f"{s.first_round}-{s.last_round}",
            *(f"{speed:.4g} ({n:.0f})" for speed, n in zip(s.samples_per_s, s.samples, strict=True)),
        )
        for s in found.speeds
    ]
    yield from (f"  {line}" for line in aligned([header, *rows], [True] * len(header)))

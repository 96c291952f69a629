"""Account of the GPU time of a live run by use, from the records of its ranks.

A round's line holds durations without a clock; the notes of every rank at a decision hold the clock and the number
of rounds trained so far. So rounds are placed back to back before each note. Each rank counts as one GPU. The
exchange of a round is the time of the rank that waited least; the excess of other ranks is waiting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.study.twin.record import lines_of, manifest_of, the_run_in

USES = ("busy", "input_stall", "barrier_wait", "exposed_communication", "other")
"""Computing and updating; waiting for data; for other ranks; the exchange; what was not timed: pauses, checkpoints, the
start and the end."""
_TIMES = ("stall_s", "compute_s", "tail_s", "update_s")


@dataclass(frozen=True)
class Slice:
    """A part of a rank's time, in s from the start of the run."""

    begin_s: float
    end_s: float
    use: str
    round: int


@dataclass
class RankTime:
    """One rank's time."""

    member: int
    host: str
    slices: list[Slice] = field(default_factory=list)
    begin_s: float = math.nan  # of the first round, from the start of the run
    end_s: float = math.nan  # end of the last record
    samples: int = 0
    rounds: int = 0

    def seconds(self) -> dict[str, float]:
        """Seconds by use; they sum to the rank's span."""
        found = dict.fromkeys(USES, 0.0)
        for part in self.slices:
            found[part.use] += part.end_s - part.begin_s
        found["other"] = max(0.0, self.end_s - self.begin_s - math.fsum(found.values()))
        return found


@dataclass(frozen=True)
class LiveAccount:
    """A live run's time: ranks by member, events, useful samples, and the median duration of each round."""

    folder: Path
    manifest: Mapping[str, Any]
    ranks: tuple[RankTime, ...]
    events: tuple[tuple[float, int, Mapping[str, Any]], ...]  # (seconds from the start, member, what)
    rounds: Mapping[int, Mapping[int, Mapping[str, Any]]]  # the last line of each round, by member
    span_s: float

    @property
    def samples(self) -> int:
        """Samples trained."""
        return sum(rank.samples for rank in self.ranks)

    def seconds(self) -> dict[str, float]:
        """GPU seconds by use."""
        each = [rank.seconds() for rank in self.ranks]
        return {use: math.fsum(one[use] for one in each) for use in USES}


def is_live(folder: Path) -> bool:
    """Whether a folder is the record of a live run, or a `run_dir` with such records."""
    return any(folder.glob("rounds-*.jsonl")) or any(folder.glob("*/rounds-*.jsonl"))


def read_account(folder: Path) -> LiveAccount:
    """Read a live run's record. Raises InputError, one line, when it has no rounds."""
    folder = the_run_in(folder)
    manifest = manifest_of(folder)
    hosts = {int(place["member"]): str(place["host"]) for place in manifest["members"]}
    found: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("rounds-*.jsonl"), key=lambda path: int(path.stem.partition("-")[2])):
        found[int(path.stem.partition("-")[2])] = list(lines_of(path))
    rounds: dict[int, dict[int, dict[str, Any]]] = {}
    for member, lines in found.items():
        for line in lines:
            if "round" in line:
                rounds.setdefault(line["round"], {})[member] = line
    tails = {number: [v["tail_s"] for v in by.values() if v["tail_s"] is not None] for number, by in rounds.items()}
    shortest = {number: min(known, default=0.0) for number, known in tails.items()}
    ranks, events = [], []
    for member, lines in found.items():
        rank = RankTime(member, hosts.get(member, "-"))
        _lay(rank, lines, shortest)
        ranks.append(rank)
        events += [(line["unix_s"], member, line) for line in lines if "event" in line]
    begins = [rank.begin_s for rank in ranks if math.isfinite(rank.begin_s)] or [float(manifest.get("unix_s", 0.0))]
    start_s = min(begins)
    for rank in ranks:
        rank.begin_s, rank.end_s = rank.begin_s - start_s, rank.end_s - start_s
        rank.slices = [Slice(s.begin_s - start_s, s.end_s - start_s, s.use, s.round) for s in rank.slices]
    ends = [rank.end_s for rank in ranks if math.isfinite(rank.end_s)]
    told = sorted(((at_s - start_s, member, line) for at_s, member, line in events), key=lambda e: e[:2])
    kept = [rank for rank in ranks if math.isfinite(rank.begin_s)]
    return LiveAccount(folder, manifest, tuple(kept), tuple(told), rounds, max(ends, default=0.0))


def _seconds(value: Any) -> float:
    return 0.0 if value is None else float(value)


def _lay(rank: RankTime, lines: Sequence[Mapping[str, Any]], shortest: Mapping[int, float]) -> None:
    """Compute a rank's slices: rounds end at the next note with a clock, rounds after the last note follow it."""
    waiting: list[Mapping[str, Any]] = []
    at_s = math.nan
    for line in lines:
        if "round" in line:
            waiting.append(line)
            continue
        at_s = float(line["unix_s"])
        spent_s = math.fsum(_length(w) for w in waiting)
        rank.begin_s = at_s - spent_s if math.isnan(rank.begin_s) else rank.begin_s
        before_s = rank.slices[-1].end_s if rank.slices else rank.begin_s
        _place(rank, waiting, max(before_s, at_s - spent_s), shortest)
        waiting = []
    if math.isnan(at_s):
        return
    last_s = rank.slices[-1].end_s if rank.slices else at_s
    _place(rank, waiting, max(last_s, at_s), shortest)
    rank.end_s = max(at_s, rank.slices[-1].end_s if rank.slices else at_s)


def _length(line: Mapping[str, Any]) -> float:
    return math.fsum(_seconds(line[name]) for name in _TIMES)


def _place(rank: RankTime, lines: Sequence[Mapping[str, Any]], at_s: float, shortest: Mapping[int, float]) -> None:
    """Rounds back to back from `at_s` on."""
    for line in lines:
        number = line["round"]
        tail_s = _seconds(line["tail_s"])
        exchange_s = min(tail_s, shortest[number])
        parts = (
            ("input_stall", _seconds(line["stall_s"])),
            ("busy", _seconds(line["compute_s"])),
            ("barrier_wait", tail_s - exchange_s),
            ("exposed_communication", exchange_s),
            ("busy", _seconds(line["update_s"])),
        )
        for use, length_s in parts:
            if length_s > 0:
                rank.slices.append(Slice(at_s, at_s + length_s, use, number))
                at_s += length_s
        rank.samples += int(_seconds(line["samples"]))
        rank.rounds += 1

"""How many samples each rank can get without waiting for files: pure functions of arrays by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.policies.observation import Floats, Ints

_LONGER = 1.02  # factor by which a round is lengthened until it holds the batch...
_TRIALS = 200  # ... at most this often
_KEEPS_UP = 0.95  # a rank that reads at this fraction of its computing rate does not wait for files
_SAME = 0.95  # of a rank's share: a bound between this and the share counts as the share


def samples_available(owned: Floats, capacity: Floats, taking: Floats, batch: int, soon: int, unbounded: int) -> Ints:
    """Most samples per round and rank, (ranks,), such that no rank waits at the end for files of other ranks.

    A rank whose samples, at its fraction of all `capacity` (samples/s), do not last `soon` rounds would take whole
    files from the others. If it fetches those (`taking`, samples/s) more slowly than the others would train on
    them, it gets only the samples it owns, spread evenly over the rest. `unbounded` if there is no such rank.
    """
    left = -(-owned.sum() // batch)  # rounds
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = batch * capacity / capacity.sum()
        short = owned < min(soon, left) * wanted
        bound = short & (taking < np.where(short, 0.0, capacity).sum())
    if not bound.any():
        return np.full(len(owned), unbounded, dtype=np.int64)
    return np.where(bound, owned // left, unbounded).astype(np.int64)


@dataclass(frozen=True, slots=True)
class FileReading:
    """The pieces that a rank has to read, in order, followed by those of the other ranks."""

    samples: Floats  # of each piece
    arrival_s: Floats  # from now, of each piece
    each_s: float  # computing per sample
    supply: float  # samples/s at which it can read its remaining samples
    taking_s: float  # time to fetch a file of another rank


def samples_in_time(
    readings: Sequence[FileReading], exchange_s: float, dealt: Ints, most: Ints, rounds: int, unit: int, *, last: bool
) -> Ints:
    """`most` samples per rank in each of the next `rounds`, (ranks,), lowered where a rank would wait for files.

    Searches for the shortest round in which the batch, the sum of `dealt`, fits; a rank may wait in it as long
    as another one computes, and a rank that reads as fast as it computes has no other bound. No rank is bound to
    less than a micro-batch of `unit`, or if a time is unknown. `last`: these are the epoch's last rounds.
    Then each rank gets the samples it owns, if that takes no longer than moving a file from one rank to
    another at the end.
    """
    each_s, supply = (np.array([getattr(r, name) for r in readings]) for name in ("each_s", "supply"))
    arrivals_s = np.concatenate([r.arrival_s for r in readings])
    if not ((each_s > 0.0) & np.isfinite(each_s) & (supply > 0.0)).all() or np.isnan(arrivals_s).any():
        return most
    batch, slow = int(dealt.sum()), supply * each_s < _KEEPS_UP
    rank = np.repeat(np.arange(len(readings)), [len(r.samples) for r in readings])
    before = np.concatenate([np.cumsum(r.samples) - r.samples for r in readings])
    away = (before < rounds * batch) & (arrivals_s > 0.0) & slow[rank]
    queued = (rank[away], before[away], arrivals_s[away])

    def fits(round_s: float) -> Floats:
        """Samples of each rank in a round of this many seconds."""
        return np.minimum(_in_time(*queued, each_s, exchange_s, round_s, rounds), (round_s - exchange_s) / each_s)

    lasting = np.minimum(1.0 / each_s, supply)
    shortest_s, part = batch / float(lasting.sum()) + exchange_s, batch * lasting / lasting.sum()
    for trial in range(_TRIALS):
        round_s = shortest_s * _LONGER**trial
        found = fits(round_s)
        # A rank without one sample per round makes all wait in any case, until it has a file.
        found = np.where(found < 1.0, part, found)
        bound = np.minimum(np.maximum(found, unit), most).astype(np.int64)
        if (bound // unit).sum() * unit >= batch:
            break
    else:
        return most
    if last:
        owned = np.array([r.samples.sum() for r in readings])
        takes = bound * rounds > owned
        taking_s = max((r.taking_s for r, does in zip(readings, takes, strict=True) if does), default=0.0)
        per_round = owned * batch / owned.sum()  # a smaller round, the very last one, is split in proportion
        each: Ints = np.minimum(-(-per_round // unit) * unit, most).astype(np.int64)
        holds = (per_round < each + unit).all() and (each // unit).sum() * unit >= batch
        if holds and (fits(round_s + taking_s / rounds) >= per_round).all():
            return each
    nearly = (bound >= _SAME * dealt) & (bound < dealt)
    lowered: Ints = np.where(slow, np.where(nearly, np.minimum(dealt, most), bound), most)
    return lowered


def _in_time(
    rank: Ints, before: Floats, arrival_s: Floats, each_s: Floats, exchange_s: float, round_s: float, rounds: int
) -> Floats:
    """Samples per rank in a round of `round_s` without waiting for a piece, (ranks,); infinite without pieces.

    Columns by piece not yet here: its rank, and samples that this rank reads before it. With b samples in
    a round the first of the piece is due in round before / b, on average half a round earlier for whole rounds,
    and b * each_s before the ranks meet at its end.
    """
    late_s = arrival_s + exchange_s - round_s * np.where(before > 0, 0.5, 1.0)
    own_s = each_s[rank]
    root = (np.sqrt(late_s**2 + 4.0 * own_s * before * round_s) - late_s) / (2.0 * own_s)
    found = np.full(len(each_s), np.inf)
    np.minimum.at(found, rank, np.maximum(root, before / rounds))
    return found

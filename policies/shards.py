"""The rules of shard queues (which worker reads which shard next), in the simulator and in live training jobs.

A worker reads its own queue of pieces from the front; a piece is the unread rest of a shard. A worker whose
queue is too short takes from another one. Amounts are samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from equipoise.policies.observation import Floats, Ints
from equipoise.policies.physics import deal

READ = "it has been read meanwhile"
STARTED = "its owner has started it meanwhile"


class Numbered(Protocol):
    """A piece with an id that does not depend on its owner."""

    @property
    def id(self) -> int:
        """Unique within the job."""


P = TypeVar("P", bound=Numbered)


class Taken(NamedTuple):
    """Samples taken from the end of a worker's last piece: all of it, or a part that is cut off."""

    source: int  # worker
    samples: int


def take_from(
    taker: int,
    short: int,
    owned: Sequence[int],
    demand: Sequence[int],
    seconds_per_sample: Floats,
    last: Sequence[int],
    started: Sequence[bool],
) -> Taken:
    """What a worker that lacks `short` samples takes from another.

    Workers are tried by descending seconds of work beyond their own `demand` (of equals the first): the first whose
    last piece is not started and not needed for its demand gives that piece whole. If there is none, the first gives
    the missing samples from its last piece, as far as it can spare them. `last` is the rest of each worker's last
    piece, and `started` whether any of it was read. Raises ValueError when no worker has more than its demand.
    """
    spare = [w for w in range(len(owned)) if w != taker and owned[w] > demand[w]]
    if not spare:
        raise ValueError(f"worker {taker} lacks {short} samples, and no other has any to spare")
    spare.sort(key=lambda w: -(owned[w] - demand[w]) * float(seconds_per_sample[w]))
    for w in spare:
        if not started[w] and owned[w] - last[w] >= demand[w]:
            return Taken(w, last[w])
    first = spare[0]
    return Taken(first, min(short, owned[first] - demand[first], last[first]))


def next_batch(left: int, shares: Ints, unit: int) -> Ints:
    """Samples that each worker takes next: its share, or its part of the last incomplete batch of `left` samples.

    In whole micro-batches of `unit`, as `policies.physics.deal` gives them.
    """
    return shares if left >= int(shares.sum()) else deal(left, shares, unit)


def why_not_moved(piece: object | None, started: bool) -> str | None:
    """Why a piece (None: it is in no queue) cannot go to another worker, or None."""
    if piece is None:
        return READ
    return STARTED if started else None


def reordered(pieces: Iterable[P], started: Callable[[P], bool], rank: Mapping[int, int]) -> list[P]:
    """A queue with its pieces that are not started sorted by `rank[id]`; those without a rank come last.

    Started pieces stay in front. Equal ranks keep their order.
    """
    queue = list(pieces)
    waiting = sorted((p for p in queue if not started(p)), key=lambda p: rank.get(p.id, len(rank)))
    return [*(p for p in queue if started(p)), *waiting]

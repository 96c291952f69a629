"""What a decision changes in a live job, as plain data that rank 0 sends to all ranks."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundChange:
    """A change of the job. Ranks are positions in the process group; `None` changes nothing."""

    round: int  # first round drawn under it
    shares: tuple[int, ...] | None = None  # samples per round and rank
    moves: tuple[tuple[int, int], ...] = ()  # (piece id, new owner's rank)
    order: tuple[int, ...] | None = None  # piece ids, first to read first
    interval: int | None = None  # local steps per exchange
    gpu_share: tuple[float, ...] | None = None  # per rank
    global_batch: int | None = None  # samples per round over all ranks; never without shares
    far_every: int | None = None  # exchanges per exchange of all ranks; the others are intra-node
    learning_rate: float | None = None  # factor on the script's own, with the batch

    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return self == RoundChange(self.round)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RoundChange:
        """The inverse of `to_json`."""
        raw = json.loads(text)
        for key in ("shares", "order", "gpu_share"):
            raw[key] = None if raw[key] is None else tuple(raw[key])
        raw["moves"] = tuple((int(piece), int(rank)) for piece, rank in raw["moves"])
        return cls(**raw)

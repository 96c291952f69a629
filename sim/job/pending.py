"""What plans ask of a training job: applied when the running period ends, or so many steps later."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from equipoise.policies.observation import Floats, Ints


@dataclass
class Pending:
    """Changes that a plan asks for, applied when the running period ends."""

    moves: list[tuple[int, int]] = field(default_factory=list)  # piece id, worker
    samples: Ints | None = None
    interval: int | None = None
    order: dict[int, int] | None = None
    share: Floats | None = None
    weight: Floats | None = None  # of gradients
    global_batch: int | None = None
    far_every: int | None = None

    @property
    def asked(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.moves) or any(v is not None for v in self._values()[1:])

    def _values(self) -> list[Any]:
        return [getattr(self, part.name) for part in fields(self)]

    def then(self, later: Pending) -> Pending:
        """This, and what is asked for later, which goes before."""
        pairs = zip(self._values(), later._values(), strict=True)
        both = Pending(*(old if new is None else new for old, new in pairs))
        both.moves = self.moves + later.moves
        return both

"""Changes of plans to a training job, applied when the running period ends or some steps later."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from equipoise.policies.observation import Floats, Ints


@dataclass
class Pending:
    """Changes requested by a plan, applied when the running period ends."""

    moves: list[tuple[int, int]] = field(default_factory=list)  # piece id, worker
    samples: Ints | None = None
    interval: int | None = None
    order: dict[int, int] | None = None
    share: Floats | None = None
    weight: Floats | None = None  # of gradients
    global_batch: int | None = None
    learning_rate: float | None = None
    far_every: int | None = None
    accumulation: int | None = None
    push_interval: Ints | None = None

    @property
    def asked(self) -> bool:
        """Whether any change is pending."""
        return bool(self.moves) or any(v is not None for v in self._values()[1:])

    def _values(self) -> list[Any]:
        return [getattr(self, part.name) for part in fields(self)]

    def then(self, later: Pending) -> Pending:
        """Merge with later changes, which take precedence."""
        pairs = zip(self._values(), later._values(), strict=True)
        both = Pending(*(old if new is None else new for old, new in pairs))
        both.moves = self.moves + later.moves
        return both


class Asked:
    """Pending changes of plans to a job, due when the running period ends or at later steps."""

    def __init__(self) -> None:
        self.pending = Pending()
        self.held: list[tuple[int, Pending]] = []  # steps trained at which it acts, and what is asked

    def steps_left(self, steps: int) -> int:
        """Steps until the next pending change is due; 0 when a change waits for the running period."""
        if self.pending.asked:
            return 0
        return self.held[0][0] - steps if self.held else 2**40

    def take(self, steps: int) -> Pending:
        """Remove and return the changes due by `steps` steps."""
        while self.held and self.held[0][0] <= steps:
            self.pending = self.pending.then(self.held.pop(0)[1])
        due, self.pending = self.pending, Pending()
        return due

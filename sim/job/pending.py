"""What plans ask of a training job while a period runs: applied when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from equipoise.policies.observation import Floats, Ints


@dataclass
class Pending:
    """Changes that a plan asks for, applied when the running period ends."""

    samples: Ints | None = None
    interval: int | None = None
    moves: list[tuple[int, int]] = field(default_factory=list)  # piece id, worker
    order: dict[int, int] | None = None
    share: Floats | None = None
    weight: Floats | None = None  # of gradients
    batch: int | None = None
    far_every: int | None = None

    @property
    def asked(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.moves) or any(
            value is not None
            for value in (
                self.samples,
                self.interval,
                self.order,
                self.share,
                self.weight,
                self.batch,
                self.far_every,
            )
        )

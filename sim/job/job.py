"""What everyone but its own room needs to know of a job, whether it is rigid or trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.sim.cluster.cluster import Holding


class Job(Protocol):
    """A job that holds GPUs, or did so until just now."""

    @property
    def row(self) -> int:
        """Its row in the jobs table."""

    @property
    def name(self) -> str:
        """Its name in the demand."""

    @property
    def rigid(self) -> bool:
        """Whether it is known by a duration only."""

    @property
    def holding(self) -> Holding | None:
        """What it holds; None when nothing."""

    @property
    def gpu_s(self) -> Floats:
        """Its account of GPU-seconds by `Use`, up to when it was last booked."""

    @property
    def elastic(self) -> Elastic | None:
        """The job, if it may go on with fewer GPUs when a node dies."""

    @property
    def kept(self) -> float:
        """Progress that no fault can take back, in a measure of its own."""

    @property
    def save_s(self) -> float:
        """Time to write a checkpoint when it is told that it will be stopped (s)."""

    def start(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Take GPUs and begin, or go on, `delay_s` from now."""

    def stop(self, now_s: float, *, lost: bool) -> float:
        """Stop at once; `lost`: back to the last checkpoint. Returns what it adds to its next restart (s)."""

    def close(self, now_s: float) -> None:
        """The run ends: book what has been done by now."""

    def meter_until_now(self) -> None:
        """Book what has been done by now and have its energy metered."""

    def speed_changed(self) -> None:
        """Its nodes run at another speed from now on."""

    def fill_row(self, cells: Mapping[str, Any], factor: float) -> None:
        """Write what has been booked to its row of the jobs table; factor: estimated over real duration."""

    def utilisation(self, now_s: float) -> Floats:
        """Busy share of each GPU it holds, as far as known (GPUs held,)."""

    # -- for the timeline ----------------------------------------------------------------------------------

    @property
    def computed_gpu_s(self) -> float:
        """All its computing so far, whether it came to something or not."""

    @property
    def booked_until_s(self) -> float:
        """The time up to which its account is complete."""

    @property
    def exchanges(self) -> int:
        """Gradient exchanges so far."""

    @property
    def traffic(self) -> tuple[float, int]:
        """Exchanges of all workers so far, and of near ones only."""

    def on_links(self, since: tuple[float, int]) -> tuple[float, Ints, Floats]:
        """(bytes, links, bytes on each of these links) of the exchanges since those of `traffic`, as they are."""

    def not_metered(self) -> tuple[Ints, Floats]:
        """(nodes, GPU-seconds of computing there) that nobody has metered yet."""


class Elastic(Job, Protocol):
    """A job that can go on with some of its GPUs."""

    def survivors(self, lost: Bools) -> Bools | None:
        """Which of its GPUs stay of use when `lost` ones are gone, (GPUs held,); None: too few to go on."""

    def cut(self, now_s: float) -> None:
        """Some GPUs are gone: what was under way is lost; `regroup` follows."""

    def regroup(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Go on with the GPUs that are left, `delay_s` from now."""

"""The interface of a job, rigid or training, to the rest of the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.cluster.holding import Holding


class Job(Protocol):
    """A job that holds GPUs, or has just released them."""

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
        """Its GPUs; None when it holds none."""

    @property
    def gpu_s(self) -> Floats:
        """Its account of GPU-seconds by `Use`, up to the last booking."""

    @property
    def kept(self) -> float:
        """Progress that no fault can take back, in the job's own unit."""

    @property
    def save_s(self) -> float:
        """Time that writing a checkpoint adds to a stop (s)."""

    @property
    def notice_s(self) -> float:
        """Time that it needs to write a checkpoint before an announced stop (s)."""

    def start(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Take GPUs and start or continue, `delay_s` from now."""

    def stop(self, now_s: float, *, lost: bool) -> float:
        """Stop at once; `lost`: back to the last checkpoint. Returns the time added to its next restart (s)."""

    def close(self, now_s: float) -> None:
        """Book all work done until now, at the end of the run."""

    def meter_until_now(self) -> None:
        """Book and meter all work done until now."""

    def speed_changed(self) -> None:
        """Note that its nodes run at another speed from now on."""

    def fill_row(self, cells: Mapping[str, Any], factor: float) -> None:
        """Write the booked values to its row of the jobs table; factor: estimated over real duration."""

    def utilisation(self, now_s: float) -> Floats:
        """Busy share of each GPU it holds, NaN where unknown (GPUs held,)."""

    # -- for the timeline ----------------------------------------------------------------------------------

    @property
    def computed_gpu_s(self) -> float:
        """All its computing so far, including lost work."""

    @property
    def booked_until_s(self) -> float:
        """The time up to which its account is complete."""

    @property
    def exchanges(self) -> int:
        """Gradient exchanges so far."""

    @property
    def traffic(self) -> tuple[float, int]:
        """Number of exchanges of all workers, and of near workers only."""

    def on_links(self, since: tuple[float, int]) -> tuple[float, Ints, Floats]:
        """(bytes, links, bytes on each of these links) of the exchanges since those of `traffic`, as they are."""

    def not_metered(self) -> tuple[Ints, Floats]:
        """(nodes, GPU-seconds of computing there) that are not metered yet."""

"""Uses of the GPU time that a job holds, and the account of one job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from equipoise.policies.observation import Floats


class Use(IntEnum):
    """Use of held GPU time: the row of the account that counts it."""

    BUSY = 0
    INPUT_STALL = 1
    BARRIER_WAIT = 2
    EXPOSED_COMMUNICATION = 3
    PIPELINE_BUBBLE = 4
    """Stages of a pipeline that wait for each other."""
    TENSOR_EXCHANGE = 5
    """What the GPUs of one replica send each other: tensor all-reduces, and context, expert and stage sends."""
    RESTART = 6
    LOST_TO_FAULTS = 7
    USEFUL = 8
    """A part of the others: what of BUSY brought the job nearer to its target."""

    @property
    def label(self) -> str:
        """Its name in files."""
        return self.name.lower()

    @property
    def column(self) -> str:
        """The column of GPU-seconds that counts it."""
        return f"{self.label}_gpu_s"


# As plain integers: NumPy takes them as an index in half the time, and kernels know them as constants.
BUSY, INPUT_STALL, BARRIER_WAIT, EXPOSED_COMMUNICATION, PIPELINE_BUBBLE, TENSOR_EXCHANGE = range(6)
RESTART, LOST_TO_FAULTS, USEFUL = (int(use) for use in tuple(Use)[6:])

HELD_USES = tuple(Use)[:USEFUL]
"""Uses that sum to the GPU time held."""
HELD = len(HELD_USES)
"""Their number; in an account they come first."""
WASTED_USES = HELD_USES[1:]
"""Uses that train nothing that lasts."""
WORK = TENSOR_EXCHANGE + 1
"""Number of uses, the first ones, that a fault turns into lost time."""


@dataclass(slots=True)
class GpuTimeAccount:
    """Where a job's GPU-seconds (by `Use`) and samples went."""

    gpu_s: Floats = field(default_factory=lambda: np.zeros(len(Use)))
    samples: int = 0
    useful_samples: float = 0.0
    lost_samples: int = 0
    steps: int = 0
    exchanges: int = 0
    near_exchanges: int = 0  # of these: of near workers only

    def copy(self) -> GpuTimeAccount:
        """An independent copy."""
        return replace(self, gpu_s=self.gpu_s.copy())

    def back_to(self, saved: GpuTimeAccount) -> GpuTimeAccount:
        """The account after a crash: work since `saved` is lost; time of restarts stays booked."""
        wasted = float((self.gpu_s[:WORK] - saved.gpu_s[:WORK]).sum())
        back = saved.copy()
        back.gpu_s[RESTART] = self.gpu_s[RESTART]
        back.gpu_s[LOST_TO_FAULTS] = self.gpu_s[LOST_TO_FAULTS] + wasted
        back.lost_samples = self.lost_samples + self.samples - saved.samples
        back.exchanges, back.near_exchanges = self.exchanges, self.near_exchanges
        return back

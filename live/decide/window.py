"""Statistics of a window of rounds from the ranks' step times: pure functions of the gathered rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.live.train.rounds import COMPUTE, SAMPLES, STALL, TAIL, UPDATE
from equipoise.policies.observation import Floats, Ints


@dataclass(frozen=True, slots=True)
class LiveWindow:
    """Means over the rounds of a window; arrays by rank, NaN if unknown."""

    rounds: int
    span_s: float
    samples: Floats  # in all
    step_s: Floats
    step_cov: Floats
    computing_cov: Floats  # of step times without waits for data
    wait_s: Floats
    stall_s: Floats
    fixed_s: Floats
    response_s_per_sample: Floats
    exchange_s: float  # per exchange, not hidden by backward
    exchanges: int
    near_exchange_s: float = float("nan")  # per exchange of intra-node ranks

    @classmethod
    def unknown(cls, ranks: int) -> LiveWindow:
        """A window in which nothing was measured."""
        no = np.full(ranks, np.nan)
        return cls(0, np.nan, no, no, no, no, no, no, no, no, np.nan, 0)

    def capacity(self) -> Floats:
        """Samples per busy second."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1.0 / self.response_s_per_sample

    def each(self) -> Floats:
        """Samples per round of every rank; NaN if not measured."""
        return self.samples / self.rounds if self.rounds else self.samples

    def throughput(self) -> float:
        """Samples per second over all ranks."""
        return float(self.samples.sum() / self.span_s) if self.rounds else float("nan")


@dataclass
class Telemetry:
    """The ranks' reports at a decision; arrays by rank."""

    window: LiveWindow
    gradient_norm: Floats
    memory_free_bytes: Floats
    samples_max: Floats
    noise_scale: float = float("nan")
    first_free_round: int = 0  # no rank has drawn it yet
    gpu: Mapping[str, Floats] | None = None  # device columns by name, as in `Gpus`

    @classmethod
    def unknown(cls, ranks: int) -> Telemetry:
        """Telemetry before any report."""
        nothing = np.full(ranks, np.nan)
        return cls(LiveWindow.unknown(ranks), nothing, nothing, nothing)


def measure(
    rows: NDArray[np.float64], exchanged: list[bool], near: list[bool] | None = None, group: Ints | None = None
) -> LiveWindow:
    """Summarise `rows` (ranks, rounds, columns); `exchanged[k]`: round k ended in an exchange of all ranks.

    `near[k]`: it ended in an intra-node exchange; `group` (ranks,) is the intra-node group of each rank.

    The last rank to arrive at an exchange does not wait: the shortest tail is the exchange, and the excess of a
    rank's tail over it is waiting. Clocks of different ranks are never compared. Rounds in which some
    rank lacks a time are left out.
    """
    ranks = rows.shape[0]
    whole = np.isfinite(rows[:, :, SAMPLES : UPDATE + 1]).all(axis=(0, 2))
    rows, ends = rows[:, whole], np.array(exchanged, dtype=bool)[whole]
    apart = np.zeros(rows.shape[1], dtype=np.bool_)
    if near is not None and group is not None:
        apart = np.array(near, dtype=np.bool_)[whole]
    rounds = rows.shape[1]
    if rounds == 0:
        return LiveWindow.unknown(ranks)
    samples, tail = rows[:, :, SAMPLES].sum(axis=1), rows[:, :, TAIL]
    computing = rows[:, :, COMPUTE] + rows[:, :, UPDATE]
    busy = rows[:, :, STALL] + computing
    shortest = np.broadcast_to(tail.min(axis=0), tail.shape).copy()
    if group is not None:  # in such a round only the members of a group wait for each other
        for k in range(int(group.max()) + 1):
            mine = np.ix_(group == k, apart)
            shortest[mine] = tail[mine].min(axis=0)
    idle = samples == 0
    step_s = np.where(idle, np.nan, busy.mean(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        response = np.where(idle, np.nan, busy.sum(axis=1) / samples)
        cov = busy.std(axis=1) / step_s
        computing_cov = computing.std(axis=1) / np.where(idle, np.nan, computing.mean(axis=1))
    return LiveWindow(
        rounds=rounds,
        span_s=float((busy + tail).sum(axis=1).max()),
        samples=samples,
        step_s=step_s,
        step_cov=cov,
        computing_cov=computing_cov,
        wait_s=(tail - shortest).mean(axis=1),
        stall_s=rows[:, :, STALL].mean(axis=1),
        fixed_s=rows[:, :, UPDATE].mean(axis=1),
        response_s_per_sample=response,
        exchange_s=float(shortest[0, ends].mean()) if ends.any() else float("nan"),
        exchanges=int(ends.sum()),
        near_exchange_s=float(shortest[:, apart].max(axis=0).mean()) if apart.any() else float("nan"),
    )

"""What limits a GPU right now, with the evidence, and what its idle part costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from equipoise.calibrate.monitor.readings import Reading

Limit = Literal["compute", "memory", "input", "communication", "clock", "idle", "lost", "unknown"]

# Shares above which a unit counts as what the rest waits for. Above 0.8 of its peak DRAM saturates; a tensor
# pipe seldom shows more than 0.9, and half of that already means that kernels live in it.
DRAM_BUSY = 0.6
TENSOR_BUSY = 0.45
PIPE_BUSY = 0.6
SM_BUSY = 0.8
SM_MOSTLY_IDLE = 0.5
LINK_BUSY = 0.3
CLOCK_LOW = 0.93
IDLE = 0.02

SLOWING = {"power cap", "hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The limit, one line of evidence, and USD per hour of the idle part (None: no price, or not known).

    `at_least`: without hardware counters the idle part is only bounded from below.
    """

    limit: Limit
    evidence: str
    idle_usd_per_h: float | None = None
    at_least: bool = False

    def __str__(self) -> str:
        if self.idle_usd_per_h is None:
            return f"{self.limit}: {self.evidence}"
        bound = "at least " if self.at_least else ""
        return f"{self.limit}: {self.evidence}; idle part costs {bound}{self.idle_usd_per_h:.2f} USD/h"


def diagnose(reading: Reading, price_usd_per_h: float | None = None) -> Diagnosis:
    """Which resource limits this GPU. The price is a whole GPU's, so instances have no cost of their own."""
    limit, evidence = _limit(reading)
    active = busy_share(reading)
    if price_usd_per_h is None or active is None or reading.gpu.instance:
        return Diagnosis(limit, evidence)
    counted = reading.get("PROF_SM_ACTIVE") is not None
    return Diagnosis(limit, evidence, price_usd_per_h * (1.0 - active), at_least=not counted)


def busy_share(reading: Reading) -> float | None:
    """Share of the SMs that were active; without hardware counters the share of time that any kernel ran.

    The latter is an upper bound of the former, so the idle part is then at least what it says.
    """
    active = reading.get("PROF_SM_ACTIVE")
    if active is not None:
        return active
    util = reading.get("DEV_GPU_UTIL")
    return None if util is None else util / 100.0


def _limit(r: Reading) -> tuple[Limit, str]:
    if r.lost:
        return "lost", r.lost
    active = r.get("PROF_SM_ACTIVE")
    if active is None:
        return _without_counters(r)
    if active < IDLE and (r.get("PROF_DRAM_ACTIVE") or 0.0) < IDLE:
        return "idle", f"SM active {active:.0%}"
    for rule in (_clock, _memory, _compute, _communication):
        evidence = rule(r, active)
        if evidence:
            return rule.__name__.lstrip("_"), evidence  # type: ignore[return-value]
    if active < SM_MOSTLY_IDLE:
        return "input", f"SM active {active:.0%} while memory and links are quiet: the GPU waits for its host"
    return ("unknown", f"SM active {active:.0%}, but no pipe, memory or link is near its peak: latency-bound kernels")


def _clock(r: Reading, active: float) -> str:
    slowing = [reason for reason in r.clock_reasons if reason in SLOWING]
    clock, most = r.get("DEV_SM_CLOCK"), r.gpu.max_sm_clock_hz
    if not slowing or active < SM_MOSTLY_IDLE or clock is None or not most or clock * 1e6 >= CLOCK_LOW * most:
        return ""
    return f"SM clock {clock * 1e6 / most:.0%} of its maximum ({', '.join(slowing)}), SM active {active:.0%}"


def _memory(r: Reading, active: float) -> str:
    dram = r.get("PROF_DRAM_ACTIVE")
    tensor = r.get("PROF_PIPE_TENSOR_ACTIVE") or 0.0
    if dram is None or dram < DRAM_BUSY or tensor > dram:
        return ""
    return f"DRAM active {dram:.0%}, SM active {active:.0%}"


def _compute(r: Reading, active: float) -> str:
    pipes = {name: r.get(f"PROF_PIPE_{name}_ACTIVE") or 0.0 for name in ("TENSOR", "FP64", "FP32", "FP16")}
    name, share = max(pipes.items(), key=lambda item: item[1])
    if share < (TENSOR_BUSY if name == "TENSOR" else PIPE_BUSY) and not (active > SM_BUSY and share > 0.25):
        return ""
    return f"{name} pipe active {share:.0%}, SM active {active:.0%}"


def _communication(r: Reading, active: float) -> str:
    links = [
        (_share(r, "PROF_NVLINK_TX_BYTES", r.gpu.nvlink_bytes_per_s), "NVLink out"),
        (_share(r, "PROF_NVLINK_RX_BYTES", r.gpu.nvlink_bytes_per_s), "NVLink in"),
        (_share(r, "PROF_PCIE_TX_BYTES", r.gpu.pcie_bytes_per_s), "PCIe out"),
        (_share(r, "PROF_PCIE_RX_BYTES", r.gpu.pcie_bytes_per_s), "PCIe in"),
    ]
    share, name = max(links)
    if share < LINK_BUSY:
        return ""
    return f"{name} at {share:.0%} of its rate, SM active {active:.0%}"


def _share(r: Reading, name: str, capacity: float | None) -> float:
    value = r.get(name)
    return 0.0 if value is None or not capacity else value / capacity


def _without_counters(r: Reading) -> tuple[Limit, str]:
    util = r.get("DEV_GPU_UTIL")
    if util is None:
        reason = r.missing.get("DCGM_FI_PROF_SM_ACTIVE", "no counters")
        return "unknown", f"no activity counters ({reason})"
    if util < 100.0 * IDLE:
        return "idle", f"no kernel ran ({util:.0f} % of the time)"
    slowing = [reason for reason in r.clock_reasons if reason in SLOWING]
    if slowing:
        return "clock", f"clock reduced ({', '.join(slowing)}), some kernel ran {util:.0f} % of the time"
    reason = r.missing.get("DCGM_FI_PROF_SM_ACTIVE", "")
    return "unknown", f"some kernel ran {util:.0f} % of the time, which says nothing about the SMs ({reason})"

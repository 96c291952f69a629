"""GPU readings between two moments, with DCGM's field names and units.

Ratios 0 to 1, traffic bytes/s, clocks MHz, memory MiB, power W, energy mJ, utilisation per cent. Each value
says where it came from: `gpm` (hardware counters), `nvml` (driver), or is None with a reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.calibrate.device.nvml import (
    GPM_METRICS,
    MIB,
    Counters,
    GpmSampler,
    Gpu,
    GpuLostError,
    Process,
    counters,
    processes,
    rate,
)

DEVICE_FIELDS = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_MEM_CLOCK",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_TOTAL",
)
FIELDS = (*GPM_METRICS, *DEVICE_FIELDS)

FULL_ENERGY_INTERVAL_S = 0.5  # below this the energy counter's own steps (up to 0.1 s) spoil a difference


@dataclass(frozen=True)
class Reading:
    """One GPU or MIG instance over `interval_s`. `missing` gives the reason for each value that is None."""

    time_s: float  # Unix time
    interval_s: float
    gpu: Gpu
    values: Mapping[str, float | None]
    sources: Mapping[str, str]
    missing: Mapping[str, str]
    clock_reasons: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    lost: str = ""
    notes: tuple[str, ...] = field(default=())

    def get(self, name: str) -> float | None:
        """A value by its DCGM name, which may leave out the `DCGM_FI_` prefix."""
        return self.values.get(name if name.startswith("DCGM_FI_") else f"DCGM_FI_{name}")


class Sampler:
    """Turns one GPU's counters into readings; the first call of `read` has no GPM values yet."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._gpm: GpmSampler | None = None
        self._before: Counters | None = None
        self._since_us = 0

    def read(self) -> Reading:
        """A reading since the previous call. A lost GPU gives a reading that says so, and never raises."""
        if self.gpu.handle is None:
            return self._lost("the GPU is lost")
        try:
            return self._read()
        except GpuLostError as error:
            self._before, self._gpm = None, None
            return self._lost(str(error))

    def _lost(self, why: str) -> Reading:
        missing = dict.fromkeys(FIELDS, why)
        return Reading(time.time(), 0.0, self.gpu, dict.fromkeys(FIELDS), {}, missing, lost=why)

    def _read(self) -> Reading:
        missing: dict[str, str] = {}
        self._gpm = self._gpm or GpmSampler(self.gpu)
        values = self._gpm.read(missing)
        sources = {name: "gpm" for name, value in values.items() if value is not None}
        now = counters(self.gpu, missing, traffic=not self._gpm.supported)
        before, self._before = self._before, now
        interval_s = now.time_s - before.time_s if before else 0.0
        plain = _device_values(self.gpu, now, before)
        if not self._gpm.supported:
            plain |= _traffic(now, before)
        values |= plain
        sources |= {name: "nvml" for name, value in plain.items() if value is not None}
        missing = {name: missing.get(name, "not reported") for name in FIELDS if values.get(name) is None}
        running = self._processes(missing)
        return Reading(time.time(), interval_s, self.gpu, values, sources, missing, now.clock_reasons, tuple(running))

    def _processes(self, missing: dict[str, str]) -> list[Process]:
        if self.gpu.parent is not None:
            return []  # the whole GPU's list names the instance of each process
        since_us, self._since_us = self._since_us, time.time_ns() // 1000
        return processes(self.gpu, since_us, missing)

    def close(self) -> None:
        """Free the driver's buffers."""
        if self._gpm is not None:
            self._gpm.close()


def _device_values(gpu: Gpu, now: Counters, before: Counters | None) -> dict[str, float | None]:
    return {
        "DCGM_FI_DEV_GPU_UTIL": _times(now.gpu_util, 100.0),
        "DCGM_FI_DEV_MEM_COPY_UTIL": _times(now.memory_util, 100.0),
        "DCGM_FI_DEV_POWER_USAGE": _power_w(now, before),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": _times(now.energy_j.value if now.energy_j else None, 1e3),
        "DCGM_FI_DEV_GPU_TEMP": now.temperature_c,
        "DCGM_FI_DEV_SM_CLOCK": _times(now.sm_clock_hz, 1e-6),
        "DCGM_FI_DEV_MEM_CLOCK": _times(now.memory_clock_hz, 1e-6),
        "DCGM_FI_DEV_FB_USED": _times(now.memory_used_bytes, 1.0 / MIB),
        "DCGM_FI_DEV_FB_TOTAL": _times(gpu.memory_bytes, 1.0 / MIB),
    }


def _power_w(now: Counters, before: Counters | None) -> float | None:
    """Power from the energy counter; the driver's own power reading covers only part of the time.

    A100 and H100 sample power 25 % of the time (Yang et al. 2024), the energy counter misses nothing.
    """
    if before and now.time_s - before.time_s >= FULL_ENERGY_INTERVAL_S:
        power_w = rate(now.energy_j, before.energy_j)
        if power_w is not None:
            return power_w
    return now.power_w


def _traffic(now: Counters, before: Counters | None) -> dict[str, float | None]:
    """PCIe (20 ms windows) and NVLink bytes/s of parts without GPM."""
    return {
        "DCGM_FI_PROF_PCIE_TX_BYTES": now.pcie_tx_bytes_per_s,
        "DCGM_FI_PROF_PCIE_RX_BYTES": now.pcie_rx_bytes_per_s,
        "DCGM_FI_PROF_NVLINK_TX_BYTES": rate(now.nvlink_tx_bytes, before.nvlink_tx_bytes if before else None),
        "DCGM_FI_PROF_NVLINK_RX_BYTES": rate(now.nvlink_rx_bytes, before.nvlink_rx_bytes if before else None),
    }


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor

"""Idle, load, idle again: power, temperature and clock of a GPU over time, for heat and power constants."""

from __future__ import annotations

import time
from ctypes import c_int
from itertools import pairwise

from equipoise.calibrate.device import nvml
from equipoise.calibrate.device.cuda import Device
from equipoise.calibrate.measure.measure import Measure, MeasureMissingError, Outcome, Series
from equipoise.calibrate.measure.tensor import TensorKernel
from equipoise.calibrate.samples import Scalar

FULL_PHASES_S = (5.0, 60.0, 25.0)
"""Seconds of idle, load, idle in a session of the usual length; in another one in proportion to it."""
QUICK_PHASES_S = (1.5, 5.0, 2.0)
"""The least."""
SAMPLE_S = 0.25
ITERATIONS = 20_000


def phases_s(quick: bool, part: float) -> tuple[float, float, float]:
    """Seconds of idle, load, idle in a session `part` times as long as usual."""
    if quick:
        return QUICK_PHASES_S
    idle, load, cool = (max(round(part * f, 2), q) for f, q in zip(FULL_PHASES_S, QUICK_PHASES_S, strict=True))
    return idle, load, cool


def sustained_measures(
    device: Device, gpu: nvml.Gpu | None, tensor: TensorKernel, quick: bool, part: float = 1.0
) -> list[Measure]:
    """One series of idle, full load by a tensor kernel and idle, `part` times as long as usual.

    `gpu` is the same device in NVML, which must be open. The load must be by the fastest instructions: on an H200
    wgmma and the library's products draw the 700 W of its limit, mma.sync 480 W.
    """
    phases = phases_s(quick, part)
    parameters: dict[str, Scalar] = {
        "load": tensor.instruction,
        "idle_s": phases[0],
        "load_s": phases[1],
        "cool_s": phases[2],
    }

    def run(budget_s: float) -> Outcome:
        """Record idle, load and idle. Raises MissingError without NVML."""
        if gpu is None:
            raise MeasureMissingError("NVML does not show this device: no power, temperature or clock")
        return record(device, gpu, tensor, phases)

    return [Measure("sustained", parameters, run, once=True)]


class _Load:
    """Keeps the tensor cores of all SMs busy for about SAMPLE_S per call of `top_up`."""

    def __init__(self, device: Device, tensor: TensorKernel) -> None:
        self._device, self._threads = device, tensor.block
        self._blocks = device.sm_count * tensor.blocks_per_sm
        a, b, _ = tensor.operands()
        self._arguments = [a, b, tensor.out(self._blocks), c_int(ITERATIONS)]
        self._kernel = device.kernel(tensor.file, tensor.name)
        self._one_s = self._time()

    def _time(self) -> float:
        self._launch()
        self._device.wait(self._device.stream)
        start = time.perf_counter()
        self._launch()
        self._device.wait(self._device.stream)
        return max(time.perf_counter() - start, 1e-5)

    def _launch(self) -> None:
        self._device.launch(self._kernel, self._blocks, self._threads, self._arguments)

    def top_up(self) -> None:
        """Wait for what is queued but the last launch's worth, then queue about SAMPLE_S more."""
        self._device.wait(self._device.stream)
        for _ in range(min(max(int(SAMPLE_S / self._one_s), 1), 500)):
            self._launch()


def record(device: Device, gpu: nvml.Gpu, tensor: TensorKernel, phases: tuple[float, float, float]) -> Series:
    """Columns time_s, loaded (0 or 1) and, where the device gives them, power, temperature and clock."""
    load = _Load(device, tensor)
    readings: list[tuple[float, float, nvml.Counters]] = []
    start = time.monotonic()
    edges = (phases[0], phases[0] + phases[1], sum(phases))
    while (now := time.monotonic() - start) < edges[2]:
        loaded = edges[0] <= now < edges[1]
        if loaded:
            load.top_up()
        time.sleep(SAMPLE_S / 2 if loaded else SAMPLE_S)
        readings.append((time.monotonic() - start, float(loaded), nvml.counters(gpu)))
    device.wait(device.stream)
    return Series(_columns(readings))


def _columns(readings: list[tuple[float, float, nvml.Counters]]) -> dict[str, list[float]]:
    """Power is the energy counter's difference to the reading before, so the first reading is left out."""
    columns: dict[str, list[float]] = {
        "time_s": [t for t, _, _ in readings[1:]],
        "loaded": [flag for _, flag, _ in readings[1:]],
    }
    by_energy = [nvml.rate(b.energy_j, a.energy_j) for (_, _, a), (_, _, b) in pairwise(readings)]
    power = [b.power_w if watts is None else watts for watts, (_, _, b) in zip(by_energy, readings[1:], strict=True)]
    given = {
        "power_w": power,
        "temperature_c": [c.temperature_c for _, _, c in readings[1:]],
        "sm_clock_hz": [c.sm_clock_hz for _, _, c in readings[1:]],
    }
    for name, values in given.items():
        known = [v for v in values if v is not None]
        if len(known) == len(values):
            columns[name] = known
    return columns

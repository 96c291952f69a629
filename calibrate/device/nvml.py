"""The driver's management library: the sole import of pynvml.

What a device cannot give is None; nothing is ever replaced by 0. A lost device and a missing library or driver are
errors of one line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pynvml

PROMPT_S = 1e-3  # a call that took longer may have been interrupted between the counter and its moment


class NvmlUnavailableError(RuntimeError):
    """No driver or no library; the message is one line that says what is missing."""


class GpuLostError(RuntimeError):
    """The device fell off the bus or its driver stopped answering."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, and its facts that do not change while it runs."""

    index: int
    name: str
    uuid: str
    handle: Any = field(repr=False, compare=False)
    memory_bytes: float | None = None
    compute_capability: str | None = None
    power_limit_w: float | None = None
    max_sm_clock_hz: float | None = None
    application_sm_clock_hz: float | None = None
    slowdown_c: float | None = None
    ecc: bool | None = None
    mig: bool = False


@dataclass(frozen=True)
class Versions:
    """Versions that decide how a device behaves."""

    driver: str
    nvml: str
    cuda_driver: str


@contextmanager
def session() -> Iterator[Versions]:
    """Open the library for the time of a `with` block. Raises NvmlUnavailableError, one line."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(_why_unavailable(error)) from None
    try:
        cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion)
        text = "unknown" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        driver = ask(pynvml.nvmlSystemGetDriverVersion) or "unknown"
        library = ask(pynvml.nvmlSystemGetNVMLVersion) or "unknown"
        yield Versions(driver, library, text)
    finally:
        pynvml.nvmlShutdown()


def _why_unavailable(error: pynvml.NVMLError) -> str:
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver here: libnvidia-ml.so.1 was not found"
    if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "libnvidia-ml.so.1 is installed, but the NVIDIA kernel driver is not loaded"
    return f"the NVIDIA driver does not answer: {error}"


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's value, or None where the device does not give it. Raises GpuLostError when it is gone."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
            raise GpuLostError(f"the GPU is lost ({error})") from None
        return None


def gpus() -> list[Gpu]:
    """All GPUs. Needs an open `session`. A GPU that is lost has only its index."""
    found: list[Gpu] = []
    for index in range(ask(pynvml.nvmlDeviceGetCount) or 0):
        try:
            found.append(_gpu(index, pynvml.nvmlDeviceGetHandleByIndex(index)))
        except (GpuLostError, pynvml.NVMLError):
            found.append(Gpu(index, "unknown", "", None))
    return found


def _gpu(index: int, handle: Any) -> Gpu:
    def get(name: str, *arguments: Any) -> Any:
        """The function's value for this device, None where it has none."""
        return ask(getattr(pynvml, name), handle, *arguments)

    memory = get("nvmlDeviceGetMemoryInfo")
    capability = get("nvmlDeviceGetCudaComputeCapability")
    mode, ecc = get("nvmlDeviceGetMigMode"), get("nvmlDeviceGetEccMode")
    return Gpu(
        index=index,
        name=get("nvmlDeviceGetName") or "unknown",
        uuid=get("nvmlDeviceGetUUID") or "",
        handle=handle,
        memory_bytes=float(memory.total) if memory else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        power_limit_w=_scaled(get("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
        max_sm_clock_hz=_scaled(get("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM), 1e6),
        application_sm_clock_hz=_scaled(get("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_SM), 1e6),
        slowdown_c=_scaled(get("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN), 1.0),
        ecc=bool(ecc[0]) if ecc else None,
        mig=bool(mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE),
    )


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor


@dataclass(frozen=True, slots=True)
class Count:
    """A counter that only rises, and the moment (`time.monotonic`) at which it had this value."""

    value: float
    time_s: float


def rate(now: Count | None, before: Count | None) -> float | None:
    """Units of the counter per second between two of its counts; None without both, or where it fell."""
    if now is None or before is None or now.time_s <= before.time_s or now.value < before.value:
        return None
    return (now.value - before.value) / (now.time_s - before.time_s)


def _count(read: Callable[[], float | None], factor: float) -> Count | None:
    """A counter, dated at the middle of the call that read it.

    A call during which the process was descheduled has no exact date, so the shortest of up to three
    calls is taken.
    """
    calls: list[tuple[float, Count]] = []
    while len(calls) < 3 and (not calls or calls[-1][0] > PROMPT_S):
        began_s = time.monotonic()
        value = read()
        took_s = time.monotonic() - began_s
        if value is None:
            return None
        calls.append((took_s, Count(float(value) * factor, began_s + took_s / 2)))
    return min(calls, key=lambda call: call[0])[1]


@dataclass(frozen=True, slots=True)
class Counters:
    """Energy, power, temperature and clock of a GPU, about now; None where the device does not have it."""

    energy_j: Count | None
    power_w: float | None
    temperature_c: float | None
    sm_clock_hz: float | None


def counters(gpu: Gpu) -> Counters:
    """Read everything once. Raises GpuLostError."""

    def get(function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's value for this device, None where it has none."""
        return ask(function, gpu.handle, *arguments)

    return Counters(
        energy_j=_count(lambda: get(pynvml.nvmlDeviceGetTotalEnergyConsumption), 1e-3),
        power_w=_scaled(get(pynvml.nvmlDeviceGetPowerUsage), 1e-3),
        temperature_c=_scaled(get(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU), 1.0),
        sm_clock_hz=_scaled(get(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM), 1e6),
    )

"""The driver's management library: the sole import of pynvml.

What a device cannot give is None, and `missing` says why; nothing is ever replaced by 0. A lost device and a
missing library or driver are errors of one line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pynvml

MIB = 2.0**20
KIB = 2.0**10
GPM_LEAST_INTERVAL_S = 0.1
ALL_LINKS = 0xFFFFFFFF  # scope of a field: the sum over all NVLinks
PROMPT_S = 1e-3  # a call that took longer may have been interrupted between the counter and its moment

# DCGM field: (GPM metric, factor to DCGM's unit). Ratios are 0 to 1, traffic is bytes/s.
GPM_METRICS: dict[str, tuple[int, float]] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, 0.01),
    "DCGM_FI_PROF_SM_ACTIVE": (pynvml.NVML_GPM_METRIC_SM_UTIL, 0.01),
    "DCGM_FI_PROF_SM_OCCUPANCY": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, 0.01),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.01),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": (pynvml.NVML_GPM_METRIC_FP64_UTIL, 0.01),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": (pynvml.NVML_GPM_METRIC_FP32_UTIL, 0.01),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": (pynvml.NVML_GPM_METRIC_FP16_UTIL, 0.01),
    "DCGM_FI_PROF_DRAM_ACTIVE": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 0.01),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, MIB),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, MIB),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, MIB),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, MIB),
}

CLOCK_REASONS = {
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "application clocks",
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display clocks",
}


class NvmlUnavailableError(RuntimeError):
    """No driver or no library; the message is one line that says what is missing."""


class GpuLostError(RuntimeError):
    """The device fell off the bus or its driver stopped answering."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance of it, and its facts that do not change while it runs."""

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
    pcie_bytes_per_s: float | None = None  # one direction, at the current link
    nvlink_bytes_per_s: float | None = None  # one direction, all active links
    instance: str = ""  # "GPU instance id/compute instance id"; "" for a whole GPU
    instance_id: int | None = None
    parent: Any = field(default=None, repr=False, compare=False)

    @property
    def label(self) -> str:
        """ "0", or "0 MIG 1/0" for an instance."""
        return f"{self.index} MIG {self.instance}" if self.instance else str(self.index)


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
        cuda = ask({}, "cuda", pynvml.nvmlSystemGetCudaDriverVersion)
        text = "unknown" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        driver = ask({}, "driver", pynvml.nvmlSystemGetDriverVersion) or "unknown"
        library = ask({}, "nvml", pynvml.nvmlSystemGetNVMLVersion) or "unknown"
        yield Versions(driver, library, text)
    finally:
        pynvml.nvmlShutdown()


def _why_unavailable(error: pynvml.NVMLError) -> str:
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver here: libnvidia-ml.so.1 was not found"
    if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "libnvidia-ml.so.1 is installed, but the NVIDIA kernel driver is not loaded"
    return f"the NVIDIA driver does not answer: {error}"


def ask(missing: dict[str, str], what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's value, or None with the driver's reason in `missing[what]`.

    Raises GpuLostError when the device is gone.
    """
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
            raise GpuLostError(f"the GPU is lost ({error})") from None
        missing[what] = str(error)
        return None


def gpus() -> list[Gpu]:
    """All GPUs, and behind each one its MIG instances. Needs an open `session`.

    A GPU that is lost is left in with only its index, so that a monitor can say so.
    """
    found: list[Gpu] = []
    for index in range(ask({}, "count", pynvml.nvmlDeviceGetCount) or 0):
        try:
            whole = _gpu(index, pynvml.nvmlDeviceGetHandleByIndex(index))
        except (GpuLostError, pynvml.NVMLError):
            found.append(Gpu(index, "unknown", "", None))
            continue
        found.append(whole)
        found.extend(_instances(whole) if whole.mig else [])
    return found


def _gpu(index: int, handle: Any) -> Gpu:
    why: dict[str, str] = {}

    def get(name: str, *arguments: Any) -> Any:
        """The function's value for this device, None where it has none."""
        return ask(why, name, getattr(pynvml, name), handle, *arguments)

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
        pcie_bytes_per_s=_pcie_rate(get("nvmlDeviceGetCurrPcieLinkGeneration"), get("nvmlDeviceGetCurrPcieLinkWidth")),
        nvlink_bytes_per_s=_nvlink_rate(handle),
    )


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor


def _pcie_rate(generation: int | None, width: int | None) -> float | None:
    """Bytes/s, one direction (PCI-SIG): 2.5 and 5 GT/s coded 8b/10b, then 8, 16, ... GT/s coded 128b/130b."""
    if not generation or not width:
        return None
    old = generation < 3
    transfers_per_s = 2.5e9 * 2.0 ** (generation - 1) if old else 8e9 * 2.0 ** (generation - 3)
    return transfers_per_s * (0.8 if old else 128 / 130) / 8.0 * width


def _nvlink_rate(handle: Any) -> float | None:
    count = field_value(handle, pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
    speed = field_value(handle, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)
    return None if not count or not speed else count * speed * 1e6


def _instances(whole: Gpu) -> list[Gpu]:
    found = []
    for k in range(ask({}, "mig", pynvml.nvmlDeviceGetMaxMigDeviceCount, whole.handle) or 0):
        handle = ask({}, "mig", pynvml.nvmlDeviceGetMigDeviceHandleByIndex, whole.handle, k)
        instance = ask({}, "mig", pynvml.nvmlDeviceGetGpuInstanceId, handle) if handle else None
        if instance is None:
            continue  # an empty slot: NVML numbers the slots, not the instances
        compute = ask({}, "mig", pynvml.nvmlDeviceGetComputeInstanceId, handle)
        memory = ask({}, "memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
        found.append(
            Gpu(
                index=whole.index,
                name=ask({}, "name", pynvml.nvmlDeviceGetName, handle) or whole.name,
                uuid=ask({}, "uuid", pynvml.nvmlDeviceGetUUID, handle) or "",
                handle=handle,
                memory_bytes=float(memory.total) if memory else None,
                compute_capability=whole.compute_capability,
                max_sm_clock_hz=whole.max_sm_clock_hz,
                pcie_bytes_per_s=whole.pcie_bytes_per_s,
                instance=f"{instance}/{0 if compute is None else compute}",
                instance_id=instance,
                parent=whole.handle,
            )
        )
    return found


def field_value(handle: Any, number: int, scope: int = 0) -> float | None:
    """One value of NVML's field interface, None where the device does not have it."""
    values = ask({}, f"field {number}", pynvml.nvmlDeviceGetFieldValues, handle, [(number, scope)])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    value, kind = values[0].value, values[0].valueType
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")
    return float(getattr(value, names[kind])) if 0 <= kind < len(names) else None


class GpmSampler:
    """Activity of one GPU or MIG instance between two calls of `read`, through GPM (Hopper and later)."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._samples: list[Any] = []
        self._taken_s = -1e9
        self.reason = ""
        self.supported = self._supported()

    def _supported(self) -> bool:
        why: dict[str, str] = {}
        target = self._gpu.handle if self._gpu.parent is None else self._gpu.parent
        support = ask(why, "gpm", pynvml.nvmlGpmQueryDeviceSupport, target)
        if support is None or not support.isSupportedDevice:
            self.reason = why.get("gpm", "GPM needs Hopper or later")
            return False
        return True

    def _take(self, sample: Any) -> bool:
        why: dict[str, str] = {}
        if self._gpu.parent is None:
            taken = ask(why, "gpm", pynvml.nvmlGpmSampleGet, self._gpu.handle, sample)
        else:
            parent, instance = self._gpu.parent, self._gpu.instance_id
            taken = ask(why, "gpm", pynvml.nvmlGpmMigSampleGet, parent, instance, sample)
        self.reason = why.get("gpm", "")
        return taken is not None

    def read(self, missing: dict[str, str]) -> dict[str, float | None]:
        """DCGM field -> value since the previous call; all None on the first call or without GPM.

        Waits until the driver's least interval of 0.1 s has passed.
        """
        empty: dict[str, float | None] = dict.fromkeys(GPM_METRICS)
        if not self.supported:
            return self._absent(empty, missing)
        if not self._samples:
            self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
            first = self._take(self._samples[0])
            self._taken_s = time.monotonic()
            self.reason = self.reason or "first sample"
            self.supported = first
            return self._absent(empty, missing)
        time.sleep(max(0.0, self._taken_s + GPM_LEAST_INTERVAL_S * 1.05 - time.monotonic()))
        if not self._take(self._samples[1]):
            return self._absent(empty, missing)
        self._taken_s = time.monotonic()
        values = self._metrics(missing)
        self._samples.reverse()
        return values

    def _absent(self, empty: dict[str, float | None], missing: dict[str, str]) -> dict[str, float | None]:
        missing.update(dict.fromkeys(empty, self.reason))
        return empty

    def _metrics(self, missing: dict[str, str]) -> dict[str, float | None]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_METRICS)
        request.sample1, request.sample2 = self._samples
        for k, (metric, _) in enumerate(GPM_METRICS.values()):
            request.metrics[k].metricId = metric
        if ask(missing, "gpm", pynvml.nvmlGpmMetricsGet, request) is None:
            return self._absent(dict.fromkeys(GPM_METRICS), missing)
        values: dict[str, float | None] = {}
        for k, (name, (_, factor)) in enumerate(GPM_METRICS.items()):
            answer = request.metrics[k]
            good = answer.nvmlReturn == pynvml.NVML_SUCCESS and answer.value == answer.value
            values[name] = answer.value * factor if good else None
            if not good:
                failed = answer.nvmlReturn != pynvml.NVML_SUCCESS
                missing[name] = str(pynvml.NVMLError(answer.nvmlReturn)) if failed else "not a number"
        return values

    def close(self) -> None:
        """Free the driver's sample buffers."""
        for sample in self._samples:
            ask({}, "gpm", pynvml.nvmlGpmSampleFree, sample)
        self._samples = []


@dataclass(frozen=True, slots=True)
class Process:
    """One compute process on a GPU. `sm_share` is a share of time slots, not of SMs (0 to 1)."""

    pid: int
    memory_bytes: float | None
    sm_share: float | None
    instance_id: int | None = None


NO_INSTANCE = 0xFFFFFFFF


def processes(gpu: Gpu, since_us: int, missing: dict[str, str]) -> list[Process]:
    """Compute processes of a whole GPU with their share of time slots since `since_us` (driver's clock).

    NVML gives no shares under MIG, and none when nothing ran.
    """
    running = ask(missing, "processes", pynvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle) or []
    shares: dict[int, float] = {}
    if running and not gpu.mig:
        # The binding raises NVMLError(0) when the sizing call finds nothing.
        samples = ask(missing, "process share", pynvml.nvmlDeviceGetProcessUtilization, gpu.handle, since_us)
        for sample in samples or []:
            shares[sample.pid] = max(shares.get(sample.pid, 0.0), sample.smUtil / 100.0)
    return [
        Process(
            p.pid,
            float(p.usedGpuMemory) if p.usedGpuMemory is not None else None,
            shares.get(p.pid),
            None if p.gpuInstanceId in (None, NO_INSTANCE) else int(p.gpuInstanceId),
        )
        for p in running
    ]


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
    """What plain NVML gives on any GPU, about now; None where the device does not have it.

    The calls of one reading may be tens of ms apart, so each counter has its own moment.
    """

    time_s: float
    energy_j: Count | None
    power_w: float | None
    temperature_c: float | None
    sm_clock_hz: float | None
    memory_clock_hz: float | None
    memory_used_bytes: float | None
    gpu_util: float | None  # share of time that some kernel ran
    memory_util: float | None
    pcie_tx_bytes_per_s: float | None  # a 20 ms window
    pcie_rx_bytes_per_s: float | None
    nvlink_tx_bytes: Count | None
    nvlink_rx_bytes: Count | None
    clock_reasons: tuple[str, ...]


def counters(gpu: Gpu, missing: dict[str, str], traffic: bool = False) -> Counters:
    """Read everything once; PCIe rates, which take 20 ms each, and NVLink counters only with `traffic`.

    Raises GpuLostError.
    """

    def get(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's value for this device, None where it has none."""
        return ask(missing, what, function, gpu.handle, *arguments)

    def links(number: int) -> Count | None:
        """A counter of all NVLinks together, in bytes."""
        return _count(lambda: field_value(gpu.handle, number, ALL_LINKS), KIB) if traffic else None

    memory = get("DCGM_FI_DEV_FB_USED", pynvml.nvmlDeviceGetMemoryInfo)
    util = get("DCGM_FI_DEV_GPU_UTIL", pynvml.nvmlDeviceGetUtilizationRates)
    reasons = get("clock reasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
    tx = get("pcie", pynvml.nvmlDeviceGetPcieThroughput, pynvml.NVML_PCIE_UTIL_TX_BYTES) if traffic else None
    rx = get("pcie", pynvml.nvmlDeviceGetPcieThroughput, pynvml.NVML_PCIE_UTIL_RX_BYTES) if traffic else None
    energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    return Counters(
        time_s=time.monotonic(),
        energy_j=_count(lambda: get(energy, pynvml.nvmlDeviceGetTotalEnergyConsumption), 1e-3),
        power_w=_scaled(get("DCGM_FI_DEV_POWER_USAGE", pynvml.nvmlDeviceGetPowerUsage), 1e-3),
        temperature_c=_scaled(
            get("DCGM_FI_DEV_GPU_TEMP", pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU), 1.0
        ),
        sm_clock_hz=_scaled(get("DCGM_FI_DEV_SM_CLOCK", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM), 1e6),
        memory_clock_hz=_scaled(
            get("DCGM_FI_DEV_MEM_CLOCK", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM), 1e6
        ),
        memory_used_bytes=float(memory.used) if memory else None,
        gpu_util=util.gpu / 100.0 if util else None,
        memory_util=util.memory / 100.0 if util else None,
        pcie_tx_bytes_per_s=_scaled(tx, KIB),
        pcie_rx_bytes_per_s=_scaled(rx, KIB),
        nvlink_tx_bytes=links(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
        nvlink_rx_bytes=links(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
        clock_reasons=tuple(name for bit, name in CLOCK_REASONS.items() if reasons & bit),
    )

"""Device telemetry from NVML in a thread; values that NVML does not give are NaN, and NVML may fail at any time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

GPU_COLUMNS = ("power_w", "temperature_c", "clock_ratio")
UNKNOWN: Mapping[str, float] = dict.fromkeys(GPU_COLUMNS, math.nan)


class DeviceSampler:
    """Samples one GPU every `period_s` seconds until closed; `latest` never blocks and never raises.

    `nvml` is the module `pynvml` or one that looks like it. `report` is called once with each new problem.
    """

    def __init__(self, nvml: Any, device: str | int, report: Callable[[str], None], period_s: float = 1.0) -> None:
        self._nvml, self._device, self._report, self._period_s = nvml, device, report, period_s
        self._latest: Mapping[str, float] = UNKNOWN
        self._stop = threading.Event()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="equipoise-nvml", daemon=True)
        self._thread.start()

    @classmethod
    def for_cuda(cls, index: int, report: Callable[[str], None]) -> DeviceSampler | None:
        """A sampler of this process's CUDA device, or None (reported) without the NVML bindings."""
        try:
            import pynvml
        except ImportError as error:
            report(f"NVML: {error}")
            return None
        import torch

        # CUDA numbers the visible devices, NVML all of them: devices are matched by UUID.
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        return cls(pynvml, index if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}", report)

    def latest(self) -> Mapping[str, float]:
        """The last sample by column name; NaN if unknown."""
        return self._latest

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join(timeout=2 * self._period_s)

    def _run(self) -> None:
        handle = None
        while not self._stop.wait(0.0 if handle is None and not self._told else self._period_s):
            try:
                if handle is None:
                    handle = self._open()
                self._latest = self._sample(handle)
            except Exception as error:
                handle, self._latest = None, UNKNOWN
                self._tell(f"NVML: {type(error).__name__}: {error}")

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            self._report(problem)

    def _open(self) -> Any:
        self._nvml.nvmlInit()
        if isinstance(self._device, int):
            return self._nvml.nvmlDeviceGetHandleByIndex(self._device)
        return self._nvml.nvmlDeviceGetHandleByUUID(self._device)

    def _sample(self, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        clock = self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        nominal = self._ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
        return {
            "power_w": self._ask(nvml.nvmlDeviceGetPowerUsage, handle) / 1e3,
            "temperature_c": self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "clock_ratio": clock / nominal if nominal > 0 else math.nan,
        }

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> float:
        try:
            return float(question(*arguments))
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) == getattr(self._nvml, "NVML_ERROR_GPU_IS_LOST", 15):
                raise
            return math.nan  # this device does not have it

"""The power cap of this rank's GPU: set through NVML if the driver permits, restored at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

POWER_COLUMNS = ("power_least_w", "power_most_w", "power_cap_w")
UNCAPPED = (math.nan, math.nan, math.nan)


class PowerCap:
    """The allowed range and the present cap; without permission it sets none, and reports that once.

    `nvml` is the module `pynvml` or one that looks like it; `device` a UUID or an index.
    """

    def __init__(self, nvml: Any, device: str | int, refused: Callable[[str], None]) -> None:
        self._nvml, self._refused = nvml, refused
        self.state: tuple[float, float, float] = UNCAPPED  # least, most, cap in force (W); NaN: it may not be set
        try:
            nvml.nvmlInit()
            by = nvml.nvmlDeviceGetHandleByIndex if isinstance(device, int) else nvml.nvmlDeviceGetHandleByUUID
            self._handle = by(device)
            self._first_mw = int(nvml.nvmlDeviceGetPowerManagementLimit(self._handle))
            least, most = nvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
            nvml.nvmlDeviceSetPowerManagementLimit(self._handle, self._first_mw)  # fails without permission
            self.state = least / 1e3, most / 1e3, self._first_mw / 1e3
        except Exception as error:  # any error of the library, which must not end training
            refused(f"power: GPUs cannot be capped here, NVML: {error}")

    def set(self, cap_w: float) -> None:
        """Set the cap; a refusal by the driver is reported and changes nothing."""
        if math.isnan(self.state[2]) or math.isnan(cap_w) or cap_w == self.state[2]:
            return
        try:
            self._nvml.nvmlDeviceSetPowerManagementLimit(self._handle, round(1e3 * cap_w))
            self.state = (*self.state[:2], cap_w)
        except Exception as error:
            self._refused(f"power: a cap of {cap_w:g} W was refused, NVML: {error}")

    def close(self) -> None:
        """Restore the original cap."""
        self.set(math.nan if math.isnan(self.state[2]) else self._first_mw / 1e3)


class NoCap:
    """Used for a rank that no plan may cap."""

    state = UNCAPPED

    def set(self, cap_w: float) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def make_power(wanted: bool, device: torch.device, refused: Callable[[str], None]) -> PowerCap | NoCap:
    """The cap of this process's GPU, if `wanted`; a missing GPU or NVML is reported."""
    if not wanted:
        return NoCap()
    if device.type != "cuda":
        refused(f"power: a {device.type} device cannot be capped")
        return NoCap()
    try:
        import pynvml
    except ImportError as error:
        refused(f"power: GPUs cannot be capped here, NVML: {error}")
        return NoCap()
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    name = (device.index or 0) if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
    return PowerCap(pynvml, name, refused)

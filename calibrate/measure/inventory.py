"""The properties of this machine that determine its speed: the conditions of a measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path

import numpy as np

from equipoise.calibrate.device import nvml
from equipoise.calibrate.measure.host import cores
from equipoise.calibrate.samples import Scalar

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def cpu_name() -> str:
    """The processor's name as the kernel gives it."""
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "Model", "cpu model")):
            return line.split(":", 1)[1].strip()
    return platform.machine() or "unknown processor"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def host_memory_bytes() -> float:
    """Physical memory."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def cpu_conditions() -> dict[str, Scalar]:
    """Conditions of a CPU. `load_1min` is recorded but does not make samples incomparable."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()
    threads = [f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if name in os.environ]
    return {
        "device": cpu_name(),
        "architecture": platform.machine(),
        "cores": cores(),
        "memory_bytes": host_memory_bytes(),
        "blas": f"{blas.get('name', '?')} {blas.get('version', '?')}",
        "threads": " ".join(threads) or None,
        "governor": governor or None,
        "load_1min": round(os.getloadavg()[0], 2),
    }


def gpu_conditions(
    gpu: nvml.Gpu | None, versions: nvml.Versions | None, name: str, memory_bytes: float, count: int
) -> dict[str, Scalar]:
    """Conditions of a GPU; None for values that NVML does not give."""
    return {
        "device": name,
        "architecture": gpu.compute_capability if gpu else None,
        "count": count,
        "memory_bytes": memory_bytes,
        "driver": versions.driver if versions else None,
        "cuda_driver": versions.cuda_driver if versions else None,
        "power_limit_w": gpu.power_limit_w if gpu else None,
        "max_sm_clock_hz": gpu.max_sm_clock_hz if gpu else None,
        "application_sm_clock_hz": gpu.application_sm_clock_hz if gpu else None,
        "ecc": gpu.ecc if gpu else None,
        "mig": gpu.mig if gpu else None,
        "slowdown_c": gpu.slowdown_c if gpu else None,
        "host": cpu_name(),
        "host_cores": cores(),
    }


def software_versions() -> dict[str, str]:
    """Versions of the installed measurement libraries."""
    kernel = re.match(r"[\d.]*\d", platform.release())  # the rest is specific to the vendor's build
    found = {"python": platform.python_version(), "kernel": kernel[0] if kernel else "unknown"}
    for package in ("equipoise", "numpy", "torch"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found

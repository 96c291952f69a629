"""equipoise doctor: versions and devices of this installation, one line each; works without a GPU."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from importlib import metadata

import click

from equipoise.base.version import __version__
from equipoise.calibrate.device import nvrtc
from equipoise.calibrate.device.libraries import LibraryMissingError
from equipoise.calibrate.measure import cublaslt
from equipoise.options import common, say
from equipoise.sim.hardware.profile import list_profiles, scenarios_dir
from equipoise.sim.scenario.units import format_bytes

PACKAGES = ("numpy", "numba", "scipy", "simpy", "pydantic", "pyyaml", "duckdb", "click", "rich")
OPTIONAL = ("nvidia-ml-py", "torch")


@click.command()
@common
def doctor() -> None:
    """Show versions, the kernel cache, processors and GPUs."""
    say(f"equipoise     {__version__}, Python {platform.python_version()} ({sys.executable})")
    say(f"packages      {', '.join(f'{name} {_version(name)}' for name in (*PACKAGES, *OPTIONAL))}")
    say(f"processors    {_processors()}")
    say(f"kernel cache  {_kernel_cache()}")
    first, *others = _gpus()
    say("\n".join([f"GPUs          {first}", *(f"{'':14}{line}" for line in others)]))
    say(f"calibration   {', '.join(_calibration())}")
    say(f"scenarios     {_scenarios()}")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processors() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} usable of {os.cpu_count()}, {platform.machine()}"


def _kernel_cache() -> str:
    """Folder and number of cached kernels, and whether a test kernel compiles and runs correctly."""
    try:
        from equipoise.policies.kernels.jit import cache_dir, jit

        folder = cache_dir()
        kept = sum(1 for _ in folder.rglob("*.nbc"))
        begin_s = time.perf_counter()
        works = jit(_probe)(20) == 210
        took_s = time.perf_counter() - begin_s
    except Exception as error:
        return f"FAILS: {error}"
    state = f"compiler {'works' if works else 'gives WRONG RESULTS'} ({took_s:.2f} s)"
    return f"{folder}, {'empty' if not kept else f'{kept} compiled kernels'}, {state}"


def _probe(n: int) -> int:
    total = 0
    for k in range(n + 1):
        total += k
    return total


def _gpus() -> list[str]:
    """NVML's view, one line for the driver and one per GPU; without NVML, one line that says so."""
    try:
        from equipoise.calibrate.device import nvml

        with nvml.session() as versions:
            found = nvml.gpus()
    except Exception as error:
        return [f"none: {error}"]
    first = f"{len(found)}, driver {versions.driver}, CUDA {versions.cuda_driver}"
    of = ((gpu, ", lost" if gpu.handle is None else "") for gpu in found)
    return [first, *(f"  {gpu.index}: {gpu.name}, {_memory(gpu.memory_bytes)}{lost}" for gpu, lost in of)]


def _calibration() -> list[str]:
    """What `equipoise calibrate` would use on a GPU, or what is missing."""

    found = []
    for name, version in (("NVRTC", nvrtc.version), ("cuBLASLt", cublaslt.version)):
        try:
            found.append(f"{name} {version()}")
        except (LibraryMissingError, RuntimeError) as error:
            found.append(f"no {name} ({error})")
    mps = shutil.which("nvidia-cuda-mps-control")
    return [*found, f"PyTorch {_version('torch')}", "MPS control" if mps else "no MPS control"]


def _memory(size_bytes: float | None) -> str:

    return "memory unknown" if size_bytes is None else format_bytes(size_bytes)


def _scenarios() -> str:

    count = len(list(scenarios_dir().glob("*.yaml")))
    return f"{scenarios_dir()}, {count} scenarios, hardware profiles: {', '.join(list_profiles())}"

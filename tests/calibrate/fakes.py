"""Compiles the stand-ins for NVIDIA's libraries and runs programs against them."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from equipoise.calibrate.device.libraries import FOLDER_VARIABLE

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parents[1]


@lru_cache(maxsize=1)
def folder() -> Path:
    """Where the compiled libraries of this test run are, until it ends."""
    made = Path(mkdtemp(prefix="equipoise-fakes-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def needs_no(library: str) -> None:
    """Skip a test about a missing driver where there is one."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return
    pytest.skip(f"{library} is installed here")


def _compile(compiler: str, source: str, name: str, *flags: str) -> Path:
    program = shutil.which(compiler)
    if program is None:
        pytest.skip(f"needs {compiler}")
    target = folder() / name
    command = [program, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", *flags]
    subprocess.run([*command, "-o", str(target), str(TESTS / source), "-lm"], check=True)
    return target


@lru_cache(maxsize=1)
def nvml() -> Path:
    """Folder with a fake libnvidia-ml.so.1."""
    here = folder() / "nvml"
    here.mkdir()
    _compile("gcc", "fake_nvml.c", f"{here.name}/libnvidia-ml.so.1")
    return here


@lru_cache(maxsize=1)
def cuda() -> Path:
    """Folder with a fake libcuda.so.1 and libcublasLt.so.13, one library under two names."""
    here = folder() / "cuda"
    here.mkdir()
    flags = ("-std=c++20", "-Wno-unknown-pragmas", "-Wno-unused-function")
    _compile("g++", "fake_cuda.cpp", "cuda/libcuda.so.1", *flags)
    (here / "libcublasLt.so.13").symlink_to("libcuda.so.1")
    return here


COMMAND_LINE = """
import sys
from equipoise import cli
sys.exit(cli.main())
"""


def environment(*libraries: Path, **variables: str) -> dict[str, str]:
    """A process's environment in which these folders' libraries are found."""
    paths = [str(path) for path in libraries]
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
        FOLDER_VARIABLE: paths[0] if paths else "",
        **variables,
    }


def run(
    arguments: list[str], *libraries: Path, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-c", COMMAND_LINE, *arguments]
    env = environment(*libraries, **variables)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, cwd=cwd)


def python(code: str, *libraries: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A piece of Python in a process of its own."""
    env = environment(*libraries, **variables)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)

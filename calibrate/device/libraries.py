"""Finds NVIDIA's shared libraries: in pip's wheels, in a CUDA toolkit, or by the dynamic loader."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path


class LibraryMissingError(RuntimeError):
    """A shared library is not here; the message is one line that says what to install."""


FOLDER_VARIABLE = "EQUIPOISE_CUDA_LIBRARIES"
"""A folder to look in before all others."""


def _candidates(stem: str) -> Iterator[Path]:
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        yield from sorted(Path(chosen).glob(f"lib{stem}.so.*"), key=_version, reverse=True)
    wheels = [Path(entry) / "nvidia" for entry in sys.path if entry]
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [(wheel, "*/lib") for wheel in wheels] + [(Path(t), "lib*") for t in toolkits if t]
    for folder, below in folders:
        yield from sorted(folder.glob(f"{below}/lib{stem}.so.*"), key=_version, reverse=True)


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", path.name.split(".so.")[-1]))


def load_library(stem: str, loader_names: tuple[str, ...], install: str) -> ctypes.CDLL:
    """Load lib`stem`: from FOLDER_VARIABLE, else the newest wheel's or toolkit's, else the dynamic loader's.

    Raises LibraryMissingError, one line that ends in `install`.
    """
    for path in _candidates(stem):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    for name in loader_names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise LibraryMissingError(f"lib{stem} was not found: {install}")

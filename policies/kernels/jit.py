"""The one jit decorator: fixed flags, and a kernel cache that cannot go stale.

Numba keys its on-disk cache by the source of the kernel alone, so editing a function that a kernel calls
would leave a stale result. The cache folder is therefore named by a hash over every kernel source file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import platformdirs

from equipoise.policies.sources import PACKAGE, combined, digest_of, file_parts, source_files

F = TypeVar("F", bound=Callable[..., Any])

ZERO = cast(int, np.int64(0))
"""For kernels that hand a zero on: for a literal one, the callee would be compiled once more."""


def kernel_source_hash() -> str:
    """First 16 hex digits of a SHA-256 over all source files that define jitted kernels."""
    kernels = ((name, path) for name, path in source_files() if b"@jit" in path.read_bytes())
    return combined([("numba", numba.__version__), *((name, digest_of(path)) for name, path in kernels)])


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK)
    except OSError:
        return False


def cache_dir() -> Path:
    """Folder of compiled kernels: `EQUIPOISE_KERNEL_CACHE`, else the user's cache, else a temporary one."""
    chosen = os.environ.get("EQUIPOISE_KERNEL_CACHE")
    base = Path(chosen) if chosen else Path(platformdirs.user_cache_dir("equipoise"))
    for candidate in (base, Path(tempfile.gettempdir()) / f"equipoise-{os.getuid()}"):
        folder = candidate / "kernels" / kernel_source_hash()
        if _writable(folder):
            return folder
    raise OSError(f"no writable folder for compiled kernels: tried {base} and the temporary folder")


numba.config.CACHE_DIR = str(cache_dir())


# No C function is ever asked for; without one, compiling takes 2 % less.
_FLAGS = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": False, "no_cfunc_wrapper": True}


def jit(function: F) -> F:
    """Compile `function` with the project's fixed flags.

    IEEE arithmetic (no fastmath) and one thread, because equal inputs must give equal bytes on every run;
    the interpreter lock is released.
    """
    return _compiled(function)


def jit_in_place(function: F) -> F:
    """As `jit`, for kernels that only work on the arrays they are given; making one is a compile error.

    No references are counted, which is a fifth of the time of a kernel of a few microseconds that is cut
    into readable functions of many arrays.
    """
    return _compiled(function, _nrt=False)


def _compiled(function: F, **flags: bool) -> F:
    """With a cache of its own for kernels from elsewhere, by all their sources (Numba looks at one file only)."""
    file = Path(cast(Any, function).__code__.co_filename)
    if function.__module__.partition(".")[0] == PACKAGE or not file.is_file():
        return cast(F, numba.njit(**_FLAGS, **flags)(function))
    usual = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(Path(usual) / combined(file_parts(file, function.__module__)))
    try:
        return cast(F, numba.njit(**_FLAGS, **flags)(function))
    finally:
        numba.config.CACHE_DIR = usual


def compiled_for(kernel: F, *arguments: Any) -> F:
    """The machine code of `kernel` for arguments of the types of these, called without a look at types.

    That look costs two thirds of a call with arrays of records (0.3 us). Arguments of any other type would be
    misread: only for arrays that the caller makes itself.
    """
    return cast(F, cast(Any, kernel).compile(tuple(numba.typeof(argument) for argument in arguments)))


@jit
def _nothing() -> None:
    return None


@cache
def initialise() -> None:
    """Have Numba load what it needs before its first kernel (0.2 s), for those who time what comes then."""
    _nothing()

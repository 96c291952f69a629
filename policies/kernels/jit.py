"""The one jit decorator: fixed flags, and a kernel cache that cannot go stale.

Numba keys its on-disk cache by the source of the kernel alone, so editing a function that a kernel calls, or a
constant that it reads, would leave a stale result. The cache folder is therefore named by a hash over all of these.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import platformdirs

from equipoise.policies.sources import (
    PACKAGE,
    combined,
    digest_of,
    file_parts,
    root,
    source_files,
    with_imported,
)

F = TypeVar("F", bound=Callable[..., Any])

ZERO = cast(int, np.int64(0))
"""For kernels that hand a zero on: for a literal one, the callee would be compiled once more."""


def kernel_source_hash() -> str:
    """First 16 hex digits of a SHA-256 over Numba's version, all source files that define jitted kernels, and all
    files of ours that these import, one through another: a kernel freezes the constants it reads.
    """
    kernels = [path for _, path in source_files() if b"@jit" in path.read_bytes()]
    parts = ((path.relative_to(root()).as_posix(), digest_of(path)) for path in with_imported(kernels))
    return combined([("numba", numba.__version__), *parts])


def _own(folder: Path) -> bool:
    """Whether the folder can be written and is nobody else's to write: what lies in it is executed."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
    except OSError:
        return False
    mine = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
    return mine and os.access(folder, os.W_OK)


@cache
def cache_dir() -> Path:
    """Folder of compiled kernels: `EQUIPOISE_KERNEL_CACHE`, else the user's cache, else one for this process.

    A folder that belongs to someone else, or that others may write, is not used. Raises PermissionError for
    such a folder in `EQUIPOISE_KERNEL_CACHE`.
    """
    chosen = os.environ.get("EQUIPOISE_KERNEL_CACHE")
    base = Path(chosen) if chosen else Path(platformdirs.user_cache_dir("equipoise"))
    folder = base / "kernels" / kernel_source_hash()
    if _own(folder):
        return folder
    if chosen:
        problem = "not a folder that you alone can write"
        raise PermissionError(errno.EACCES, problem, f"EQUIPOISE_KERNEL_CACHE={chosen}")
    private = tempfile.mkdtemp(prefix="equipoise-kernels-")
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return Path(private)


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
    """With a cache of our own, so that other users of Numba in this process keep theirs.

    That of a kernel from elsewhere goes by all its sources (Numba looks at one file only).
    """
    file, folder = Path(cast(Any, function).__code__.co_filename), cache_dir()
    if function.__module__.partition(".")[0] != PACKAGE and file.is_file():
        folder /= combined(file_parts(file, function.__module__))
    usual = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
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

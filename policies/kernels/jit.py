"""The one jit decorator: fixed flags, and a kernel cache that cannot go stale.

Numba keys its on-disk cache by the path and the time of the kernel's source alone: editing a function that a kernel
calls, or a constant that it reads, would leave a stale result, and each copy of the sources would compile again. The
cache folder is therefore named by a hash over all of these, and a kernel in it is found by its module.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import inspect
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import platformdirs
from numba import types
from numba.core.caching import CacheImpl, _CacheLocator
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys

from equipoise.base.sources import PACKAGE, combined, digest_of, file_parts, root, source_files, with_imported

F = TypeVar("F", bound=Callable[..., Any])

ZERO = cast(int, np.int64(0))
"""A zero that kernels pass to functions also called from Python: a literal zero would compile them again."""


def kernel_source_hash() -> str:
    """First 16 hex digits of a SHA-256 over Numba's version, all source files that define jitted kernels, and all
    files of this package that these import, directly or not: a kernel freezes the constants it reads.
    """
    kernels = [path for _, path in source_files() if b"@jit" in path.read_bytes()]
    parts = ((path.relative_to(root()).as_posix(), digest_of(path)) for path in with_imported(kernels))
    return combined([("numba", numba.__version__), *parts])


def _own(folder: Path) -> bool:
    """Whether only this user can write or replace the folder: its content is executed."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = folder.resolve()  # behind links lies another one
        found = folder.stat()
        above = [parent.stat().st_mode for parent in folder.parents]
    except OSError:
        return False
    mine = not hasattr(os, "getuid") or (
        found.st_uid == os.getuid()
        and not found.st_mode & 0o022
        and not any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in above)
    )
    return mine and os.access(folder, os.W_OK)


@cache
def cache_dir() -> Path:
    """Folder of compiled kernels: `EQUIPOISE_KERNEL_CACHE`, else the user's cache, else one for this process.

    A folder that belongs to another user, or that others may write, is not used. Raises PermissionError for
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


_WAIT_S = 30.0  # for another process that compiles the same kernel
_LOOK_S = 0.02  # between two looks whether it is done

# No C function is ever asked for; without one, compiling takes 2 % less.
_FLAGS = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": False, "no_cfunc_wrapper": True}


def jit(function: F) -> F:
    """Compile `function` with the project's fixed flags.

    IEEE arithmetic (no fastmath) and one thread, because equal inputs must give equal bytes on every run;
    the interpreter lock is released.
    """
    return _compiled(function)


def jit_in_place(function: F) -> F:
    """As `jit`, for kernels that only use the arrays they are given; allocating one is a compile error.

    Without reference counting, which takes a fifth of the time of a kernel of a few microseconds with many array
    arguments.
    """
    return _compiled(function, _nrt=False)


def jit_in_place_for_both(function: F) -> F:
    """As `jit_in_place`, for functions called with the same types from Python and from kernels: compiled once for
    both."""
    return _compiled(function, for_both=True, _nrt=False)


def jit_inside(function: F) -> F:
    """As `jit_in_place`, inlined into each kernel that calls it.

    For functions called once a period with many arrays: passing them takes as long as the work on 64 workers.
    """
    return _compiled(function, _nrt=False, inline="always")


def _compiled(function: F, *, for_both: bool = False, **flags: Any) -> F:
    """With a cache of this package, so that other users of Numba in this process keep theirs.

    The cache of a kernel from another package depends on all its sources (Numba checks one file only).
    """
    file, folder = Path(cast(Any, function).__code__.co_filename), cache_dir()
    if function.__module__.partition(".")[0] != PACKAGE and file.is_file():
        folder /= combined(file_parts(file, function.__module__))
    kernel = _kept_in(folder, function, flags)
    if not for_both:
        _without_wrapper_inside(kernel, folder / "inside", flags)
    return cast(F, kernel)


class _ByContent(_CacheLocator):  # type: ignore[misc]
    """Where Numba keeps a kernel: in a folder that is named by the content of files, so no file need be compared."""

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        code = cast(Any, function).__code__
        self._folder, self._line = folder, code.co_firstlineno
        self._source = "" if Path(code.co_filename).is_file() else inspect.getsource(function)  # a notebook's cell

    def get_cache_path(self) -> str:
        """See Numba."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """See Numba."""
        return self._source

    def get_disambiguator(self) -> str:
        """See Numba: of functions of one name in one module."""
        return str(self._line)


class _Locate:
    """Numba asks this for the place of one function."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def from_function(self, function: Callable[..., Any], _: str) -> _ByContent:
        """See Numba."""
        return _ByContent(self._folder / function.__module__, function)


def _kept_in(folder: Path, function: Callable[..., Any], flags: dict[str, Any]) -> Any:
    usual = CacheImpl._locator_classes
    CacheImpl._locator_classes = [_Locate(folder)]
    try:
        kernel = numba.njit(**_FLAGS, **flags)(function)
    finally:
        CacheImpl._locator_classes = usual
    lock = folder / f"{function.__module__}.{function.__qualname__}.lock"
    kernel.compile = _one_at_a_time(kernel.compile, lock)
    kernel._cache.load_overload = partial(_load, kernel._cache)
    return kernel


def _load(kept: Any, signature: Any, context: Any) -> Any:
    """The kernel from disk, if there: what Numba needs to compile (0.3 s to import) is left to its compiler."""
    rtsys.initialize(context)
    return kept._load_overload(signature, context)


def _without_wrapper_inside(kernel: Any, folder: Path, flags: dict[str, Any]) -> None:
    """Let other kernels call `kernel` as machine code without a Python wrapper, cached in a separate folder.

    Most are called by kernels only: a wrapper that unpacks Python objects would be compiled for each, and optimised
    again in each caller. Nor are they compiled again for a literal or a short integer.
    """

    @cache
    def inside() -> Any:
        """The kernel without wrapper for other kernels, made at the first call."""
        made = _kept_in(folder, kernel.py_func, {**flags, "no_cpython_wrapper": True})
        made._compiling_counter = kernel._compiling_counter  # by which Numba knows a kernel that calls itself
        return made

    def get_call_template(arguments: Any, named: Any) -> Any:
        """As in Numba, which compiles missing signatures."""
        signature, given = kernel.fold_argument_types(arguments, named)
        made = kernel if tuple(given) in kernel.overloads else inside()
        template, *_ = type(kernel).get_call_template(made, tuple(map(_plain, given)), {})
        return template, signature, given, {}

    def get_overload(given: Any) -> Any:
        """As in Numba: the overload that `get_call_template` compiled."""
        return type(kernel).get_overload(inside() if tuple(given) in inside().overloads else kernel, given)

    kernel.get_call_template, kernel.get_overload = get_call_template, get_overload


def _plain(kind: types.Type) -> types.Type:
    """The type in which a kernel receives a value of this type from another kernel."""
    kind = types.unliteral(kind)
    return types.int64 if isinstance(kind, types.Integer) and kind.signed else kind


def _one_at_a_time(compiles: Callable[[Any], Any], lock: Path) -> Callable[[Any], Any]:
    """`compiles` under a lock: a second process waits, and loads the kernel that the first one compiled.

    Numba's own lock comes first, so that threads of one process never wait for each other's files; kernels call
    each other in one direction only, so neither do processes.
    """

    def compile_or_load(signature: Any) -> Any:
        """The kernel for these types, compiled here or by the process that held the lock."""
        with global_compiler_lock, _held(lock):
            return compiles(signature)

    return compile_or_load


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Hold the lock; without it after `_WAIT_S`, or where no file can be made, the kernel is compiled twice."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        for _ in range(int(_WAIT_S / _LOOK_S)):
            if _taken(descriptor):
                break
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def compiled_for(kernel: F, *arguments: Any) -> F:
    """The machine code of `kernel` for arguments of the types of these, called without type checks.

    The check takes two thirds of a call with arrays of records (0.3 us). Arguments of any other type would be
    misread: only for arrays that the caller creates itself.
    """
    return cast(F, cast(Any, kernel).compile(tuple(numba.typeof(argument) for argument in arguments)))


@jit
def _nothing() -> None:
    return None


@cache
def initialise() -> None:
    """Load what Numba needs before its first kernel (0.2 s), so that it is not part of later timings."""
    _nothing()

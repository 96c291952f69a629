"""Handling of Ctrl-C and SIGTERM: workers block Ctrl-C, the process that started them ends the work."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Processes started inside never receive SIGINT; this one receives it afterwards (if it has one thread).

    They inherit the mask before they import anything, so none ends with a traceback during imports.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # the mask belongs to the thread that hears of signals
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def heard_inside(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is a Ctrl-C that arrived inside a library.

    DuckDB's own Error, while it looks at a table's arrays, has the traceback of the KeyboardInterrupt as its text.
    Python 3.11 makes a RuntimeError of a Ctrl-C that comes while a class is being made (`__set_name__`), Numba a
    SystemError of one that comes while it looks for types. Any error after `terminable` has raised Ctrl-C is its
    consequence, except disk errors.
    """
    if _raised and not isinstance(error, OSError):
        return True
    while error is not None:
        name, room, told = type(error).__name__, type(error).__module__.split(".")[0], str(error)
        if (
            (name == "InterruptException" and room in ("duckdb", "_duckdb"))
            or (type(error) is RuntimeError and told == "Query interrupted")
            or (room in ("duckdb", "_duckdb", "pydantic_core") and "KeyboardInterrupt" in told)
            or isinstance(error.__cause__, KeyboardInterrupt)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def terminable() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM end work as Ctrl-C does, keeping results; yields a function that says whether it arrived.

    A signal is raised a moment later where Python cannot raise, as in a `__del__`, and where a library may be
    in the middle of machine code that expects no exception: Numba, DuckDB or PyTorch then end the process or
    drop what was raised, and llvmlite frees LLVM's memory twice.
    """
    global _raised
    _raised = came = False
    first_s: float | None = None

    def again() -> None:
        """Send the signal again, a moment later."""
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, as Python's own handler does, where it is safe."""
        global _raised
        nonlocal first_s
        if first_s is None:
            first_s = time.monotonic()
        if _in_llvm(frame) or (time.monotonic() < first_s + _PATIENCE_S and not _safe(frame)):
            again()
            return
        first_s, _raised = None, True
        raise KeyboardInterrupt

    def interrupt(number: int, frame: FrameType | None) -> None:
        """End the work as Ctrl-C does."""
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background jobs
            on_interrupt(number, frame)
        else:
            signal.raise_signal(signal.SIGINT)  # waits where `uninterrupted` holds it back

    def on_term(number: int, frame: FrameType | None) -> None:
        """End the work as Ctrl-C does."""
        nonlocal came
        came = True
        interrupt(number, frame)

    def on_unraisable(ignored: sys.UnraisableHookArgs) -> None:
        """Retry the exception that Python has dropped, a moment later."""
        if ignored.exc_type is KeyboardInterrupt:
            again()
        else:
            told(ignored)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread may choose
        return
    told, interrupted = sys.unraisablehook, signal.getsignal(signal.SIGINT)
    before: dict[int, Any] = {signal.SIGTERM: signal.signal(signal.SIGTERM, on_term)}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, interrupt)
    if interrupted is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, on_interrupt)
    sys.unraisablehook = on_unraisable
    try:
        yield lambda: came
    finally:
        _raised = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.unraisablehook = told
        for number, handler in before.items():
            signal.signal(number, handler)


def _safe(frame: FrameType | None) -> bool:
    """Whether the running code was called from Python only, so an exception ends it cleanly.

    The standard library counts as its caller, except while it loads a module, which may be for machine code. Code
    called by Numba, including the kernel cache, is called from machine code.
    """
    safe = None
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name == "__main__" and (spec := frame.f_globals.get("__spec__")) is not None:
            name = spec.name
        top = name.partition(".")[0]
        if top == "numba":
            return False
        if safe is None and name != __name__ and (name in _LOADING or top not in sys.stdlib_module_names):
            safe = top in _SAFE
        frame = frame.f_back
    return safe is not False


def _in_llvm(frame: FrameType | None) -> bool:
    """Whether a function of llvmlite has not returned yet."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("llvmlite."):
            return True
        frame = frame.f_back
    return False


_raised = False
"""Whether Ctrl-C, or SIGTERM, was raised within `terminable`."""
_SAFE = frozenset(("equipoise", "simpy", "click", "yaml", "dask", "distributed", "tornado", "__main__"))
"""Pure Python packages that may be interrupted anywhere. The last is the calling program."""
_LOADING = frozenset(
    f"{package}{part}" for package in ("_frozen_importlib", "importlib._bootstrap") for part in ("", "_external")
)
_AGAIN_S = 0.01
"""Time (s) after which a signal is tried again."""
_PATIENCE_S = 2.0
"""Longest time (s) that a signal waits for a safe place: most libraries return within milliseconds."""

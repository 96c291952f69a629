"""Ctrl-C reaches every process of the terminal; workers leave it to the process that started them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Processes that are started inside never see SIGINT; this one sees it afterwards (if it has one thread).

    They inherit the mask before they import anything, so none of them dies of it half-way with a traceback.
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
    """Whether an error, or one behind it, stands for Ctrl-C that came while DuckDB or pydantic worked.

    DuckDB's own Error, while it looks at a table's arrays, has the traceback of the KeyboardInterrupt as its text.
    Python 3.11 makes a RuntimeError of a Ctrl-C that comes while a class is being made (`__set_name__`).
    """
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
    """SIGTERM ends work as Ctrl-C does, with what was made kept; the function it gives says whether it came.

    A signal is sent again a moment later where Python can raise nothing, as in a `__del__` or a callback of a
    library, and where it must not: an exception in the middle of llvmlite frees LLVM's memory twice.
    """
    came = False

    def again() -> None:
        """Send the signal once more, a moment later."""
        number = signal.SIGTERM if came else signal.SIGINT
        timer = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, as Python's own handler does."""
        if _in_llvm(frame):
            again()
            return
        raise KeyboardInterrupt

    def on_term(number: int, frame: FrameType | None) -> None:
        """End the work as Ctrl-C does."""
        nonlocal came
        came = True
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background jobs
            on_interrupt(number, frame)
        else:
            signal.raise_signal(signal.SIGINT)  # waits where `uninterrupted` holds it back

    def on_unraisable(ignored: sys.UnraisableHookArgs) -> None:
        """Python drops the exception; a moment later this thread is where it can be raised."""
        if ignored.exc_type is KeyboardInterrupt:
            again()
        else:
            told(ignored)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread may choose
        return
    terminated, told = signal.signal(signal.SIGTERM, on_term), sys.unraisablehook
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, on_interrupt)
    sys.unraisablehook = on_unraisable
    try:
        yield lambda: came
    finally:
        sys.unraisablehook = told
        if interrupted is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupted)
        signal.signal(signal.SIGTERM, terminated)


def _in_llvm(frame: FrameType | None) -> bool:
    """Whether a function of llvmlite has not returned yet."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("llvmlite."):
            return True
        frame = frame.f_back
    return False


_AGAIN_S = 0.01
"""After which a signal is sent again."""

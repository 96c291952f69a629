"""Ctrl-C reaches every process of the terminal; workers leave it to the process that started them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
    """Whether an error, or one behind it, stands for Ctrl-C that came while DuckDB or pydantic worked."""
    while error is not None:
        name, room, told = type(error).__name__, type(error).__module__.split(".")[0], str(error)
        if (
            (name == "InterruptException" and room in ("duckdb", "_duckdb"))
            or (type(error) is RuntimeError and told == "Query interrupted")
            or (room == "pydantic_core" and "KeyboardInterrupt" in told)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def terminable() -> Iterator[Callable[[], bool]]:
    """SIGTERM ends work as Ctrl-C does, with what was made kept; the function it gives says whether it came.

    A signal that comes where Python can raise nothing, as in a `__del__` or a callback of a library, is sent again.
    """
    came = lost = False

    def on_signal(number: int, frame: object) -> None:
        """End the work as Ctrl-C does."""
        nonlocal came
        came = True
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background jobs
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)  # waits where `uninterrupted` holds it back

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread may choose
        return

    def on_unraisable(ignored: sys.UnraisableHookArgs) -> None:
        """Python drops the exception; a moment later this thread is where it can be raised."""
        nonlocal lost
        if ignored.exc_type is not KeyboardInterrupt:
            if not (lost and _is_half_closed(ignored)):
                told(ignored)
            return
        lost = True
        number = signal.SIGTERM if came else signal.SIGINT
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    before, told = signal.signal(signal.SIGTERM, on_signal), sys.unraisablehook
    sys.unraisablehook = on_unraisable
    try:
        yield lambda: came
    finally:
        if not lost:  # else what was interrupted half-way is still to go
            sys.unraisablehook = told
        signal.signal(signal.SIGTERM, before)


def _is_half_closed(ignored: sys.UnraisableHookArgs) -> bool:
    """Whether an object of LLVM goes a second time, because a signal came while it went the first time."""
    room = str(getattr(ignored.object, "__module__", ""))
    return ignored.exc_type is AttributeError and room.startswith("llvmlite.")


_AGAIN_S = 0.01
"""After which a signal is sent again."""

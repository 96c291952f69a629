"""Ctrl-C reaches every process of the terminal; workers leave it to the process that started them."""

from __future__ import annotations

import signal
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


@contextmanager
def terminable() -> Iterator[Callable[[], bool]]:
    """SIGTERM ends work as Ctrl-C does, with what was made kept; the function it gives says whether it came."""
    came = False

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
    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGTERM, before)

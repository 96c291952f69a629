"""A command of ours in a process of its own that gets a signal at its n-th call of a Python function.

`python -m tests.kills.at_call N SIGNAL ARGUMENT...`; where N is never reached, the last line of stderr is the
number of calls. Nothing has been imported yet: the signal also comes while modules load and classes are made.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

from equipoise.cli import main


def run(at: int, number: int, arguments: list[str]) -> int:
    """The exit code; a signal comes where one can: where a function begins, and where one of C has returned."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        """Raise the signal when it is time."""
        nonlocal calls
        if event in ("call", "c_return"):
            calls += 1
            if calls == at:
                sys.setprofile(None)
                os.kill(os.getpid(), number)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    sys.setprofile(count)
    code = main(arguments)
    sys.setprofile(None)
    if calls < at:
        print(calls, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), signal.Signals[sys.argv[2]], sys.argv[3:]))

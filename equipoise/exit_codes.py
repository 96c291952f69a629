"""How a process of ours can end: `docs/` and `--help` speak of these numbers."""

OK = 0
FAILURE = 1
"""It could not be done: a run failed, a disk is full, or we made a mistake."""
WRONG_INPUT = 2
"""Something that was typed or written is wrong."""
SOME_FAILED = 3
"""Some runs failed; the others are there."""
IMPOSSIBLE = 4
"""No size meets the targets, or a job fits into no memory."""
OUTSIDE = 5
"""It was done, and a figure lies outside of what was asked for."""
INTERRUPTED = 130
"""By Ctrl-C; as shells have it, 128 and the number of the signal."""
TERMINATED = 143
"""By SIGTERM, as a batch system sends it; what was made is kept, as after Ctrl-C."""

"""Exit codes of the commands, as named in `docs/` and `--help`."""

OK = 0
FAILURE = 1
"""Failure: a run failed, the disk is full, or an internal error."""
WRONG_INPUT = 2
"""Wrong input: an option or a file is not valid."""
SOME_FAILED = 3
"""Some runs failed; the others are complete."""
IMPOSSIBLE = 4
"""No size meets the targets, or a job does not fit into memory."""
OUTSIDE = 5
"""The command completed, but a result is outside the requested tolerance."""
INTERRUPTED = 130
"""Interrupted by Ctrl-C: 128 plus the signal number, as in shells."""
TERMINATED = 143
"""Ended by SIGTERM, e.g. from a batch system; results so far are kept, as after Ctrl-C."""

"""Source line and job of a stage's error, for its message."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import TracebackType

from equipoise.policies.observation import Observation


def place_of(stage: object, trace: TracebackType | None = None) -> str:
    """` (FILE:LINE)` where a stage is defined: the last line there of a traceback, else its `refine`.

    In a notebook the line of the cell; code from standard input or a string has Python's own name for it.
    """
    code = inspect.unwrap(type(stage).refine).__code__  # type: ignore[attr-defined]
    file, line = code.co_filename, code.co_firstlineno
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    cell = "ipykernel_" in file or file.startswith("<ipython-input")
    return f" (line {line} of its cell)" if cell else f" ({Path(file).name}:{line})"


def with_ids(problem: str, observation: Observation) -> str:
    """`job row 3` as `job 17 (row 3)`, where 17 is the job's number in its trace or scenario."""

    def named(found: re.Match[str]) -> str:
        """The replacement of one `job row`."""
        row = int(found[1])
        known = 0 <= row < len(observation.jobs)
        return f"job {observation.jobs.id[row]} (row {row})" if known else found[0]

    return re.sub(r"job row (-?\d+)", named, problem)

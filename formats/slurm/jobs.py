"""A table of Slurm jobs from any of its tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.formats.slurm.values import ENDED
from equipoise.formats.text.columns import Bools, Floats, Ints, Text
from equipoise.formats.text.tally import TextChange


@dataclass(frozen=True, eq=False)
class JobTable:
    """Jobs (one row per attempt) as equal-length columns, in the order of the file.

    Times are UTC seconds since 1970, NaN where there is none. Whole numbers are -1 (NOT_GIVEN) where the file
    does not say. A job that never started has its requested amounts.

    job_id: the text that users see (`12`, `12_3`, `12_[4-10%2]`, `12+1`). array_id: the job's number, common to
    all tasks of an array; array_index: the task; array_tasks: how many tasks not yet started the row stands for,
    else 1; het_part: part of a heterogeneous job. attempt: 1 for the first row of a job, more after each requeue.
    state: full name, without the user id of `CANCELLED by`. time_limit_s: inf for none, NaN for not given.
    gpu_type: as requested, in lower case, several joined by commas; as allocated where no request
    is given. gpu_type_given: of the allocation. memory_bytes: of all nodes together. line: where the row begins in
    its file. other: the columns that are none of these, by the name they have there.
    """

    job_id: Text
    array_id: Ints
    array_index: Ints
    array_tasks: Ints
    het_part: Ints
    attempt: Ints
    cluster: Text
    user: Text
    account: Text
    partition: Text
    qos: Text
    name: Text
    state: Text
    reason: Text
    node_list: Text
    submit_s: Floats
    eligible_s: Floats
    start_s: Floats
    end_s: Floats
    elapsed_s: Floats
    time_limit_s: Floats
    nodes: Ints
    cpus: Ints
    gpus: Ints
    gpu_type: Text
    gpu_type_given: Text
    memory_bytes: Ints
    priority: Floats
    line: Ints
    other: Mapping[str, Text] = field(default_factory=dict)
    changes: tuple[TextChange, ...] = ()

    def __len__(self) -> int:
        return len(self.line)

    @property
    def ended(self) -> Bools:
        """Rows in a state that is over. Shape (rows,)."""
        return self.state.floats(lambda state: float(state in ENDED)).astype(np.bool_)

    def take(self, rows: NDArray[Any]) -> JobTable:
        """These rows (a mask or indices); the changes stay those of the whole file."""
        columns: dict[str, Any] = {}
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, Text):
                columns[column.name] = value.take(rows)
            elif isinstance(value, np.ndarray):
                columns[column.name] = value[rows]
        other = {name: text.take(rows) for name, text in self.other.items()}
        return JobTable(**columns, other=other, changes=self.changes)

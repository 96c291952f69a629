"""`scontrol show job`, `show node` and `show partition`: blocks of `Key=Value`, in several lines or in one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from equipoise.formats.slurm.builder import JobTableBuilder
from equipoise.formats.slurm.config import SlurmPartition, partition_of
from equipoise.formats.slurm.jobs import JobTable
from equipoise.formats.slurm.lines import ConfigLine
from equipoise.formats.slurm.nodes import NodeRow, node_of_values
from equipoise.formats.slurm.queue import as_queue
from equipoise.formats.text.delimited import batch_of
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile

_KEY = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z0-9_/:]*)=")
_BEGINNINGS = ("JobId", "NodeName", "PartitionName")
_JOB_COLUMNS = {
    "JobName": "JobName",
    "JobState": "State",
    "Reason": "Reason",
    "Partition": "Partition",
    "Account": "Account",
    "QOS": "QOS",
    "SubmitTime": "Submit",
    "EligibleTime": "Eligible",
    "StartTime": "Start",
    "EndTime": "End",
    "RunTime": "Elapsed",
    "TimeLimit": "Timelimit",
    "NodeList": "NodeList",
    "NumCPUs": "NCPUS",
    "AllocTRES": "AllocTRES",
    "TRES": "AllocTRES",
    "ReqTRES": "ReqTRES",
    "TresPerNode": "TRES_PER_NODE",
    "Gres": "TRES_PER_NODE",
    "TresPerJob": "TRES_PER_JOB",
    "TresPerTask": "TRES_PER_TASK",
    "TresPerSocket": "TRES_PER_SOCKET",
    "NumTasks": "NUM_TASKS",
    "Priority": "Priority",
    "Restarts": "Restarts",
    "Nice": "Nice",
    "Dependency": "Dependency",
    "Features": "Features",
    "Reservation": "Reservation",
    "Requeue": "Requeue",
    "SegmentSize": "SegmentSize",
}


@dataclass(frozen=True)
class ScontrolBlock:
    """One job, node or partition: its keys as they stand there, and the line it begins at."""

    values: Mapping[str, str]
    line: int

    @property
    def kind(self) -> str:
        """The key it begins with: `JobId`, `NodeName` or `PartitionName`."""
        return next(key for key in _BEGINNINGS if key in self.values)


def read_blocks(source: str | Path | bytes, *, name: str = "") -> tuple[ScontrolBlock, ...]:
    """Every block of a `scontrol show` text. Raises FormatError when there is none."""
    file = TextFile(source, name)
    blocks: list[tuple[dict[str, str], int]] = []
    for first, lines in file.chunks(RowTally()):
        for number, line in enumerate(lines, first):
            pairs = _pairs(line)
            if pairs and pairs[0][0] in _BEGINNINGS:
                blocks.append((dict(pairs), number))
            elif pairs and blocks:
                for key, value in pairs:
                    blocks[-1][0].setdefault(key, value)
    if not blocks:
        raise file.error(0, "no block `JobId=`, `NodeName=` or `PartitionName=` of scontrol show")
    return tuple(ScontrolBlock(values, line) for values, line in blocks)


def _pairs(line: str) -> list[tuple[str, str]]:
    """`Key=Value` pairs of a line; a value goes on to the next key."""
    found = list(_KEY.finditer(line))
    ends = [match.start() for match in found[1:]] + [len(line)] if found else []
    return [(match[1], line[match.end() : end].strip()) for match, end in zip(found, ends, strict=True)]


def jobs_of(blocks: tuple[ScontrolBlock, ...], *, zone: str = "UTC") -> JobTable:
    """The jobs among the blocks, expected times left out. zone: of the clock of the times."""
    columns = list(dict.fromkeys(["JobID", "User", "NNodes", "SCT", "MIN_MEMORY", *_JOB_COLUMNS.values()]))
    rows, lines, tally = [], [], RowTally()
    for block in blocks:
        if block.kind == "JobId":
            cells = _job_cells(block.values)
            rows.append([cells.get(column, "") for column in columns])
            lines.append(block.line)
    builder = JobTableBuilder(columns, zone, tally)
    if rows:
        builder.add(batch_of(rows, lines))
    return as_queue(builder.finish(), tally)


def _job_cells(values: Mapping[str, str]) -> dict[str, str]:
    cells: dict[str, str] = {}
    for key, column in _JOB_COLUMNS.items():
        if key in values and not cells.get(column):
            cells[column] = "" if values[key] in ("(null)", "N/A") else values[key]
    number = values["JobId"].split()[0] if values["JobId"].split() else ""
    array, task = values.get("ArrayJobId"), values.get("ArrayTaskId", "")
    if array:
        number = f"{array}_{task}" if task.isdigit() else f"{array}_[{task}]"
    elif values.get("HetJobId"):
        number = f"{values['HetJobId']}+{values.get('HetJobOffset', '0')}"
    cells["JobID"] = number
    cells["User"] = values.get("UserId", "").partition("(")[0]
    cells["SCT"] = values.get("ReqB:S:C:T", "").partition(":")[2]
    cells["NNodes"] = values.get("NumNodes", "").partition("-")[0]
    per_cpu = values.get("MinMemoryCPU")
    cells["MIN_MEMORY"] = f"{per_cpu}c" if per_cpu else values.get("MinMemoryNode", "")
    return cells


def nodes_of(blocks: tuple[ScontrolBlock, ...]) -> tuple[NodeRow, ...]:
    """The nodes among the blocks."""
    return tuple(node_of_values(block.values, block.line) for block in blocks if block.kind == "NodeName")


def partitions_of(blocks: tuple[ScontrolBlock, ...], *, name: str = "<input>") -> tuple[SlurmPartition, ...]:
    """The partitions among the blocks. Raises FormatError for a malformed host list."""
    found = []
    for block in blocks:
        if block.kind == "PartitionName":
            values = {key.lower(): "" if value == "(null)" else value for key, value in block.values.items()}
            line = ConfigLine(f"{name}:{block.line}", block.line, tuple(values.items()))
            found.append(partition_of(line, values))
    return tuple(found)

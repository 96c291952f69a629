"""Recognises the format of a file by its content, or describes it in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from equipoise.formats.fabric import UNDERLINE
from equipoise.formats.slurm.accounting import find_layout
from equipoise.formats.slurm.columns import canonical
from equipoise.formats.slurm.nodes import DATE
from equipoise.formats.slurm.queue import MONITOR
from equipoise.formats.slurm.tables import which_table
from equipoise.formats.text.csvfile import delimiter_of
from equipoise.formats.text.errors import shown
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import MOST_COLUMNS, TextFile
from equipoise.formats.traces.published import which_published

_HEAD, _HEAD_BYTES = 60, 8 << 20
"""Lines of a file that are looked at, in so many of its bytes."""
_LINE = 1 << 18
"""Characters of each that are."""

_JSON_KEYS = {
    "sacct-json": r'"(?:association|allocation_nodes)"\s*:|"jobs"\s*:\s*\[\s*\]',
    "squeue-json": r'"(?:job_state|tres_req_str)"\s*:',
    "nodes-json": r'"(?:nodes|sinfo)"\s*:\s*\[',
    "kueue": r'"apiVersion"\s*:',
    "philly-log": r'"attempts"\s*:',
    "kineto": r'"(?:traceEvents|schemaVersion)"\s*:',
}


@dataclass(frozen=True)
class Head:
    """The beginning of a file: `lines` without empty ones, `text` all of them."""

    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The lines, joined."""
        return "\n".join(self.lines)

    @property
    def title(self) -> str:
        """The first line that is neither a comment nor a `CLUSTER: name` of a query for several clusters."""
        return next((line for line in self.lines if not re.match(r"\s*#|CLUSTER: \S+$", line)), "")

    def begins(self, pattern: str) -> bool:
        """Whether a line begins with this."""
        return any(re.match(pattern, line, re.IGNORECASE) for line in self.lines)


_ONLY_SACCT = {"submit", "start", "end", "elapsed", "elapsedraw", "alloctres", "exitcode"}


def _is_queue(head: Head) -> bool:
    """squeue's header, or the columns that a monitor asks it for."""
    names = set(map(canonical, re.split(r"[|\s#,;]+", head.title)))
    if "jobid" in names or "jobarrayid" in names:
        upper = head.title.upper() == head.title and not names & _ONLY_SACCT
        return upper and bool(names & {"st", "state", "nodelist(reason)", "timeused", "time", "partition", "name"})
    layout = find_layout(head.lines, (), "", (MONITOR, (*MONITOR, "LAST_SCHED_EVAL")))
    return layout is not None and not layout.header


def _is_accounting(head: Head) -> bool:
    """sacct's layout; its own names have no underscores, those of other tables do."""
    layout = find_layout(head.lines)
    return layout is not None and not (layout.header and any("_" in column for column in layout.names))


def _is_sinfo(head: Head) -> bool:
    first = head.lines[1] if len(head.lines) > 1 and DATE.fullmatch(head.lines[0].strip()) else head.lines[0]
    names = set(map(canonical, re.split(r"[|\s#,;]+", first)))
    return (
        bool({"partition", "nodelist", "hostnames"} & names)
        and bool({"avail", "state"} & names)
        and not ({"jobid", "jobidraw", "name", "submit", "elapsed"} & names)
    )


def _is_swf(head: Head) -> bool:
    rows = [line for line in head.lines if not line.lstrip().startswith((";", "#"))]
    number = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?")
    return bool(rows) and all(len(parts := row.split()) == 18 and all(map(number.fullmatch, parts)) for row in rows[:5])


def _has_pai_columns(head: Head) -> str:
    """The PAI table without a header whose forms the first line has, "" for none."""
    cells = head.lines[0].split(",")
    state = r"(Terminated|Failed|Running|Waiting)"
    if len(cells) == 10 and re.fullmatch(state, cells[3]):
        return "pai-tasks"
    return "pai-jobs" if len(cells) == 6 and re.fullmatch(state, cells[3]) else ""


_TESTS: tuple[tuple[str, Callable[[Head], bool]], ...] = (
    ("nccl-topology", lambda head: head.begins(r"\s*<system\b") or "<system version" in head.text),
    ("kueue-generator", lambda head: head.begins(r"cohorts:") and "className" in head.text),
    ("kueue", lambda head: head.begins(r"(- )?\s*apiVersion:") or head.begins(r"kind:")),
    ("topology.yaml", lambda head: head.begins(r"-\s+topology:")),
    ("slurm-events", lambda head: head.begins(r"\s*-dt\s")),
    (
        "scontrol",
        lambda head: (
            head.begins(r"(JobId|NodeName|PartitionName)=\S+(\s|$)")
            and bool(re.search(r"\b(JobState|CPUTot|CoresPerSocket=\d+\s+CPUAlloc|TotalNodes|CPUAlloc)=", head.text))
        ),
    ),
    (
        "slurm.conf",
        lambda head: (
            head.begins(r"\s*(ClusterName|SlurmctldHost|ControlMachine|PartitionName)\s*=")
            or (head.begins(r"\s*NodeName=") and not re.search(r"\bName=", head.text, re.IGNORECASE))
        ),
    ),
    ("gres.conf", lambda head: head.begins(r"\s*(AutoDetect=|Name=\w+\s|NodeName=\S+\s.*\bName=)")),
    ("topology.conf", lambda head: head.begins(r"\s*(SwitchName|BlockName)=")),
    ("sacctmgr-script", lambda head: head.begins(r"(add|modify|remove)\s+(QOS|cluster|account|user)\b")),
    ("ibnetdiscover", lambda head: head.begins(r"(Switch|Ca)\s+\d+\s+\"") or head.begins(r"# Topology file")),
    ("nvidia-smi-topo", lambda head: head.begins(r"\s*GPU0\b.*\b(GPU1|CPU Affinity)")),
    ("sacctmgr-assoc", lambda head: which_table(head.title) == "sacctmgr-assoc"),
    ("sacctmgr-dump", lambda head: head.begins(r"(Cluster|Parent|Account)\s*-\s*\S")),
    ("sacctmgr-qos", lambda head: which_table(head.title) == "sacctmgr-qos"),
    ("swf", _is_swf),
    ("squeue", _is_queue),
    ("sinfo", _is_sinfo),
    ("sacct", _is_accounting),
    ("pai-tasks", lambda head: _has_pai_columns(head) == "pai-tasks"),
    ("pai-jobs", lambda head: _has_pai_columns(head) == "pai-jobs"),
)

_NODE_COLUMNS = ({"sn", "gpu", "model"}, {"node_name", "gpu_capacity_num"})
PUBLISHED_FORMATS = ("philly", "helios", "acme", "pai-tasks", "pai-jobs", "openb-pods", "dlrm", "spot")
FORMATS = tuple(sorted({*(name for name, _ in _TESTS), *_JSON_KEYS, *PUBLISHED_FORMATS, "trace-nodes"}))
"""Every name that `recognise` can give."""


def recognise(source: str | Path | bytes, *, name: str = "") -> str:
    """The format of a file, one of FORMATS.

    Raises FormatError, one line on what the file looks like (delimiter and columns), when it is none of them.
    """
    file = TextFile(source, name, head_bytes=_HEAD_BYTES)
    lines: list[str] = []
    for _, chunk in file.chunks(RowTally()):
        lines += [line for line in chunk if line.strip()]
        if len(lines) >= _HEAD or sum(map(len, lines)) > 1 << 20:
            break
    if not lines:
        raise file.error(0, "empty")
    if not re.match(r"\s*[\[{<]|[^=]{0,200}=", lines[0]):  # no list of a configuration's nodes
        marks = delimiter_of(lines[0])
        file.check_width(lines[0].count(marks) if marks else len(lines[0].split(None, MOST_COLUMNS)))
    head = Head(tuple(UNDERLINE.sub("", line[:_LINE]) for line in lines[:_HEAD]))
    found = _json(head, lines) if head.lines[0].lstrip()[:1] in ("{", "[") else _text(head)
    if not found:
        raise file.error(0, f"not a known format: {looks_like(head.lines)}")
    return found


def _text(head: Head) -> str:
    cells = [cell.strip() for cell in head.lines[0].split(delimiter_of(head.lines[0]) or ",")]
    published = which_published(cells)
    if any(names <= set(cells) for names in _NODE_COLUMNS):
        return "trace-nodes"
    return published or next((label for label, test in _TESTS if test(head)), "")


def _json(head: Head, lines: list[str]) -> str:
    text = "\n".join(lines)[: 1 << 20]
    return next((label for label, key in _JSON_KEYS.items() if re.search(key, text)), "")


def looks_like(lines: tuple[str, ...]) -> str:
    """One phrase on a file that is none of the formats."""
    first = lines[0]
    if first.lstrip()[:1] in ("{", "["):
        keys = list(dict.fromkeys(re.findall(r'"([^"\n]{1,40})"\s*:', "\n".join(lines))))[:8]
        return f"JSON with the keys {', '.join(keys)}" if keys else "JSON without keys"
    if first.lstrip().startswith("<"):
        return f"XML that begins with {shown(first.strip())}"
    mark = delimiter_of(first)
    if not mark:
        return f"text that begins with {shown(first.strip())}"
    cells = [cell.strip() for cell in first.split(mark)]
    same = sum(line.count(mark) == first.count(mark) for line in lines)
    more = f" and {len(cells) - 8} more" if len(cells) > 8 else ""
    title = ", ".join(cell[:24] for cell in cells[:8])
    return f"{len(cells)} columns cut by {mark!r} in {same} of the first {len(lines)} lines: {title}{more}"

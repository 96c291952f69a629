"""Nodes from `sinfo` and `scontrol show node`, as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.formats.slurm.columns import canonical
from equipoise.formats.slurm.hostlist import expand_hosts, split_list
from equipoise.formats.slurm.json_output import plain_number
from equipoise.formats.slurm.values import NOT_GIVEN, gres_by_type, gres_gpus, tres_gpus, whole
from equipoise.formats.text.delimited import header_delimiter
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.jsonfile import first_of, load_json
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile

_STATES = {
    "ALLOC": "ALLOCATED",
    "COMP": "COMPLETING",
    "DRAIN": "DRAINED",
    "DRNG": "DRAINING",
    "FAILG": "FAILING",
    "FUTR": "FUTURE",
    "MIX": "MIXED",
    "PLND": "PLANNED",
    "POW_DN": "POWERING_DOWN",
    "POW_UP": "POWERING_UP",
    "RESV": "RESERVED",
    "UNK": "UNKNOWN",
    "BOOT": "REBOOT",
    "NPC": "PERFCTRS",
}
_MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN_PENDING",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_PENDING",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_KNOWN_TEXT = (
    "avail partition nodes nodelist state statelong statecompact cpus memory gres hostnames nodehost timelimit "
    "features weight cpus(a/i/o/t) nodes(a/i) freemem reason sockets cores threads tmpdisk activefeatures nodeaddr"
)
_KNOWN = frozenset(_KNOWN_TEXT.split())
DATE = re.compile(r"\w{3} \w{3} +\d+ [\d:]{8} \d{4}")
"""The first line of `sinfo --long`."""
_NEEDED = frozenset({"state", "partition", "avail", "statelong", "statecompact"})


@dataclass(frozen=True)
class NodeRow:
    """Nodes of one row: one node of `scontrol`, some of one partition and state of `sinfo`.

    count: how many nodes (the names may be cut short or absent). state: base state in long form and upper case;
    flags: what else holds (`DRAIN`, `NOT_RESPONDING`). cpus, memory_bytes, gpus: of each node. Whole numbers are
    NOT_GIVEN (-1) where the file does not say. line: of the file, or the place in a JSON list.
    """

    names: tuple[str, ...]
    count: int
    partitions: tuple[str, ...]
    state: str
    flags: tuple[str, ...]
    cpus: int
    memory_bytes: int
    gpus: int
    gpus_allocated: int
    gpu_type: str
    features: tuple[str, ...]
    reason: str
    line: int
    by_type: tuple[tuple[str, int], ...] = ()


def parse_node_state(text: str) -> tuple[str, tuple[str, ...]]:
    """(base state, flags) of `drain*`, `idle~`, `IDLE+DRAIN+POWERED_DOWN`."""
    text = text.strip().upper()
    flags = []
    while text and text[-1] in _MARKS:
        flags.append(_MARKS[text[-1]])
        text = text[:-1]
    base, *more = text.split("+")
    return _STATES.get(base, base), (*filter(None, more), *flags)


def read_sinfo(source: str | Path | bytes, *, columns: Sequence[str] = (), name: str = "") -> tuple[NodeRow, ...]:
    """Rows of a `sinfo` text. columns: where it has no header. Raises FormatError when it is no such text."""
    file = TextFile(source, name)
    lines = [(k, line) for k, line in enumerate(file.text(RowTally()).split("\n"), 1) if line.strip()]
    lines = [(k, line) for k, line in lines if not line.startswith("CLUSTER: ") and not DATE.fullmatch(line.strip())]
    if not lines:
        raise file.error(0, "empty: sinfo output with its header is needed")
    first = lines[0][1]
    mark = header_delimiter(first, lambda text: canonical(text) in _KNOWN) if not columns else "|"
    mark = "" if mark.isspace() and mark != "\t" else mark
    header = [canonical(name) for name in columns or (first.split(mark) if mark else first.split())]
    if len(_KNOWN.intersection(header)) < 2 or not _NEEDED.intersection(header):
        raise file.error(lines[0][0], "not sinfo output: the line PARTITION AVAIL ... STATE, or columns=, is needed")
    rows = []
    for number, line in lines[0 if columns else 1 :]:
        cells = line.split(mark) if mark else line.split(None, len(header) - 1)
        cell = dict(reversed(list(zip(header, map(str.strip, cells), strict=False))))  # of two, the first
        if list(map(canonical, cells)) == header:
            continue
        try:
            rows.append(_row(cell, number))
        except FormatError as error:
            raise file.error(number, str(error)) from error
    return tuple(rows)


def node_of_values(values: Mapping[str, str], line: int) -> NodeRow:
    """A node from the keys of `scontrol show node`. Raises FormatError for a malformed name."""
    return _row({canonical(key): value.replace("(null)", "") for key, value in values.items()}, line)


def read_nodes_json(source: str | Path | bytes, *, name: str = "") -> tuple[NodeRow, ...]:
    """Nodes of `scontrol show node --json` or `sinfo --json`. Raises FormatError."""
    file = TextFile(source, name)
    value = load_json(file, RowTally())
    rows = first_of(value, ("nodes", "sinfo"))
    if not isinstance(rows, list):
        raise file.error(0, "JSON without a list `nodes` or `sinfo`")
    try:
        return tuple(_row(_cells(row), place) for place, row in enumerate(rows, 1) if isinstance(row, dict))
    except FormatError as error:
        raise file.error(0, str(error)) from error


_JSON_KEYS = {
    "nodename": ("nodes.nodes", "name", "hostname"),
    "nodes": ("nodes.total",),
    "state": ("node.state", "state"),
    "gres": ("gres.total", "gres"),
    "gresused": ("gres.used", "gres_used"),
    "partition": ("partition.name", "partitions"),
    "features": ("features.total", "features.active", "features"),
    "memory": ("memory.maximum", "memory.minimum", "real_memory"),
    "cpus": ("cpus.maximum", "cpus.minimum", "cpus"),
    "reason": ("reason.description", "reason"),
}
"""Where a node, or a group of nodes of newer `sinfo`, has what the columns of the texts tell."""


def _cells(row: Any) -> dict[str, str]:
    """A node of JSON by the names of the columns."""
    cells = {}
    for column, keys in _JSON_KEYS.items():
        value = first_of(row, keys)
        number = plain_number(value)
        if isinstance(value, list):
            cells[column] = ("+" if column == "state" else ",").join(map(str, value))
        elif number is not None or isinstance(value, str):
            cells[column] = str(value if number is None else number)
    if "cpus" not in cells and len(first_of(row, ("nodes.nodes",)) or ()) == 1:
        cells["cpus"] = str(plain_number(first_of(row, ("cpus.total",))))
    return cells


def _row(cell: Mapping[str, str], line: int) -> NodeRow:
    """A row from its columns or keys by their canonical names. Raises FormatError for a malformed host list."""

    def first(*names: str) -> str:
        """What stands under the first of these names that is there."""
        return next((cell[name] for name in names if name in cell), "")

    names = expand_hosts(first("nodelist", "hostnames", "nodehost", "nodename"))
    state, flags = parse_node_state(first("state", "statelong", "statecompact"))
    gpus, kind = gres_gpus(first("gres"))
    configured, configured_kind = tres_gpus(first("cfgtres"))
    used = gres_gpus(first("gresused"))[0] if "gresused" in cell else NOT_GIVEN
    if "alloctres" in cell:
        used = max(tres_gpus(cell["alloctres"])[0], 0)
    memory_mb, total = whole(first("memory", "realmemory").rstrip("+")), whole(first("nodes"))
    return NodeRow(
        names=names,
        count=total if total >= 0 else len(names),
        partitions=tuple(part.rstrip("*") for part in split_list(first("partition", "partitions"))),
        state=state,
        flags=flags,
        cpus=whole(first("cpus", "cputot").rstrip("+")),
        memory_bytes=memory_mb * 2**20 if memory_mb >= 0 else NOT_GIVEN,
        gpus=gpus if gpus >= 0 else configured,
        gpus_allocated=used,
        gpu_type=kind or configured_kind,
        features=tuple(split_list(first("availfeatures", "availablefeatures", "features"))),
        reason=first("reason"),
        line=line,
        by_type=gres_by_type(first("gres")),
    )

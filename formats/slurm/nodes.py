"""Nodes as `sinfo` and `scontrol show node` tell of them, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.formats.slurm.columns import canonical
from equipoise.formats.slurm.hostlist import expand_hosts, split_list
from equipoise.formats.slurm.json_output import plain_number
from equipoise.formats.slurm.values import NOT_GIVEN, gres_gpus, parse_tres, tres_gpus, tres_number, whole
from equipoise.formats.text.delimited import header_delimiter
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.jsonfile import first_of, load_json, path
from equipoise.formats.text.tally import Tally
from equipoise.formats.text.textfile import TextFile

_STATES = {
    "ALLOC": "ALLOCATED", "COMP": "COMPLETING", "DRAIN": "DRAINED", "DRNG": "DRAINING", "FAILG": "FAILING",
    "FUTR": "FUTURE", "MIX": "MIXED", "PLND": "PLANNED", "POW_DN": "POWERING_DOWN", "POW_UP": "POWERING_UP",
    "RESV": "RESERVED", "UNK": "UNKNOWN", "BOOT": "REBOOT", "NPC": "PERFCTRS",
}  # fmt: skip
_MARKS = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN_PENDING", "%": "POWERING_DOWN",
    "$": "MAINTENANCE", "@": "REBOOT_PENDING", "^": "REBOOT_ISSUED", "-": "PLANNED",
}  # fmt: skip
_KNOWN_TEXT = (
    "avail partition nodes nodelist state statelong statecompact cpus memory gres hostnames nodehost timelimit "
    "features weight cpus(a/i/o/t) nodes(a/i) freemem reason sockets cores threads tmpdisk activefeatures nodeaddr"
)
_KNOWN = frozenset(_KNOWN_TEXT.split())
_NEEDED = frozenset({"state", "partition", "avail", "statelong", "statecompact"})


@dataclass(frozen=True)
class NodeRow:
    """Nodes of one row: one node of `scontrol`, some of one partition and state of `sinfo`.

    count: how many nodes (the names may be cut short or absent). state: base state in long form and upper case;
    flags: what else holds (`DRAIN`, `NOT_RESPONDING`). cpus, memory_bytes, gpus: of each node. Whole numbers are
    NOT_GIVEN (-1) where the file does not say. other: the remaining columns. line: of the file, or the place in a
    JSON list.
    """

    names: tuple[str, ...]
    count: int
    partitions: tuple[str, ...]
    state: str
    flags: tuple[str, ...]
    cpus: int
    cpus_allocated: int
    memory_bytes: int
    gpus: int
    gpus_allocated: int
    gpu_type: str
    features: tuple[str, ...]
    weight: int
    reason: str
    other: Mapping[str, str]
    line: int


def parse_node_state(text: str) -> tuple[str, tuple[str, ...]]:
    """(base state, flags) of `drain*`, `idle~`, `IDLE+DRAIN+POWERED_DOWN`."""
    text = text.strip().upper()
    flags = []
    while text and text[-1] in _MARKS:
        flags.append(_MARKS[text[-1]])
        text = text[:-1]
    base, *more = text.split("+")
    return _STATES.get(base, base), (*filter(None, more), *flags)


def read_sinfo(
    source: str | Path | bytes, *, columns: Sequence[str] = (), name: str = ""
) -> tuple[NodeRow, ...]:
    """Rows of a `sinfo` text. columns: where it has no header. Raises FormatError when it is no such text."""
    file = TextFile(source, name)
    lines = file.text(Tally()).split("\n")
    begin = next((k for k, line in enumerate(lines) if line.strip()), len(lines))
    if begin == len(lines):
        raise file.error(0, "empty: sinfo output with its header is needed")
    mark = header_delimiter(lines[begin], lambda text: canonical(text) in _KNOWN) if not columns else "|"
    mark = "" if mark.isspace() and mark != "\t" else mark
    header = list(columns) or (lines[begin].split(mark) if mark else lines[begin].split())
    names = set(map(canonical, header))
    if len(names & _KNOWN) < 2 or not names & _NEEDED:
        raise file.error(
            begin + 1, "not sinfo output: the line PARTITION AVAIL ... STATE, or columns=, is needed"
        )
    rows = []
    for number, line in enumerate(lines[begin + (not columns) :], begin + 1 + (not columns)):
        if line.strip():
            cells = line.split(mark) if mark else line.split(None, len(header) - 1)
            rows.append(_sinfo_row(file, header, cells, number))
    return tuple(rows)


def _sinfo_row(file: TextFile, header: Sequence[str], cells: Sequence[str], line: int) -> NodeRow:
    cell: dict[str, str] = {}
    for column, text in zip(header, cells, strict=False):
        cell.setdefault(canonical(column), text.strip())
    try:
        names = expand_hosts(cell.get("nodelist", cell.get("hostnames", cell.get("nodehost", ""))))
    except FormatError as error:
        raise file.error(line, str(error)) from error
    state, flags = parse_node_state(cell.get("state", cell.get("statelong", cell.get("statecompact", ""))))
    gpus, kind = gres_gpus(cell.get("gres", ""))
    used, _ = gres_gpus(cell.get("gresused", ""))
    memory_mb = whole(cell.get("memory", "").rstrip("+"))
    total = whole(cell.get("nodes", ""))
    own = {
        "nodelist",
        "hostnames",
        "nodehost",
        "state",
        "gres",
        "gresused",
        "memory",
        "partition",
        "cpus",
        "nodes",
    }
    return NodeRow(
        names=names,
        count=total if total >= 0 else len(names),
        partitions=tuple(part.rstrip("*") for part in split_list(cell.get("partition", ""))),
        state=state,
        flags=flags,
        cpus=whole(cell.get("cpus", "").rstrip("+")),
        cpus_allocated=whole(cell.get("cpus(a/i/o/t)", "").split("/")[0]),
        memory_bytes=memory_mb * 2**20 if memory_mb >= 0 else NOT_GIVEN,
        gpus=gpus,
        gpus_allocated=used,
        gpu_type=kind,
        features=tuple(split_list(cell.get("availfeatures", cell.get("features", "")))),
        weight=whole(cell.get("weight", "")),
        reason=cell.get("reason", ""),
        other={key: value for key, value in cell.items() if key not in own},
        line=line,
    )


def node_of_values(values: Mapping[str, str], line: int) -> NodeRow:
    """A node from the keys of `scontrol show node`."""
    state, flags = parse_node_state(values.get("State", ""))
    gpus, kind = gres_gpus(values.get("Gres", ""))
    configured, types = tres_gpus(values.get("CfgTRES", ""))
    allocated = parse_tres(values.get("AllocTRES", ""))
    memory_mb = whole(values.get("RealMemory", ""))
    cpus = tres_number(allocated, "cpu")
    own = {
        "NodeName",
        "State",
        "Gres",
        "Partitions",
        "CPUTot",
        "RealMemory",
        "Reason",
        "Weight",
        "AvailableFeatures",
    }
    return NodeRow(
        names=(values["NodeName"],),
        count=1,
        partitions=tuple(split_list(values.get("Partitions", ""))),
        state=state,
        flags=flags,
        cpus=whole(values.get("CPUTot", "")),
        cpus_allocated=whole(values.get("CPUAlloc", "")) if cpus is None else int(cpus),
        memory_bytes=memory_mb * 2**20 if memory_mb >= 0 else NOT_GIVEN,
        gpus=gpus if gpus >= 0 else configured,
        gpus_allocated=tres_gpus(values["AllocTRES"])[0]
        if allocated
        else (0 if "AllocTRES" in values else NOT_GIVEN),
        gpu_type=kind or types,
        features=tuple(
            split_list(values.get("AvailableFeatures", values.get("Features", "")).replace("(null)", ""))
        ),
        weight=whole(values.get("Weight", "")),
        reason=values.get("Reason", ""),
        other={key: value for key, value in values.items() if key not in own},
        line=line,
    )


def read_nodes_json(source: str | Path | bytes, *, name: str = "") -> tuple[NodeRow, ...]:
    """Nodes of `scontrol show node --json` or `sinfo --json`. Raises FormatError."""
    file = TextFile(source, name)
    value = load_json(file, Tally())
    rows = first_of(value, ("nodes", "sinfo"))
    if not isinstance(rows, list):
        raise file.error(0, "JSON without a list `nodes` or `sinfo`")
    try:
        return tuple(_json_node(row, place) for place, row in enumerate(rows, 1) if isinstance(row, dict))
    except FormatError as error:
        raise file.error(0, str(error)) from error


def _json_node(row: Any, place: int) -> NodeRow:
    """A node, or a group of nodes of newer `sinfo`."""
    names = first_of(row, ("nodes.nodes", "name", "hostname"))
    listed = ",".join(map(str, names)) if isinstance(names, list) else str(names or "")
    states = first_of(row, ("node.state", "state"))
    state = "+".join(map(str, states)) if isinstance(states, list) else str(states or "")
    base, flags = parse_node_state(state)
    gpus, kind = gres_gpus(_text(first_of(row, ("gres.total", "gres"))))
    used, _ = gres_gpus(_text(first_of(row, ("gres.used", "gres_used"))))
    partitions = first_of(row, ("partition.name", "partitions"))
    features = first_of(row, ("features.total", "features"))
    memory_mb = _whole(row, ("memory.maximum", "real_memory"))
    hosts = expand_hosts(listed)
    total = _whole(row, ("nodes.total",))
    return NodeRow(
        names=hosts,
        count=total if total >= 0 else len(hosts),
        partitions=_texts(partitions),
        state=base,
        flags=flags,
        cpus=_whole(row, ("cpus.maximum", "cpus")),
        cpus_allocated=_whole(row, ("cpus.allocated", "alloc_cpus")),
        memory_bytes=memory_mb * 2**20 if memory_mb >= 0 else NOT_GIVEN,
        gpus=gpus,
        gpus_allocated=used,
        gpu_type=kind,
        features=_texts(features),
        weight=_whole(row, ("weight.maximum", "weight")),
        reason=_text(first_of(row, ("reason.description", "reason"))),
        other={},
        line=place,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else tuple(split_list(_text(value)))


def _whole(row: Any, keys: Sequence[str]) -> int:
    for key in keys:
        number = plain_number(path(row, *key.split(".")))
        if number is not None and 0 <= number <= 10**12:
            return int(number)
    return NOT_GIVEN

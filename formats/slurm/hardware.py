"""`gres.conf`, `topology.conf`, `topology.yaml` and the QOS rows of `sacctmgr show qos`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.formats.slurm.hostlist import expand_hosts, split_list
from equipoise.formats.slurm.lines import ConfigLine, config_lines, hosts_of
from equipoise.formats.slurm.tables import QOS, read_table
from equipoise.formats.slurm.values import NOT_GIVEN, parse_tres, whole
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.jsonfile import path
from equipoise.formats.text.numbers import decimal, duration_s
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile, called
from equipoise.formats.text.yamlfile import load_documents


@dataclass(frozen=True)
class Gres:
    """Generic resources of some nodes (of every node where `nodes` is empty), from one line of `gres.conf`.

    count: as `Count` says, else the number of files. other: the remaining keys, `cores` and `links` among them.
    """

    nodes: tuple[str, ...]
    name: str
    type: str
    count: int
    other: Mapping[str, str]
    line: int


@dataclass(frozen=True)
class Switch:
    """A switch (or a block of nodes that a fast fabric joins) with the nodes and switches below it."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    other: Mapping[str, str]


@dataclass(frozen=True)
class SlurmTopology:
    """A topology: `tree` of switches, `block` or `flat`. block_sizes: nodes of an aggregate, small to large."""

    name: str
    kind: str
    switches: tuple[Switch, ...] = ()
    blocks: tuple[Switch, ...] = ()
    block_sizes: tuple[int, ...] = ()
    default: bool = False


@dataclass(frozen=True)
class SlurmQos:
    """A QOS with its limits; a limit that is not set is missing.

    limits: TRES amounts by column (`GrpTRES`, `MaxTRESPU` ...), numbers with binary suffixes left as text.
    counts: `MaxJobsPU` and the like. Times are seconds. other: every further column that is not empty.
    """

    name: str
    priority: int
    grace_time_s: float
    preempt: tuple[str, ...]
    preempt_mode: str
    flags: tuple[str, ...]
    usage_factor: float
    max_wall_s: float | None
    limits: Mapping[str, Mapping[str, str]]
    counts: Mapping[str, int]
    other: Mapping[str, str]


def read_gres_conf(source: str | Path | bytes, *, name: str = "") -> tuple[Gres, ...]:
    """Lines of `gres.conf` that give resources. Raises FormatError when none does, or for a malformed list."""
    lines = list(config_lines(source, RowTally(), name=name))
    found = tuple(_gres(line) for line in lines if line.get("name"))
    if not found and not any(line.get("autodetect") for line in lines):
        raise FormatError(f"{called(source, name)}: no line `Name=gpu ...` or `AutoDetect=...` of gres.conf")
    return found


def _gres(line: ConfigLine) -> Gres:
    files = hosts_of(line, line.get("file", line.get("multiplefiles")))
    count = whole(line.get("count"))
    own = ("nodename", "name", "type", "count", "file", "multiplefiles")
    return Gres(
        nodes=hosts_of(line, line.get("nodename")),
        name=line.get("name"),
        type=line.get("type"),
        count=count if count != NOT_GIVEN else max(len(files), 1),
        other={key: value for key, value in line.pairs if key not in own},
        line=line.line,
    )


def read_topology_conf(source: str | Path | bytes, *, name: str = "") -> SlurmTopology:
    """The tree or the blocks of a `topology.conf`. Raises FormatError without any, or for a malformed list."""
    switches, blocks = [], []
    sizes: tuple[int, ...] = ()
    for line in config_lines(source, RowTally(), name=name):
        if line.get("switchname"):
            switches.append(_switch(line, "switchname"))
        elif line.get("blockname"):
            blocks.append(_switch(line, "blockname"))
        elif line.get("blocksizes"):
            sizes = _sizes(line.get("blocksizes"))
    if not switches and not blocks:
        raise FormatError(f"{called(source, name)}: no line `SwitchName=` or `BlockName=` of topology.conf")
    return SlurmTopology("", "tree" if switches else "block", tuple(switches), tuple(blocks), sizes)


def _switch(line: ConfigLine, key: str) -> Switch:
    other = {k: value for k, value in line.pairs if k not in (key, "nodes", "switches")}
    switches = hosts_of(line, line.get("switches"))
    return Switch(line.get(key), hosts_of(line, line.get("nodes")), switches, other)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(size for size in map(whole, split_list(text)) if size != NOT_GIVEN)


def read_topology_yaml(source: str | Path | bytes, *, name: str = "") -> tuple[SlurmTopology, ...]:
    """The named topologies of a `topology.yaml` (Slurm 25.05 on). Raises FormatError."""
    file = TextFile(source, name)
    (documents,) = load_documents(file)[:1] or [None]
    if not isinstance(documents, list) or not all(isinstance(path(d, "topology"), str) for d in documents):
        raise file.error(0, "no list of `- topology: NAME`, which topology.yaml contains")
    return tuple(_yaml_topology(file, document) for document in documents)


def _yaml_topology(file: TextFile, document: dict[str, Any]) -> SlurmTopology:
    kind = next((kind for kind in ("tree", "block", "flat") if kind in document), "flat")
    sizes = path(document, "block", "block_sizes")
    try:
        return SlurmTopology(
            name=document["topology"],
            kind=kind,
            switches=_yaml_switches(path(document, "tree", "switches"), "switch"),
            blocks=_yaml_switches(path(document, "block", "blocks"), "block"),
            block_sizes=tuple(s for s in sizes if type(s) is int) if isinstance(sizes, list) else (),
            default=document.get("cluster_default") is True,
        )
    except FormatError as error:
        raise file.error(0, f"topology {document['topology']}: {error}") from error


def _yaml_switches(members: Any, key: str) -> tuple[Switch, ...]:
    found = [member for member in members if isinstance(member, dict)] if isinstance(members, list) else []
    return tuple(
        Switch(
            str(member.get(key, "")),
            expand_hosts(str(member.get("nodes") or "")),
            expand_hosts(str(member.get("children") or "")),
            {k: str(v) for k, v in member.items() if k not in (key, "nodes", "children")},
        )
        for member in found
    )


def read_qos(source: str | Path | bytes, *, name: str = "") -> tuple[SlurmQos, ...]:
    """Rows of `sacctmgr show qos`. Raises FormatError without its header."""
    file = TextFile(source, name)
    rows = read_table(file, QOS | {"name"})
    if not rows or "Name" not in rows[0]:
        raise file.error(1, "no header `Name|Priority|...` of `sacctmgr show qos -P`, or no row below it")
    return tuple(qos_of({key: value.strip() for key, value in row.items()}) for row in rows)


def qos_of(row: Mapping[str, str]) -> SlurmQos:
    """A QOS from its columns by name."""
    own = {"Name", "Priority", "GraceTime", "Preempt", "PreemptMode", "Flags", "UsageFactor", "MaxWall"}
    filled = {key: value.strip() for key, value in row.items() if value.strip() and key not in own}
    limits = {key: parse_tres(value) for key, value in filled.items() if "=" in value}
    counts = {key: whole(value) for key, value in filled.items() if key not in limits and whole(value) >= 0}
    factor = decimal(row.get("UsageFactor", ""))
    return SlurmQos(
        name=row.get("Name", "").strip(),
        priority=max(whole(row.get("Priority", "")), 0),
        grace_time_s=duration_s(row.get("GraceTime", "")) or 0.0,
        preempt=tuple(split_list(row.get("Preempt", ""))),
        preempt_mode=row.get("PreemptMode", ""),
        flags=tuple(split_list(row.get("Flags", ""))),
        usage_factor=1.0 if factor is None else factor,
        max_wall_s=duration_s(row.get("MaxWall", "")),
        limits=limits,
        counts=counts,
        other={key: value for key, value in filled.items() if key not in limits and key not in counts},
    )

"""Slurm's configuration and node lists, as a site's cluster."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from equipoise.formats.accelerators import GRES
from equipoise.formats.slurm.config import SlurmConfig, SlurmPartition
from equipoise.formats.slurm.hardware import Gres, SlurmTopology
from equipoise.formats.slurm.nodes import NodeRow
from equipoise.sim.loading.site.cluster import Site, SiteNodes, SiteSwitch, span
from equipoise.sim.loading.site.queues import add_scheduling

_SCHEDULING = (
    "priority",
    "sched",
    "preempt",
    "select",
    "fairshare",
    "accountingstorageenforce",
    "enforcepart",
    "maxjob",
    "maxarray",
    "jobrequeue",
    "overtimelimit",
    "topology",
)

_NOT_UP = ("DOWN", "DRAIN", "FAIL", "MAINT", "UNKNOWN", "NOT_RESPONDING", "RESERVED")


def add_config(site: Site, config: SlurmConfig) -> None:
    """Add nodes, partitions, priorities and backfill; other settings become comments."""
    site.name = config.cluster or site.name
    lines_of = Counter(name for line in config.nodes for name in line.names)
    site.add_aside("Nodes defined twice: the first applies", *(name for name, lines in lines_of.items() if lines > 1))
    unread = [f"{span(line.names)}: {part}" for line in config.nodes for part in line.gres_unread]
    site.add_aside("Gres not understood, taken as one GPU", *unread)
    for line in config.nodes:
        if line.state.upper().startswith("FUTURE"):
            site.add_aside("Nodes that are not there yet", f"{span(line.names)}: State={line.state}")
            continue
        memory = line.memory_bytes if line.memory_bytes > 0 else None
        site.add_nodes(SiteNodes(line.names, line.gpus, line.gpu_type, line.cpus, memory, by_type=line.by_type))
        if line.state.upper() not in ("UNKNOWN", "CLOUD", "IDLE"):
            site.add_aside("States of nodes", f"{line.names[0]} ...: {line.state}")
    used = add_scheduling(site, config)
    site.add_aside("Partitions", *filter(None, map(partition_line, config.partitions)))
    about = {k: v for k, v in config.settings.items() if k.startswith(_SCHEDULING)}
    site.add_aside("Scheduling", *(f"{key}={value}" for key, value in about.items() if key not in used))
    rest = sorted(set(config.settings) - set(about) - {"clustername"})
    site.add_aside("Other settings of slurm.conf, by name only", *([", ".join(rest)] if rest else []))
    site.add_aside("Other lines of slurm.conf", *(" ".join(f"{k}={v}" for k, v in o.pairs) for o in config.other))
    weights = {
        f"{n.names[0]} ... weight {n.weight}, features {','.join(n.features)}"
        for n in config.nodes
        if n.names and (n.weight != 1 or n.features)
    }
    site.add_aside("Weights and features of nodes", *sorted(weights))
    for change in config.changes:
        site.add_aside("While reading slurm.conf", f"{change.count} {change.reason} (line {change.first_line})")


def partition_line(partition: SlurmPartition) -> str:
    """A comment on the settings of a partition without a counterpart."""
    told = {
        "taken as up, although State is": "" if partition.state.upper() == "UP" else partition.state,
        "longest": _hours(partition.max_time_s),
        "default time": _hours(partition.default_time_s),
        "preemption": "" if partition.preempt_mode.upper() == "OFF" else partition.preempt_mode,
        **{key: value for key, value in partition.other.items() if key != "allowaccounts" and value != "EXCLUSIVE"},
    }
    listed = ", ".join(f"{key} {value}" for key, value in told.items() if value)
    return f"{partition.name}: {listed}" if listed else ""


def _hours(time_s: float | None) -> str:
    return "" if time_s is None else "without limit" if math.isinf(time_s) else f"{time_s / 3600:g} h"


def add_gres(site: Site, lines: Sequence[Gres]) -> None:
    """GPUs of gres.conf, where slurm.conf gives nodes none; types where it gives no type."""
    found: dict[str, tuple[int, str]] = {}
    every = (0, "")
    for line in lines:
        if line.name.lower() not in GRES:
            where = f"{len(line.nodes) or 'all'} nodes"
            site.add_aside("Other generic resources", f"{line.name} of {where}: {line.count}")
            continue
        more = ", ".join(f"{key} {value}" for key, value in line.other.items())
        site.add_aside("More on gres.conf", *([f"{span(line.nodes) or 'all nodes'}: {more}"] if more else []))
        for node in line.nodes:
            before, kind = found.get(node, (0, ""))
            found[node] = before + line.count, kind or line.type or _kind(line)
        every = every if line.nodes else (every[0] + line.count, every[1] or line.type or _kind(line))
    made: list[SiteNodes] = []
    for group in site.nodes:
        told: dict[tuple[int, str], list[str]] = {}
        for name in group.names:
            told.setdefault(found.get(name, every), []).append(name)
        parts = [replace(group, names=tuple(names), count=0) for names in told.values()] if told else [group]
        for part, (counted, kind) in zip(parts, told, strict=False):
            if part.gpus and counted and part.gpus != counted:
                both = f"{part.gpus} GPUs in slurm.conf, {counted} in gres.conf"
                site.add_aside("Contradictions", f"{part.names[0]} ...: {both}: the first applies")
            part.gpus, part.gpu_type = part.gpus or counted, part.gpu_type or kind
        made += parts
    site.nodes = made


def _kind(line: Gres) -> str:
    """The GPU type given only by the resource name, such as `npu`."""
    return "" if line.name == "gpu" else line.name


def add_topology(site: Site, topologies: Sequence[SlurmTopology]) -> None:
    """Switches or blocks of the default topology, the first of several."""
    chosen = next((t for t in topologies if t.default), topologies[0])
    if chosen.kind == "flat":
        return
    made = chosen.switches if chosen.kind == "tree" else chosen.blocks
    nodes = {part.name: part.nodes for part in made}
    for part in made:
        further = {node for name in part.switches for node in nodes.get(name, ())}
        own = tuple(node for node in part.nodes if node not in further)  # `scontrol show topology` lists all below
        site.switches.append(SiteSwitch(part.name, own, part.switches))
    if chosen.kind == "block":
        site.add_aside(
            "Blocks",
            "a block is simulated as a rack; for the fast fabric between its nodes give topology 'tree' with 'nvlink'",
            f"block sizes {', '.join(map(str, chosen.block_sizes)) or 'not given'}",
        )
    site.add_aside("Other topologies", *(t.name for t in topologies if t is not chosen))
    for part in made:
        more = ", ".join(f"{key}={value}" for key, value in part.other.items())
        site.add_aside("More on switches", *([f"{part.name}: {more}"] if more else []))


def add_nodes(site: Site, rows: Sequence[NodeRow]) -> None:
    """Nodes of `sinfo` or `scontrol show node`; a repeated node counts once."""
    seen: set[str] = set()
    equal: dict[tuple[Any, ...], list[str]] = {}
    told: dict[str, list[str]] = {}
    for row in rows:
        if row.state == "FUTURE":
            site.add_aside("Nodes that are not there yet", f"{span(row.names)}: {row.state}")
            continue
        key = (max(row.gpus, 0), row.gpu_type, max(row.cpus, 0), max(row.memory_bytes, 0), row.by_type)
        if row.count > len(row.names):
            site.add_aside("Nodes without names", f"{row.count - len(row.names)} in state {row.state}: left out")
        new = [name for name in row.names if name not in seen]
        equal.setdefault(key, []).extend(new)
        seen.update(new)
        state = "+".join((row.state, *row.flags))
        if new and any(word in state for word in _NOT_UP):
            why = f": {row.reason}" if row.reason not in ("", "none") else ""
            site.add_aside("States of nodes, all taken to be up", f"{span(new)}: {state}{why}")
        if new and row.features:
            told.setdefault(",".join(row.features), []).extend(new)
    site.add_aside("Features of nodes", *(f"{span(names)}: {features}" for features, names in told.items()))
    for (gpus, kind, cpus, memory, by_type), names in equal.items():
        if names:
            site.add_nodes(SiteNodes(tuple(names), gpus, kind, cpus or None, memory or None, by_type=by_type))

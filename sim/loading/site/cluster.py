"""A site's cluster before it becomes a scenario: nodes, topology, and settings without a counterpart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from equipoise.formats.accelerators import is_slice
from equipoise.sim.scenario.tree import InputError

NIC_BYTES_PER_S = 12.5e9
"""Assumed where no file tells a network's rate: 100 Gbit/s."""

_KNOWN = (  # (pattern in the site's name, name in the catalogue, what makes it exact)
    ("gh200", "h100_sxm", "sxm"),
    ("h200", "h200_sxm", "sxm|h200$|141gb"),
    ("h100.*pcie", "h100_pcie", ""),
    ("h100", "h100_sxm", "sxm|hbm3"),
    ("h800", "h800", ""),
    ("h20", "h20", ""),
    ("gb300", "gb300", ""),
    ("gb200", "gb200", ""),
    ("b300", "b300", ""),
    ("b200", "b200", ""),
    ("a100.*40gb", "a100_sxm_40gb", "sxm"),
    ("a100", "a100_sxm_80gb", "sxm.*80gb"),
    ("v100", "v100_sxm2_32gb", "sxm2.*32gb"),
    ("l40s", "l40s", ""),
    ("a10", "a10", ""),
    ("t4", "t4", ""),
    ("mi300x", "mi300x", ""),
    ("mi325x", "mi325x", ""),
    ("mi355x", "mi355x", ""),
    ("rtx-?4090(?!-?(?:d|laptop))", "rtx_4090", ""),
)


def accelerator_of(kind: str) -> tuple[str, str]:
    """(name in the catalogue, what is guessed) of a GPU type as a site writes it; `generic` where there is none."""
    text = re.sub(r"[_\s]+", "-", kind.lower())
    for pattern, name, exact in _KNOWN:
        if re.search(f"(?:{pattern})(?![0-9])", text):
            sure = text == name.replace("_", "-") or re.search(exact, text)
            if "," in kind:
                return name, f"{kind} on one node: all taken as {name}"
            if is_slice(kind):
                return name, f"{kind} is a slice of a GPU (MIG): each counts as a whole {name} here"
            return name, "" if sure else f"{kind} taken as {name}: guessed"
    return ("generic", f"{kind} is not in the hardware profile: generic" if kind else "GPU type not given")


@dataclass
class SiteNodes:
    """Equal nodes by the site's names. None: not given. names may be empty where only `count` is known."""

    names: tuple[str, ...]
    gpus: int
    gpu_type: str = ""
    cores: int | None = None
    memory_bytes: float | None = None
    nic_bytes_per_s: float | None = None
    fabric_bytes_per_s: float | None = None
    count: int = 0
    remark: str = ""
    label: str = ""
    by_type: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        """Count the names."""
        self.count = self.count or len(self.names)


@dataclass(frozen=True)
class SiteSwitch:
    """A switch, a block or a group of rails, with the nodes and switches below it; uplink None: not given."""

    name: str
    nodes: tuple[str, ...]
    below: tuple[str, ...] = ()
    uplink_bytes_per_s: float | None = None


@dataclass
class Site:
    """All data of a site. aside: settings without a counterpart in a scenario, by heading.

    queues: the section `queues`; nodes in it are frozensets of the site's names until it is written. jobs: of the
    scenario's own list. extra: further sections. parts: names of the parts of nodes with several GPU types.
    """

    name: str = "site"
    nodes: list[SiteNodes] = field(default_factory=list)
    switches: list[SiteSwitch] = field(default_factory=list)
    policy: str = "easy"
    policy_why: str = "assumed: the files name no scheduler"
    aside: dict[str, list[str]] = field(default_factory=dict)
    queues: dict[str, Any] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, list[str]] = field(default_factory=dict)
    enforces_limits: bool = True

    def add_aside(self, heading: str, *lines: str) -> None:
        """List a setting without a counterpart."""
        if lines:
            self.aside.setdefault(heading, []).extend(lines)

    def add_nodes(self, told: SiteNodes) -> None:
        """Add nodes that no other file has given yet, or that it gave without GPUs."""
        known = {name: group for group in self.nodes for name in group.names}
        new = [name for name in told.names if name not in known or (told.gpus and not known[name].gpus)]
        if told.names and not new:
            return
        for group in self.nodes:
            if group.gpus != told.gpus and any(name in new for name in group.names):
                group.names = tuple(name for name in group.names if name not in new)
                group.count = len(group.names)
        self.nodes = [group for group in self.nodes if group.count]
        self.nodes.append(replace(told, names=tuple(new), count=0 if told.names else told.count))

    def count_cores(self) -> None:
        """Count each core as a GPU, for clusters without GPUs. Raises InputError where cores are not given."""
        for group in self.nodes:
            if not group.cores:
                name = group.label or span(group.names)
                raise InputError([f"{name}: the number of CPU cores is not given, --count cpus needs it"])
            group.gpus, group.gpu_type = group.cores, ""
            group.remark = f"each of its {group.cores} cores counts as a GPU"

    def only_gpus(self) -> None:
        """Set nodes without GPUs aside. Raises InputError when none is left."""
        without = [group for group in self.nodes if group.gpus < 1]
        self.add_aside(
            "Nodes without GPUs (--count cpus counts each core as a GPU)",
            *(f"{span(g.names) or g.label}: {g.count} nodes, {g.cores or '?'} cores" for g in without),
        )
        self.nodes = [group for group in self.nodes if group.gpus >= 1]
        if not self.nodes:
            cores = any(group.cores for group in without)
            raise InputError(
                [f"no node with GPUs in these files; {'--count cpus counts each core as a GPU' if cores else _GPUS}"]
            )

    def merge_equal(self) -> None:
        """Make one group of named nodes that differ in nothing else, as files with one line a node have them."""
        merged: dict[str, SiteNodes] = {}
        for group in self.nodes:
            key = repr(replace(group, names=(), count=1)) if group.names else f"{id(group)}"
            first = merged.setdefault(key, group)
            if first is not group:
                first.names += group.names
                first.count = len(first.names)
        self.nodes = list(merged.values())

    def part_kinds(self) -> None:
        """Make of nodes with GPUs of several types one group for each type; cores and memory go by GPUs."""
        made = []
        for group in self.nodes:
            counts = dict(group.by_type)
            if len(counts) < 2 or sum(counts.values()) != group.gpus or not group.names:
                made.append(group)
                continue
            self.add_aside("Nodes with several GPU types, one group for each type", f"{span(group.names)}: {counts}")
            for k, (kind, gpus) in enumerate(counts.items()):
                part = gpus / group.gpus
                names = group.names if k == 0 else tuple(f"{name}+{kind}" for name in group.names)
                for name, other in zip(group.names, names, strict=True):
                    self.parts.setdefault(name, []).append(other)
                made.append(
                    replace(
                        group,
                        names=names,
                        gpus=gpus,
                        gpu_type=kind,
                        by_type=(),
                        cores=None if group.cores is None else max(int(group.cores * part), 1),
                        memory_bytes=None if group.memory_bytes is None else group.memory_bytes * part,
                        remark=f"{gpus} of the {group.gpus} GPUs of each node",
                        label="" if k == 0 else re.sub("[0-9]+$", "", group.names[0]) + f"-{kind}",
                    )
                )
        self.nodes = made
        self.switches = [replace(s, nodes=tuple(self._parted(s.nodes))) for s in self.switches]
        for partition in self.queues.get("partitions", ()):
            if "nodes" in partition:
                partition["nodes"] = frozenset(self._parted(partition["nodes"]))

    def _parted(self, names: Iterable[str]) -> list[str]:
        return [part for name in names for part in self.parts.get(name, [name])]

    def split_by_partition(self) -> None:
        """Make groups of nodes that are in the same partitions, so that partitions are whole groups."""
        sets = [p["nodes"] for p in self.queues.get("partitions", ()) if "nodes" in p]
        made: list[SiteNodes] = []
        for group in self.nodes:
            parts: dict[tuple[bool, ...], list[str]] = {}
            for name in group.names:
                parts.setdefault(tuple(name in nodes for nodes in sets), []).append(name)
            whole = len(parts) < 2
            made += [group] if whole else [replace(group, names=tuple(n), count=0) for n in parts.values()]
        self.nodes = made


_GPUS = "--gpus N, or NCCL's topology XML or `nvidia-smi topo -m` with these files, gives the number per node"


def span(names: Sequence[str]) -> str:
    """Names as a range: `gn001 to gn002`."""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else ""

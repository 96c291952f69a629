"""Files that describe a cluster, read together into one scenario."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.formats.kueue.objects import merged
from equipoise.formats.read import read
from equipoise.formats.recognise import recognise
from equipoise.formats.slurm.scontrol import nodes_of, partitions_of
from equipoise.formats.text.errors import FormatError
from equipoise.formats.traces.published import TraceNodes
from equipoise.sim.loading.site.cluster import Site, SiteNodes
from equipoise.sim.loading.site.fabric import add_fabric, node_of_matrix, node_of_nccl
from equipoise.sim.loading.site.kubernetes import add_kueue
from equipoise.sim.loading.site.queues import add_accounts, add_generated, add_partition, add_qos
from equipoise.sim.loading.site.slurm import add_config, add_gres, add_nodes, add_topology, partition_line
from equipoise.sim.loading.site.write import scenario_text
from equipoise.sim.scenario.model import TraceSpec
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import read_spec
from equipoise.sim.traces.site import JOB_FORMATS

_ORDER = (
    "slurm.conf",
    "sinfo",
    "nodes-json",
    "scontrol",
    "trace-nodes",
    "kueue",
    "gres.conf",
    "topology.conf",
    "topology.yaml",
    "sacctmgr-qos",
    "sacctmgr-assoc",
    "sacctmgr-dump",
    "sacctmgr-script",
    "kueue-generator",
    "nccl-topology",
    "nvidia-smi-topo",
    "ibnetdiscover",
)
"""What holds nodes comes first, what adds to them later."""


def import_site(
    files: Sequence[str | Path],
    *,
    out: Path,
    trace: str | None = None,
    reading: Mapping[str, Any] | None = None,
    count: str = "gpus",
    gpus: int = 0,
) -> str:
    """The text of the scenario file for the path `out`.

    trace: a job trace for it. reading: further keys of `workload.trace`, such as `columns`. count: `cpus` takes
    each CPU core for a GPU. gpus: of each node, where only a fabric is known. Raises InputError, one line, for a
    file that is not understood or holds no part of a cluster.
    """
    workload = {**(reading or {}), **({"count": "cpus"} if count == "cpus" else {})} if trace else {}
    if trace:  # what is wrong with it is told now, not by the first run
        read_spec(TraceSpec(file=trace, **workload), trace)
        workload = {"file": os.path.relpath(trace, out.parent), **workload}
    site, unit = Site(), "CPUs" if count == "cpus" else "GPUs"
    found = sorted(((_kind(file), Path(file)) for file in files), key=lambda pair: _ORDER.index(pair[0]))
    try:
        parts = [(kind, read(path, kind)) for kind, path in found]
        kueue = merged([part for kind, part in parts if kind == "kueue"])
        for kind in dict.fromkeys(kind for kind, _ in parts):
            same = [part for other, part in parts if other == kind]
            for part in [kueue] if kind == "kueue" else same:
                _add(site, kind, part, unit, gpus)
    except FormatError as error:
        raise InputError([str(error)]) from error
    if not site.nodes:
        kinds = ", ".join(dict.fromkeys(kind for kind, _ in found))
        seen = f": {kueue.seen}" if kueue.changes or kueue.workloads or kueue.pods else ""
        raise InputError([f"{files[0]}: no nodes in these files ({kinds}){seen}; {_beside(found[0][0], unit)}"])
    if gpus and not any(group.gpus for group in site.nodes):
        for group in site.nodes:
            group.gpus, group.remark = gpus, f"{gpus} GPUs a node: as given by --gpus"
    if unit == "CPUs":
        site.count_cores()
    else:
        site.only_gpus()
    return scenario_text(site, [Path(file).name for file in files], workload)


def _beside(kind: str, unit: str) -> str:
    """A hint on which files describe nodes, for a file that does not."""
    if kind != "kueue":
        return "also name slurm.conf, sinfo or `scontrol show node`"
    cpus = "" if unit == "CPUs" else ", or with quotas of CPUs use --count cpus, which counts each core as a GPU"
    return f"also name the nodes (`kubectl get nodes -o json`){cpus}"


def _kind(file: str | Path) -> str:
    try:
        kind = recognise(file)
    except FormatError as error:
        raise InputError([str(error)]) from error
    if kind not in _ORDER:
        how = f"read here: {', '.join(_ORDER)}"
        if kind in JOB_FORMATS:
            how = "give it as --trace with a file that does (slurm.conf, sinfo, ...)"
        raise InputError([f"{file}: looks like {kind}, which describes no cluster; {how}"])
    return kind


def _add(site: Site, kind: str, found: Any, unit: str, gpus: int) -> None:
    adders: dict[str, Callable[[], None]] = {
        "slurm.conf": lambda: add_config(site, found),
        "gres.conf": lambda: add_gres(site, found),
        "topology.conf": lambda: add_topology(site, [found]),
        "topology.yaml": lambda: add_topology(site, found),
        "sacctmgr-qos": lambda: add_qos(site, found, unit),
        **dict.fromkeys(
            ("sacctmgr-assoc", "sacctmgr-dump", "sacctmgr-script"), lambda: add_accounts(site, found, unit)
        ),
        "kueue-generator": lambda: add_generated(site, found),
        "sinfo": lambda: add_nodes(site, found),
        "nodes-json": lambda: add_nodes(site, found),
        "scontrol": lambda: _add_blocks(site, found),
        "trace-nodes": lambda: _add_trace_nodes(site, found),
        "kueue": lambda: add_kueue(site, found, unit),
        "ibnetdiscover": lambda: add_fabric(site, found, gpus),
    }
    if kind in adders:
        adders[kind]()
        return
    node, remarks = node_of_nccl(found) if kind == "nccl-topology" else node_of_matrix(found)
    _add_machine(site, node, remarks, kind)


def _add_blocks(site: Site, blocks: Any) -> None:
    add_nodes(site, nodes_of(blocks))
    for partition in partitions_of(blocks):
        add_partition(site, partition)
        site.add_aside("Partitions", *([line] if (line := partition_line(partition)) else []))


def _add_trace_nodes(site: Site, nodes: TraceNodes) -> None:
    """Add nodes of a published trace; a missing number counts as 0."""
    equal: dict[tuple[float, ...], list[int]] = {}
    for k in range(len(nodes)):
        told = (nodes.gpus[k], nodes.gpu_type.codes[k], nodes.cpus[k], nodes.memory_bytes[k])
        equal.setdefault(tuple(-1.0 if np.isnan(value) else float(value) for value in told), []).append(k)
    for (gpus, kind, cores, memory), rows in equal.items():
        names, model = tuple(nodes.name[k] for k in rows), nodes.gpu_type.values[int(kind)]
        held = memory if memory > 0 else None
        site.add_nodes(SiteNodes(names, max(int(gpus), 0), model, max(int(cores), 0) or None, held))


def _add_machine(site: Site, node: SiteNodes, remarks: Sequence[str], kind: str) -> None:
    """Apply one machine's topology to every group with as many GPUs; it becomes one node where none is known."""
    same = [group for group in site.nodes if group.gpus == node.gpus]
    if site.nodes and not same:
        site.add_aside(kind, f"of a machine with {node.gpus} GPUs, which no node here has: left out")
        return
    for group in same:
        group.nic_bytes_per_s = node.nic_bytes_per_s or group.nic_bytes_per_s
        group.fabric_bytes_per_s = node.fabric_bytes_per_s or group.fabric_bytes_per_s
        group.gpu_type = group.gpu_type or node.gpu_type
    if not site.nodes:
        site.nodes.append(node)
    site.add_aside(f"Not contained in {kind}", *remarks)

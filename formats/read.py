"""One call for a file of any of the formats: recognised by its content, or named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from equipoise.formats.fabric import read_ibnetdiscover, read_nccl_topology, read_topology_matrix
from equipoise.formats.kueue.generator import read_generator
from equipoise.formats.kueue.read import read_kueue
from equipoise.formats.recognise import FORMATS, PUBLISHED_FORMATS, recognise
from equipoise.formats.slurm.accounting import read_accounting
from equipoise.formats.slurm.accounts import read_associations, read_dump, read_script
from equipoise.formats.slurm.config import read_slurm_conf
from equipoise.formats.slurm.events import read_events
from equipoise.formats.slurm.hardware import read_gres_conf, read_qos, read_topology_conf, read_topology_yaml
from equipoise.formats.slurm.json_output import read_accounting_json
from equipoise.formats.slurm.nodes import read_nodes_json, read_sinfo
from equipoise.formats.slurm.queue import read_queue, read_queue_json
from equipoise.formats.slurm.scontrol import read_blocks
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.textfile import called
from equipoise.formats.traces.philly import read_philly_log
from equipoise.formats.traces.published import read_published, read_trace_nodes
from equipoise.formats.traces.swf import read_swf

READERS: dict[str, Callable[..., Any]] = {
    "gres.conf": read_gres_conf,
    "ibnetdiscover": read_ibnetdiscover,
    "kueue": read_kueue,
    "kueue-generator": read_generator,
    "nccl-topology": read_nccl_topology,
    "nodes-json": read_nodes_json,
    "nvidia-smi-topo": read_topology_matrix,
    "philly-log": read_philly_log,
    "sacct": read_accounting,
    "sacct-json": read_accounting_json,
    "sacctmgr-assoc": read_associations,
    "sacctmgr-dump": read_dump,
    "sacctmgr-qos": read_qos,
    "sacctmgr-script": read_script,
    "scontrol": read_blocks,
    "sinfo": read_sinfo,
    "slurm-events": read_events,
    "slurm.conf": read_slurm_conf,
    "squeue": read_queue,
    "squeue-json": read_queue_json,
    "swf": read_swf,
    "topology.conf": read_topology_conf,
    "topology.yaml": read_topology_yaml,
    "trace-nodes": read_trace_nodes,
}


def read(source: str | Path | bytes, format: str = "auto", *, name: str = "", **options: Any) -> Any:
    """The content of a file, in the type of its reader.

    format: one of FORMATS, or `auto`. options: for the reader, such as zone= or columns=.

    Raises FormatError, one line, when the file is not of that format, of none that is known, or of one that is
    known but not read here; ValueError for an unknown format.
    """
    if format not in ("auto", *FORMATS):
        raise ValueError(f"unknown format {format!r}; allowed: auto, {', '.join(FORMATS)}")
    found = recognise(source, name=name) if format == "auto" else format
    if found in PUBLISHED_FORMATS:
        return read_published(source, found, name=name, **options)
    if found not in READERS:
        raise FormatError(f"{called(source, name)}: looks like {found}, which is not read here")
    return READERS[found](source, name=name, **options)

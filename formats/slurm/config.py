"""`slurm.conf`: nodes, partitions, priorities and the scheduler's parameters of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from equipoise.formats.slurm.hostlist import split_list
from equipoise.formats.slurm.lines import ConfigLine, config_lines, hosts_of
from equipoise.formats.slurm.values import NOT_GIVEN, gres_by_type, gres_gpus, gres_known, whole
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.numbers import decimal, limit_s
from equipoise.formats.text.tally import RowTally, TextChange
from equipoise.formats.text.textfile import called

_TABLES = ("nodename", "partitionname", "frontendname", "nodeset", "downnodes", "switchname", "blockname")


@dataclass(frozen=True)
class ConfiguredNodes:
    """Nodes of one NodeName line, DEFAULT lines above it applied.

    cpus: what Slurm schedules; sockets x cores x threads where `CPUs` is not given. memory_bytes: RealMemory.
    gpus: of each node; gpu_type as in Gres.
    """

    names: tuple[str, ...]
    cpus: int
    memory_bytes: int
    gpus: int
    gpu_type: str
    features: tuple[str, ...]
    weight: int
    state: str
    by_type: tuple[tuple[str, int], ...] = ()
    gres_unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class SlurmPartition:
    """A partition: `nodes` as host list text (`ALL` for all). Times are seconds, inf for none, NaN not given."""

    name: str
    nodes: str
    node_names: tuple[str, ...]
    default: bool
    max_time_s: float | None
    default_time_s: float | None
    priority_tier: int
    priority_job_factor: int
    preempt_mode: str
    qos: str
    state: str
    other: Mapping[str, str]
    line: int


@dataclass(frozen=True)
class SlurmConfig:
    """A `slurm.conf`.

    priority_weights: PriorityWeight* by what they weigh in lower case (`age`, `fairshare`, `jobsize`, `partition`,
    `qos`, `assoc`, `site`). scheduler_parameters: flags have the value "".
    times_s: PriorityDecayHalfLife, PriorityMaxAge, PreemptExemptTime. settings: every `Key=Value` line that
    is neither node nor partition, by its lower-case key, these included. other: lines of further tables.
    """

    cluster: str
    nodes: tuple[ConfiguredNodes, ...]
    partitions: tuple[SlurmPartition, ...]
    priority_weights: Mapping[str, float]
    scheduler_parameters: Mapping[str, str]
    times_s: Mapping[str, float]
    settings: Mapping[str, str]
    other: tuple[ConfigLine, ...] = ()
    changes: tuple[TextChange, ...] = field(default=())


def read_slurm_conf(source: str | Path | bytes, *, name: str = "") -> SlurmConfig:
    """The cluster that a `slurm.conf` describes.

    Raises FormatError when it is not readable, has no line `Key=Value`, or a host list that is malformed.
    """
    tally = RowTally()
    settings: dict[str, str] = {}
    nodes: list[ConfiguredNodes] = []
    partitions: list[SlurmPartition] = []
    other: list[ConfigLine] = []
    defaults: dict[str, dict[str, str]] = {}
    for line in config_lines(source, tally, name=name):
        table = next((key for key, _ in line.pairs if key in _TABLES), "") if line.pairs else ""
        if not line.pairs:
            tally.add("left out", "a line without Key=Value", line.line)
        elif table in ("nodename", "partitionname"):
            own = defaults.setdefault(table, {})
            if line.get(table).upper() == "DEFAULT":
                own.update(dict(line.pairs))
                continue
            values = {**own, **dict(line.pairs)}
            nodes += [_nodes(line, values)] if table == "nodename" else []
            partitions += [partition_of(line, values)] if table == "partitionname" else []
        elif table:
            other.append(line)
        else:
            _set(settings, line, tally)
    if not settings and not nodes and not partitions:
        raise FormatError(f"{called(source, name)}: no line `Key=Value`, which slurm.conf has")
    return SlurmConfig(
        cluster=settings.get("clustername", ""),
        nodes=tuple(nodes),
        partitions=_with_sets(partitions, nodes, [line for line in other if line.get("nodeset")]),
        priority_weights=_weights(settings),
        scheduler_parameters=_parameters(settings.get("schedulerparameters", "")),
        times_s=_times(settings),
        settings=settings,
        other=tuple(other),
        changes=tally.changes(),
    )


def _with_sets(
    partitions: Sequence[SlurmPartition], nodes: Sequence[ConfiguredNodes], lines: Sequence[ConfigLine]
) -> tuple[SlurmPartition, ...]:
    """The partitions with nodes in place of the names of node sets (`NodeSet=big Feature=h100`)."""
    sets: dict[str, list[str]] = {}
    for line in lines:
        named = [*hosts_of(line, line.get("nodes"))]
        named += [name for n in nodes if line.get("feature") in n.features for name in n.names]
        sets.setdefault(line.get("nodeset"), []).extend(named)
    made = []
    for part in partitions:
        names = (one for name in part.node_names for one in sets.get(name, [name]))
        made.append(replace(part, node_names=tuple(dict.fromkeys(names))))
    return tuple(made)


def _set(settings: dict[str, str], line: ConfigLine, tally: RowTally) -> None:
    for key, value in line.pairs:
        if key in settings and settings[key] != value:
            tally.add("changed", f"{key} appears again, the last one applies", line.line)
        settings[key] = value
    if line.rest:
        tally.add("left out", f"text other than Key=Value next to {line.pairs[0][0]}", line.line)


def _nodes(line: ConfigLine, values: Mapping[str, str]) -> ConfiguredNodes:
    sockets, cores, threads = (_whole(values, key, 1) for key in ("sockets", "corespersocket", "threadspercore"))
    if "boards" in values and "socketsperboard" in values:
        sockets = _whole(values, "boards", 1) * _whole(values, "socketsperboard", 1)
    gpus, kind = gres_gpus(values.get("gres", ""))
    memory_mb = whole(values.get("realmemory", ""))
    return ConfiguredNodes(
        names=hosts_of(line, values["nodename"]),
        cpus=_whole(values, "cpus", _whole(values, "procs", sockets * cores * threads)),
        memory_bytes=memory_mb * 2**20 if memory_mb >= 0 else NOT_GIVEN,
        gpus=max(gpus, 0),
        gpu_type=kind,
        features=tuple(split_list(values.get("features", values.get("feature", "")))),
        weight=_whole(values, "weight", 1),
        state=values.get("state", "UNKNOWN"),
        by_type=gres_by_type(values.get("gres", "")),
        gres_unread=tuple(part for part in split_list(values.get("gres", "")) if not gres_known(part)),
    )


def partition_of(line: ConfigLine, values: Mapping[str, str]) -> SlurmPartition:
    """A partition from its keys in lower case. Raises FormatError for a malformed host list."""
    nodes = values.get("nodes", "")
    own = {
        "partitionname",
        "nodes",
        "default",
        "maxtime",
        "defaulttime",
        "prioritytier",
        "priorityjobfactor",
        "priority",
        "preemptmode",
        "qos",
        "state",
    }
    priority = _whole(values, "priority", 1)  # sets both in older versions
    return SlurmPartition(
        name=values["partitionname"],
        nodes=nodes,
        node_names=() if nodes.upper() == "ALL" else hosts_of(line, nodes),
        default=values.get("default", "NO").upper() == "YES",
        max_time_s=limit_s(values["maxtime"]) if "maxtime" in values else None,
        default_time_s=limit_s(values["defaulttime"]) if "defaulttime" in values else None,
        priority_tier=_whole(values, "prioritytier", priority),
        priority_job_factor=_whole(values, "priorityjobfactor", priority),
        preempt_mode=values.get("preemptmode", ""),
        qos="" if (qos := values.get("qos", "")).upper() in ("N/A", "NONE", "(NULL)") else qos,
        state=values.get("state", "UP"),
        other={key: value for key, value in values.items() if key not in own},
        line=line.line,
    )


def _whole(values: Mapping[str, str], key: str, default: int) -> int:
    number = whole(values.get(key, ""))
    return default if number == NOT_GIVEN else number


def _weights(settings: Mapping[str, str]) -> dict[str, float]:
    weights = {
        key.removeprefix("priorityweight"): decimal(value)
        for key, value in settings.items()
        if key.startswith("priorityweight") and key != "priorityweighttres"
    }
    return {key: value for key, value in weights.items() if value is not None}


def _parameters(text: str) -> dict[str, str]:
    pairs = (member.partition("=") for member in split_list(text))
    return {name.lower(): value for name, _, value in pairs}


def _times(settings: Mapping[str, str]) -> dict[str, float]:
    """Settings that are times in the form `D-H:M:S` or minutes."""
    keys = ("prioritycalcperiod", "prioritydecayhalflife", "prioritymaxage", "preemptexempttime")
    found = {key: limit_s(settings[key]) for key in keys if key in settings}
    return {key: value for key, value in found.items() if value is not None}

"""A site's cluster as the text of a scenario, with what is assumed or left out as comments."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from equipoise.sim.loading.site.cluster import NIC_BYTES_PER_S, Site, SiteNodes, SiteSwitch, accelerator_of, span
from equipoise.sim.loading.site.queues import leave_out_limits

_WIDTH = 100
_WHY = "  # assumed: the default write limits of Kueue's client (clientConnection.qps and burst)"


def scenario_text(site: Site, sources: Sequence[str], workload: Mapping[str, Any]) -> str:
    """YAML of a scenario; workload: keys of `workload.trace`, empty for a scenario without jobs."""
    site.merge_equal()
    site.part_kinds()
    site.split_by_partition()
    leave_out_limits(site)
    labels = _labels(site.nodes)
    lines = [f"# Written by `equipoise import` from {', '.join(sources)}.", "schema_version: 1"]
    lines += [f"name: {_flow(_plain(site.name))}", "cluster:", "  nodes:"]
    for group, label in zip(site.nodes, labels, strict=True):
        lines += _node_lines(group, label)
    lines += _topology(site, labels)
    if site.jobs:
        lines += ["workload:", "  jobs:", *(f"    - {_flow(job)}" for job in site.jobs)]
    elif workload:
        lines += ["workload:", "  trace:", *(f"    {key}: {_flow(value)}" for key, value in workload.items())]
    else:
        lines += ["workload: {}  # no jobs: name them with --trace FILE"]
    lines += [f"policy: [{site.policy}]  # {site.policy_why}", *_queues(site, labels)]
    lines += [f"{key}: {_flow(value)}{_WHY if 'writes_per_s' in value else ''}" for key, value in site.extra.items()]
    return "\n".join([*lines, *_aside(site)]) + "\n"


class _Dumper(yaml.SafeDumper):
    """Quotes texts that could be read as numbers: `12`, `1e5`, `0x1f`, `1_000`."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="'" if re.fullmatch(r"[+-]?[.0-9][\w.+-]*", text) else None
    ),
)


def _flow(value: Any) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip().removesuffix("...").strip()


def _queues(site: Site, labels: Sequence[str]) -> Iterator[str]:
    """The section `queues`: single values on one line, lists with one entry per line."""
    told: Mapping[str, Any] = (
        {**site.queues, "partitions": list(_partitions(site, labels))} if "partitions" in site.queues else site.queues
    )
    if words := _gpu_types(site, labels):
        told = {**told, "gpu_types": words}
    told = _flavors(site, told, sorted({accelerator_of(group.gpu_type)[0] for group in site.nodes}))
    known = {entry["name"] for entry in told.get("qos", ())}
    strange = {p["qos"]: {"name": p["qos"]} for p in told.get("partitions", ()) if p.get("qos", "") not in {"", *known}}
    if strange:
        told = {**told, "qos": [*told.get("qos", ()), *strange.values()]}
        site.add_aside("QOS of partitions, taken without limits (`sacctmgr show qos -P` lists them)", *strange)
    if told:
        yield "queues:"
    for key, value in told.items():
        if value in ([], {}):
            continue
        if isinstance(value, list):
            yield f"  {key}:"
            yield from (f"    - {_flow(entry)}" for entry in value)
        else:
            yield f"  {key}: {_flow(value)}"
    if told:
        yield "  too_large: leave-out  # jobs that can never start under a limit are counted, not run"


def _flavors(site: Site, told: Mapping[str, Any], kinds: Sequence[str]) -> Mapping[str, Any]:
    """Without flavors of GPUs that no node has or that are unknown, and without their quotas."""
    flavors = told.get("flavors", {})
    made = {name: own for name, own in flavors.items() if set(kinds).intersection(own)}
    absent = dict.fromkeys(name for name in flavors if name not in made)
    parts: dict[str, list[Any]] = {}
    for section in ("cohorts", "queues"):
        for entry in told.get(section, ()):
            full = dict(entry)
            for key in ("gpus", "borrow", "lend"):
                if isinstance(quotas := entry.get(key), dict):
                    absent |= dict.fromkeys(name for name in quotas if name not in made)
                    left = {name: amount for name, amount in quotas.items() if name in made}
                    full[key] = left or (0 if key == "gpus" else None)
            parts.setdefault(section, []).append({key: value for key, value in full.items() if value is not None})
    several = "that no node has or that are unknown: their quotas are left out"
    site.add_aside(f"Flavors of GPUs {several if len(flavors) > 1 else 'that no node has, taken as any GPU'}", *absent)
    return {**told, **parts} | ({"flavors": made} if flavors else {})


def _gpu_types(site: Site, labels: Sequence[str]) -> dict[str, list[str]]:
    """The groups that a job requesting a GPU type may use, by type; empty where all nodes have the same."""
    words: dict[str, list[str]] = {}
    models: dict[str, set[str]] = {}
    for group, label in zip(site.nodes, labels, strict=True):
        for word in filter(None, group.gpu_type.lower().split(",")):
            words.setdefault(word, []).append(label)
            models.setdefault(accelerator_of(group.gpu_type)[0], set()).add(word)
    if len(words) < 2:
        return {}
    for model, same in models.items():
        if len(same) > 1:
            site.add_aside(
                "GPU types taken as one accelerator: a job that requests one may use the others",
                f"{', '.join(sorted(same))}: {model}",
            )
    return words


def _partitions(site: Site, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Partitions with groups in place of the site's nodes; those without any here are comments."""
    for part in site.queues["partitions"]:
        names = part.get("nodes")
        groups = [
            label
            for group, label in zip(site.nodes, labels, strict=True)
            if names is None or (group.names and group.names[0] in names)
        ]
        if not groups:
            site.add_aside("Partitions without nodes of the scenario", part["name"])
            continue
        everywhere = names is None or len(groups) == len(labels)
        yield {key: value for key, value in part.items() if key != "nodes"} | ({} if everywhere else {"nodes": groups})


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "site"


def _labels(groups: Sequence[SiteNodes]) -> list[str]:
    """A name for each group: what its nodes' names begin with."""
    labels: list[str] = []
    for group in groups:
        stem = group.label or re.sub(r"[0-9]+$", "", group.names[0] if group.names else "node")
        base = label = _plain(stem).rstrip("-_.") or "node"
        number = 2
        while label in labels:
            label, number = f"{base}{number}", number + 1
        labels.append(label)
    return labels


def _node_lines(group: SiteNodes, label: str) -> Iterator[str]:
    accelerator, guess = accelerator_of(group.gpu_type)
    named = f"{span(group.names)} " if group.names else ""
    notes = [note for note in (group.remark, "" if group.remark else guess) if note]
    yield f"    # {named}({group.count} nodes){'; ' if notes else ''}{'; '.join(notes)}"
    nic, fabric = group.nic_bytes_per_s, group.fabric_bytes_per_s
    values = {
        "name": _flow(label),
        "count": group.count,
        "gpus": group.gpus,
        "accelerator": accelerator,
        "cores": group.cores,
        "host_memory": group.memory_bytes and f"{group.memory_bytes / 2**20:.12g} MiB",
        "nic": f"{_gbit(nic or NIC_BYTES_PER_S)}{'' if nic else '  # assumed'}",
        "fabric": fabric and f"{fabric / 1e9:.6g} GB/s",
    }
    for k, (key, value) in enumerate((key, value) for key, value in values.items() if value):
        yield f"    {'  ' if k else '- '}{key}: {value}"


def _gbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e9:.6g} Gbit/s"


def _topology(site: Site, labels: Sequence[str]) -> list[str]:
    """A star, a tree of equal racks, or links by name."""
    mine = {
        name: (f"{label}-{k}" if group.count > 1 else f"{label}-0", group.nic_bytes_per_s or NIC_BYTES_PER_S)
        for group, label in zip(site.nodes, labels, strict=True)
        for k, name in enumerate(group.names)
    }
    switches = _pruned(site, mine)
    leaves = [switch for switch in switches if switch.nodes]
    if len(leaves) < 2:
        return ["  topology: {kind: star}  # one switch" + ("" if site.switches else ": the files give no topology")]
    if equal := _equal_racks(leaves, list(mine), switches):
        return [f"  topology: {{kind: tree, nodes_per_rack: {equal}}}  # assumed: uplinks as fast as the links below"]
    return ["  topology:", "    kind: explicit", "    links:", *_links(switches, mine, labels)]


def _pruned(site: Site, mine: Mapping[str, object]) -> list[SiteSwitch]:
    """The switches above nodes of the scenario; nodes without a switch get a common one."""
    switches = [
        SiteSwitch(s.name, tuple(n for n in s.nodes if n in mine), s.below, s.uplink_bytes_per_s) for s in site.switches
    ]
    while True:
        names = {s.name for s in switches}
        kept = [
            SiteSwitch(s.name, s.nodes, tuple(b for b in s.below if b in names), s.uplink_bytes_per_s) for s in switches
        ]
        kept = [s for s in kept if s.nodes or s.below]
        if kept == switches:
            break
        switches = kept
    seen = {node for switch in switches for node in switch.nodes}
    rest = tuple(node for node in mine if node not in seen)
    return [*switches, SiteSwitch("unlisted", rest)] if rest and switches else switches


def _equal_racks(leaves: Sequence[SiteSwitch], nodes: Sequence[str], switches: Sequence[SiteSwitch]) -> int:
    """Nodes of each rack where all are equal and stand in order, else 0."""
    size, flat = len(leaves[0].nodes), [node for leaf in leaves for node in leaf.nodes]
    told = any(leaf.uplink_bytes_per_s for leaf in leaves)
    even = all(len(leaf.nodes) == size and not leaf.below for leaf in leaves)
    return size if even and flat == list(nodes) and not told and len(switches) - len(leaves) <= 1 else 0


def _links(
    switches: Sequence[SiteSwitch], mine: Mapping[str, tuple[str, float]], labels: Sequence[str]
) -> Iterator[str]:
    """Links of nodes to their switch at the rate of their NIC, of switches upward at the sum of those below."""
    titles = {s.name: f"sw-{_plain(s.name)}" if _plain(s.name) in labels else _plain(s.name) for s in switches}
    known = {s.name: s for s in switches}
    parent = {name: s.name for s in switches for name in s.below}

    def sum_bytes_per_s(switch: SiteSwitch) -> float:
        """All rates of the nodes below a switch."""
        own = math.fsum(mine[node][1] for node in switch.nodes)
        return own + math.fsum(sum_bytes_per_s(known[name]) for name in switch.below)

    def link(source: str, target: str, rate: float, why: str) -> str:
        """One link as YAML."""
        return f"      - {{source: {source}, target: {target}, rate: {_gbit(rate)}}}  # {why}"

    for switch in switches:
        for node in switch.nodes:
            yield link(mine[node][0], titles[switch.name], mine[node][1], node)
    tops = [s.name for s in switches if s.name not in parent]
    for switch in switches:
        up = titles[parent[switch.name]] if switch.name in parent else "core" if len(tops) > 1 else ""
        told = switch.uplink_bytes_per_s
        if up:
            why = "as told" if told else "assumed: as fast as the links below it"
            yield link(titles[switch.name], up, told or sum_bytes_per_s(switch), why)


def _aside(site: Site) -> Iterator[str]:
    """Comments on settings without a counterpart in a scenario."""
    if site.aside:
        yield "\n# Not part of the simulation, because a scenario has no counterpart."
    for heading, lines in site.aside.items():
        yield f"# {heading}:"
        for line in lines:
            clean = " ".join(line.split())
            yield from textwrap.wrap(
                clean,
                _WIDTH,
                initial_indent="#   ",
                subsequent_indent="#     ",
                break_on_hyphens=False,
                break_long_words=False,
            )

"""A site's nodes and network from NCCL topology, `nvidia-smi topo -m` and `ibnetdiscover` files."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from equipoise.formats.fabric import FabricDevice, FabricNode, NetworkFabric, TopologyMatrix
from equipoise.formats.text.numbers import integer
from equipoise.sim.loading.site.cluster import Site, SiteNodes, SiteSwitch

_KINDS = {  # (bytes/s of one NVLink or xGMI link in one direction, name) by compute capability or AMD's target
    "60": (20e9, "P100"),
    "70": (25e9, "V100"),
    "75": (0.0, "T4"),
    "80": (25e9, "A100"),
    "86": (14.0625e9, ""),
    "90": (25e9, "H100"),
    "100": (50e9, "B200"),
    "103": (50e9, "B300"),
    "gfx906": (50e9, "MI60"),
    "gfx908": (46e9, "MI100"),
    "gfx90a": (50e9, "MI250X"),
    "gfx942": (64e9, "MI300X"),
    "gfx950": (76.8e9, "MI355X"),
}
"""From the vendors' data sheets; 86 is the A40 and others."""

_MANAGEMENT = 0.1
"""Ports slower than this share of the fastest are not for training."""

_ADAPTER = re.compile(r"(mlx|hca|ib|bnxt|roce)[0-9_-]", re.IGNORECASE)
_GPU_CLASSES = ("0x030200", "0x030000", "0x038000", "0x120000")


def node_of_nccl(devices: Sequence[FabricDevice]) -> tuple[SiteNodes, list[str]]:
    """(one node, missing values) of NCCL's topology."""
    gpus = [device for device in devices if device.kind == "gpu"]
    cards = [d for d in devices if d.kind == "pci" and d.values.get("class", "").startswith(_GPU_CLASSES)]
    nets = [device for device in devices if device.kind == "net"]
    slow = [n for n in nets if n.bytes_per_s < _MANAGEMENT * max(net.bytes_per_s for net in nets)]
    slots = [d for d in devices if d.kind == "pci" and d.values.get("class", "").startswith(("0x0207", "0x0200"))]
    remarks = []
    if slow:
        remarks.append(f"slow ports left out: {', '.join(net.values.get('name', '?') for net in slow)}")
    ports = [net.bytes_per_s for net in nets if net not in slow]
    nic = math.fsum(ports) or math.fsum(slot.bytes_per_s for slot in slots)
    if not nets and nic:
        remarks.append(f"no port rates: the NIC rate is that of their {len(slots)} PCIe links")
    fabric, how = _fabric(devices, gpus, cards)
    remarks += [how] if how else []
    kinds = {_KINDS.get(_target(gpu), (0.0, ""))[1] for gpu in gpus}
    kind = kinds.pop() if len(kinds) == 1 else ""
    count = len(gpus) or len(cards)
    return SiteNodes((), count, kind, nic_bytes_per_s=nic or None, fabric_bytes_per_s=fabric or None, count=1), remarks


def _target(gpu: FabricDevice) -> str:
    """Compute capability, or AMD's target: `gfx942`, in older files `942`, and `910` for gfx90a."""
    gcn = gpu.values.get("gcn", "").removeprefix("gfx")
    return f"gfx{'90a' if gcn == '910' else gcn}" if gcn else gpu.values.get("sm", "")


def _fabric(
    devices: Sequence[FabricDevice], gpus: Sequence[FabricDevice], cards: Sequence[FabricDevice]
) -> tuple[float, str]:
    """(bytes/s between the GPUs of a node, how it was found)."""
    links: Counter[int] = Counter()
    for device in devices:
        if device.kind in ("nvlink", "xgmi") and device.parent >= 0:
            links[device.parent] += max(integer(device.values.get("count", "")) or 1, 0)
    rate, _ = _KINDS.get(_target(gpus[0]), (0.0, "")) if gpus else (0.0, "")
    if links and rate:
        return min(links.values()) * rate, ""
    if links:
        return (0.0, f"{min(links.values())} links per GPU of an unknown rate: the default fabric")
    rate = min((card.bytes_per_s for card in cards if card.bytes_per_s), default=0.0)
    if not rate:
        return 0.0, "no links between GPUs are listed: the default fabric"
    return rate, "no links between GPUs are listed, as in virtual machines: the fabric is their PCIe"


def node_of_matrix(matrix: TopologyMatrix) -> tuple[SiteNodes, list[str]]:
    """(one node, missing values) of `nvidia-smi topo -m`."""
    gpus = [k for k, name in enumerate(matrix.devices) if name.startswith("GPU")]
    nics = [name for name in matrix.devices if not name.startswith("GPU")]
    links = {int(c[2:]) for a in gpus for b in gpus if (c := matrix.links[a][b]).startswith("NV")}
    remarks = [f"{len(nics)} NICs without stated rates"] if nics else ["no NIC is listed"]
    if links:
        remarks.append(f"NV{min(links)}: the link rate depends on the GPU type, which is not given; the default fabric")
    else:
        remarks.append("no NVLink between its GPUs: the default fabric is too fast for PCIe; set 'fabric'")
    return SiteNodes((), len(gpus), count=1), remarks


def add_fabric(site: Site, fabric: NetworkFabric, gpus: int) -> None:
    """Hosts, their NICs and the switches they hang on; hosts with the same switches are one group of rails.

    If no other file lists nodes, hosts are like the one machine that NCCL or nvidia-smi showed, or have `gpus` GPUs
    each; hosts with at most half of the usual rate are not taken as GPU nodes.
    """
    by_id = {node.id: node for node in fabric.nodes}
    hosts = _hosts(site, fabric)
    rates = {name: math.fsum(c.bits_per_s for node in own for c in node.cables) / 8 for name, own in hosts.items()}
    if any(group.names for group in site.nodes):
        known = {name for group in site.nodes for name in group.names}
        strange = sorted(set(hosts) - known)
        site.add_aside("Hosts of the fabric that are not nodes", *([", ".join(strange)] if strange else []))
    else:
        usual = max(Counter(rates.values()).items(), key=lambda item: item[1], default=(0.0, 0))[0]
        known = {name for name, rate in rates.items() if 2 * rate > usual}
        few = sorted(set(hosts) - known)
        site.add_aside("Hosts with few adapters, not taken as GPU nodes", *([", ".join(few)] if few else []))
        machine = site.nodes[0] if site.nodes else SiteNodes((), gpus, remark=f"{gpus} GPUs a node: as given by --gpus")
        site.nodes = [replace(machine, names=tuple(sorted(known)), count=0)] if known else []
    _rate_nodes(site, {name: rate for name, rate in rates.items() if name in known})
    site.switches = _rails({name: own for name, own in hosts.items() if name in known}, by_id)


def _hosts(site: Site, fabric: NetworkFabric) -> dict[str, list[FabricNode]]:
    """Adapters by the host that their description names, such as `dgx-01 mlx5_0`."""
    hosts: dict[str, list[FabricNode]] = {}
    nameless = 0
    for node in fabric.nodes:
        words = node.description.split()
        if node.kind != "Ca" or "Aggregation Node" in node.description:
            continue
        if len(words) > 1 and words[0] != "localhost" and _ADAPTER.match(words[-1]):
            hosts.setdefault(words[0], []).append(node)
        else:
            nameless += 1
    site.add_aside("Adapters without a host's name", *([f"{nameless}: left out"] if nameless else []))
    return hosts


def _rate_nodes(site: Site, rates: dict[str, float]) -> None:
    """Groups of nodes split by what their adapters carry; nodes that the fabric does not know stay as they are."""
    made = []
    for group in site.nodes:
        equal: dict[float | None, list[str]] = {}
        for name in group.names:
            equal.setdefault(rates.get(name) or group.nic_bytes_per_s, []).append(name)
        made += [replace(group, names=tuple(own), count=0, nic_bytes_per_s=rate) for rate, own in equal.items()]
        made += [] if group.names else [group]
    site.nodes = made


def _rails(hosts: dict[str, list[FabricNode]], by_id: dict[str, FabricNode]) -> list[SiteSwitch]:
    """Hosts with the same switches as one switch, its uplink what those switches have to other switches."""
    sets = {
        name: frozenset(c.peer for node in own for c in node.cables if c.peer in by_id) for name, own in hosts.items()
    }
    whole = [s for s in dict.fromkeys(sets.values()) if s and not any(s < other for other in sets.values())]
    members: dict[frozenset[str], list[str]] = {}
    for name, own in sets.items():
        best = max(whole, key=lambda s: len(s & own), default=frozenset[str]())
        members.setdefault(best, []).append(name)
    made = []
    for k, (switches, names) in enumerate(members.items()):
        up = math.fsum(
            cable.bits_per_s / 8
            for switch in switches
            for cable in by_id[switch].cables
            if cable.peer in by_id and by_id[cable.peer].kind == "Switch" and cable.peer not in switches
        )
        made.append(SiteSwitch(f"rails-{k}", tuple(names), uplink_bytes_per_s=up or None))
    return made

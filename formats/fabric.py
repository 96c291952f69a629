"""Topologies of machines and fabrics: NCCL's XML, `nvidia-smi topo -m`, `ibnetdiscover`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from equipoise.formats.text.numbers import decimal, integer
from equipoise.formats.text.tally import RowTally, TextChange
from equipoise.formats.text.textfile import TextFile

UNDERLINE = re.compile(r"\x1b?\[[0-9;]*m")
"""What `nvidia-smi` prints around its header; a copy from a terminal may have lost the first of its letters."""

_PCIE = re.compile(r"([0-9.]+)\s*(?:GT/s)?.*")
_LINK = re.compile(r"(?:X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC|PSB)")
_DEVICE = re.compile(r"(?:GPU|NIC|mlx5_)[0-9A-Za-z_]+")
_PORT = re.compile(r'\[([0-9]+)\](?:\([0-9a-fA-F]+\))?\s+"([^"]+)"\[([0-9]+)\](?:\([0-9a-fA-F]+\))?\s*#(.*)')
_NODE = re.compile(r'(Switch|Ca|Rt)\s+([0-9]+)\s+"([^"]+)"\s*(?:#\s*"([^"]*)")?.*')
_RATE = re.compile(r"\b([0-9]{1,3})x([A-Z]+(?:10)?)\s*$")
_LANE_BITS_PER_S = {
    "SDR": 2.5e9,
    "DDR": 5e9,
    "QDR": 10e9,
    "FDR10": 10e9,
    "FDR": 14.0625e9,
    "EDR": 25e9,
    "HDR": 50e9,
    "NDR": 100e9,
    "XDR": 200e9,
}


@dataclass(frozen=True)
class FabricDevice:
    """A device of NCCL's topology. kind: `cpu`, `pci`, `gpu`, `net`, `nvlink`, `xgmi` ...; parent: place or -1.

    bytes_per_s: of its PCIe link (GT/s x lanes, 128/130 coded from 8 GT/s on, 8/10 below) or, of a `net`, of its
    port; 0 where the file does not say, as in virtual machines.
    """

    kind: str
    parent: int
    values: Mapping[str, str]
    bytes_per_s: float


def read_nccl_topology(source: str | Path | bytes, *, name: str = "") -> tuple[FabricDevice, ...]:
    """The devices of an `NCCL_TOPO_FILE`, parents before their parts. Raises FormatError."""
    file = TextFile(source, name)
    text = file.text(RowTally())
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise file.error(0, "XML with a document type, which NCCL does not write")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise file.error(getattr(error, "position", (0,))[0], f"not XML: {error}") from error
    if root.tag != "system":
        raise file.error(0, f"XML of <{root.tag[:40]!s}>, not of NCCL's <system>")
    devices: list[FabricDevice] = []
    open_: list[tuple[ElementTree.Element, int]] = [(child, -1) for child in reversed(root)]
    while open_:
        element, parent = open_.pop()
        devices.append(FabricDevice(element.tag, parent, dict(element.attrib), _speed(element)))
        open_ += [(child, len(devices) - 1) for child in reversed(element)]
    return tuple(devices)


def _speed(element: ElementTree.Element) -> float:
    if element.tag == "net":
        return (decimal(element.get("speed", "")) or 0.0) * 1e6 / 8
    match = _PCIE.fullmatch(element.get("link_speed", ""))
    rate, lanes = (decimal(match[1]) or 0.0) if match else 0.0, integer(element.get("link_width", "")) or 0
    return rate * 1e9 * max(lanes, 0) * (128 / 130 if rate >= 8 else 0.8) / 8


@dataclass(frozen=True)
class TopologyMatrix:
    """`nvidia-smi topo -m`: links[i][j] is how device i reaches device j (`NV18`, `PIX`, `SYS` ...; `X` itself)."""

    devices: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]


def read_topology_matrix(source: str | Path | bytes, *, name: str = "") -> TopologyMatrix:
    """The matrix that `nvidia-smi topo -m` prints. Raises FormatError when there is none, or a row is broken."""
    file = TextFile(source, name)
    lines = [UNDERLINE.sub("", line) for line in file.text(RowTally()).split("\n")]
    if any("ROCm" in line for line in lines):
        raise file.error(0, "output of rocm-smi is not read; use RCCL's topology XML (NCCL_TOPO_DUMP_FILE)")
    begin = next((k for k, line in enumerate(lines) if line.split()[:1] == ["GPU0"] and "X" not in line.split()), -1)
    if begin < 0:
        raise file.error(0, "no header GPU0 GPU1 ... of `nvidia-smi topo -m`")
    devices = tuple(word for word in lines[begin].split() if _DEVICE.fullmatch(word))
    rows: list[tuple[str, ...]] = []
    for number, line in enumerate(lines[begin + 1 :], begin + 2):
        words = line.split()
        if not words or words[0] not in devices or len(rows) == len(devices):
            continue
        cells = _LINK.findall(" ".join(words[1:]))  # two cells glue when a terminal's text is copied
        if words[0] != devices[len(rows)] or len(cells) < len(devices):
            counted = f"{len(cells)} links for the {len(devices)} devices of the header"
            raise file.error(number, f"row {words[0]} has {counted}")
        rows.append(tuple(cells[: len(devices)]))
    if len(rows) < len(devices):
        raise file.error(0, f"{len(rows)} rows for the {len(devices)} devices of the header")
    return TopologyMatrix(devices, tuple(rows))


@dataclass(frozen=True)
class Cable:
    """One port's cable: from `port` of its node to `peer_port` of node `peer`."""

    port: int
    peer: str
    peer_port: int
    bits_per_s: float


@dataclass(frozen=True)
class FabricNode:
    """A switch (`Switch`), an adapter (`Ca`) or a router of an InfiniBand fabric, by its id."""

    kind: str
    id: str
    description: str
    ports: int
    cables: tuple[Cable, ...]


@dataclass(frozen=True)
class NetworkFabric:
    """Every node of an `ibnetdiscover` output, in its order."""

    nodes: tuple[FabricNode, ...]
    changes: tuple[TextChange, ...]


def read_ibnetdiscover(source: str | Path | bytes, *, name: str = "") -> NetworkFabric:
    """The fabric that `ibnetdiscover` found; broken lines are counted. Raises FormatError without a node."""
    file, tally = TextFile(source, name), RowTally()
    heads: list[tuple[str, str, str, int]] = []
    cables: list[list[Cable]] = []
    for first, lines in file.chunks(tally):
        for number, line in enumerate(lines, first):
            if match := _NODE.fullmatch(line):
                heads.append((match[1], match[3], match[4] or "", min(int(match[2][:6]), 10**5)))
                cables.append([])
            elif match := _PORT.fullmatch(line):
                if cables:
                    cables[-1].append(Cable(int(match[1][:9]), match[2], int(match[3][:9]), _rate(match[4])))
            elif line.startswith("["):
                tally.add("left out", "an unreadable port", number)
    if not heads:
        raise file.error(0, 'no line `Switch N "id"` or `Ca N "id"` of ibnetdiscover')
    pairs = zip(heads, cables, strict=True)
    nodes = [FabricNode(kind, key, text, ports, tuple(own)) for (kind, key, text, ports), own in pairs]
    return NetworkFabric(tuple(nodes), tally.changes())


def _rate(text: str) -> float:
    """Bits per second of `4xNDR`, 0 where it is not given."""
    match = _RATE.search(text)
    return float(match[1]) * _LANE_BITS_PER_S.get(match[2], 0.0) if match else 0.0

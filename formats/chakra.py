"""Chakra execution traces (mlcommons/chakra): one rank's nodes, as protobuf (`NAME.RANK.et`) or JSON.

A file of messages: each is preceded by its length, the first holds metadata, the others a node with its type, its
dependencies, start and duration in us, and attributes. A node without a start begins when all that it depends on
ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.base.regular import RECORD_BYTES, RefusedError, read_file
from equipoise.formats.text.errors import FormatError

COLLECTIVES = (
    "all-reduce",
    "reduce",
    "all-gather",
    "gather",
    "scatter",
    "broadcast",
    "all-to-all",
    "reduce-scatter",
    "reduce-scatter-block",
    "barrier",
)
TYPES = {1: "metadata", 2: "memory-load", 3: "memory-store", 4: "compute", 5: "send", 6: "recv", 7: "collective"}
_NAMES = {"METADATA": 1, "MEM_LOAD": 2, "MEM_STORE": 3, "COMP": 4, "COMM_SEND": 5, "COMM_RECV": 6, "COMM_COLL": 7}
HOST_LANE, COMPUTE_LANE, NETWORK_LANE = 0, 1, 2
_SMALL, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


@dataclass
class Node:
    """One node of a rank's graph; times in seconds, `start_s` None where the file has none."""

    number: int = 0
    name: str = ""
    kind: str = "metadata"
    after: list[int] = field(default_factory=list)
    start_s: float | None = None
    duration_s: float = 0.0
    host: bool = False
    collective: int | None = None

    @property
    def lane(self) -> int:
        """The lane where it runs: the host, the device's compute stream, or its network."""
        if self.host:
            return HOST_LANE
        return NETWORK_LANE if self.kind in ("send", "recv", "collective") else COMPUTE_LANE


def rank_of(path: Path, number: int) -> int:
    """The rank in a file's name, else `number`."""
    found = re.search(r"\.(\d+)\.(?:et|json)$", path.name)
    return int(found.group(1)) if found else number


def timed(path: Path, nodes: Sequence[Node]) -> list[tuple[float, Node]]:
    """(start in s, node) of all nodes that take time, ascending. Raises FormatError on a circle or a lost node."""
    known = {node.number: node for node in nodes}
    ends: dict[int, float] = {}
    starts: dict[int, float] = {}
    for root in nodes:
        stack, open_ = [root.number], set[int]()
        while stack:
            number = stack[-1]
            if number in ends:
                stack.pop()
                continue
            if number not in known:
                raise FormatError(f"{path}: node {number} is missing, but another node depends on it")
            missing = [k for k in known[number].after if k not in ends]
            if missing:
                if number in open_:
                    raise FormatError(f"{path}: node {number} depends on itself")
                open_.add(number)
                stack += missing
                continue
            stack.pop()
            node = known[number]
            ready = max((ends[k] for k in node.after), default=0.0)
            starts[number] = ready if node.start_s is None else node.start_s
            ends[number] = starts[number] + node.duration_s
    kept = [(starts[node.number], node) for node in nodes if node.duration_s > 0.0]
    return sorted(kept, key=lambda pair: (pair[0], pair[1].number))


def labels(nodes: Sequence[Node]) -> list[tuple[str, str, str]]:
    """(kind, group, like) of nodes in their order: the k-th collective of a kind is one group over all ranks."""
    seen: Counter[str] = Counter()
    found = []
    for node in nodes:
        kind = node.kind
        if node.collective is not None:
            kind = COLLECTIVES[node.collective] if node.collective < len(COLLECTIVES) else "collective"
        base = kind if node.kind == "collective" else f"{kind} {node.name}"
        seen[base] += 1
        like = f"{base} {seen[base]}"
        found.append((kind if node.kind != "compute" else (node.name or kind)[:80], like, like))
    return [
        (k, group if node.kind == "collective" else "", like)
        for (k, group, like), node in zip(found, nodes, strict=True)
    ]


def from_json(path: Path, content: Mapping[str, Any]) -> list[Node]:
    """The nodes of the JSON form. Raises FormatError, `file: node N: what is wrong`."""
    graph = content["workload_graph"]
    if not isinstance(graph, list):
        raise FormatError(f"{path}: 'workload_graph' is not a list")
    found = []
    for k, entry in enumerate(graph):
        try:
            kind = entry["NodeType"]
            found.append(
                Node(
                    int(entry["Id"]),
                    str(entry.get("Name", "")),
                    TYPES[_NAMES.get(kind, kind)],
                    [int(n) for key in ("ctrlDeps", "data_deps") for n in entry.get(key) or ()],
                    None,
                    float(entry.get("runtime") or 0.0) / 1e6,
                    bool(entry.get("is_cpu_op", False)),
                    entry.get("comm_type"),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path}: node {k}: {error}") from None
    return found


def from_protobuf(path: Path) -> list[Node]:
    """The nodes of an `.et` file. Raises FormatError, OSError."""
    try:
        raw = read_file(path, RECORD_BYTES)
    except RefusedError as error:
        raise FormatError(f"{path}: {error}") from error
    try:
        return [_node(message) for message in list(_messages(raw))[1:]]
    except (IndexError, ValueError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: is not a Chakra trace: {error}") from None


def _messages(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        size, at = _varint(raw, at)
        if at + size > len(raw):
            raise ValueError("a message is truncated")
        yield raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return value, at
        shift += 7


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, whole number or bytes) of a message."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        wire = tag & 7
        if wire == _SMALL:
            value, at = _varint(raw, at)
            yield tag >> 3, value
            continue
        if wire not in (_DOUBLE, _BYTES, _FLOAT):
            raise ValueError(f"field {tag >> 3} has an unknown type {wire}")
        size, at = _varint(raw, at) if wire == _BYTES else (8 if wire == _DOUBLE else 4, at)
        if at + size > len(raw):
            raise ValueError(f"field {tag >> 3} is truncated")
        yield tag >> 3, raw[at : at + size]
        at += size


def _node(raw: bytes) -> Node:
    node = Node()
    for number, value in _fields(raw):
        if isinstance(value, int):
            if number == 1:
                node.number = value
            elif number == 3:
                node.kind = TYPES.get(value, "metadata")
            elif number in (4, 5):
                node.after.append(value)
            elif number == 6 and value:
                node.start_s = value / 1e6
            elif number == 7:
                node.duration_s = value / 1e6
        elif number == 2:
            node.name = value.decode()
        elif number in (4, 5):
            at = 0
            while at < len(value):
                other, at = _varint(value, at)
                node.after.append(other)
        elif number == 10:
            _attribute(node, value)
    return node


def _attribute(node: Node, raw: bytes) -> None:
    name, number = "", None
    for key, value in _fields(raw):
        if key == 1 and isinstance(value, bytes):
            name = value.decode()
        elif isinstance(value, int):
            number = value
    if name == "is_cpu_op":
        node.host = bool(number)
    elif name == "comm_type" and number is not None:
        node.collective = number

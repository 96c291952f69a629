"""Chakra traces, both forms: the same graph, a step that is replayed, and damaged files in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.cli import main
from equipoise.formats import chakra
from equipoise.formats.operations import read_operations
from equipoise.formats.text.errors import FormatError

COMPUTE, COLLECTIVE = 4, 7


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def text(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def number(key: int, value: int) -> bytes:
    return varint(key << 3) + varint(value)


def step(compute_us: int, wait_us: int) -> list[dict[str, Any]]:
    """A host operation, computing, and an all-reduce that holds a wait for the others."""
    return [
        {"Id": 7, "Name": "launch", "NodeType": COMPUTE, "runtime": 20, "is_cpu_op": True},
        {"Id": 8, "Name": "gemm", "NodeType": COMPUTE, "data_deps": [7], "runtime": compute_us},
        {"Id": 9, "Name": "sync", "NodeType": COLLECTIVE, "ctrlDeps": [8], "runtime": 50 + wait_us, "comm_type": 0},
    ]


def protobuf(nodes: list[dict[str, Any]]) -> bytes:
    found = varint(len(text(1, b"0.0.4"))) + text(1, b"0.0.4")
    for node in nodes:
        raw = number(1, node["Id"]) + text(2, node["Name"].encode()) + number(3, node["NodeType"])
        for key, name in ((4, "ctrlDeps"), (5, "data_deps")):
            if name in node:
                raw += text(key, b"".join(varint(n) for n in node[name]))
        raw += number(7, node["runtime"])
        for name, key in (("is_cpu_op", 27), ("comm_type", 7)):
            if name in node:
                raw += text(10, text(1, name.encode()) + number(key, int(node[name])))
        found += varint(len(raw)) + raw
    return found


def write(folder: Path, suffix: str) -> list[Path]:
    paths = [folder / f"trace.{rank}.{suffix}" for rank in (0, 1)]
    for path, nodes in zip(paths, (step(100, 200), step(300, 0)), strict=True):
        if suffix == "et":
            path.write_bytes(protobuf(nodes))
        else:
            path.write_text(json.dumps({"workload_graph": nodes}))
    return paths


def test_both_forms_say_the_same_and_nodes_start_when_they_can(tmp_path: Path) -> None:
    found = read_operations(write(tmp_path, "et"))
    assert found == read_operations(write(tmp_path, "json"))
    first = [(op.kind, op.lane, round(1e6 * op.start_s), round(1e6 * op.duration_s)) for op in found[:3]]
    assert first == [("launch", 0, 0, 20), ("gemm", 1, 20, 100), ("all-reduce", 2, 120, 250)]
    assert {op.group for op in found if op.kind == "all-reduce"} == {"all-reduce 1"}


def test_a_faster_rank_makes_the_step_shorter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(path) for path in write(tmp_path, "et")]
    assert main(["replay", *paths, "--what-if", "gemm@1=0.5", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured_s"] == pytest.approx(370e-6)
    assert told["asked"][0]["step_s"] == pytest.approx(220e-6)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([{"Id": 1, "NodeType": 4, "data_deps": [1], "runtime": 1}], "node 1 depends on itself"),
        (
            [{"Id": 1, "NodeType": 4, "data_deps": [5], "runtime": 1}],
            "node 5 is missing, but another node depends on it",
        ),
        ([{"Id": 1, "NodeType": 99, "runtime": 1}], "node 0: 99"),
        ([{"Id": 1, "NodeType": 4, "runtime": 0}], "no node has a duration"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(tmp_path: Path, nodes: list[dict[str, Any]], why: str) -> None:
    path = tmp_path / "trace.0.json"
    path.write_text(json.dumps({"workload_graph": nodes}))
    with pytest.raises(FormatError, match=why):
        read_operations([path])


@given(st.binary(max_size=60), st.integers(0, 200))
def test_damaged_files_are_an_error_or_nodes(tmp_path_factory: pytest.TempPathFactory, raw: bytes, cut: int) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.et"
    path.write_bytes(protobuf(step(100, 0))[:cut] + raw)
    told = ""
    try:
        chakra.from_protobuf(path)
    except FormatError as error:
        told = str(error)
    assert not told or "is not a Chakra trace" in told

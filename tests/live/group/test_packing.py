"""State dicts as bytes: what travels comes out as it was, and what nobody packed is refused."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.live.group.packing import pack, unpack  # noqa: E402


def message(header: Any, tensors: bytes = b"") -> bytes:
    """Bytes as a peer would send them."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + tensors


def test_tensors_of_all_kinds_come_out_as_they_were() -> None:
    """Several in a row, of which each begins where the last one ended."""
    sent = [
        torch.tensor([[1.5, -2.0, 3.0], [4.0, 5.0, 6.5]], dtype=torch.float64),
        torch.tensor([True, False, True]),
        torch.zeros((3, 0), dtype=torch.int16),
        torch.tensor(7, dtype=torch.int64),
        torch.tensor([0.5, 9.0], dtype=torch.bfloat16),
        torch.arange(12, dtype=torch.int32).reshape(3, 4)[:, 1],
        torch.nn.Parameter(torch.tensor([8.0])),
    ]
    found = unpack(pack(sent))
    assert [t.dtype for t in found] == [t.dtype for t in sent]
    assert [t.shape for t in found] == [t.shape for t in sent]
    assert [t.tolist() for t in found] == [t.tolist() for t in sent]


def test_containers_come_out_as_they_were() -> None:
    sent = {
        "a": [1, 2.5, None, "x", True],
        3: (4, (5, [6])),
        "o": OrderedDict([("k", 8), ("j", 9)]),
        "c": Counter("aab"),
        "s": {7, 8},
        "z": torch.Size([2, 5]),
        ("p", 2): {"deep": {"er": torch.tensor([3, 4])}},
        "empty": {},
    }
    found = unpack(pack(sent))
    tensor = found[("p", 2)]["deep"].pop("er")
    assert tensor.tolist() == [3, 4]
    del sent[("p", 2)]["deep"]["er"]  # type: ignore[index]
    assert found == sent
    assert list(found) == list(sent)
    assert [type(found[k]) for k in ("o", "c", "s", "z", 3)] == [OrderedDict, Counter, set, torch.Size, tuple]
    assert list(found["o"]) == ["k", "j"]


def test_a_message_is_its_headers_length_the_header_and_the_bytes_of_tensors() -> None:
    assert pack({"a": torch.tensor([258, 3], dtype=torch.int16)}) == message(
        {"dict": [["a", {"tensor": ["int16", [2]]}]]}, b"\x02\x01\x03\x00"
    )
    assert pack(7) == b"\x01" + bytes(7) + b"7"


def test_the_place_of_what_cannot_travel_is_named() -> None:
    for value, place in (
        ([0, (1, object())], r"\[1\]\[1\]: a object"),
        ({"a": {"b": 1 + 2j}}, r"\['a'\]\['b'\]: a complex"),
        ({np.datetime64(5, "s"): 1}, r": a datetime"),
        ({"x": torch.zeros(2).to_sparse()}, r"\['x'\]: a Tensor"),
        ({"x": np.zeros((1,))}, r"\['x'\]: a ndarray"),
    ):
        with pytest.raises(TypeError, match=place + ".* is not allowed in a state dict sent to other ranks"):
            pack(value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (message({"tensor": ["int16", [3]]}, b"12345"), "5 bytes are left for a tensor of 6"),
        (message({"tensor": ["int16", [2]]}, b"12345"), "1 bytes are left over"),
        (message({"tensor": ["int16", [-1]]}, b"12"), r"a tensor of int16 and shape \[-1\]"),
        (message({"tensor": ["int16", [2, -3]]}, b"12"), r"a tensor of int16 and shape \[2, -3\]"),
        (message({"tensor": ["zeros", [2]]}, b"12"), r"a tensor of zeros and shape \[2\]"),
        (message({"tensor": ["nothing", [2]]}, b"12"), "not a state dict: "),
        (message({"code": [2]}), "not a state dict: 'code'"),
        (message({"dict": [["a", 1], ["b"]]}), "shorter"),
        (message({"list": [1], "tuple": [2]}), "too many values"),
        (message({}), "not enough values"),
        (message(["a"]), "NOT REFUSED"),
    ],
)
def test_bytes_that_nobody_packed_are_refused(content: bytes, why: str) -> None:
    if why == "NOT REFUSED":  # a header of plain JSON is the value itself
        assert unpack(content) == ["a"]
        return
    with pytest.raises(ValueError, match=why):
        unpack(content)


def test_a_tensor_that_is_there_to_its_last_byte_is_read() -> None:
    assert unpack(message({"tensor": ["int16", [3]]}, bytes([1, 0, 2, 0, 3, 0]))).tolist() == [1, 2, 3]
    assert unpack(message({"tensor": ["int16", [0]]})).shape == (0,)
    assert unpack(message({"tensor": ["uint8", []]}, b"\x09")).item() == 9

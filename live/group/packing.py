"""State dicts as bytes that only hold data: reading untrusted bytes runs no code.

A JSON header of the tree, then the bytes of its tensors in the header's order.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from typing import Any

import torch

_LENGTH_BYTES = 8
_MAPPINGS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "Size": torch.Size}
_KINDS = {kind: name for name, kind in {**_MAPPINGS, **_SEQUENCES}.items()}


def pack(value: Any) -> bytes:
    """`value` as bytes. Raises TypeError, which names the place, for anything but tensors and plain data."""
    tensors: list[torch.Tensor] = []
    header = json.dumps(_encoded(value, "", tensors)).encode()
    parts = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors]
    return b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *parts])


def unpack(content: bytes) -> Any:
    """The inverse of `pack`; tensors are on the CPU. Raises ValueError for other bytes."""
    raw = memoryview(bytearray(content))
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "little")
    try:
        value, rest = _decoded(json.loads(bytes(raw[_LENGTH_BYTES:end])), raw[end:])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a state dict: {error}") from error
    if len(rest):
        raise ValueError(f"not a state dict: {len(rest)} bytes are left over")
    return value


def _encoded(value: Any, where: str, tensors: list[torch.Tensor]) -> Any:
    if type(value) in (type(None), bool, int, float, str):
        return value
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
        tensors.append(value)
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    name = _KINDS.get(type(value))
    if name in _SEQUENCES:
        return {name: [_encoded(item, f"{where}[{k}]", tensors) for k, item in enumerate(value)]}
    if name in _MAPPINGS:
        pairs = [(k, f"{where}[{k!r}]", item) for k, item in value.items()]
        return {name: [[_encoded(k, at, tensors), _encoded(item, at, tensors)] for k, at, item in pairs]}
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _encoded(value.item(), where, tensors)
    raise TypeError(
        f"{where}: a {type(value).__name__} is not allowed in a state dict sent to other ranks; "
        "allowed: tensors, numbers, text, lists and mappings"
    )


def _decoded(raw: Any, rest: memoryview) -> tuple[Any, memoryview]:
    """(the value, the bytes of the tensors that come after its own)."""
    if not isinstance(raw, dict):
        return raw, rest
    ((name, content),) = raw.items()
    if name == "tensor":
        dtype, shape = content
        return _tensor(dtype, shape, rest)
    if name in _MAPPINGS:
        flat = [part for pair in content for part in pair]
        values, rest = _all_decoded(flat, rest)
        return _MAPPINGS[name](dict(zip(values[::2], values[1::2], strict=True))), rest
    values, rest = _all_decoded(content, rest)
    return _SEQUENCES[name](values), rest


def _all_decoded(raw: list[Any], rest: memoryview) -> tuple[list[Any], memoryview]:
    values = []
    for item in raw:
        value, rest = _decoded(item, rest)
        values.append(value)
    return values, rest


def _tensor(dtype: str, shape: list[int], rest: memoryview) -> tuple[torch.Tensor, memoryview]:
    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype) or any(n < 0 for n in shape):
        raise ValueError(f"not a state dict: a tensor of {dtype} and shape {shape}")
    count = torch.Size(shape).numel()
    size = count * kind.itemsize
    if size > len(rest):
        raise ValueError(f"not a state dict: {len(rest)} bytes are left for a tensor of {size}")
    if count == 0:
        return torch.empty(shape, dtype=kind), rest
    # A copy: the part may not be aligned for its dtype.
    data = torch.frombuffer(rest[:size], dtype=torch.uint8).clone()
    return data.view(kind).reshape(shape), rest[size:]

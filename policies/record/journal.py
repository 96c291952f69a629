"""The record of decisions: written as JSON lines, read back exactly, replayed against a policy.

One format for the simulator and for live runs. The first line names the format; each further line holds one
decision: the observation, the memory before and after, the plan, and what the world refused. Floats are restored
exactly, NaN and infinities too, and arrays keep their dtype and shape. The lines are strict JSON, so other tools can
read them. An incomplete last line is ignored.

Arrays are `{"$array": dtype, "values": [...]}`, or `{"$array": dtype, "rows": n, "all": value}` where all
values are the same; other marked objects are listed in `_encode`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from equipoise.base.files import check_regular, naming
from equipoise.base.json_values import from_json
from equipoise.policies.contract import (
    Allocation,
    Decision,
    Memory,
    Moves,
    Plan,
    Policy,
    Reason,
    Refusal,
    StageError,
    refine,
)
from equipoise.policies.declared_queues import EMPTY, Queues
from equipoise.policies.observation import TABLES, Labels, Observation
from equipoise.policies.queues.within import within_queues

FORMAT = {"format": "equipoise-journal", "version": 1}
_CLASSES: dict[str, type[Any]] = {c.__name__: c for c in (Plan, Moves, Allocation, Reason, Refusal, Queues, Labels)}


_FEW = 32  # values that are looked at one by one sooner than by NumPy


class JournalError(ValueError):
    """A journal that cannot be read; the message names the file and the line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One line of a journal."""

    line: int
    decision: Decision
    refused: tuple[Refusal, ...]


def _number(value: float) -> Any:
    return value if math.isfinite(value) else {"$float": repr(value)}


@cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a dtype for NumPy; cached, because it is slow to compute."""
    return dtype.str if dtype.kind == "U" else dtype.name


def _encode_array(array: NDArray[Any]) -> dict[str, Any]:
    head: dict[str, Any] = {"$array": _dtype_name(array.dtype)}
    kind, size = array.dtype.kind, array.size
    if array.ndim == 1 and size > 1 and kind in "biuf" and _same_bits(array):
        return {**head, "rows": size, "all": _encode(array[0].item())}
    values = array.tolist() if array.ndim == 1 else array.ravel().tolist()
    if kind == "f" and size and (size <= _FEW or not np.isfinite(array).all()):
        values = [_number(v) for v in values]
    if array.ndim == 1:
        return {**head, "values": values}
    return {**head, "shape": list(array.shape), "values": values}


def _same_bits(flat: NDArray[Any]) -> bool:
    """Whether all values are equal to the bit (so that 0.0 and -0.0 differ, and NaN equals itself)."""
    if len(flat) <= _FEW:  # as nearly always in a live job; a tenth of the time
        raw = flat.tobytes()
        return raw == raw[: flat.itemsize] * len(flat)
    bits = flat.view(f"u{flat.dtype.itemsize}")
    return bool((bits == bits[0]).all())


def _encode(value: Any) -> Any:
    """Plain JSON for a value: other types are objects whose first key begins with `$`."""
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return _number(value)
    if isinstance(value, np.ndarray):
        return _encode_array(value)
    if isinstance(value, np.generic):
        return {"$scalar": _encode_array(np.asarray(value).reshape(1))}
    if isinstance(value, int):  # an enumeration
        return int(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("keys of what a stage remembers or reports must be strings")
        return {"$map": {key: _encode(item) for key, item in value.items()}}
    if isinstance(value, tuple):
        return {"$tuple": [_encode(item) for item in value]}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if _CLASSES.get(type(value).__name__) is type(value):
        named = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {f"${type(value).__name__}": named}
    raise TypeError(f"a {type(value).__name__} cannot be written to a journal")


def _decode_array(value: dict[str, Any]) -> NDArray[Any]:
    dtype = np.dtype(value["$array"])
    if "all" in value:
        array = np.full(value["rows"], _decode(value["all"]), dtype=dtype)
    else:
        array = np.array([_decode(v) for v in value["values"]], dtype=dtype)
        if "shape" in value:
            array = array.reshape(value["shape"])
    array.flags.writeable = False
    return array


def _decode(value: Any) -> Any:
    """The inverse of `_encode`; arrays are read-only."""
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value))
    held = value[kind]
    if kind == "$array":
        return _decode_array(value)
    if kind == "$float":
        return float(held)
    if kind == "$scalar":
        return _decode_array(held)[0]
    if kind == "$map":
        return {key: _decode(item) for key, item in held.items()}
    if kind == "$tuple":
        return tuple(_decode(item) for item in held)
    return _CLASSES[kind[1:]](**{key: _decode(item) for key, item in held.items()})


_SCALARS = ("time_s", "window_s", "waiting", "running", "gpu_models")


def _encode_observation(o: Observation) -> dict[str, Any]:
    return {
        **{name: _encode(getattr(o, name)) for name in _SCALARS},
        **{name: {k: _encode_array(v) for k, v in t.as_dict().items()} for name, t in o.tables().items()},
        **({"beside": _encode(o.beside)} if o.beside else {}),
        **({"refused": _encode(o.refused)} if o.refused else {}),
        **({"queues": _encode(o.queues)} if o.queues is not EMPTY else {}),
        **({"told": _encode(o.told)} if o.told else {}),
    }


def _decode_observation(value: dict[str, Any]) -> Observation:
    tables: dict[str, Any] = {
        name: cls.of(**{k: _decode(v) for k, v in value[name].items()}) for name, cls in TABLES.items()
    }
    scalars = {name: _decode(value[name]) for name in _SCALARS}
    refused = _decode(value.get("refused", {"$tuple": []}))
    queues = _decode(value["queues"]) if "queues" in value else EMPTY
    told = _decode(value["told"]) if "told" in value else {}
    beside = _decode(value["beside"]) if "beside" in value else {}
    further = {"refused": refused, "queues": queues, "told": told, "beside": beside}
    return Observation(**scalars, **tables, **further)


def encode(decision: Decision, refused: Sequence[Refusal] = ()) -> str:
    """One decision as one line of JSON, without line end. Raises TypeError for a value that cannot be written."""
    line = {
        "time_s": _number(decision.observation.time_s),
        "observation": _encode_observation(decision.observation),
        "before": _encode(dict(decision.memory_before)),
        "plan": _encode(decision.plan),
        "after": _encode(dict(decision.memory)),
        "refused": _encode(tuple(refused)),
    }
    return json.dumps(line, separators=(",", ":"), allow_nan=False)


def encode_memory(memory: Mapping[str, Memory]) -> str:
    """Memory of the stages of a policy, as JSON. Raises TypeError for a value that cannot be written."""
    return json.dumps(_encode(dict(memory)), separators=(",", ":"), allow_nan=False)


def decode_memory(text: str) -> dict[str, Memory]:
    """The inverse of `encode_memory`."""
    return dict(_decode(from_json(text)))


class JournalWriter:
    """Appends decisions to a file; each complete line is flushed to the operating system."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self._file: BinaryIO = open(path, "ab+")  # noqa: SIM115 (closed by `close`)
        end = _complete_bytes(self._file)
        with naming(path):
            self._file.truncate(end)
        if end == 0:
            self._put(json.dumps(FORMAT))

    def _put(self, line: str) -> None:
        with naming(self.path):
            self._file.write(line.encode() + b"\n")
            self._file.flush()

    def write(self, decision: Decision, refused: Sequence[Refusal] = ()) -> None:
        """Append one decision. Raises TypeError when a stage's memory cannot be written."""
        self._put(encode(decision, refused))

    def close(self) -> None:
        """Close the file."""
        with naming(self.path):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _complete_bytes(file: BinaryIO) -> int:
    """Bytes up to the end of the last complete line."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def append(path: Path | str, decision: Decision, refused: Sequence[Refusal] = ()) -> None:
    """Append one decision to the journal at `path`, which is created if missing."""
    with JournalWriter(path) as writer:
        writer.write(decision, refused)


def read(path: Path | str) -> Iterator[Entry]:
    """The decisions of a journal in order.

    Raises JournalError for a file that is not a journal, is of another version, or is damaged before its last line.
    """
    for number, value in _lines(path):
        with _damage(path, number):
            decision = Decision(
                _decode_observation(value["observation"]),
                _decode(value["plan"]),
                _decode(value["before"]),
                _decode(value["after"]),
            )
            refused = _decode(value["refused"])
        yield Entry(number, decision, refused)


def read_plans(path: Path | str) -> Iterator[tuple[float, Plan, tuple[Refusal, ...]]]:
    """(time in s, plan, refusals) of each decision; observations are not decoded, which is faster.

    Raises JournalError as `read` does.
    """
    for number, value in _lines(path):
        with _damage(path, number):
            found = float(_decode(value["time_s"])), _decode(value["plan"]), _decode(value["refused"])
        yield found


def _lines(path: Path | str) -> Iterator[tuple[int, Any]]:
    """Number and content of each complete line after the first."""
    check_regular(path)
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            with _damage(path, number):
                value = from_json(line)
            if number > 1:
                yield number, value
            elif value != FORMAT:
                raise JournalError(f"{path}:1: not an {FORMAT['format']} of version 1")


@contextmanager
def _damage(path: Path | str, number: int) -> Iterator[None]:
    """Turns decoding errors into a JournalError that names the line."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise JournalError(f"{path}:{number}: is damaged ({type(error).__name__}: {error})") from error


def replay(policy: Policy, path: Path | str) -> list[str]:
    """Decide again from every recorded observation and memory; returns the differences, one line each.

    The sentence of a reason is not compared, so that a record survives another wording. Raises JournalError as `read`
    does.
    """
    found, within = [], within_queues(policy)
    for entry in read(path):
        then, at = entry.decision, f"{path}:{entry.line}: at {entry.decision.observation.time_s} s"
        try:
            chosen = within if then.observation.queues.restricts else policy
            now = refine(chosen, then.observation, then.memory_before)
        except StageError as error:
            found.append(f"{at}: {error}")
            continue
        for name, old, new in (("plan", then.plan, now.plan), ("memory", then.memory, now.memory)):
            found += [f"{at}: {line}" for line in _differences(name, _encode(old), _encode(new))]
    return found


_SENTENCE = re.compile(r"plan\.reasons\[\d+\]\.text")


def _differences(name: str, old: Any, new: Any) -> Iterator[str]:
    """Where two encoded values differ; an array counts as one value."""
    if isinstance(old, dict) and isinstance(new, dict) and "$array" not in old and old.keys() == new.keys():
        for key in old:
            yield from _differences(name if key.startswith("$") else f"{name}.{key}", old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, pair in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{name}[{k}]", *pair)
    elif not _SENTENCE.fullmatch(name) and json.dumps(old) != json.dumps(new):  # as text: 0.0 is not -0.0
        yield f"{name} was {_short(old)}, is {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."

"""A policy as a file that is safe to load from anywhere: plain YAML data, bounded, versioned, checked.

    format: 1                  of this file
    contract: 1                version of the contract that the stages were written for
    policy: [{s1: {...}}, ...] stages with every parameter
    profile: {name, digest}    hardware of the tuning
    scenario: {name, digest}   scenario of the tuning
    promise: {...}             results of the simulator there
    digest: ...                SHA-256 over all of the above: damage is found
    signature: ...             HMAC-SHA-256 with a shared key, when one was given: tampering is found

Nothing in it is executed: stages are looked up by name among the built-in ones (and, when asked for, among
installed plug-ins).
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from equipoise.base.files import check_regular, write_whole
from equipoise.base.numerals import strict_float, strict_int
from equipoise.policies.contract import CONTRACT_VERSION, Policy
from equipoise.policies.registry import BUILT_IN, PolicyError, make_policy

FORMAT_VERSION = 1
MAX_BYTES = 64 * 1024
_MAX_DEPTH, _MAX_ITEMS, _MAX_TEXT, _MAX_INTEGER = 8, 4096, 4096, 2**63
_KEYS = ("format", "contract", "policy", "profile", "scenario", "promise")
Number = TypeVar("Number", int, float)
_IDENTITY_KEYS = frozenset(("name", "digest"))


class ExportError(ValueError):
    """A policy file cannot be used; the message is one clear line, `file:line:column: what is wrong`."""


@dataclass(frozen=True)
class ExportedPolicy:
    """A policy with its origin and its simulated results."""

    policy: Policy
    profile: Mapping[str, str] = field(default_factory=dict)
    scenario: Mapping[str, str] = field(default_factory=dict)
    promise: Mapping[str, float | int | str] = field(default_factory=dict)
    signed: bool = False  # its signature was checked

    def content(self) -> dict[str, Any]:
        """The content to write, without digest and signature."""
        return {
            "format": FORMAT_VERSION,
            "contract": CONTRACT_VERSION,
            "policy": stage_entries(self.policy),
            "profile": dict(self.profile),
            "scenario": dict(self.scenario),
            "promise": dict(self.promise),
        }


def stage_entries(policy: Policy) -> list[dict[str, dict[str, Any]]]:
    """The stages with every parameter, as `make_policy` takes them."""
    return [
        {stage.name: {f.name: getattr(stage, f.name) for f in dataclasses.fields(stage)}} for stage in policy.stages
    ]


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 in hex over the canonical JSON of `content`. Raises ValueError for NaN and infinity."""
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _signature(content: Mapping[str, Any], key: bytes) -> str:
    return hmac.new(key, _canonical(content), hashlib.sha256).hexdigest()


def write_policy(exported: ExportedPolicy, path: Path, key: bytes | None = None) -> str:
    """Write a policy file, whole or not at all; returns its digest.

    Raises ExportError when it could not be loaded again (a value that is not plain and finite, or too large).
    """
    content = exported.content()
    try:
        digest = digest_of(content)
        text = yaml.safe_dump({**content, "digest": digest}, sort_keys=False, default_flow_style=None)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise ExportError(f"{path}: this policy cannot be written as plain data: {error}") from error
    if key is not None:
        text += f'signature: "{_signature(content, key)}"\n'
    if len(text.encode()) > MAX_BYTES:
        raise ExportError(f"{path}: the policy takes more than {MAX_BYTES} bytes")
    write_whole(path, text)
    return digest


def load_policy(path: Path, key: bytes | None = None, *, plugins: bool = False) -> ExportedPolicy:
    """Read and verify a policy file. With `key` its signature must be there and match.

    `plugins`: also accept stages of installed packages, whose code then runs.
    Raises ExportError with one line, OSError when the file cannot be read.
    """
    check_regular(path)
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ExportError(f"{path}: larger than {MAX_BYTES} bytes, the most for a policy file")
    tree: yaml.Node | None = None
    try:
        tree, data = _read(raw)
        content, signed = _verified(data, key)
        return ExportedPolicy(
            policy=_policy_of(content["policy"], plugins),
            profile=_identity(content, "profile"),
            scenario=_identity(content, "scenario"),
            promise=_promise(content),
            signed=signed,
        )
    except _FaultError as fault:
        mark = fault.mark or _mark(tree, fault.at)
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise ExportError(f"{path}{place}: {fault}") from fault


class _FaultError(Exception):
    """A fault, without the file's name; `at`: path of keys and indices, or position."""

    def __init__(self, text: str, *at: str | int, mark: yaml.Mark | None = None) -> None:
        super().__init__(text)
        self.at, self.mark = at, mark


def _mark(node: yaml.Node | None, at: tuple[str | int, ...]) -> yaml.Mark | None:
    """Position of the value at this path, as far as it exists; the position of the key in a mapping."""
    mark = None if node is None else node.start_mark
    for step in at:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == step]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            found = [(value, value) for value in node.value[step : step + 1]]
        else:
            break
        if not found:
            break
        mark, node = found[0][0].start_mark, found[0][1]
    return mark


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML with limited depth and without aliases, which can expand a small file to any size."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As in PyYAML, without aliases and with limited depth."""
        if self.check_event(yaml.events.AliasEvent):
            raise _FaultError("aliases are not allowed in a policy file", mark=self.peek_event().start_mark)
        self._depth += 1
        if self._depth > _MAX_DEPTH + 1:
            raise _FaultError("nested too deeply", mark=self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _int(loader: _PlainLoader, node: yaml.ScalarNode) -> int:
    return _number(strict_int, node)  # YAML 1.1 has 1_0 for 10, 1:30 for 90 and 010 for 8


def _float(loader: _PlainLoader, node: yaml.ScalarNode) -> float:
    return _number(strict_float, node)


def _number(read: Callable[[str], Number], node: yaml.ScalarNode) -> Number:
    try:
        return read(node.value)
    except ValueError as error:
        raise _FaultError(f"not YAML: {error}", mark=node.start_mark) from error


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _int)
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _float)


def _read(raw: bytes) -> tuple[yaml.Node | None, dict[str, Any]]:
    """The text of the file, and its data."""
    try:
        loader = _PlainLoader(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n")
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1)
        raise _FaultError("not a text file", mark=yaml.Mark("", 0, line, column, None, 0)) from error
    except yaml.reader.ReaderError as error:
        before = raw.decode("utf-8")[: error.position]
        mark = yaml.Mark("", 0, before.count("\n"), len(before) - (before.rfind("\n") + 1), None, 0)
        raise _FaultError(f"not YAML: {error.reason}: #x{error.character:04x}", mark=mark) from error
    try:
        node = loader.get_single_node()
        data = None if node is None else loader.construct_document(node)
    except _FaultError:
        raise
    except Exception as error:  # on a malformed number, date or escape PyYAML raises whatever Python does
        at = getattr(error, "problem_mark", None)
        text = getattr(error, "problem", None) if at is not None else None
        raise _FaultError(f"not YAML: {' '.join(str(text or error).split())}", mark=at) from error
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        raise _FaultError("not a policy file: a mapping is needed", mark=None if node is None else node.start_mark)
    try:
        _bounded(data, (), [0])
    except _FaultError as fault:
        raise _FaultError(str(fault), mark=_mark(node, fault.at)) from fault
    return node, data


def _bounded(value: Any, at: tuple[str | int, ...], count: list[int]) -> None:
    """Refuse values that are too deep, too many, too long, or not plain data."""
    count[0] += 1
    if len(at) > _MAX_DEPTH or count[0] > _MAX_ITEMS:
        raise _FaultError("nested too deeply or too many values", *at)
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _FaultError(f"key {key!r} is not text", *at)
            _bounded(key, (*at, key), count)
            _bounded(inner, (*at, key), count)
    elif isinstance(value, list):
        for k, inner in enumerate(value):
            _bounded(inner, (*at, k), count)
    elif isinstance(value, str):
        if len(value) > _MAX_TEXT:
            raise _FaultError(f"a text of {len(value)} characters", *at)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _FaultError(f"{value} is not a finite number", *at)
    elif isinstance(value, int):
        if abs(value) > _MAX_INTEGER:
            raise _FaultError("an integer of more than 64 bits", *at)
    elif value is not None:
        raise _FaultError(f"{value!r} is not plain data", *at)


def _verified(data: dict[str, Any], key: bytes | None) -> tuple[dict[str, Any], bool]:
    """The content without digest and signature, and whether a signature was checked."""
    if data.get("format") != FORMAT_VERSION:
        raise _FaultError(f"format {data.get('format')!r}, this version reads {FORMAT_VERSION}", "format")
    unknown = sorted(set(data) - {*_KEYS, "digest", "signature"})
    missing = [name for name in (*_KEYS, "digest") if name not in data]
    if unknown:
        raise _FaultError(f"unknown key {unknown[0]!r}", unknown[0])
    if missing:
        raise _FaultError(f"key {missing[0]!r} is missing")
    content = {name: data[name] for name in _KEYS}
    if not hmac.compare_digest(str(data["digest"]).encode(), digest_of(content).encode()):
        raise _FaultError("damaged: its content does not match its digest", "digest")
    if data["contract"] != CONTRACT_VERSION:
        raise _FaultError(f"written for contract {data['contract']}, this version has {CONTRACT_VERSION}", "contract")
    if key is None:
        return content, False
    if "signature" not in data:
        raise _FaultError("not signed, but a key was given")
    if not hmac.compare_digest(str(data["signature"]).encode(), _signature(content, key).encode()):
        raise _FaultError("its signature does not match the key", "signature")
    return content, True


def _policy_of(stages: Any, plugins: bool) -> Policy:
    if not isinstance(stages, list) or not all(isinstance(s, dict) and len(s) == 1 for s in stages):
        raise _FaultError("policy: needs a list of stages, each `name: {parameter: value}`", "policy")
    for k, stage in enumerate(stages):
        ((name, parameters),) = stage.items()
        if not plugins and name not in BUILT_IN:
            known = ", ".join(sorted(BUILT_IN))
            raise _FaultError(f"policy: stage {name!r} is not built in; known: {known}", "policy", k, name)
        if not isinstance(parameters, dict):
            raise _FaultError(f"policy: {name}: parameters must be a mapping", "policy", k, name)
        try:
            make_policy([stage])
        except PolicyError as error:
            named = [key for key in parameters if key in str(error).replace(":", " ").split()]
            raise _FaultError(f"policy: {error}", "policy", k, name, *named[:1]) from error
    try:
        return make_policy(stages)
    except PolicyError as error:
        raise _FaultError(f"policy: {error}", "policy") from error


def _identity(content: Mapping[str, Any], key: str) -> dict[str, str]:
    value = content[key]
    if not isinstance(value, dict) or set(value) - _IDENTITY_KEYS:
        raise _FaultError(f"{key}: needs name and digest only", key)
    if not all(isinstance(v, str) for v in value.values()):
        raise _FaultError(f"{key}: name and digest must be text", key)
    return value


def _promise(content: Mapping[str, Any]) -> dict[str, float | int | str]:
    value = content["promise"]
    plain = isinstance(value, dict) and all(isinstance(v, int | float | str) for v in value.values())
    if not plain:
        raise _FaultError("promise: needs numbers and texts by name", "promise")
    return value  # type: ignore[no-any-return]

"""A policy as a file that is safe to load from anywhere: plain YAML data, bounded, versioned, checked.

    format: 1                  of this file
    contract: 1                version of the contract that the stages were written for
    policy: [{s1: {...}}, ...] stages with every parameter
    profile: {name, digest}    hardware that it was tuned on
    scenario: {name, digest}   case that it was tuned for
    promise: {...}             what the simulator measured there
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from equipoise.policies.contract import CONTRACT_VERSION, Policy
from equipoise.policies.files import check_regular, write_whole
from equipoise.policies.numerals import strict_float, strict_int
from equipoise.policies.registry import BUILT_IN, PolicyError, make_policy

FORMAT_VERSION = 1
MAX_BYTES = 64 * 1024
_MAX_DEPTH, _MAX_ITEMS, _MAX_TEXT, _MAX_INTEGER = 8, 4096, 4096, 2**63
_KEYS = ("format", "contract", "policy", "profile", "scenario", "promise")
_IDENTITY_KEYS = frozenset(("name", "digest"))


class ExportError(ValueError):
    """A policy file cannot be used; the message is one clear line, `file: what is wrong`."""


@dataclass(frozen=True)
class ExportedPolicy:
    """A policy with where it comes from and what it promises."""

    policy: Policy
    profile: Mapping[str, str] = field(default_factory=dict)
    scenario: Mapping[str, str] = field(default_factory=dict)
    promise: Mapping[str, float | int | str] = field(default_factory=dict)
    signed: bool = False  # its signature was checked

    def content(self) -> dict[str, Any]:
        """What is written, without digest and signature."""
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
        {stage.name: {f.name: getattr(stage, f.name) for f in dataclasses.fields(stage)}}
        for stage in policy.stages
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

    Raises ExportError when it would not load again (a value that is no plain finite datum, too large).
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
        raise ExportError(f"{path}: larger than {MAX_BYTES} bytes, no policy file is")
    try:
        data = _read(raw)
        content, signed = _verified(data, key)
        return ExportedPolicy(
            policy=_policy_of(content["policy"], plugins),
            profile=_identity(content, "profile"),
            scenario=_identity(content, "scenario"),
            promise=_promise(content),
            signed=signed,
        )
    except _FaultError as fault:
        raise ExportError(f"{path}: {fault}") from fault


class _FaultError(Exception):
    """What is wrong, without the file's name."""


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML, to a depth, without aliases, which can blow a small file up to any size."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As PyYAML does, without aliases and not too deep."""
        if self.check_event(yaml.events.AliasEvent):
            raise _FaultError("aliases are not allowed in a policy file")
        self._depth += 1
        if self._depth > _MAX_DEPTH + 1:
            raise _FaultError("nested too deeply")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _int(loader: _PlainLoader, node: yaml.ScalarNode) -> int:
    return strict_int(node.value)  # YAML 1.1 has 1_0 for 10, 1:30 for 90 and 010 for 8


def _float(loader: _PlainLoader, node: yaml.ScalarNode) -> float:
    return strict_float(node.value)


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _int)
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _float)


def _read(raw: bytes) -> dict[str, Any]:
    try:
        data = yaml.load(raw.decode("utf-8"), Loader=_PlainLoader)
    except UnicodeDecodeError as error:
        raise _FaultError("not a text file") from error
    except _FaultError:
        raise
    except Exception as error:  # on a malformed number, date or escape PyYAML raises whatever Python does
        raise _FaultError(f"not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise _FaultError("not a policy file: a mapping is needed")
    _bounded(data, 0, [0])
    return data


def _bounded(value: Any, depth: int, count: list[int]) -> None:
    """Refuse what no policy needs: deep, many, long, or not plain."""
    count[0] += 1
    if depth > _MAX_DEPTH or count[0] > _MAX_ITEMS:
        raise _FaultError("nested too deeply or too many values")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _FaultError(f"key {key!r} is not text")
            _bounded(key, depth + 1, count)
            _bounded(inner, depth + 1, count)
    elif isinstance(value, list):
        for inner in value:
            _bounded(inner, depth + 1, count)
    elif isinstance(value, str):
        if len(value) > _MAX_TEXT:
            raise _FaultError(f"a text of {len(value)} characters")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _FaultError(f"{value} is not a finite number")
    elif isinstance(value, int):
        if abs(value) > _MAX_INTEGER:
            raise _FaultError("an integer of more than 64 bits")
    elif value is not None:
        raise _FaultError(f"{value!r} is not plain data")


def _verified(data: dict[str, Any], key: bytes | None) -> tuple[dict[str, Any], bool]:
    """The content without digest and signature, and whether a signature was checked."""
    if data.get("format") != FORMAT_VERSION:
        raise _FaultError(f"format {data.get('format')!r}, this version reads {FORMAT_VERSION}")
    unknown = sorted(set(data) - {*_KEYS, "digest", "signature"})
    missing = [name for name in (*_KEYS, "digest") if name not in data]
    if unknown or missing:
        raise _FaultError(f"unknown key {unknown[0]!r}" if unknown else f"key {missing[0]!r} is missing")
    content = {name: data[name] for name in _KEYS}
    if not hmac.compare_digest(str(data["digest"]).encode(), digest_of(content).encode()):
        raise _FaultError("damaged: its content does not match its digest")
    if data["contract"] != CONTRACT_VERSION:
        raise _FaultError(f"written for contract {data['contract']}, this version has {CONTRACT_VERSION}")
    if key is None:
        return content, False
    if "signature" not in data:
        raise _FaultError("not signed, and a key was given")
    if not hmac.compare_digest(str(data["signature"]).encode(), _signature(content, key).encode()):
        raise _FaultError("its signature does not match the key")
    return content, True


def _policy_of(stages: Any, plugins: bool) -> Policy:
    if not isinstance(stages, list) or not all(isinstance(s, dict) and len(s) == 1 for s in stages):
        raise _FaultError("policy: needs a list of stages, each `name: {parameter: value}`")
    for stage in stages:
        ((name, parameters),) = stage.items()
        if not plugins and name not in BUILT_IN:
            raise _FaultError(f"policy: stage {name!r} is not built in; known: {', '.join(sorted(BUILT_IN))}")
        if not isinstance(parameters, dict):
            raise _FaultError(f"policy: {name}: parameters must be a mapping")
    try:
        return make_policy(stages)
    except PolicyError as error:
        raise _FaultError(f"policy: {error}") from error


def _identity(content: Mapping[str, Any], key: str) -> dict[str, str]:
    value = content[key]
    if not isinstance(value, dict) or set(value) - _IDENTITY_KEYS:
        raise _FaultError(f"{key}: needs name and digest only")
    if not all(isinstance(v, str) for v in value.values()):
        raise _FaultError(f"{key}: name and digest must be text")
    return value


def _promise(content: Mapping[str, Any]) -> dict[str, float | int | str]:
    value = content["promise"]
    plain = isinstance(value, dict) and all(isinstance(v, int | float | str) for v in value.values())
    if not plain:
        raise _FaultError("promise: needs numbers and texts by name")
    return value  # type: ignore[no-any-return]

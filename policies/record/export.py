"""A policy as a file that is safe to load from anywhere: plain JSON (which is YAML, too), bounded, versioned, checked.

    format: 2                  of this file
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.base.files import check_regular, write_whole
from equipoise.base.json_values import from_json
from equipoise.policies.contract import CONTRACT_VERSION, Policy
from equipoise.policies.registry import BUILT_IN, PolicyError, make_policy

FORMAT_VERSION = 2
MAX_BYTES = 64 * 1024
_KEYS = ("format", "contract", "policy", "profile", "scenario", "promise")
_IDENTITY_KEYS = frozenset(("name", "digest"))


class ExportError(ValueError):
    """A policy file cannot be used; the message is one clear line, `file: key: what is wrong`."""


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
        signature = {} if key is None else {"signature": _signature(content, key)}
        text = json.dumps({**content, "digest": digest, **signature}, indent=1) + "\n"
    except (ValueError, TypeError) as error:
        raise ExportError(f"{path}: this policy cannot be written as plain data: {error}") from error
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
    try:
        content, signed = _verified(from_json(raw), key)
        return ExportedPolicy(
            policy=_policy_of(content["policy"], plugins),
            profile=_identity(content, "profile"),
            scenario=_identity(content, "scenario"),
            promise=_promise(content),
            signed=signed,
        )
    except json.JSONDecodeError as error:
        raise ExportError(f"{path}:{error.lineno}:{error.colno}: not a policy file: {error.msg}") from error
    except ValueError as error:  # also text that is not UTF-8
        raise ExportError(f"{path}: {' '.join(str(error).split())}") from error


def _verified(data: Any, key: bytes | None) -> tuple[dict[str, Any], bool]:
    """The content without digest and signature, and whether a signature was checked. Raises ValueError."""
    if not isinstance(data, dict):
        raise ValueError("not a policy file: a mapping is needed")
    if data.get("format") != FORMAT_VERSION:
        raise ValueError(f"format {data.get('format')!r}, this version reads {FORMAT_VERSION}; export it again")
    unknown = sorted(set(data) - {*_KEYS, "digest", "signature"})
    missing = [name for name in (*_KEYS, "digest") if name not in data]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}")
    if missing:
        raise ValueError(f"key {missing[0]!r} is missing")
    content = {name: data[name] for name in _KEYS}
    if not hmac.compare_digest(str(data["digest"]).encode(), digest_of(content).encode()):
        raise ValueError("damaged: its content does not match its digest")
    if data["contract"] != CONTRACT_VERSION:
        raise ValueError(f"written for contract {data['contract']}, this version has {CONTRACT_VERSION}")
    if key is None:
        return content, False
    if "signature" not in data:
        raise ValueError("not signed, but a key was given")
    if not hmac.compare_digest(str(data["signature"]).encode(), _signature(content, key).encode()):
        raise ValueError("its signature does not match the key")
    return content, True


def _policy_of(stages: Any, plugins: bool) -> Policy:
    if not isinstance(stages, list) or not all(isinstance(s, dict) and len(s) == 1 for s in stages):
        raise ValueError("policy: needs a list of stages, each `name: {parameter: value}`")
    for stage in stages:
        ((name, parameters),) = stage.items()
        if not plugins and name not in BUILT_IN:
            raise ValueError(f"policy: stage {name!r} is not built in; known: {', '.join(sorted(BUILT_IN))}")
        if not isinstance(parameters, dict):
            raise ValueError(f"policy: {name}: parameters must be a mapping")
    try:
        return make_policy(stages)
    except PolicyError as error:
        raise ValueError(f"policy: {error}") from error


def _identity(content: Mapping[str, Any], key: str) -> dict[str, str]:
    value = content[key]
    if not isinstance(value, dict) or set(value) - _IDENTITY_KEYS:
        raise ValueError(f"{key}: needs name and digest only")
    if not all(isinstance(v, str) for v in value.values()):
        raise ValueError(f"{key}: name and digest must be text")
    return value


def _promise(content: Mapping[str, Any]) -> dict[str, float | int | str]:
    value = content["promise"]
    if not isinstance(value, dict) or not all(isinstance(v, int | float | str) for v in value.values()):
        raise ValueError("promise: needs numbers and texts by name")
    return value

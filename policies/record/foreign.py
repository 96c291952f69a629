"""Dependencies of stages that are not built in (plug-ins, scripts, notebooks), for the identity of a run."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from equipoise.base.sources import BY_HAND, PACKAGE, Part, file_parts
from equipoise.policies.contract import Policy


def foreign_sources(policy: Policy) -> list[Part]:
    """Dependencies of stages that are not built in, sorted; empty where all stages are built in.

    For each such stage and its base classes: every Python file of its package and of the modules that it imports
    from the same folder, the versions of its distribution and of that one's dependencies. For a stage from a
    notebook or standard input: its compiled code, and that of the names it uses from there.
    """
    found: set[Part] = set()
    for stage in policy.stages:
        for cls in type(stage).__mro__:
            found.update(_parts_of(cls, type(stage)))
    names = [name for name, _ in sorted(found)]
    return [  # of two folders: both count
        (name if names.count(name) == 1 else f"{name} ({k})", value) for k, (name, value) in enumerate(sorted(found))
    ]


def _parts_of(cls: type, stage: type) -> Iterator[Part]:
    top = cls.__module__.partition(".")[0]
    if top == PACKAGE or (top in sys.stdlib_module_names and top != BY_HAND):
        return
    name = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if name is None or not Path(name).is_file():
        yield f"{cls.__module__}.{cls.__qualname__} (compiled)", digest_of_class(cls)
        return
    yield from file_parts(Path(name), cls.__module__)
    point = _distribution_of(stage)
    for distribution in {*_distributions().get(top, ()), *([point] if point else [])}:
        yield from _versions(distribution)


@cache
def _distributions() -> dict[str, list[str]]:
    """Distributions by their top-level packages."""
    return dict(importlib.metadata.packages_distributions())


@cache
def _distribution_of(cls: type) -> str | None:
    """The distribution whose entry point this stage is; also found for an editable installation."""
    for point in importlib.metadata.entry_points(group="equipoise.stages"):
        if point.value.replace(" ", "") == f"{cls.__module__}:{cls.__qualname__}" and point.dist is not None:
            return point.dist.name
    return None


@cache
def _versions(distribution: str) -> tuple[tuple[str, str], ...]:
    """(name, version) of a distribution and of its installed dependencies."""
    found: dict[str, str] = {}
    waiting = [distribution]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            metadata = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
            continue
        found[name] = metadata.version
        needed = [text for text in metadata.requires or () if "extra ==" not in text]
        waiting += [match[0] for text in needed if (match := re.match(r"[A-Za-z0-9._-]+", text))]
    return tuple((f"{name} (package)", version) for name, version in sorted(found.items()))


def digest_of_class(cls: type) -> str:
    """Hash of a class without a file: byte code of its functions, and of other names that these use."""
    digest, seen = hashlib.sha256(), set[Any]()
    for text in _code_of(cls, cls.__module__, seen):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def _code_of(value: Any, module: str, seen: set[Any]) -> Iterator[str]:
    if isinstance(value, type | FunctionType):
        if value in seen:
            return
        seen.add(value)
    if isinstance(value, staticmethod | classmethod | property):
        for inner in (getattr(value, "__func__", None), getattr(value, "fget", None)):
            yield from _code_of(inner, module, seen)
    elif isinstance(value, type) and value.__module__ == module:
        for name, inner in sorted(vars(value).items()):
            if name not in ("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl"):
                yield name
                yield from _code_of(inner, module, seen)
    elif isinstance(value, FunctionType) and value.__module__ == module:
        yield from _text_of(value.__code__)
        yield from _code_of(value.__defaults__, module, seen)
        yield from _code_of(value.__kwdefaults__, module, seen)
        for name in _names_of(value.__code__):
            if name in value.__globals__:
                yield name
                yield from _code_of(value.__globals__[name], module, seen)
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _code_of(inner, module, seen)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield repr(name)
            yield from _code_of(inner, module, seen)
    elif isinstance(value, str | int | float | None):
        yield repr(value)


def _text_of(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _text_of(constant)
        else:  # the order of a set differs between processes
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _names_of(code: CodeType) -> list[str]:
    inner = [name for c in code.co_consts if isinstance(c, CodeType) for name in _names_of(c)]
    return sorted({*code.co_names, *inner})

"""Features are found by listing the folders of `sim/features`; no other code names one."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).with_name("features")


def files(pattern: str) -> list[Path]:
    """Files in the folders of features that match a pattern."""
    return sorted(FOLDER.glob(f"*/{pattern}"))


@cache
def part(feature: str, name: str) -> ModuleType:
    """The module of this name of one feature."""
    return import_module(f"equipoise.sim.features.{feature}.{name}")


@cache
def parts(name: str) -> tuple[ModuleType, ...]:
    """The module of this name of each feature, in order of the features' names."""
    return tuple(part(path.parent.name, name) for path in files(f"{name}.py"))

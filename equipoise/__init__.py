"""Simulate, calibrate and deploy scheduling policies for GPU training clusters.

`run(scenario)`, `compare(scenario, policies)`, `sweep(file, out)` and `size(scenario, ...)` simulate,
`load(path)` reads a scenario file,
`attach(model, optimizer, ...)` puts a policy into a real training job. Modules are imported on first use.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.api import load, run
    from equipoise.live.attach import attach
    from equipoise.sim.scenario.model import Scenario
    from equipoise.studies import compare, size, sweep

if not (Path(__file__).parent / "sim").is_dir():
    raise ImportError(
        f"{Path(__file__).parent} has no folder 'sim': this checkout has no symbolic links; "
        "clone again with git's core.symlinks on"
    )

from equipoise.base.version import __version__ as __version__

__all__ = ["Scenario", "attach", "compare", "load", "run", "size", "sweep"]

_WHERE = {
    "run": "equipoise.api",
    "compare": "equipoise.studies",
    "load": "equipoise.api",
    "size": "equipoise.studies",
    "sweep": "equipoise.studies",
    "attach": "equipoise.live.attach",
    "Scenario": "equipoise.sim.scenario.model",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])

"""Kernels as plain Python, so that a changed one is tried without compiling."""

from __future__ import annotations

from types import ModuleType

import numpy as np


def as_plain_python(jit: ModuleType) -> None:
    """No kernel is compiled, and rows of tables have their columns as attributes, as in compiled ones."""
    for name in [name for name in vars(jit) if name.startswith("jit")]:
        setattr(jit, name, lambda function: function)
    jit.compiled_for = lambda kernel, *_: kernel  # type: ignore[attr-defined]
    from equipoise.sim.network import tables

    for name in ("FLOW", "LINK", "USE"):
        setattr(tables, name, np.dtype((np.record, getattr(tables, name))))

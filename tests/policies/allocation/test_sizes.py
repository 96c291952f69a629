"""The integer programme of sizes: what its solver prints stays away from results."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from equipoise.policies.allocation.sizes import best_sizes


def test_what_the_solver_prints_does_not_reach_standard_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    c, solve = ctypes.CDLL(None), scipy.optimize.milp

    def chatty(*args: Any, **more: Any) -> Any:
        c.puts(b"a line of the solver")
        return solve(*args, **more)

    monkeypatch.setattr(scipy.optimize, "milp", chatty)
    one = np.ones(2, dtype=np.int64)
    rows, room = np.array([0, 1]), np.array([2])
    chosen = best_sizes(one, 0 * one, np.array([1.0, 2.0]), rows, np.zeros(2, dtype=np.bool_), room, 10.0)
    c.puts(b"a line of ours")
    c.fflush(None)
    assert chosen.tolist() == [True, True]
    assert capfd.readouterr().out == "a line of ours\n"

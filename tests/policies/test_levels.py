"""Levels of the network: who is near to whom, and how much drift near exchanges leave."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.policies.levels import far_ratio, mean_interval, near_groups


@pytest.mark.parametrize(
    ("node", "rack", "groups"),
    [
        ([0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 1, 1]),
        ([0, 0, 1, 1], [5, 5], [0, 0, 1, 1]),  # in one rack: by node
        ([3, 1, 3], [0, 0, 0, 0], [1, 0, 1]),
        ([0, 1, 2], [0, 1, 2], None),
        ([0, 1, 2], [4, 4, 4], None),
        ([2, 2, 2], [0, 0, 0], None),
        ([0, 0, 1], [0, 1], [0, 0, 1]),
    ],
)
def test_who_is_near(node: list[int], rack: list[int], groups: list[int] | None) -> None:
    found = near_groups(np.array(node), np.array(rack))
    assert (None if found is None else found.tolist()) == groups


def test_what_near_exchanges_leave() -> None:
    """Of four workers in two groups a third of the drift; every 2 steps near, every 16 all: 2 x (1 + 7 / 3)."""
    ratio = far_ratio(np.array([0, 0, 1, 1]))
    assert ratio == pytest.approx(1 / 3)
    assert far_ratio(np.array([0, 1, 2, 2])) == pytest.approx(2 / 3)
    assert mean_interval(2, 8, ratio) == pytest.approx(20 / 3)
    assert mean_interval(5, 1, ratio) == 5.0

"""Random scenarios with all features at once: no law is broken; those that once were are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.soak.__main__ import KEPT
from tests.soak.laws import broken
from tests.soak.scenarios import make


def checked(numbers: range) -> list[str]:
    return [
        f"python -m tests.soak --from {number} --runs 1: {law}" for number in numbers for law in broken(make(number))
    ]


@pytest.mark.parametrize("first", range(0, 20, 4))
def test_a_few_scenarios(first: int) -> None:
    assert checked(range(first, first + 4)) == []


@pytest.mark.long
@pytest.mark.parametrize("first", range(20, 420, 20))
def test_many_scenarios(first: int) -> None:
    assert checked(range(first, first + 20)) == []


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_broke_a_law_once(path: Path) -> None:
    assert broken(yaml.safe_load(path.read_text(encoding="utf-8"))) == []

"""Files that are nearly right: taken and sensible, or refused in one line with its place; see `judge`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fuzz.__main__ import KEPT, tried
from tests.fuzz.grammar import Source, sources
from tests.fuzz.judge import judge, ready

BATCH = 25


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    ready()
    return sources(tmp_path_factory.mktemp("made"))


def batch(known: list[Source], folder: Path, first: int) -> list[str]:
    failed = []
    sources(folder)  # beside the input lies what it names
    for number in range(first, first + BATCH):
        source = known[number % len(known)]
        _, fault = tried(source, number, folder)
        if fault is not None:
            failed.append(f"python -m tests.fuzz --from {number} --inputs 1   # {source.name}: {fault}")
    return failed


@pytest.mark.parametrize("first", range(0, 100, BATCH))
def test_a_few_inputs(known: list[Source], tmp_path: Path, first: int) -> None:
    assert batch(known, tmp_path, first) == []


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 2100, BATCH))
def test_many_inputs(known: list[Source], tmp_path: Path, first: int) -> None:
    assert batch(known, tmp_path, first) == []


@pytest.mark.parametrize("path", sorted(KEPT.iterdir()), ids=lambda path: path.name)
def test_what_failed_once(known: list[Source], path: Path, tmp_path: Path) -> None:
    sources(tmp_path)
    path = Path(shutil.copy(path, tmp_path))
    kind = "policy" if path.name.endswith(".policy.yaml") else "trace" if path.suffix == ".csv" else "yaml"
    fault = judge(path, kind)
    assert fault is None, fault


def test_the_same_number_gives_the_same_input(known: list[Source], tmp_path: Path) -> None:
    for number, source in enumerate(known):
        assert tried(source, number, tmp_path)[0] == tried(source, number, tmp_path)[0]

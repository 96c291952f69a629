"""Files that are nearly right: taken and sensible, or refused in one line with its place; see `judge`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from equipoise.sim.scenario.tree import InputError
from tests.fuzz.__main__ import KEPT, tried
from tests.fuzz.grammar import Source, chosen, make, sources
from tests.fuzz.judge import judge, ready

BATCH = 100
RUNS = 50
"""Of so many inputs of the suite, scenarios that are taken are run, too; of all in the long tests."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def known(folder: Path) -> list[Source]:
    return sources(folder)  # beside the input lies what it names


def batch(known: list[Source], folder: Path, first: int, *, runs: bool, size: int = BATCH) -> list[str]:
    failed = []
    for number in range(first, first + size):
        source = chosen(known, number)
        _, fault = tried(source, number, folder, runs=runs)
        if fault is not None:
            failed.append(f"python -m tests.fuzz --from {number} --inputs 1   # {source.name}: {fault}")
    return failed


@pytest.mark.parametrize("first", range(0, 2000, BATCH))
def test_an_input_is_taken_or_refused_with_its_place(known: list[Source], folder: Path, first: int) -> None:
    assert batch(known, folder, first, runs=False) == []


def test_what_is_taken_runs(known: list[Source], folder: Path) -> None:
    ready()
    assert batch(known, folder, 0, runs=True, size=RUNS) == []


@pytest.mark.long
@pytest.mark.parametrize("first", range(RUNS, 2000, BATCH))
def test_whatever_is_taken_runs(known: list[Source], folder: Path, first: int) -> None:
    ready()
    assert batch(known, folder, first, runs=True) == []


@pytest.mark.parametrize("path", sorted(KEPT.iterdir()), ids=lambda path: path.name)
def test_what_failed_once(path: Path, tmp_path: Path) -> None:
    ready()
    sources(tmp_path)
    path = Path(shutil.copy(path, tmp_path))
    kind = "policy" if path.name.endswith(".policy.yaml") else "trace" if path.suffix == ".csv" else "yaml"
    fault = judge(path, kind)
    assert fault is None, fault


def test_the_same_number_gives_the_same_input(known: list[Source], tmp_path: Path) -> None:
    for number, (source, again) in enumerate(zip(known, sources(tmp_path), strict=True)):
        assert make(source, number) == make(again, number)


@pytest.mark.parametrize(
    ("raised", "kind"), [(InputError(["somewhere: wrong"]), "no place"), (ZeroDivisionError(), "ZeroDivisionError in ")]
)
def test_a_fault_is_seen(
    known: list[Source], folder: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("equipoise.sim.loading.file.read_scenario", fails)
    fault = judge(folder / "quickstart.yaml", "yaml")
    assert fault is not None
    assert fault.kind.startswith(kind)

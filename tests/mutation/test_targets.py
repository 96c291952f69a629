"""What is mutated, and the tests that are to notice, are there."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.__main__ import ROOT, _never_run, interval, room_files
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.targets import ROOMS, TESTS, noticing
from tests.named import path_of


@pytest.mark.parametrize("path", TESTS)
def test_a_file_and_its_tests_are_there(path: str) -> None:
    assert (ROOT / path).is_file()
    for name in TESTS[path].split():
        assert (ROOT / path_of(name)).is_file()


@pytest.mark.parametrize("room", ROOMS)
def test_every_file_of_a_room_has_tests(room: str) -> None:
    for path in room_files(room):
        assert noticing(path), path


@pytest.mark.parametrize("path", EQUIVALENT)
def test_a_line_of_which_a_change_changes_nothing_is_still_there(path: str) -> None:
    lines = {line.strip() for line in (ROOT / path).read_text().splitlines()}
    for change in EQUIVALENT[path]:
        before, _, after = change.partition(" -> ")
        assert before in lines
        assert after not in lines


def test_annotations_and_settings_of_data_classes_are_not_changed() -> None:
    lines = [
        "@dataclass(frozen=True)", "class A:", "    b: int | None = 1",
        "    def c(self, d: int | str = 2) -> A | None:",
        "        return None",
    ]  # fmt: skip
    text = "\n".join(lines)
    silent = {lines[begin[0] - 1][begin[1] : end[1]] for begin, end in _never_run(ast.parse(text))}
    assert silent == {"dataclass(frozen=True)", "int | None", "int | str", "A | None"}


def test_the_interval_of_a_share() -> None:
    assert interval(0, 0) == (0.0, 1.0)
    assert interval(88, 100) == pytest.approx((0.8019, 0.9300), abs=1e-4)  # Wilson (1927)

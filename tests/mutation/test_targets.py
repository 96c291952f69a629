"""What is mutated, and the tests that are to notice, are there."""

from __future__ import annotations

import pytest

from tests.mutation.__main__ import ROOT, TESTS
from tests.named import path_of


@pytest.mark.parametrize("path", TESTS)
def test_a_file_and_its_tests_are_there(path: str) -> None:
    assert (ROOT / path).is_file()
    for name in TESTS[path].split():
        assert (ROOT / path_of(name)).is_file()

"""The page of services does what it says."""

from pathlib import Path

import pytest

from equipoise.sim.discover import FOLDER
from tests.front.walkthrough import missing, perform, steps_of


@pytest.mark.long
def test_every_command_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for step in steps_of((FOLDER / "services" / "README.md").read_text(encoding="utf-8")):
        actual = perform(step)
        lost = missing(step.expected, actual, 0.2)
        assert lost is None, f"$ {step.text}\nexpected {lost!r}\nin\n" + "\n".join(actual)

"""The walk-throughs in docs/ do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.front.walkthrough import missing, perform, steps_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOLERANCE = 0.2
"""Numbers may move so far when the model does; words and order may not."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(f"{name}.md", marks=pytest.mark.long)
        for name in ("planning", "research", "site", "how-sure", "post-training")
    ],
)
def test_every_command_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    follow(page, tmp_path, monkeypatch)


def test_every_command_but_those_that_size_prints_what_the_page_shows(tmp_path, monkeypatch):
    follow("site.md", tmp_path, monkeypatch, left_out="equipoise size ")


def follow(page, tmp_path, monkeypatch, left_out=()):
    """Do what the page says, without the commands that begin so: no other needs what they make."""
    monkeypatch.chdir(tmp_path)
    steps = steps_of((DOCS / page).read_text(encoding="utf-8"))
    assert sum(step.name is None for step in steps) >= 5
    figures = importlib.util.find_spec("matplotlib") is not None
    for step in steps:
        if ("--figures" in step.text or "--picture" in step.text) and not figures:
            continue  # an extra that need not be installed
        if step.text.startswith(left_out):
            continue
        actual = perform(step)
        if step.name is None:
            lost = missing(step.expected, actual, TOLERANCE)
            assert lost is None, f"$ {step.text}\nexpected {lost!r}\nin\n" + "\n".join(actual)

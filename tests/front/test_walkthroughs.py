"""The walk-throughs in docs/ do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.front.walkthrough import alike, kept, missing, perform, steps_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOLERANCE = 0.2
"""Numbers may move so far when the model does; words and order may not."""


@pytest.mark.parametrize(
    "page", [pytest.param(f"{name}.md", marks=pytest.mark.long) for name in ("planning", "research", "site")]
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


def test_steps_of_a_page():
    page = (
        "```yaml\n# file: a.yaml\nx: 1\n```\n\n```python\nno file\n```\n"
        "```console\n$ equipoise list \\\n    --help\nUsage\n...\n$ python b.py; echo $?\n3\n```\n"
    )
    file, first, second = steps_of(page)
    assert (file.name, file.text) == ("a.yaml", "# file: a.yaml\nx: 1\n")
    assert (first.text, first.expected) == ("equipoise list --help", ("Usage", "..."))
    assert (second.text, second.expected) == ("python b.py; echo $?", ("3",))


def test_lines_are_compared_by_words_and_nearly_equal_numbers():
    assert alike("makespan   12.3 h", "makespan 12.5 h", 0.05)
    assert not alike("makespan 12.3 h", "makespan 14 h", 0.05)
    assert not alike("makespan 12.3 h", "makespan 12.3 min", 0.05)
    assert alike("cost 1,234.50 USD", "cost 1,250.00 USD", 0.05)


def test_what_is_missing_is_told():
    actual = ["a 1", "b 2", "c 3"]
    assert missing(("a 1", "...", "c 3"), actual, 0.1) is None
    assert missing(("...", "b 2", "..."), actual, 0.1) is None
    assert missing(("a 1", "c 3"), actual, 0.1) == "c 3"
    assert missing(("...", "c 3", "b 2"), actual, 0.1) == "b 2"
    assert "there is more" in missing(("a 1", "b 2"), actual, 0.1)


def test_lines_that_are_written_anew_are_those_with_their_label():
    actual = ["jobs   9", "jobs completed   8", "wait p50  3 s", "wait p95  4 min", "nodes  2  1 USD"]
    assert kept(("a", "b"), actual) == tuple(actual)
    shown = ("...", "jobs completed  7", "...", "wait p95  9 s", "wait p50  9 s", "nodes 3 4 USD", "gone 1")
    renewed = ("...", actual[1], "...", actual[3], actual[2], actual[4], "gone 1")
    assert kept(shown, actual) == renewed


def test_a_command_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (step,) = steps_of("```console\n$ equipoise run nothing.yaml\n```\n")
    with pytest.raises(AssertionError, match="exit code 2"):
        perform(step)
    (told,) = steps_of("```console\n$ equipoise run nothing.yaml; echo $?\n2\n```\n")
    assert perform(told) == ["2"]

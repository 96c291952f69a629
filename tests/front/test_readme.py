"""The examples of the README run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.sim.loading.file import read_scenario
from equipoise.study.stage_check import rules_for

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|yaml)\n(.*?)^```$", README, re.M | re.S)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


@pytest.mark.parametrize("code", blocks("python"), ids=["compare", "policy"])
def test_python_examples_run(code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    names = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    shown = capsys.readouterr().out
    if "SmallestFirst" in names:
        assert float(shown) > 0
        stage = names["SmallestFirst"]()
        for rule in rules_for(stage):
            rule(stage)
    else:
        assert "easy" in shown
        assert "makespan" in shown


def test_the_policy_of_the_walk_through_holds_to_the_contract() -> None:
    page = (ROOT / "docs" / "research.md").read_text(encoding="utf-8")
    code = next(text for text in re.findall(r"```python\n(.*?)```", page, re.S) if "class LeastWork" in text)
    names = {"__name__": "idea"}
    exec(compile(code, "idea.py", "exec", dont_inherit=True), names)
    stage = names["LeastWork"]()
    for rule in rules_for(stage):
        rule(stage)


def test_the_policy_example_is_short() -> None:
    code = next(text for text in blocks("python") if "SmallestFirst" in text)
    body = code[code.index("    def refine") : code.index("\n\n\nrun =")]
    assert len(body.splitlines()) <= 20


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_examples_load(text: str, tmp_path: Path) -> None:
    path = tmp_path / "readme.yaml"
    path.write_text(text, encoding="utf-8")
    assert read_scenario(path).warnings == ()


def test_what_it_names_exists() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", README, re.M)
    folders = [name for row in rows for name in re.findall(r"`(\w+)/`", row)]
    scenarios = re.findall(r"scenarios/[\w-]+\.yaml", README)
    assert len(folders) >= 8
    assert len(scenarios) >= 3
    for name in [*folders, *scenarios]:
        assert (ROOT / name).exists(), name

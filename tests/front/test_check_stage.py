"""`equipoise check-stage`: the rules of the contract without the repository, and what breaks them."""

import importlib.metadata
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from equipoise import cli
from equipoise.policies.contract import Stage
from equipoise.study.stage_check import rules_for


@dataclass(frozen=True)
class Installed(Stage):
    """Deals as `how` says."""

    name: ClassVar[str] = "installed"
    kind: ClassVar[str] = "tasks"
    how: str = "well"

    def refine(self, observation, plan, memory):
        if self.how == "silently":
            return plan, memory
        if self.how == "raises":
            raise ValueError("no\nidea")
        if self.how == "too much" and len(observation.workers):
            more = observation.workers.samples_per_step + 1
            return plan.with_(samples_per_step=more).because(self.name, "more"), memory
        if self.how == "at random":
            return plan.because(self.name, str(np.random.default_rng().random())), memory
        return plan.because(self.name, "nothing to do"), memory


@pytest.fixture
def plugin(monkeypatch):
    of_all = importlib.metadata.entry_points

    def found(**asked):
        ours = EntryPoint("installed", f"{__name__}:Installed", "equipoise.stages")
        return [ours] if asked == {"group": ours.group} else of_all(**asked)

    monkeypatch.setattr("importlib.metadata.entry_points", found)


def test_a_good_stage_holds_to_every_rule(plugin, capsys):
    assert cli.main(["check-stage", "installed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rules_for(Installed()))
    assert all(line.startswith("ok ") for line in lines)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("silently", "no reason was given"),
        ("raises", "ValueError: no idea (test_check_stage.py:"),
        ("too much", "samples_per_step: job row 0"),
        ("at random", "the same input gave another plan"),
    ],
)
def test_a_bad_one_is_told_what_it_breaks(plugin, capsys, how, said):
    assert cli.main(["check-stage", f"installed(how={how})"]) == 1
    out = capsys.readouterr().out
    assert said in out
    assert all(line.startswith(("ok ", "broken ")) for line in out.splitlines())


def test_a_name_that_is_none_is_one_line(capsys):
    assert cli.main(["check-stage", "tiresia"]) == 2
    assert "did you mean 'tiresias'?" in capsys.readouterr().err


def test_the_rules_need_nothing_that_is_not_installed():

    source = Path(sys.modules[rules_for.__module__].__file__).read_text(encoding="utf-8")
    assert "hypothesis" not in source
    assert "pytest" not in source

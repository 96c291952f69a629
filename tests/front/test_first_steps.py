"""The way of somebody new: from a clone to an answer about a model of their own, as the README says it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.front.first_steps import asking, installing, write_own

COMMANDS_MOST = 10


def test_an_answer_takes_at_most_ten_commands() -> None:
    there = ["git clone ADDRESS", "cd equipoise", *installing()]
    asked = asking()
    assert there[2:] == ["make demo", ". .venv/bin/activate"]
    assert [line.split()[:2] for line in asked] == [["equipoise", word] for word in ("fit", "run", "size")]
    assert len([*there, "edit mine.yaml", *asked]) <= COMMANDS_MOST


@pytest.mark.long
def test_the_commands_answer_about_a_model_of_ones_own(tmp_path: Path) -> None:
    write_own(tmp_path)
    told = []
    for line in asking():
        words = [word.strip('"') for word in line.split()]
        program = [sys.executable, "-c", "import sys; from equipoise.cli import main; sys.exit(main(sys.argv[1:]))"]
        made = subprocess.run([*program, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        told.append(made.stdout)
    fit, run, size = told
    assert re.search(r"\d GB|\d GiB", fit)
    time_h = float(re.search(r"makespan +([\d.]+) h", run)[1])  # type: ignore[index]
    flop = 1e11 * (6 * 3.2e9 + 6 * 28 * 3072 * 4096)
    mfu = float(re.search(r"MFU +([\d.]+) %", run)[1]) / 100  # type: ignore[index]
    assert time_h == pytest.approx(flop / (64 * 989.5e12 * mfu) / 3600, rel=0.1)
    assert float(re.search(r"cost +([\d,]+)", run)[1].replace(",", "")) == pytest.approx(64 * 3.0 * time_h, rel=0.02)  # type: ignore[index]
    assert re.search(r"^\d+ nodes meet makespan<=2d", size, re.MULTILINE)

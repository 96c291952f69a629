"""The way of somebody new: from a clone to an answer about a model of their own, as the README says it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS_MOST = 10
OWN = {
    "model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
    "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
"""A model that nobody has published: of 3.2e9 parameters."""


def commands(before: str) -> list[str]:
    """The lines of the first indented block after a sentence of the README, without their remarks."""
    block = re.search(r"\n((?:    .*\n)+)", README.split(before)[1])
    assert block is not None
    return [line.strip().partition("   #")[0].strip() for line in block[1].splitlines()]


def test_an_answer_takes_at_most_ten_commands() -> None:
    there = ["git clone ADDRESS", "cd equipoise", *commands("Debian or Ubuntu with Python")[:2]]
    asked = commands("or the path of your own `config.json`. Then:")
    assert there[2:] == ["make demo", ". .venv/bin/activate"]
    assert [line.split()[:2] for line in asked] == [["equipoise", word] for word in ("fit", "run", "size")]
    assert len([*there, "edit mine.yaml", *asked]) <= COMMANDS_MOST


@pytest.mark.long
def test_the_commands_answer_about_a_model_of_ones_own(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n# mine.yaml\n(.*?)```", README, re.DOTALL)
    assert example is not None
    (tmp_path / "mine.yaml").write_text(example[1].replace("llama2-7b", "config.json"))
    (tmp_path / "config.json").write_text(json.dumps(OWN))
    told = []
    for line in commands("or the path of your own `config.json`. Then:"):
        words = [word.strip('"') for word in line.split()]
        program = [
            sys.executable,
            "-c",
            "import sys; from equipoise.cli import main; sys.exit(main(sys.argv[1:]))",
        ]
        made = subprocess.run(
            [*program, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stderr
        told.append(made.stdout)
    fit, run, size = told
    assert re.search(r"\d GB|\d GiB", fit)
    time_h = float(re.search(r"makespan +([\d.]+) h", run)[1])  # type: ignore[index]
    flop = 1e11 * (6 * 3.2e9 + 6 * 28 * 3072 * 4096)
    mfu = float(re.search(r"MFU +([\d.]+) %", run)[1]) / 100  # type: ignore[index]
    assert time_h == pytest.approx(flop / (64 * 989.5e12 * mfu) / 3600, rel=0.1)
    assert float(re.search(r"cost +([\d,]+)", run)[1].replace(",", "")) == pytest.approx(
        64 * 3.0 * time_h, rel=0.02
    )  # type: ignore[index]
    assert re.search(r"^\d+ nodes meet makespan<=2d", size, re.MULTILINE)

"""The LaTeX of a comparison compiles."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import equipoise

CASE = {
    "schema_version": 1,
    "name": "50 % of A_1 & B #2",
    "cluster": {"gpus": 8},
    "workload": {"jobs": [{"count": 4, "gpus": 3, "duration": "1 h"}, {"gpus": 8, "arrival": 60.0, "duration": "1 h"}]},
}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_the_latex_of_a_comparison_compiles(tmp_path: Path) -> None:
    table = equipoise.compare(CASE, ["fifo", "easy", "las(thresholds_gpu_s=[60, 600])"], seeds=1).as_latex()
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    (tmp_path / "paper.tex").write_text(f"{head}{table}\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 1000

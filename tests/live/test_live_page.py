"""The whole scripts in docs/live.md run as they stand there; what it says is not supported is tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/live.md").read_text()
SCRIPTS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.S))


def run(folder: Path, name: str, *launcher: str) -> str:
    (folder / name).write_text(SCRIPTS[name])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *launcher, name]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_plain_script_trains_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first = run(tmp_path, "plain.py", "torch.distributed.run", "--nproc-per-node", "2")
    assert re.findall(r"epoch (\d), round (\d+)", first) == [("1", "20"), ("2", "40"), ("3", "60")]
    again = run(tmp_path, "plain.py", "torch.distributed.run", "--nproc-per-node", "3")
    assert "round" not in again  # only the 4 rounds behind the checkpoint are left
    assert len(list(tmp_path.glob("runs/*/manifest.json"))) == 2

"""The whole scripts in docs/live.md run as they stand there; what it says is not supported is tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from equipoise.live.options import Options
from equipoise.live.unsupported import check_exchange

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/live.md").read_text()
SCRIPTS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.S))


@pytest.mark.parametrize(
    ("sharded", "static", "says"),
    [
        (True, False, "drift: 0.1 is not allowed with fully_shard"),
        (False, True, "drift: 0.1 is not allowed with static_graph=True"),
    ],
)
def test_ways_to_exchange_without_a_lever_are_refused(sharded: bool, static: bool, says: str) -> None:
    wrapper: Any = SimpleNamespace(sharded=sharded, model=SimpleNamespace(static_graph=static))
    with pytest.raises(ValueError, match=says):
        check_exchange(wrapper, Options(global_batch=8, drift=0.1))
    allowed = check_exchange(wrapper, Options(global_batch=8)).allow
    assert "interval" not in allowed


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


def test_no_built_in_stage_plans_accumulation() -> None:
    assert "Of the stages here none plans it" in PAGE
    sources = [p for room in ("stages", "baselines", "allocation") for p in (ROOT / "policies" / room).rglob("*.py")]
    assert len(sources) > 20
    assert [p.name for p in sources if re.search(r"\baccumulation\s*=", p.read_text())] == []

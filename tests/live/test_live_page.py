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

SHOWN = {
    "FullyShardedDataParallel (FSDP1)": ("test_unsupported.py", '"sharded before"'),
    "tensor, pipeline or expert parallel parts of one model": ("test_unsupported.py", '"not sharded over all"'),
    "`torch.compile(ddp)`": ("test_unsupported.py", '"compiled"'),
    "LBFGS, PostLocalSGDOptimizer": ("test_misuse.py", 'sayings["averaging"]'),
    "`fully_shard` and ranks that die or join": (
        "test_live_page.py",
        "def test_ways_to_exchange_without_a_lever_are_refused",
    ),
    "local steps with `fully_shard`, `static_graph=True` or ZeRO": (
        "test_live_page.py",
        "def test_ways_to_exchange_without_a_lever_are_refused",
    ),
    "batch normalisation that is equal to one process": ("train/test_losses.py", '"synchronised batch norm"'),
    "losses that gather features from other ranks in backward": (
        "test_unsupported.py",
        "def test_a_loss_over_gathered_features_is_exact_with_equal_shares_only",
    ),
    "a generator, which can be read once only": ("test_unsupported.py", '"generator"'),
}
"""What the page says is not supported: the file here in which that is seen, and what is written there."""


def test_every_row_of_what_is_not_supported_is_tried() -> None:
    table = PAGE.split("| not supported | instead |")[1].split("\n\n")[0]
    rows = {line.split("|")[1].strip() for line in table.splitlines()[2:]}
    assert rows == set(SHOWN)
    for file, what in SHOWN.values():
        assert what in (Path(__file__).parent / file).read_text(), (file, what)


@pytest.mark.parametrize(
    ("sharded", "static", "regroups", "says"),
    [
        (True, False, True, "model: fully_shard is not allowed in a job that may lose ranks"),
        (True, False, False, "drift: 0.1 is not allowed with fully_shard"),
        (False, True, False, "drift: 0.1 is not allowed with static_graph=True"),
    ],
)
def test_ways_to_exchange_without_a_lever_are_refused(sharded: bool, static: bool, regroups: bool, says: str) -> None:
    wrapper: Any = SimpleNamespace(sharded=sharded, model=SimpleNamespace(static_graph=static))
    with pytest.raises(ValueError, match=says):
        check_exchange(wrapper, Options(global_batch=8, drift=0.1), regroups=regroups)
    allowed = check_exchange(wrapper, Options(global_batch=8), regroups=False).allow
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


@pytest.mark.long
def test_the_elastic_script_trains_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first = run(tmp_path, "elastic.py", "equipoise.live.group.launch", "--ranks", "2")
    assert re.findall(r"epoch (\d), round (\d+): 2 ranks", first) == [("1", "20"), ("2", "40"), ("3", "60")]
    again = run(tmp_path, "elastic.py", "equipoise.live.group.launch", "--ranks", "3")
    assert "round" not in again  # only the 4 rounds behind the checkpoint are left


def test_no_built_in_stage_plans_accumulation() -> None:
    assert "Of the stages here none plans it" in PAGE
    sources = [p for room in ("stages", "baselines", "allocation") for p in (ROOT / "policies" / room).rglob("*.py")]
    assert len(sources) > 20
    assert [p.name for p in sources if re.search(r"\baccumulation\s*=", p.read_text())] == []

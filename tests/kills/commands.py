"""Every command that writes, in a folder with what it reads; and what equal commands leave equal."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from equipoise.cli import main
from tests.formats.test_site import GRES, SLURM
from tests.sim.llm.test_fit_steps import write as write_steps
from tests.study.replay.test_replay import recorded
from tests.study.replay.test_replay import write as write_operations
from tests.study.twin.twin_runs import Truth, write_run

CASE = {
    "schema_version": 1,
    "name": "small",
    "cluster": {"nodes": [{"name": "n", "count": 2, "gpus": 1}]},
    "workload": {
        "models": {"m": {"sample_time": 0.01, "parameters": 1e6, "exchange": {"alpha": 1e-5, "rate": 1e9}}},
        "jobs": [
            {"name": "training", "gpus": 2, "model": "m", "steps": 40, "global_batch": 8},
            {"name": "rigid", "gpus": 1, "duration": 60.0, "count": 3},
        ],
    },
    "noise": {"step_cov": 0.1},
    "decide": {"every_steps": 20},
}
SWEEP = {
    "schema_version": 1,
    "name": "small sweep",
    "scenario": "case.yaml",
    "policies": ["fifo", "sjf"],
    "seeds": 2,
    "parameters": {"noise.step_cov": [0.1, 0.2]},
}

STEPS_S = {"small": 1.0, "large": 1.9}

COMMANDS = {
    "run": "run case.yaml --out new --timeline --journal",
    "run over another": "run case.yaml --policy sjf --out kept --timeline --journal",
    "compare": "compare case.yaml --policy fifo --policy sjf --seeds 2 --out new --timeline --journal",
    "compare more": "compare case.yaml --policy fifo --policy sjf --seeds 3 --out compared",
    "sweep": "sweep sweep.yaml --out new --keep",
    "shard": "sweep sweep.yaml --out new --shard 1/2",
    "sweep of shards": "sweep sweep.yaml --out shards",
    "sensitivity": "sensitivity case.yaml --vary noise.step_cov=0..0.3 --out new",
    "tune": "tune case.yaml --vary decide.every_steps=10,20 --trials 2 --seeds 1 --fresh 2 --out new",
    "size": "size case.yaml --vary cluster.nodes.0.count=1:2 --target makespan<=24h --seeds 1 --out new",
    "limits": "limits case.yaml --out new",
    "report": "report kept --out page.html",
    "report of a comparison": "report compared",
    "figures": "report kept --figures drawn",
    "watched page": "watch compared --once --page watched.html",
    "timeline": "timeline kept",
    "timeline of steps": "replay steps.csv --timeline step.json.gz",
    "query parquet": "query --out compared --to rows.parquet FROM\tjobs",
    "query csv": "query --out compared --to rows.csv FROM\truns",
    "export": "export case.yaml --out policy.yaml",
    "import": "import slurm.conf gres.conf --out site.yaml",
    "twin": "twin live --scenario twin.yaml",
    "fit-steps": "calibrate fit-steps fit/steps.csv --out stack.yaml",
    "calibrate": "calibrate --device cpu --quick --only copy,gemm,storage_write --seconds 0.5 --out host.yaml",
}
"""By name; words are parted by spaces, and within a word there are tabs."""
MEASURES = ("calibrate",)
"""What these write differs from time to time."""


def words(name: str) -> list[str]:
    """The arguments of a command of `COMMANDS`."""
    return [word.replace("\t", " ") for word in COMMANDS[name].split(" ")] + ["-q"]


def prepare(folder: Path) -> None:
    """Put what the commands read into an empty folder; paths are taken from the present directory."""
    (folder / "case.yaml").write_text(yaml.safe_dump(CASE))
    (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    (folder / "slurm.conf").write_text(SLURM)
    (folder / "gres.conf").write_text(GRES)
    rows = [f"{k},{60 * k},{1 + k % 2},{30 + 7 * k}" for k in range(20)]
    (folder / "trace.csv").write_text("\n".join(["job_id,arrival_s,gpus,duration_s", *rows]) + "\n")
    write_run(Truth(rounds=24, slow_at_s=0.5), folder / "live")
    write_operations(folder / "steps.csv", recorded(lambda step, replica, stage, k: 1.0))
    (folder / "fit").mkdir()
    write_steps(folder / "fit", *(f"{name}.json,H100,8,400e9,{s},8,1,1,64,true" for name, s in STEPS_S.items()))
    for line in (
        "run case.yaml --policy fifo --out kept --timeline --journal -q",
        "compare case.yaml --policy fifo --policy sjf --seeds 2 --out compared --timeline -q",
        "sweep sweep.yaml --out shards --shard 1/2 -q",
        "sweep sweep.yaml --out shards --shard 2/2 -q",
    ):
        assert main(line.split(" ")) == 0


def held(folder: Path) -> dict[str, Any]:
    """What a folder holds, without times and processes: equal commands leave equal contents."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not path.name.endswith((".lock", "-wal", "-shm")) and path.name != "runs.parquet":
            found[name] = _held(path)
    return found


def drafts(folder: Path) -> list[str]:
    """What a killed process left behind of a file that had not taken its place."""
    return [path.name for path in folder.rglob(".*") if path.name.rpartition(".")[2].isdecimal()]


def _held(path: Path) -> Any:
    if path.name == "sweep.db":
        with closing(sqlite3.connect(path)) as db:
            if not db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'runs'").fetchone()[0]:
                return []  # the disk was full before it was there
            cursor = db.execute("SELECT * FROM runs ORDER BY id")
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        return [_timeless(row) for row in rows]
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text()))
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _timeless(value: Any) -> Any:
    """Without what differs between equal runs."""
    if isinstance(value, dict):
        dropped = ("cpu_s", "wall_s", "attempts", "reused", "made")
        return {key: _timeless(kept) for key, kept in value.items() if key not in dropped and kept is not None}
    return [_timeless(each) for each in value] if isinstance(value, list) else value

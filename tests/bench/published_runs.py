"""Published training runs against the steps that `fit` predicts for their layouts, with the shipped stacks.

    python -m tests.bench.published_runs DATA

DATA holds `throughput/published_runs.csv`. Prints a row a run: measured seconds, measured over predicted. The ratios
are those of `sim/llm/certainty.py`, from which intervals of predicted steps come.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from equipoise.study.questions.fits import fits


def scenario(row: dict[str, str]) -> dict[str, Any]:
    """One job of a row on its cluster; a row without a layout takes the fastest that fits."""
    gpus = int(row["gpus"])
    each = min(int(row["gpus_per_node"]), gpus)
    nics = re.match(r"(\d+)x (\d+) Gbit/s", row["nic"])
    assert nics is not None
    node: dict[str, Any] = {"count": gpus // each, "gpus": each, "accelerator": row["accelerator"]}
    node["nic"] = f"{int(nics[1]) * int(nics[2])} Gbit/s"
    if row["fabric"]:
        node["fabric"] = row["fabric"]
    transformer = {**json.loads(row["shape"]), "stack": row["stack_tried"]}
    transformer |= {"layout": json.loads(row["layout"])} if row["layout"] else {"plan": "auto"}
    return {
        "schema_version": 1,
        "name": "published",
        "cluster": {"nodes": [node]},
        "workload": {
            "models": {"m": {"precision": row["precision"], "transformer": transformer}},
            "jobs": [
                {"name": "j", "model": "m", "gpus": gpus, "global_batch": int(row["sequences_per_step"]), "steps": 10}
            ],
        },
    }


def main(data: Path) -> None:
    """Print measured seconds and their ratio to the predicted ones."""
    with (data / "throughput" / "published_runs.csv").open() as file, tempfile.TemporaryDirectory() as folder:
        for row in csv.DictReader(file):
            path = Path(folder, "run.yaml")
            path.write_text(yaml.safe_dump(scenario(row)))
            (found,) = fits(path)
            measured_s = float(row["step_s"])
            print(f"{row['run']:42} {row['kind']:16} {measured_s:8.4g} s {measured_s / found.step_s:6.3f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

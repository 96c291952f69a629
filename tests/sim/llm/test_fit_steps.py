"""A CSV of measured steps: what it may hold, and that its fit predicts them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from equipoise.calibrate.fit_steps import fit_steps, predicted_steps, read_steps
from equipoise.sim.llm.stack import Stack
from equipoise.sim.llm.step_time import step_time
from tests.sim.llm.test_shape import LLAMA

HEAD = "config,accelerator,node_gpus,node_bytes_per_s,seconds,"
HEAD += "data,tensor,micro_batch,global_batch,sequence_parallel"


def write(folder: Path, *rows: str) -> Path:
    for name, layers in (("small", 16), ("large", 32)):
        (folder / f"{name}.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": layers}))
    path = folder / "steps.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return path


def test_a_fit_predicts_the_steps_it_read(tmp_path: Path) -> None:
    rows = [
        f"{name}.json,H100,8,400e9,1,{8 // tensor},{tensor},{micro},64,true"
        for name in ("small", "large")
        for tensor in (1, 2, 8)
        for micro in (1, 2)
    ]
    plans = [step.plan for step in read_steps(write(tmp_path, *rows))]
    slow = Stack(matmul_efficiency=0.4, elementwise_bytes=60.0)
    timed = [row.replace(",1,", f",{step_time(p, slow).total!r},", 1) for row, p in zip(rows, plans, strict=True)]
    steps = read_steps(write(tmp_path, *timed))
    found = fit_steps(steps)
    assert np.median(np.abs(predicted_steps(found, steps) / [s.seconds for s in steps] - 1)) < 0.01
    assert found.spread[0] <= 1 <= found.spread[1]
    assert found.families == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("small.json,H100,8,400e9,-1,1,1,1,8,true", r"steps.csv:2: seconds: -1 is not a number above 0"),
        ("small.json,Z9,8,400e9,1,1,1,1,8,true", r"steps.csv:2: accelerator: Z9 is not known; allowed: V100"),
        ("small.json,H100,8,400e9,1,1,1,1,8,yes", r"steps.csv:2: sequence_parallel: yes is not true or false"),
        ("small.json,H100,8,400e9,1,3,1,1,8,true", r"steps.csv:2: global_batch: 8 is not a multiple"),
        ("none.json,H100,8,400e9,1,1,1,1,8,true", r"steps.csv:2: .*none.json"),
        (",H100,8,400e9,1,1,1,1,8,true", r"steps.csv:2: config: missing"),
        ("small.json,H100,8,400e9,1_0,1,1,1,8,true", r"steps.csv:2: seconds: 1_0 is not a number above 0"),
        ("small.json,H100,8_0,400e9,1,1,1,1,8,true", r"steps.csv:2: node_gpus: 8_0 is not a whole number"),
        ("small.json,H100,8.5,400e9,1,1,1,1,8,true", r"steps.csv:2: node_gpus: 8.5 is not a whole number"),
        ("small.json,H100,8,400e9,1,²,1,1,8,true", r"steps.csv:2: data: ² is not a whole number"),
        ("small.json,H100,8,400e9,1,1,1,1,8,true,9", r"steps.csv:2: 11 values, but there are 10 columns"),
        ("a" * 200_000, r"steps.csv:2: not a table: field larger than field limit"),
        ('"small.json,H100', r"steps.csv:2: not a table: unexpected end of data"),
        ("pipe.json,H100,8,400e9,1,1,1,1,8,true", r"steps.csv:2: .*pipe.json: not a regular file"),
        ("deep.json,H100,8,400e9,1,1,1,1,8,true", r"steps.csv:2: config.json: nested too deeply"),
        ("large_number.json,H100,8,400e9,1,1,1,1,8,true", r"steps.csv:2: hidden_size: 10{39} is not a whole"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "large_number.json").write_text(json.dumps({**LLAMA, "hidden_size": 10**400}))
    with pytest.raises(ValueError, match=message):
        read_steps(write(tmp_path, row))


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("config,speed\n")
    with pytest.raises(ValueError, match=r"steps.csv:1: speed: unknown column; allowed: accelerator"):
        read_steps(path)

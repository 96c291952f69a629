"""The commands that make predictions usable: fit, calibrate fit-steps, validate-against."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from equipoise.cli import main
from equipoise.sim.llm.stack import Stack
from equipoise.sim.llm.step_time import step_time
from equipoise.sim.loading.file import load
from equipoise.study.validation.rows import Cells
from equipoise.study.validation.sets import sailor
from tests.sim.llm.test_fit_steps import HEAD
from tests.sim.llm.test_scenario import data
from tests.sim.llm.test_shape import LLAMA

Capture = pytest.CaptureFixture[str]


def scenario(folder: Path, layout: dict[str, Any] | None = None, **more: Any) -> str:
    path = folder / "case.yaml"
    path.write_text(yaml.safe_dump(data(layout, **more)))
    return str(path)


def test_fit_shows_stages_and_their_interval(tmp_path: Path, capsys: Capture) -> None:
    path = scenario(tmp_path, {"tp": 4, "pp": 2, "zero": 1})
    assert main(["fit", path, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert found["fits"]
    assert found["peak_low_bytes"] < found["peak_bytes"] < found["peak_high_bytes"]
    assert len(found["stages"]) == 2
    assert found["peak_bytes"] == max(stage["total"] for stage in found["stages"])
    assert found["stages"][0]["weights"] == pytest.approx(found["stages"][1]["weights"], rel=0.05)
    assert found["change"] == {}
    assert 0.3 < found["utilisation"] < 0.7
    assert sum(found["step_parts_s"].values()) == pytest.approx(found["step_s"])


def test_the_smallest_change_makes_it_fit(tmp_path: Path, capsys: Capture) -> None:
    assert main(["fit", scenario(tmp_path, {"tp": 2}), "--format", "json"]) == 4
    found = json.loads(capsys.readouterr().out)[0]
    assert not found["fits"]
    change = {key: after for key, (_, after) in found["change"].items()}
    assert main(["fit", scenario(tmp_path, {"tp": 2, **change})]) == 0
    shown = capsys.readouterr().out
    assert " fits on " in shown
    assert "smallest change" not in shown


def test_fit_lists_the_fastest_layouts_that_fit(tmp_path: Path, capsys: Capture) -> None:
    assert main(["fit", scenario(tmp_path, {"tp": 8, "zero": 1}), "--plans", "3"]) == 0
    times = [float(line.split()[0]) for line in capsys.readouterr().out.splitlines()[-3:]]
    assert times == sorted(times)


def test_fit_needs_a_model_of_known_shape(capsys: Capture) -> None:
    assert main(["fit", "quickstart"]) == 2
    assert "no job of a model with 'transformer' in it" in capsys.readouterr().err


def steps_file(folder: Path) -> Path:
    from equipoise.calibrate.fit_steps import read_steps

    for name, layers in (("small", 16), ("large", 32)):
        (folder / f"{name}.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": layers}))
    rows = [
        f"{n}.json,H100,8,400e9,1,{8 // t},{t},{m},64,true" for n in ("small", "large") for t in (1, 8) for m in (1, 2)
    ]
    path = folder / "steps.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    slow = Stack(matmul_efficiency=0.4)
    times = [float(step_time(step.plan, slow).total) for step in read_steps(path)]
    path.write_text("\n".join([HEAD, *(r.replace(",1,", f",{t!r},", 1) for r, t in zip(rows, times, strict=True))]))
    return path


def test_a_fitted_stack_goes_into_a_scenario(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "ours.yaml"
    assert main(["calibrate", "fit-steps", str(steps_file(tmp_path)), "--out", str(out)]) == 0
    assert "default/H100: 8 steps of 2 models" in capsys.readouterr().out
    assert yaml.safe_load(out.read_text())["constants"]["matmul_efficiency"] == pytest.approx(0.4, rel=0.1)
    case = load(scenario(tmp_path, stack="./ours.yaml"))
    spec = case.workload.models["m"].transformer
    assert spec is not None
    assert spec.constants().matmul_efficiency == pytest.approx(0.4, rel=0.1)
    low, high = yaml.safe_load(out.read_text())["spread"]
    assert main(["fit", scenario(tmp_path, {"tp": 8}, stack="./ours.yaml"), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert found["step_interval_s"] == pytest.approx([found["step_s"] * low, found["step_s"] * high])


def test_fit_steps_says_what_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(HEAD + "\n")
    assert main(["calibrate", "fit-steps", str(path)]) == 2
    assert "no rows: nothing to fit" in capsys.readouterr().err
    assert main(["calibrate", "fit-steps", str(steps_file(tmp_path)), "--for", "x/H100"]) == 2
    assert "--for: x/H100 is not in the file; it has default/H100" in capsys.readouterr().err


MEASURED = {"measured_step_s": "1", "measured_peak_bytes": "1e10"}


def made_up(folder: Path, rows: int = 16) -> Path:
    """A file of the form of a data set, timed by known constants."""
    path = folder / sailor.FILE
    path.parent.mkdir(parents=True)
    names = ["gpus", "model", "dp", "tp", "pp", "micro_batch", "global_batch", "layers_per_stage"]
    lines = []
    for k in range(rows):
        dp, micro, model = 2 ** (k % 4), 1 + k % 3, ("OPT-350", "GPT-Neo")[k // 8]
        lines.append(["GH-96x4", model, dp, 1, 1, micro, 24 * dp, "26" if model == "OPT-350" else "34"])
    times = []
    for line in lines:
        text = dict(zip(names, map(str, line), strict=True)) | MEASURED
        plan = sailor._row(Cells(text)).plan
        times.append(float(step_time(plan, Stack(score_bytes=8.0)).total))
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "measured_step_s", "measured_peak_bytes"])
        for line, seconds in zip(lines, times, strict=True):
            writer.writerow([*line, seconds, 1e10 + 1e8 * len(line)])
    return path


@pytest.mark.long
def test_a_data_set_is_read_from_its_file_alone(tmp_path: Path, capsys: Capture) -> None:
    made_up(tmp_path)
    page, rows = tmp_path / "page.md", tmp_path / "rows.csv"
    more = ["--write", str(page), "--rows", str(rows), "--format", "json"]
    assert main(["validate-against", "sailor", "--data", str(tmp_path), *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0]["median"] < 0.05
    assert "| Sailor plans: half -> half, step |" in page.read_text()
    held = [row for row in csv.DictReader(rows.open()) if "step" in row["line"]]
    error = np.median([abs(float(r["predicted"]) / float(r["measured"]) - 1) for r in held])
    assert error < 0.05


def test_what_is_absent_or_unknown_is_named(tmp_path: Path, capsys: Capture) -> None:
    assert main(["validate-against", "sailor", "--data", str(tmp_path)]) == 2
    assert "sailor_plans_gh200.csv.gz: no such file" in capsys.readouterr().err
    assert main(["validate-against", "sailer", "--data", str(tmp_path)]) == 2
    assert "sailer: no such data set; allowed: " in capsys.readouterr().err
    assert main(["validate-against", "--all", "--data", str(tmp_path)]) == 2
    assert "none of the data sets" in capsys.readouterr().err
    path = made_up(tmp_path)
    for content, told in (
        ("gpus,model,dp\nGH-96x4,OPT-350,1\n", "sailor: no column '"),
        ("gpus,model,dp\nRTX-3090x8,OPT-350,1\n", "RTX-3090x8 is not GH-96, a GH200"),
    ):
        with gzip.open(path, "wt") as file:
            file.write(content)
        assert main(["validate-against", "sailor", "--data", str(tmp_path)]) == 2
        assert told in capsys.readouterr().err


def test_without_a_name_the_data_sets_are_listed(capsys: Capture) -> None:
    assert main(["validate-against"]) == 0
    assert "vtrain         throughput/vtrain_a100_single_node.csv, " in capsys.readouterr().out


COLUMNS = (
    "run,shape,accelerator,gpus,gpus_per_node,nic,fabric,precision,sequences_per_step,stack_tried,layout,step_s,note"
)
RUNS = (
    COLUMNS
    + """
a,"{SHAPE}",h100_sxm,64,8,8x 400 Gbit/s,,bf16,128,megatron-core/H100,"{""tp"": 2}",5.0,
b,"{SHAPE}",h100_sxm,64,8,8x 400 Gbit/s,,bf16,128,megatron-core/H100,"{""tp"": 4}",6.0,size not published
"""
)


def test_another_predictor_is_tried_on_the_same_rows(tmp_path: Path, capsys: Capture) -> None:
    shape = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "sequence": 8192}
    folder = tmp_path / "throughput"
    folder.mkdir()
    text = RUNS.replace("{SHAPE}", json.dumps({**shape, "gated": True}).replace('"', '""'))
    (folder / "published_runs.csv").write_text(text)
    line = "published runs, dense, A100 and H100: step"
    (tmp_path / "other.csv").write_text(f'line,key,predicted\n"{line}",a,4.0\n')
    asked = ["validate-against", "published", "--data", str(tmp_path), "--predictor"]
    assert main([*asked, str(tmp_path / "other.csv")]) == 0
    out = capsys.readouterr().out
    assert "20.0 %" in out.splitlines()[-1]  # 4 of 5 s
    assert main([*asked, "nowhere:nothing"]) == 2
    assert "nowhere:nothing" in capsys.readouterr().err

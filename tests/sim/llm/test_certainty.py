"""How sure predicted steps are: intervals of families that were left out, and what is said outside the fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from equipoise.cli import main
from equipoise.sim.llm.certainty import interval, published_runs

SCENARIO = {
    "schema_version": 1,
    "name": "sure",
    "cluster": {"nodes": [{"count": 8, "gpus": 8, "accelerator": "h100_sxm", "nic": "3200 Gbit/s"}]},
    "workload": {
        "models": {
            "m": {
                "precision": "bf16",
                "transformer": {
                    "config": "llama3-8b",
                    "stack": "megatron-core/H100",
                    "layout": {"tp": 2, "zero": 1, "micro_batch": 1},
                },
            }
        },
        "jobs": [{"name": "j", "model": "m", "gpus": 64, "global_batch": 128, "steps": 5}],
    },
}
EXPERTS = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 32000,
    "sequence": 4096,
    "gated": True,
    "experts": 8,
    "top_k": 2,
    "expert_ffn": 14336,
    "stack": "megatron-core/H100",
    "layout": {"pp": 4, "ep": 8, "zero": 1, "micro_batch": 1, "virtual": 8},
}


def asked(
    folder: Path, capsys: pytest.CaptureFixture[str], accelerator: str, **transformer: object
) -> dict[str, object]:
    """What `fit` says of the model on this accelerator."""
    scenario = json.loads(json.dumps(SCENARIO))
    scenario["cluster"]["nodes"][0]["accelerator"] = accelerator
    model = scenario["workload"]["models"]["m"]
    model["transformer"] = transformer if "experts" in transformer else {**model["transformer"], **transformer}
    path = folder / "sure.yaml"
    path.write_text(yaml.safe_dump(scenario))
    assert main(["fit", str(path), "--format", "json"]) in (0, 4)
    (found,) = json.loads(capsys.readouterr().out)
    return dict(found)


def test_intervals_hold_the_runs_of_families_that_were_left_out() -> None:
    held, groups = [], {run.group for run in published_runs()}
    assert len(groups) == 4
    for group in groups:
        for family in {run.family for run in published_runs() if run.group == group}:
            left = [run for run in published_runs() if run.group == group and run.family == family]
            low, high = interval([run for run in published_runs() if run not in left], group)
            held += [low <= run.ratio <= high for run in left]
    assert 0.8 <= sum(held) / len(held) <= 0.97
    widths = [high / low for low, high in (interval(published_runs(), group) for group in groups)]
    assert max(widths) < 3.2


def test_what_a_fit_has_not_seen_widens_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = asked(tmp_path, capsys, "h100_sxm")
    assert known["step_outside_the_fit"] == []
    low, high = known["step_interval_s"]
    # Mean log ratio of 7 families 0.14, deviation 0.13, t of 9 degrees 1.83: exp(0.14 +- 1.83 x 0.13 x sqrt(8 / 7)).
    assert (low / known["step_s"], high / known["step_s"]) == pytest.approx((0.90, 1.47), rel=0.02)
    assert "H100" in str(known["nearest_measurement"])
    elsewhere = asked(tmp_path, capsys, "mi300x")
    assert any("MI300X" in line.upper() for line in elsewhere["step_outside_the_fit"])
    width = [one["step_interval_s"][1] / one["step_interval_s"][0] for one in (known, elsewhere)]
    assert width[1] > width[0]
    experts = asked(tmp_path, capsys, "b200", **EXPERTS)
    assert any(line.startswith("experts") for line in experts["step_outside_the_fit"])
    assert any("B200" in line for line in experts["step_outside_the_fit"])


def test_one_measured_step_makes_it_sure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = asked(tmp_path, capsys, "h100_sxm")
    told = {"time": 1.1 * float(str(known["step_s"])), "gpus": 64, "global_batch": 128}
    again = asked(tmp_path, capsys, "h100_sxm", measured_step=told)
    low, high = again["step_interval_s"]
    assert again["step_s"] == pytest.approx(told["time"], rel=1e-6)
    assert high / low < 1.1

"""Failures as people count them, and what a size of the cluster is asked for."""

from __future__ import annotations

import json

import pytest
import yaml

from equipoise.cli import main
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError
from tests.sim.planning.test_defaults import BASE, changed


@pytest.mark.parametrize(
    ("crash", "mtbf_h"),
    [
        ({"mtbf": "100 h"}, 100.0),
        ({"per_node_week": 0.5}, 336.0),
        ({"gpu_hours": 50000}, 6250.0),
        ({"job": {"gpus": 1024, "mttf": "7.9 h"}}, 7.9 * 128),
    ],
)
def test_four_ways_to_say_how_often_a_node_fails(crash, mtbf_h):
    scenario = from_mapping(changed(faults={"crash": crash}))
    assert scenario.faults.crash.node_mtbf_s(8) == pytest.approx(mtbf_h * 3600)
    (note,) = [note for note in run(scenario).notes if "a node crashes every" in note]
    assert f"{168 / mtbf_h:.3g} times a week, every {8 * mtbf_h:,.0f} GPU-hours" in note


def test_one_way_at_a_time():
    with pytest.raises(InputError, match="needs exactly one of 'mtbf', 'per_node_week', 'gpu_hours', 'job'"):
        from_mapping(changed(faults={"crash": {"mtbf": "1 h", "gpu_hours": 5}}))


def test_sizes_are_ranked_and_jobs_grow_with_them(tmp_path, capsys):
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(BASE))
    command = ["size", str(tmp_path / "plan.yaml"), "--grow", "--rank", "--objective", "cost"]
    command += ["--target", "makespan<=1d", "--vary", "cluster.nodes.0.count=2,4"]
    command += ["--vary", "cluster.nodes.0.accelerator=h100_sxm,a100_sxm_80gb"]
    assert main([*command, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["ranking"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4]
    assert {row["gpus"] for row in rows} == {16, 32}
    assert [row["cost_usd"] for row in rows] == sorted(row["cost_usd"] for row in rows)
    slow, fast = (next(row for row in rows if row["values"] == f"count {n}, accelerator h100_sxm") for n in (2, 4))
    assert slow["makespan_s"] == pytest.approx(2 * fast["makespan_s"], rel=0.02)
    assert main(command) == 0
    assert "MFU" in capsys.readouterr().out


def test_what_would_change_the_ranking_does(tmp_path, capsys):
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(BASE))

    def asked(**set_: float) -> dict:
        command = ["size", str(tmp_path / "plan.yaml"), "--rank", "--objective", "cost", "--format", "json"]
        kinds = "h100_sxm,a100_sxm_80gb,l40s"
        command += ["--target", "makespan<=1d", "--vary", f"cluster.nodes.0.accelerator={kinds}"]
        command += [part for key, value in set_.items() for part in ("--set", f"cost.gpu_hour.{key}={value}")]
        assert main(command) == 0
        return json.loads(capsys.readouterr().out)

    found = asked()
    first, nearest = found["values"]["cluster.nodes.0.accelerator"], found["ranking_changes"][0]
    other = nearest["values"].removeprefix("accelerator ")
    assert 0 < nearest["price"] < 1
    assert nearest["rate"] * nearest["price"] == pytest.approx(1)
    for factor, wins in ((1.01, first), (0.99, other)):
        changed_price = asked(**{other: factor * nearest["price_usd_per_gpu_h"]})
        assert changed_price["values"]["cluster.nodes.0.accelerator"] == wins

"""A run directory gives its run again, or says which input has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

import equipoise
from equipoise.cli import main
from equipoise.exit_codes import OK, WRONG_INPUT

CASE = {
    "schema_version": 1,
    "name": "again",
    "cluster": {"nodes": [{"count": 2, "gpus": 4}]},
    "workload": {
        "models": {"m": {"fixed_time": 0.01, "sample_time": 0.002, "drift": 0.01}},
        "jobs": [{"model": "m", "gpus": 4, "steps": 200, "global_batch": 64, "count": 3, "spacing": 1.0}],
    },
    "noise": {"step_cov": 0.1},
    "policy": ["fifo"],
}


def test_the_policy_and_seed_that_ran_are_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not those of the scenario, which are fifo and 0."""
    equipoise.run(CASE, policy="s1+s2(mode=optimal)+s4", seed=7, out=tmp_path / "run", timeline=True)
    assert main(["rerun", str(tmp_path / "run")]) == OK
    told = capsys.readouterr().out
    assert "equal to the byte" in told
    assert "differs" not in told
    again = equipoise.run(tmp_path / "run" / "config.yaml")
    assert (again.policy_name, again.seed) == ("s1+s2(mode=optimal)+s4", 7)


@pytest.mark.parametrize("what", ["trace", "scenario with its defaults"])
def test_a_changed_input_is_named(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace, folder = tmp_path / "jobs.csv", tmp_path / "run"
    trace.write_text("job_id,arrival_s,gpus,duration_s\na,0,1,60\n")
    case = {key: CASE[key] for key in ("schema_version", "name", "cluster")} | {"workload": {}}
    equipoise.run(case | {"workload": {"trace": {"file": str(trace)}}}, policy="easy", out=folder)
    if what == "trace":
        trace.write_text("job_id,arrival_s,gpus,duration_s\na,0,1,70\n")
    else:
        config = folder / "config.yaml"
        config.write_text(config.read_text().replace("gpus: 4", "gpus: 3"))
    assert main(["rerun", str(folder)]) == WRONG_INPUT
    assert f"changed since: {what}" in capsys.readouterr().err

"""`watch` tells how far a study has come from its ledger alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.exit_codes import OK, WRONG_INPUT
from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.store import Ledger
from equipoise.study.runs.watch import standing


def ledger_in(folder: Path, ended: int, planned: int, failed: int = 0) -> Path:
    with Ledger(folder) as ledger:
        ledger.set_about(name="nightly", planned=str(planned))
        for k in range(ended):
            row = {"id": f"r{k}", "number": k, "point": 0, "policy": ("fifo", "easy")[k % 2], "seed": k // 2}
            done = k >= failed
            found = {"jobs": 4, "makespan_s": 100.0 + k, "completion_mean_s": 50.0 - 10 * (k % 2)}
            bad = {"status": "failed", "error": "RunFailed: no node"}
            ledger.put({**row, "attempts": 1, **({"status": "done", **found} if done else bad)})
    return folder


def test_a_study_half_way(tmp_path: Path) -> None:
    now = standing(ledger_in(tmp_path, 4, 8))
    assert (now.done, now.failed, now.planned, now.ended) == (4, 0, 8, False)
    assert now.leaders == (("easy", "40.0 s"), ("fifo", "50.0 s"))
    assert now.text(2.0).splitlines() == [
        "nightly: 4 of 8 runs, 0 failed, 2 runs/s, 2.00 s left",
        "mean completion time so far: easy 40.0 s; fifo 50.0 s",
    ]


def test_nothing_to_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path), "--once"]) == WRONG_INPUT
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "sweep.db").write_text("no database " * 100)
    with pytest.raises(InputError, match=r"sweep\.db: cannot be read: "):
        standing(tmp_path)


def test_a_sweep_says_how_many_runs_it_plans_and_its_page_refreshes(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "schema_version: 1\nname: s\ncluster: {nodes: [{name: n, count: 1, gpus: 1}]}\n"
        "workload: {jobs: [{name: j, gpus: 1, duration: 60}]}\n"
    )
    (tmp_path / "sweep.yaml").write_text(
        "schema_version: 1\nname: w\nscenario: s.yaml\npolicies: [fifo, easy]\nseeds: 1\n"
        "parameters: {decide.every: [60, 120]}\nsampling: grid\n"
    )
    out = tmp_path / "out"
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(out), "-q"]) == OK
    assert standing(out).planned == 4
    assert standing(out).ended
    page = tmp_path / "page.html"
    assert main(["watch", str(out), "--once", "--page", str(page)]) == OK
    assert 'http-equiv="refresh"' not in page.read_text()

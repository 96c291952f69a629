"""S413 and S423: what every change of a running job was worth, and that those which are kept pay for themselves."""

import pytest

from equipoise import run
from equipoise.policies.contract import Allocation, Plan, Reason
from equipoise.policies.record.changes import KEPT, NOT_JUDGED, ROLLED_BACK, changes
from equipoise.policies.record.journal import read
from equipoise.sim.hardware.profile import scenarios_dir
from equipoise.study.report.page import make_report
from tests.bench.brute_force import make_case


def plan(**values):
    return Plan(allocation=Allocation.of([]), reasons=(Reason("s4", "", values),))


def test_a_verdict_belongs_to_the_change_before_it():
    given = [
        (1.0, plan(s423_changed=[3], s423_gpus_before=[2], s423_gpus_after=[4], s423_asked=["a"])),
        (
            2.0,
            plan(
                s413_kept=[],
                s413_rejected=[3],
                s413_before=[9.0],
                s413_after=[5.0],
                s423_changed=[3, 4],
                s423_gpus_before=[4, 1],
                s423_gpus_after=[2, 2],
                s423_asked=["S413", "b"],
            ),
        ),
        (3.0, plan(s413_kept=[4], s413_rejected=[], s413_before=[1.0], s413_after=[2.0])),
    ]
    found = [(c.time_s, c.job, c.gpus_before, c.gpus_after, c.verdict) for c in changes(given)]
    assert found == [(1.0, 3, 2, 4, ROLLED_BACK), (2.0, 3, 4, 2, NOT_JUDGED), (2.0, 4, 1, 2, KEPT)]
    assert [c.goodput for c in changes(given)] == pytest.approx([5.0, float("nan"), 2.0], nan_ok=True)


@pytest.mark.parametrize(
    ("cases", "least"), [([*range(10), 190], 1), pytest.param(range(10, 200), 12, marks=pytest.mark.long)]
)
def test_every_change_that_is_kept_pays_for_itself(tmp_path, cases, least):
    kept = 0
    for number in cases:
        run(make_case(number), policy="s4", out=tmp_path / str(number), journal=True)
        path = tmp_path / str(number) / "journal.jsonl"
        seen = {e.decision.observation.time_s: e.decision.observation.jobs for e in read(path)}
        for change in changes((e.decision.observation.time_s, e.decision.plan) for e in read(path)):
            if change.verdict != KEPT:
                continue
            kept += 1
            jobs = seen[change.time_s]
            left, restart_s = jobs.remaining_samples[change.job], jobs.restart_s[change.job]
            assert change.goodput >= 0.95 * change.expected, (number, change)
            if change.gpus_after >= change.gpus_before:  # the restart is won back
                assert left / change.goodput + restart_s <= left / change.expected, (number, change)
    assert kept >= least


def test_the_report_tells_what_was_rolled_back(tmp_path):
    path = tmp_path / "run"
    run(scenarios_dir() / "slow-uplinks.yaml", policy="s4", seed=1, out=path, journal=True)
    page = make_report(path).path.read_text()
    assert "Effects of changes to running jobs" in page
    row = page[page.index("S422: free GPUs") :].partition("</tr>")[0]
    assert "8 to 12" in row
    assert "rolled back" in row
    assert page[: page.index("S422: free GPUs")].endswith("<td>training</td><td>")

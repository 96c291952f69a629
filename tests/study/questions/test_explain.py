"""Why a job waited, told from the journal of its run, and changes that are run to check them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import equipoise
from equipoise import cli
from equipoise.policies.stages.frozen import STEPS
from equipoise.sim.hardware.profile import scenarios_dir
from equipoise.sim.scenario.tree import InputError
from equipoise.study.questions.explain import at_time, decisions, done_to_job, read_folder, stage_lines, why_it_waited
from equipoise.study.questions.what_if import smallest, try_changes

NODES = [{"name": "a", "gpus": 4}, {"name": "h", "gpus": 4, "accelerator": "h100_sxm"}]
ALIKE = {"rates": [{"job_type": "t", "gpu_model": model, "gpus": 1, "rate": 1.0} for model in ("generic", "h100_sxm")]}
"""Durations that do not depend on the GPU model."""


def made(folder: Path, jobs: list[dict[str, Any]], policy: str, **queues: Any) -> Any:
    case = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": NODES},
        "workload": {"jobs": jobs, "throughputs": ALIKE},
        "queues": queues,
    }
    equipoise.run(case, policy=policy, out=folder, journal=True)
    return read_folder(folder)


def causes(folder: Any, job: str) -> dict[tuple[str, str], float]:
    wait = why_it_waited(folder, folder.row(job))
    return {(cause.kind, cause.text): span_s for cause, span_s in wait.span_s.items()}


def job(name: str, gpus: int, arrival: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"name": name, "gpus": gpus, "arrival": arrival, "duration": 100, "mix_gpus": True, "job_type": "t", **more}


def test_gpus_and_a_limit_one_after_the_other(tmp_path: Path) -> None:
    jobs = [job("u1", 4, user="u", qos="q"), job("v", 4, user="v"), job("u2", 3, 10, user="u", qos="q")]
    jobs[0]["duration"] = 200
    folder = made(tmp_path, jobs, "multifactor", qos=[{"name": "q", "gpus_per_user": 4}])
    assert causes(folder, "u2") == {("limit", "QOS q, user u allows 4 GPUs"): 190.0}
    folder = made(tmp_path / "free", jobs, "multifactor")
    assert causes(folder, "u2") == {("GPUs", "3 GPUs needed, fewer were free"): 90.0}


def test_places_topology_and_order(tmp_path: Path) -> None:
    jobs = [job("r", 4, gpu_types=["h"]), job("x", 2, 5, gpu_types=["h"])]
    folder = made(tmp_path / "1", jobs, "multifactor")
    assert causes(folder, "x") == {("places", "2 GPUs needed; free ones are on nodes that it must not use"): 95.0}
    jobs = [job("r", 2, gpu_types=["h"]), job("s", 2, gpu_types=["a"]), job("x", 4, 5, together="node-required")]
    ((kind, _),) = causes(made(tmp_path / "2", jobs, "multifactor"), "x")
    assert kind == "topology"
    jobs = [job("r", 6), job("head", 8, 5), job("x", 2, 10)]
    folder = made(tmp_path / "3", jobs, "fifo")
    assert causes(folder, "x") == {
        ("order", "behind head, which is earlier in the queue and could not start"): 90.0,
        ("GPUs", "2 GPUs needed, fewer were free"): 100.0,
    }


def test_a_limit_is_the_cause_only_where_the_job_would_fit_without_it(tmp_path: Path) -> None:
    """On each of two nodes of 4 a job of 2 and one of 1 of low priority run: 2 GPUs are free, 2 of the limit's 8.

    4 on one node are not free whatever the limit says; 4 anywhere are once the jobs of low priority are gone.
    """
    held = [job(f"eq{k}", 2, gpu_types=[k], qos="q", priority=5) for k in "ah"]
    held += [job(f"low{k}", 1, 1, gpu_types=[k], qos="q") for k in "ah"]

    def main(name: str, **more: Any) -> set[str]:
        jobs = [*held, job("x", 4, 5, qos="q", priority=5, **more)]
        folder = made(tmp_path / name, jobs, "multifactor", qos=[{"name": "q", "gpus": 8}])
        return {kind for kind, _ in causes(folder, "x")}

    assert main("together", together="node-required") == {"topology"}
    assert main("anywhere") == {"limit"}


def test_a_reservation_and_who_went_first(tmp_path: Path) -> None:
    jobs = [job("r", 6), job("head", 8, 5), job("long", 2, 10, duration=300), job("short", 2, 20, duration=50)]
    folder = made(tmp_path, jobs, "multifactor", backfill={"interval": 1})
    found = causes(folder, "long")
    assert found[("reservation", "it would have delayed head, which is planned earlier")] > 0.0
    wait = why_it_waited(folder, folder.row("long"))
    assert {folder.name(row) for row in wait.before} == {"head", "short"}
    assert sum(found.values()) == pytest.approx(folder.jobs["start_s"][folder.row("long")] - 10.0)


def test_changes_are_run(tmp_path: Path) -> None:
    jobs = [job("r", 8, partition="all"), job("x", 6, 10, partition="all")]
    folder = made(tmp_path, jobs, "multifactor", partitions=[{"name": "all"}, {"name": "a", "nodes": ["a"]}])
    tried = {one.text: one for one in try_changes(folder, folder.row("x"))}
    assert tried["one more node of a (4 GPUs)"].start_s == 100.0
    assert tried["3 GPUs in place of 6, running longer in proportion"].start_s == 100.0
    assert "it can never start" in tried["in partition a in place of all"].error
    assert smallest(list(tried.values()), 100.0, 10.0) is None
    jobs[0]["gpus"] = 5
    folder = made(tmp_path, jobs, "multifactor")
    best = smallest(try_changes(folder, folder.row("x")), 100.0, 10.0)
    assert best is not None
    assert (best.text, best.start_s) == ("3 GPUs in place of 6, running longer in proportion", 10.0)


def test_the_limit_that_binds_is_raised(tmp_path: Path) -> None:
    """u holds its 4 of 8 GPUs to 100 s; with 3 more allowed, its job of 3 starts at once, by account or by QOS."""
    jobs = [job("u1", 4, user="u", account="b", qos="q"), job("x", 3, 10, user="u", account="b", qos="q")]
    accounts = [{"name": "a", "gpus": 5}, {"name": "b", "parent": "a", "jobs": 5}]
    folder = made(tmp_path, jobs, "multifactor", qos=[{"name": "q", "gpus_per_user": 4}], accounts=accounts)
    tried = {one.text: one.start_s for one in try_changes(folder, folder.row("x"))}
    assert tried["qos q: gpus_per_user 7 in place of 4"] == 100.0  # the account binds, too
    assert tried["accounts a: gpus 8 in place of 5"] == 100.0
    assert tried["accounts b: jobs 6 in place of 5"] == 100.0
    folder = made(tmp_path / "one", jobs, "multifactor", qos=[{"name": "q", "gpus_per_user": 4}])
    best = smallest(try_changes(folder, folder.row("x")), 100.0, 10.0)
    assert best is not None
    assert (best.text, best.start_s) == ("qos q: gpus_per_user 7 in place of 4", 10.0)


def test_the_own_queue_by_another_name_is_no_change(tmp_path: Path) -> None:
    jobs = [job("r", 4, queue="door"), job("x", 4, 5, queue="door")]
    queues = [{"name": "one", "gpus": 4, "names": ["door"]}, {"name": "two", "gpus": 4}]
    folder = made(tmp_path, jobs, "kueue", queues=queues)
    tried = [one.text for one in try_changes(folder, folder.row("x"))]
    assert "in queue two in place of one" in tried
    assert not [text for text in tried if text.startswith("in queue one")]


def test_a_job_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("job_id,arrival_s,gpus,duration_s,job_type\n7,0,8,100,t\n9,10,4,50,t\n", encoding="utf-8")
    case = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": NODES},
        "workload": {"trace": {"file": "t.csv", "mix_gpus": True}, "throughputs": ALIKE},
    }
    equipoise.run(case, policy="fifo", out="run", journal=True)
    folder = read_folder("run")
    tried = {one.text: one.start_s for one in try_changes(folder, folder.row("9"))}
    assert tried["one more node of h (4 GPUs)"] == 10.0
    assert tried["2 GPUs in place of 4, running longer in proportion"] == 100.0


def test_what_each_stage_did_at_a_time(tmp_path: Path) -> None:
    folder = made(tmp_path, [job("r", 8), job("x", 6, 10)], "multifactor", priority={"age": 10})
    lines = stage_lines(folder, at_time(folder, 50.0))
    assert lines[0] == "1 job ran, 1 waited, 0 of 8 GPUs were free"
    assert "multifactor: started 0 of 1 waiting jobs" in lines
    assert lines[-1] == "nothing was changed"


SHIPPED = {
    "remote-storage": ["horizon=100s"],
    "shared-gpus": ["horizon=100s"],
    "slow-uplinks": [],
    "power-slack": ["horizon=30min"],
}
"""Scenarios in which each stage has something to do, and until when: each sub-step has done it by then."""


def journals(folder: Path, whole: bool = False) -> dict[str, Any]:
    """Runs of these scenarios, as long as said there, or to their end."""
    for name, until in SHIPPED.items():
        equipoise.run(
            scenarios_dir() / f"{name}.yaml",
            policy="s1+s2+s3+s4",
            out=folder / name,
            journal=True,
            overrides=[] if whole else until,
        )
    return {name: read_folder(folder / name) for name in SHIPPED}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return journals(tmp_path_factory.mktemp("shipped"))


@pytest.mark.long
def test_sub_steps_are_told_in_words_to_the_end_of_each_run(tmp_path: Path) -> None:
    told_in_words(journals(tmp_path, whole=True))


def test_sub_steps_are_told_in_words_and_none_is_left_out(shipped: dict[str, Any]) -> None:
    told_in_words(shipped)


def told_in_words(folders: dict[str, Any]) -> None:
    told: set[str] = set()
    for folder in folders.values():
        for decision in decisions(folder):
            lines = stage_lines(folder, decision)
            assert not [line for line in lines if re.match(r"\s*s[1-4]\d\d_", line)], "a name of the code"
            assert not [line for line in lines if "nan" in line.split()]
            told |= {line.split()[0] for line in lines if re.match(r"\s*S[1-4]\d\d ", line)}
    assert told == {step for own in STEPS.values() for step in own} | {"S423"}


def test_what_was_changed_of_a_job_is_what_was_planned(shipped: dict[str, Any]) -> None:
    folder = shipped["slow-uplinks"]
    planned = [d for d in decisions(folder) if d.plan.allocation is not None and 0 in d.plan.allocation.job]
    done = [(time_s, text) for time_s, text in done_to_job(folder, 0) if "GPU" in text]
    assert len(done) == len(planned) > 0
    for (time_s, text), decision in zip(done, planned, strict=True):
        gpus = decision.plan.allocation.gpus_of(decision.plan.allocation.job.tolist().index(0))
        assert time_s == decision.observation.time_s
        assert f" {len(gpus)} GPU" in text if len(gpus) else "stopped" in text


def test_a_job_that_lost_its_node_is_told_of_that_and_waited_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supply = [{"at": 0, "nodes": 1}, {"at": 600, "nodes": 0}, {"at": 1800, "nodes": 1}]
    case = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": [{"name": "spot", "gpus": 2, "available": {"supply": supply}}]},
        "workload": {"jobs": [{"name": "a", "gpus": 2, "duration": "1 h"}]},
    }
    equipoise.run(case, out=tmp_path, journal=True)
    assert done_to_job(read_folder(tmp_path), 0) == [
        (0.0, "started on 2 GPUs of node 0"),
        (600.0, "lost its GPUs, and waits again"),
        (1800.0, "started on 2 GPUs of node 0"),
    ]
    assert cli.main(["explain", str(tmp_path), "a"]) == 0
    told = capsys.readouterr().out
    assert "started at once under fifo, at 0 s; it waited 20 min after it had lost its GPUs" in told
    assert "It did not wait." not in told


def test_a_job_that_waited_and_is_done_has_lost_nothing(tmp_path: Path) -> None:
    jobs = [
        {"name": "first", "gpus": 2, "duration": "1 h"},
        {"name": "second", "gpus": 2, "duration": "1 h"},
        {"name": "third", "gpus": 2, "arrival": "10 min", "duration": "1 h"},
    ]
    case = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": [{"name": "n", "gpus": 2}]},
        "workload": {"jobs": jobs},
        "policy": ["fifo"],
    }
    equipoise.run(case, out=tmp_path, journal=True)
    assert done_to_job(read_folder(tmp_path), 1) == [(3600.0, "started on 2 GPUs of node 0")]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, [job("r", 8), job("x", 6, 10)], "fifo")
    assert cli.main(["explain", str(tmp_path), "x", "-q"]) == 0
    out = capsys.readouterr().out
    assert "waited 90 s" in out
    assert "halves the wait" in out
    for arguments, said in (
        ([str(tmp_path), "y"], "no job is named 'y'; the first is 'r'"),
        ([str(tmp_path), "x", "--at", "3 h"], "--at is not allowed with JOB"),
        ([str(tmp_path), "--at", "soon"], "'soon' is not a time such as '3 h'"),
        ([str(tmp_path / "no")], "no run here"),
    ):
        assert cli.main(["explain", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_a_run_over_one_that_was_killed_begins_its_journal_anew(tmp_path: Path) -> None:
    jobs = [job("r", 8), job("x", 6, 10), job("y", 1, 50)]
    before = causes(made(tmp_path, jobs, "multifactor"), "x")
    (tmp_path / "summary.json").unlink()  # as a run that was killed leaves it, its journal up to then
    journal = (tmp_path / "journal.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_text("".join(journal[:4]), encoding="utf-8")
    assert causes(made(tmp_path, jobs, "multifactor"), "x") == before


def test_a_run_without_a_journal(tmp_path: Path) -> None:
    case = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"gpus": 1},
        "workload": {"jobs": [job("r", 1) | {"job_type": ""}]},
    }
    equipoise.run(case, out=tmp_path)
    with pytest.raises(InputError, match="no journal of decisions; make the run again with --journal"):
        read_folder(tmp_path)

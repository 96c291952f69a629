import json
import re
from collections import Counter

import pytest

from equipoise.cli import main
from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.store import Ledger, connect
from equipoise.study.runs.sweep import SweepOptions, check, orders_of, sweep
from equipoise.study.runs.sweep_spec import read_sweep
from equipoise.study.runs.warm import _SMALL
from tests.study.runs.sweeps import sweep_helpers
from tests.study.runs.sweeps.sweep_helpers import SCENARIO, TIMINGS, write_sweep


def results(out):
    """Rows of a sweep without what differs between equal sweeps."""
    with Ledger(out) as ledger:
        return [{k: v for k, v in row.items() if k not in TIMINGS} for row in ledger.rows()]


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "calls"
    monkeypatch.setenv("EQUIPOISE_TEST_LOG", str(path))
    return lambda: Counter(path.read_text().splitlines()) if path.exists() else Counter()


def quick_sweep(file, out, *, runner=sweep_helpers.quick, **options):
    return sweep(file, out, SweepOptions(**options), runner=runner)


def test_every_run_of_the_plan_is_made_once(tmp_path, log):
    file = write_sweep(tmp_path, seeds=3)
    outcome = quick_sweep(file, tmp_path / "out")
    assert (outcome.runs, outcome.made, outcome.reused, outcome.failed) == (12, 12, 0, ())
    rows = results(tmp_path / "out")
    assert [(r["noise.step_cov"], r["policy"], r["seed"]) for r in rows] == [
        (cov, policy, seed) for cov in (0.1, 0.2) for policy in ("fifo", "sjf") for seed in range(3)
    ]
    assert rows[-1]["makespan_s"] == pytest.approx(100.0 * 3 * 1.2 * 2)
    assert set(log().values()) == {1}


def test_progress_and_parquet(tmp_path):
    seen = []
    file = write_sweep(tmp_path, seeds=2)
    sweep(file, tmp_path / "out", progress=lambda *given: seen.append(given), runner=sweep_helpers.quick)
    assert [given[:2] for given in seen] == [(k, 8) for k in range(1, 9)]
    assert seen[0][2] == "point 0, fifo seed 0"
    with connect(tmp_path / "out") as connection:
        grouped = connection.execute('SELECT "noise.step_cov" c, count(*) FROM runs GROUP BY c ORDER BY c')
        assert grouped.fetchall() == [(0.1, 4), (0.2, 4)]


def test_a_second_start_makes_only_what_is_missing(tmp_path, log):
    file = write_sweep(tmp_path, seeds=3)
    quick_sweep(file, tmp_path / "out")
    before = results(tmp_path / "out")
    assert quick_sweep(file, tmp_path / "out").made == 0
    write_sweep(tmp_path, seeds=4)
    grown = quick_sweep(file, tmp_path / "out")
    assert (grown.made, grown.reused) == (4, 12)
    assert {r["id"] for r in before} <= {r["id"] for r in results(tmp_path / "out")}
    assert quick_sweep(file, tmp_path / "out", fresh=True).made == 16


def test_a_smaller_plan_puts_runs_aside_and_a_larger_one_brings_them_back(tmp_path, log):
    file = write_sweep(tmp_path, seeds=3)
    quick_sweep(file, tmp_path / "out")
    write_sweep(tmp_path, seeds=1)
    shrunk = quick_sweep(file, tmp_path / "out")
    assert (shrunk.runs, shrunk.made) == (4, 0)
    assert "8 runs of an earlier file" in shrunk.notes[0]
    assert len(results(tmp_path / "out")) == 4
    write_sweep(tmp_path, seeds=3)
    assert quick_sweep(file, tmp_path / "out").made == 0
    assert set(log().values()) == {1}


def test_failed_runs_are_kept_listed_and_made_again_on_request_only(tmp_path, log):
    file = write_sweep(tmp_path, seeds=4, covs=(0.1,), policies=["fifo"], sampling="grid")

    def unlucky(scenario, **given):
        if given["seed"] == 1:
            raise ValueError("no such luck\nat all")
        return sweep_helpers.quick(scenario, **given)

    outcome = quick_sweep(file, tmp_path / "out", runner=unlucky)
    assert [(row["seed"], row["error"]) for row in outcome.failed] == [(1, "ValueError: no such luck at all")]
    again = quick_sweep(file, tmp_path / "out")
    assert (again.made, len(again.failed)) == (0, 1)
    retried = quick_sweep(file, tmp_path / "out", retry=True)
    assert (retried.made, len(retried.failed)) == (1, 0)
    with Ledger(tmp_path / "out") as ledger:
        assert [row["attempts"] for row in ledger.rows()] == [1, 2, 1, 1]


def test_a_poisonous_run_takes_no_other_with_it(tmp_path, log):
    file = write_sweep(tmp_path, seeds=12, covs=(0.1,))
    outcome = quick_sweep(file, tmp_path / "out", jobs=2, runner=sweep_helpers.poisoned)
    said = {(row["policy"], row["seed"]): row["error"] for row in outcome.failed}
    assert said == {
        ("fifo", 2): "the process that made this run was killed 3 times",
        ("sjf", 2): "the process that made this run was killed 3 times",
        ("fifo", 3): "ValueError: no such luck at all",
        ("sjf", 3): "ValueError: no such luck at all",
    }
    assert set(log().values()) == {1}
    assert sum(log().values()) == 20


def test_real_runs_are_the_same_in_one_process_and_in_two(tmp_path):
    file = write_sweep(tmp_path, seeds=2, covs=(0.05, 0.2), case=_SMALL)
    sweep(file, tmp_path / "one")
    sweep(file, tmp_path / "two", SweepOptions(jobs=2, keep=True))
    assert results(tmp_path / "one") == results(tmp_path / "two")
    assert {r["status"] for r in results(tmp_path / "one")} == {"done"}
    with connect(tmp_path / "two") as connection:
        counted = connection.execute("SELECT count(DISTINCT id), count(*) FROM jobs").fetchone()
    assert counted == (8, 8 * 5)


def test_what_shards_have_made_is_taken_and_the_rest_is_made(tmp_path, command):
    file = write_sweep(tmp_path, seeds=5)
    sweep(file, tmp_path / "whole")
    for part in (1, 2):
        assert command("sweep", "sweep.yaml", "--out", "parts", "--shard", f"{part}/3", "-q")[0] == 0
    assert sweep(file, tmp_path / "parts", SweepOptions(shard=(2, 3))).made == 0
    assert command("sweep", "sweep.yaml", "--out", "parts")[1].endswith(
        "20 runs in parts: 6 run, 14 cached, 0 failed\n"
    )
    assert results(tmp_path / "parts") == results(tmp_path / "whole")
    assert sweep(file, tmp_path / "parts").made == 0
    assert command("sweep", "sweep.yaml", "--out", "parts", "--shard", "3/2")[0] == 2


def test_points_without_anything_random_are_run_on_one_seed(tmp_path):
    both = {"noise.step_cov": [0.0, 0.1], "cluster.gpus": [4, 5]}
    outcome = quick_sweep(write_sweep(tmp_path, seeds=3, parameters=both), tmp_path / "out")
    assert outcome.runs == 2 * 2 * (1 + 3)
    assert "2 points are not random" in outcome.notes[0]


def test_points_that_mean_the_same_are_run_once(tmp_path):
    file = write_sweep(tmp_path, parameters={"workload.jobs.0.duration": ["100 s", "100.0 s", 100]}, seeds=2)
    assert quick_sweep(file, tmp_path / "out").runs == 2 * 2


def test_ids_are_those_of_plain_runs(tmp_path):
    from equipoise.policies.registry import make_policy
    from equipoise.sim.loading.file import read_scenario
    from equipoise.sim.run import run

    file = write_sweep(tmp_path, case=_SMALL, seeds=1, covs=(0.2,), policies=["fifo"])
    orders, _, _ = orders_of(read_sweep(file)[0], tmp_path, str(file))
    scenario = read_scenario(tmp_path / "tiny.yaml", ["noise.step_cov=0.2"]).scenario
    assert orders[0].id == run(scenario, policy=make_policy("fifo"), seed=0).identity


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"policies": ["fifa"]}, "policies.0: unknown stage 'fifa'; did you mean 'fifo'"),
        ({"parameters": {"noise.step_cof": [0.1]}}, "parameters.noise.step_cof.0: unknown key; did you mean"),
        ({"parameters": {"noise.step_cov": [0.1, 99]}}, "parameters.noise.step_cov.1: 99"),
        ({"parameters": {"policy.las.promote": [3]}}, "parameters.policy.las.promote: policy.las: no policy"),
        ({"parameters": {"policy.las": [3]}}, "parameters.policy.las: policy.las: write policy.STAGE.PARAM"),
        (
            {"policies": ["las"], "parameters": {"policy.las.promote": [1, True]}},
            "parameters.policy.las.promote.1: las.promote: True",
        ),
        (
            {"parameters": {}, "sampling": {"kind": "list", "points": [{"noise.step_cov": "x"}]}},
            "sampling.points.0.noise.step_cov: 'x'",
        ),
        ({"scenario": "missing.yaml"}, "scenario: {folder}/missing.yaml: cannot be read: No such file"),
        ({"scenario": "."}, "scenario: {folder}: cannot be read: Is a directory"),
        ({"trace": "none.csv"}, "none.csv"),
    ],
)
def test_wrong_sweeps_are_refused_before_anything_runs(tmp_path, changes, says):
    """Each mistake is one line with file, line and column."""
    file = write_sweep(tmp_path, **changes)
    with pytest.raises(InputError) as raised:
        quick_sweep(file, tmp_path / "out", runner=None)
    (line,) = raised.value.lines
    assert says.format(folder=tmp_path) in line
    if "none.csv" not in says:
        assert re.match(rf"{re.escape(str(file))}:\d+:\d+: ", line)
    assert not (tmp_path / "out").exists()


def test_a_scenario_that_comes_with_the_software_is_known_by_its_name(tmp_path):
    """From any folder; and what is wrong beside it is all that is told."""
    file = write_sweep(tmp_path, scenario="quickstart", policies=["none"], seeds=1, parameters={})
    check(file)
    orders, _, _ = orders_of(read_sweep(file)[0], tmp_path, str(file))
    assert [order.policy for order in orders] == ["none"]
    for changes, says in (
        ({"policies": ["fifa"]}, "policies.0: unknown stage 'fifa'"),
        ({"scenario": "quickstar"}, "scenario: quickstar: no such file, and no scenario of that name"),
    ):
        file = write_sweep(tmp_path, **({"scenario": "quickstart", "parameters": {}} | changes))
        with pytest.raises(InputError) as raised:
            check(file)
        (line,) = raised.value.lines
        assert re.match(rf"{re.escape(str(file))}:\d+:\d+: {says}", line)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs a command in the temporary folder; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return call


def test_sweep_and_query_on_the_command_line(tmp_path, command):
    write_sweep(tmp_path, seeds=2)
    assert command("sweep", "sweep.yaml", "--out", "out", "--dry-run") == (0, "8 runs, 2 points\n", "")
    code, out, said = command("sweep", "sweep.yaml", "--out", "out")
    assert (code, said) == (0, "")
    assert out.startswith("Shortest mean completion time: ")
    assert out.endswith("8 runs in out: 8 run, 0 cached, 0 failed\n")
    sql = "SELECT policy, count(*) AS n, avg(makespan_s) AS makespan_s FROM runs GROUP BY ALL ORDER BY ALL"
    csv = "policy,n,makespan_s\nfifo,4,200.0\nsjf,4,200.0\n"
    assert command("query", sql, "--out", "out", "--format", "csv") == (0, csv, "")
    assert json.loads(command("query", sql, "--out", "out", "--format", "json")[1])[1]["policy"] == "sjf"
    table = "policy  n  makespan_s\nfifo    4         200\nsjf     4         200\n"
    assert command("query", sql, "--out", "out")[1] == table
    code, _, said = command("query", "SELECT nope FROM runs", "--out", "out")
    assert (code, "nope" in said) == (2, True)
    assert command("query", "SELECT 1", "--out", "nowhere")[0] == 2


def test_failed_runs_are_listed_with_exit_code_3(tmp_path, command, monkeypatch):
    def unlucky(scenario, **given):
        raise ValueError("no such luck")

    write_sweep(tmp_path, seeds=1, covs=(0.1,))
    monkeypatch.setitem(sweep.__kwdefaults__, "runner", unlucky)
    code, text, _ = command("sweep", "sweep.yaml", "--out", "out")
    assert code == 3
    assert text.splitlines()[0] == "2 runs in out: 2 run, 0 cached, 2 failed"
    assert text.splitlines()[1].startswith("failed: ")
    assert text.splitlines()[1].endswith(" point 0 fifo seed 0: ValueError: no such luck")


def test_a_trace_that_does_not_fit_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "jobs.csv").write_text("job_id,arrival_s,gpus,duration_s\n7,0,8,10\n")
    file = write_sweep(tmp_path, case=SCENARIO | {"workload": {"trace": {"file": "jobs.csv"}}})
    with pytest.raises(InputError, match="point 0"):
        quick_sweep(file, tmp_path / "out")

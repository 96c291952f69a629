import itertools
import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml

from equipoise.cli import main
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping, read_scenario
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError
from equipoise.study.questions.size import doubts, read_vary, size
from equipoise.study.questions.targets import power_w, read_supply, read_target
from equipoise.study.questions.trials import Candidate, Question, Trial

CASE = {
    "schema_version": 1,
    "name": "to be sized",
    "cluster": {
        "nodes": [
            {"name": "fast", "count": 1, "gpus": 2, "host_power": "0.001 mW", "price": "6 USD/h"},
            {"name": "slow", "count": 1, "gpus": 2, "speed": 0.5, "host_power": "0.001 mW", "price": "2 USD/h"},
        ]
    },
    "workload": {
        "models": {"m": {"sample_time": "10 ms", "parameters": 1e6}},
        "jobs": [
            {"name": "train", "count": 2, "gpus": 2, "model": "m", "steps": 600, "global_batch": 16},
            {"name": "rigid", "count": 5, "spacing": "10 s", "gpus": 1, "duration": "60 s"},
        ],
    },
    "faults": {"crash": {"mtbf": "5 min", "repair": "60 s"}},
    "restart": {"detection": "5 s", "initialisation": "5 s"},
}
VARY = {"cluster.nodes.0.count": [1, 2, 3], "cluster.nodes.1.count": [1, 2, 3, 4]}
SEEDS = 3
POLICY = "fifo-greedy"


@pytest.fixture
def case(tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text(yaml.safe_dump(CASE))
    return path


@pytest.fixture
def calm(tmp_path):
    path = tmp_path / "calm.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in CASE.items() if k != "faults"}))
    return path


def question(path, *targets, **changes):
    given = {"vary": VARY, "policy": POLICY, "seeds": SEEDS} | changes
    return Question(path, targets=tuple(map(read_target, targets)), **given)


@lru_cache(maxsize=2)
def every_run(text):
    """(sizes, summaries of all seeds) of every size of the case with that text."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "case.yaml"
        path.write_text(text)
        found = []
        for chosen in itertools.product(*VARY.values()):
            changes = [f"{key}={value}" for key, value in zip(VARY, chosen, strict=True)]
            scenario = read_scenario(path, changes).scenario
            seeds = range(SEEDS) if scenario.faults.crash else [0]
            found.append((chosen, [run(scenario, policy=make_policy(POLICY), seed=s).summary() for s in seeds]))
        return found


def exhaustive(path, limit_s, objective):
    """Best value of the objective over every size, all seeds run, none left out."""
    feasible = []
    for chosen, runs in every_run(path.read_text()):
        if all(r["makespan_s"] <= limit_s and r["completed"] == r["jobs"] for r in runs):
            price = 6.0 * chosen[0] + 2.0 * chosen[1]
            cost = sum(r["makespan_s"] for r in runs) / len(runs) / 3600 * price
            feasible.append({"nodes": sum(chosen), "price": price, "cost": cost})
    return min((f[objective] for f in feasible), default=None)


@pytest.mark.parametrize("objective", ["nodes", "price", "cost"])
@pytest.mark.parametrize("limit_s", [90, 180])
def test_equals_an_exhaustive_search(case, calm, objective, limit_s):
    for path in (case, calm):
        answer = size(question(path, f"makespan<={limit_s}s", "cost<=100USD", objective=objective))
        wanted = exhaustive(path, limit_s, objective)
        if wanted is None:
            assert answer.best is None
            continue
        best = answer.best
        found = {"nodes": best.candidate.nodes, "price": best.candidate.price_usd_per_h}
        found["cost"] = best.mean("cost_usd")
        assert found[objective] == pytest.approx(wanted, rel=1e-12)


SIZES = [(a, b) for a in VARY["cluster.nodes.0.count"] for b in VARY["cluster.nodes.1.count"]]


def cheapest(path, feasible):
    """Nodes of the smallest size whose runs all pass, each run with what is known of the size."""
    generic_w = 400.0  # per GPU of the profile's generic accelerator, at full load
    found = []
    for chosen, runs in every_run(path.read_text()):
        known = {"power_w": 1.3 * 2 * generic_w * sum(chosen), "price_usd_per_h": 6.0 * chosen[0] + 2.0 * chosen[1]}
        if all(r["completed"] == r["jobs"] and feasible({**r, **known}) for r in runs):
            found.append(sum(chosen))
    return min(found, default=None)


@pytest.mark.parametrize(
    ("targets", "feasible"),
    [
        (["cost<=1.2USD", "makespan<=300s"], lambda r: r["cost_usd"] <= 1.2 and r["makespan_s"] <= 300),
        (["energy<=0.12kWh"], lambda r: r["energy_j"] <= 0.432e6),
        (["power<=4.2kW", "makespan<=265s"], lambda r: r["power_w"] <= 4200 and r["makespan_s"] <= 265),
        (["completion_p95<=225s"], lambda r: r["completion_p95_s"] <= 225),
        (
            ["cost<=1.2USD", "completion_p95<=260s", "power<=6kW"],
            lambda r: r["cost_usd"] <= 1.2 and r["completion_p95_s"] <= 260 and r["power_w"] <= 6000,
        ),
    ],
)
def test_budget_power_energy_and_p95_equal_an_exhaustive_search(case, targets, feasible):
    wanted = cheapest(case, feasible)
    assert min(map(sum, SIZES)) < wanted < max(map(sum, SIZES)), "or the targets say nothing"
    answer = size(question(case, *targets))
    assert answer.best is not None
    assert answer.best.candidate.nodes == wanted


def test_a_budget_that_is_too_small_is_impossible(case):
    answer = size(question(case, "cost<=0.01USD"))
    assert answer.best is None
    assert answer.closest is not None
    assert answer.excluded + answer.tried == len(SIZES)


def test_cost_is_what_the_run_says(case):
    answer = size(question(case, "cost<=1USD"))
    for result in answer.best.results:
        rent = answer.best.candidate.price_usd_per_h if answer.best.candidate.price_usd_per_h > 0 else 0.0
        assert result["cost_usd"] == pytest.approx(rent * result["makespan_s"] / 3600)


def test_power_is_of_the_site_and_capped(calm):
    from equipoise.sim.hardware.profile import load_profile

    profile = load_profile("catalogue")

    def power(*changes):
        return power_w(read_scenario(calm, changes).scenario, profile)

    assert power() == pytest.approx(1.3 * 4 * 400)  # two nodes of two GPUs, 400 W each, PUE 1.3
    assert power("energy.pue=1.1", "cluster.nodes.1.count=3") == pytest.approx(1.1 * 8 * 400)
    assert power("energy.power_cap=300 W") == pytest.approx(1.3 * 4 * 300)
    assert power("energy.cluster_power_cap=1 kW") == pytest.approx(1.3 * 1000)


def test_bounds_exclude_without_a_run(calm):
    calls = []

    def counted(scenario, **given):
        calls.append(scenario)
        return run(scenario, **given)

    answer = size(question(calm, "makespan<=90s", runner=counted))
    assert answer.excluded > 0
    assert answer.tried == len(calls)
    assert answer.tried + answer.excluded <= 12


def test_impossible_names_the_closest(case):
    answer = size(question(case, "makespan<=70s"))
    assert answer.best is None
    means = {
        chosen: (runs[0]["makespan_s"], sum(r["makespan_s"] for r in runs) / SEEDS)
        for chosen, runs in every_run(case.read_text())
    }
    closest = tuple(answer.closest.candidate.values.values())
    assert answer.closest.results[0]["makespan_s"] == means[closest][0]
    assert means[closest][1] <= 1.2 * min(mean for _, mean in means.values())


def test_price_alone_can_make_it_impossible(calm):
    answer = size(question(calm, "price<=5USD/h", "makespan<=300s"))
    assert (answer.best, answer.tried, answer.excluded) == (None, 0, 12)
    assert answer.closest.candidate.values == {"cluster.nodes.0.count": 1, "cluster.nodes.1.count": 1}


def test_spares_are_what_faults_cost(case, calm):
    answer = size(question(case, "makespan<=250s", vary={"cluster.nodes.0.count": list(range(1, 9))}))
    without = size(question(calm, "makespan<=250s", vary={"cluster.nodes.0.count": list(range(1, 9))}))
    assert answer.spares == answer.best.candidate.nodes - without.best.candidate.nodes
    assert without.spares is None


def test_ranks_compare_sizes_on_the_same_seeds(case):
    """Each row is the mean over all seeds, of sizes that miss as well; without ranks those end early."""
    worst_s = sorted(max(r["makespan_s"] for r in runs) for _, runs in every_run(case.read_text()))
    asked = question(case, f"makespan<={worst_s[len(worst_s) // 3]}s", objective="price")  # a third of them meets it
    answer = size(replace(asked, every=True))
    found = {tuple(t.candidate.values.values()): t for t in answer.trials}
    assert len(found) == len(SIZES)
    for chosen, runs in every_run(case.read_text()):
        assert [r["seed"] for r in found[chosen].results] == list(range(SEEDS))
        assert found[chosen].mean("makespan_s") == pytest.approx(sum(r["makespan_s"] for r in runs) / SEEDS)
    early = size(asked)
    assert min(trial.runs for trial in early.trials) < SEEDS
    assert early.best.candidate.values == answer.best.candidate.values


def test_what_is_varied_may_be_what_is_random(calm):
    """The first size never fails, the second does: both are run on every seed, in either order."""
    for values in (["1 d", "1 min"], ["1 min", "1 d"]):
        vary = {"faults.crash.repair": ["60 s"], "faults.crash.mtbf": values}
        answer = size(replace(question(calm, "makespan<=1d", vary=vary), every=True))
        assert [trial.runs for trial in answer.trials] == [SEEDS, SEEDS]
    vary = {"noise.step_cov": [0, 0.2]}
    answer = size(replace(question(calm, "makespan<=1d", vary=vary), every=True))
    assert [trial.runs for trial in answer.trials] == [SEEDS, SEEDS]
    spans = [len({r["makespan_s"] for r in trial.results}) for trial in answer.trials]
    assert sorted(spans) == [1, SEEDS]


def test_the_chance_holds_for_a_size_that_was_chosen_for_its_results():
    # Twenty sizes that all meet the target in half of their runs: the first with 5 of 5 is taken for the answer.
    rng, wrong, naive, answers = np.random.Generator(np.random.Philox(3)), 0, 0, 2000
    for _ in range(answers):
        if not (rng.binomial(5, 0.5, size=20) == 5).any():
            continue
        found = Trial(Candidate({}, None, 1, 1.0, 1.0, 1.0, {}), ({},) * 5, 5)
        wrong += found.chance_at_least(sizes=20) > 0.5
        naive += found.chance_at_least() > 0.5
    assert wrong / answers <= 0.05
    assert naive / answers > 0.4  # as if that size had been the only one


@pytest.mark.parametrize(
    ("text", "limit", "at_most"),
    [
        ("makespan<=24h", 86400.0, True),
        (" completion_p95 <= 90 min ", 5400.0, True),
        ("goodput>=50 %", 0.5, False),
        ("cost<=5kUSD", 5000.0, True),
        ("price<=12.5 USD/h", 12.5, True),
        ("power<=1.5MW", 1.5e6, True),
        ("energy<=2 kWh", 7.2e6, True),
    ],
)
def test_targets(text, limit, at_most):
    target = read_target(text)
    assert target.limit == pytest.approx(limit)
    assert target.at_most == at_most


def test_command_line(case, capsys):
    arguments = ["size", str(case), "--vary", "cluster.nodes.0.count=1:6", "--policy", "fifo-greedy", "-q"]
    assert main([*arguments, "--target", "makespan<=180s", "--seeds", "3"]) == 0
    text = capsys.readouterr().out
    assert " nodes meet makespan<=180s: cluster.nodes.0.count=" in text.splitlines()[0]
    # (0.05 / 6) ** (1 / 3): three of three, the best of six sizes.
    proved = "3 of 3 runs meet the targets; so many runs prove, with 95 % confidence, that at least 20 % of all do"
    assert f"{proved} (the best of 6 sizes)." in " ".join(text.split())
    assert main([*arguments, "--target", "makespan<=10s", "--format", "json", "--seeds", "2"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert answer["met"] is False
    assert answer["values"] is not None
    ranked = [*arguments, "--target", "makespan<=180s", "--target", "wait_p50<=1h", "--seeds", "1", "--rank"]
    assert main([*ranked, "--target", "price<=5 USD/h"]) in (0, 4)
    answer, _, table = capsys.readouterr().out.partition("   size")
    assert "0 excluded" in answer  # every size is run, too dear ones as well
    assert "wait_p50" in table.splitlines()[0]  # what was asked for has a column
    assert "price" not in table.splitlines()[0]  # "an hour" shows it
    assert len(table.splitlines()) == 1 + 6
    assert main([*arguments, "--target", "makespan=10s"]) == 2
    assert main([*arguments[:2], "--vary", "cluster.nodes.0.cuont=1:2", "--target", "makespan<=1h"]) == 2


def lognormal(median: str) -> dict:
    return {"kind": "lognormal", "median": median, "sigma": 0.5}


CLASSES = {
    "schema_version": 1,
    "name": "classes",
    "cluster": {"nodes": [{"count": 2, "gpus": 8, "accelerator": "h100_sxm", "nics": 8}]},
    "workload": {
        "generate": {
            "length": "12 h",
            "classes": [
                {"name": "short", "rate": "20/h", "duration": lognormal("6 min")},
                {"name": "long", "rate": "1/h", "gpus": {8: 1}, "duration": lognormal("150 min")},
            ],
        }
    },
}


def test_waits_by_class_are_metrics_and_targets(tmp_path):
    path = tmp_path / "classes.yaml"
    path.write_text(yaml.safe_dump(CLASSES))
    made = run(from_mapping(CLASSES), seed=1)
    found = made.summary()
    for name, gpus in (("short", 1), ("long", 8)):
        waits = made.jobs["queueing_s"][made.jobs["gpus"] == gpus]
        assert found[f"queueing_p95_s[{name}]"] == pytest.approx(float(np.percentile(waits, 95)))
    assert found["queueing_p95_s[8 GPUs]"] == found["queueing_p95_s[long]"]

    def nodes(target: str) -> int:
        vary = {"cluster.nodes.0.count": range(1, 9)}
        answer = size(Question(path, vary, [read_target(target)], seeds=2, confidence=0.5, policy="easy"))
        assert answer.best is not None
        return answer.best.candidate.nodes

    def fewest(key: str, limit_s: float) -> int:
        def worst(count: int) -> float:
            data = CLASSES | {"cluster": {"nodes": [CLASSES["cluster"]["nodes"][0] | {"count": count}]}}
            runs = (run(from_mapping(data), policy=make_policy("easy"), seed=seed) for seed in (0, 1))
            return min(made.summary()[key] for made in runs)

        return next(count for count in range(1, 9) if worst(count) <= limit_s)

    assert nodes("wait_p95[short]<=1h") == fewest("queueing_p95_s[short]", 3600)
    assert nodes("wait_p50[long] <= 1 min") == fewest("queueing_p50_s[long]", 60) == nodes("wait_p50[8gpus]<=1min")
    for wrong, told in (
        ("wait_p95[night]<=1h", "no job of that class; allowed: 1 GPU, 8 GPUs, long, short"),
        ("cost[short]<=1", "only percentiles of waits and completions have classes"),
    ):
        with pytest.raises(InputError, match=re.escape(told)):
            nodes(wrong)


def test_what_can_be_had_bounds_the_sizes(tmp_path):
    path = tmp_path / "plan.yaml"
    data = CLASSES | {"workload": {"jobs": [{"count": 8, "gpus": 8, "duration": "1 h"}]}}
    path.write_text(yaml.safe_dump(data))
    kinds = {"cluster.nodes.0.accelerator": ["h100_sxm", "a100_sxm_80gb"], "cluster.nodes.0.count": [2, 4, 8]}

    def best(target: str, *available: str) -> tuple:
        supply = dict(map(read_supply, available))
        answer = size(Question(path, kinds, [read_target(target)], available=supply, objective="price"))
        return (*(answer.best.candidate.values.values() if answer.best else ()), len(answer.impossible))

    assert best("makespan<=2h") == ("a100_sxm_80gb", 4, 0)
    assert best("makespan<=2h", "a100_sxm_80gb=16") == ("h100_sxm", 4, 1)
    assert best("done<=2h", "a100_sxm_80gb=in 30 min", "h100_sxm=in 3 h") == ("a100_sxm_80gb", 8, 0)
    assert best("done<=2h", "a100_sxm_80gb=1000 in 2 d") == ("h100_sxm", 4, 0)
    assert best("done<=2h", "a100_sxm_80gb=8", "h100_sxm=8") == (6,)
    for wrong in ("a100_sxm_80gb", "h100_sxm=8 in 5 GB", "a=b", "h100_sxm=١", "h100_sxm=1_0", "h100_sxm=²"):
        with pytest.raises(InputError):
            read_supply(wrong)
    with pytest.raises(InputError, match="'h100' is not an accelerator"):
        best("makespan<=2h", "h100=8")


def test_varied_values_are_doubted_like_those_of_a_scenario(tmp_path):
    """A bare number beside one with its unit, and durations that no accelerator shortens."""
    group = {"count": 2, "gpus": 4, "accelerator": "h100_sxm"}
    data = {
        "schema_version": 1,
        "name": "n",
        "cluster": {"nodes": [group]},
        "workload": {"jobs": [{"gpus": 4, "duration": "1 h"}]},
    }
    (tmp_path / "n.yaml").write_text(yaml.safe_dump(data))

    def told(vary: str) -> list[str]:
        return doubts(Question(tmp_path / "n.yaml", dict([read_vary(vary)]), (read_target("makespan<=1d"),)))

    (rate,) = told("cluster.nodes.0.nic=100,400 Gbit/s")
    assert "100 bytes/s is implausibly small" in rate
    (same,) = told("cluster.nodes.0.accelerator=h100_sxm,l40s")
    assert "jobs given by their duration take as long on every accelerator" in same
    assert told("cluster.nodes.0.count=1:3") == told("cluster.nodes.0.accelerator=l40s") == []
    data["workload"] = {
        "models": {"m": {"kind": "large-products", "flop_per_sample": "1 TFLOP", "parameters": 1e9}},
        "jobs": [{"gpus": 4, "model": "m", "steps": 5, "global_batch": 8}],
    }
    (tmp_path / "n.yaml").write_text(yaml.safe_dump(data))
    assert not any("on every accelerator" in t for t in told("cluster.nodes.0.accelerator=h100_sxm,l40s"))


@pytest.mark.parametrize("order", [("5 min", "35 min"), ("35 min", "5 min")])
def test_of_as_many_nodes_the_cheaper_choice_is_the_answer_in_whatever_order(tmp_path, order):
    """600 steps of 10 s on 2 nodes: 1 min of writing every 5 min takes 20 % more, every 35 min 3 %."""
    path = tmp_path / "often.yaml"
    data = {
        "schema_version": 1,
        "name": "often",
        "cluster": {"nodes": [{"count": 2, "gpus": 1, "price": "2 USD/h"}]},
        "restart": {"checkpoint_write": "1 min"},
        "policy": ["fifo"],
        "workload": {
            "models": {"m": {"sample_time": "10 s", "parameters": 1e6}},
            "jobs": [{"gpus": 2, "model": "m", "steps": 600, "global_batch": 2, "checkpoint": {"interval": "1 h"}}],
        },
    }
    path.write_text(yaml.safe_dump(data))
    for objective in ("nodes", "price", "cost"):
        vary = {"workload.jobs.0.checkpoint.interval": list(order)}
        found = size(question(path, "makespan<=1d", vary=vary, policy=None, objective=objective))
        assert found.best is not None
        assert list(found.best.candidate.values.values()) == ["35 min"], objective


def test_a_counted_pool_is_answered_in_gpus(tmp_path, capsys):
    path = tmp_path / "pool.yaml"
    jobs = [{"gpus": 8, "duration": "1 h", "count": 20}]
    data = {"schema_version": 1, "name": "pool", "cluster": {"gpus": 64}, "workload": {"jobs": jobs}}
    path.write_text(yaml.safe_dump(data))
    assert main(["size", str(path), "--vary", "cluster.gpus=64,128", "--target", "makespan<=4h"]) == 0
    assert capsys.readouterr().out.startswith("64 GPUs meet makespan<=4h")


def test_a_size_whose_jobs_a_horizon_cuts_says_so(tmp_path, capsys):
    """2 nodes of 4 USD/h for the 3 h of the horizon are 24 USD, and of two jobs of 2 h one after another one ends."""
    data = {
        "schema_version": 1,
        "name": "cut",
        "horizon": "3 h",
        "cluster": {"nodes": [{"count": 2, "gpus": 1, "price": "4 USD/h"}]},
        "workload": {"jobs": [{"gpus": 2, "duration": "2 h", "count": 2}]},
    }
    path = tmp_path / "cut.yaml"
    path.write_text(yaml.safe_dump(data))
    assert main(["size", str(path), "--vary", "cluster.nodes.0.count=2", "--target", "cost<=100USD"]) == 4
    told = " ".join(capsys.readouterr().out.split())
    assert "with cost 24.0 USD (limit 100 USD). 1 of 2 jobs of its runs are not completed within the horizon" in told

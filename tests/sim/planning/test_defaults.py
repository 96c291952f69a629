"""What is assumed is said, what is free elsewhere costs here, and what was probably not meant is told."""

from __future__ import annotations

import math

import pytest
import yaml

from equipoise.cli import main
from equipoise.sim.loading.file import from_mapping, read_scenario
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError
from equipoise.study.questions.levers import faster_gpus
from equipoise.study.questions.size import doubts, read_vary
from equipoise.study.questions.targets import read_target
from equipoise.study.questions.trials import Question

MODEL = {"kind": "large-products", "flop_per_sample": "250 TFLOP", "parameters": 2e9, "tokens_per_sample": 4096}
BASE = {
    "schema_version": 1,
    "name": "plan",
    "cluster": {"nodes": [{"count": 4, "gpus": 8, "accelerator": "h100_sxm", "nic": "400 Gbit/s", "nics": 8}]},
    "workload": {"models": {"m": MODEL}, "jobs": [{"model": "m", "gpus": 32, "steps": 100, "global_batch": 512}]},
}


def changed(**sections: object) -> dict:
    return yaml.safe_load(yaml.safe_dump(BASE)) | sections


def warnings(tmp_path, data: dict, **given: object) -> str:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(data))
    return "\n".join(read_scenario(path).warnings)


def test_nothing_is_doubted_in_a_sound_plan(tmp_path):
    assert warnings(tmp_path, BASE) == ""


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"faults": {"crash": {"mtbf": 50000}}}, "50000 was read as 50000 s (13.9 h)"),
        ({"faults": {"crash": {"mtbf": 50000}}}, "if hours were meant, write '50000 h'"),
        ({"horizon": 24}, "24 was read as 24 s"),
        ({"horizon": 24}, "if hours were meant, write '24 h'"),
        ({"noise": {"step_cov": 5}}, "5 means 500 % of a step; for 5 % write '5 %' or 0.05"),
        ({"energy": {"power_cap": "100 W"}}, "100 W is 14.3 % of the 700 W of h100_sxm"),
    ],
)
def test_what_was_probably_not_meant_is_told(tmp_path, sections, told):
    assert told in warnings(tmp_path, changed(**sections))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("nic", "400 GB/s", "several NICs as 'nics: 8' with the rate of one"),
        ("nics", None, "one NIC of 400 Gbit/s serves 8 GPUs, 50 Gbit/s each"),
    ],
)
def test_the_network_of_a_node_is_doubted(tmp_path, key, value, told):
    data = changed()
    data["cluster"]["nodes"][0][key] = value
    if value is None:
        del data["cluster"]["nodes"][0][key]
    assert told in warnings(tmp_path, data)


def test_a_batch_in_tokens_is_doubted(tmp_path):
    data = changed()
    data["workload"]["jobs"][0]["global_batch"] = 4_000_000
    assert "if 4000000 tokens were meant, write 977" in warnings(tmp_path, data)


def test_a_target_without_a_unit_is_doubted_and_turned_signs_are_read():
    assert "if hours were meant, write 1h" in read_target("completion_p95<=1").doubt
    assert "if minutes or hours were meant, write 60min or 60h" in read_target("wait_p95<=60").doubt
    assert read_target("completion_p95<=1h").doubt == ""
    assert read_target("wait_p95=<1h").limit == 3600.0
    assert read_target("wait_p95=<1h").at_most
    assert not read_target("goodput=>50%").at_most


def test_people_write_numbers_so():
    data = changed(noise={"step_cov": "5 %"})
    data["workload"]["models"]["m"] |= {"parameters": "1.3B"}
    data["workload"]["jobs"] = [
        {"model": "m", "gpus": 32, "steps": "100k", "global_batch": 512},
        {"duration": "4 y"},
        {"duration": "1 month"},
        {"duration": "1 wk"},
    ]
    scenario = from_mapping(data)
    model, jobs = scenario.workload.models["m"], scenario.workload.jobs
    assert (scenario.noise.step_cov, model.parameters, jobs[0].steps) == (0.05, 1.3e9, 100_000)
    assert [job.duration for job in jobs[1:]] == [4 * 365 * 86400, 365 * 86400 / 12, 7 * 86400]
    assert from_mapping(changed(energy={"tariff": "15 ct/kWh"})).energy.tariff == pytest.approx(0.15 / 3.6e6)


@pytest.mark.parametrize(
    ("cost", "where"),
    [
        ("{gpu_hour: {h100_sxm: $30,000}}", "cost.gpu_hour: "),
        ("{capex: {h100_sxm: {price: $1,234,567, life: 4 y}}}", "cost.capex.h100_sxm: "),
    ],
)
def test_a_comma_in_a_number_is_one_mistake(tmp_path, cost, where):
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(BASE) + f"cost: {cost}\n")
    with pytest.raises(InputError) as raised:
        read_scenario(path)
    (line,) = raised.value.lines
    assert f"{where}a comma ends a value inside braces: write the number without commas" in line


def test_mistakes_in_every_section_are_told_at_once_in_the_order_of_the_file(tmp_path):
    """A planner's first file: each line has a mistake of its own, and each is answered."""
    lines = {
        "cluster: {nodes: [{count: 4, gpus: 8, accelerator: A100, nic: 200 gbps, nics: 8},": "did you mean 'Gbps'",
        "  {name: b, count: 2, gpus: 8, accelerator: h100}],": "did you mean h100_sxm or h100_pcie?",
        "  topology: {kind: fat_tree}}": "did you mean 'tree'?",
        "workload: {jobs: [{gpus: 8, arrival: 80%, duration: 1 h}, {gpus: 8, duration: 1 moon},": "'80%' is",
        "  {gpus: 64, duration: 1 wk}]}": "needs 64 GPUs, the cluster has 48",
        "policy: FIFO": "did you mean 'fifo'?",
        "energy: {tariff: 1 kWh, region: Germany}": "did you mean 'germany'?",
        "cost: {gpu_hour: {H100: 2.5, a100_sxm_80gb: $2}}": "did you mean 'h100_sxm' or 'h100_pcie'?",
        "restart: {storage: {kind: s3, rate: 40 GB/s}}": "did you mean 'object'?",
    }
    (tmp_path / "first.yaml").write_text("\n".join(["schema_version: 1", "name: first", *lines]))
    with pytest.raises(InputError) as raised:
        read_scenario(tmp_path / "first.yaml")
    found = raised.value.lines
    assert all(any(told in line for line in found) for told in lines.values()), found
    assert any("did you mean a100_sxm_40gb or a100_sxm_80gb?" in line for line in found)
    assert any("'1 moon': unit 'moon' is not known" in line for line in found)
    assert any("'$2' is an amount of money" in line for line in found)
    places = [tuple(map(int, line.split(":")[1:3])) for line in found]
    assert places == sorted(places)


def test_mistakes_beside_a_model_given_by_its_shape_are_told():
    data = changed(policy=["EASY"], horizon="1 moon")
    shape = {"config": "llama2-7b", "sequence": 4096, "plan": "auto", "stack": "megatron-core/H100"}
    data["workload"]["models"]["m"] = {"transformer": shape}
    with pytest.raises(InputError) as raised:
        from_mapping(data)
    assert len(raised.value.lines) == 2, raised.value.lines
    shape["config"] = "none.json"
    with pytest.raises(InputError) as raised:
        from_mapping(data | {"horizon": "1 h"})
    text = "\n".join(raised.value.lines)
    assert "none.json" in text
    assert "did you mean 'easy'?" in text


def test_a_key_that_belongs_one_section_deeper_is_told():
    kind = {"rate": "1/h", "duration": {"kind": "pareto", "low": "1 h"}}
    data = changed(workload={"generate": {"length": "1 d", "arrivals": {}, "classes": [kind]}})
    with pytest.raises(InputError) as raised:
        from_mapping(data)
    text = "\n".join(raised.value.lines)
    assert "'arrivals' is a key of 'classes'" in text
    assert "alpha" in text
    assert "is empty" not in text  # the class is there, and wrong
    with pytest.raises(InputError, match="classes: is empty, at least 1 is needed"):
        from_mapping(changed(workload={"generate": {"length": "1 d", "classes": []}}))


def test_a_sweep_is_checked_whole(tmp_path, capsys):
    sweep = {
        "schema_version": 1,
        "name": "s",
        "scenario": "plan.yaml",
        "policies": ["fifa", "sjff"],
        "parameters": {"cluster.nodes.0.nic": ["1 GB"], "noise.step_cov": [0.1]},
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(BASE))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    assert main(["validate", str(tmp_path / "sweep.yaml")]) == 2
    told = capsys.readouterr().err
    assert all(text in told for text in ("'fifa'", "'sjff'", "'1 GB' is a size"))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep | {"sede": 3}))
    assert main(["validate", str(tmp_path / "sweep.yaml")]) == 2
    told = capsys.readouterr().err
    assert all(text in told for text in ("did you mean 'seeds'", "'fifa'", "'1 GB' is a size"))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep | {"scenario": "../../etc/passwd"}))
    assert main(["validate", str(tmp_path / "sweep.yaml")]) == 2
    assert "passwd" in capsys.readouterr().err


def test_a_checkpoint_takes_what_the_scenario_says():
    def restart_share(**restart: object) -> float:
        data = changed(restart=restart, faults={"crash": {"mtbf": 1e9}})
        data["workload"]["jobs"][0] |= {"steps": 400, "checkpoint": {"interval": "5 min"}}
        made = run(from_mapping(data), seed=1)
        return made.totals["makespan_s"] * made.summary()["restart_ratio"] / (made.totals["makespan_s"] // 300 or 1)

    size = 2e9 * 16
    assert restart_share(checkpoint_write="30 s") == pytest.approx(30, rel=0.3)
    shared = {"kind": "shared", "rate": "2 GB/s"}
    assert restart_share(storage=shared) == pytest.approx(size / 2e9, rel=0.3)
    apart = {"kind": "object", "node_rate": "1 GB/s"}
    assert restart_share(storage=apart) == pytest.approx(size / 4e9, rel=0.3)


def test_the_interval_between_checkpoints_is_told_with_what_it_comes_from():
    data = changed(restart={"checkpoint_write": "30 s"}, faults={"crash": {"mtbf": "1000 h"}})
    notes = "\n".join(run(from_mapping(data)).notes)
    every = math.sqrt(2 * 30 * 1000 * 3600 / 4) / 3600
    assert f"a checkpoint every {every:.3g} h, by young-daly sqrt(2 C M) from C 30 s" in notes
    assert "M 10.4 d between failures of its 4 nodes" in notes


def test_utilisation_tokens_and_their_price_are_in_every_result():
    made = run(from_mapping(BASE))
    found = made.summary()
    step = 512 * 250e12 / (32 * 989.5e12 * 0.77)
    assert found["tokens_per_s"] == pytest.approx(512 * 4096 / step, rel=0.02)
    assert found["mfu_ratio"] == pytest.approx(0.77, rel=0.02)
    per_token = 32 * 3.0 / 3600 / found["tokens_per_s"]
    assert found["cost_per_million_tokens_usd"] == pytest.approx(1e6 * per_token)
    assert any("77 % of the peak rate of h100_sxm, 68 % to 82 %" in note for note in made.notes)


def test_kinds_of_accelerators_reach_their_own_share_of_the_peak():
    data = changed()
    data["cluster"]["nodes"][0]["accelerator"] = "mi300x"
    assert run(from_mapping(data)).summary()["mfu_ratio"] == pytest.approx(0.47, rel=0.02)
    data["workload"]["models"]["m"]["efficiency"] = "40 %"
    assert run(from_mapping(data)).summary()["mfu_ratio"] == pytest.approx(0.4, rel=0.02)


def test_hosts_draw_power_and_unknown_power_is_said():
    data = changed(energy={"pue": 1})
    made = run(from_mapping(data))
    data["cluster"]["nodes"][0]["host_power"] = "1 W"
    bare = run(from_mapping(data))
    more = made.totals["energy_j"] - bare.totals["energy_j"]
    assert more == pytest.approx(4 * (500 + 8 * 225 - 1) * made.totals["makespan_s"])
    assert any("a host draws 2.3 kW in addition to its GPUs (assumed" in note for note in made.notes)
    data["workload"]["models"]["m"]["parameters"] = 1e8
    data["cluster"]["nodes"][0]["accelerator"] = "tpu_v5e"
    unknown = run(from_mapping(data))
    assert math.isnan(unknown.totals["energy_j"])
    assert any("does not state the power of tpu_v5e" in note for note in unknown.notes)


def test_a_spot_node_is_not_paid_for_while_it_is_away():
    data = changed(faults={"spot": {"group": "node", "mtbf": "30 min", "away": "1 h"}})
    data["workload"] = {"jobs": [{"gpus": 8, "count": 40, "duration": "30 min"}]}
    made = run(from_mapping(data), seed=3, timeline=True)
    down_gpu_s = made.totals["down_gpu_s"]
    paid = (32 * made.totals["makespan_s"] - down_gpu_s) * 3.0 / 3600
    assert down_gpu_s > 0.1 * 32 * made.totals["makespan_s"]
    assert made.totals["gpu_usd"] == pytest.approx(paid)
    assert made.totals["idle_usd"] >= 0


def test_slow_links_do_not_make_a_cheap_accelerator_cheap():
    def cost(accelerator: str) -> float:
        data = changed()
        data["cluster"]["nodes"][0]["accelerator"] = accelerator
        parallel = {"tensor": 8, "tensor_bytes_per_sample": "4 GB"}
        data["workload"]["models"]["m"] |= {"parallel": parallel, "samples_per_pass": 1}
        return run(from_mapping(data)).summary()["cost_usd"]

    assert cost("l40s") > 1.5 * cost("h100_sxm")


def test_faster_gpus_do_not_exchange_faster():
    data = changed()
    parallel = {"tensor": 8, "tensor_bytes_per_sample": "400 GB"}
    data["workload"]["models"]["m"] |= {"parallel": parallel, "samples_per_pass": 1}
    before = from_mapping(data)
    shares = run(before).summary()
    left = shares["tensor_exchange_ratio"] + shares["gpu_busy_ratio"] / 2
    assert shares["tensor_exchange_ratio"] > 0.3
    faster = run(faster_gpus(before)).totals["makespan_s"] / run(before).totals["makespan_s"]
    assert faster == pytest.approx(left / (shares["tensor_exchange_ratio"] + shares["gpu_busy_ratio"]), rel=0.02)


def test_jobs_that_grow_with_the_cluster_are_doubted(tmp_path):
    def told(vary: str, **kind: object) -> list[str]:
        one = {"duration": {"kind": "lognormal", "median": "1 h", "sigma": 1}} | kind
        data = changed(workload={"generate": {"length": "1 d", "classes": [one]}})
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(data))
        return doubts(Question(tmp_path / "plan.yaml", dict([read_vary(vary)]), [read_target("wait_p95<=1h")]))

    (line,) = told("cluster.nodes.0.count=2..4", load=0.8)
    assert "larger clusters get more jobs; give 'rate'" in line
    assert not told("cluster.nodes.0.count=2..4", rate="5/h")
    assert not told("restart.detection=1 s,2 s", load=0.8)


def test_more_flop_than_the_peak_is_doubted():
    data = changed()
    told = "times the FLOP of their GPUs' dense peak rate"
    assert not any(told in note for note in run(from_mapping(data)).notes)
    data["workload"]["models"]["m"]["efficiency"] = "100 %"
    scenario = from_mapping(data)
    model = scenario.workload.models["m"].model_copy(update={"efficiency": 1.5})
    workload = scenario.workload.model_copy(update={"models": {"m": model}})
    assert any(told in n for n in run(scenario.model_copy(update={"workload": workload})).notes)


def recorded(**old: object) -> dict:
    data = changed()
    data["cluster"]["nodes"].append(dict(data["cluster"]["nodes"][0], name="old", accelerator="v100_sxm2_32gb", **old))
    kind = {"name": "a", "rate": "5/h", "duration": {"kind": "lognormal", "median": "1 h", "sigma": 1}}
    data["workload"] = {"generate": {"length": "1 d", "classes": [kind]}}
    return data


def test_recorded_durations_that_count_alike_on_unlike_gpus_are_told():
    told = "durations of the trace are taken as equal on h100_sxm and v100_sxm2_32gb"
    assert any(told in note for note in run(from_mapping(recorded())).notes)
    assert not any(told in note for note in run(from_mapping(recorded(speed=0.4))).notes)


def test_carbon_follows_the_region_and_the_hours(tmp_path):
    def kg(**energy: object) -> float:
        path = tmp_path / "plan.yaml"
        data = changed(energy=energy | {"pue": 1})
        data["workload"] = {"jobs": [{"gpus": 32, "duration": "12 h"}]}
        path.write_text(yaml.safe_dump(data))
        return run(read_scenario(path).scenario).summary()["carbon_kg"]

    hours = [100.0] * 12 + [300.0] * 12
    regions = {"flat": {"mean": 381}, "sunny": {"hours": hours}}
    book = {"schema_version": 1, "name": "mine", "date": "2026-01", "regions": regions}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(book))
    assert kg(region="germany") == pytest.approx(kg(carbon=381))
    assert kg(region="flat", carbon_book="mine.yaml") == pytest.approx(kg(carbon=381))
    night = kg(region="sunny", carbon_book="mine.yaml", begin="12 h")
    assert night == pytest.approx(3 * kg(region="sunny", carbon_book="mine.yaml"))
    late = kg(region="sunny", carbon_book="mine.yaml", begin="6 h")
    assert late == pytest.approx(kg(carbon=200))
    for energy, told in (
        ({"region": "atlantis"}, "region 'atlantis' is not in carbon.yaml; known: australia,"),
        ({"region": "world", "carbon": 400}, "give either 'carbon' or a 'region'"),
        ({"region": "world", "carbon_book": "none.yaml"}, "carbon file 'none.yaml': no such file"),
    ):
        with pytest.raises(InputError) as raised:
            from_mapping(changed(energy=energy))
        assert told in raised.value.lines[0]
    book["regions"]["short"] = {"hours": [1, 2]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(book))
    assert main(["validate", str(tmp_path / "mine.yaml")]) == 2

"""Duration jobs on several GPU models: how fast they run, what stages see of it, and gangs of one model."""

import json

import numpy as np
import pytest

from equipoise import api
from equipoise.policies.contract import Allocation, Plan, Policy, check
from equipoise.policies.registry import make_stage
from equipoise.sim.loading.file import from_mapping, read_scenario
from equipoise.sim.run import RunFailed
from equipoise.sim.scenario.tree import InputError
from equipoise.study.bounds import lower_bound
from tests.policies.observations import JobState, MadeCluster

RATES = "job_type,gpu_model,gpus,rate\nvision,a100_sxm_40gb,1,200\nvision,v100_sxm2_32gb,1,50\nvision,t4,1,25\n"


def case(jobs, throughputs=None, policy="fifo", **nodes):
    groups = [
        {"name": name[0], "accelerator": name, "gpus": count}
        for name, count in (nodes or {"a100_sxm_40gb": 4, "v100_sxm2_32gb": 4, "t4": 4}).items()
    ]
    workload = {"jobs": jobs} | ({"throughputs": throughputs} if throughputs else {})
    return {
        "schema_version": 1,
        "name": "kinds",
        "cluster": {"nodes": groups},
        "workload": workload,
        "policy": [policy],
    }


def spans_s(result):
    jobs = result.jobs
    return (jobs["completion_s"] - jobs["start_s"]).tolist()


def test_a_duration_holds_on_the_reference_and_data_sheets_say_the_rest():
    result = api.run(case([{"gpus": 4, "duration": "1 h", "count": 3}]))
    # sqrt of (fp16 rates 312, 125, 65 TFLOP/s) x (bandwidths 1555, 900, 320 GB/s), each over the first
    slower = [np.sqrt(peak / 312 * width / 1555) for peak, width in ((312, 1555), (125, 900), (65, 320))]
    assert spans_s(result) == pytest.approx([3600 / ratio for ratio in slower])
    assert any("estimated from data sheets" in note for note in result.notes)


def test_a_rate_that_a_table_lacks_is_named():
    rates = [{"job_type": "vision", "gpu_model": "v100_sxm2_32gb", "gpus": 4, "rate": 10}]
    spec = case(
        [{"gpus": 4, "duration": "1 h", "count": 3, "job_type": "vision"}],
        {"rates": rates, "reference": "v100_sxm2_32gb"},
    )
    (note,) = [note for note in api.run(spec).notes if "estimated" in note]
    assert "give workload.throughputs, which has no rates of vision on a100_sxm_40gb, vision on t4, or" in note


def test_rates_of_a_table_take_their_place(tmp_path):
    (tmp_path / "rates.csv").write_text(RATES)
    table = {"file": "rates.csv", "reference": "v100_sxm2_32gb"}
    spec = case([{"gpus": 4, "duration": "1 h", "count": 3, "job_type": "vision"}], table)
    (tmp_path / "case.yaml").write_text(json.dumps(spec))
    result = api.run(tmp_path / "case.yaml")
    assert spans_s(result) == pytest.approx([900.0, 3600.0, 7200.0])
    assert not any("guessed" in note for note in result.notes)
    scenario = read_scenario(tmp_path / "case.yaml").scenario
    assert scenario.workload.throughputs.file is None, "the rates are part of the scenario, and so of its identity"
    assert len(scenario.workload.throughputs.rates) == 3


def test_a_number_of_gpus_takes_the_rates_of_the_next_smaller_one():
    rates = [
        {"job_type": "x", "gpu_model": model, "gpus": gpus, "rate": rate}
        for model, gpus, rate in (("a100_sxm_40gb", 1, 4), ("a100_sxm_40gb", 4, 8), ("t4", 1, 1), ("t4", 4, 1))
    ]
    jobs = [{"gpus": n, "duration": "1 h", "job_type": "x"} for n in (4, 3)]
    result = api.run(case(jobs, {"rates": rates, "reference": "t4"}, a100_sxm_40gb=8, t4=1))
    assert spans_s(result) == pytest.approx([450.0, 900.0])


MODEL = {
    "kind": "large-products",
    "flop_per_sample": "6 TFLOP",
    "efficiency": 0.5,
    "fixed_time": 0,
    "precision": "fp16",
    "overlap": 1,
    "gradient": "2 GB",
    "exchange": {"alpha": 0, "rate": "1 GB/s"},
}
BY_MODEL = {"models": [{"job_type": "x", "model": "m", "global_batch": 64}], "reference": "a100_sxm_40gb"}


def modelled(jobs, model, throughputs=BY_MODEL, **nodes):
    spec = case(jobs, throughputs, **(nodes or {"a100_sxm_40gb": 4, "t4": 4}))
    spec["workload"]["models"] = {"m": model}
    return spec


def test_rates_of_a_model_by_hand():
    of = {"duration": "1 h", "job_type": "x"}
    jobs = [of | {"gpus": 1, "count": 8}, of | {"gpus": 4, "count": 2, "arrival": "1 d"}]
    found = spans_s(api.run(modelled(jobs, MODEL)))
    # 64 or 16 samples of 6 TFLOP at half of 312 and of 65 TFLOP/s; an exchange takes 2 GB x 2 (4 - 1) / 4 at 1 GB/s
    one, slow_one, four, slow_four = [samples * 6 / (peak / 2) for samples in (64, 16) for peak in (312, 65)]
    assert sorted(found[:8]) == pytest.approx([3600.0] * 4 + [3600 * slow_one / one] * 4)
    assert sorted(found[8:]) == pytest.approx([3600.0, 3600 * (slow_four + 3) / (four + 3)])


@pytest.mark.parametrize("overlap", [1, 2.5])
@pytest.mark.parametrize("gpus", [1, 3, 8])
def test_rates_of_a_model_are_those_of_its_training_jobs(gpus, overlap):
    model = {
        "kind": "large-products",
        "flop_per_sample": "6 TFLOP",
        "parameters": 1e8,
        "precision": "fp16",
        "overlap": overlap,
    }
    kinds = ("a100_sxm_40gb", "t4")
    trains = {"model": "m", "gpus": gpus, "steps": 1000, "global_batch": 64}
    fast_s, slow_s = (spans_s(api.run(modelled([trains], model, None, **{kind: 8})))[0] for kind in kinds)
    lasts = {"gpus": gpus, "duration": "1 h", "job_type": "x", "gpu_types": ["t4"]}
    (found_s,) = spans_s(api.run(modelled([lasts], model, a100_sxm_40gb=8, t4=8), policy="multifactor"))
    assert found_s / 3600 == pytest.approx(slow_s / fast_s, rel=1e-9)


def test_a_model_that_does_not_fit_on_a_gpu_model_has_no_rate_there():
    jobs = [{"gpus": 4, "duration": "1 h", "job_type": "x", "count": 2}]
    notes = api.run(modelled(jobs, MODEL | {"parameters": 1.2e9})).notes
    assert any("has no rates of x on t4 (too little memory), or a speed of each" in note for note in notes)


def test_jobs_that_are_no_whole_replicas_are_refused(tmp_path):
    model = MODEL | {"parallel": {"tensor": 2}, "parameters": 1e8}
    with pytest.raises(
        InputError, match=r"jobs\.0\.gpus: 3 GPUs are not a whole number of replicas of model 'm', which need 2"
    ):
        from_mapping(modelled([{"gpus": 3, "duration": "1 h", "job_type": "x"}], model))
    (tmp_path / "trace.csv").write_text("job_id,arrival_s,gpus,duration_s,job_type\n0,0,3,60,x\n")
    with pytest.raises(
        InputError, match="job type 'x': 3 GPUs are not a whole number of replicas of model 'm', which need 2"
    ):
        api.run(modelled([], model), trace=tmp_path / "trace.csv")


def test_a_speed_of_the_nodes_is_known_better_than_a_guess():
    spec = case([{"gpus": 4, "duration": "1 h", "count": 2}], a100_sxm_40gb=4, v100_sxm2_32gb=4)
    spec["cluster"]["nodes"][1]["speed"] = 0.5
    result = api.run(spec)
    assert spans_s(result) == pytest.approx([3600.0, 7200.0])
    assert not any("guessed" in note for note in result.notes)


@pytest.mark.parametrize("policy", ["fifo", "sjf", "easy", "srtf", "las", "s4", "s4(mode=optimal)"])
def test_a_gang_keeps_to_one_gpu_model_unless_it_says_otherwise(policy):
    nodes = {"a100_sxm_40gb": 4, "v100_sxm2_32gb": 4}
    slower = np.sqrt(125 / 312 * 900 / 1555)
    jobs = [{"gpus": 1, "duration": "1 h"}] * 2 + [{"gpus": 3, "duration": "1 h", "arrival": 2}]
    gang_s = spans_s(api.run(case(jobs, **nodes), policy=policy))[2]
    moved_s = 3598 + 30 + (3600 - 3598 * slower)  # from the slower ones, once the faster ones are free: a restart
    assert any(gang_s == pytest.approx(expected) for expected in (3600.0, 3600 / slower, moved_s))
    whole = {"name": "gang", "gpus": 6, "duration": "1 h", "mix_gpus": True}
    mixed = api.run(case([whole], **nodes), policy=policy)
    assert spans_s(mixed) == pytest.approx([3600 / slower]), "at the pace of the slowest"
    with pytest.raises(InputError, match="6 GPUs of one model, the cluster has 4; or set mix_gpus"):
        api.run(case([whole | {"mix_gpus": False}], **nodes))


def test_a_gang_waits_where_only_a_mixture_is_free():
    jobs = [
        {"gpus": 2, "duration": "1 h"},
        {"gpus": 3, "duration": "1 h", "arrival": 1},
        {"gpus": 3, "duration": "1 h", "arrival": 2},
    ]
    nodes = {"a100_sxm_40gb": 4, "v100_sxm2_32gb": 4}
    assert api.run(case(jobs, **nodes)).jobs["start_s"][2] == pytest.approx(3600.0)
    for job in jobs:
        job["mix_gpus"] = True
    assert api.run(case(jobs, **nodes)).jobs["start_s"][2] == pytest.approx(2.0)


def test_no_plan_may_mix_what_must_not_be_mixed():
    cluster = MadeCluster(np.random.default_rng(0), [2, 2], [True, True])
    cluster.add(JobState.WAITING, rigid=True, gpus=4)
    for alike in (True, False):
        cluster.jobs[0] |= {"one_gpu_model": alike, "memory_bytes": 0.0}
        problem = check(Plan(allocation=Allocation.of([(0, range(4))])), cluster.observe())
        assert (problem is not None and "must not mix GPU models" in problem) == alike


def test_a_policy_that_mixes_ends_the_run_with_one_clear_line():
    class Mixer(type(make_stage("fifo"))):
        def refine(self, observation, plan, memory):
            return plan.with_(allocation=Allocation.of([(0, range(6))])), memory

    nodes = {"a100_sxm_40gb": 4, "v100_sxm2_32gb": 6}
    spec = case([{"gpus": 6, "duration": "1 h"}], **nodes)
    with pytest.raises(RunFailed, match="must not mix GPU models"):
        api.run(spec, policy=Policy("mixer", (Mixer(),)))


def test_stages_see_how_fast_a_duration_job_is_on_each_model():
    seen = {}

    class Looks(type(make_stage("s4"))):
        def refine(self, observation, plan, memory):
            o = observation
            rows = [o.speeds.as_dict()[name].tolist() for name in ("job", "gpu_model", "gpus", "samples_per_s")]
            seen.setdefault("speeds", list(zip(*rows, strict=True)))
            return super().refine(observation, plan, memory)

    rates = [{"job_type": "x", "gpu_model": m, "gpus": 1, "rate": r} for m, r in (("a100_sxm_40gb", 3.0), ("t4", 1.0))]
    jobs = [{"gpus": 2, "duration": "1 h", "job_type": "x", "count": 2}]
    api.run(case(jobs, {"rates": rates}, a100_sxm_40gb=4, t4=4), policy=Policy("looks", (Looks(),)))
    assert seen["speeds"] == [
        (0, 0, 2, 1.0),
        (0, 1, 2, pytest.approx(1 / 3)),
        (1, 0, 2, 1.0),
        (1, 1, 2, pytest.approx(1 / 3)),
    ]


def test_no_policy_beats_the_bound_on_several_models():
    rates = [{"job_type": "x", "gpu_model": m, "gpus": 1, "rate": r} for m, r in (("a100_sxm_40gb", 3.0), ("t4", 1.0))]
    jobs = [{"gpus": 1, "duration": "1 h", "job_type": "x", "count": 16}]
    spec = from_mapping(case(jobs, {"rates": rates, "reference": "t4"}, a100_sxm_40gb=4, t4=4))
    bound = lower_bound(spec)
    assert bound.makespan_s == pytest.approx(16 * 1200 / (4 + 4 / 3))
    assert bound.makespan_s <= api.run(spec).summary()["makespan_s"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job_type,gpu_model,gpus\nx,t4,1\n", "column 'rate' is missing"),
        ("job_type,gpu_model,gpus,rate\nx,t4,1,0\n", "rate: 0 is not allowed, must be above 0"),
        ("job_type,gpu_model,gpus,rate\nx,t4,0,1\n", "gpus"),
    ],
)
def test_a_wrong_table_is_one_line(tmp_path, text, said):
    (tmp_path / "rates.csv").write_text(text)
    (tmp_path / "case.yaml").write_text(json.dumps(case([{"gpus": 1, "duration": "1 h"}], {"file": "rates.csv"})))
    with pytest.raises(InputError, match=said) as raised:
        read_scenario(tmp_path / "case.yaml")
    assert "rates.csv:" in raised.value.lines[0]


@pytest.mark.parametrize(
    ("table", "job", "said"),
    [
        ({"reference": "h100_sxm"}, {}, "not an accelerator of the cluster; allowed: a100_sxm_40gb, t4, v100"),
        ({}, {"job_type": "x"}, "'x' has no rates; those with: none"),
        (BY_MODEL, {"job_type": "x"}, "models.0.model: unknown model 'm'"),
        (
            BY_MODEL | {"rates": [{"job_type": "x", "gpu_model": "t4", "gpus": 1, "rate": 1}]},
            {},
            "models.0: 'x' already has rates",
        ),
        (None, {"job_type": "x"}, "has no effect without 'workload.throughputs'"),
        ({"file": "no.csv"}, {}, "no such file"),
    ],
)
def test_names_that_mean_nothing_are_refused(table, job, said):
    spec = case([{"gpus": 1, "duration": "1 h"} | job])
    if table is not None:
        spec["workload"]["throughputs"] = table
    with pytest.raises(InputError, match=said):
        from_mapping(spec)

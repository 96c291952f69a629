"""What follows from the shape of a large model, its layout and the nodes that it is on."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.llm.published import SHAPES
from equipoise.sim.loading.transformers import bind, bound_scenario, has_transformers, plan_notes, with_samples
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from tests.scenarios import model, scenario

PROFILE = load_profile("catalogue")
NODE = {"accelerator": "h100_sxm", "fabric": 450e9}
NODES = [
    NODE | {"name": "a", "count": 16, "gpus": 8, "nic": 40e9},
    NODE | {"name": "b", "count": 3, "gpus": 4, "nic": 60e9},
]
LAYOUT = {"tp": 2, "pp": 4, "zero": 1, "micro_batch": 2}
JOB = {"gpus": 24, "model": "m", "steps": 4, "global_batch": 12}


def case(*jobs: dict[str, Any], layout: dict[str, Any] | None = None, spec: Any = None, **own: Any) -> Scenario:
    shape = {"config": "llama2-13b", "stack": "megatron-core/H100"}
    shape |= {"layout": layout or LAYOUT} if spec is None else spec
    models = {"plain": model(), "m": {"transformer": shape} | own}
    numbered = [job | {"name": f"j{k}"} for k, job in enumerate(jobs)]
    return scenario(cluster={"nodes": NODES}, workload={"models": models, "jobs": numbered})


def wrong(given: Scenario) -> list[tuple[str, str]]:
    return [(".".join(map(str, path)), text) for path, text in bind(given, PROFILE)[1]]


def test_a_model_is_what_its_shape_and_layout_make_of_it() -> None:
    found, problems = bind(case(JOB | {"gpus": 120}, layout=LAYOUT | {"tp": 4, "cp": 2, "pp": 5}), PROFILE)
    made, shape = found.workload.models["m"], SHAPES["llama2-13b"]
    assert problems == []
    assert made.transformer is not None
    bound = made.transformer.bound
    assert bound is not None
    assert (bound.dp, bound.global_batch, bound.node_gpus, bound.nic, bound.why) == (3, 12, 4, 40e9, "")
    assert (made.parallel.tensor, made.parallel.pipeline, made.parallel.zero) == (8, 5, 1)
    assert (made.parameters, made.gradient) == (shape.parameters, 2.0 * shape.parameters)
    assert made.flop_per_sample == shape.train_flop_per_token() * shape.sequence
    assert made.memory.optimizer_bytes_per_parameter == 10.0
    assert found.workload.jobs[0].micro_batch == 2
    assert found.workload.models["plain"] == case().workload.models["plain"]
    assert len([*plan_notes(found)]) == 1  # how sure the step is; no layout was searched


def test_replicas_are_those_of_the_first_job_and_gradients_of_32_bits_are_twice_as_large() -> None:
    found, problems = bind(case(JOB, JOB | {"gpus": 8, "global_batch": 4}, precision="fp32"), PROFILE)
    made = found.workload.models["m"]
    assert problems == []
    assert made.transformer is not None
    assert made.transformer.bound is not None
    assert (made.transformer.bound.dp, made.transformer.bound.global_batch) == (3, 12)
    assert made.gradient == 4.0 * SHAPES["llama2-13b"].parameters


def test_a_model_that_no_job_names_is_one_replica_with_one_micro_batch() -> None:
    found, problems = bind(case({"gpus": 3, "duration": 5.0}), PROFILE)
    made = found.workload.models["m"].transformer
    assert problems == []
    assert made is not None
    assert made.bound is not None
    assert (made.bound.dp, made.bound.global_batch) == (1, 2)
    assert found.workload.jobs[0].micro_batch == 1


def test_every_job_of_a_model_is_whole_replicas_and_whole_micro_batches() -> None:
    layout = "workload.models.m.transformer.layout"
    assert wrong(case(JOB, JOB | {"gpus": 20})) == [
        (layout, "20 GPUs of job 'j1' are not a multiple of 8 (tp x cp x pp)")
    ]
    assert wrong(case(JOB | {"gpus": 4})) == [(layout, "4 GPUs of job 'j0' are not a multiple of 8 (tp x cp x pp)")]
    ((path, text),) = wrong(case(JOB | {"global_batch": 16}))
    assert path == layout
    assert text.startswith("job 'j0': global_batch: 16 is not a multiple of dp x micro_batch (3 x 2)")


def test_a_job_says_the_micro_batch_of_the_layout_or_none() -> None:
    assert wrong(case(JOB | {"micro_batch": 2}, JOB | {"micro_batch": 1})) == []
    assert wrong(case({"gpus": 2, "duration": 5.0}, JOB | {"micro_batch": 3}, JOB | {"micro_batch": 4})) == [
        ("workload.jobs.1.micro_batch", "3 is not the layout's micro_batch, 2; leave it out"),
        ("workload.jobs.2.micro_batch", "4 is not the layout's micro_batch, 2; leave it out"),
    ]


def test_a_layout_is_searched_for_jobs_of_one_size() -> None:
    said = "auto needs jobs of a single size (gpus, global_batch);"
    plan = "workload.models.m.transformer.plan"
    assert wrong(case(spec={"plan": "auto"})) == [(plan, f"{said} no job uses this model")]
    several = case(JOB, JOB | {"gpus": 16}, JOB | {"global_batch": 24}, JOB, spec={"plan": "auto"})
    assert wrong(several) == [(plan, f"{said} jobs of 3 sizes use it")]


def test_what_is_wrong_is_told_with_the_scenario_and_what_is_none_of_it_is_left() -> None:
    with pytest.raises(InputError) as caught:
        bound_scenario(case(JOB | {"gpus": 20}))
    assert str(caught.value).startswith("test: workload.models.m.transformer.layout: 20 GPUs of job 'j0'")
    bare = scenario(workload={"models": {"m": model()}})
    assert (has_transformers(bare), has_transformers(case())) == (False, True)
    assert bound_scenario(bare) is bare


def test_targets_in_tokens_are_samples_rounded_up() -> None:
    job = {"model": "m", "gpus": 1, "tokens": 601}
    given = [{"gpus": 1, "duration": 5.0}, job, job | {"tokens": 600}, {"model": "m", "steps": 3}, job | {"model": "n"}]
    models = {"m": model(tokens_per_sample=200), "n": model()}
    made, problems = with_samples(scenario(workload={"models": models, "jobs": given}))
    assert [each.samples for each in made.workload.jobs] == [None, 4, 3, None, None]
    assert [each.tokens for each in made.workload.jobs] == [None, None, None, None, 601]
    said = "model 'n' has no 'tokens_per_sample'and no 'transformer'"
    assert problems == [(("workload", "jobs", 4, "tokens"), said)]

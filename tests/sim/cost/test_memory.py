"""Device memory binds every plan: samples of a pass, further passes and their time, and what never fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.registry import make_policy, make_stage
from equipoise.sim.cost.step import UNBOUNDED, fewest_workers, least_bytes, samples_per_pass
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Model, Scenario
from equipoise.sim.scenario.tree import InputError
from tests.scenarios import model, simulate


def case(gpus: int = 2, batch: int = 128, speeds: tuple[float, ...] = (1.0,), **changes: Any) -> Scenario:
    """A job whose device holds 64 GB of activations of 1 GB a sample, beside 16 GB of state."""
    memory = changes.pop("memory", {"activation_per_sample": 1e9})
    keys = {"fixed_time": 0.1, "parameters": 1e9, "precision": "bf16", "memory": memory, "gradient": 0.0}
    parallel, job = changes.pop("parallel", {}), changes.pop("job", {})
    nodes = [
        {"name": f"n{k}", "count": gpus, "gpus": 1, "accelerator": "generic", "speed": speed}
        for k, speed in enumerate(speeds)
    ]
    sections = {
        "schema_version": 1,
        "name": "memory",
        "cluster": {"nodes": nodes},
        "workload": {
            "models": {"m": model(**keys) | {"parallel": parallel}},
            "jobs": [{"gpus": gpus * len(speeds), "model": "m", "steps": 40, "global_batch": batch} | job],
        },
    }
    return from_mapping(sections | changes)


@dataclass(frozen=True)
class Look(Stage):
    """Keeps what it saw of the workers."""

    name: ClassVar[str] = "look"
    kind: ClassVar[Kind] = "tasks"
    seen: list[tuple[list[int], list[int], list[float]]] = field(default_factory=list)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        workers = observation.workers
        if len(workers):
            columns = (workers.samples_per_step, workers.samples_per_pass, workers.memory_free_bytes)
            self.seen.append(tuple(column.tolist() for column in columns))
        return plan, memory


def test_what_fits_into_a_pass() -> None:
    plain = Model(sample_time=1.0, parameters=1e9, memory={"activation_per_sample": 1e9})
    assert least_bytes(plain, 4) == 17e9
    assert samples_per_pass(plain, 80e9, 4) == 64
    assert samples_per_pass(plain, 17e9, 4) == 1
    assert samples_per_pass(plain, 16.9e9, 4) == 0
    assert samples_per_pass(plain.model_copy(update={"samples_per_pass": 8}), 80e9, 4) == 8
    assert samples_per_pass(Model(sample_time=1.0), 80e9, 4) == UNBOUNDED


def test_fewer_workers_hold_more_of_a_divided_state() -> None:
    sharded = Model(sample_time=1.0, parameters=16e9, parallel={"zero": 3}, memory={"activation_per_sample": 1e9})
    assert least_bytes(sharded, 8) == 33e9
    assert fewest_workers(sharded, 8, 1, [80e9]) == 4  # 16 bytes * 16e9 / 4 + 1 GB = 65 GB, 86 GB at 3
    assert fewest_workers(sharded, 8, 1, [40e9, 80e9]) == 7  # also where a worker of 8 fits


def test_more_samples_than_memory_holds_take_further_passes_and_their_time() -> None:
    steps_s = {batch: simulate(case(batch=batch)).jobs["completion_s"][0] / 40 for batch in (128, 130, 258)}
    assert steps_s[128] == pytest.approx(0.1 + 64 * 0.01)  # 64 samples each: one pass
    assert steps_s[130] == pytest.approx(0.2 + 65 * 0.01)  # 65: two
    assert steps_s[258] == pytest.approx(0.3 + 129 * 0.01)  # 129: three


@pytest.mark.parametrize("policy", ["s2", "s2(mode=optimal)"])
def test_a_deal_beyond_memory_is_not_free(policy: str) -> None:
    """Three times as fast: it would take 91 and more of 128 samples (107 GB) in one pass of an 80 GB device."""
    look = Look()
    stages = (make_stage("fifo"), *make_policy(policy).stages, look)
    spec = case(gpus=1, speeds=(1.0, 1 / 3), decide={"every_steps": 2})
    run(spec, policy=Policy("look", stages))
    dealt, most, free = look.seen[-1]
    assert dealt[0] > 64
    assert most == [64, 64]
    assert free[0] == 0.0
    assert free[1] == pytest.approx((64 - dealt[1]) * 1e9)
    first_s = run(spec, policy=Policy("look", stages)).jobs["completion_s"][0]
    roomy = case(gpus=1, speeds=(1.0, 1 / 3), decide={"every_steps": 2}, memory={"activation_per_sample": 1.0})
    assert first_s > 40 * 0.05 + run(roomy, policy=Policy("look", stages)).jobs["completion_s"][0]


def test_a_smaller_share_has_less_memory() -> None:
    half = case(gpus=1, batch=24, job={"gpu_share": 0.5})  # 40 GB hold 24 samples
    more = case(gpus=1, batch=25, job={"gpu_share": 0.5})
    assert simulate(half).jobs["completion_s"][0] == pytest.approx(40 * 2 * (0.1 + 24 * 0.01))
    assert simulate(more).jobs["completion_s"][0] == pytest.approx(40 * 2 * (0.2 + 25 * 0.01))


def test_a_note_says_how_many_passes() -> None:
    assert not any("passes" in note for note in simulate(case()).notes)
    (note,) = (note for note in simulate(case(batch=258)).notes if "passes" in note)
    assert note == "job job: memory holds 64 of the 129 samples of a worker's step, which takes 3 passes"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"memory": {"activation_per_sample": 65e9}},
            "needs 81000000000 bytes (81 GB) for one sample at a time on each of 2 GPUs; "
            "no GPUs have that much memory, "
            "the largest has 80000000000 bytes (80 GB)",
        ),
        (
            {"memory": {"activation_per_sample": 25e9}, "job": {"gpu_share": 0.5}},
            "needs 82000000000 bytes (82 GB) for one sample at a time on each of 2 GPUs "
            "(a share of 0.5); no GPUs have that much memory",
        ),
    ],
)
def test_a_job_of_which_one_sample_does_not_fit_is_an_input_error(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as error:
        case(**changes)
    assert line in error.value.lines[0]

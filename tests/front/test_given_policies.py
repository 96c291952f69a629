"""What an author may hand over for a policy, and what is said about everything else."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

import equipoise
from equipoise.policies.contract import Allocation, AllocationStage, Policy
from equipoise.policies.registry import PolicyError

CASE = {
    "schema_version": 1,
    "name": "x",
    "cluster": {"nodes": [{"count": 2, "gpus": 4}]},
    "workload": {"jobs": [{"count": 3, "gpus": 4, "duration": "1 h"}]},
}


@dataclass(frozen=True)
class Backwards(AllocationStage):
    """Last in, first out."""

    name: ClassVar[str] = "backwards"
    order: ClassVar[str] = "latest"
    blocking: ClassVar[str] = "passes over"
    preemption: ClassVar[str] = "never"

    weight: float = 1.0

    def refine(self, observation, plan, memory):
        """Start the last one on the first node that is free."""
        free = [g for g in range(len(observation.gpus)) if observation.gpus.share_free[g] == 1]
        starts = [
            (job, free[4 * k : 4 * k + 4])
            for k, job in enumerate(reversed(observation.waiting))
            if len(free) >= 4 * k + 4
        ]
        if not starts:
            return plan.because(self.name, "nothing is free"), memory
        return plan.with_(allocation=Allocation.of(starts)).because(self.name, "started"), memory


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (Backwards(), "backwards"),
        ([Backwards()], "backwards"),
        (["s1", Backwards(weight=2.0)], "s1+backwards(weight=2.0)"),
        (Policy("mine", (Backwards(),)), "mine"),
        ("easy", "easy"),
        ([], "none"),
    ],
)
def test_a_stage_is_a_policy(given, name):
    made = equipoise.run(CASE, policy=given)
    assert made.policy_name == name
    assert made.totals["makespan_s"] == 7200.0


def test_stages_are_compared_one_alone_too():
    made = equipoise.compare(CASE, ["fifo", Backwards(), Backwards(weight=2.0)])
    assert made.policies == ("fifo", "backwards", "backwards(weight=2.0)")
    assert equipoise.compare(CASE, Backwards()).policies == ("backwards",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Backwards, r"Backwards itself is not a policy: .*a stage such as Backwards\(\)"),
        (3, "3 is not a policy: give a text"),
        ([4], "4 is not a policy"),
    ],
)
def test_what_is_no_policy_is_told(given, said):
    with pytest.raises(PolicyError, match=said):
        equipoise.run(CASE, policy=given)
    with pytest.raises(PolicyError, match=said):
        equipoise.compare(CASE, given)


SCENARIO = "scenario: .* is not allowed; allowed: the path of a scenario file"
TEXTS = r"is not allowed; allowed: a list of strings, such as \['"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda out: equipoise.run(None), SCENARIO),
        (lambda out: equipoise.run(CASE, trace={}), "trace: {} is not allowed; allowed: the path of a job trace"),
        (lambda out: equipoise.run(CASE, seed=True), "seed: True is not allowed"),
        (lambda out: equipoise.run(CASE, out={}), "out: {} is not allowed; allowed: a path"),
        (lambda out: equipoise.run(CASE, stop=True), "stop: True is not allowed; allowed: a function"),
        (lambda out: equipoise.run("quickstart", overrides="a=1"), f"overrides: 'a=1' {TEXTS}"),
        (lambda out: equipoise.compare(None, "fifo"), SCENARIO),
        (lambda out: equipoise.compare(CASE, "fifo", "3"), "seeds: '3' is not allowed; .* number of at least 1"),
        (lambda out: equipoise.compare(CASE, "fifo", jobs="2"), "jobs: '2' is not allowed"),
        (lambda out: equipoise.compare(CASE, "fifo", until=3), "until: 3 is not allowed; .* such as 'ci:2%'"),
        (lambda out: equipoise.compare(CASE, "fifo", by="user"), f"by: 'user' {TEXTS}"),
        (lambda out: equipoise.compare(CASE, "fifo", journal=True), "journal and timeline need out"),
        (lambda out: equipoise.sweep({}, out), "file: {} is not allowed; allowed: the path of a sweep file"),
        (lambda out: equipoise.sweep("x.yaml", None), "out: None is not allowed; allowed: a path"),
        (lambda out: equipoise.size("quickstart", {"a": [1]}, []), f"vary: .* {TEXTS}"),
        (lambda out: equipoise.size("quickstart", [], {"makespan": 1}), f"targets: .* {TEXTS}"),
        (lambda out: equipoise.load({}), "path: {} is not allowed; allowed: the path of a scenario file"),
    ],
)
def test_what_a_function_cannot_take_is_one_line(tmp_path, call, said):
    with pytest.raises(ValueError, match=said) as raised:
        call(tmp_path / "out")
    assert len(str(raised.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []

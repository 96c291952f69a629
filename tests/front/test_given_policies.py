"""What an author may hand over for a policy, and what is said about everything else."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

import equipoise
from equipoise.policies.contract import Allocation, AllocationStage, Policy
from equipoise.policies.registry import PolicyError

CASE = {
    "schema_version": 1, "name": "x", "cluster": {"nodes": [{"count": 2, "gpus": 4}]},
    "workload": {"jobs": [{"count": 3, "gpus": 4, "duration": "1 h"}]},
}  # fmt: skip


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
        ]  # fmt: skip
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
        (Backwards, r"Backwards itself is no policy: .*a stage such as Backwards\(\)"),
        (3, "3 is no policy: give a text"),
        ([4], "4 is no policy"),
    ],
)
def test_what_is_no_policy_is_told(given, said):
    with pytest.raises(PolicyError, match=said):
        equipoise.run(CASE, policy=given)
    with pytest.raises(PolicyError, match=said):
        equipoise.compare(CASE, given)


def test_an_answer_is_short(tmp_path):
    (tmp_path / "x.yaml").write_text(str(CASE).replace("'", '"'))
    made = equipoise.size(
        tmp_path / "x.yaml", ["cluster.nodes.0.count=2:4"], ["makespan<=1h"], policy=Backwards(), seeds=1
    )
    assert repr(made) == f"<Answer: best cluster.nodes.0.count=3; {made.tried} of 3 sizes were run>"

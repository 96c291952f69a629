"""What a stop costs is known before the first one, and service counts by the share of the GPU held."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.registry import make_stage
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario
from tests.scenarios import model, scenario, simulate


def pool(jobs: list[dict[str, object]], gpus: int = 1, **sections: object) -> Scenario:
    return scenario(cluster={"gpus": gpus}, workload={"jobs": jobs, "models": {"m": model()}}, **sections)


def rigid(name: str, arrival: float, duration: float, **more: object) -> dict[str, object]:
    return {"name": name, "arrival": arrival, "gpus": 1, "duration": duration} | more


@pytest.mark.parametrize(("restart", "stops"), [(30.0, 1), (50.0, 0)])
def test_a_first_preemption_is_not_free(restart: float, stops: int) -> None:
    """After 10 s the long job has 90 s left: one of 50 s may stop it only while a restart costs under 40 s."""
    case = pool([rigid("long", 0, 100), rigid("short", 10, 50)], restart={"initialisation": restart})
    result = simulate(case, "srtf")
    assert result.jobs["preemptions"].tolist() == [stops, 0]
    end = 100 + 50 + restart if stops else 100
    assert result.jobs["completion_s"].tolist() == [end, 60 if stops else 150]


@dataclass(frozen=True)
class Note(Stage):
    """Keeps one column of the jobs table as it is at every decision."""

    name: ClassVar[str] = "note"
    kind: ClassVar[Kind] = "sync"

    column: str = ""
    seen: list[tuple[float, list[float]]] = field(default_factory=list)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Change nothing."""
        self.seen.append((observation.time_s, getattr(observation.jobs, self.column).tolist()))
        return plan, memory


def observed(case: Scenario, stage: Stage, column: str) -> list[tuple[float, list[float]]]:
    """(time, values of a jobs column by row) at every decision."""
    note = Note(column)
    run(case, policy=Policy("noted", (note, stage)))
    return note.seen


def test_the_cost_of_a_restart_is_there_from_arrival() -> None:
    case = pool([rigid("a", 0, 100), rigid("b", 10, 20)], restart={"initialisation": 7.0})
    assert observed(case, make_stage("las"), "restart_s")[0] == (0.0, [7.0])
    training = {"name": "t", "gpus": 1, "model": "m", "steps": 10, "global_batch": 8}
    trained = pool([training], restart={"initialisation": 7.0})
    assert observed(trained, make_stage("las"), "restart_s")[0][1][0] >= 7.0


def test_half_a_gpu_attains_half() -> None:
    jobs = [rigid("half", 0, 100, gpu_share=0.5), rigid("whole", 40, 10), rigid("late", 60, 1)]
    case = scenario(cluster={"nodes": [{"count": 2, "gpus": 1}]}, workload={"jobs": jobs})
    attained = dict(observed(case, make_stage("las"), "attained_gpu_s"))
    assert attained[40.0][0] == pytest.approx(20.0)
    assert attained[60.0] == pytest.approx([30.0, 10.0, 0.0])


def test_a_job_on_half_a_gpu_changes_queue_when_it_has_attained_the_threshold() -> None:
    """40 GPU-seconds on half a GPU take 80 s: only then may a newcomer of the first queue have the GPU."""
    jobs = [rigid("half", 0, 500, gpu_share=0.5), rigid("whole", 10, 20)]
    case = scenario(
        cluster={"nodes": [{"count": 1, "gpus": 1}]}, workload={"jobs": jobs}, restart={"initialisation": 0.0}
    )
    decisions = observed(case, make_stage("las", {"thresholds_gpu_s": (40.0,)}), "attained_gpu_s")
    assert [t for t, _ in decisions if 10 < t < 90] == [pytest.approx(80.0)]

"""Random faults come after the time between them and last as long as the scenario says."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.sim.cluster import faults
from equipoise.sim.scenario.model import Faults
from equipoise.sim.world.world import mtbf_s
from tests.scenarios import scenario, simulate

SPAN_S, MTBF_S, LENGTH_S = 20_000.0, 100.0, 20.0
KINDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "crash": ({"mtbf": MTBF_S, "repair": LENGTH_S}, "crash", "repair"),
    "rack": ({"mtbf": MTBF_S, "repair": LENGTH_S}, "crash", "repair"),
    "fail_slow": ({"mtbf": MTBF_S, "duration": LENGTH_S}, "fail_slow", "fail_slow_end"),
    "link": ({"mtbf": MTBF_S, "duration": LENGTH_S}, "link_degraded", "link_restored"),
    "spot": ({"group": "n", "mtbf": MTBF_S, "notice": 0.0, "away": LENGTH_S}, "reclaim", "repair"),
    "corrupt_gradient": (
        {"per_gpu_hour": 3600.0 / MTBF_S, "duration": LENGTH_S}, "corrupt_gradient", "corrupt_gradient_end",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_faults_come_and_go_in_their_time(kind: str) -> None:
    """About 167 of them, one after another, on a node that nobody uses: a mean is off by some 8 %."""
    spec, begins, ends = KINDS[kind]
    nodes = [{"name": "used", "count": 1}, {"name": "n", "count": 1}]
    cluster = {"nodes": nodes, "topology": {"kind": "tree", "nodes_per_rack": 1}}
    job = {"gpus": 1, "duration": SPAN_S, "checkpoint": {"interval": 5.0, "size": 0.0}}
    case = scenario(
        cluster=cluster, workload={"jobs": [job]}, faults={kind: spec}, horizon=SPAN_S,
        restart={"detection": 0.0, "initialisation": 0.0},
    )  # fmt: skip
    made = simulate(case, timeline=True)
    assert made.timeline is not None
    events = made.timeline["events"]
    of_node = np.array([str(subject).startswith("n-0") for subject in events["subject"]])
    begun = events["time_s"][of_node & (events["kind"] == begins)]
    ended = events["time_s"][of_node & (events["kind"] == ends)]
    count = min(begun.size, ended.size)
    assert 110 < count < 230
    gaps_s = begun[1:count] - ended[: count - 1]
    assert (gaps_s > 0.0).all()
    assert begun[0] > 0.0
    assert gaps_s.mean() == pytest.approx(MTBF_S, rel=0.3)
    assert (ended[:count] - begun[:count]).mean() == pytest.approx(LENGTH_S, rel=0.3)


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_a_planned_fault_of_a_link_slows_what_crosses_it_as_long_as_it_lasts(factor: float) -> None:
    """In four seconds at a part of its rate a link carries that part of what it else would."""
    model = {"sample_time": 1e-6, "gradient": 1e8, "exchange": {"alpha": 0.0}}
    job = {"gpus": 2, "model": "m", "steps": 100, "global_batch": 2, "checkpoint": {"interval": "never"}}
    took_s = []
    for events in ([], [{"kind": "link", "node": "n-0", "at": 2.0, "duration": 4.0, "factor": factor}]):
        case = scenario(
            cluster={"nodes": [{"name": "n", "count": 2, "gpus": 1, "nic": 1e9}]},
            workload={"models": {"m": model}, "jobs": [job]}, faults={"events": events}, noise={},
        )  # fmt: skip
        took_s.append(simulate(case).totals["makespan_s"])
    assert took_s[1] - took_s[0] == pytest.approx(4.0 * (1.0 - 1.0 / factor), abs=0.02)


class Told:
    """A stream that says what was asked of it: each wait is its mean."""

    def exponential(self, mean: float) -> float:
        return mean

    def weibull(self, shape: float) -> float:
        return 3.0 * shape

    def standard_normal(self) -> float:
        return 2.0


SHAPE, SPREAD = 0.5, 0.75
TOLD: dict[str, tuple[dict[str, Any], float, float]] = {
    "crash": (
        {"mtbf": MTBF_S, "repair": LENGTH_S, "shape": SHAPE, "repair_cov": SPREAD},
        MTBF_S / math.gamma(1.0 + 1.0 / SHAPE) * 3.0 * SHAPE,
        LENGTH_S * math.exp(2.0 * math.sqrt(math.log1p(SPREAD**2)) - 0.5 * math.log1p(SPREAD**2)),
    ),
    "rack": (KINDS["rack"][0], MTBF_S, LENGTH_S),
    "fail_slow": (KINDS["fail_slow"][0], MTBF_S, LENGTH_S),
    "link": (KINDS["link"][0], MTBF_S, LENGTH_S),
    "spot": (KINDS["spot"][0] | {"notice": 7.0}, MTBF_S + 7.0, LENGTH_S),
    "corrupt_gradient": (KINDS["corrupt_gradient"][0], MTBF_S, LENGTH_S),
}
"""By kind: the settings, seconds until a fault, and its length."""


@pytest.mark.parametrize("kind", TOLD)
def test_the_times_of_faults_are_those_of_the_formulas(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "stream", lambda seed, name: Told())
    spec, until_s, lasts_s = TOLD[kind]
    nodes = [{"name": "used", "count": 1}, {"name": "n", "count": 1}]
    case = scenario(
        cluster={"nodes": nodes, "topology": {"kind": "tree", "nodes_per_rack": 1}},
        workload={"jobs": [{"gpus": 1, "duration": 1000.0, "checkpoint": {"interval": 5.0, "size": 0.0}}]},
        faults={kind: spec}, horizon=1000.0, restart={"detection": 0.0, "initialisation": 0.0},
    )  # fmt: skip
    made = simulate(case, timeline=True)
    assert made.timeline is not None
    events = made.timeline["events"]
    of_node = np.array([str(subject).startswith("n-0") for subject in events["subject"]])
    begun = events["time_s"][of_node & (events["kind"] == KINDS[kind][1])]
    ended = events["time_s"][of_node & (events["kind"] == KINDS[kind][2])]
    assert begun[:3] == pytest.approx([until_s + k * (until_s + lasts_s) for k in range(3)])
    assert ended[:3] == pytest.approx([(k + 1) * (until_s + lasts_s) for k in range(3)])


def test_a_node_is_lost_as_often_as_all_causes_together() -> None:
    """Once in 100, 300 and 150 s is once in 50 s; of groups that come and go the worst counts."""
    plain = scenario().cluster.groups

    def mean_s(groups: Any = plain, **causes: Any) -> float:
        return mtbf_s(Faults.model_validate(causes), groups, 8.0)

    causes: dict[str, Any] = {
        "crash": {"mtbf": 100.0}, "rack": {"mtbf": 300.0}, "spot": {"group": "n", "mtbf": 150.0},
    }  # fmt: skip
    assert mean_s(**causes) == pytest.approx(50.0)
    assert mean_s(crash=causes["crash"]) == 100.0
    assert mean_s(rack=causes["rack"]) == 300.0
    assert mean_s(spot=causes["spot"]) == 150.0
    assert mean_s(crash={"gpu_hours": 16.0}) == 7200.0
    assert mean_s() == math.inf
    supplied: Any = [
        SimpleNamespace(count=3, available=SimpleNamespace(loss_per_s=lambda count: count / 120.0)),
        SimpleNamespace(count=2, available=SimpleNamespace(loss_per_s=lambda count: count / 800.0)),
        SimpleNamespace(count=9, available=None),
    ]
    assert mean_s(supplied) == pytest.approx(40.0)
    assert mean_s(supplied, crash={"mtbf": 60.0}) == pytest.approx(24.0)

"""What is just allowed or not doubted, and what is just beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.loading import checks
from equipoise.sim.loading.checks_energy import energy_problems
from equipoise.sim.loading.checks_parallel import parallel_doubts
from equipoise.sim.loading.checks_plausible import plausible_doubts
from equipoise.sim.loading.checks_services import best_speed, service_doubts, service_problems
from equipoise.sim.scenario.model import Scenario
from tests.scenarios import model, scenario

PROFILE = load_profile("catalogue")
FOUR = {"nodes": [{"count": 2, "gpus": 2, "accelerator": "generic"}]}


def nodes(*groups: dict[str, Any]) -> dict[str, Any]:
    each = [{"name": f"g{k}", "accelerator": "generic"} | group for k, group in enumerate(groups)]
    return {"cluster": {"nodes": each}}


def jobs(*given: dict[str, Any], **models: Any) -> dict[str, Any]:
    return {"cluster": FOUR, "workload": {"models": models, "jobs": list(given)}}


def trained(own: dict[str, Any] | None = None, **job: Any) -> dict[str, Any]:
    return jobs({"gpus": 4, "model": "m", "steps": 1, "global_batch": 8} | job, m=model(**(own or {})))


def described(**gpus: float) -> dict[str, Any]:
    kind = {
        "rate": 1.0,
        "duration": {"kind": "pareto", "alpha": 2},
        "gpus": {int(k[1:]): v for k, v in gpus.items()},
    }
    return {"cluster": FOUR, "workload": {"generate": {"length": 10.0, "classes": [kind]}}}


def sizes(case: Scenario) -> Any:
    return checks._sizes(case)


def energy(case: Scenario) -> Any:
    return energy_problems(case, PROFILE, None)


@pytest.mark.parametrize(
    ("look", "allowed", "refused", "line"),
    [
        (
            sizes,
            nodes({"count": 1_000_000, "gpus": 20}),
            nodes({"count": 1_000_001}),
            "cluster.nodes.0: 1000001 nodes; at most 1000000 are possible",
        ),
        (
            sizes,
            nodes({"count": 2, "gpus": 10_000_000}),
            nodes({"count": 1, "gpus": 20_000_001}),
            "cluster.nodes.0: 20000001 GPUs; at most 20000000 are possible",
        ),
        (
            sizes,
            nodes({"count": 500_000}, {"count": 500_000}),
            nodes({"count": 500_000}, {"count": 500_001}),
            "cluster.nodes: 1000001 nodes; at most 1000000 are possible",
        ),
        (
            sizes,
            nodes({"gpus": 20_000_000}),
            nodes({"gpus": 20_000_000}, {"gpus": 1}),
            "cluster.nodes: 20000001 GPUs; at most 20000000 are possible",
        ),
        (
            sizes,
            {"cluster": {"gpus": 8}},
            {"cluster": {"gpus": 20_000_001}},
            "cluster.gpus: 20000001 GPUs; at most 20000000 are possible",
        ),
        (
            sizes,
            nodes({"host_memory": 5e9, "cache": 5e9}),
            nodes({"host_memory": 5e9, "cache": 6e9}),
            "cluster.nodes.0.cache: 6 GB, more than its host_memory of 5 GB",
        ),
        (
            sizes,
            jobs({"duration": 1.0, "count": 5_000_000}),
            jobs({"duration": 1.0, "count": 5_000_001}),
            "workload.jobs.0.count: 5000001 jobs; at most 5000000 are possible",
        ),
        (
            sizes,
            jobs(*[{"duration": 1.0, "count": 2_500_000}] * 2),
            jobs({"duration": 1.0, "count": 5_000_000}, {"duration": 1.0}),
            "workload.jobs: 5000001 jobs; at most 5000000 are possible",
        ),
        (
            checks.problems,
            described(g4=1.0, g5=0.0),
            described(g4=1.0, g5=0.1),
            "workload.generate.classes.0.gpus: needs 5 GPUs, the cluster has 4",
        ),
        (
            checks.problems,
            jobs({"gpus": 4, "duration": 1.0}),
            jobs({"gpus": 5, "duration": 1.0}),
            "workload.jobs.0.gpus: needs 5 GPUs, the cluster has 4",
        ),
        (
            checks.problems,
            trained(),
            trained(gpus=5),
            "workload.jobs.0.gpus: needs 5 GPUs, the cluster has 4",
        ),
        (
            checks.problems,
            trained({"parallel": {"pipeline": 2}}, gpus=2),
            trained({"parallel": {"pipeline": 2}}, gpus=1),
            "workload.jobs.0.gpus: 1 GPUs do not make one replica, which takes 2",
        ),
        (
            checks.problems,
            trained(workers_min=4, workers_max=4),
            trained(workers_min=4, workers_max=3),
            "workload.jobs.0.workers_min: 4 workers at least, but 3 at most",
        ),
        (
            checks.problems,
            trained(gpus=6, workers_min=4),
            trained(gpus=6, workers_min=5),
            "workload.jobs.0.gpus: needs 5 GPUs, the cluster has 4",
        ),
        (
            checks.problems,
            trained({"noise_scale": 0.0}, batch_max=8),
            trained(batch_max=8),
            "workload.jobs.0.batch_max: the model has no 'noise_scale'",
        ),
        (
            checks.problems,
            trained({"parameters": 10e9, "parallel": {"pipeline": 2}}, workers_min=1),
            trained({"parameters": 10.2e9, "parallel": {"pipeline": 2}}, workers_min=1),
            "workload.jobs.0: needs 81600000000 bytes (81.6 GB) ",
        ),
        (
            checks.problems,
            trained({"parameters": 5e9}),
            trained({"parameters": 5.1e9}),
            "workload.jobs.0: needs 81600000000 bytes (81.6 GB)",
        ),
        (
            energy,
            {"energy": {"power_cap": 40.5}},
            {"energy": {"power_cap": 40.0}},
            "energy.power_cap: 40 W must be above what generic idles at, 40 W",
        ),
        (
            energy,
            {"energy": {"cluster_power_cap": 1181.0}},
            {"energy": {"cluster_power_cap": 1180.0}},
            "energy.cluster_power_cap: 1180 W must be above what the cluster draws idling, 1180 W",
        ),
    ],
)
def test_what_is_impossible_begins_just_beyond_what_is_not(
    look: Any, allowed: dict[str, Any], refused: dict[str, Any], line: str
) -> None:
    assert [*look(scenario(**allowed))] == []
    ((path, text),) = look(scenario(**refused))
    assert f"{'.'.join(map(str, path))}: {text}".startswith(line)


QUARTER, HALF = ({"kind": "shared", "share": part} for part in (0.25, 0.5))
SERVICE = {
    "name": "s", "batch_latency": {"fixed": 0.5, "per_request": 0.5, "most": 3}, "requests": {"rate": 1.0},
    "latency": {"p50": 1.0}, "replicas": {"max": 4},
}  # fmt: skip


def served(*services: dict[str, Any], **more: Any) -> Scenario:
    named = [SERVICE | {"name": f"s{k}"} | own for k, own in enumerate(services)]
    return scenario(**({"cluster": FOUR, "services": named} | more))


@pytest.mark.parametrize(
    ("allowed", "refused", "text"),
    [
        (
            served({"replicas": {"gpus": 2, "max": 2}}),
            served({"replicas": {"gpus": 3, "max": 2}}),
            "it may have has 2",
        ),
        (
            served({"replicas": {"max": 4}}),
            served({"replicas": {"max": 5}}),
            "5 replicas, there is room for 4",
        ),
        (
            served({"replicas": {"gpus": 2, "max": 2}}),
            served({"replicas": {"gpus": 2, "max": 3}}),
            "3 replicas, there is room for 2",
        ),
        (
            served({"placement": QUARTER, "replicas": {"max": 16}, "latency": {"p50": 4.0}}),
            served({"placement": QUARTER, "replicas": {"max": 17}}),
            "there is room for 16",
        ),
        (
            served({"latency": {"p50": 1.0}}),
            served({"latency": {"p50": 0.99}}),
            "990 ms is less than a request",
        ),
        (
            served({"replicas": {"min": 2, "max": 2}}, {"replicas": {"min": 2, "max": 2}}),
            served({"replicas": {"min": 2, "max": 2}}, {"replicas": {"min": 3, "max": 3}}),
            "need 5 GPUs all the time",
        ),
        (
            served(
                *[{"placement": HALF, "replicas": {"gpus": 2, "min": 2, "max": 2}, "latency": {"p50": 2.0}}]
                * 2
            ),
            served(
                *[{"placement": HALF, "replicas": {"gpus": 2, "min": 2, "max": 2}, "latency": {"p50": 2.0}}]
                * 3
            ),
            "need 6 GPUs all the time",
        ),
        (
            served({}, workload={"jobs": [{"gpus": 3, "duration": 1.0}]}),
            served({}, workload={"jobs": [{"gpus": 4, "duration": 1.0}]}),
            "needs 4 GPUs, 3 of 4 are left beside",
        ),
        (
            served({}, **{k: v for k, v in trained(gpus=3).items() if k == "workload"}),
            served({}, **{k: v for k, v in trained(gpus=4).items() if k == "workload"}),
            "needs 4 GPUs, 3 of 4 are left",
        ),
        (
            served({}, workload=described(g3=1.0, g4=0.0)["workload"]),
            served({}, workload=described(g3=1.0, g4=1.0)["workload"]),
            "needs 4 GPUs, 3 of 4 are left",
        ),
    ],
)
def test_services_that_just_fit(allowed: Scenario, refused: Scenario, text: str) -> None:
    assert [*service_problems(allowed, PROFILE)] == []
    ((_, said),) = service_problems(refused, PROFILE)
    assert text in said


def test_services_that_can_just_answer_what_comes() -> None:
    """A batch of three takes 2 s: 1.5 a second and replica; in time, within 4 s, as many; within 3 s 2 in 1.5 s."""

    def doubts(rate: float, p50: float) -> list[str]:
        case = served({"requests": {"rate": rate}, "latency": {"p50": p50}, "replicas": {"max": 2}})
        return [text for _, text in service_doubts(case, PROFILE)]

    assert doubts(3.0, 4.0) == []
    assert doubts(3.1, 4.0) == ["3.1/s come in the mean, 2 replicas answer 3/s at most"]
    assert doubts(2.6, 3.0) == []
    assert doubts(2.7, 3.0) == ["2.7/s come in the mean, 2 replicas answer 2.667/s in time"]
    half = served({"placement": {"kind": "shared", "share": 0.5}, "share_kappa": 1.0})
    assert best_speed(half, PROFILE, half.services[0]) == pytest.approx(2 * 0.5 / 1.5)
    quick = served({}, cluster={"nodes": [{"accelerator": "generic", "speed": 0.5}]})
    assert best_speed(quick, PROFILE, quick.services[0]) == 0.5


class Bare:
    """A file in which these keys have bare numbers."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def get(self, path: Any) -> Any:
        return self.values[path[-1]]


@pytest.mark.parametrize(
    ("given", "tree", "told"),
    [
        ({"horizon": 3600.0}, Bare(horizon=3600), None),
        ({"horizon": 3599.0}, Bare(horizon=3599), "3599 was read as 3599 s (60 min)"),
        ({"horizon": 90.0}, Bare(horizon="90"), "90 was read as 90 s, a bare number"),
        ({"horizon": 90.0}, Bare(horizon="90 s"), None),
        ({"horizon": 90.0}, Bare(), None),
        ({"horizon": 90.0}, None, None),
        ({"faults": {"spot": {"group": "node", "mtbf": 1e6}}}, Bare(mtbf=1e6), None),
        (
            {"faults": {"spot": {"group": "node", "mtbf": 999_999.0}}},
            Bare(mtbf=999_999),
            "as 999999 s (11.6 d)",
        ),
        (nodes({"nic": 100e9}), None, None),
        (nodes({"nic": 101e9}), None, "808 Gbit/s for one NIC, the fastest has 800 Gbit/s"),
        ({"noise": {"step_cov": 0.5}}, None, None),
        ({"noise": {"step_cov": 0.51}}, None, "0.51 is 51 % of a step; 0.51 % is '0.51 %' or 0.0051"),
        ({"energy": {"power_cap": 100.0}}, None, None),
        ({"energy": {"power_cap": 99.0}}, None, "99 W is 24.8 % of the 400 W of generic"),
        (trained(global_batch=500_000), None, None),
        (trained(global_batch=500_001), None, "500001 samples a step; a batch is counted in samples"),
        (trained({"tokens_per_sample": 1000}, global_batch=100_000), None, None),
        (
            trained({"tokens_per_sample": 1000}, global_batch=100_001),
            None,
            "if 100001 tokens were meant, write 100",
        ),
        (trained({"tokens_per_sample": 10**6}, global_batch=101), None, "if 101 tokens were meant, write 1"),
    ],
)
def test_what_is_seldom_meant_begins_just_beyond_what_is(
    given: dict[str, Any], tree: Any, told: str | None
) -> None:
    found = [text for _, text in plausible_doubts(scenario(**given), PROFILE, tree)]
    assert [told is not None and told in text for text in found] == ([] if told is None else [True])


def test_the_nics_of_a_node_are_doubted_where_there_is_one_for_many_fast_gpus() -> None:
    def doubts(**group: Any) -> int:
        case = trained() | nodes({"accelerator": "h100_sxm"} | group)
        return sum(
            "such nodes usually have" in text for _, text in plausible_doubts(scenario(**case), PROFILE, None)
        )

    assert doubts(gpus=8, nic=5e10) == 1
    assert doubts(gpus=7, nic=5e10) == doubts(gpus=8) == doubts(gpus=8, nic=5e10, nics=1) == 0
    assert doubts(gpus=8, nic=5e10, fabric=100e9) == 1
    assert doubts(gpus=8, nic=5e10, fabric=99e9) == 0
    assert doubts(gpus=8, nic=5e10, accelerator="generic") == 0


def parallel(own: dict[str, Any], **job: Any) -> list[str]:
    return [text for _, text in parallel_doubts(scenario(**trained({"parallel": own}, **job)))]


def test_what_typed_parallelism_leaves_out() -> None:
    """Nodes of two GPUs; four GPUs make two replicas of two stages with four samples each."""
    plain = {"pipeline": 2, "pipeline_microbatches": 4}
    assert parallel(plain) == []
    assert parallel({**plain, "pipeline_microbatches": 5}) == [
        "5 are assumed for the bubble; job 'job' has 4 in a step"
    ]
    assert parallel({**plain, "pipeline_microbatches": 2}, micro_batch=2) == []
    assert parallel({"tensor": 1}) == []
    assert [t[:36] for t in parallel({"tensor": 2})] == ["tensor_bytes_per_sample is 0: all-re"]
    assert [t[:36] for t in parallel({"tensor": 2, "tensor_bytes_per_sample": 1.0})] == [
        "the latency of tensor all-reduces is"
    ]
    wide = parallel({"tensor": 4, "tensor_bytes_per_sample": 1.0})
    assert [t[:20] for t in wide] == ["the latency of tenso", "4 is wider than a no", "replicas of 4 GPUs e"]
    deep = parallel({"pipeline": 4, "pipeline_microbatches": 8})
    assert [t[:34] for t in deep] == ["replicas of 4 GPUs exchange gradie"]
    assert parallel({"zero": 3}) == []
    in_passes = scenario(**trained({"parallel": {"zero": 3}, "samples_per_pass": 1}))
    ((_, text),) = parallel_doubts(in_passes)
    assert text.startswith("parameters are gathered in each of 2 passes of job 'job', not once")


def test_gpus_cut_in_slices_are_asked_for_as_such() -> None:
    def said(share: float, **group: Any) -> list[str]:
        given = {"accelerator": "h100_sxm", "sharing": "mig"} | group
        case = scenario(
            **(nodes(given) | {"workload": {"jobs": [{"gpus": 1, "duration": 1.0, "gpu_share": share}]}})
        )
        return [text for _, text in checks._accelerators(case, PROFILE)]

    assert said(1.0) == said(3 / 7) == []
    assert said(0.5)[0].startswith("0.5 of a GPU is no MIG slice of g0; allowed: 1/7, 2/7, 3/7, 4/7, 1")
    assert said(1.0, accelerator="generic") == ["generic has no MIG; allowed: mps, time-slice"]
    assert checks.most_alike(scenario(**nodes({"count": 2}, {"gpus": 3}))) == 5

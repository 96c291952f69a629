"""What model parallelism costs is said: over which link, and how much of the time nothing is computed."""

from __future__ import annotations

import pytest

from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run

PEAK, EFFICIENCY = 362e12, 0.7  # L40S, dense bf16
FLOP, BYTES = 250e12, 2e9


def case(node: dict | None = None, parallel: dict | None = None, **job: object) -> dict:
    """A model of 8e9 parameters, spread as `parallel` says, on nodes of eight L40S."""
    model = {
        "kind": "large-products",
        "flop_per_sample": FLOP,
        "efficiency": EFFICIENCY,
        "parameters": 0.0,
        "gradient": 0,
        "samples_per_pass": 1,
        "parallel": {"tensor": 8, "tensor_bytes_per_sample": BYTES, "pipeline_microbatches": 8} | (parallel or {}),
    }
    nodes = {"count": 4, "gpus": 8, "accelerator": "l40s", "nic": "400 Gbit/s"} | (node or {})
    return {
        "schema_version": 1,
        "name": "large",
        "cluster": {"nodes": [nodes]},
        "workload": {"models": {"m": model}, "jobs": [{"model": "m", "gpus": 8, "steps": 10, "global_batch": 8} | job]},
    }


def step_s(made) -> float:
    return made.totals["makespan_s"] / 10


def by_hand_s(link: float, tensor: int = 8, bubble: float = 0.0) -> float:
    """Eight samples: FLOP of one pass each over `tensor` GPUs, and ring all-reduces of their activations."""
    compute = 8 * (FLOP / (PEAK * EFFICIENCY) + 5e-6) / tensor
    return (compute + 8 * 2 * (tensor - 1) / tensor * BYTES / link) * (1 + bubble)


def test_a_tensor_group_uses_the_link_of_its_accelerator():
    assert step_s(run(from_mapping(case()))) == pytest.approx(by_hand_s(32e9), rel=1e-6)
    assert step_s(run(from_mapping(case({"fabric": "300 GB/s"})))) == pytest.approx(by_hand_s(300e9), rel=1e-6)


def test_a_tensor_group_over_two_nodes_uses_the_network_between_them():
    wide = case({"accelerator": "l40s"}, {"tensor": 16}, gpus=16)
    assert step_s(run(from_mapping(wide))) == pytest.approx(by_hand_s(32e9, 16), rel=1e-6)
    slow = case({"nic": "40 Gbit/s"}, {"tensor": 16}, gpus=16)
    assert step_s(run(from_mapping(slow))) == pytest.approx(by_hand_s(5e9, 16), rel=1e-6)


def test_all_nics_of_a_node_carry_its_traffic():
    """Each of eight GPUs drives one, in a ring of 32."""
    parallel = {"tensor": 1, "tensor_bytes_per_sample": 0}
    data = case({"nic": "10 Gbit/s"}, parallel, gpus=32, global_batch=32)
    data["workload"]["models"]["m"] |= {"gradient": 4e9}
    one = run(from_mapping(data))
    data["cluster"]["nodes"][0]["nics"] = 8
    eight = run(from_mapping(data))
    gained_s = step_s(one) - step_s(eight)
    assert gained_s == pytest.approx(2 * 31 / 32 * 4e9 * (1 / 1.25e9 - 1 / 10e9), rel=1e-6)


@pytest.mark.parametrize("event_by_event", [False, True])
@pytest.mark.parametrize("cov", [0.0, 0.1])
def test_bubble_and_tensor_exchange_are_uses_of_their_own(event_by_event, cov):
    data = case(None, {"pipeline": 4}, gpus=32) | {"noise": {"step_cov": cov}}
    made = run(from_mapping(data), event_by_event=event_by_event)
    used = {name: float(made.jobs[f"{name}_gpu_s"].sum()) for name in ("busy", "pipeline_bubble", "tensor_exchange")}
    held = 32 * made.totals["makespan_s"]
    assert sum(used.values()) == pytest.approx(held)
    assert used["pipeline_bubble"] / held == pytest.approx((3 / 8) / (1 + 3 / 8))
    reduce = 8 * 2 * 7 / 8 * BYTES / 32e9 / 4
    compute = 8 * (FLOP / (PEAK * EFFICIENCY) + 5e-6) / 32
    assert used["tensor_exchange"] / used["busy"] == pytest.approx(reduce / compute)
    assert made.summary()["goodput_ratio"] == pytest.approx(used["busy"] / held)
    assert made.totals["pipeline_bubble_usd"] / made.totals["gpu_usd"] == pytest.approx(used["pipeline_bubble"] / held)


def test_waiting_in_a_pipeline_draws_idle_power():
    made = run(from_mapping(case({"count": 4, "host_power": 1.0}, {"pipeline": 4}, gpus=32) | {"energy": {"pue": 1}}))
    busy = float(made.jobs["busy_gpu_s"].sum())
    wanted = (32 * 35 + 4) * made.totals["makespan_s"] + (350 - 35) * busy
    assert made.totals["energy_j"] == pytest.approx(wanted)


def test_a_shape_has_its_bubble_apart():
    layout = {"tp": 8, "pp": 4, "micro_batch": 1}
    shape = {"config": "llama2-13b", "layout": layout, "stack": "megatron-core/H100"}
    made = run(
        from_mapping(
            {
                "schema_version": 1,
                "name": "shape",
                "cluster": {
                    "nodes": [{"count": 4, "gpus": 8, "accelerator": "h100_sxm", "nic": "400 Gbit/s", "nics": 8}]
                },
                "workload": {
                    "models": {"m": {"transformer": shape}},
                    "jobs": [{"model": "m", "gpus": 32, "steps": 2, "global_batch": 8}],
                },
            }
        ),
        policy=make_policy("fifo"),
    )
    shares = made.summary()
    assert 0.2 < shares["pipeline_bubble_ratio"] < 3 / 11 + 0.02
    assert shares["tensor_exchange_ratio"] > 0.02
    assert shares["goodput_ratio"] < 0.75

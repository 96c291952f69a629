"""Lighter models: what each lever saves and what it costs, in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.sim.cost.lighter import compressed, exchange_kept
from equipoise.sim.cost.step import checkpoint_bytes, gradient_bytes, memory_need_bytes, replica_cost_s
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.loading.file import changed_tree, from_mapping, load
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Model
from equipoise.study.questions.levers import levers

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
PARAMETERS, WORKERS = 1e9, 8
FLOP: Any = {"kind": "large-products", "flop_per_sample": 1e12}
H100 = load_profile("catalogue").accelerator("h100_sxm")


def case(nic: str = "10 Gbit/s", **lighter: Any) -> dict[str, Any]:
    """Eight H100 on eight nodes whose exchange takes far longer than computing."""
    model = {"kind": "large-products", "flop_per_sample": "1 TFLOP", "parameters": PARAMETERS, "lighter": lighter}
    job = {"gpus": WORKERS, "model": "m", "steps": 50, "global_batch": 64}
    return {
        "schema_version": 1,
        "name": "lighter",
        "policy": "fifo",
        "cluster": {"nodes": [{"count": WORKERS, "accelerator": "h100_sxm", "nic": nic}]},
        "workload": {"models": {"m": model}, "jobs": [job]},
    }


def makespan_s(**keys: Any) -> float:
    return float(run(from_mapping(case(**keys))).totals["makespan_s"])


def test_compression_shrinks_bytes_by_its_share_and_takes_the_time_to_move_the_gradient() -> None:
    size = 2.0 * PARAMETERS
    shares = {}
    for how in ("int8", "top-k", "powersgd"):
        model = Model(**FLOP, parameters=PARAMETERS, lighter={"gradients": how})
        shares[how], seconds = compressed(model, WORKERS, H100, size, 2)
        moved = {"int8": 5.0, "top-k": 5.0, "powersgd": 6.0}[how]
        assert seconds == pytest.approx(moved * size / H100.hbm_bytes_per_s.value)
    side = (PARAMETERS / 24) ** 0.5
    assert shares == pytest.approx({"int8": 0.5, "top-k": 4 * 0.01 * 3, "powersgd": 16 / side})
    many = Model(**FLOP, parameters=PARAMETERS, lighter={"gradients": "top-k"})
    assert compressed(many, 1000, H100, size, 2)[0] == 1.0  # gathered from so many it saves nothing
    assert compressed(many, 1, H100, size, 2) == (1.0, 0.0)


def test_compressed_gradients_help_on_slow_networks_and_cost_on_fast_ones() -> None:
    slow = {how: makespan_s(gradients=how) for how in (None, "int8", "top-k", "powersgd")}
    assert slow["powersgd"] < slow["top-k"] < slow["int8"] < slow[None]
    fast = {how: makespan_s(nic="3200 Gbit/s", gradients=how) for how in (None, "int8")}
    assert fast["int8"] > 0.5 * fast[None]
    longer = makespan_s(gradients="int8", samples_factor=1.25)  # 63 steps in place of 50
    assert longer == pytest.approx(slow["int8"] * 63 / 50, rel=1e-6)


def test_pruning_takes_work_and_weights_and_a_teacher_adds_them() -> None:
    plain, pruned = (Model(**FLOP, parameters=PARAMETERS, lighter={"pruned": part}) for part in (0.0, 0.4))
    assert gradient_bytes(pruned) == pytest.approx(0.6 * gradient_bytes(plain))
    assert memory_need_bytes(pruned, 8, 1) == pytest.approx(0.6 * memory_need_bytes(plain, 8, 1))
    taught = plain.model_copy(update={"lighter": plain.lighter.model_copy(update={"teacher_parameters": 3e9})})
    assert memory_need_bytes(taught, 8, 1) - memory_need_bytes(plain, 8, 1) == pytest.approx(6e9)
    assert makespan_s(pruned=0.4) < makespan_s() < makespan_s(teacher_flop_per_sample="100 TFLOP")


def test_a_pruned_transformer_computes_holds_and_exchanges_less() -> None:
    data = changed_tree(SCENARIOS / "llm-13b.yaml", [])
    name, model = next(iter(data["workload"]["models"].items()))
    del model["transformer"]["plan"]
    model["transformer"]["layout"] = {"tp": 2, "pp": 2, "micro_batch": 1}
    found = {}
    for key, own in {"plain": {}, "pruned": {"pruned": 0.5}, "moments": {"moments": "int8"}}.items():
        data["workload"]["models"] = {name: {**model, "lighter": own}}
        bound = from_mapping(data).workload.models[name]
        found[key] = bound, replica_cost_s(bound, H100, 8, 450e9)[1], memory_need_bytes(bound, 1, 8)
    plain, pruned, moments = found["plain"], found["pruned"], found["moments"]
    assert 0.5 < pruned[0].parameters / plain[0].parameters < 0.6  # embeddings stay
    assert gradient_bytes(pruned[0]) == pytest.approx(2.0 * pruned[0].parameters)
    assert 0.4 < pruned[1] / plain[1] < 0.8
    assert pruned[2] < plain[2]
    assert moments[1] == plain[1]
    assert moments[2] < plain[2]
    assert checkpoint_bytes(moments[0]) == checkpoint_bytes(plain[0]) - 6.0 * plain[0].parameters


def test_limits_tries_compression_where_gradients_flow_and_8_bits_where_the_gpu_can() -> None:
    names = {lever.name for lever in levers(from_mapping(case()), "fifo", ())}
    assert {"gradients in 8 bits", "the largest 1 % of the gradients"} <= names
    assert "products in 8 bits" not in names
    large = load(SCENARIOS / "llm-13b.yaml")
    tried = {lever.name for lever in levers(large, large.policy[0], ())}
    assert {
        "products in 8 bits",
        "half of each layer pruned (learning not priced)",
        "optimiser's moments in 8 bits",
    } <= tried
    assert "half of each layer, distilled from the whole model (learning not priced)" in tried
    names = {lever.name for lever in levers(from_mapping(case(gradients="int8")), "fifo", ())}
    assert "gradients in 8 bits" not in names


@pytest.mark.parametrize(("zero", "kept"), [(0, 0.25), (1, 0.625), (2, 0.625), (3, 0.75)])
def test_parameters_that_are_gathered_are_not_compressed(zero: int, kept: float) -> None:
    """Half of an exchange is gathers under ZeRO 1 and 2, two thirds under ZeRO 3."""
    assert exchange_kept(zero, 0.25) == pytest.approx(kept)
    assert exchange_kept(zero, 1.0) == 1.0

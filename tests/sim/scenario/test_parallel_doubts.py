"""Typed figures of model parallelism are warned about where they leave something out."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.sim.cost.step import gradient_bytes, memory_need_bytes
from equipoise.sim.loading.checks import doubts
from equipoise.sim.scenario.model import Model
from tests.scenarios import scenario


def texts(parallel: dict[str, Any], **model: Any) -> list[str]:
    case = scenario(
        cluster={"nodes": [{"count": 4, "gpus": 8, "accelerator": "generic"}]},
        workload={
            "models": {"m": {"sample_time": 0.01, "parallel": parallel, **model}},
            "jobs": [{"name": "j", "gpus": 32, "model": "m", "steps": 1, "global_batch": 64, "micro_batch": 2}],
        },
    )
    return [text for _, text in doubts(case)]


@pytest.mark.parametrize(
    ("parallel", "model", "message"),
    [
        ({"tensor": 4}, {}, "tensor_bytes_per_sample is 0: all-reduces between 4 GPUs cost nothing"),
        ({"tensor": 4, "tensor_bytes_per_sample": 1e6}, {}, "the latency of tensor all-reduces is not in"),
        ({"tensor": 16, "tensor_bytes_per_sample": 1e6}, {}, "16 is wider than a node of 8 GPUs"),
        ({"pipeline": 16}, {}, "replicas of 16 GPUs exchange gradients through the first of their nodes' NICs"),
        ({"pipeline": 4}, {}, "a bubble of 8 micro-batches is assumed; job 'j' has 4 per step"),
        ({"zero": 3}, {"samples_per_pass": 1}, "parameters are gathered in each of 2 passes of job 'j'"),
    ],
)
def test_what_is_left_out_is_said(parallel: dict[str, Any], model: dict[str, Any], message: str) -> None:
    assert any(text.startswith(message) for text in texts(parallel, **model))


def test_plain_data_parallelism_needs_no_word() -> None:
    assert texts({}) == []
    assert texts({"pipeline": 4, "pipeline_microbatches": 4}) == []


def test_fp8_keeps_weights_and_gradients_of_16_bits() -> None:
    eight, sixteen = (
        Model.model_validate({"sample_time": 1.0, "parameters": 1e9, "precision": p}) for p in ("fp8", "bf16")
    )
    assert gradient_bytes(eight) == gradient_bytes(sixteen) == 2e9
    assert memory_need_bytes(eight, 1, 1) == memory_need_bytes(sixteen, 1, 1)

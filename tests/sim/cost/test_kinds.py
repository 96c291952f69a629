"""Rates of models whose work is known and whose shape is not, against what was measured of their kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.sim.hardware.kinds import KINDS
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.scenario.tree import InputError

PROFILE = load_profile("catalogue")
GPUS = sorted(name for name, a in PROFILE.accelerators.items() if a.vendor == "NVIDIA")
RESNET50 = {"flop_per_sample": "24.6 GFLOP", "parameters": 25.6e6, "precision": "fp16"}


def case(accelerator: str, model: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": "images",
        "cluster": {"nodes": [{"gpus": 1, "accelerator": accelerator}]},
        "workload": {"models": {"m": model}, "jobs": [{"gpus": 1, "model": "m", "steps": 50, "global_batch": 256}]},
        "policy": ["fifo"],
        "restart": {"initialisation": 0},
    }


def rate(accelerator: str, **keys: Any) -> float:
    """Samples/s."""
    seconds = equipoise.run(case(accelerator, RESNET50 | keys)).summary()["makespan_s"]
    return 50 * 256 / float(seconds)


@pytest.mark.parametrize(
    ("accelerator", "measured"), [("h100_sxm", 2790), ("a100_sxm_80gb", 1582), ("v100_sxm2_32gb", 833)]
)
def test_resnet_50_comes_near_to_plain_frameworks(accelerator: str, measured: float) -> None:
    """Rows that the constants never saw. On an H100: 24.6e9 / (0.234 * 989.5e12) + 24.6e9 / (31.4 * 3.35e12) s."""
    assert rate(accelerator, kind="convolutional") == pytest.approx(measured, rel=0.32)


@settings(deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.sampled_from(GPUS), st.sampled_from(GPUS))
def test_who_computes_and_reads_faster_is_faster(kind: str, one: str, other: str) -> None:
    a, b = (PROFILE.accelerator(name) for name in (one, other))
    rates = [(x.peak_flop_per_s("fp16"), x.hbm_bytes_per_s.value) for x in (a, b)]
    seconds = [KINDS[kind].seconds(x, "fp16", 1e12) for x in (a, b)]
    if rates[0][0] >= rates[1][0] and rates[0][1] >= rates[1][1]:
        assert seconds[0] <= seconds[1]


def test_work_alone_is_refused_and_the_rate_of_large_products_is_called_an_upper_bound() -> None:
    kinds = "convolutional, small-transformer, recommender, diffusion, large-products"
    with pytest.raises(InputError, match=f"'flop_per_sample' needs 'kind', one of {kinds}.* or 'efficiency'"):
        equipoise.run(case("h100_sxm", RESNET50))
    for said, told in (({"kind": "convolutional"}, 0), ({"kind": "large-products"}, 1), ({"efficiency": 0.3}, 0)):
        notes = equipoise.run(case("h100_sxm", RESNET50 | said)).notes
        assert sum("an upper bound, the rate of large products" in note for note in notes) == told
    with pytest.raises(InputError, match="'kind: diffusion' is used in place of 'efficiency'"):
        equipoise.run(case("h100_sxm", RESNET50 | {"efficiency": 0.3, "kind": "diffusion"}))


def test_curves_of_different_origin_are_not_ranked_without_a_word(tmp_path: Path, capsys: Any) -> None:
    """The share of an H100 was measured, of an A100 assumed; an H200 has the H100's chip and is never slower."""
    from equipoise.cli import main

    assert rate("h200_sxm", kind="large-products") == rate("h100_sxm", kind="large-products")
    file = tmp_path / "images.yaml"
    for model, told in ((RESNET50 | {"kind": "large-products"}, True), (RESNET50 | {"kind": "convolutional"}, False)):
        file.write_text(yaml.safe_dump(case("h100_sxm", model)))
        vary = "cluster.nodes.0.accelerator=h100_sxm,a100_sxm_80gb"
        main(["size", str(file), "--vary", vary, "--target", "makespan<=1h", "--rank"])
        assert ("shares of the peak rate have different origins" in capsys.readouterr().err) == told

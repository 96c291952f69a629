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
    kinds = "convolutional, small-transformer, large-transformer, recommender, diffusion, large-products"
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
        values = {"cluster.nodes.0.accelerator": ["h100_sxm", "a100_sxm_80gb"]}
        plan = {
            "schema_version": 1,
            "name": "s",
            "scenario": file.name,
            "policies": ["fifo"],
            "seeds": 1,
            "parameters": values,
        }
        sweep = tmp_path / f"sweep-{told}.yaml"
        sweep.write_text(yaml.safe_dump(plan))
        main(["sweep", str(sweep), "--out", str(tmp_path / f"out-{told}")])
        assert ("shares of the peak rate have different origins" in capsys.readouterr().err) == told


def test_a_cap_acts_from_the_draw_of_the_kind_and_run_size_and_fit_say_what_is_assumed(
    tmp_path: Path, capsys: Any
) -> None:
    """An H100 idles at 70 W and draws 700 W at most: 78 % are 561 W, and 400 W are (330 / 491) ^ (1/3) of the clock."""
    from equipoise.cli import main

    a = PROFILE.accelerator("h100_sxm")
    assert a.idle_w is not None
    assert a.max_w is not None
    draw_w = 0.78 * (a.max_w.value - a.idle_w.value)
    clock = ((400.0 - a.idle_w.value) / draw_w) ** (1 / 3)
    told = "assumed shares of the highest power beyond idling: model m"
    spec = {"config": "llama2-7b", "sequence": 4096, "layout": {"tp": 1, "zero": 3}, "stack": "megatron-core/H100"}
    for model, share in (
        (RESNET50 | {"kind": "convolutional"}, "78 % (kind 'convolutional')"),
        (RESNET50 | {"kind": "large-products"}, "100 %"),
        ({"transformer": spec}, "100 %"),
        (RESNET50 | {"kind": "convolutional", "power_share": 1}, None),
    ):
        given = case("h100_sxm", model)
        given["cluster"]["nodes"][0] |= {"count": 2, "gpus": 8}
        given["workload"]["jobs"][0] |= {"gpus": 16, "global_batch": 256}
        given["energy"] = {"power_cap": "400 W"}
        made = equipoise.run(given)
        assert [f"{told} {share}" in note for note in made.notes].count(True) == (share is not None)
        file = tmp_path / "case.yaml"
        file.write_text(yaml.safe_dump(given))
        main(["size", str(file), "--vary", "cluster.nodes.0.count=2", "--target", "makespan<=9h"])
        assert (f"{told} {share}" in capsys.readouterr().err) == (share is not None)
        if "transformer" in model:
            main(["fit", str(file)])
            assert f"{told} {share}" in " ".join(capsys.readouterr().out.split())
    free, capped = (
        case("h100_sxm", RESNET50 | {"kind": "convolutional"}) | {"energy": e} for e in ({}, given["energy"])
    )
    took = [float(equipoise.run(one).summary()["makespan_s"]) for one in (free, capped)]
    assert took[0] / took[1] == pytest.approx(clock, rel=1e-6)

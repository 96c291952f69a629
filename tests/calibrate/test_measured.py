"""Measured profiles: their raw samples give them again, and scenarios run on what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import equipoise
from equipoise.calibrate.profile import build_profile
from equipoise.calibrate.samples import read_samples
from equipoise.sim.hardware.profile import HardwareProfile, list_profiles, load_profile
from equipoise.sim.scenario.tree import InputError

DATA = Path(__file__).resolve().parents[1] / "data"
MEASURED = [name for name in list_profiles() if load_profile(name).kind == "measured"]


def test_there_is_a_measured_profile() -> None:
    assert {"amd_epyc_2_cores", "h100_measured", "h200_measured"} <= set(MEASURED)


@pytest.mark.long
@pytest.mark.parametrize("name", MEASURED)
def test_its_raw_samples_give_the_profile_again(name: str) -> None:
    samples = read_samples(DATA / f"{name}.samples.jsonl.gz")
    again, report = build_profile(samples, name)
    kept = load_profile(name)
    assert again.conditions == kept.conditions
    assert again.versions == kept.versions
    assert numbers(again) == pytest.approx(numbers(kept), rel=1e-3), "other BLAS and SciPy round differently"
    assert report.predictions, "steps that were not fitted are predicted"


def numbers(profile: HardwareProfile) -> dict[str, float]:
    """Every number of a profile by its place."""
    found: dict[str, float] = {}

    def walk(value: Any, place: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{place}.{key}")
        elif isinstance(value, list | tuple):
            for k, item in enumerate(value):
                walk(item, f"{place}.{k}")
        elif isinstance(value, float) and not place.endswith((".low", ".high")):
            found[place] = value

    walk(profile.model_dump(exclude={"conditions"}), "")
    return found


@pytest.mark.parametrize("name", MEASURED)
def test_it_says_when_and_under_which_conditions_and_names_no_machine(name: str) -> None:
    profile = load_profile(name)
    assert profile.date
    assert profile.conditions["device"]
    text = profile.model_dump_json()
    for word in ("/home", "/work", "/root", "/tmp", "localhost", "://"):
        assert word not in text


def case(**model: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": "measured",
        "cluster": {"hardware": "amd_epyc_2_cores", "nodes": [{"count": 1, "gpus": 2, "accelerator": "amd_epyc"}]},
        "noise": {"step_cov": 0.0},
        "workload": {
            "models": {"net": {"parameters": 1e6, "precision": "fp32", **model}},
            "jobs": [{"gpus": 2, "model": "net", "steps": 50, "global_batch": 32}],
        },
    }


def test_a_scenario_names_a_measured_step() -> None:
    """50 steps of 16 samples a worker, and the exchange by the measured fabric."""
    profile = load_profile("amd_epyc_2_cores")
    step = profile.accelerator("amd_epyc").step("transformer", "fp32")
    fabric = profile.fabric("intra", "all_reduce", "amd_epyc")
    assert fabric is not None
    alpha_s, rate = fabric.constants_at(4e6)
    exchange_s = 2 * alpha_s + 4e6 / rate
    seconds = equipoise.run(case(step="transformer"), policy="fifo").summary()["makespan_s"]
    compute_s = step.alpha_s.value + 16 * step.beta_s.value
    assert 50 * compute_s < seconds <= 50 * (compute_s + exchange_s) * (1 + 1e-9)


def test_a_scenario_gives_flop_and_bytes_and_runs_on_the_measured_rates() -> None:
    profile = load_profile("amd_epyc_2_cores").accelerator("amd_epyc")
    seconds = equipoise.run(case(kind="large-products", flop_per_sample="1 GFLOP"), policy="fifo").summary()[
        "makespan_s"
    ]
    assert seconds >= 50 * 16e9 / profile.peak_flop_per_s("fp32")


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            {"step": "transformr"},
            "workload.models.net.step: amd_epyc: no step of 'transformr' in fp32 was measured; "
            "known: mlp in fp32, conv in fp32, transformer in fp32",
        ),
        ({"step": "mlp", "sample_time": 1e-3}, "needs exactly one of 'sample_time'"),
        ({"step": "mlp", "fixed_time": 1e-3}, "'fixed_time' is part of the 'step'"),
        ({}, "needs exactly one of 'sample_time' (a fit), 'flop_per_sample' (a roofline), 'step'"),
    ],
)
def test_steps_that_cannot_be_are_one_line(model: dict[str, Any], line: str) -> None:
    with pytest.raises((InputError, ValueError)) as error:
        equipoise.run(case(**model), policy="fifo")
    assert line in str(error.value)


def test_steps_belong_to_their_accelerator() -> None:
    profile = load_profile("amd_epyc_2_cores")
    other = profile.accelerators["amd_epyc"]
    renamed = HardwareProfile.model_validate(
        profile.model_dump() | {"accelerators": {"amd_epyc": other.model_dump(), "b": other.model_dump()}}
    )
    assert renamed.accelerator("amd_epyc").step("mlp", "fp32") == profile.steps[0]
    with pytest.raises(ValueError, match="no step of 'mlp' in fp32 was measured; known: none"):
        renamed.accelerator("b").step("mlp", "fp32")

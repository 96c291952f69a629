"""What was measured on real GPUs, an H200 and an H100, held against what is said of them (`tests/data`)."""

from __future__ import annotations

import gzip
import json
import statistics
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from equipoise.sim.llm.stack import STACKS
from tests.bench.gpu import predicted
from tests.bench.gpu import ranks as gpu_ranks
from tests.bench.gpu import shares as gpu_shares

DATA = Path(__file__).parents[1] / "data"
GPUS = ("h200", "h100")
"""Each with its profile, by its name and "_measured"; the stacks were fitted to the H200's steps alone."""
OF_EXCHANGES = frozenset(
    (
        "fp8_efficiency",
        "score_bytes",
        "host_s_per_tensor_rank",
        "tensor_efficiency",
        "tensor_latency_s",
        "tensor_hop_s",
        "send_efficiency",
        "send_latency_s",
        "send_exposed",
        "exchange_efficiency",
        "exchange_latency_s",
        "overlap",
        "bubble",
        "selective_products",
    )
)
"""Constants of which steps of one GPU without fp8 and selective recomputation say nothing."""


def kept(gpu: str, name: str) -> Any:
    return json.loads(gzip.decompress((DATA / gpu / f"{name}.json.gz").read_bytes()))


def errors(gpu: str, found: dict[str, Any], stacks: predicted.Stacks, compiled: bool) -> list[float]:
    """Predicted over measured steps, less 1, of the cases that the device bounds."""
    said = predicted.from_shape(found, f"{gpu}_measured", stacks)
    return [
        p["step_s"] / float(predicted.measured_s(case) or 0.0) - 1.0
        for p, case in zip(said, found["cases"], strict=True)
        if case["compiled"] == compiled and not (case["recompute"] and case["batch"] == 1)
    ]


def test_the_stacks_of_plain_pytorch_are_what_the_steps_give() -> None:
    fitted = predicted.fitted_stacks(kept("h200", "large")[0])
    for name, stack in fitted.items():
        known = asdict(STACKS[name])
        for constant, value in asdict(stack).items():
            if constant not in OF_EXCHANGES:
                assert known[constant] == pytest.approx(value, rel=5e-3), (name, constant)
            else:
                assert known[constant] == getattr(STACKS["fsdp-eager/H100"], constant)


# Largest median, and largest error of all, as written and compiled: of the H100 nothing was fitted.
OF_1_3B = {"h200": ((0.05, 0.07), (0.05, 0.07)), "h100": ((0.055, 0.10), (0.025, 0.025))}


@pytest.mark.parametrize("gpu", GPUS)
def test_steps_of_a_large_transformer_from_its_shape(gpu: str) -> None:
    (found,) = kept(gpu, "large")
    for compiled, (median, worst) in zip((False, True), OF_1_3B[gpu], strict=True):
        own = errors(gpu, found, predicted.FITTED, compiled)
        assert statistics.median(map(abs, own)) <= median
        assert max(map(abs, own)) <= worst
    # By stacks of public steps: a measured rate counted as a data sheet's would make it 41 and 27 % on the H200.
    assert statistics.median(map(abs, errors(gpu, found, predicted.PUBLIC, False))) <= 0.28
    assert statistics.median(map(abs, errors(gpu, found, predicted.PUBLIC, True))) <= 0.10


@pytest.mark.parametrize("gpu", GPUS)
def test_steps_of_shapes_of_which_none_was_fitted(gpu: str) -> None:
    for found in kept(gpu, "others"):
        for compiled in (False, True):
            own = errors(gpu, found, predicted.FITTED, compiled)
            # By the profile that was there when the H200's were measured 4 %; its memory rate was our own kernel's.
            assert statistics.median(map(abs, own)) <= 0.055, found["name"]
            assert max(map(abs, own)) <= 0.09, found["name"]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", ["large", "others"])
def test_peak_memory_of_large_transformers_from_their_shape(gpu: str, name: str) -> None:
    for found in kept(gpu, name):
        said = predicted.from_shape(found, f"{gpu}_measured", predicted.FITTED)
        errors = []
        for p, case in zip(said, found["cases"], strict=True):
            assert p["peak_low_bytes"] <= case["device_bytes"] <= p["peak_high_bytes"]
            errors.append(p["peak_bytes"] / case["device_bytes"] - 1.0)
        assert max(map(abs, errors)) <= 0.25
        if name == "large":
            assert statistics.median(map(abs, errors)) <= 0.06


@pytest.mark.parametrize(("gpu", "most"), [("h200", 0.005), ("h100", 0.01)])
def test_twins_of_two_ranks_that_shared_one(gpu: str, most: float, tmp_path: Path) -> None:
    """The H200's were recorded before `share_fixed` was: it was added to the record, since MPS gave the shares."""
    with tarfile.open(DATA / gpu / "ranks.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    twins = [gpu_ranks.twin_of(run) for run in sorted((tmp_path / "ranks").iterdir())]
    assert [policy for policy, *_ in twins] == ["s1+s2", "s1+s2+s3"]
    for policy, error, _, windows, replayed in twins:
        assert error <= most
        assert windows >= 24
        assert replayed or "s3" in policy  # S3 as it was when these were recorded chose other intervals
    if gpu == "h200":
        assert twins[1][2] >= 10  # first decisions alike


def test_s3_gives_two_trainings_parts_with_which_they_do_more_than_with_equal_ones() -> None:
    found = kept("h200", "training_shares")
    goodput = {pair: sum(both) for pair, both in gpu_shares.pair_goodput(found).items()}
    assert goodput[found["s3"]] > 1.02 * goodput["50/50"]
    assert all(goodput[found["s3"]] > value for pair, value in goodput.items() if pair != found["s3"])
    again = gpu_shares.s3_percentages(found)
    assert "/".join(map(str, again)) == found["s3"]

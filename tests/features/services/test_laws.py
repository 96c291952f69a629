"""Random scenarios with services beside their jobs: no law is broken, and every request is somewhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from equipoise.sim.loading.file import from_mapping
from equipoise.sim.record import Run
from equipoise.sim.scenario.tree import InputError
from tests.soak.laws import NEAR, broken, made
from tests.soak.scenarios import _some, make


def make_serving(number: int) -> dict[str, Any]:
    """The scenario of that number with services beside its jobs, which leave them a GPU at least."""
    dice, case = random.Random(f"serving {number}"), make(number)
    gpus = sum(group.get("count", 1) * group["gpus"] for group in case["cluster"]["nodes"])
    if gpus < 3:
        return case
    services = []
    for k in range(dice.randint(1, 2)):
        kind = dice.choice(("lent", "lent", "shared", "own"))
        arrivals = {"rate": dice.choice((5.0, 60.0)), "kind": dice.choice(("poisson", "profile"))}
        if arrivals["kind"] == "profile":
            arrivals |= {"weights": [1, 6, 2], "every": 20.0}
        services.append(
            {
                "name": f"s{k}",
                "batch_latency": {"fixed": 0.02, "per_request": 0.004, "most": 16},
                "latency": {"p95": 0.4},
                "requests": arrivals | _some(dice, 0.3, burst=4.0, within=0.3),
                "replicas": {"max": 1 if kind == "own" else max(1, gpus // 3), "start": dice.choice((0.0, 3.1))},
                "placement": {"kind": kind, "preempt": dice.random() < 0.8, "take_back": dice.choice((0.0, 2.7, 30.0))},
                "autoscaler": {"every": dice.choice((3.0, 10.0)), "hold": dice.choice((0.0, 25.0))},
                **_some(dice, 0.3, share_kappa=0.7, interference=0.3),
            }
        )
    kept = len(services)
    for job in case["workload"]["jobs"]:
        job["gpus"] = min(job["gpus"], gpus - kept)
        if "gpus_min" in job:
            job["gpus_min"] = min(job["gpus_min"], job["gpus"])
    return case | {"services": services, "horizon": dice.uniform(60, 250)}


def _all_requests(of: Run) -> Iterator[str]:
    """Every request is somewhere, and no replica is busier than it is there."""
    found = of.tables["services"]
    if (found["answered"] + found["unanswered"] != found["requests"]).any():
        yield f"requests: {found['requests'].tolist()} came, {found['answered'].tolist()} were answered"
    if (found["busy_gpu_s"] > found["gpu_s"] * (1 + NEAR) + 1e-6).any():
        yield f"busy: {found['busy_gpu_s'].tolist()} of {found['gpu_s'].tolist()} GPU-seconds"


def wrong(numbers: range) -> list[str]:
    found = []
    for number in numbers:
        data = make_serving(number)
        found += [f"{number}: {law}" for law in broken(data)]
        if "services" in data:
            with suppress(InputError):  # refused: limits or quotas leave nothing to run
                found += [f"{number}: {law}" for law in _all_requests(made(from_mapping(data), lambda: False))]
    return found


def test_a_few_with_services() -> None:
    assert wrong(range(6)) == []


@pytest.mark.long
@pytest.mark.parametrize("first", range(20, 420, 20))
def test_many_with_services(first: int) -> None:
    assert wrong(range(first, first + 20)) == []

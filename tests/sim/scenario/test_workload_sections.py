"""What a scenario may say of its jobs, and what it may not: values at the border, with what is said beyond it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from equipoise.sim.scenario.generate import Arrivals, Durations, Generate, JobClass
from equipoise.sim.scenario.jobs import Data, JobSpec
from equipoise.sim.scenario.section import Section

LOGNORMAL = {"kind": "lognormal", "median": 60.0, "sigma": 2.0}
JOB = {"rate": 2.0, "duration": LOGNORMAL}
TRAINS = {"model": "m", "global_batch": 8}
EITHER = "needs either 'duration' (a rigid job) or 'model' (a training job)"
TARGET = "needs exactly one of 'steps', 'epochs', 'samples', 'tokens'"
RIGID = "'job_type', 'mix_gpus', 'time_limit' and 'gpus_min' need 'duration'; this job has a 'model'"
WEIGHTS = "weights: 'profile' needs relative rates that are not all 0; no other kind allows them"


def said(kind: type[Section], given: Any) -> str:
    """ "" where it is taken, else what is said of it."""
    try:
        kind.model_validate(given)
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return ""


@pytest.mark.parametrize(
    ("kind", "taken", "refused", "line"),
    [
        (JobSpec, {"duration": 0.0}, {}, EITHER),
        (JobSpec, TRAINS | {"steps": 3}, TRAINS | {"steps": 3, "duration": 4.0}, EITHER),
        (
            JobSpec,
            {"duration": 5.0, "gpus": 3, "gpus_min": 3},
            {"duration": 5.0, "gpus": 3, "gpus_min": 4},
            "'gpus_min' 4 must not exceed 'gpus' 3",
        ),
        (JobSpec, TRAINS | {"samples": 3}, TRAINS, TARGET),
        (JobSpec, TRAINS | {"tokens": 3}, TRAINS | {"tokens": 3, "steps": 4}, TARGET),
        (JobSpec, TRAINS | {"epochs": 3, "data": {"samples": 9}}, TRAINS | {"epochs": 3}, "'epochs' needs 'data'"),
        (
            JobSpec,
            TRAINS | {"steps": 3, "batch_reference": 8},
            TRAINS | {"steps": 3, "batch_reference": 9},
            "'batch_reference' must not exceed 'global_batch'",
        ),
        (
            JobSpec,
            TRAINS | {"steps": 3, "batch_max": 8},
            TRAINS | {"steps": 3, "batch_max": 7},
            "'batch_max' must not be below 'global_batch'",
        ),
        (JobSpec, {"duration": 5.0, "job_type": "t"}, TRAINS | {"steps": 3, "job_type": "t"}, RIGID),
        (JobSpec, {"duration": 5.0, "mix_gpus": True}, TRAINS | {"steps": 3, "mix_gpus": True}, RIGID),
        (JobSpec, {"duration": 5.0, "time_limit": 0.0}, TRAINS | {"steps": 3, "time_limit": 0.0}, RIGID),
        (JobSpec, TRAINS | {"steps": 3, "gpus": 2}, TRAINS | {"steps": 3, "gpus": 2, "gpus_min": 2}, RIGID),
        (
            Data,
            {"samples": 9, "shards": 2, "shard_sizes": [3.0, 4.0]},
            {"samples": 9, "shards": 3, "shard_sizes": [3.0, 4.0]},
            "'shard_sizes' has 2 sizes for 3 'shards'",
        ),
        (Arrivals, "diurnal", "profile", WEIGHTS),
        (Arrivals, {"kind": "profile", "weights": [0.0, 3.0]}, {"kind": "profile", "weights": [0.0, 0.0]}, WEIGHTS),
        (Arrivals, {"weekend": 0.0}, {"kind": "poisson", "weights": [2.0, 3.0]}, WEIGHTS),
        (
            Durations,
            {"kind": "pareto", "alpha": 2.0},
            {"kind": "pareto", "alpha": 2.0, "median": 3.0},
            "kind pareto needs alpha, and none of the other kinds' keys",
        ),
        (
            Durations,
            LOGNORMAL,
            {"kind": "lognormal", "median": 3.0},
            "kind lognormal needs median and sigma, and none of the other kinds' keys",
        ),
        (
            Durations,
            {"kind": "quantiles", "values": [3.0, 3.0]},
            {"kind": "quantiles", "values": [3.0]},
            "values: at least two are needed, in ascending order",
        ),
        (
            Durations,
            {"kind": "quantiles", "values": [3.0, 4.0, 9.0]},
            {"kind": "quantiles", "values": [4.0, 3.0, 9.0]},
            "values: at least two are needed, in ascending order",
        ),
        (
            Durations,
            LOGNORMAL | {"low": 3.0, "high": 4.0},
            LOGNORMAL | {"low": 4.0, "high": 4.0},
            "low: 4 s must be below high, 4 s",
        ),
        (
            JobClass,
            {"load": 0.7, "duration": LOGNORMAL},
            {"duration": LOGNORMAL},
            "needs either 'rate' (e.g. 400/d) or 'load' (e.g. 0.8)",
        ),
        (JobClass, JOB, JOB | {"load": 0.7}, "needs either 'rate' (e.g. 400/d) or 'load' (e.g. 0.8)"),
        (
            JobClass,
            JOB | {"gpus": {2: 0.0, 3: 0.5}},
            JOB | {"gpus": {2: 0.0, 3: 0.0}},
            "gpus: needs a GPU count with a weight above 0",
        ),
        (
            Generate,
            {"length": 5.0, "classes": [JOB, JOB | {"name": "b"}]},
            {"length": 5.0, "classes": [JOB | {"name": "b"}, JOB, JOB]},
            "classes.2.name: 'jobs' is the name of two classes",
        ),
    ],
)
def test_what_is_just_allowed_and_what_is_said_beyond(kind: type[Section], taken: Any, refused: Any, line: str) -> None:
    assert said(kind, taken) == ""
    assert said(kind, refused) == line

"""A job grows onto nodes whose links others exchange over only where it gains beside them."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise import run
from equipoise.policies.allocation.contention import Exchanges
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.elastic import scaling_columns, table_columns
from equipoise.policies.allocation.ranking import node_state
from equipoise.policies.observation import Speeds
from tests.bench.brute_force import make_case
from tests.policies.stages.test_s4 import cluster


@pytest.mark.parametrize("number", [111, pytest.param(190, marks=pytest.mark.long)])
def test_jobs_end_sooner_where_the_exchanges_of_others_are_reckoned_with(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """In case 190 a job would grow from one GPU to three and train 482.5 samples/s in place of 484.8."""
    reckoned = run(make_case(number), policy="s4").summary()["completion_mean_s"]
    monkeypatch.setattr(Exchanges, "longer", lambda self, gpus: 1.0)
    alone = run(make_case(number), policy="s4").summary()["completion_mean_s"]
    assert reckoned < 0.92 * alone


@pytest.mark.parametrize("per_worker", [1, 0])
def test_what_a_job_gains_beside_the_exchanges_of_another(per_worker: int) -> None:
    """Steps of 1 s on one GPU and of 0.5 + 0.1 s on two; the other job exchanges for half of its time.

    The 30 s gained alone, after a restart of 10 s, are of 100 s left; beside the other a step takes 0.65 s.
    0 GPUs of a worker are as good as one.
    """
    train = {"rigid": False, "workers_max": 2, "gpus_per_worker": per_worker}
    speeds = Speeds.of(
        job=[0, 0, 1, 1], gpu_model=[0] * 4, gpus=[1, 2, 1, 2], samples_per_s=[64.0, 128.0, 64.0, 128.0],
        exchange_s=[0.0, 0.1, 0.0, 0.5],
    )  # fmt: skip
    o = cluster([2, 2], [{**train, "holds": [0]}, {**train, "holds": [1, 3]}], speeds=speeds)
    nodes = node_state(o, {}, 600.0)
    beside = Exchanges(Draft(o), nodes, scaling_columns(o, o.jobs.sync_interval), table_columns(o, nodes))
    held, new = np.array([0]), np.array([0, 2])
    assert beside.gain_s(0, held, new, 10.0, 30.0, 0.0) == pytest.approx(25.0)
    assert beside.gain_s(0, held, new, 10.0, 30.0, 0.36) == 0.0

"""Input that can be the bottleneck: each key alone changes the outcome, in the direction that its text says."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.policies.registry import available
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.scenario.model import Scenario, Star
from equipoise.sim.scenario.tree import InputError
from tests.scenarios import model, scenario, simulate

STORED = {"samples": 1280, "shards": 40, "sample_size": 1e6, "placement": {"kind": "nodes", "nodes": ["store"]}}


def case(
    node: dict[str, Any] | None = None,
    store: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    jobs: int = 1,
    epochs: int = 1,
    **keys: Any,
) -> Scenario:
    """Two nodes that train, one without GPUs that stores; 16 samples take 160 ms."""
    job = {"gpus": 2, "model": "m", "epochs": epochs, "global_batch": 32, "gpu_share": 1.0 if jobs == 1 else 0.5}
    return scenario(
        cluster={
            "nodes": [
                {"name": "node", "count": 2, "nic": 1e9} | (node or {}),
                {"name": "store", "gpus": 0, "nic": 1e9, "storage_rate": 4e8} | (store or {}),
            ]
        },
        workload={
            "models": {"m": model(share_kappa=1e-9, **keys)},
            "jobs": [job | {"name": f"job{k}", "data": STORED | (data or {})} for k in range(jobs)],
        },
    )


def seconds(spec: Scenario) -> float:
    fast = simulate(spec)
    oracle = simulate(spec, event_by_event=True)
    assert fast.jobs["completion_s"].tolist() == pytest.approx(oracle.jobs["completion_s"].tolist(), rel=1e-9)
    return float(fast.jobs["completion_s"].max())


def test_cores_prepare_samples() -> None:
    """16 samples of 0.8 core-seconds keep 32 cores 400 ms busy; 64 cores 200 ms, 80 never the limit."""
    found = {cores: seconds(case({"cores": cores}, preprocess_time=0.8)) for cores in (32, 64, 80)}
    assert found[32] == pytest.approx(40 * 0.4, rel=0.05)
    assert found[64] == pytest.approx(40 * 0.2, rel=0.05)
    assert found[80] == pytest.approx(seconds(case()), rel=1e-6)


def test_cores_are_shared_by_the_jobs_of_a_node() -> None:
    alone, both = seconds(case(preprocess_time=0.8)), seconds(case(preprocess_time=0.8, jobs=2))
    assert both == pytest.approx(2 * alone, rel=0.02)


def test_reads_from_the_own_disk_take_their_time() -> None:
    """16 MB at 1 GB/s take 16 ms, at 40 MB/s 400 ms; where nothing is said they are never the limit."""
    said = {rate: seconds(case({"local_read": rate}, data={"placement": {"kind": "even"}})) for rate in (1e9, 4e7)}
    assert said[1e9] == seconds(case(data={"placement": {"kind": "even"}}))
    assert said[4e7] == pytest.approx(40 * 0.4)


def test_two_jobs_share_a_disk() -> None:
    data = {"placement": {"kind": "even"}}
    assert seconds(case({"local_read": 4e7}, data=data, jobs=2)) == pytest.approx(2 * 40 * 0.4)


def test_storage_is_shared_by_jobs() -> None:
    """32 MB a step and job: 320 ms of a store's 100 MB/s for one job, 640 for two."""
    slow = {"storage_rate": 1e8}
    alone, both = seconds(case(store=slow)), seconds(case(store=slow, jobs=2))
    assert alone == pytest.approx(40 * 0.32, rel=0.1)
    assert both == pytest.approx(2 * alone, rel=0.1)
    assert seconds(case(store={"storage_rate": 2e8})) < 0.6 * alone


def test_a_cache_saves_the_second_reading() -> None:
    """Each node fetches 640 MB an epoch."""
    slow = {"storage_rate": 1e8}
    none = simulate(case(store=slow, epochs=3))
    kept = simulate(case({"cache": 7e8}, store=slow, epochs=3))
    small = simulate(case({"cache": 3e8}, store=slow, epochs=3))
    assert none.totals["transferred_bytes"] == pytest.approx(3 * 1.28e9)
    assert kept.totals["transferred_bytes"] == pytest.approx(1.28e9)
    assert small.totals["transferred_bytes"] == pytest.approx(3 * 1.28e9)  # in order, so that none comes back in time
    assert kept.jobs["completion_s"][0] < 0.7 * none.jobs["completion_s"][0]
    assert seconds(case({"cache": 7e8}, store=slow, epochs=3)) == kept.jobs["completion_s"][0]


def test_deeper_prefetch_hides_longer_fetches() -> None:
    """A shard of 16 samples is trained on in 160 ms, and takes 80 ms and a delay of 220 ms to come."""
    cases = [case(data={"shards": 80, "prefetch": depth}) for depth in (0, 1, 2)]
    star = [{"cluster": spec.cluster.model_copy(update={"topology": Star(latency=0.22)})} for spec in cases]
    spent = [seconds(spec.model_copy(update=far)) for spec, far in zip(cases, star, strict=True)]
    assert spent[0] > 1.4 * spent[1]
    assert spent[1] > 1.3 * spent[2]


def test_a_cache_larger_than_the_host_memory_is_an_input_error() -> None:
    spec = case({"cache": 2e12}).model_dump(mode="json", exclude_defaults=True)
    with pytest.raises(InputError) as error:
        from_mapping(spec)
    assert "cluster.nodes.0.cache: 2 TB, more than its host_memory of 275 GB" in error.value.lines[0]


@pytest.mark.parametrize("policy", sorted(available()))
def test_every_stage_takes_a_node_that_only_stores(policy: str) -> None:
    run = simulate(case(jobs=2), policy if "fifo" in policy else f"{policy}")
    assert (run.jobs["completion_s"] > 0.0).all()


def test_what_is_assumed_of_the_input_is_said() -> None:
    note = "preprocessing and reads from a node's own disk are never a bottleneck"
    assert any(note in line for line in simulate(case()).notes)
    for spec in (case(preprocess_time=0.1), case({"local_read": 1e9}), case({"ingest": 1e3})):
        assert not any("never limit" in line for line in simulate(spec).notes)

"""Small random scenarios in which to count what each sub-step is worth; number k is the same everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator

from equipoise.sim.loading.file import from_mapping
from equipoise.sim.scenario.model import Scenario


def generated(number: int) -> Scenario:
    """Scenario `number`: a few nodes, one to four jobs, and some of what goes wrong in clusters."""
    rng = np.random.default_rng([20261122, number])
    stores = rng.random() < 0.4
    raw: dict[str, Any] = {
        "schema_version": 1,
        "name": f"generated-{number}",
        "cluster": _cluster(rng, stores),
        "policy": ["s1", "s2", "s3", "s4"],
        "decide": {"every_steps": int(rng.choice([10, 20]))},
        "noise": {"step_cov": float(rng.choice([0.0, 0.05, 0.1]))},
        "restart": {"initialisation": 5.0, "detection": 5.0},
        "seed": number,
    }
    gpus = sum(n["count"] * n["gpus"] for n in raw["cluster"]["nodes"])
    shared = rng.random() < 0.2
    jobs = [_job(rng, k, gpus, stores, shared) for k in range(int(rng.integers(1, 5)))]
    raw["workload"] = {"models": {f"m{k}": _model(rng) for k in range(len(jobs))}, "jobs": jobs}
    if faults := _faults(rng):
        raw["faults"] = faults
    _in_two_rooms(np.random.default_rng([20261122, number, 1]), raw)  # of its own: others stay as they were
    return from_mapping(raw)


def _pick(rng: Generator, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _cluster(rng: Generator, stores: bool) -> dict[str, Any]:
    nic = _pick(rng, "1 Gbit/s", "10 Gbit/s", "25 Gbit/s")
    node = {"gpus": int(_pick(rng, 1, 2)), "nic": nic, "cores": int(_pick(rng, 2, 8, 32)), "local_read": "1 GB/s"}
    fast = {"name": "fast", "count": int(rng.integers(2, 5)), **node}
    slow = {"name": "slow", "count": int(rng.integers(1, 4)), **node, "speed": float(_pick(rng, 1.0, 0.8, 0.6))}
    nodes = [fast, slow]
    if stores:
        nodes.append({"name": "store", "count": 1, "gpus": 0, "nic": nic, "storage_rate": "500 MB/s"})
    cluster: dict[str, Any] = {"nodes": nodes}
    if rng.random() < 0.4:
        over = float(_pick(rng, 2, 4, 16))
        cluster["topology"] = {"kind": "tree", "nodes_per_rack": 3, "oversubscription": over}
    if rng.random() < 0.2:
        cluster["slow_links"] = [{"node": "fast-1", "rate": "500 Mbit/s"}]
    return cluster


def _model(rng: Generator) -> dict[str, Any]:
    model: dict[str, Any] = {
        "fixed_time": 0.005,
        "sample_time": float(_pick(rng, 0.002, 0.004, 0.01)),
        "gradient": _pick(rng, "2 MB", "20 MB", "200 MB"),
        "exchange": {"alpha": 3e-5, "rate": "10 Gbit/s"},
        "overlap": float(_pick(rng, 1.0, 1.5, 2.0)),
        "noise_scale": 4000.0,
        "drift": float(_pick(rng, 0.0, 0.01, 0.05)),
    }
    if rng.random() < 0.25:
        model["preprocess_time"] = 0.02
    return model


def _job(rng: Generator, k: int, gpus: int, stores: bool, shared: bool) -> dict[str, Any]:
    asked = int(rng.integers(1, max(2, gpus // 2 + 1)))
    job: dict[str, Any] = {
        "name": f"j{k}",
        "arrival": float(rng.integers(0, 30)) * (k > 0),
        "model": f"m{k}",
        "gpus": asked,
        "steps": int(_pick(rng, 300, 600)),
        "global_batch": 32 * asked,
        "micro_batch": 2,
        "priority": float(_pick(rng, 1.0, 1.0, 3.0)),
    }
    if shared:
        job["gpu_share"] = 0.5
    elif rng.random() < 0.4:
        job |= {"workers_min": 1, "workers_max": min(gpus, 2 * asked)}
    if rng.random() < 0.6:
        place: dict[str, Any] = {"kind": "skewed", "exponent": 1.2}
        if stores:
            place = {"kind": "nodes", "nodes": ["store"]}
        elif rng.random() < 0.4:
            place = {"kind": "nodes", "nodes": ["fast-0", "fast-1"]}
        samples = job["steps"] * job["global_batch"] // 2
        job["data"] = {"samples": samples, "sample_size": "100 kB", "shards": 60, "placement": place}
        if rng.random() < 0.4:
            job["data"]["shard_sizes"] = {"kind": "lognormal", "cov": 1.0}
    return job


def _in_two_rooms(rng: Generator, raw: dict[str, Any]) -> None:
    """In a fifth: two rooms with a store each and a line between them; the first job spans both and reads both."""
    if rng.random() >= 0.2:
        return
    fast, slow = (dict(node) for node in raw["cluster"]["nodes"][:2])
    slow["count"] = min(slow["count"], fast["count"])
    store = {"gpus": 0, "nic": fast["nic"], "storage_rate": "500 MB/s"}
    rooms = (fast, {"name": "store", "count": 1, **store}, slow, {"name": "far-store", "count": 1, **store})
    line = {"nodes_per_rack": fast["count"] + 1, "oversubscription": float(_pick(rng, 4, 16, 50))}
    raw["cluster"] |= {"nodes": list(rooms), "topology": {"kind": "tree", **line}}
    asked = (fast["count"] + slow["count"]) * fast["gpus"]
    samples, size = 8 * asked * int(rng.integers(100, 400)), _pick(rng, "100 kB", "500 kB", "1 MB")
    job = raw["workload"]["jobs"][0]
    for key in ("gpu_share", "workers_min", "workers_max"):
        job.pop(key, None)
    job |= {
        "gpus": asked,
        "global_batch": 32 * asked,
        "data": {
            "samples": samples,
            "sample_size": size,
            "shards": 200,
            "placement": {"kind": "nodes", "nodes": ["store", "far-store"]},
        },
    }
    for other in raw["workload"]["jobs"][1:]:
        other["gpus"] = min(other["gpus"], asked)
        other["global_batch"] = 32 * other["gpus"]
        if "workers_max" in other:
            other["workers_max"] = min(asked, 2 * other["gpus"])


def _faults(rng: Generator) -> dict[str, Any]:
    faults: dict[str, Any] = {}
    if rng.random() < 0.2:
        faults["corrupt_gradient"] = {"per_gpu_hour": 10.0, "duration": 30.0}
    if rng.random() < 0.2:
        faults["fail_slow"] = {"mtbf": 120.0, "duration": 40.0, "factor": 2.0}
    if rng.random() < 0.2:
        faults["link"] = {"mtbf": 120.0, "duration": 40.0, "factor": 0.2}
    return faults

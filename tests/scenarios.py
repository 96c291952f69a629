"""Random small scenarios that touch every part of the simulator, and helpers to run them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from equipoise.policies.registry import make_policy
from equipoise.sim.record import Run
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario

SECONDS = st.floats(0.0, 200.0).map(lambda x: round(x, 3) + 0.000123)


def scenario(**sections: Any) -> Scenario:
    """A scenario from plain dictionaries; two generic nodes and no jobs unless given."""
    base: dict[str, Any] = {
        "schema_version": 1,
        "name": "test",
        "cluster": {"nodes": [{"count": 2, "gpus": 1, "accelerator": "generic"}]},
        "workload": {},
    }
    return Scenario.model_validate(base | sections)


def model(**keys: Any) -> dict[str, Any]:
    """A fitted model: 10 ms a sample, no exchange cost unless given."""
    return {"sample_time": 0.01, "exchange": {"alpha": 0.0, "rate": 1e10}} | keys


def simulate(case: Scenario, policy: str = "fifo", seed: int = 0, **options: Any) -> Run:
    """Run a scenario under a policy."""
    return run(case, policy=make_policy(policy), seed=seed, **options)


NOISES: list[dict[str, float]] = [
    {"step_cov": 0.0},
    {"step_cov": 0.2},
    {
        "step_cov": 0.2,
        "lasting_share": 0.7,
        "lasting_steps": 5,
        "common_share": 0.2,
        "tail_chance": 0.02,
        "tail_factor": 4.0,
        "gpu_cov": 0.05,
        "slow_nodes": 0.3,
        "slow_speed": 0.8,
    },
]


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    groups = [
        {
            "name": f"group{k}",
            "count": draw(st.integers(1, 3)),
            "gpus": draw(st.integers(1, 3)),
            "accelerator": "generic",
            "speed": draw(st.sampled_from([1.0, 0.5, 0.77])),
            "nic": draw(st.sampled_from([1e9, 2.5e9, 1.25e10])),
            "storage_rate": draw(st.sampled_from([2e9, 2e8])),
            "ingest": draw(st.sampled_from([None, 150.0])),
            "cores": draw(st.sampled_from([4, 32])),
            "local_read": draw(st.sampled_from([None, 1e8])),
            "cache": draw(st.sampled_from([0.0, 5e7])),
        }
        for k in range(draw(st.integers(1, 2)))
    ]
    topology: dict[str, Any] = {"kind": "star", "latency": draw(st.sampled_from([0.0, 1e-4]))}
    if draw(st.booleans()):
        topology = {"kind": "tree", "nodes_per_rack": 2, "oversubscription": draw(st.sampled_from([1.0, 4.0]))}
    if draw(st.booleans()):
        groups.append({"name": "store", "count": 1, "gpus": 0, "nic": 1e9, "storage_rate": 5e8})
    slow = [{"node": "group0-0", "rate": 3e8}] if draw(st.booleans()) else []
    return {"nodes": groups, "topology": topology, "slow_links": slow}


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "fixed_time": draw(st.sampled_from([0.0, 0.0071])),
        "sample_time": draw(st.sampled_from([0.0023, 0.0117])),
        "parameters": draw(st.sampled_from([0.0, 1.3e7, 2.1e8])),
        "overlap": draw(st.sampled_from([1.0, 1.7, 8.0])),
        "noise_scale": draw(st.sampled_from([None, 300.0])),
        "preprocess_time": draw(st.sampled_from([None, 0.02])),
        "staleness": 0.01,
        "drift": draw(st.sampled_from([0.0, 0.03])),
        "samples_per_pass": draw(st.sampled_from([None, 8])),
        "memory": {"activation_per_sample": draw(st.sampled_from([0.0, 1.1e10]))},
        "share_kappa": 0.6,
        "interference": draw(st.sampled_from([0.0, 0.2])),
        "exchange": {
            "algorithm": draw(
                st.sampled_from(["ring", "tree", "parameter-server", "hierarchical", "async-parameter-server"])
            ),
            "alpha": 1.3e-5,
            "rate": draw(st.sampled_from([5e8, 9e9])),
        },
    }


@st.composite
def training_jobs(draw: st.DrawFn, index: int, gpus: int) -> dict[str, Any]:
    batch = draw(st.integers(8, 60))
    share = draw(st.sampled_from([1.0, 1.0, 0.5]))
    job: dict[str, Any] = {
        "name": f"job{index}",
        "arrival": draw(SECONDS) if index else 0.0,
        "gpus": 1 if share < 1.0 else draw(st.integers(1, min(gpus, 6))),
        "gpu_share": share,
        "model": "m",
        "global_batch": batch,
        "sync_interval": draw(st.integers(1, 4)),
        "checkpoint": {"interval": draw(st.sampled_from(["never", "young-daly", 7.77])), "size": 1e9},
    }
    if job["gpus"] > 1:
        job["workers_min"] = 1
    if draw(st.booleans()):
        job["data"] = {
            "samples": draw(st.integers(batch * 3, batch * 40)),
            "sample_size": draw(st.sampled_from([0.0, 2e5, 4e6])),
            "shards": draw(st.integers(1, 12)),
            "prefetch": draw(st.integers(0, 3)),
            "shard_sizes": draw(st.sampled_from([None, {"kind": "lognormal", "cov": 0.8}])),
            "replicas": draw(st.integers(1, 2)),
            "placement": draw(
                st.sampled_from(
                    [
                        {"kind": "even"},
                        {"kind": "even", "over": "cluster"},
                        {"kind": "skewed"},
                        {"kind": "nodes", "nodes": ["group0-0"]},
                    ]
                )
            ),
        }
        job["epochs"] = draw(st.sampled_from([1, 2, 2.5]))
    else:
        job["steps"] = draw(st.integers(1, 120))
    return job


@st.composite
def faults(draw: st.DrawFn, nodes: list[str]) -> dict[str, Any]:
    kinds = [draw(st.sampled_from(["crash", "slow", "link", "corrupt"])) for _ in range(draw(st.integers(0, 3)))]
    events = [
        {
            "kind": kind,
            "node": draw(st.sampled_from(nodes)),
            "at": draw(SECONDS),
            "duration": draw(SECONDS) / (50 if kind == "corrupt" else 1),  # in which nothing counts
            **({} if kind == "crash" else {"factor": 0.4 if kind == "link" else 2.5}),
        }
        for kind in kinds
    ]
    return {"events": events}


@st.composite
def cases(draw: st.DrawFn) -> Scenario:
    """A whole random scenario: uneven, noisy, contended, faulty, co-located, H > 1."""
    cluster = draw(clusters())
    gpus = sum(g["count"] * g["gpus"] for g in cluster["nodes"])
    nodes = [f"{g['name']}-{k}" for g in cluster["nodes"] if g["gpus"] for k in range(g["count"])]
    jobs = [draw(training_jobs(index, gpus)) for index in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        jobs.append({"name": "rigid", "arrival": draw(SECONDS), "gpus": 1, "duration": draw(SECONDS)})
    decide = draw(
        st.sampled_from(
            [
                {},
                {"every_steps": 7},
                {"every_steps": 7, "delay_rounds": 3},
                {"every": 3.3},
                {"every": 3.3, "delay_rounds": 5},
                {"every": 11.1, "every_steps": 5},
            ]
        )
    )
    return scenario(
        cluster=cluster,
        workload={"models": {"m": draw(models())}, "jobs": jobs},
        decide=decide,
        noise=draw(st.sampled_from(NOISES)),
        faults=draw(faults(nodes)),
        restart={"detection": 1.1, "initialisation": 2.3},
    )


@st.composite
def shared_links(draw: st.DrawFn) -> Scenario:
    """Jobs that each span all nodes, on shares of their GPUs: exchanges and data moves meet on every NIC."""
    nodes = draw(st.integers(2, 4))
    placements = [{"kind": "skewed", "exponent": 1.5, "over": "cluster"}, {"kind": "nodes", "nodes": ["n-0"]}]
    jobs = [
        {
            "name": f"job{k}",
            "arrival": draw(st.integers(0, 3000)) / 1000 + (0.000123 if k else 0.0),
            "gpus": nodes,
            "gpu_share": 0.25,
            "model": f"m{k % 2}",
            "epochs": 2,
            "global_batch": draw(st.sampled_from([24, 32, 48])),
            "data": {
                "samples": draw(st.sampled_from([600, 1200])),
                "sample_size": draw(st.sampled_from([1e5, 4e5, 1e6])),
                "shards": draw(st.sampled_from([8, 12, 24])),
                "placement": draw(st.sampled_from(placements)),
            },
        }
        for k in range(draw(st.integers(2, 4)))
    ]
    exchange = {"alpha": 1e-5, "rate": draw(st.sampled_from([1e8, 2.5e8]))}
    models = {
        f"m{k}": model(
            sample_time=0.004 + 0.003 * k,
            parameters=draw(st.sampled_from([1e6, 5e6, 2e7])),
            overlap=1.5,
            exchange=exchange,
            memory={"activation_per_sample": draw(st.sampled_from([0.0, 3e9]))},
        )
        for k in range(2)
    }
    topologies: list[dict[str, Any]] = [
        {"kind": "star"},
        {"kind": "tree", "nodes_per_rack": 2, "oversubscription": 4.0},
    ]
    groups = [
        {"name": "n", "count": nodes - 1, "nic": 1e9, "storage_rate": draw(st.sampled_from([2e8, 5e8]))},
        {"name": "w", "speed": 0.5, "nic": draw(st.sampled_from([5e8, 1e9]))},
    ]
    return scenario(
        cluster={"nodes": groups, "topology": draw(st.sampled_from(topologies))},
        workload={"models": models, "jobs": jobs},
        decide={"every_steps": draw(st.sampled_from([5, 9])), "delay_rounds": draw(st.sampled_from([0, 0, 1, 4]))},
        noise=draw(st.sampled_from(NOISES)),
    )

"""Random scenarios with every feature of the simulator, by number: plain data as in a file."""

from __future__ import annotations

import random
from typing import Any

from equipoise.policies.registry import BUILT_IN
from equipoise.sim.scenario.model import NodeGroup

Plain = dict[str, Any]
ORDERS = ("fifo", "fifo-greedy", "sjf", "sjf-greedy", "easy", "srtf", "las", "s4")
DATA, TASKS, SYNC = ("s1", "static", "locality"), ("s2", "equal"), ("s3", "every-step", "fixed-h")


def policy(dice: random.Random) -> str:
    """Any stage of each kind, or none of it; stages that are registered later stand alone."""
    others = sorted(set(BUILT_IN) - {*ORDERS, *DATA, *TASKS, *SYNC})
    if others and dice.random() < 0.3:
        return dice.choice(others)
    parts = [dice.choice(kind) for kind in (DATA, TASKS, SYNC) if dice.random() < 0.6]
    return "+".join([*parts, dice.choice(ORDERS)])


def _some(dice: random.Random, probability: float, **keys: Any) -> Plain:
    """These keys, each with that probability."""
    return {key: value for key, value in keys.items() if dice.random() < probability}


def _groups(dice: random.Random) -> list[Plain]:
    groups: list[Plain] = []
    for k in range(dice.randint(1, 3)):
        groups.append(
            {
                "name": f"g{k}",
                "count": dice.randint(1, 3),
                "gpus": dice.randint(1, 4),
                "cores": dice.choice((2, 16)),
                "accelerator": dice.choice(("generic", "generic", "a10", "h100_sxm")),
                "nic": dice.choice((1e9, 2.5e9)),
                **_some(
                    dice,
                    0.3,
                    speed=dice.choice((0.5, 0.77)),
                    storage_rate=2e8,
                    ingest=150.0,
                    local_read=1e8,
                    cache=5e7,
                    host_power=300.0,
                    price=dice.choice((1.0, 7.5)),
                    fabric=1e10,
                ),
            }
        )
    return groups


def _cluster(dice: random.Random) -> tuple[Plain, list[str], int]:
    groups = _groups(dice)
    nodes = [f"{g['name']}-{k}" for g in groups for k in range(g["count"])]
    gpus = sum(g["count"] * g["gpus"] for g in groups)
    if dice.random() < 0.3:
        groups.append({"name": "store", "gpus": 0, "nic": 1e9, "storage_rate": 5e8})
    trees = {"kind": "tree", "nodes_per_rack": 2, "oversubscription": dice.choice((1.0, 4.0)), "latency": 1e-5}
    cluster: Plain = {"nodes": groups, "topology": dice.choice(({"kind": "star", "latency": 1e-4}, trees))}
    return cluster | _some(dice, 0.3, slow_links=[{"node": nodes[-1], "rate": 3e8}]), nodes, gpus


def _model(dice: random.Random) -> Plain:
    algorithms = ("ring", "tree", "hierarchical", "parameter-server", "async-parameter-server")
    return {
        "fixed_time": dice.choice((0.0, 0.0071)),
        "sample_time": dice.choice((0.0023, 0.0117)),
        "parameters": dice.choice((0.0, 1.3e7, 2.1e8)),
        "overlap": dice.choice((1.0, 1.7, 8.0)),
        "share_kappa": 0.6,
        "exchange": {"algorithm": dice.choice(algorithms), "alpha": 1.3e-5, "rate": dice.choice((5e8, 9e9))},
        **_some(
            dice,
            0.3,
            noise_scale=300.0,
            drift=0.03,
            staleness=0.01,
            samples_per_pass=8,
            preprocess_time=0.02,
            interference=0.2,
            memory={"activation_per_sample": 1.1e9},
        ),
    }


def _data(dice: random.Random, batch: int, node: str) -> Plain:
    over = {"kind": "skewed", "exponent": 1.2, "over": dice.choice(("job", "cluster"))}
    return {
        "samples": dice.randint(3, 30) * batch,
        "sample_size": dice.choice((0.0, 2e5, 4e6)),
        "shards": dice.randint(1, 12),
        "prefetch": dice.randint(0, 3),
        "placement": dice.choice(({"kind": "even"}, over, {"kind": "nodes", "nodes": [node]})),
        **_some(dice, 0.3, shard_sizes={"kind": "lognormal", "cov": 0.8}, replicas=1),
    }


def _training(dice: random.Random, k: int, gpus: int, node: str) -> Plain:
    batch, share = dice.randint(8, 48), dice.choice((1.0, 1.0, 0.5))
    wanted = 1 if share < 1.0 else dice.randint(1, min(gpus, 6))
    job: Plain = {
        "name": f"t{k}",
        "arrival": round(dice.uniform(0, 100), 3) if k else 0.0,
        "gpus": wanted,
        "gpu_share": share,
        "model": dice.choice(("m0", "m1")),
        "global_batch": batch,
        "sync_interval": dice.randint(1, 4),
        "priority": dice.choice((1.0, 2.0)),
        "checkpoint": {"interval": dice.choice(("never", "young-daly", 7.77)), "size": 1e9},
    }
    if wanted > 1 and dice.random() < 0.5:
        job |= {"workers_min": 1, "workers_max": min(gpus, 2 * wanted, batch)}
    if dice.random() < 0.5:
        return job | {"data": _data(dice, batch, node), "epochs": dice.choice((1, 2.5))}
    return job | {"steps": dice.randint(1, 100)}


def _faults(dice: random.Random, nodes: list[str], group: str) -> Plain:
    events = [
        {
            **dice.choice(({"kind": "crash"}, {"kind": "slow", "factor": 2.5}, {"kind": "link", "factor": 0.4})),
            "node": dice.choice(nodes),
            "at": dice.uniform(0, 200),
            "duration": dice.uniform(1, 50),
        }
        for _ in range(dice.randint(0, 2))
    ]
    return {"events": events} | _some(
        dice,
        0.2,
        crash={"mtbf": 600.0, "repair": 20.0},
        fail_slow={"mtbf": 200.0, "duration": 30.0},
        link={"mtbf": 200.0, "duration": 20.0},
        spot={"group": group, "mtbf": 400.0, "notice": 5.0, "away": 30.0},
        corrupt_gradient={"per_gpu_hour": 1.0, "duration": 1.0},
    )


def _pools(dice: random.Random, groups: list[Plain], job_data: bool) -> None:
    """Let nodes come and go; not where data may lie on them."""
    for group in groups if not job_data else ():
        if group["gpus"] and dice.random() < 0.5 and "autoscale" in NodeGroup.model_fields:
            group["autoscale"] = {
                "min": dice.randint(0, group["count"]),
                "delay": dice.choice((0.0, 7.7)),
                "idle": dice.choice((0.0, 13.0)),
                "wait": dice.choice((0.0, 3.1)),
                "cool_down": dice.choice((0.0, 9.0)),
            }
        if group["gpus"] and group["name"] != "g0" and dice.random() < 0.3:
            counts = [dice.randint(0, group["count"]) for _ in range(4)] + [group["count"]]
            supply = [{"at": 40.0 * k, "nodes": n} for k, n in enumerate(counts)]
            group["available"] = {
                "supply": supply,
                "notice": dice.choice((0.0, 20.0)),
                "begin": dice.choice((0.0, 60.0)),
            }


def _declared(dice: random.Random, case: Plain) -> Plain:
    """Slices of GPUs, pins, limits of time, users and accounts, contracts: some of each."""
    groups, jobs = [g for g in case["cluster"]["nodes"] if g["gpus"]], case["workload"]["jobs"]
    for group in groups:
        if group["accelerator"] == "h100_sxm":
            group |= _some(dice, 0.4, sharing="mig")
    for job in jobs:
        if job.get("gpu_share", 1.0) < 1.0:
            job["gpu_share"] = dice.choice((0.43, 0.57))
        words = [group[key] for key in ("accelerator", "name") for group in groups]
        named = dice.sample(words, min(len(words), dice.randint(1, 2)))
        near = dice.choice(("rack-preferred", "node-preferred", "rack-required"))
        job |= _some(dice, 0.3, gpu_types=named, user=dice.choice(("ann", "bob")), together=near)
        job |= _some(dice, 0.2, segment=dice.randint(1, 4))
        job |= _some(dice, 0.3, account="x", partition="p")
        if "duration" in job:
            job |= _some(dice, 0.4, time_limit=round(dice.uniform(1, 200), 3))
            job |= _some(dice, 0.2, gpus_min=dice.randint(1, job["gpus"]))
    queues = {
        "accounts": [{"name": "x", **_some(dice, 0.6, gpus_per_user=dice.randint(1, 4), jobs_per_user=2)}],
        "partitions": [
            {"name": "p", "nodes": [groups[-1]["name"]], **_some(dice, 0.3, exclusive=True, accounts=["x"])}
        ],
        "too_large": "leave-out",
    }
    if dice.random() < 0.4:
        queues = _flavors(dice, groups, jobs)
    terms = {dice.choice(groups)["name"]: dice.choice(("spot", "on_demand", "reserved 1 y"))}
    case["decide"] |= _some(dice, 0.3, estimate="time-limit")
    return case | {"queues": queues} | _some(dice, 0.3, cost={"terms": terms})


def _flavors(dice: random.Random, groups: list[Plain], jobs: list[Plain]) -> Plain:
    """Queues of Kueue in a cohort, with quotas by flavor, a flavor being groups of nodes; jobs name a queue."""
    for job in jobs:
        for key in ("account", "partition"):
            job.pop(key, None)
        if dice.random() < 0.7:
            job["queue"] = dice.choice(("qa", "qb"))
    flavors = {f"f{k}": [group["name"]] for k, group in enumerate(groups)}
    queues = []
    for name in ("qa", "qb"):
        some = dice.sample(sorted(flavors), dice.randint(1, len(flavors)))
        own = {"name": name, "cohort": "all", "gpus": {flavor: dice.randint(0, 4) for flavor in some}}
        own |= _some(dice, 0.3, order="strict", within="lower-priority", reclaim="any", weight=3)
        queues.append(own)
    return {"cohorts": [{"name": "all"}], "flavors": flavors, "queues": queues, "too_large": "leave-out"}


def make(number: int) -> Plain:
    """The scenario of that number; its policy and seed with it."""
    more = random.Random(f"declared {number}")
    return _declared(more, _plain(number)) if more.random() < 0.5 else _plain(number)


def _plain(number: int) -> Plain:
    dice = random.Random(number)
    cluster, nodes, gpus = _cluster(dice)
    jobs = [_training(dice, k, gpus, nodes[0]) for k in range(dice.randint(0, 3))]
    for k in range(dice.randint(0 if jobs else 1, 3)):
        jobs.append(
            {
                "name": f"r{k}",
                "arrival": round(dice.uniform(0, 100), 3),
                "gpus": dice.randint(1, gpus),
                "duration": round(dice.uniform(1, 200), 3),
                "count": dice.randint(1, 4),
                "spacing": dice.choice((0.0, 3.0)),
                "priority": dice.choice((1.0, 3.0)),
                "checkpoint": {"interval": dice.choice(("never", 20.0))},
                "mix_gpus": True,
            }
        )
    come_and_go = random.Random(f"pools {number}")
    if come_and_go.random() < 0.5:
        _pools(come_and_go, cluster["nodes"], any("data" in job for job in jobs))
    decide = dice.choice(({}, {"every_steps": 7}, {"every": 3.3}, {"every": 11.1, "every_steps": 5}))
    return {
        "schema_version": 1,
        "name": f"soak {number}",
        "cluster": cluster,
        "policy": policy(dice).split("+"),
        "workload": {"models": {"m0": _model(dice), "m1": _model(dice)}, "jobs": jobs},
        "decide": decide | _some(dice, 0.3, estimate_error=0.5),
        "noise": {"step_cov": dice.choice((0.0, 0.2))},
        "faults": _faults(dice, nodes, "g0"),
        "restart": {"detection": 1.1, "initialisation": 2.3},
        "energy": _some(dice, 0.3, power_cap=250.0, cluster_power_cap=40_000.0, ambient=35.0),
        "seed": number % 5,
        **_some(dice, 0.15, thermal={"every": 5.0}, horizon=dice.uniform(50, 300)),
    }

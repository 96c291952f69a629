"""Whether a policy harms: python -m tests.bench.harm [--scenarios 200] [--seeds 3] [--policy P ...] [FILE ...]

Random small scenarios that mix keys of the schema, and given files, each under every policy: the mean completion time
of a policy over that of the better of {none, the same stages with easy in place of s4}, geometric mean over seeds.
Runs are kept in a file by a hash of the code, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml

import equipoise
from equipoise.sim.run import RunFailed
from equipoise.sim.scenario.tree import InputError
from tests.bench.method_table import code_hash

Plain = dict[str, Any]
NONE, ALL = "fifo", "s1+s2+s3+s4"
POLICIES = ("s1", "s2", "s3", "s1+s2", "s1+s3", "s2+s3", "s4", ALL)
GPUS = ("a100_sxm_80gb", "h100_sxm", "v100_sxm2_32gb", "l40s", "t4")


def generated(number: int, draw: str = "harm") -> Plain:
    """Scenario `number` of a draw, the same everywhere."""
    dice = random.Random(f"{draw} {number}")
    groups = [_group(dice, k) for k in range(dice.randint(1, 3))]
    gpus = sum(group["count"] * group["gpus"] for group in groups)
    jobs = [_job(dice, k, gpus, groups) for k in range(dice.randint(1, 8))]
    if dice.random() < 0.6:
        some = {"name": "rigid", "arrival": 5.0, "count": dice.randint(2, 14), "spacing": float(dice.randint(10, 60))}
        jobs.append(some | {"gpus": dice.choice((1, 1, 2)), "duration": float(dice.randint(200, 1200))})
        jobs[-1]["gpus"] = min(jobs[-1]["gpus"], gpus)
    cluster: Plain = {"nodes": groups}
    if dice.random() < 0.2:
        store = {"gpus": 0, "nic": dice.choice(("10 Gbit/s", "25 Gbit/s")), "storage_rate": "1 GB/s"}
        groups.append({"name": "store", "count": 1, **store})
        for job in jobs:
            if "data" in job and dice.random() < 0.7:
                job["data"]["placement"] = {"kind": "nodes", "nodes": ["store-0"]}
    if dice.random() < 0.4:
        racks = {"nodes_per_rack": dice.choice((2, 4)), "oversubscription": dice.choice((1, 4, 16))}
        cluster["topology"] = {"kind": "tree", **racks}
    if dice.random() < 0.2:
        cluster["slow_links"] = [{"node": "g0-0", "rate": dice.choice(("300 Mbit/s", "1 Gbit/s"))}]
    case: Plain = {
        "schema_version": 1,
        "name": f"{draw} {number}",
        "cluster": cluster,
        "workload": {"models": {f"m{k}": _model(dice) for k in range(len(jobs))}, "jobs": jobs},
        "decide": dice.choice(({"every": "2 min"}, {"every": "30 s"}, {"every_steps": 20}, {})),
        "noise": dice.choice(({}, {"step_cov": 0.05}, {"step_cov": 0.15, "tail_chance": 0.005, "tail_factor": 5.0})),
        "restart": dice.choice(({}, {"initialisation": 10.0, "detection": 10.0}, {"initialisation": 60.0})),
        "faults": _faults(dice, groups),
    }
    if dice.random() < 0.2:
        case["noise"]["gpu_cov"] = 0.1
    if dice.random() < 0.2:
        case["decide"]["estimate_error"] = dice.choice((0.3, 1.0))
    if dice.random() < 0.2:
        case["queues"] = {"accounts": [{"name": "x", "gpus_per_user": max(2, gpus // 3)}], "too_large": "leave-out"}
        for job in jobs:
            if dice.random() < 0.5:
                job |= {"account": "x", "user": dice.choice(("ann", "bob"))}
    return case


def _group(dice: random.Random, k: int) -> Plain:
    group = {
        "name": f"g{k}",
        "count": dice.randint(1, 4),
        "gpus": dice.choice((1, 2, 4, 8)),
        "accelerator": dice.choice(GPUS),
        "nic": dice.choice(("1 Gbit/s", "10 Gbit/s", "25 Gbit/s", "100 Gbit/s")),
        "cores": dice.choice((8, 16, 64)),
        "speed": dice.choice((1.0, 1.0, 0.9, 0.7)),
    }
    return group | ({"cache": "16 GiB"} if dice.random() < 0.2 else {})


def _model(dice: random.Random) -> Plain:
    model: Plain = {
        "flop_per_sample": dice.choice((5e9, 25e9, 100e9, 400e9)),
        "kind": "large-products",
        "parameters": dice.choice((20e6, 60e6, 110e6, 350e6)),
        "precision": "fp16",
        "overlap": dice.choice((1.0, 1.5, 2.0, 4.0)),
        "noise_scale": dice.choice((200.0, 2000.0, 8000.0)),
    }
    if dice.random() < 0.8:
        model["drift"] = dice.choice((0.005, 0.02, 0.05, 0.1))
    if dice.random() < 0.3:
        model["preprocess_time"] = dice.choice(("2 ms", "10 ms"))
    if dice.random() < 0.3:
        model["samples_per_pass"] = dice.choice((8, 16, 32))
    return model


def _job(dice: random.Random, k: int, gpus: int, groups: list[Plain]) -> Plain:
    asked = min(dice.choice((1, 1, 2, 4, 8, 16)), gpus)
    job: Plain = {
        "name": f"j{k}",
        "arrival": float(dice.randint(0, 400)) * (k > 0),
        "model": f"m{k}",
        "gpus": asked,
        "steps": dice.choice((200, 400, 800)),
        "global_batch": asked * dice.choice((32, 128, 512)),
        "micro_batch": dice.choice((1, 2, 4)),
        "priority": dice.choice((1.0, 1.0, 4.0)),
    }
    kind = dice.random()
    if kind < 0.35:
        job |= {"workers_min": 1, "workers_max": min(gpus, 2 * asked)}
    elif kind < 0.45:
        job |= {"gpus": 1, "gpu_share": 0.5}
    elif kind < 0.55:
        job["batch_max"] = 4 * job["global_batch"]
    if dice.random() < 0.15:
        roomy = [g for g in groups if g["count"] * g["gpus"] >= job.get("workers_max", job["gpus"])]
        job |= {"gpu_types": [dice.choice(roomy)["name"]]} if roomy else {}
    if dice.random() < 0.1:
        job["together"] = dice.choice(("rack-preferred", "node-preferred"))
    if dice.random() < 0.5:
        size = dice.choice((20, 150, 600))
        samples = min(job["steps"] * job["global_batch"] // dice.choice((1, 4)), 10**8 // size)
        places = ({"kind": "even"}, {"kind": "skewed", "exponent": 1.5}, {"kind": "nodes", "nodes": ["g0-0"]})
        place = dict(dice.choice(places))
        if place["kind"] != "nodes" and dice.random() < 0.5:
            place["over"] = "cluster"
        data = {"samples": samples, "sample_size": f"{size} kB", "shards": dice.choice((40, 100)), "placement": place}
        job["data"] = data
        if dice.random() < 0.2:
            job["data"]["shard_sizes"] = {"kind": "lognormal", "cov": 1.0}
    return job


def _faults(dice: random.Random, groups: list[Plain]) -> Plain:
    faults: Plain = {}
    if dice.random() < 0.25:
        faults["crash"] = {"mtbf": "2 h", "repair": "5 min"}
    if dice.random() < 0.2:
        faults["fail_slow"] = {"mtbf": "30 min", "duration": "5 min", "factor": 2.0}
    if dice.random() < 0.2:
        faults["link"] = {"mtbf": "20 min", "duration": "3 min", "factor": 0.2}
    if dice.random() < 0.1:
        faults["corrupt_gradient"] = {"per_gpu_hour": 1.0, "duration": "3 min"}
    if len(groups) > 1 and dice.random() < 0.15:
        faults["spot"] = {"group": "g1", "mtbf": "30 min", "notice": "1 min", "away": "5 min"}
    return faults


def _of_a_kind(case: Plain) -> Plain:
    """A scenario written before models had to name a kind."""
    for model in case["workload"]["models"].values():
        model.setdefault("kind", "large-products")
    return case


def completion_s(case: Plain, policy: str, seed: int) -> float:
    """Mean completion time, NaN where the run is refused or gets nowhere."""
    try:
        return float(equipoise.run(case, policy=policy, seed=seed).summary()["completion_mean_s"])
    except (InputError, RunFailed):
        return math.nan


Asked = tuple[Plain, str, int]


def _one(asked: Asked) -> float:
    return completion_s(*asked)


class Kept:
    """Mean completion times by case, policy and seed, kept in a file of lines by a hash of the code."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.code, self.found = path, code_hash(), dict[str, float]()
        if path is not None and path.exists():
            lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            self.found = {line["run"]: line["s"] for line in lines if line["code"] == self.code}

    def fill(self, asked: Iterable[Asked], processes: int) -> None:
        """Run what is missing."""
        missing = [one for one in asked if _key(one) not in self.found]
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            for one, found_s in zip(missing, pool.map(_one, missing, chunksize=4), strict=True):
                self.found[_key(one)] = found_s
                if self.path is not None:
                    with self.path.open("a", encoding="utf-8") as file:
                        print(json.dumps({"code": self.code, "run": _key(one), "s": found_s}), file=file)


def _key(asked: Asked) -> str:
    case, policy, seed = asked
    return f"{case['name']} | {policy} | {seed}"


def rows_of(
    cases: Sequence[Plain], policies: Sequence[str], seeds: int, kept: Kept | None = None, processes: int = 2
) -> list[tuple[str, dict[str, float]]]:
    """Name and times (geometric mean over seeds) of every case that runs under every policy."""
    policies, kept = tuple(dict.fromkeys((NONE, *policies, *map(_with_easy, policies)))), kept or Kept(None)
    kept.fill([(case, p, 100 + seed) for case in cases for p in policies for seed in range(seeds)], processes)

    def rows() -> Iterator[tuple[str, dict[str, float]]]:
        for case in cases:
            times = {p: [kept.found[_key((case, p, 100 + seed))] for seed in range(seeds)] for p in policies}
            yield case["name"], {p: math.exp(statistics.fmean(map(math.log, own))) for p, own in times.items()}

    return [(name, found) for name, found in rows() if all(map(math.isfinite, found.values()))]


def _with_easy(policy: str) -> str:
    """The policy with EASY in place of S4."""
    return "+".join("easy" if part.partition("(")[0] == "s4" else part for part in policy.split("+"))


def ratio(found: dict[str, float], policy: str) -> float:
    """Time under a policy over that under the better of those that it must not be worse than."""
    other = _with_easy(policy)
    return found[policy] / (found[NONE] if other == policy else min(found[NONE], found[other]))


def main() -> None:
    """Print a line for each policy, and the worst cases of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.harm", description="Whether a policy harms.")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--draw", default="harm", help="another name draws other scenarios")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policy", action="append", default=[])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kept", type=Path, help="file of finished runs, to go on with")
    given, begun_s = parser.parse_args(), time.perf_counter()
    cases = [generated(k, given.draw) for k in range(given.first, given.first + given.scenarios)]
    cases += [_of_a_kind(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in given.files]
    policies = given.policy or POLICIES
    rows = rows_of(cases, policies, given.seeds, Kept(given.kept), given.processes)
    print(f"{len(rows)} of {len(cases)} scenarios, {given.seeds} seeds, {time.perf_counter() - begun_s:.0f} s\n")
    print("| policy | over none: mean, median | over the better: worst | over 1.05 | over 1.01 | worst ten |")
    print("|---|---|---|---|---|---|")
    for policy in policies:
        plain = [found[policy] / found[NONE] for _, found in rows]
        best = sorted(((ratio(found, policy), name) for name, found in rows), reverse=True)
        mean = math.exp(statistics.fmean(map(math.log, plain)))
        over = [sum(value > most for value, _ in best) for most in (1.05, 1.01)]
        worst = ", ".join(f"{name.split()[-1]} {value:.3f}" for value, name in best[:10])
        print(
            f"| `{policy}` | {mean:.3f}, {statistics.median(plain):.3f} | {best[0][0]:.3f} | {over[0]} | {over[1]} "
            f"| {worst} |"
        )


if __name__ == "__main__":
    main()

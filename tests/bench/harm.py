"""Whether the method harms: python -m tests.bench.harm [--scenarios 40] [--seeds 2] [--policy P ...] [FILE ...]

Random small scenarios (mixed GPUs, rigid, elastic and shared jobs, hot data, slow links, pins, limits, faults) and
the given files, each under every policy; the mean completion time of a policy over that of the better of {none, the
same stages with easy in place of s4}, geometric mean over seeds.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml

import equipoise
from equipoise.sim.run import RunFailed
from equipoise.sim.scenario.tree import InputError

Plain = dict[str, Any]
NONE, ALL = "fifo", "s1+s2+s3+s4"
POLICIES = ("s1", "s2", "s3", "s4", ALL)
GPUS = ("a100_sxm_80gb", "h100_sxm", "v100_sxm2_32gb", "l40s", "t4")


def generated(number: int) -> Plain:
    """Scenario `number`, the same everywhere."""
    dice = random.Random(f"harm {number}")
    groups = [_group(dice, k) for k in range(dice.randint(1, 3))]
    gpus = sum(group["count"] * group["gpus"] for group in groups)
    jobs = [_job(dice, k, gpus, groups) for k in range(dice.randint(1, 8))]
    if dice.random() < 0.6:
        some = {"name": "rigid", "arrival": 5.0, "count": dice.randint(2, 14), "spacing": float(dice.randint(10, 60))}
        jobs.append(some | {"gpus": dice.choice((1, 1, 2)), "duration": float(dice.randint(200, 1200))})
    cluster: Plain = {"nodes": groups}
    if dice.random() < 0.4:
        cluster["topology"] = {
            "kind": "tree",
            "nodes_per_rack": dice.choice((2, 4)),
            "oversubscription": dice.choice((1, 4, 16)),
        }
    case: Plain = {
        "schema_version": 1,
        "name": f"harm {number}",
        "cluster": cluster,
        "workload": {"models": {f"m{k}": _model(dice) for k in range(len(jobs))}, "jobs": jobs},
        "decide": dice.choice(({"every": "5 min"}, {"every": "1 min"}, {"every_steps": 20}, {})),
        "noise": {"step_cov": dice.choice((0.0, 0.05, 0.15)), "tail_chance": 0.005, "tail_factor": 5.0},
        "faults": _faults(dice),
    }
    if dice.random() < 0.2:
        case["queues"] = {"accounts": [{"name": "x", "gpus_per_user": max(2, gpus // 3)}], "too_large": "leave-out"}
        for job in jobs:
            if dice.random() < 0.5:
                job |= {"account": "x", "user": dice.choice(("ann", "bob"))}
    return case


def _group(dice: random.Random, k: int) -> Plain:
    return {
        "name": f"g{k}",
        "count": dice.randint(1, 5),
        "gpus": dice.choice((1, 2, 4, 8)),
        "accelerator": dice.choice(GPUS),
        "nic": dice.choice(("1 Gbit/s", "10 Gbit/s", "25 Gbit/s", "100 Gbit/s")),
        "cores": dice.choice((8, 16, 64)),
        "speed": dice.choice((1.0, 1.0, 0.9, 0.7)),
    }


def _model(dice: random.Random) -> Plain:
    model: Plain = {
        "flop_per_sample": dice.choice((5e9, 25e9, 100e9, 400e9)),
        "kind": "large-products",
        "parameters": dice.choice((20e6, 60e6, 110e6, 350e6)),
        "precision": "fp16",
        "overlap": dice.choice((1.0, 1.5, 2.0, 4.0)),
        "noise_scale": dice.choice((200.0, 2000.0, 8000.0)),
        "drift": dice.choice((0.005, 0.02, 0.05, 0.1)),
    }
    if dice.random() < 0.3:
        model["preprocess_time"] = dice.choice(("2 ms", "10 ms"))
    if dice.random() < 0.3:
        model["samples_per_pass"] = dice.choice((8, 16, 32))
    return model


def _job(dice: random.Random, k: int, gpus: int, groups: list[Plain]) -> Plain:
    asked = min(dice.choice((1, 1, 2, 4, 8, 16)), gpus)
    job: Plain = {
        "name": f"j{k}",
        "arrival": float(dice.randint(0, 600)) * (k > 0),
        "model": f"m{k}",
        "gpus": asked,
        "steps": dice.choice((300, 800, 2000)),
        "global_batch": asked * dice.choice((32, 64, 256)),
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
    if dice.random() < 0.5:
        samples = job["steps"] * job["global_batch"] // dice.choice((1, 4))
        places = ({"kind": "even"}, {"kind": "skewed", "exponent": 1.5}, {"kind": "nodes", "nodes": ["g0-0"]})
        place = dict(dice.choice(places))
        if place["kind"] != "nodes" and dice.random() < 0.5:
            place["over"] = "cluster"
        size = dice.choice(("20 kB", "150 kB", "600 kB"))
        job["data"] = {"samples": samples, "sample_size": size, "shards": dice.choice((40, 100)), "placement": place}
    return job


def _faults(dice: random.Random) -> Plain:
    faults: Plain = {}
    if dice.random() < 0.3:
        faults["crash"] = {"mtbf": "4 h", "repair": "5 min"}
    if dice.random() < 0.2:
        faults["fail_slow"] = {"mtbf": "30 min", "duration": "5 min", "factor": 2.0}
    if dice.random() < 0.2:
        faults["link"] = {"mtbf": "20 min", "duration": "3 min", "factor": 0.2}
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


def _row(asked: tuple[Plain, tuple[str, ...], int]) -> tuple[str, dict[str, float]]:
    """Geometric mean over seeds of each policy's mean completion (s)."""
    case, policies, seeds = asked
    found = {}
    for policy in policies:
        times = [completion_s(case, policy, 100 + seed) for seed in range(seeds)]
        found[policy] = math.exp(statistics.fmean(math.log(t) for t in times))
    return case["name"], found


def rows_of(cases: Sequence[Plain], policies: Sequence[str], seeds: int) -> list[tuple[str, dict[str, float]]]:
    """Name and times of every case that runs under every policy."""
    policies = tuple(dict.fromkeys((NONE, *policies, *map(_with_easy, policies))))
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(_row, [(case, policies, seeds) for case in cases]))
    return [(name, found) for name, found in rows if all(map(math.isfinite, found.values()))]


def _with_easy(policy: str) -> str:
    """The policy with EASY in place of S4."""
    return "+".join("easy" if part.partition("(")[0] == "s4" else part for part in policy.split("+"))


def ratio(found: dict[str, float], policy: str) -> float:
    """Time under a policy over that under the better of those that it must not be worse than."""
    other = _with_easy(policy)
    return found[policy] / (found[NONE] if other == policy else min(found[NONE], found[other]))


def main() -> None:
    """Print a line for each policy, and the worst cases of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.harm", description="Whether the method harms.")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--scenarios", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--policy", action="append", default=[])
    given, begun_s = parser.parse_args(), time.perf_counter()
    cases = [generated(k) for k in range(given.first, given.first + given.scenarios)]
    cases += [_of_a_kind(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in given.files]
    policies = given.policy or POLICIES
    rows = rows_of(cases, policies, given.seeds)
    print(f"{len(rows)} of {len(cases)} scenarios, {given.seeds} seeds, {time.perf_counter() - begun_s:.0f} s")
    print(
        "policy: geometric mean, median of the ratios to plain; to the better: worst, over 1.05, over 1.01; worst five"
    )
    for policy in policies:
        plain = [found[policy] / found[NONE] for _, found in rows]
        best = sorted(((ratio(found, policy), name) for name, found in rows), reverse=True)
        mean = math.exp(statistics.fmean(map(math.log, plain)))
        over = [sum(value > most for value, _ in best) for most in (1.05, 1.01)]
        worst = ", ".join(f"{name.removeprefix('harm ')} {value:.3f}" for value, name in best[:5])
        print(f"{policy}: {mean:.3f}, {statistics.median(plain):.3f}; {best[0][0]:.3f}, {over[0]}, {over[1]}; {worst}")


if __name__ == "__main__":
    main()

"""S4 against the best static start of tiny random cases: python -m tests.bench.brute_force [--cases 200] [--write]

A case has up to 3 jobs and 6 GPUs. A static start gives each job its GPUs once, in some order, and nothing is ever
moved, resized or stopped; the best one of a case has the least mean completion time of all, over whole runs, with
later arrivals known. Found by trying all: each job alone on every choice of GPUs gives a bound for every
combination, and combinations are simulated in the order of their bounds until no bound is below what was found.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from equipoise import run
from equipoise.policies.contract import Allocation, AllocationStage, Memory, Plan, Policy
from equipoise.policies.observation import JobState, Observation
from equipoise.policies.registry import make_policy

SEED = 20240611
CASES = 200
POLICIES = ("s4(mode=optimal)", "s4", "fifo")
PAGE = Path(__file__).parents[2] / "docs" / "brute-force.md"
Case = Mapping[str, Any]
Start = tuple[int, ...]  # GPUs by node


@dataclass(frozen=True)
class Static(AllocationStage):
    """Starts job order[k] on the GPUs starts[order[k]] (by node) as soon as these are free."""

    name: ClassVar[str] = "static-start"
    order: ClassVar[str] = "as given"
    blocking: ClassVar[str] = "strict by GPU"
    preemption: ClassVar[str] = "never"
    jobs: tuple[int, ...] = ()
    starts: tuple[Start, ...] = ()

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start all jobs whose GPUs are free and that no earlier job of the order still waits for."""
        o = observation
        free, entries = o.nodes.gpus_free.copy(), []
        for job in self.jobs:
            if job >= len(o.jobs) or o.jobs.state[job] != JobState.WAITING:
                if job >= len(o.jobs):  # it has not arrived: what it will take is kept for it
                    free -= np.array(self.starts[job])
                continue
            wanted = np.array(self.starts[job])
            if (free >= wanted).all():
                entries.append((job, _gpus(o, wanted, [g for _, given in entries for g in given])))
            free -= wanted
        if not entries:
            return plan, memory
        return plan.with_(allocation=Allocation.of(entries)), memory


def _gpus(o: Observation, wanted: Any, taken: Sequence[int]) -> list[int]:
    found: list[int] = []
    for node, count in enumerate(wanted.tolist()):
        idle = np.flatnonzero((o.gpus.node == node) & (o.gpus.job == -1))
        found += [g for g in idle.tolist() if g not in taken][:count]
    return found


def make_case(number: int) -> dict[str, Any]:
    """One random case, always the same for the same number."""
    rng = np.random.default_rng((SEED, number))
    nodes = [
        {
            "name": "n",
            "count": int(rng.integers(1, 4)),
            "gpus": int(rng.integers(1, 3)),
            "nic": f"{rng.choice([1, 10])} Gbit/s",
            "fabric": "40 GB/s",
        }
    ]
    total = nodes[0]["count"] * nodes[0]["gpus"]
    models, jobs = {}, []
    for k in range(int(rng.integers(1, 4))):
        models[f"m{k}"] = {
            "fixed_time": "2 ms",
            "sample_time": "2 ms",
            "parameters": 1e6,
            "gradient": f"{10 ** rng.uniform(6, 8.3):.0f} B",
            "overlap": float(rng.choice([1.0, 2.0])),
            "exchange": {"alpha": "30 us", "rate": nodes[0]["nic"]},
        }
        batch = int(rng.choice([32, 64, 128]))
        steps = max(1, round(10 ** rng.uniform(2, 3.6) / (batch * 2e-3)))  # 100 s to 4,000 s on one GPU
        fewest = int(rng.integers(1, total + 1)) if rng.random() < 0.3 else 1
        most = fewest if rng.random() < 0.2 else total
        arrival = 0.0 if rng.random() < 0.5 else float(np.round(rng.uniform(0, 600)))
        jobs.append(
            {
                "name": f"j{k}",
                "arrival": arrival,
                "gpus": int(rng.integers(fewest, most + 1)),
                "model": f"m{k}",
                "steps": steps,
                "global_batch": batch,
                "workers_min": fewest,
                "workers_max": most,
            }
        )
    jobs.sort(key=lambda job: job["arrival"])
    return {
        "schema_version": 1,
        "name": f"tiny-{number}",
        "cluster": {"nodes": nodes},
        "workload": {"models": models, "jobs": jobs},
        "decide": {"every": "60 s"},
        "restart": {"initialisation": "20 s"},
    }


def mean_completion_s(case: Case, policy: Policy) -> float:
    """Mean time from arrival to end of all jobs, over a whole run."""
    made = run(case, policy=policy)
    spans = made.jobs["completion_s"] - made.jobs["arrival_s"]
    assert np.isfinite(spans).all(), (case["name"], policy.name)
    return float(spans.mean())


def starts_of(case: Case, job: Mapping[str, Any]) -> list[Start]:
    """All GPUs that a job may be started on, by node; of equal nodes the first take no fewer."""
    group = case["cluster"]["nodes"][0]
    every = itertools.product(range(group["gpus"] + 1), repeat=group["count"])
    return [start for start in every if job["workers_min"] <= sum(start) <= job["workers_max"]]


def alone_s(case: Case, k: int) -> dict[Start, float]:
    """How long job k takes on each choice of GPUs, by shape: nodes are alike."""
    job, found = case["workload"]["jobs"][k], {}
    for start in starts_of(case, job):
        shape = tuple(sorted(start, reverse=True))
        if shape not in found:
            single = {**case["workload"], "jobs": [{**job, "arrival": 0.0}]}
            found[shape] = mean_completion_s(
                {**case, "workload": single}, Policy("static", (Static(jobs=(0,), starts=(shape,)),))
            )
    return found


def bounded(case: Case) -> Iterator[tuple[float, tuple[int, ...], tuple[Start, ...]]]:
    """(mean completion if jobs did not slow each other, order, GPUs) of every static start."""
    jobs = case["workload"]["jobs"]
    alone = [alone_s(case, k) for k in range(len(jobs))]
    group = case["cluster"]["nodes"][0]
    for starts in itertools.product(*(starts_of(case, job) for job in jobs)):
        lasts_s = [alone[k][tuple(sorted(start, reverse=True))] for k, start in enumerate(starts)]
        for order in itertools.permutations(range(len(jobs))):
            held: list[tuple[float, Start]] = []
            total, fits = 0.0, True
            for k in order:
                begin_s = _begin_s(held, starts[k], group["gpus"], jobs[k]["arrival"])
                held.append((begin_s + lasts_s[k], starts[k]))
                total += begin_s + lasts_s[k] - jobs[k]["arrival"]
            if fits:
                yield total / len(jobs), order, starts


def _begin_s(held: Sequence[tuple[float, Start]], start: Start, size: int, arrival_s: float) -> float:
    """When all of the GPUs are free after those who come first in the order."""
    for time_s in sorted({arrival_s, *(end_s for end_s, _ in held if end_s > arrival_s)}):
        used = [sum(s[n] for end_s, s in held if end_s > time_s) for n in range(len(start))]
        if all(u + s <= size for u, s in zip(used, start, strict=True)):
            return time_s
    return math.inf


def best_static_s(case: Case) -> float:
    """The least mean completion time (s) of all static starts."""
    best_s = math.inf
    for bound_s, order, starts in sorted(bounded(case)):
        if bound_s >= best_s * (1.0 - 1e-9):
            break
        best_s = min(best_s, mean_completion_s(case, Policy("static", (Static(jobs=order, starts=starts),))))
    return best_s


def ratios(numbers: Sequence[int], policies: Sequence[str] = POLICIES) -> dict[str, list[float]]:
    """Mean completion time over that of the best static start, by policy, in the order of the cases."""
    found: dict[str, list[float]] = {policy: [] for policy in policies}
    for number in numbers:
        case = make_case(number)
        best_s = best_static_s(case)
        for policy in policies:
            found[policy].append(mean_completion_s(case, make_policy(policy)) / best_s)
    return found


def table(found: Mapping[str, Sequence[float]]) -> str:
    """Markdown: quantiles of the ratios by policy."""
    lines = ["| policy | mean | median | 95 % of cases at most | worst | case |", "|---|---|---|---|---|---|"]
    for policy, values in found.items():
        ordered = sorted(values)
        at = ordered[math.ceil(0.95 * len(ordered)) - 1]
        worst = int(np.argmax(values))
        numbers = (np.mean(values), np.median(values), at, max(values))
        lines.append(f"| `{policy}` | " + " | ".join(f"{n:.3f}" for n in numbers) + f" | {worst} |")
    return "\n".join(lines)


def page(text: str, cases: int) -> str:
    """The page of the documentation around the table."""
    return f"""# S4 against the best static start

Made by `python -m tests.bench.brute_force --write`; do not edit.

{cases} random cases of up to 3 jobs and 6 GPUs, half of the jobs there from the start, half arriving within ten
minutes; after a stop or a resize a start costs 20 s. A static start gives each job its GPUs once, for good;
the best one is found by trying all, over whole runs, and knows what will arrive. The table has the mean completion
time over that of the best static start: below 1 a change has paid for itself.

{text}
"""


def main() -> None:
    """Print the table; with --write also the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--worst", type=int, default=0, help="list so many of the worst cases of each policy")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.cases)
    found = ratios(numbers)
    text = table(found)
    print(text)
    if arguments.write:
        PAGE.write_text(page(text, arguments.cases))
    for policy, values in found.items():
        worst = np.argsort(values)[::-1][: arguments.worst]
        print(policy, [(numbers[k], round(values[k], 3)) for k in worst.tolist()]) if arguments.worst else None


if __name__ == "__main__":
    main()

"""All policies on small cases: `python -m tests.bench.policies_compared` writes docs/policies-compared.md."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import api
from equipoise.sim.scenario.model import Scenario
from equipoise.study.display import digits
from equipoise.study.runs.compare import Comparison
from equipoise.study.statistics import holm, paired_p, paired_ratio
from tests.bench.speed.cases import queueing_trace, scenario

PAGE = Path(__file__).parents[2] / "docs" / "policies-compared.md"
INSIDE = (
    "none", "lb-bsp", "adacomm", "lb-bsp+adacomm", "s1+s2+s3", "s1(mode=optimal)+s2(mode=optimal)+s3(mode=optimal)",
)  # fmt: skip
QUEUE = (
    "fifo", "easy", "srtf", "las", "tiresias", "themis", "gavel", "gavel(objective=makespan)", "pollux", "sia",
    "s4", "s4(mode=optimal)",
)  # fmt: skip
COLUMNS = ("completion_mean_s", "completion_p99_s", "makespan_s", "goodput_ratio", "cost_usd", "waste_usd")
HEAD = """# The field's policies, compared

Made by `python -m tests.bench.policies_compared --seeds {seeds}`; do not edit.

Every policy meets the same arrivals, faults and noise. `mean`, `p99` and `makespan` are of completion, in minutes;
the ratio is that of the mean to the best policy of others (the row "best"), paired by seed; p is two-sided, paired,
on log ratios, after Holm over the rows of the case. `bound` is the mean over what no policy can beat. The cases are
small versions: queues with quotas and the fairness of users are not in them.

srtf and sia know no bound on waiting: a job may wait as long as others come.
"""


def cases() -> list[tuple[str, str, Any, Any, tuple[str, ...]]]:
    """(title, what it is, scenario, trace, policies)."""
    return [
        ("types-of-work", "36 GPUs of three kinds, 90 jobs.", _noisy("gavel-three-kinds"), None, QUEUE),
        ("queue-with-faults", "48 GPUs, 300 jobs, heavy tail, crashes.", _faulty(), queueing_trace(300), QUEUE),
        ("congested-core", "Two jobs on 16 nodes, jitter, a congested core.", _named("congested"), None, INSIDE),
        ("uneven-job", "One job on eight uneven nodes (`quickstart`).", _named("quickstart"), None, INSIDE),
        ("three-kinds", "52 GPUs of three kinds, 36 elastic jobs.", _noisy("sia-three-kinds"), None, QUEUE),
    ]  # fmt: skip


def _named(name: str) -> Scenario:
    return api.load(f"scenarios/{name}.yaml")


def _noisy(name: str) -> Scenario:
    """With estimates that are off and steps that vary, so that seeds differ."""
    changes = ("decide.estimate_error=0.3", "noise.step_cov=0.05", "faults.crash.mtbf=400 h")
    return api.load(f"scenarios/{name}.yaml", changes)


def _faulty() -> Scenario:
    return scenario(
        cluster={"nodes": [{"count": 12, "gpus": 4, "accelerator": "v100_sxm2_32gb"}]},
        decide={"estimate_error": 0.3}, faults={"crash": {"mtbf": "200 h"}},
    )  # fmt: skip


def table(found: Comparison) -> str:
    """Rows by mean completion time, the best policy of others named."""
    own = [p for p in found.policies if not p.startswith(("s1", "s4"))]
    mean = {p: np.array([r.metrics["completion_mean_s"] for r in found.of(p)]) for p in found.policies}
    best = min(own, key=lambda p: float(mean[p].mean()))
    tested = [p for p in found.policies if p != best]
    raw = np.array([paired_p(mean[p], mean[best]) for p in tested])
    adjusted = dict(zip(tested, holm(np.nan_to_num(raw, nan=1.0)), strict=True))
    lines = [
        "| policy | mean | p99 | makespan | goodput | cost | waste | bound | ratio | p |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for policy in sorted(found.policies, key=lambda p: float(mean[p].mean())):
        values = [float(np.mean([r.metrics[c] for r in found.of(policy)])) for c in COLUMNS]
        shown = [_minutes(v) for v in values[:3]] + [f"{100 * values[3]:.1f} %", *map(_money, values[4:])]
        over = values[0] / found.bound.completion_mean_s
        ratio = paired_ratio(mean[policy], mean[best])
        half = "" if math.isnan(ratio.low) else f" ({digits(ratio.low)} to {digits(ratio.high)})"
        tail = ["best", ""] if policy == best else [f"x{digits(ratio.mean)}{half}", f"{adjusted[policy]:.2g}"]
        lines.append(f"| `{policy}` | {' | '.join([*shown, digits(over), *tail])} |")
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    return digits(seconds / 60.0)


def _money(usd: float) -> str:
    return "-" if math.isnan(usd) else f"{digits(usd)} USD"


def write(seeds: int, jobs: int) -> None:
    """The whole page, case by case: one that is stopped says what it lacks."""
    parts, left = [HEAD.format(seeds=seeds)], cases()
    while left:
        title, what, case, trace, policies = left.pop(0)
        found = api.compare(case, policies, seeds, trace=trace, jobs=jobs)
        n = len(found.seeds)
        parts += [f"## {title}\n", f"{what} {n} seed{'s' * (n > 1)}.\n", table(found) + "\n"]
        parts += [f"- {line}" for line in found.failures]
        missing = ", ".join(name for name, *_ in left)
        PAGE.write_text(
            "\n".join([*parts, f"Not made yet: {missing}.\n"] if left else parts), encoding="utf-8"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    write(asked.seeds, asked.jobs)

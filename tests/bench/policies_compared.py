"""All policies on five cases: `python -m tests.bench.policies_compared --out FOLDER` writes the page.

Runs are kept in the folder, so that a second call goes on where the first was stopped. Seeds are added in steps,
case by case, and docs/policies-compared.md is written anew after each: it says how many each case has.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import api, studies
from equipoise.formats.text.columns import Text
from equipoise.policies.observation import Floats
from equipoise.policies.registry import make_stage
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.traces.trace import Trace, make_trace
from equipoise.study.display import digits
from equipoise.study.runs.comparison import Comparison
from equipoise.study.statistics import holm, paired_p, paired_ratio
from tests.bench.speed.cases import queueing_trace, scenario

PAGE = Path(__file__).parents[2] / "docs" / "policies-compared.md"
STEPS = (2, 3, 5, 10)  # seeds
STAGES = "s1{0}+s2{0}+s3{0}+s4{0}"
INSIDE = (
    "none",
    "lb-bsp",
    "adacomm",
    "lb-bsp+adacomm",
    "hierarchical-local-sgd",
    "diloco",
    STAGES.format(""),
    STAGES.format("(mode=optimal)"),
)
FREE = "reserve_after_s=1e12,longest_wait_s=1e12"  # s4 without its bound on waiting
RIGID = (
    "fifo",
    "easy",
    "srtf",
    "las",
    "tiresias",
    "themis",
    "gavel",
    "drf",
    "shockwave-like",
    "s4",
    "s4(mode=optimal)",
    f"s4({FREE})",
    f"s4(mode=optimal,{FREE})",
)
QUEUE = (*RIGID, "gavel(objective=makespan)", "pollux", "sia")
COLUMNS = (
    "completion_mean_s",
    "completion_p99_s",
    "makespan_s",
    "goodput_ratio",
    "fairness_user",
    "cost_usd",
    "waste_usd",
)
HEAD = """# The field's policies, compared

Made by `python -m tests.bench.policies_compared --out FOLDER`; do not edit.

Every policy meets the same arrivals, faults and noise. `mean`, `p99` and `makespan` are of completion, in
minutes; `fair` is Jain's index over users, where there are any; `cost` and `waste` are of GPU hours at their list
price. `bound` is the mean over what no policy can beat. The ratio is that of the mean to the best policy of others
(the row "best"), paired by seed, with its 95 % interval; p is two-sided, paired, on log ratios, after Holm over the
rows of the case. With few seeds both say little.

`starves` says whether the policy bounds how long a job waits: srtf, sia and others do not, and what they are ahead
of one that does is the price of the bound. sia, pollux and gavel move jobs between GPUs at the end of each round.

Below each table stands every policy of others that is ahead of s1-s4 in mean completion. All read the same
observation with the same estimates. One with the same bound on waiting, or a stricter one, that is more than 5 %
ahead shows a defect of s1-s4; what differs is told by mode.
"""
_LIMIT = 1.05  # ahead by more than this, with the same bound on waiting, shows a defect


@dataclass(frozen=True)
class Case:
    """One section of the page."""

    title: str
    what: str
    scenario: Scenario
    policies: Sequence[str]
    trace: Trace | None = None
    without: str = ""
    differs: Mapping[str, str] = field(default_factory=dict)  # why s4 may lose here, by its mode


def cases() -> list[Case]:
    """The five cases, quickest first."""
    return [
        Case(
            "three-kinds-160",
            "64 GPUs of three kinds, 160 jobs of three types of work, estimates off by 0.3.",
            _three_kinds(),
            QUEUE,
            differs=_THREE_KINDS,
        ),
        Case(
            "uneven-job", "One job on eight uneven nodes (`quickstart`).", api.load("scenarios/quickstart.yaml"), INSIDE
        ),
        Case("congested-core", "Four jobs on 32 nodes, jitter, a congested core.", _congested(), INSIDE),
        Case(
            "month-with-quotas",
            "48 GPUs, 5,000 jobs of up to four days in a month, a load of 95 %, "
            "of four teams that submit 40, 30, 20 and 10 % of them; each has a quota of 12 GPUs, and may lend it.",
            _quotas(),
            RIGID,
            _teams(5000, 48),
            _LEFT_OUT,
            _FIXED_SIZES,
        ),
        Case(
            "week-with-faults",
            "400 GPUs, 4,200 gangs of 1 to 32 GPUs in a week, each up to four days long, 40 % "
            "more work than the GPUs can do in it; GPUs crash every 2,000 h.",
            _week(),
            RIGID,
            _gangs(4200),
            _LEFT_OUT,
            _FIXED_SIZES,
        ),
    ]


_LEFT_OUT = "pollux and sia are left out: no job here can change its size, and there is one kind of GPU."
_THREE_KINDS = {
    "formula": "the formula gives GPU models to jobs by a local search; sia solves one integer programme over all "
    "jobs, each minute, without regard to what a restart costs. Without guard, patience or demand nothing changes; "
    "with A_i alone for weight, in place of sqrt(p_i A_i), it loses 10 %.",
    "optimal": "both solve an integer programme over models and sizes; sia does so each minute without regard to "
    "what a restart costs, s4 changes a running job only where that gains more than its restart costs.",
}
_FIXED_SIZES = {
    "formula": "its order weighs the time waited beside the remaining time, srtf's the remaining time alone.",
    "optimal": "no job can change its size here and GPUs are of one model, so the integer programme only says who "
    "runs, by what it gains in the next half hour; srtf orders by the time that remains until the end of each job.",
}
_ESTIMATES = {"estimate_error": 0.3}


def _three_kinds() -> Scenario:
    """`gavel-three-kinds` at 64 GPUs and 160 jobs; estimates are off and GPUs crash, so that seeds differ."""
    sizes = [f"cluster.nodes.{k}.count={n}" for k, n in enumerate((5, 6, 5))]
    jobs = [f"workload.jobs.{k}.count={n}" for k, n in enumerate((71, 53, 36))]
    pace = [f"workload.jobs.{k}.spacing={n} s" for k, n in enumerate((304, 405, 608))]
    noise = ["decide.estimate_error=0.3", "faults.crash.mtbf=400 h"]
    return api.load("scenarios/gavel-three-kinds.yaml", [*sizes, *jobs, *pace, *noise])


def _congested() -> Scenario:
    more = ["cluster.nodes.0.count=32", "workload.jobs.0.count=4", "workload.jobs.0.steps=600"]
    return api.load("scenarios/congested.yaml", more)


def _week() -> Scenario:
    nodes = [{"count": 50, "gpus": 8, "accelerator": "v100_sxm2_32gb"}]
    return scenario(cluster={"nodes": nodes}, decide=_ESTIMATES, faults={"crash": {"mtbf": "2000 h"}})


def _quotas() -> Scenario:
    nodes = [{"count": 12, "gpus": 4, "accelerator": "v100_sxm2_32gb"}]
    teams = [{"name": f"team-{k}", "cohort": "all", "gpus": 12} for k in range(4)]
    return scenario(cluster={"nodes": nodes}, decide=_ESTIMATES, queues={"cohorts": [{"name": "all"}], "queues": teams})


def _teams(jobs: int, gpus: int) -> Trace:
    """The same jobs, of four teams that submit 40, 30, 20 and 10 % of them."""
    trace = _at_most(queueing_trace(jobs, gpus), 345600.0, gpus, 0.95)
    team = np.random.default_rng(20260103).choice(4, p=[0.4, 0.3, 0.2, 0.1], size=jobs)
    column = Text(team, tuple(f"team-{k}" for k in range(4)))
    return make_trace(
        trace.job_id,
        trace.arrival_s,
        trace.gpus,
        trace.duration_s,
        source="bench",
        columns={"user": column, "queue": column},
    )


def _gangs(jobs: int) -> Trace:
    """Jobs of a research cluster: most are small, and most of the GPU time goes to gangs of 8 and more."""
    trace = queueing_trace(jobs, 400)
    gpus = 2 ** np.random.default_rng(20260104).choice(6, p=[0.55, 0.1, 0.12, 0.15, 0.05, 0.03], size=jobs)
    wide = make_trace(trace.job_id, trace.arrival_s, gpus, trace.duration_s, source="bench")
    return _at_most(wide, 345600.0, 400, 1.4)


def _at_most(trace: Trace, longest_s: float, gpus: int, load: float) -> Trace:
    """The same jobs, none longer than this; they come so fast that the cluster has `load` times what it can do."""
    duration_s = np.minimum(trace.duration_s, longest_s)
    span_s = float((duration_s * trace.gpus).sum()) / (load * gpus)
    arrival_s = np.round(trace.arrival_s * (span_s / trace.arrival_s.max()))
    return make_trace(trace.job_id, arrival_s, trace.gpus, duration_s, source="bench")


def price_of_the_bound(found: Comparison) -> list[str]:
    """One line for each mode of s4: its mean and its longest wait with its bound on waiting over those without."""
    lines = []
    for bound, free in (("s4", f"s4({FREE})"), ("s4(mode=optimal)", f"s4(mode=optimal,{FREE})")):
        if not {bound, free} <= set(found.policies):
            continue
        ratio = {
            metric: paired_ratio(*([r.metrics[metric] for r in found.of(p)] for p in (bound, free))).mean
            for metric in ("completion_mean_s", "completion_p99_s")
        }
        lines.append(
            f"- The price of the bound on waiting, `{bound}` over itself without: mean "
            f"x{digits(ratio['completion_mean_s'])}, p99 x{digits(ratio['completion_p99_s'])}."
        )
    return lines


def means(found: Comparison) -> dict[str, Floats]:
    """Mean completion time (s) by policy, (seeds,)."""
    return {p: np.array([r.metrics["completion_mean_s"] for r in found.of(p)]) for p in found.policies}


def losses(found: Comparison, differs: Mapping[str, str]) -> list[str]:
    """A line for each pair of a form of s1-s4 and a policy of others that is ahead of it, then what differs."""
    mean, lines, modes = means(found), [], []
    order = sorted(found.policies, key=lambda p: float(mean[p].mean()))
    for policy in filter(_own, order):
        for other in order[: order.index(policy)]:
            if _own(other):
                continue
            ratio = paired_ratio(mean[policy], mean[other])
            span = "" if math.isnan(ratio.low) else f" ({digits(ratio.low)} to {digits(ratio.high)})"
            lines.append(
                f"- `{policy}` loses to `{other}`: x{digits(ratio.mean)}{span}; "
                f"{_verdict(policy, other, ratio.mean, ratio.low)}."
            )
            modes.append("optimal" if "mode=optimal" in policy else "formula")
    if not lines:
        return ["- s1-s4 loses to none of the others in mean completion."]
    return lines + [
        f"- What differs in mode {mode}: {differs.get(mode, 'not known yet.')}" for mode in dict.fromkeys(modes)
    ]


def _own(policy: str) -> bool:
    return policy.startswith(("s1", "s4"))


def _verdict(policy: str, other: str, ratio: float, low: float) -> str:
    """What a loss is by the bounds on waiting of the two, to the digits that are printed."""
    sure = "" if math.isnan(low) or low > 1.0 else ", and no difference can be told"
    if starves(policy) == "no" and starves(other) == "may":
        return f"it bounds how long a job waits, the other does not{sure}"
    same = {"no": "the other bounds how long a job waits", "may": "neither bounds how long a job waits"}.get(
        starves(other), "no job waits here"
    )
    over = "more than 5 %: a defect" if float(digits(ratio)) > _LIMIT else "at most 5 %"
    return f"{same}, {over}{sure}"


def table(found: Comparison) -> str:
    """Rows by mean completion time, the best policy of others named."""
    mean = means(found)
    best = min((p for p in found.policies if not _own(p)), key=lambda p: float(mean[p].mean()))
    tested = [p for p in found.policies if p != best]
    raw = np.array([paired_p(mean[p], mean[best]) for p in tested])
    adjusted = dict(zip(tested, holm(np.nan_to_num(raw, nan=1.0)), strict=True))
    lines = [
        "| policy | mean | p99 | makespan | goodput | fair | cost | waste | bound | ratio | p | starves |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for policy in sorted(found.policies, key=lambda p: float(mean[p].mean())):
        values = [float(np.mean([r.metrics.get(c, math.nan) for r in found.of(policy)])) for c in COLUMNS]
        shown = [digits(v / 60.0) for v in values[:3]] + [f"{100 * values[3]:.1f} %"]
        shown += [_known(values[4], ""), *(_known(v, " USD") for v in values[5:])]
        over = values[0] / found.bound.completion_mean_s
        ratio = paired_ratio(mean[policy], mean[best])
        half = "" if math.isnan(ratio.low) else f" ({digits(ratio.low)} to {digits(ratio.high)})"
        tail = ["best", ""] if policy == best else [f"x{digits(ratio.mean)}{half}", f"{adjusted[policy]:.2g}"]
        lines.append(f"| `{policy}` | {' | '.join([*shown, digits(over), *tail, starves(policy)])} |")
    return "\n".join(lines)


def starves(policy: str) -> str:
    """Whether its last stage says that nobody starves."""
    if FREE in policy:
        return "may"
    if policy == "none":
        return ""
    text = str(getattr(make_stage(policy.split("+")[-1].split("(")[0]), "starvation", ""))
    return "" if not text else "no" if text.startswith("never") else "may"


def _known(value: float, unit: str) -> str:
    return "-" if math.isnan(value) else f"{digits(value)}{unit}"


def write(out: Path, steps: Sequence[int], wanted: Sequence[str], jobs: int) -> None:
    """The whole page, again after each case and number of seeds."""
    done: dict[str, str] = {}
    todo = cases()
    for seeds in steps:
        for case in todo:
            if wanted and case.title not in wanted:
                continue
            kept = out / case.title
            found = studies.compare(case.scenario, case.policies, seeds, trace=case.trace, out=kept, jobs=jobs)
            n = len(found.seeds)
            lines = [f"## {case.title}\n", f"{case.what} {n} seed{'s' * (n > 1)}. {case.without}".rstrip() + "\n"]
            told = [*price_of_the_bound(found), *losses(found, case.differs)]
            lines += [table(found), "", *told, *(f"- {line}" for line in found.failures)]
            done[case.title] = "\n".join(lines) + "\n"
            missing = ", ".join(other.title for other in todo if other.title not in done)
            tail = [f"Not made yet: {missing}.\n"] if missing else []
            parts = [HEAD, *(done[other.title] for other in todo if other.title in done), *tail]
            PAGE.write_text("\n".join(parts), encoding="utf-8")


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(STEPS))
    parser.add_argument("--case", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    asked: Any = parser.parse_args()
    write(asked.out, asked.seeds, asked.case, asked.jobs)


if __name__ == "__main__":
    main()

"""The headline of a report: what was compared, what won by how much, what wastes most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.study.display import digits, show
from equipoise.study.report.study import Study
from equipoise.study.statistics import Interval

WASTED = {
    "idle_ratio": "GPUs that no job held",
    "input_stall_ratio": "waiting for training data",
    "barrier_wait_ratio": "waiting for slower workers",
    "exposed_communication_ratio": "gradient exchange that computing did not hide",
    "pipeline_bubble_ratio": "pipeline stages that wait for each other",
    "tensor_exchange_ratio": "exchanges between the GPUs of one replica",
    "restart_ratio": "restarts and checkpoints",
    "lost_to_faults_ratio": "work that faults took back",
}
_NOUNS = {"makespan_s": "makespan", "completion_mean_s": "mean completion time"}


@dataclass(frozen=True)
class Sentence:
    """One statement; `strong` is its weight in the headline: the first is the answer."""

    text: str
    strong: bool = False


def headline(study: Study) -> list[Sentence]:
    """The answer first, then what it rests on."""
    if study.kind == "run" and study.failures:
        return [Sentence(f"The run did not end: {study.failures[0].error}.", True)]
    if not study.rows:
        return [Sentence("No run ended with a result.", True), *_trouble(study)]
    told = [Sentence(_alone(study), True)] if len(study.policies) == 1 else _compared(study)
    return [*told, *_waste(study), *_money(study), *_trouble(study)]


def best_policy(study: Study) -> str:
    """The policy with the smallest main metric among those that complete most jobs."""
    done = {policy: _done_share(study, policy) for policy in study.policies}
    most = max((share for share in done.values() if not math.isnan(share)), default=math.nan)
    able = [p for p in study.policies if not done[p] < most - 1e-12] or list(study.policies)
    return min(able, key=lambda p: (_last_if_nan(study.mean(study.main_metric, p)), study.policies.index(p)))


def _last_if_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _done_share(study: Study, policy: str) -> float:
    jobs = study.mean("jobs", policy)
    return study.mean("completed", policy) / jobs if jobs > 0 else math.nan


def _alone(study: Study) -> str:
    policy = study.policies[0]
    metric = study.main_metric
    value = show(metric, study.mean(metric, policy))
    jobs, done = study.mean("jobs", policy), study.mean("completed", policy)
    if math.isnan(study.mean(metric, policy)):
        return f"Under {policy}, no job was completed."
    subject = (
        "the job finishes in"
        if jobs == 1
        else f"the mean completion time of {done:.0f} of {jobs:.0f} jobs is"
    )
    return f"Under {policy}, {subject} {value}."


def _compared(study: Study) -> list[Sentence]:
    metric, best = study.main_metric, best_policy(study)
    noun, first = _NOUNS[metric], study.policies[0]
    value = show(metric, study.mean(metric, best), _half(study, metric, best))
    ranked = sorted(
        (p for p in study.policies if p != best), key=lambda p: _last_if_nan(study.mean(metric, p))
    )
    if math.isnan(study.mean(metric, best)):
        return [Sentence("No policy completed a job.", True)]
    second = ranked[0]
    other = second if best == first else first
    behind = (
        study.versus(second, best, metric) if best == first else _inverse(study.versus(best, first, metric))
    )
    clear, why = _certainty(study, metric, best, second, other)
    lead = f"{best} has the shortest {noun}, {value}" + ("" if clear else ", but not surely")
    if why.endswith("every seed."):
        lead = f"{best} and {second} have the same {noun}, {value}"
    gap = (
        ""
        if behind.mean == behind.low == behind.high == 1.0
        else f": {other} takes {_times(behind, study.level)}"
    )
    told = [Sentence(f"{lead}{gap}.", True)]
    told += [Sentence(why)] if why else []
    row = study.row(metric, best)
    if row is not None and row.over_bound > 0:
        limit = "a bound that leaves noise out" if study.noise_free else "what no policy can beat"
        told.append(Sentence(f"That is {digits(row.over_bound)} times {limit}."))
    return told


def _half(study: Study, metric: str, policy: str) -> float:
    row = study.row(metric, policy)
    return row.value.half_width if row is not None else math.nan


def _inverse(ratio: Interval) -> Interval:
    """The ratio the other way round. A bound that is not above 0 has no inverse: the interval is unknown."""
    low, high = ratio.low, ratio.high
    if not (low > 0 and high > 0):
        low = high = math.nan
    mean = 1 / ratio.mean if ratio.mean > 0 else math.nan
    return Interval(mean, 1 / high, 1 / low, ratio.n)


def _times(ratio: Interval, level: float) -> str:
    if math.isnan(ratio.mean):
        return "an unknown multiple of it"
    text = f"{digits(ratio.mean)} times as long"
    if math.isfinite(ratio.low) and math.isfinite(ratio.high):
        text += f" ({100 * level:g} % interval {digits(ratio.low)} to {digits(ratio.high)})"
    return text


def _certainty(study: Study, metric: str, best: str, second: str, told: str) -> tuple[bool, str]:
    """Whether the best is told apart from the next best, and that in words; `told` is compared already."""
    ratio = study.versus(second, best, metric)
    if ratio.mean == 1.0 and ratio.low == ratio.high == 1.0:
        return False, f"{second} does exactly as well on every seed."
    if not (math.isfinite(ratio.low) and math.isfinite(ratio.high)):
        few = "One seed was run" if study.seeds == 1 else "Too few seeds were run"
        return False, f"{few}, so nothing says how much of this is chance."
    near = (
        ""
        if second == told
        else f"On the same seeds the next best, {second}, takes {_times(ratio, study.level)}. "
    )
    if ratio.low > 1:
        return True, near.strip()
    return (
        False,
        f"{near}1 is inside the interval, so more seeds are needed to tell {best} and {second} apart.",
    )


def _waste(study: Study) -> list[Sentence]:
    """What takes most of the GPU time that trains nothing, under the best and under the first policy."""
    told = []
    best = best_policy(study)
    for policy in dict.fromkeys((best, study.policies[0])):
        shares = {metric: study.mean(metric, policy) for metric in WASTED}
        known = {metric: share for metric, share in shares.items() if share > 0}
        if not known:
            continue
        worst = max(known, key=lambda metric: known[metric])
        told.append(
            f"Under {policy}, {show('x_ratio', known[worst])} of all GPU time goes to {WASTED[worst]}"
            f"{_next(known, worst)}."
        )
    return [Sentence(text) for text in told]


def _money(study: Study) -> list[Sentence]:
    """What the work costs under the best and under the first policy, where prices are known."""
    told = []
    for policy in dict.fromkeys((best_policy(study), study.policies[0])):
        cost, wasted = study.mean("cost_usd", policy), study.mean("waste_usd", policy)
        if math.isfinite(cost):
            lost = f", of which {show('waste_usd', wasted)} trained nothing that lasted" if wasted > 0 else ""
            told.append(Sentence(f"Under {policy}, it costs {show('cost_usd', cost)}{lost}."))
    return told


def _next(known: dict[str, float], worst: str) -> str:
    others = sorted((m for m in known if m != worst), key=lambda m: -known[m])[:1]
    return "".join(f", {show('x_ratio', known[m])} to {WASTED[m]}" for m in others)


def _trouble(study: Study) -> list[Sentence]:
    told = []
    if study.failed:
        runs = "1 run" if study.failed == 1 else f"{study.failed} runs"
        told.append(
            Sentence(f"{runs} failed and {'is' if study.failed == 1 else 'are'} not in these numbers.")
        )
    left = [p for p in study.policies if _done_share(study, p) < 1 - 1e-12]
    if left:
        told.append(Sentence(_undone(study, left)))
    return told


def _undone(study: Study, policies: Sequence[str]) -> str:
    parts = [
        f"{p} completes {digits(study.mean('completed', p))} of {digits(study.mean('jobs', p))} jobs"
        for p in policies
    ]
    return f"{'; '.join(parts)}. Completion times count completed jobs only."

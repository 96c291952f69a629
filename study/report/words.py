"""The headline of a report: the best policy, its margin, the certainty, and the largest waste."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.study.display import digits, show
from equipoise.study.report.study import Point, Study
from equipoise.study.runs.answer import losses, of_run
from equipoise.study.sure import scenario_of_config

NOUNS = {"makespan_s": "makespan", "completion_mean_s": "mean completion time"}
FLAT = 0.02
"""Points within this share of the best count as good as the best."""


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
    best = best_point(study)
    if best is not None:
        told = _swept(study, best)
    else:
        told = _alone(study) if len(study.policies) == 1 else [*_compared(study), *_waste(study)]
    return [*told, *_trouble(study)]


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


def _alone(study: Study) -> list[Sentence]:
    policy = study.policies[0]
    means = {row.metric: row.value.mean for row in study.rows if row.policy == policy}
    return [Sentence(text, k == 0) for k, text in enumerate(of_run(means, policy, scenario_of_config(study.config)))]


# -- a comparison ----------------------------------------------------------------------------------------------


def _compared(study: Study) -> list[Sentence]:
    metric, best = study.main_metric, best_policy(study)
    if math.isnan(study.mean(metric, best)):
        return [Sentence("No policy completed a job.", True)]
    value = show(metric, study.mean(metric, best))
    told = [Sentence(study.answer or f"{best} has the shortest {NOUNS[metric]}, {value}.", True)]
    if study.exact:
        told.append(Sentence("Nothing in this scenario is random: the numbers are exact for this trace."))
    elif study.seeds == 1:
        told.append(Sentence(f"One {study.unit} was run, so the effect of chance is unknown."))
    row = study.row(metric, best)
    if row is not None and row.over_bound > 0:
        noise = " (without noise)" if study.noise_free else ""
        told.append(Sentence(f"{best} takes {digits(row.over_bound)}x the lower bound{noise}."))
    return told


# -- a sweep ---------------------------------------------------------------------------------------------------


def best_point(study: Study) -> Point | None:
    """The point and policy of a sweep with the smallest main metric; None where there is one point only."""
    known = [p for p in study.points if math.isfinite(p.means.get(study.main_metric, math.nan))]
    if len({p.number for p in known}) < 2:
        return None
    return min(known, key=lambda p: (p.means[study.main_metric], p.number))


def _swept(study: Study, best: Point) -> list[Sentence]:
    """The best point, the flatness around it, and the most important parameter."""
    metric = study.main_metric
    value = best.means[metric]
    told = [Sentence(f"Shortest {NOUNS[metric]}: {show(metric, value)}, {best.policy} at {_values(best)}.", True)]
    means = [p.means.get(metric, math.nan) for p in study.points]
    near = sum(mean <= value * (1 + FLAT) for mean in means)
    worst = max(mean for mean in means if math.isfinite(mean))
    also = "No other is" if near == 1 else f"{near - 1} other{'s are' if near > 2 else ' is'}"
    told.append(
        Sentence(
            f"{len(means)} combinations of point and policy were run. {also} within {100 * FLAT:g} % of the best; "
            f"the worst takes {digits(worst / value)} times as long."
        )
    )
    effects = importance(study)
    if effects:
        listed = ", ".join(f"{key} {digits(factor)}x" for key, factor in effects[:4])
        told.append(Sentence(f"What matters most, as worst over best value, averaged over all else: {listed}."))
    return told


def importance(study: Study) -> list[tuple[str, float]]:
    """(varied key, worst over best mean of the main metric over its values), the largest first."""
    effects = []
    for trend in study.trends:
        means = [_mean([trend.means[p][k] for p in study.policies]) for k in range(len(trend.values))]
        known = [mean for mean in means if math.isfinite(mean) and mean > 0]
        if len(known) > 1:
            effects.append((trend.key, max(known) / min(known)))
    overall = [study.mean(study.main_metric, p) for p in study.policies]
    known = [mean for mean in overall if math.isfinite(mean) and mean > 0]
    if len(known) > 1:
        effects.append(("policy", max(known) / min(known)))
    return sorted(effects, key=lambda effect: (-effect[1], effect[0]))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _values(point: Point) -> str:
    return ", ".join(f"{key} = {value}" for key, value in point.values.items())


# -- waste, trouble --------------------------------------------------------------------------------------------


def _waste(study: Study) -> list[Sentence]:
    """The largest use of GPU time that trains nothing, under the best and under the first policy."""
    parts = []
    for policy in dict.fromkeys((best_policy(study), study.policies[0])):
        found = losses({row.metric: row.value.mean for row in study.rows if row.policy == policy})
        parts += [f"{found} under {policy}"] if found else []
    return [Sentence(f"Largest losses of GPU time: {'; '.join(parts)}.")] if parts else []


def _trouble(study: Study) -> list[Sentence]:
    told = []
    if study.failed:
        runs = "1 run" if study.failed == 1 else f"{study.failed} runs"
        told.append(Sentence(f"{runs} failed and {'is' if study.failed == 1 else 'are'} not in these numbers."))
    left = [p for p in study.policies if _done_share(study, p) < 1 - 1e-12]
    if left:
        told.append(Sentence(_undone(study, left)))
    return told


def _undone(study: Study, policies: Sequence[str]) -> str:
    done = {p: [show(metric, study.mean(metric, p)) for metric in ("completed", "jobs")] for p in policies}
    parts = [f"{p} completes {some} of {all_of} jobs" for p, (some, all_of) in done.items()]
    return f"{'; '.join(parts)}. Completion times count completed jobs only."

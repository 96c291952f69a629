"""Scenarios as options of a decision: which is fastest, which is cheapest, which others are worth choosing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from equipoise.sim.scenario.model import Scenario
from equipoise.study.display import LABELS, cluster_line, show
from equipoise.study.findings import Findings, FindingsTable
from equipoise.study.runs.comparison import Comparison
from equipoise.study.sure import above_public, between, certainty_of_times, ratio_line, rival
from equipoise.study.table import COST

Option = Mapping[str, Any]


def front(cost: Sequence[float], result: Sequence[float]) -> list[int]:
    """Which points no other point beats in both numbers (less is better), in order of cost."""
    order = sorted(range(len(cost)), key=lambda k: (cost[k], result[k]))
    kept: list[int] = []
    for k in order:
        if math.isfinite(cost[k]) and math.isfinite(result[k]) and (not kept or result[k] < result[kept[-1]]):
            kept.append(k)
    return kept


def options(scenarios: Mapping[str, Scenario], made: Mapping[str, Comparison]) -> tuple[str, list[dict[str, Any]]]:
    """(metric, options): each scenario under the first policy, with its mean time and cost; of one job the makespan."""
    done = {name: [run.metrics for run in one.of(one.policies[0])] for name, one in made.items()}
    key = "completion_mean_s" if any(run["jobs"] > 1 for runs in done.values() for run in runs) else "makespan_s"
    rows = []
    for name, runs in done.items():
        sure, row = certainty_of_times(scenarios[name]), dict[str, Any](values=name)
        for metric in (key, COST, "energy_j"):
            row[metric] = math.fsum(run.get(metric, math.nan) for run in runs) / max(1, len(runs))
            row[f"{metric} 90 %"] = between(metric, row[metric], sure.spread) if sure is not None else ""
        rows.append(row)
    return key, rows


def decision(
    scenarios: Mapping[str, Scenario], made: Mapping[str, Comparison], key: str, rows: Sequence[Option]
) -> Findings:
    """The answer, with a row for each option; key, rows: of `options`."""
    best = [rows[k]["values"] for k in front([row[COST] for row in rows], [row[key] for row in rows])]
    table = [("option", LABELS[key].strip(), "90 %", "cost", "90 %", "energy", "choice")]
    for row in rows:
        choice = "frontier" if row["values"] in best else ""
        table.append(
            (
                row["values"],
                *(text for m in (key, COST) for text in (show(m, row[m]), row[f"{m} 90 %"])),
                show("energy_j", row["energy_j"]),
                choice,
            )
        )
    ratios = [line for metric in ("makespan_s", COST) for line in _ratios(scenarios, made, metric)]
    sure = next((found for name in best if (found := certainty_of_times(scenarios[name])) is not None), None)
    fast = [f"{name}: {text}" for name, one in made.items() if (text := _too_fast(scenarios[name], one))]
    asked = [(name, cluster_line(case.cluster.model_dump(), nics=True)) for name, case in scenarios.items()]
    priced = max((n for one in made.values() for n in one.notes if n.startswith("money at ")), key=len, default="")
    asked += [("Prices", priced.removeprefix("money at ").partition(";")[0])] if priced else []
    return Findings(
        "Comparison of scenarios",
        tuple(_answer(scenarios, key, rows, best)),
        (FindingsTable("", table, (False, True, True, True, True, True, False)),),
        (*ratios, *(sure.lines() if sure is not None else ()), *fast),
        tuple(asked),
    )


def _too_fast(scenario: Scenario, made: Comparison) -> str:
    mfu = [run.metrics.get("mfu_ratio", math.nan) for run in made.of(made.policies[0])]
    return above_public(scenario, max(mfu, default=math.nan))


def _answer(scenarios: Mapping[str, Scenario], key: str, rows: Sequence[Option], best: Sequence[str]) -> Iterator[str]:
    of = {row["values"]: row for row in rows}

    def told(name: str) -> str:
        """Time and cost of an option."""
        sure = f" (90 %: {text})" if (text := of[name][f"{key} 90 %"]) else ""
        return f"{LABELS[key].strip()} {show(key, of[name][key])}{sure} for {show(COST, of[name][COST])}"

    def doubt(name: str, metric: str) -> str:
        """That another option may have less."""
        first, *others = ((n, scenarios[n], of[n][metric]) for n in sorted(of, key=lambda n: n != name))
        return rival(first, others)

    def is_best(name: str, words: str, figures: str, doubts: str) -> str:
        if not doubts:
            return f"{name} is the {words} of {len(of)}: {figures}."
        return f"By its figures {name} is the {words} of {len(of)}, {figures}; {doubts}."

    if not best:
        fastest = min(of, key=lambda name: of[name][key], default="")
        if fastest:
            figures = f"{LABELS[key].strip()} {show(key, of[fastest][key])}"
            yield is_best(fastest, "fastest", figures, doubt(fastest, key))
        return
    cheapest, fastest, between_ = best[0], best[-1], best[1:-1]
    cost, time = doubt(cheapest, COST), doubt(fastest, key)
    if cheapest == fastest:
        doubts = (
            time
            if time == cost
            else "; ".join(f"{word}: {text}" for word, text in (("fastest", time), ("cheapest", cost)) if text)
        )
        yield is_best(fastest, "fastest and the cheapest", told(fastest), doubts)
    elif not cost and not time:
        yield f"{cheapest} is the cheapest of {len(of)}: {told(cheapest)}; {fastest} the fastest: {told(fastest)}."
    else:
        yield is_best(cheapest, "cheapest", told(cheapest), cost)
        yield is_best(fastest, "fastest", told(fastest), time)
    if between_:
        yield f"In between, none beaten in both: {', '.join(between_)}."
    worse = [name for name in of if name not in best]
    if worse:
        yield f"Slower and dearer than one of these, or as much: {', '.join(worse)}."


def _ratios(scenarios: Mapping[str, Scenario], made: Mapping[str, Comparison], metric: str) -> Iterator[str]:
    """Ratios of each scenario to the first under the first policy, with their intervals, where steps are predicted."""
    found = []
    for name, one in made.items():
        values = [result.metrics[metric] for result in one.of(one.policies[0])]
        found.append((name, scenarios[name], math.fsum(values) / len(values)))
    yield from (line for other in found[1:] if (line := ratio_line(found[0], other, metric)))

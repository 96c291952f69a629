"""The answer of `size` in sentences, with its table, and as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from equipoise.sim.record import undone
from equipoise.sim.scenario.units import format_scaled, format_share
from equipoise.study.display import UNKNOWN, show
from equipoise.study.findings import Findings, FindingsTable
from equipoise.study.questions.ranking import TITLES
from equipoise.study.questions.targets import Target
from equipoise.study.questions.trials import Answer, Question, Trial, named, needed
from equipoise.study.runs.orders import policy_text
from equipoise.study.sure import above_public, as_dict, between, rival

Row = Mapping[str, Any]
_BEST = {"nodes": "fewest nodes", "price": "lowest price of an hour", "cost": "lowest cost"}


def findings(
    question: Question, answer: Answer, rows: Sequence[Row], changes: Sequence[Row], doubtful: Sequence[str]
) -> Findings:
    """What was found. rows, changes, doubtful: of `study.questions.ranking`; empty without a ranking."""
    found = answer.best or answer.closest
    sentences = _met(question, answer, changes, doubtful) if answer.best is not None else _missed(question, answer)
    ran = "1 size was run" if answer.tried == 1 else f"{answer.tried} sizes were run"
    remarks = [f"{ran}, {answer.excluded} excluded by bounds, price or power"]
    if many := len(answer.impossible):
        remarks.append(f"{many} more {'was' if many == 1 else 'were'} not possible: {answer.impossible[0]}")
    remarks += found.certainty.lines() if found is not None and found.runs and found.certainty is not None else ()
    remarks += _too_fast(answer.trials, found)
    scenario = found.candidate.scenario if found is not None else None
    policy = question.policy if isinstance(question.policy, str) else None
    asked = {
        "Targets": _wanted(question),
        "Varied": "; ".join(f"{key}: {', '.join(map(str, values[:8]))}" for key, values in question.vary.items()),
        "Best is": _BEST[question.objective],
        "Policy": policy_text(scenario, policy) if scenario is not None else "",
        "Changed first": ", ".join(question.overrides),
    }
    return Findings(
        f"Size: {scenario.name if scenario is not None else question.file.stem}",
        tuple(sentences),
        tuple(_tables(rows, question.targets, changes, doubtful)),
        tuple(remarks),
        tuple((key, text) for key, text in asked.items() if text),
    )


def _too_fast(trials: Sequence[Trial], found: Trial | None) -> Iterator[str]:
    """That no public run of the kind reached the MFU of the size found, and of how many others."""
    said = {id(t): above_public(t.candidate.scenario, t.mean("mfu_ratio")) for t in trials if t.runs}
    if text := said.pop(id(found), ""):
        yield text
    others = [t for t in trials if said.get(id(t))]
    if others:
        many = "size is" if len(others) == 1 else "sizes is"
        yield f"MFU of {len(others)} other {many} above that of any public run of the kind: look at the column MFU"


def _wanted(question: Question) -> str:
    return ", ".join(target.text for target in question.targets)


def _met(question: Question, answer: Answer, changes: Sequence[Row], doubtful: Sequence[str]) -> Iterator[str]:
    """How many nodes, how sure that is, and what would change it."""
    best, targets = answer.best, question.targets
    assert best is not None
    many, one = best.candidate.nodes, "node"
    if best.candidate.scenario.cluster.gpus is not None:  # a counted pool has no nodes
        many, one = best.candidate.scenario.cluster.gpus, "GPU"
    meet = f"1 {one} meets" if many == 1 else f"{many:,} {one}s meet"
    cost = "" if question.objective != "cost" else f", for {show('cost_usd', best.mean('cost_usd'))}"
    if best.chance(targets) < 0.5:
        meet = f"By the figures, but less likely than not, {meet}"
    if doubt := _cheaper(question, answer, best):
        cost += f" ({doubt})"
    yield f"{meet} {_wanted(question)}: {named(best.candidate.values)}, with {_results(best, targets)}{cost}."
    if answer.deterministic:
        sure = "Nothing in the scenario is random: all runs are the same"
    else:
        choice = f" (the best of {answer.sizes} sizes)" if answer.sizes > 1 else ""
        share = (
            f"so many runs prove, with 95 % confidence, that at least {100 * answer.chance_at_least:.0f} % of all do"
        )
        sure = f"{best.met} of {best.runs} runs meet the targets; {share}{choice}"
    yield f"{sure}."
    yield from _chance(best, targets)
    if answer.spares:
        are = "1 of the nodes is a spare" if answer.spares == 1 else f"{answer.spares} of the nodes are spares"
        text = f"{are}: {best.candidate.nodes - answer.spares} would be enough without faults"
        fewer = answer.without_spares
        if fewer is not None:
            met = f"{fewer.met} of {fewer.runs} runs meet the targets"
            text += f"; with {fewer.candidate.nodes} and faults, {_results(fewer, targets)}, {met}"
        yield f"{text}."
    elif doubtful:
        yield f"{doubtful[0][:1].upper()}{doubtful[0][1:]}."
    elif changes:
        yield f"Second is {changes[0]['values']}, which would be first if it were {_change(changes[0])}."
    else:
        fewest, score = needed(question.confidence, best.runs), best.candidate.score(question.objective)
        before = [t for t in answer.trials if t.met < fewest and t.candidate.score(question.objective) < score]
        if before:
            nearest = max(before, key=lambda trial: trial.candidate.score(question.objective))
            yield f"The next below, {named(nearest.candidate.values)}, has {_results(nearest, targets)}."


def _cheaper(question: Question, answer: Answer, best: Trial) -> str:
    """That another size that meets the targets may cost less."""
    if question.objective != "cost":
        return ""
    meeting = [t for t in answer.trials if t is not best and t.runs and t.met >= needed(question.confidence, t.runs)]
    first, *others = ((named(t.candidate.values), t.candidate.scenario, t.mean("cost_usd")) for t in (best, *meeting))
    return rival(first, others)


def _missed(question: Question, answer: Answer) -> Iterator[str]:
    """What comes closest, and by how much it misses."""
    closest, targets = answer.closest, question.targets
    if closest is None:
        yield f"No size meets {_wanted(question)}."
        return
    yield (
        f"No size meets {_wanted(question)}; closest is {named(closest.candidate.values)}, "
        f"with {_results(closest, targets)}."
    )
    if closest.runs and not (answer.deterministic and closest.certainty is None):
        yield f"{closest.met} of {closest.runs} runs of it meet the targets."
        yield from _chance(closest, targets)
    if left := math.fsum(map(undone, closest.results)):
        jobs = math.fsum(result["jobs"] for result in closest.results)
        within = " within the horizon" if closest.candidate.scenario.horizon is not None else ""
        cut = f"{left:,.0f} of {jobs:,.0f} jobs of its runs are not completed{within}"
        yield f"{cut}: only a size that completes all counts."


def _chance(found: Trial, targets: Sequence[Target]) -> Iterator[str]:
    """The chance of the targets over the errors of predicted steps."""
    if not math.isnan(chance := found.chance(targets)):
        odds = f"the targets are met with a probability of {100 * chance:.0f} %"
        yield f"Over the usual errors of predicted steps, {odds}."


def _results(found: Trial, targets: Sequence[Target]) -> str:
    """Each target's result with interval and limit: the mean of the runs, or the bound without runs."""
    texts = []
    for target in targets:
        measure, key = target.measure, target.measure.key
        limit = f"limit {measure.show(target.limit)}"
        if found.runs:
            mean = found.mean(key)
            text = measure.show(mean)
            if text == measure.show(target.limit) and (beyond := target.excess({key: mean})):
                text += f" and {format_share(beyond)} over"  # rounded, it would seem to meet the limit
            sure = between(key, mean, found.certainty.spread) if found.certainty is not None else ""
            limit += f"; 90 %: {sure}" if sure else ""
        else:
            value = found.candidate.known.get(key, math.nan)
            text = f"at best {measure.show(value)}" if not math.isnan(value) else "not run"
        texts.append(f"{_name(target)} {text} ({limit})")
    return ", ".join(texts)


def _name(target: Target) -> str:
    """The target's name as given on the command line; of power, which power."""
    if target.measure.key == "power_w":
        return "peak power"
    return target.text.partition("<" if target.at_most else ">")[0]


def _tables(
    rows: Sequence[Row], targets: Sequence[Target], changes: Sequence[Row], doubtful: Sequence[str]
) -> Iterator[FindingsTable]:
    """The sizes that were run, what would put each first, and how sure their order is."""
    if rows:
        yield _sizes(rows, targets)
    if changes:
        lines = [("size", "would be first if it were"), *((change["values"], _change(change)) for change in changes)]
        yield FindingsTable("What would change the order", lines, [False, False], more=True)
    if doubtful:
        paired = [("against the first",), *((line,) for line in doubtful)]
        yield FindingsTable("How sure the order is", paired, [False], more=True)


def _sizes(rows: Sequence[Row], targets: Sequence[Target]) -> FindingsTable:
    """Without columns that are unknown throughout."""
    asked = {target.measure.key: target for target in targets if target.measure.key not in TITLES}
    titles = {key: TITLES[key] for key in ("rank", "values", "meets")}
    titles |= {key: _name(target) for key, target in asked.items()} | TITLES
    shown = [key for key in titles if any(_is_known(row[key]) for row in rows)]
    table = [[titles[key] for key in shown], *([_cell(key, row[key], asked) for key in shown] for row in rows)]
    return FindingsTable("", table, [key not in ("values", "layout") for key in shown])


def _is_known(value: Any) -> bool:
    return value not in (None, "") and value == value


def _cell(key: str, value: Any, asked: Mapping[str, Target]) -> str:
    if key in asked:
        return asked[key].measure.show(value)
    if key == "meets":
        return "yes" if value else "no"
    if key == "chance":
        return "" if value is None else f"{100 * value:.0f} %"
    if key == "power_mean_w":
        return UNKNOWN if math.isnan(value) else format_scaled(value, "W")
    return show("_usd" if key == "price_usd_per_h" else key, value) if isinstance(value, float) else str(value)


def _change(change: Row) -> str:
    """The price or speed at which a size would be first."""
    rate, mfu = change["rate"], change["mfu_ratio"]
    text = f"{100 * (1 - change['price']):.1f} % cheaper per hour"
    text += f" ({show('_usd', change['price_usd_per_gpu_h'])} per GPU)"
    if not math.isnan(rate):
        text += f", or {100 * (rate - 1):.1f} % faster"
        text += f" (MFU {show('mfu_ratio', mfu)})" if not math.isnan(mfu) else ""
    return text + ("; above the peak rate" if mfu > 1 else "")


def content(
    question: Question, answer: Answer, rows: Sequence[Row], changes: Sequence[Row], doubtful: Sequence[str]
) -> dict[str, Any]:
    """The result as plain data; unknown values are NaN."""
    found = answer.best or answer.closest
    data: dict[str, Any] = {
        "schema_version": 1,
        "scenario": found.candidate.scenario.name if found else question.file.stem,
        "answer": " ".join(findings(question, answer, (), changes, ()).answer),
        "met": answer.best is not None,
        "values": dict(found.candidate.values) if found is not None else None,
        "nodes": found.candidate.nodes if found is not None else None,
        "spares": answer.spares,
        "sizes_run": answer.tried,
        "sizes_excluded": answer.excluded,
        "not_possible": list(answer.impossible),
        "ranking": list(rows),
        "ranking_certainty": list(doubtful),
        "ranking_changes": list(changes),
    }
    if answer.best is not None:
        best = answer.best
        data |= {"runs": best.runs, "runs_met": best.met, "chance_at_least": answer.chance_at_least}
    if found is not None and found.runs:
        keys = [key for key, value in found.results[0].items() if isinstance(value, float)]
        data["means"] = {key: found.mean(key) for key in keys}
        data["chance"] = found.chance(question.targets)
        data["sure"] = as_dict(found.certainty, data["means"])
    return data

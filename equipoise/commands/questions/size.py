"""The command `size`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.base.files import write_whole
from equipoise.base.json_values import plain
from equipoise.base.tables import aligned
from equipoise.commands.types import FloatRange, IntRange
from equipoise.exit_codes import IMPOSSIBLE, OK
from equipoise.options import CommandState, common, note, pass_state, progress, say, scenario_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from equipoise.study.questions.size import Answer, Candidate, Question, Trial
    from equipoise.study.questions.targets import Target


@click.command()
@scenario_options
@click.option(
    "--vary",
    required=True,
    multiple=True,
    metavar="KEY=LOW:HIGH",
    help="Values to choose from: cluster.nodes.0.count=2:8, or KEY=A,B,C; may be repeated.",
)
@click.option(
    "--target",
    required=True,
    multiple=True,
    metavar="NAME<=VALUE",
    help="Target to meet, e.g. makespan<=24h; may be repeated.",
)
@click.option(
    "--objective",
    type=click.Choice(["nodes", "price", "cost"]),
    default="nodes",
    show_default=True,
    help="What to minimise: nodes, the price per hour, or the cost of the run.",
)
@click.option("--grow", is_flag=True, help="Training jobs grow and shrink with the cluster.")
@click.option("--rank", is_flag=True, help="Run every size, and list all of them, best first.")
@click.option(
    "--available",
    multiple=True,
    metavar="ACCELERATOR=GPUS [in TIME]",
    help="Available GPUs, and when: mi300x=128, 'h100_sxm=in 25 d'.",
)
@click.option("--policy", help="Stages joined by +, or none. Default: the scenario's.")
@click.option("--seeds", type=IntRange(1), default=5, show_default=True, help="Runs per size.")
@click.option(
    "--confidence",
    type=FloatRange(0.0, 1.0, min_open=True),
    default=0.95,
    show_default=True,
    help="Fraction of the runs that must meet the targets.",
)
@click.option("--jobs", type=IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the result; `equipoise report` makes a page of it.",
)
@common
@pass_state
def size(
    state: CommandState,
    scenario: str,
    vary: tuple[str, ...],
    target: tuple[str, ...],
    objective: Any,
    grow: bool,
    rank: bool,
    available: tuple[str, ...],
    policy: str | None,
    seeds: int,
    confidence: float,
    overrides: tuple[str, ...],
    trace: str | None,
    jobs: int,
    form: str,
    out: Path | None,
) -> int:
    """Find the fewest or cheapest nodes with which SCENARIO meets every target.

    Targets: makespan, done (makespan after the delivery), completion_mean, completion_p50, completion_p95,
    completion_p99, wait_mean, wait_p50, wait_p95, wait_p99 (times; percentiles also of a class of jobs, such as
    wait_p95[8 GPUs] or of `workload.generate`), goodput, gpu_busy (shares), cost and energy (of the run), committed
    (sum committed by contracts), price (per hour), power (peak of the site). Exit code 4 if no size meets them.
    """
    from equipoise.study.folders import SIZE, check_free
    from equipoise.study.questions.ranking import changes, ranked, undecided
    from equipoise.study.questions.size import Question, doubts, needed, read_vary
    from equipoise.study.questions.size import size as find
    from equipoise.study.questions.targets import read_supply, read_target

    if math.isnan(confidence):
        raise click.UsageError("--confidence: nan is not in the range 0<x<=1")
    varied = list(map(read_vary, vary))
    if double := {key for key, _ in varied if [k for k, _ in varied].count(key) > 1}:
        raise click.UsageError(f"--vary: {min(double)!r} is varied twice; give all its values at once")
    question = Question(
        Path(scenario),
        dict(varied),
        tuple(map(read_target, target)),
        policy,
        seeds,
        confidence,
        objective,
        overrides,
        trace,
        jobs,
        grow,
        rank,
        dict(map(read_supply, available)),
    )
    if out is not None:
        check_free(out, "size")
        out.mkdir(parents=True, exist_ok=True)
    note(False, *(f"warning: {doubt}" for doubt in doubts(question)))
    with progress(state.quiet, Path(scenario).stem, "sizes") as tell:
        answer = find(question, tell)
    rows = (
        ranked(answer.trials, question, needed(confidence, max((t.runs for t in answer.trials), default=1)))
        if rank or out is not None
        else []
    )
    turned, doubtful = changes(rows, objective), undecided(answer.trials, rows, objective)
    if out is not None:
        said = [*as_text(answer, question.targets), *doubtful]
        write_whole(out / SIZE, kept(question, answer, rows, turned, said, doubtful))
    if not rank:
        rows, turned, doubtful = [], [], []
    if form == "json":
        say(as_json(answer, rows, turned, doubtful, question.targets))
    else:
        shown = _ranking(rows, question.targets)
        say("\n".join([*as_text(answer, question.targets), *shown, *doubtful, *_changes(rows, turned)]))
    return OK if answer.best is not None else IMPOSSIBLE


def as_text(answer: Answer, targets: Sequence[Target]) -> Iterator[str]:
    """The result as lines of text."""
    wanted = ", ".join(target.text for target in targets)
    if answer.best is not None:
        many, one = answer.best.candidate.nodes, "node"
        if answer.best.candidate.scenario.cluster.gpus is not None:  # a counted pool has no nodes
            many, one = answer.best.candidate.scenario.cluster.gpus, "GPU"
        meet = f"1 {one} meets" if many == 1 else f"{many:,} {one}s meet"
        yield f"{meet} {wanted}: {_values(answer.best.candidate)}"
        yield f"  {_results(answer.best, targets)}"
        yield f"  {_sure(answer)}"
        yield from _predicted(answer.best, targets)
        if answer.spares:
            few = answer.best.candidate.nodes - answer.spares
            saved = _saved(answer, targets)
            are = "1 of the nodes is a spare" if answer.spares == 1 else f"{answer.spares} of the nodes are spares"
            yield f"  {are}: {few} would be enough without faults{saved}"
    elif answer.closest is None:
        yield f"no size meets {wanted}"
    else:
        yield f"no size meets {wanted}; closest is {_values(answer.closest.candidate)}"
        yield f"  {_results(answer.closest, targets)}"
        yield from _predicted(answer.closest, targets)
        if answer.closest.runs and all(
            target.met({target.measure.key: answer.closest.mean(target.measure.key)}) for target in targets
        ):
            yield f"  on average; {answer.closest.met} of {answer.closest.runs} runs meet the targets"
    ran = "1 size was run" if answer.tried == 1 else f"{answer.tried} sizes were run"
    yield f"  {ran}, {answer.excluded} excluded by bounds, price or power"
    if many := len(answer.impossible):
        yield f"  {many} more {'was' if many == 1 else 'were'} not possible: {answer.impossible[0]}"


def _predicted(found: Trial, targets: Sequence[Target]) -> Iterator[str]:
    """The chance of the targets, the interval of each result, and their reason, where steps are predicted."""
    from equipoise.study.sure import between

    sure = found.certainty
    if sure is None or not found.runs:
        return
    named = {_name(target): target.measure.key for target in targets}
    ends = [f"{k} {text}" for k, key in named.items() if (text := between(key, found.mean(key), sure.spread))]
    if ends:
        yield f"  90 %: {', '.join(ends)}; the targets are met with {100 * found.chance(targets):.0f} %"
        yield from (f"    {line}" for line in sure.lines())


def _saved(answer: Answer, targets: Sequence[Target]) -> str:
    """The targets' results with faults and without the spares."""
    fewer = answer.without_spares
    if fewer is None:
        return ""
    met = f"{fewer.met} of {fewer.runs} runs meet the targets"
    return f"; with {fewer.candidate.nodes} and faults, {_results(fewer, targets)}, {met}"


def _values(candidate: Candidate) -> str:
    return ", ".join(f"{key}={value}" for key, value in candidate.values.items())


def _results(found: Trial, targets: Sequence[Target]) -> str:
    """Each target's result and limit: the mean of the runs, or the bound without runs."""
    from equipoise.sim.scenario.units import format_share

    texts = []
    for target in targets:
        measure = target.measure
        if found.runs:
            mean = found.mean(measure.key)
            text = measure.show(mean)
            if text == measure.show(target.limit) and (beyond := target.excess({measure.key: mean})):
                text += f" and {format_share(beyond)} over"  # rounded, it would seem to meet the limit
        else:
            value = found.candidate.known.get(measure.key, math.nan)
            text = f"at best {measure.show(value)}" if not math.isnan(value) else "not run"
        texts.append(f"{_name(target)} {text} (limit {measure.show(target.limit)})")
    return ", ".join(texts)


def _name(target: Target) -> str:
    """The target's name as given on the command line."""
    return target.text.partition("<" if target.at_most else ">")[0]


def _sure(answer: Answer) -> str:
    assert answer.best is not None
    if answer.deterministic:
        return "the scenario has no randomness: all runs are the same"
    met = f"{answer.best.met} of {answer.best.runs} runs meet the targets"
    choice = f" (the best of {answer.sizes} sizes)" if answer.sizes > 1 else ""
    share = 100 * answer.chance_at_least
    return f"{met}; with 95 % confidence at least {share:.0f} % of all runs do{choice}"


def _ranking(rows: Sequence[dict[str, Any]], targets: Sequence[Target]) -> Iterator[str]:
    """The sizes that were run as a table, without columns that are unknown throughout."""
    from equipoise.sim.scenario.units import format_scaled
    from equipoise.study.display import UNKNOWN, show
    from equipoise.study.questions.ranking import TITLES

    asked = {target.measure.key: target for target in targets if target.measure.key not in TITLES}
    titles = {key: TITLES[key] for key in ("rank", "values", "meets")}
    titles |= {key: _name(target) for key, target in asked.items()} | TITLES
    named = [key for key in titles if any(plain(row[key]) not in (None, "") for row in rows)]
    table = [[titles[key] for key in named]]
    for row in rows:
        shown = {
            "meets": "yes" if row["meets"] else "no",
            "chance": "" if row["chance"] is None else f"{100 * row['chance']:.0f} %",
            "power_w": UNKNOWN if math.isnan(row["power_w"]) else format_scaled(row["power_w"], "W"),
            "price_usd_per_h": show("_usd", row["price_usd_per_h"]),
        } | {key: target.measure.show(row[key]) for key, target in asked.items()}
        cells = (
            shown.get(key) or (show(key, row[key]) if isinstance(row[key], float) else str(row[key])) for key in named
        )
        table.append(list(cells))
    if rows:
        yield from aligned(table, [key not in ("values", "layout") for key in named])


def _changes(rows: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The price or speed change that would rank each of the others first, as text."""
    from equipoise.study.display import show

    if found:
        yield f"single changes that would alter the ranking ({rows[0]['values']} is first):"
    for change in found:
        rate, mfu = change["rate"], change["mfu_ratio"]
        text = f"  {change['values']}: {100 * (1 - change['price']):.1f} % cheaper per hour"
        text += f" ({show('_usd', change['price_usd_per_gpu_h'])} per GPU)"
        if not math.isnan(rate):
            text += f", or {100 * (rate - 1):.1f} % faster"
            text += f" (MFU {show('mfu_ratio', mfu)})" if not math.isnan(mfu) else ""
        yield text + ("; above the peak rate" if mfu > 1 else "")


def kept(
    question: Question,
    answer: Answer,
    rows: Sequence[dict[str, Any]],
    changes: Sequence[dict[str, Any]],
    said: Sequence[str],
    doubtful: Sequence[str],
) -> str:
    """The result with its options, for the page that `report` makes of it."""
    from equipoise.study.report.first import cluster_line
    from equipoise.study.runs.variants import policy_text

    found = answer.best or answer.closest
    policy = question.policy if isinstance(question.policy, str) else None  # as given on the command line
    asked = {
        "targets": [target.text for target in question.targets],
        "vary": question.vary,
        "objective": question.objective,
        "policy": policy_text(found.candidate.scenario, policy) if found else "",
        "seeds": 1 if answer.deterministic else question.seeds,
        "confidence": question.confidence,
        "changed": list(question.overrides),
        "rank": question.every,
    }
    simulated: dict[str, str] = {}
    if found is not None:
        simulated["cluster"] = cluster_line(found.candidate.scenario.cluster.model_dump(mode="json"))
        if found.runs:
            jobs = found.mean("jobs")
            simulated["workload"] = f"{jobs:,.0f} job{'s' if jobs != 1 else ''} in a run"
    about: dict[str, Any] = simulated | {
        "schema_version": 1,
        "scenario": found.candidate.scenario.name if found else question.file.stem,
    }
    told = _content(answer, rows, changes, doubtful, question.targets)
    content = about | {"question": asked, "said": list(said)} | told
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def as_json(
    answer: Answer,
    rows: Sequence[dict[str, Any]] = (),
    changes: Sequence[dict[str, Any]] = (),
    doubtful: Sequence[str] = (),
    targets: Sequence[Target] = (),
) -> str:
    """The result as JSON."""
    return json.dumps(plain(_content(answer, rows, changes, doubtful, targets)), indent=2)


def _content(
    answer: Answer,
    rows: Sequence[dict[str, Any]],
    changes: Sequence[dict[str, Any]],
    doubtful: Sequence[str],
    targets: Sequence[Target],
) -> dict[str, Any]:
    from equipoise.study.sure import as_dict

    found = answer.best or answer.closest
    content: dict[str, Any] = {
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
        content |= {"runs": best.runs, "runs_met": best.met, "chance_at_least": answer.chance_at_least}
    if found is not None and found.runs:
        keys = [key for key, value in found.results[0].items() if isinstance(value, float)]
        content["means"] = {key: found.mean(key) for key in keys}
        content["chance"] = found.chance(targets)
        content["sure"] = as_dict(found.certainty, content["means"])
    return content

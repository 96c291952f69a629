"""explain: why a job of a run waited, or what each stage did at a given time."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from equipoise.base.tables import aligned
from equipoise.exit_codes import OK
from equipoise.options import CommandState, common, pass_state, progress, say, wide_option

_LISTED = 8
_DONE = 20


@click.command()
@click.argument("run_dir", metavar="RUN", type=click.Path(file_okay=False))
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--at", metavar="TIME", help="Without JOB: the last decision up to then, e.g. '3 h'. Default: the last.")
@click.option("--trace", metavar="FILE", help="The run's job trace, if it is not found under its recorded name.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@wide_option
@common
@pass_state
def explain(
    state: CommandState, run_dir: str, job: str | None, at: str | None, trace: str | None, form: str, wide: bool
) -> int:
    """Explain why JOB of the run in RUN waited, which jobs went first, and what would have started it sooner.

    Also lists the changes made to it, by sub-step. RUN is the folder of `run --out DIR --journal`. Without JOB:
    what each stage saw, computed and did at a given time.
    """
    from equipoise.sim.shown import all_shown
    from equipoise.study.findings import screen
    from equipoise.study.questions.explain import at_time, done_to_job, read_folder, stage_lines, why_it_waited

    if job is not None and at is not None:
        raise click.UsageError("--at is not allowed with JOB")
    folder = read_folder(run_dir)
    if job is None:
        decision = at_time(folder, _time_s(at))
        beside = [line for shown in all_shown() for line in shown.lines(decision.observation.beside)]
        lines = [*beside, *stage_lines(folder, decision)]
        told: dict[str, Any] = {"time_s": decision.observation.time_s, "lines": lines}
        head = f"What {folder.policy} saw and decided at {_span(decision.observation.time_s)}:"
        say(json.dumps(told, indent=2) if form == "json" else screen([head], (f"  {t}" for t in lines), wide))
        return OK
    row = folder.row(job)
    wait = why_it_waited(folder, row)
    tried = []
    if wait.span_s:
        from equipoise.study.questions.what_if import try_changes

        with progress(state.quiet, folder.name(row), "changes") as tell:
            tried = try_changes(folder, row, trace, tell)
    told = _told(folder, row, wait, tried)
    told["done"] = [{"time_s": time_s, "what": what} for time_s, what in done_to_job(folder, row)]
    say(json.dumps(told, indent=2) if form == "json" else screen(_answer(told), _lines(told), wide))
    return OK


def _time_s(text: str | None) -> float | None:
    if text is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from equipoise.sim.scenario.units import Seconds

    try:
        return float(TypeAdapter(Seconds).validate_python(text))
    except ValidationError as error:
        raise click.BadParameter(f"{text!r} is not a time such as '3 h' or '90 min'", param_hint="'--at'") from error


def _span(time_s: float) -> str:
    from equipoise.sim.scenario.units import format_seconds

    return format_seconds(time_s)


def _told(folder: Any, row: int, wait: Any, tried: list[Any]) -> dict[str, Any]:
    """The explanation as plain data."""
    from equipoise.study.questions.what_if import smallest

    jobs = folder.jobs
    arrival_s, start_s = float(jobs["arrival_s"][row]), float(jobs["start_s"][row])
    best = smallest(tried, start_s, arrival_s)
    who = {
        kind: str(jobs[kind][row])
        for kind in ("user", "account", "partition", "qos", "queue")
        if kind in jobs and jobs[kind][row]
    }
    again_s = float(jobs["queueing_s"][row]) - (start_s - arrival_s) if "queueing_s" in jobs else math.nan
    return {
        "waited_again_s": again_s if again_s > 1e-6 else 0.0,
        "job": folder.name(row),
        "policy": folder.policy,
        "gpus": int(jobs["gpus"][row]),
        **who,
        "arrival_s": arrival_s,
        "start_s": None if math.isnan(start_s) else start_s,
        "causes": [{"kind": c.kind, "text": c.text, "span_s": s} for c, s in wait.span_s.items()],
        "went_first": [
            {"job": folder.name(k), "why": why, "later": bool(jobs["arrival_s"][k] > arrival_s)}
            for k, why in wait.before.items()
        ],
        "tried": [
            {"change": t.text, "start_s": None if math.isnan(t.start_s) else t.start_s, "error": t.error} for t in tried
        ],
        "smallest": None if best is None else best.text,
    }


def _answer(told: dict[str, Any]) -> list[str]:
    """How long it waited, mostly for what, and what would have shortened that."""
    from equipoise.study.display import digits

    arrival_s, start_s, causes = told["arrival_s"], told["start_s"], told["causes"]
    who = ", ".join(f"{kind} {told[kind]}" for kind in ("user", "account", "partition", "qos", "queue") if kind in told)
    gpus = "1 GPU" if told["gpus"] == 1 else f"{told['gpus']} GPUs"
    job = f"{told['job']} ({gpus}{f', {who}' if who else ''})"
    whole = sum(cause["span_s"] for cause in causes)
    again = f", {_span(told['waited_again_s'])} after it had lost its GPUs" if told["waited_again_s"] else ""
    if not whole and start_s is not None:
        return [
            f"{job} started at once under {told['policy']}, at {_span(start_s)}{again and f'; it waited{again[1:]}'}."
        ]
    if start_s is None:
        text = f"{job} arrived at {_span(arrival_s)} and had not started at the end of the run under {told['policy']}"
    else:
        text = f"{job} waited {_span(start_s - arrival_s)} under {told['policy']}, from {_span(arrival_s)} to "
        text += f"{_span(start_s)}{again and f', and{again[1:]}'}"
    if whole:
        most = max(causes, key=lambda cause: float(cause["span_s"]))
        text += f"; {digits(100 * most['span_s'] / whole)} % of it for {most['kind']}: {most['text']}"
    lines = [f"{text}."]
    if told["smallest"]:
        lines.append(f"The smallest change that halves the wait, of {len(told['tried'])} tried: {told['smallest']}.")
    elif told["tried"]:
        lines.append(f"None of {len(told['tried'])} changes tried halves the wait.")
    return lines


def _lines(told: dict[str, Any]) -> list[str]:
    from equipoise.study.display import digits

    whole = sum(cause["span_s"] for cause in told["causes"])
    if not whole:
        return _done(told)
    causes = sorted(told["causes"], key=lambda cause: -cause["span_s"])
    rows = [
        (_span(c["span_s"]), f"{digits(100 * c['span_s'] / whole)} %", f"{c['kind']}: {c['text']}")
        for c in causes[:_LISTED]
    ]
    lines = ["", "Why it waited, longest cause first:", *(f"  {line}" for line in aligned(rows))]
    lines += [f"  and {len(causes) - _LISTED} more causes"] if len(causes) > _LISTED else []
    later = [first for first in told["went_first"] if first["later"]]
    count, before = len(told["went_first"]), list[str]()
    if count:
        before = ["", f"While it waited {count} other jobs started, {len(later)} of which arrived after it:"]
        shown = (later or told["went_first"])[:_LISTED]
        before += [f"  {line}" for line in aligned([(first["job"], first["why"]) for first in shown])]
        before += [f"  and {len(later) - _LISTED} more that arrived after it"] if len(later) > _LISTED else []
    return [*lines, *_tried(told), *before, *_done(told)]


def _done(told: dict[str, Any]) -> list[str]:

    done = told["done"]
    if not done:
        return []
    rows = [(_span(one["time_s"]), one["what"]) for one in done[:_DONE]]
    more = [f"  and {len(done) - _DONE} more; --format json has all"] if len(done) > _DONE else []
    return ["", "Changes made to it:", *(f"  {line}" for line in aligned(rows)), *more]


def _tried(told: dict[str, Any]) -> list[str]:

    if not told["tried"]:
        return []
    rows = []
    for one in told["tried"]:
        if one["error"]:
            when = f"not possible: {one['error']}"
        elif one["start_s"] is None:
            when = "does not start"
        elif told["start_s"] is None:
            when = f"starts at {_span(one['start_s'])}"
        else:
            sooner_s = told["start_s"] - one["start_s"]
            when = (
                "starts no sooner"
                if sooner_s == 0
                else (f"starts {_span(abs(sooner_s))} {'sooner' if sooner_s > 0 else 'later'}")
            )
        rows.append((one["change"], when))
    return ["", "What would have changed that, smallest change first:", *(f"  {line}" for line in aligned(rows))]

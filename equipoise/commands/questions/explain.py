"""explain: why a job of a run waited, or what each stage did at a given time."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from equipoise.base.tables import aligned
from equipoise.exit_codes import OK
from equipoise.options import CommandState, common, pass_state, progress, say

_LISTED = 8
_DONE = 20


@click.command()
@click.argument("run_dir", metavar="RUN", type=click.Path(file_okay=False))
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--at", metavar="TIME", help="Without JOB: the last decision up to then, e.g. '3 h'. Default: the last.")
@click.option("--trace", metavar="FILE", help="The run's job trace, if it is not found under its recorded name.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common
@pass_state
def explain(state: CommandState, run_dir: str, job: str | None, at: str | None, trace: str | None, form: str) -> int:
    """Explain why JOB of the run in RUN waited, which jobs went first, and what would have started it sooner.

    Also lists the changes made to it, by sub-step. RUN is the folder of `run --out DIR --journal`. Without JOB:
    what each stage saw, computed and did at a given time.
    """
    from equipoise.sim.shown import all_shown
    from equipoise.study.questions.explain import at_time, done_to_job, read_folder, stage_lines, why_it_waited

    if job is not None and at is not None:
        raise click.UsageError("--at is not allowed with JOB")
    folder = read_folder(run_dir)
    if job is None:
        decision = at_time(folder, _time_s(at))
        beside = [line for shown in all_shown() for line in shown.lines(decision.observation.beside)]
        lines = [*beside, *stage_lines(folder, decision)]
        head = f"{folder.policy} at {_span(decision.observation.time_s)}"
        told: dict[str, Any] = {"time_s": decision.observation.time_s, "lines": lines}
        say(json.dumps(told, indent=2) if form == "json" else "\n".join([head, *(f"  {t}" for t in lines)]))
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
    say(json.dumps(told, indent=2) if form == "json" else _text(told))
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


def _text(told: dict[str, Any]) -> str:
    from equipoise.study.display import digits

    arrival_s, start_s = told["arrival_s"], told["start_s"]
    who = ", ".join(f"{kind} {told[kind]}" for kind in ("user", "account", "partition", "qos", "queue") if kind in told)
    ended = f"started at {_span(start_s)}" if start_s is not None else "had not started at the end of the run"
    lines = [
        f"{told['job']}{f' ({who})' if who else ''}: {told['gpus']} GPUs under {told['policy']}",
        f"arrived at {_span(arrival_s)}, {ended}",
    ]
    if start_s is not None:
        again = told["waited_again_s"]
        lost = f", and {_span(again)} more after it had lost its GPUs" if again else ""
        lines.append(f"waited {_span(start_s - arrival_s)}{lost}")
    whole = sum(cause["span_s"] for cause in told["causes"])
    if not whole:
        at_once = "It started at once." if told["waited_again_s"] else "It did not wait."
        return "\n".join([*lines, at_once, *_done(told)])
    causes = sorted(told["causes"], key=lambda cause: -cause["span_s"])
    lines += ["", "Why it waited, longest cause first:"]
    rows = [
        (_span(c["span_s"]), f"{digits(100 * c['span_s'] / whole)} %", f"{c['kind']}: {c['text']}")
        for c in causes[:_LISTED]
    ]
    lines += [f"  {line}" for line in aligned(rows)]
    lines += [f"  and {len(causes) - _LISTED} more causes"] if len(causes) > _LISTED else []
    later = [first for first in told["went_first"] if first["later"]]
    count = len(told["went_first"])
    if count:
        lines += ["", f"While it waited {count} other jobs started, {len(later)} of which arrived after it:"]
        shown = (later or told["went_first"])[:_LISTED]
        lines += [f"  {line}" for line in aligned([(first["job"], first["why"]) for first in shown])]
        lines += [f"  and {len(later) - _LISTED} more that arrived after it"] if len(later) > _LISTED else []
    return "\n".join([*lines, *_tried(told), *_done(told)])


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
    lines = ["", "What would have changed that, smallest change first (each was run):"]
    lines += [f"  {line}" for line in aligned(rows)]
    best = told["smallest"]
    end = f"Smallest change that halves the wait: {best}" if best else "None of these halves the wait."
    return [*lines, end]

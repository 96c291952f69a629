"""check: find what is missing in a job trace, and how that would affect results."""

from __future__ import annotations

import json
from pathlib import Path

import click

from equipoise.exit_codes import OK
from equipoise.options import common, say, trace_changes, trace_options


@click.command()
@click.argument("trace", type=click.Path())
@click.argument("scenario", required=False, type=click.Path(dir_okay=False))
@trace_options
@click.option(
    "--count",
    type=click.Choice(["gpus", "cpus"]),
    help="Resource that jobs request. Default: the scenario's, else gpus.",
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common
@click.pass_context
def check(ctx: click.Context, trace: str, scenario: str | None, count: str | None, form: str) -> int:
    """Find what is missing or odd in TRACE and how it would affect a result; SCENARIO is the cluster for its jobs.

    Times with more GPUs in use than the scenario has, missing submit times, jobs cut off at both ends of the
    trace, clock jumps, duplicates, jobs that fit on no node.
    """
    from equipoise.sim.loading.file import read_scenario
    from equipoise.sim.scenario.model import TraceSpec
    from equipoise.sim.traces.check import check_trace

    changes = trace_changes(ctx) | ({"count": count} if count else {})
    cluster, spec = None, TraceSpec(file=trace)
    if scenario is not None:
        read = read_scenario(scenario).scenario
        cluster = read.cluster
        spec = read.workload.trace or spec
    spec = TraceSpec.model_validate({**spec.model_dump(), "file": trace, **changes})
    found = check_trace(spec, Path(trace), cluster)
    if form == "json":
        shown = {"file": found.file, "rows": found.rows, "jobs": found.jobs}
        say(json.dumps({**shown, "findings": [f.as_dict() for f in found.findings]}, indent=2))
        return OK
    say(f"{found.file}: {found.rows} rows, {found.jobs} jobs")
    for finding in found.findings:
        place = f" (first in line {finding.line})" if finding.line else ""
        say(f"  {finding.count:>9}  {finding.what}{place}\n             {finding.effect}")
    return OK

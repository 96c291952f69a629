"""The command `diff`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from equipoise.base.json_values import plain
from equipoise.base.tables import aligned
from equipoise.options import common, say

_WIDEST = 40
"""Characters shown of a value, such as a scenario's description; JSON has all of them."""


def _short(value: str) -> str:
    return value if len(value) <= _WIDEST else f"{value[: _WIDEST - 3]}..."


@click.command()
@click.argument("first", metavar="RUN", type=click.Path(file_okay=False))
@click.argument("second", metavar="RUN", type=click.Path(file_okay=False))
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common
def diff(first: str, second: str, form: str) -> None:
    """Show what differs between two run directories: keys of the scenario, and metrics with their ratio."""
    from equipoise.study.display import LABELS, digits, show
    from equipoise.study.questions.difference import difference

    found = difference(Path(first), Path(second))
    if form == "json":
        content = {"inputs": found.inputs, "metrics": found.metrics}
        say(json.dumps(plain(content), indent=2, allow_nan=False))
        return
    if found.inputs:
        told = [(key, *(_short(value) for value in values)) for key, *values in found.readable()]
        say("\n".join(aligned([("input", first, second), *told])))
    else:
        say("inputs: equal")
    rows = [
        (LABELS[m].strip(), show(m, a), show(m, b), f"x {digits(b / a)}" if a > 0 else "-")
        for m, a, b in found.metrics
        if a != b and not (a != a and b != b)
    ]
    if rows:
        table = aligned([("metric", first, second, "ratio"), *rows], [False, True, True, True])
        say("\n" + "\n".join(table))
    else:
        say("metrics: equal")

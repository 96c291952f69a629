"""The command `diff`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from equipoise.base.json_values import plain
from equipoise.base.tables import aligned
from equipoise.options import common, say, wide_option

_MAIN = ("makespan_s", "completion_mean_s", "cost_usd")
_WIDEST = 40
"""Characters shown of a value, such as a scenario's description; JSON has all of them."""


def _short(value: str) -> str:
    return value if len(value) <= _WIDEST else f"{value[: _WIDEST - 3]}..."


@click.command()
@click.argument("first", metavar="RUN", type=click.Path(file_okay=False))
@click.argument("second", metavar="RUN", type=click.Path(file_okay=False))
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@wide_option
@common
def diff(first: str, second: str, form: str, wide: bool) -> None:
    """Show what differs between two run directories: keys of the scenario, and metrics with their ratio."""
    from equipoise.study.display import LABELS, digits, show
    from equipoise.study.findings import screen
    from equipoise.study.questions.difference import difference

    found = difference(Path(first), Path(second))
    if form == "json":
        content = {"inputs": found.inputs, "metrics": found.metrics}
        say(json.dumps(plain(content), indent=2, allow_nan=False))
        return
    told = [(key, *(_short(value) for value in values)) for key, *values in found.readable()]
    rows = [
        (LABELS[m].strip(), show(m, a), show(m, b), f"x {digits(b / a)}" if a > 0 else "-")
        for m, a, b in found.metrics
        if a != b and not (a != a and b != b)
    ]
    metrics = aligned([("metric", first, second, "ratio"), *rows], [False, True, True, True]) if rows else []
    main = [f"{name} {ratio}" for name, _, _, ratio in rows if name in {LABELS[m].strip() for m in _MAIN}]
    listed = f" ({', '.join(main)})" if main else ""
    results = f"{len(rows)} results differ{listed}" if rows else "all results are equal"
    inputs = f"{len(told)} inputs of {second} differ from {first}" if told else "All inputs are equal"
    table = aligned([("input", first, second), *told]) if told else []
    say(screen([f"{inputs}; {results}."], [*(["", *metrics] if rows else []), *(["", *table] if told else [])], wide))

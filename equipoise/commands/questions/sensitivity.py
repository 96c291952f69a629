"""The command `sensitivity`."""

from __future__ import annotations

from pathlib import Path

import click

from equipoise.commands.variants import Given, variant_options
from equipoise.exit_codes import OK


@click.command()
@variant_options
@click.option(
    "--vary", multiple=True, metavar="KEY=LOW..HIGH", help="Values, or factors: cluster.nodes.0.nic=x0.5..x2."
)
@click.option("--metric", default="completion_mean_s", show_default=True, help="Result to compare.")
def sensitivity(given: Given, vary: tuple[str, ...], metric: str) -> int:
    """Change one value of SCENARIO at a time, low and high, and rank the values by their effect on the result.

    All runs have the same arrivals, faults and noise. Longest bars first (a tornado chart); ratios are to the
    unchanged scenario, with 95 % intervals.
    """
    from equipoise.study.questions.sensitivity import FILE
    from equipoise.study.questions.sensitivity import sensitivity as find

    with given.run_options() as options:
        found = find(
            Path(given.scenario),
            metric,
            vary=vary,
            defaults=not vary,
            policy=given.policy,
            overrides=given.overrides,
            trace=given.trace,
            options=options,
        )
    given.tell(found.as_dict(), FILE, found.findings(), found.notes)
    return OK

"""The command `fit`: whether a large model fits into memory, and what would make it fit."""

from __future__ import annotations

import json
from pathlib import Path

import click

from equipoise.commands.types import IntRange
from equipoise.exit_codes import IMPOSSIBLE, OK
from equipoise.options import common, say, wide_option


@click.command()
@click.argument("scenario", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Change a value of the scenario.")
@click.option("--plans", type=IntRange(0, 1000), default=0, help="Also list this many of the fastest layouts that fit.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@wide_option
@common
def fit(scenario: str, overrides: tuple[str, ...], plans: int, form: str, wide: bool) -> int:
    """Show the memory that each job of a large model needs, and what would make it fit.

    SCENARIO has models with a `transformer` section. Per pipeline stage: weights, gradients, optimiser state,
    activations, logits, and the overhead of the process. The interval of the peak holds 90 % of measured peaks of
    models that the constants were not fitted to. Exit code 4: a job does not fit.
    """
    from equipoise.study.questions.fits import as_dict, fits

    found = fits(Path(scenario), overrides, plans)
    if form == "json":
        say(json.dumps([as_dict(one) for one in found], indent=2))
    else:
        say("\n\n".join("\n".join(one.findings(plans).lines(wide)) for one in found))
    return OK if all(one.memory.fits for one in found) else IMPOSSIBLE

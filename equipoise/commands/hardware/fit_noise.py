"""`equipoise calibrate fit-noise`: fit the variation of step times of data-parallel workers."""

from __future__ import annotations

import json
from pathlib import Path

import click

from equipoise.exit_codes import OK
from equipoise.options import WrongInputError, common, say


@click.command("fit-noise")
@click.argument("times", metavar="CSV", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@common
def fit_noise(times: Path, form: str) -> int:
    """Fit a scenario's `noise` to the step times of data-parallel workers.

    CSV has the columns worker, step and seconds: the compute time of each worker in a step, without waiting for the
    others, all with the same amount of work.
    """
    from equipoise.calibrate.fit.step_noise import fit_noise as fit
    from equipoise.calibrate.fit.step_noise import read_worker_times

    try:
        measured = read_worker_times(times)
        found = fit(measured).keys()
    except (ValueError, OSError) as error:
        text = str(error)
        raise WrongInputError(text if text.startswith(str(times)) else f"{times}: {text}") from None
    if form == "json":
        say(json.dumps({"noise": found}, indent=2))
        return OK
    say(f"# {measured.shape[0]} steps of {measured.shape[1]} workers")
    say("noise:")
    for key, value in found.items():
        say(f"  {key}: {value:g}")
    return OK

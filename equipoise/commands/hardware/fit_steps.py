"""`equipoise calibrate fit-steps`: fit the constants of a software stack to measured training steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.base.files import write_whole
from equipoise.exit_codes import OK
from equipoise.options import WrongInputError, common, say

if TYPE_CHECKING:
    from equipoise.calibrate.fit_steps import StepFit, TimedStep


@click.command("fit-steps")
@click.argument("steps", metavar="CSV", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out",
    metavar="STACK.yaml",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the constants; a scenario names this file as its model's 'stack'.",
)
@click.option("--for", "wanted", metavar="STACK/ACCELERATOR", help="Which pair to fit, if the CSV has several.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common
def fit_steps(steps: Path, out: Path | None, wanted: str | None, form: str) -> int:
    """Fit a software stack's constants to measured training steps of large models.

    CSV has a row per measured step: config (path of a config.json, from the CSV's folder), accelerator, node_gpus,
    node_bytes_per_s, seconds; optionally stack, sequence (tokens) and the layout: data, tensor, pipeline, context,
    micro_batch, global_batch, recompute, zero and so on. At least two models are needed: the interval is the
    error for models left out of the fit.
    """
    from equipoise.calibrate.fit_steps import fit_steps as fit
    from equipoise.calibrate.fit_steps import read_steps

    try:
        rows = read_steps(steps)
        name = _wanted(rows, wanted)
        found = fit(rows)
    except (ValueError, OSError) as error:
        raise WrongInputError(str(error)) from None
    content = _content(found, name)
    if out is not None:
        _write(content, out)
    if form == "json":
        say(json.dumps(content, indent=2))
    else:
        say("\n".join(_text(rows, found, content)))
    return OK


def _wanted(rows: list[TimedStep], wanted: str | None) -> str:
    """The pair of stack and accelerator to fit. Raises ValueError."""
    pairs = sorted({f"{row.stack}/{row.plan.accelerator.name}" for row in rows})
    if not pairs:
        raise ValueError("no rows: nothing to fit")
    if wanted is None and len(pairs) > 1:
        raise ValueError(f"--for: one of {', '.join(pairs)} is needed")
    if wanted is not None and wanted not in pairs:
        raise ValueError(f"--for: {wanted} is not in the file; it has {', '.join(pairs)}")
    return wanted or pairs[0]


def _content(found: StepFit, name: str) -> dict[str, object]:
    stack, _, accelerator = name.rpartition("/")
    labels = {"stack": stack, "accelerator": accelerator, "stack+accelerator": name}
    constants = {key: float(f"{value:.4g}") for key, value in asdict(found.fitted.stack(labels)).items() if value}
    return {"name": name, "constants": constants, "spread": [float(f"{v:.4g}") for v in found.spread]}


def _write(content: dict[str, object], out: Path) -> None:
    import yaml

    try:
        write_whole(out, yaml.safe_dump(content, sort_keys=False))
    except OSError as error:
        raise WrongInputError(f"--out {out}: {error.strerror}") from None


def _text(rows: list[TimedStep], found: StepFit, content: dict[str, object]) -> Iterator[str]:
    import numpy as np

    from equipoise.calibrate.fit_steps import predicted_steps

    guess = predicted_steps(found, rows)
    error = np.abs(guess / np.array([row.seconds for row in rows]) - 1.0)
    yield f"{content['name']}: {len(rows)} steps of {found.families} models"
    yield f"  median error of the fitted steps {100 * float(np.median(error)):.1f} %"
    low, high = found.spread
    yield f"  90 % of the steps of models left out: {low:.3g} to {high:.3g} times the prediction"
    constants = content["constants"]
    assert isinstance(constants, dict)
    for key, value in constants.items():
        yield f"  {key:<24} {value:g}"

"""The command `validate-against`: compare predictions with public measurements."""

from __future__ import annotations

import csv
import json
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.base.files import replacing, write_whole
from equipoise.base.json_values import plain
from equipoise.exit_codes import OK
from equipoise.options import WrongInputError, common, say

if TYPE_CHECKING:
    from equipoise.study.validation.score import Line


@click.command()
@click.argument("name", required=False)
@click.option(
    "--data",
    "data",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the measurements.",
)
@click.option("--all", "every", is_flag=True, help="All data sets whose files are present.")
@click.option(
    "--write",
    "target",
    metavar="FILE.md",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a page with the table.",
)
@click.option(
    "--rows",
    "rows_file",
    metavar="FILE.csv",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write every held-out row of the first split: predicted, interval, measured.",
)
@click.option(
    "--predictor",
    metavar="FILE.csv|MODULE:FUNCTION",
    help="Another predictor on the same rows: a file with line, key, predicted (as --rows writes them), or a function "
    "of a line and a key.",
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common
def validate_against(
    name: str | None,
    data: Path | None,
    every: bool,
    target: Path | None,
    rows_file: Path | None,
    predictor: str | None,
    form: str,
) -> int:
    """Compare predictions with public measurements that were not used in the fit.

    NAME is a data set: its file is read from DIR, split ten times by a hash of each row's key, and each split's
    held-out rows are predicted from the others. Without NAME and --all, the data sets are listed.
    """
    from equipoise.study.validation.others import against, read_predictor
    from equipoise.study.validation.run import FILES, as_text

    if name is not None and every:
        raise click.UsageError("needs NAME or --all, not both")
    if name is None and not every:
        for known, files in FILES.items():
            say(f"{known:<14} {', '.join(files)}")
        return OK
    if data is None:
        raise click.UsageError("needs --data DIR, the folder with the measurements")
    try:
        other = None if predictor is None else read_predictor(predictor)
    except (ValueError, OSError) as error:
        raise WrongInputError(str(error)) from None
    found, left_out = _found(name, data)
    lines = [one for each in found.values() for one in each]
    if target is not None:
        _write_page(found, left_out, target)
    if rows_file is not None:
        _write_rows(lines, rows_file)
    say(_as_json(lines) if form == "json" else as_text(lines))
    if other is not None:
        say("\n".join(against(lines, other)))
    return OK


def _found(name: str | None, data: Path) -> tuple[dict[str, list[Line]], list[str]]:
    """The lines of one data set, or of all whose files are present, and those left out (also printed on stderr).

    Raises WrongInputError, one line.
    """
    from equipoise.calibrate.fit.fits import collective_predictor
    from equipoise.calibrate.fit.step_noise import fit_noise
    from equipoise.study.validation.rows import LeftOutWarning
    from equipoise.study.validation.run import FILES, run

    found: dict[str, list[Line]] = {}
    left_out: list[str] = []
    for each in FILES if name is None else [name]:
        missing = [file for file in FILES.get(each, ()) if not any(data.glob(file))]
        if missing and name is None:
            print(f"{each}: not run, {data / missing[0]} not found", file=sys.stderr)
            continue
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", LeftOutWarning)
                found[each] = run(each, data, {"nccl": collective_predictor, "jitter": fit_noise})
        except FileNotFoundError as error:
            raise WrongInputError(f"{error.filename}: no such file") from None
        except (ValueError, KeyError) as error:
            text = f"no column {error}" if isinstance(error, KeyError) else str(error)
            raise WrongInputError(text if each not in FILES else f"{each}: {text}") from None
        told = [str(w.message) for w in caught if issubclass(w.category, LeftOutWarning)]
        left_out += [f"{each}: {text}" for text in dict.fromkeys(told)]
    for text in left_out:
        print(f"note: {text}", file=sys.stderr)
    if not found:
        raise WrongInputError(f"{data}: contains none of the data sets")
    return found, left_out


def _write_page(found: dict[str, list[Line]], left_out: list[str], target: Path) -> None:
    from equipoise.study.validation.page import page

    before = target.read_text(encoding="utf-8") if target.exists() else ""
    write_whole(target, page(found, left_out, before))


def _write_rows(lines: list[Line], target: Path) -> None:
    with replacing(target) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["line", "key", "predicted", "low", "high", "measured"])
        for one in lines:
            if one.points is None:
                continue
            p = one.points
            for row in zip(p.keys, p.predicted, p.low, p.high, p.measured, strict=True):
                writer.writerow([one.what, row[0], *(f"{v:.6g}" for v in row[1:])])


def _as_json(lines: list[Line]) -> str:
    shown = [{f.name: getattr(one, f.name) for f in fields(one) if f.name != "points"} for one in lines]
    return json.dumps(plain(shown), indent=2)

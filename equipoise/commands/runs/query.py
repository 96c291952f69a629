"""query: query results with SQL."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from equipoise.base.json_values import plain
from equipoise.base.tables import aligned, as_csv
from equipoise.exit_codes import OK
from equipoise.options import CommandState, common, note, pass_state
from equipoise.study.terminal import printable

_BARE_USER = re.compile(r"""(?<![\w."])user(?![\w"(])""", re.IGNORECASE)


@click.command()
@click.argument("sql", required=False)
@click.option("--identity", "run", metavar="RUN", help="Show the hashes and versions that make up the identity of RUN.")
@click.option(
    "--out",
    default=".",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Folder of a sweep, a comparison or a run.",
)
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option(
    "--to", metavar="FILE", type=click.Path(dir_okay=False), help="Write a file instead: .csv, .json or .parquet."
)
@click.option("--allow-files", is_flag=True, help="Allow any SQL, including SQL that reads or writes other files.")
@common
@pass_state
def query(
    state: CommandState, sql: str | None, run: str | None, out: str, form: str, to: str | None, allow_files: bool
) -> int:
    """Query results with SQL (DuckDB).

    Tables: `runs`; from kept run directories `jobs`; from kept timelines `segments`, `usage`, `links`, `events`,
    `holdings`, `gpus` and `replicas`.

    Varied keys are columns with their dotted name: SELECT policy, "noise.step_cov", avg(makespan_s) FROM runs
    GROUP BY ALL.
    """
    import duckdb

    from equipoise.study.folders import check_target
    from equipoise.study.runs.query import ask

    if (sql is None) == (run is None):
        raise click.UsageError("needs either SQL or --identity RUN")
    if sql is None:
        click.echo(render(("of", "hash, version or value"), identity_of(Path(out), str(run)), form), nl=False)
        return OK
    if to is not None:
        check_target(to, (".csv", ".json", ".parquet"))
    try:
        names, rows = ask(Path(out), sql, None if to is None else Path(to), allow_files=allow_files)
    except duckdb.Error as error:
        if state.debug:
            raise
        raise click.UsageError(f"SQL: {' '.join(str(error).split())}") from error
    if _BARE_USER.search(re.sub(r"'[^']*'", "", sql)):
        note(state.quiet, 'in SQL, user without quotes is the current database user; the column is "user", in quotes')
    if to is not None:
        return OK
    click.echo(render(names, rows, form), nl=False)
    return OK


def identity_of(out: Path, run: str) -> list[tuple[str, str]]:
    """(input, hash or version) of all inputs of a run: `run` is a run directory, one below `out`, or a run of a sweep.

    Raises InputError when no such run is found.
    """
    from equipoise.sim.scenario.tree import InputError

    places = [folder / "manifest.json" for folder in (out / run, out / "runs" / run, Path(run))]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError([f"{run}: not a run directory (no {', no '.join(map(str, places))})"])
    try:
        manifest = json.loads(found.read_text(encoding="utf-8"))
        rows = [("identity", str(manifest["identity"]))]
        return rows + [(str(name), str(value)) for name, value in manifest["inputs"].items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError([f"{found}: not the manifest of a run ({error})"]) from error


def render(names: Sequence[str], rows: Sequence[tuple[Any, ...]], form: str) -> str:
    """Rows of a query as text: an aligned table, a JSON list of objects, or CSV."""
    if form == "json":
        return json.dumps([plain(dict(zip(names, row, strict=True))) for row in rows], indent=2) + "\n"
    if form == "csv":
        text = as_csv(names, rows)
        return printable(text) if sys.stdout.isatty() else text
    numeric = [all(isinstance(row[k], int | float | None) for row in rows) for k in range(len(names))]
    lines = aligned([[_text(value) for value in row] for row in (names, *rows)], numeric)
    return "".join(f"{line}\n" for line in lines)


def _text(value: Any) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return "-" if plain(value) is None else printable(shown).replace("\n", "\\n")

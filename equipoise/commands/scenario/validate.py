"""validate, schema: check files against the schema, and show the schema."""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict
from pathlib import Path

import click

from equipoise.base.tables import aligned
from equipoise.exit_codes import OK, WRONG_INPUT
from equipoise.options import common, note, say


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@common
def validate(files: tuple[str, ...]) -> int:
    """Check FILES: scenarios, sweeps, hardware profiles, price books; every mistake is one line on stderr."""
    from equipoise.sim.scenario.tree import InputError

    code = OK
    for name in files:
        try:
            kind, warnings = _validate(name)
            note(False, *warnings)
            say(f"{name}: {kind} ok")
        except InputError as error:
            note(False, *error.lines)
            code = WRONG_INPUT
    return code


def _validate(name: str) -> tuple[str, tuple[str, ...]]:
    from equipoise.sim.hardware.profile import load_profile
    from equipoise.sim.loading.file import read_scenario
    from equipoise.sim.scenario.tree import read_text, read_tree

    tree = read_tree(read_text(Path(name)), name)
    data = tree.data
    if isinstance(data, dict) and "accelerators" in data:
        load_profile(Path(name).resolve())
        return "hardware profile", ()
    if isinstance(data, dict) and "scenario" in data:
        from equipoise.study.runs.sweep import check

        check(Path(name))
        return "sweep", ()
    if isinstance(data, dict) and "cluster" not in data and {"gpu_hour", "tariff", "storage"} & set(data):
        from equipoise.sim.hardware.prices import load_book

        load_book(str(Path(name).resolve()))
        return "price book", ()
    if isinstance(data, dict) and "cluster" not in data and "regions" in data:
        from equipoise.sim.hardware.carbon import read_carbon

        read_carbon(Path(name).resolve())
        return "carbon file", ()
    file = read_scenario(name, tree=tree)
    if file.scenario.workload.trace is not None:
        file.trace()
    return "scenario", file.warnings


@click.command()
@click.argument("key", required=False)
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "markdown"]), help="Default: json, of a KEY table."
)
@common
def schema(key: str | None, form: str | None) -> None:
    """Print the JSON schema of scenario files, or the meaning of KEY (e.g. cluster.nodes).

    Save the schema and put `# yaml-language-server: $schema=FILE` on top of a scenario: editors then complete it.
    """
    form = form or ("json" if key is None else "table")
    if form == "json" and key is None:
        from equipoise.sim.loading.file import json_schema

        say(json.dumps(json_schema(), indent=2))
        return
    from equipoise.sim.scenario import reference

    if form == "markdown" and key is None:
        say(reference.page(), nl=False)
        return
    found = reference.under(key or "")
    if not found:
        names = [known.path for known in reference.all_keys()]
        close = difflib.get_close_matches(key or "", names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "see: equipoise schema --format table"
        raise click.UsageError(f"no key {key!r}; {hint}")
    if form == "json":
        say(json.dumps([asdict(row) for row in found], indent=2))
        return
    rows = [(row.path, row.kind, row.default or "needed", row.meaning) for row in found]
    say("\n".join(aligned([("key", "may be", "default", "meaning"), *rows])))

"""validate, schema: what a file may say, and whether it does."""

from __future__ import annotations

import json
from pathlib import Path

import click

from equipoise.exit_codes import OK, WRONG_INPUT
from equipoise.options import common, note


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
            click.echo(f"{name}: {kind} ok")
        except InputError as error:
            note(False, *error.lines)
            code = WRONG_INPUT
    return code


def _validate(name: str) -> tuple[str, tuple[str, ...]]:
    from equipoise.sim.hardware.profile import load_profile
    from equipoise.sim.loading.file import read_scenario
    from equipoise.sim.scenario.tree import read_text, read_tree

    data = read_tree(read_text(Path(name)), name).data
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
    file = read_scenario(name)
    if file.scenario.workload.trace is not None:
        file.trace()
    return "scenario", file.warnings


@click.command()
@common
def schema() -> None:
    """Print the JSON schema of scenario files.

    Save it and put `# yaml-language-server: $schema=FILE` on top of a scenario: editors then complete it.
    """
    from equipoise.sim.loading.file import json_schema

    click.echo(json.dumps(json_schema(), indent=2))

"""rerun: make a run again from its run directory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from equipoise.exit_codes import FAILURE, OK, WRONG_INPUT
from equipoise.options import CommandState, common, note, pass_state, say


@click.command()
@click.argument("run_dir", metavar="RUN", type=click.Path(file_okay=False))
@common
@pass_state
def rerun(state: CommandState, run_dir: str) -> int:
    """Make the run recorded in RUN again and compare its results byte by byte.

    Names the inputs that have changed since (code, trace, hardware profile, ...) and does not run if there are any.
    """
    from equipoise import api
    from equipoise.policies.registry import make_policy
    from equipoise.sim.inputs import run_inputs
    from equipoise.sim.record import versions
    from equipoise.study.folders import read_manifest

    folder = Path(run_dir)
    was = read_manifest(folder)
    case, trace, _ = api.prepare(folder / "config.yaml")
    policy, seed = make_policy(was["policy"]), int(was["seed"])
    now, before = run_inputs(case, policy, seed, trace), was.get("inputs", {})
    changed = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    changed += ["versions of the libraries"] if was.get("versions") != versions() else []
    if changed:
        note(False, *(f"equipoise: {folder}: changed since: {name}" for name in changed))
        return WRONG_INPUT
    with tempfile.TemporaryDirectory() as again:
        timeline, journal = (folder / "timeline").is_dir(), (folder / "journal.jsonl").is_file()
        api.run(case, policy=policy, seed=seed, trace=trace, out=again, timeline=timeline, journal=journal)
        tables = [folder / "summary.json", *folder.glob("journal.jsonl"), *sorted(folder.rglob("*.parquet"))]
        tables = [path.relative_to(folder) for path in tables]
        differ = [t for t in tables if not _equal(folder / t, Path(again) / t)]
    equal = f"{len(tables) - len(differ)} of {len(tables)} files of results are equal to the byte"
    say("\n".join([f"{folder}: {equal}.", *(f"differs: {table}" for table in differ)]))
    return FAILURE if differ else OK


def _equal(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()

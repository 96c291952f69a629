"""Tests of the tests by Cosmic Ray: which changes of `policies` and `sim` the suite notices.

    python tests/mutants.py [--draw 60] [--seed 1] [--keep FOLDER]

Draws mutants in a clone of the last commit, runs the tests on each, and prints the survivors and the share noticed.
Called again with the same `--keep`, it goes on where it stopped. `X | None` is left as it is: an annotation means
nothing to a test.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = f"""
[cosmic-ray]
module-path = ["policies", "sim"]
timeout = 1200.0
excluded-modules = []
test-command = "{sys.executable} -m pytest -x -q -n 2 tests/policies tests/sim tests/formats tests/features"
[cosmic-ray.distributor]
name = "local"
"""


def main() -> int:
    """Returns 1 when fewer than 80 % of the mutants were noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", type=int, default=60, help="so many mutants")
    parser.add_argument("--seed", type=int, default=1, help="another draw")
    parser.add_argument("--keep", type=Path, default=ROOT / ".mutation", help="the folder of the clone and its session")
    given = parser.parse_args()
    tree, session = given.keep / "tree", given.keep / "session.sqlite"
    if not session.exists():
        given.keep.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
        (given.keep / "cosmic-ray.toml").write_text(CONFIGURATION, encoding="utf-8")
        cosmic_ray("init", given.keep)
        draw(session, given.draw, given.seed)
    cosmic_ray("exec", given.keep)
    with sqlite3.connect(session) as database:
        survived = database.execute(
            "SELECT module_path, operator_name, start_pos_row FROM mutation_specs JOIN work_results USING (job_id) "
            "WHERE test_outcome = 'SURVIVED' ORDER BY 1, 3"
        ).fetchall()
        tried = database.execute("SELECT count(*) FROM work_results").fetchone()[0]
    for path, operator, line in survived:
        print(f"{path}:{line}: {operator.removeprefix('core/')}")
    noticed = 1 - len(survived) / tried
    print(f"{tried - len(survived)} of {tried} noticed, {noticed:.0%}")
    return int(noticed < 0.8)


def cosmic_ray(command: str, folder: Path) -> None:
    command_line = ["cosmic-ray", command, str(folder / "cosmic-ray.toml"), str(folder / "session.sqlite")]
    subprocess.run(
        [str(Path(sys.executable).with_name("cosmic-ray")), *command_line[1:]], cwd=folder / "tree", check=True
    )


def draw(session: Path, count: int, seed: int) -> None:
    """Leave `count` mutants of the session."""
    with sqlite3.connect(session) as database:
        found = database.execute(
            "SELECT job_id FROM mutation_specs WHERE operator_name NOT LIKE '%BitOr%' "
            "ORDER BY module_path, start_pos_row, start_pos_col, operator_name, occurrence"
        ).fetchall()
        kept = random.Random(seed).sample(found, min(count, len(found)))
        for table in ("mutation_specs", "work_items"):
            database.execute(
                f"DELETE FROM {table} WHERE job_id NOT IN ({','.join('?' * len(kept))})", [job for (job,) in kept]
            )


if __name__ == "__main__":
    sys.exit(main())

"""Which changes of the code no test notices: `python -m tests.mutation [--share S | --draw N] [--only FILE]`.

Cosmic Ray changes one operator, number or condition at a time in a copy of the tree (`.mutation/`), and tests that
are about the file are run. `--share` takes that share of each file that targets.py names, `--draw` so many of all
mutants of the rooms that decide results, each as likely as another. What was tried is kept in
`.mutation/tried.jsonl`, and a second start goes on: a mutant is tried again when its file changes, and a survivor
also when its tests do. Survivors are listed with their lines; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.targets import ROOMS, TESTS, noticing

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".mutation"
TREE = PLACE / "tree"
TRIED = PLACE / "tried.jsonl"
SECONDS_A_MUTANT = 600.0


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    operator: str
    occurrence: int
    line: int

    @property
    def name(self) -> str:
        """The same in every start."""
        return f"{self.path} {self.operator} {self.occurrence}"

    @property
    def lot(self) -> float:
        """In 0 .. 1, by what the mutant is, so that every start chooses alike."""
        return int(hashlib.sha256(self.name.encode()).hexdigest()[:8], 16) / 2**32


def main() -> int:
    """Returns 1 when a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Test the tests.")
    parser.add_argument("--share", type=float, default=0.02, help="of the mutants of each named file")
    parser.add_argument("--draw", type=int, default=0, help="so many of the mutants of all rooms instead")
    parser.add_argument("--only", default="", help="files whose path begins so; parted by commas")
    parser.add_argument("--lines", default="", help="A-B: all mutants of these lines, whatever the share")
    given = parser.parse_args()
    _copy_tree()
    os.chdir(TREE)
    files = [path for room in ROOMS for path in sorted(room_files(room))] if given.draw else list(TESTS)
    files = [path for path in files if path.startswith(tuple(given.only.split(",")))]
    mutants = [mutant for path in files for mutant in _mutants(path)]
    if given.lines:
        low, _, high = given.lines.partition("-")
        chosen = [mutant for mutant in mutants if int(low) <= mutant.line <= int(high or low)]
    elif given.draw:
        chosen = sorted(mutants, key=lambda mutant: mutant.lot)[: given.draw]
    else:
        chosen = [mutant for mutant in mutants if mutant.lot < given.share]
    known = _known()
    killed, survived, equal = 0, 0, 0
    for k, mutant in enumerate(chosen):
        kept = known.get(mutant.name)
        if kept is None or not _holds(kept, mutant):
            kept = _try(mutant)
        if kept["outcome"] != "survived":
            killed += 1
            continue
        if kept["change"] in EQUIVALENT.get(mutant.path, {}):
            equal += 1
            continue
        survived += 1
        print(f"{mutant.path}:{mutant.line}: {kept['change']}  [{k + 1} of {len(chosen)}]", flush=True)
    low_share, high_share = interval(killed, killed + survived)
    print(
        f"{len(chosen)} of {len(mutants)} mutants of {len({m.path for m in chosen})} files: {killed} killed, "
        f"{survived} survived, {equal} change nothing: "
        f"{killed / max(killed + survived, 1):.1%} killed (95 % interval {low_share:.1%} to {high_share:.1%})"
    )
    return 1 if survived else 0


def interval(hits: int, tries: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if tries == 0:
        return 0.0, 1.0
    z, share = 1.959964, hits / tries
    middle = share + z * z / (2 * tries)
    half = z * math.sqrt(share * (1 - share) / tries + z * z / (4 * tries * tries))
    return (middle - half) / (1 + z * z / tries), (middle + half) / (1 + z * z / tries)


def room_files(room: str) -> Iterator[str]:
    """The Python files of a room, or the file itself."""
    if (ROOT / room).is_file():
        yield room
    for path in (ROOT / room).rglob("*.py"):
        if path.name != "__init__.py":
            yield path.relative_to(ROOT).as_posix()


def _copy_tree() -> None:
    """The files as they are now, those not committed too, in a tree of their own."""
    shutil.rmtree(TREE, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, TREE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        elif source.is_file():
            shutil.copy2(source, target)


def _mutants(path: str) -> list[Mutant]:
    """All of a file, without those of annotations and of settings of data classes, which nothing reads."""
    source = (TREE / path).read_text()
    kept = PLACE / "mutants" / f"{path.replace('/', '-')}-{_digest(path)}.json"
    if not kept.is_file():
        # The library has optional parts that fail to import elsewhere; it is needed here alone.
        from cosmic_ray.commands.init import init
        from cosmic_ray.work_db import WorkDB

        kept.parent.mkdir(exist_ok=True)
        database = WorkDB(str(kept.with_suffix(".sqlite")), WorkDB.Mode.create)
        init([Path(path)], database, {})
        silent = list(_never_run(ast.parse(source)))
        found = [
            (m.operator_name, m.occurrence, m.start_pos[0])
            for item in database.work_items
            for m in item.mutations
            if not any(begin <= tuple(m.start_pos) < end for begin, end in silent)
        ]
        database.close()
        kept.with_suffix(".sqlite").unlink()
        kept.write_text(json.dumps(found))
    return [Mutant(path, *each) for each in json.loads(kept.read_text())]


def _never_run(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """(begin, end) as (line, column) of annotations, which stay text, and of `@dataclass(...)`."""
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.arg | ast.AnnAssign):
            found = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = [node.returns]
        elif isinstance(node, ast.ClassDef):
            found = [d for d in node.decorator_list if "dataclass" in ast.unparse(d)]
        for each in found:
            if each is not None:
                yield (
                    (each.lineno, each.col_offset),
                    (each.end_lineno or each.lineno, each.end_col_offset or 0),
                )


def _try(mutant: Mutant) -> dict[str, Any]:
    """Run the tests on the changed file, and keep what came of it."""
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_item import MutationSpec

    for test in noticing(mutant.path):
        _passes_unchanged(test)
    place = (
        (mutant.line, 0),
        (mutant.line, 1),
    )  # the library asks for it, and finds the change by its occurrence
    spec = MutationSpec(Path(mutant.path), mutant.operator, mutant.occurrence, *place)
    result = mutate_and_test([spec], shlex.join(_command(noticing(mutant.path))), SECONDS_A_MUTANT)
    _forget_kernels()
    diff = [line for line in (result.diff or "").splitlines() if line[:1] in ("+", "-")]
    changed = [line[1:].strip() for line in diff if line[:3] not in ("+++", "---")]
    kept = {
        "name": mutant.name, "line": mutant.line, "code": _digest(mutant.path),
        "tests": _digest(*noticing(mutant.path)), "change": " -> ".join(changed),
        "outcome": str(getattr(result.test_outcome, "value", result.worker_outcome)),
    }  # fmt: skip
    if kept["outcome"] not in ("survived", "killed"):
        raise SystemExit(f"{mutant.name}: {result.output}")
    _keep(kept)
    return kept


def _command(tests: list[str]) -> list[str]:
    os.environ["PYTHONPATH"] = str(TREE)
    os.environ["EQUIPOISE_KERNEL_CACHE"] = str(PLACE / "cache")
    (PLACE / "cache").mkdir(mode=0o700, exist_ok=True)
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--hypothesis-seed=0",
        *tests,
    ]


@cache
def _passes_unchanged(test: str) -> None:
    """Else every mutant would seem to be killed."""
    name, digest = f"unchanged {test}", _digest(test)
    if name in (known := _known()) and known[name]["tests"] == digest:
        return
    ended = subprocess.run(_command([test]), check=False, capture_output=True, text=True)
    if ended.returncode not in (0, 5):  # 5: all of its tests are long ones
        raise SystemExit(f"{test} fails without any change: {ended.stdout[-2000:]}")
    _keep({"name": name, "tests": digest})
    (PLACE / "kernels").write_text(",".join(path.name for path in (PLACE / "cache").glob("*/*")))


def _forget_kernels() -> None:
    """Those of mutants: each has all of its own."""
    ours = (PLACE / "kernels").read_text().split(",") if (PLACE / "kernels").is_file() else []
    for path in (PLACE / "cache").glob("*/*"):
        if path.name not in ours:
            shutil.rmtree(path)


def _holds(kept: dict[str, Any], mutant: Mutant) -> bool:
    same = kept["code"] == _digest(mutant.path)
    return same and (kept["outcome"] == "killed" or kept["tests"] == _digest(*noticing(mutant.path)))


@cache
def _digest(*paths: str) -> str:
    """Of the contents of files."""
    return hashlib.sha256(b"".join((ROOT / path).read_bytes() for path in paths)).hexdigest()[:16]


def _known() -> dict[str, dict[str, Any]]:
    if not TRIED.is_file():
        return {}
    return {kept["name"]: kept for kept in map(json.loads, TRIED.read_text().splitlines())}


def _keep(kept: dict[str, Any]) -> None:
    with TRIED.open("a") as file:
        file.write(json.dumps(kept) + "\n")


if __name__ == "__main__":
    sys.exit(main())

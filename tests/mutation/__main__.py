"""Which changes of the code no test notices.

`python -m tests.mutation [--draw N] [--seed S] [--only FILE] [--tests FILE]`.
Cosmic Ray changes one operator, number or condition at a time in a copy of the tree (`.mutation/tree`), and the
tests that reach its line are run, the quickest first. Which test reaches which line is found once by Coverage.py,
and again for a test file that changed. Both are kept in `.mutation/`, and a second start goes on: a mutant is tried
again when its file changes, and a survivor also when its tests do. Survivors are listed with their lines; the exit
code is then 1.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from typing import Any

from tests.mutation import reach
from tests.mutation.asked import Lines, Test
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import ROOT, Mutant, files, mutants, room_of
from tests.mutation.trial import Ended, Limits, digest, prepare, trial, written

PLACE = ROOT / ".mutation"
TREE = PLACE / "tree"
TRIED = PLACE / "tried.jsonl"
_FIRST = 20
"""So many tests are asked before the others."""


def main() -> int:
    """Returns 1 when a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Test the tests.")
    parser.add_argument("--draw", type=int, default=300, help="so many of all mutants")
    parser.add_argument("--seed", default="", help="another draw")
    parser.add_argument("--only", default="", help="files whose path begins so; parted by commas")
    parser.add_argument("--lines", default="", help="A-B: all mutants of these lines instead")
    parser.add_argument("--tests", default="", help="ask only test files whose path below tests/ begins so")
    given = parser.parse_args()
    _copy_tree()
    prepare(TREE, PLACE / "cache")
    asked = tuple(given.tests.split(","))
    reach.record(TREE, PLACE, asked)
    sources = {path: (TREE / path).read_text(encoding="utf-8") for path in files()}
    chosen = [
        mutant
        for path, source in sources.items()
        if path.startswith(tuple(given.only.split(",")))
        for mutant in mutants(path, source, PLACE / "mutants")
    ]
    total = len(chosen)
    if given.lines:
        low, _, high = given.lines.partition("-")
        chosen = [mutant for mutant in chosen if int(low) <= mutant.line <= int(high or low)]
    else:
        chosen = sorted(chosen, key=lambda mutant: mutant.lot(given.seed))[: given.draw]
    lines = Lines(TREE, PLACE, asked)
    known = _known()
    count: Counter[tuple[str, str]] = Counter()
    for k, mutant in enumerate(chosen):
        tests = lines.noticing(mutant.path, mutant.line)
        state = {
            "code": digest(TREE / mutant.path),
            "tests": digest(*(TREE / path for path in sorted({test.path for test in tests}))),
        }
        kept = known.get(mutant.name)
        if kept is None or kept["code"] != state["code"] or (
            kept["outcome"] == "survived" and kept["tests"] != state["tests"]
        ):  # fmt: skip
            begin_s = time.monotonic()
            kept = _try(mutant, sources[mutant.path], tests) | state
            kept |= {"asked": len(tests), "s": round(time.monotonic() - begin_s, 1)}
            _keep(kept)
        outcome = kept["outcome"]
        if outcome == "survived" and kept["change"] in EQUIVALENT.get(mutant.path, {}):
            outcome = "equal"
        count[room_of(mutant.path), outcome] += 1
        if outcome == "survived":
            why = "" if tests else "  (no test reaches it)"
            print(
                f"{mutant.path}:{mutant.line}: {kept['change']}{why}  [{k + 1} of {len(chosen)}]", flush=True
            )
    print(f"{len(chosen)} of {total} mutants")
    print(table(count))
    return 1 if any(outcome == "survived" for _, outcome in count) else 0


def table(count: Counter[tuple[str, str]]) -> str:
    """By room: how many were tried, and the share that was noticed, with its interval."""
    rooms = sorted({room for room, _ in count})
    rows = ["| room | tried | change nothing | killed | share | 95 % interval |", "|---|---|---|---|---|---|"]
    for room in [*rooms, "all"]:
        of = Counter[str]()
        for (at, outcome), n in count.items():
            if room in (at, "all"):
                of[outcome] += n
        tried = of["killed"] + of["survived"]
        low, high = interval(of["killed"], tried)
        share = f"{of['killed'] / max(tried, 1):.1%} | {low:.1%} to {high:.1%}"
        rows.append(f"| {room} | {tried} | {of['equal']} | {of['killed']} | {share} |")
    return "\n".join(rows)


def interval(hits: int, tries: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if tries == 0:
        return 0.0, 1.0
    z, share = 1.959964, hits / tries
    middle = share + z * z / (2 * tries)
    half = z * math.sqrt(share * (1 - share) / tries + z * z / (4 * tries * tries))
    return (middle - half) / (1 + z * z / tries), (middle + half) / (1 + z * z / tries)


def _copy_tree() -> None:
    """The files as they are now, those not committed too, in a tree of their own; what is the same stays."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    names = set(filter(None, listed.stdout.split("\0")))
    for path in TREE.rglob("*") if TREE.is_dir() else ():
        stale = path.is_symlink() or path.is_file()
        if stale and path.suffix != ".pyc" and path.relative_to(TREE).as_posix() not in names:
            path.unlink()
    for name in names:
        source, target = ROOT / name, TREE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.unlink(missing_ok=True)
            target.symlink_to(os.readlink(source))
        elif source.is_file() and not (target.is_file() and target.read_bytes() == source.read_bytes()):
            shutil.copy2(source, target)


def _try(mutant: Mutant, source: str, tests: list[Test]) -> dict[str, Any]:
    """Run the tests on the changed file; of those with compiled kernels only what fails twice has noticed it."""
    try:
        changed, change = mutant.change(source)
    except AttributeError:  # Cosmic Ray fails at some of `except (a.B, C)`
        return {"name": mutant.name, "line": mutant.line, "change": "none could be made", "outcome": "equal"}
    kept: dict[str, Any] = {"name": mutant.name, "line": mutant.line, "change": change, "outcome": "survived"}
    try:
        ast.parse(changed)
    except SyntaxError:
        return kept | {"outcome": "killed", "by": "syntax"}
    if not tests:
        return kept
    took_s = {test.name: test.seconds for test in tests}
    limits = Limits(lambda name: 30.0 + 10.0 * took_s.get(name, 1.0))
    with written(TREE / mutant.path, changed):
        for asked in _in_turn(tests):
            while asked:
                ended = _asked(mutant, asked, limits)
                if ended.code == 4 and "ERROR collecting" not in ended.said:  # there are no such tests
                    raise SystemExit(f"{mutant.name}: {ended.said}")
                if not ended.code:
                    break
                failed = [line for line in ended.said.splitlines() if line.startswith(("FAILED", "ERROR"))]
                by = failed[0][:200] if failed else f"exit code {ended.code}"
                which = [k for k, test in enumerate(asked) if by.startswith(f"FAILED {test.name} ")]
                if asked[0].plain or not which or _asked(mutant, [asked[which[0]]], limits).code:
                    return kept | {"outcome": "killed", "by": by}
                asked = asked[which[0] + 1 :]  # it failed by something else: the load, say
    return kept


def _in_turn(tests: list[Test]) -> list[list[Test]]:
    """The first ones alone: where they notice, no other file is imported. Those with plain kernels first."""
    parts = [[test for test in tests if test.plain == plain] for plain in (True, False)]
    return [some for part in parts for some in (part[:_FIRST], part[_FIRST:])]


def _asked(mutant: Mutant, tests: list[Test], limits: Limits) -> Ended:
    return trial(
        [test.name for test in tests], 90.0 + 5.0 * sum(test.seconds for test in tests), PLACE / "log",
        plain=tests[0].plain, kernels=_kernels(mutant.path), plugins=[limits],
    )  # fmt: skip


@cache
def _kernels(path: str) -> str:
    """The folder of compiled kernels as the code is without the change; none of it for what finds that folder."""
    if path in ("policies/kernels/jit.py", "policies/sources.py"):
        return ""
    return (PLACE / "kernels").read_text()


def _known() -> dict[str, dict[str, Any]]:
    if not TRIED.is_file():
        return {}
    return {kept["name"]: kept for kept in map(json.loads, TRIED.read_text().splitlines())}


def _keep(kept: dict[str, Any]) -> None:
    with TRIED.open("a") as file:
        file.write(json.dumps(kept) + "\n")


if __name__ == "__main__":
    sys.exit(main())

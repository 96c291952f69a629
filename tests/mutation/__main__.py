"""Which changes of the code no test notices: `python -m tests.mutation [--share S] [--only FILE] [--lines A-B]`.

Cosmic Ray changes one operator, number or condition at a time in a copy of the tree (`.mutation/`) and runs the
tests named here for the file. What was tried is kept in a session per file: a second start goes on, and begins anew
only for files that were changed. Survivors are listed with their lines; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.named import path_of

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".mutation"
TREE = PLACE / "tree"
SECONDS_A_MUTANT = 300.0

TESTS = {
    "policies/kernels/allocation.py": "kernels_edges kernels_allocation",
    "policies/kernels/deal.py": "kernels_edges policies/kernels",
    "policies/kernels/scaling.py": "kernels_allocation",
    "policies/kernels/dataflow.py": "policies/kernels s1",
    "policies/stages/s1.py": "s1 contract",
    "policies/stages/s2.py": "s2 contract",
    "policies/stages/s3.py": "s3 contract",
    "policies/stages/s4.py": "s4 contract",
    "policies/stages/guard.py": "guard s3",
    "sim/cluster/faults.py": "fault_times corrupt sim/world",
    "sim/cluster/cluster.py": "soak sim/world timeline",
    "sim/advance/periods.py": "small_sums advance timeline",
    "sim/advance/fast.py": "advance timeline",
    "sim/ledger/bill.py": "small_sums energy",
    "sim/ledger/costs.py": "energy",
    "sim/ledger/timeline.py": "timeline",
    "sim/cost/step.py": "cost advance",
    "sim/job/progress.py": "advance sim/world",
    "sim/world/stall.py": "robust_runs starvation",
    "live/decide/telemetry.py": "telemetry",
    "study/statistics.py": "statistics",
    "study/bounds.py": "bounds",
    "study/runs/store.py": "store damaged",
    "study/folders.py": "study_folders damaged",
}
"""Names of test files by file, the quickest first; a mutant is killed when one of their tests fails."""
EQUIVALENT = ("@dataclass(", "# fmt:", '"""')
"""Lines of which a change changes nothing that a test could see."""


def main() -> int:
    """Returns 1 when a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Test the tests.")
    parser.add_argument(
        "--share", type=float, default=0.02, help="of the mutants of each file, by a fixed choice"
    )
    parser.add_argument("--only", default="", help="files whose path begins so")
    parser.add_argument("--lines", default="", help="A-B: all mutants of these lines, whatever the share")
    given = parser.parse_args()
    chosen = [path for path in TESTS if path.startswith(given.only) and (ROOT / path).is_file()]
    low, _, high = given.lines.partition("-")
    lines = range(int(low), int(high or low) + 1) if low else None
    _copy_tree()
    tried = survived = 0
    for path in chosen:
        some, left = _mutate(path, given.share, lines)
        tried, survived = tried + some, survived + len(left)
        print(f"{path}: {some} mutants, {len(left)} survived", *left, sep="\n  ", flush=True)
    share = 1.0 - survived / tried if tried else 1.0
    print(f"{tried} mutants of {len(chosen)} files, {survived} survived: {share:.1%} killed")
    return 1 if survived else 0


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


def _mutate(path: str, share: float, lines: range | None) -> tuple[int, list[str]]:
    """(mutants that were tried, those that survived) of one file."""
    # The library has optional parts that fail to import elsewhere; it is needed here alone.
    from cosmic_ray.work_db import use_db

    tests = [path_of(name) for name in TESTS[path].split()]
    hashed = [(ROOT / name).read_bytes() for name in (path, *tests)]
    content = hashlib.sha256(b"".join(hashed)).hexdigest()[:12]
    session = PLACE / f"{path.replace('/', '-').removesuffix('.py')}-{content}.sqlite"
    config = session.with_suffix(".toml")
    command = f"{sys.executable} -m pytest -x -p no:cacheprovider --hypothesis-seed=0 {' '.join(tests)}"
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "{path}"\ntimeout = {SECONDS_A_MUTANT}\nexcluded-modules = []\n'
        f'test-command = "{command}"\n[cosmic-ray.distributor]\nname = "local"\n'
    )
    if not session.exists():
        if _in_tree(command.split(" ")) != 0:
            raise SystemExit(f"{path}: its tests fail without any change: {command}")
        _cosmic_ray("init", config, session)
    with use_db(session) as kept:
        pending = {item.job_id: item for item in kept.pending_work_items}
        later = [key for key, item in pending.items() if not _chosen(item, share, lines)]
    work = session.with_suffix(".now.sqlite")
    shutil.copy2(session, work)
    with use_db(work) as now:
        _leave_out(now, later)
    try:
        _cosmic_ray("exec", config, work)
    finally:
        _keep_results(work, session, set(later))
    with use_db(session) as kept:
        return len([1 for _ in kept.completed_work_items]), list(_survivors(kept, path))


def _in_tree(command: list[str]) -> int:
    """The exit code of a command in the copy, with kernels of its own."""
    environment = os.environ | {"PYTHONPATH": str(TREE), "EQUIPOISE_KERNEL_CACHE": str(PLACE / "cache")}
    (PLACE / "cache").mkdir(mode=0o700, exist_ok=True)
    ended = subprocess.run(command, cwd=TREE, env=environment, check=False, stdout=subprocess.DEVNULL)
    return ended.returncode


def _cosmic_ray(what: str, config: Path, session: Path) -> None:
    if code := _in_tree([sys.executable, "-m", "cosmic_ray.cli", what, str(config), str(session)]):
        raise SystemExit(f"cosmic-ray {what} ended with {code}")


def _chosen(item: object, share: float, lines: range | None) -> bool:
    """By what the mutant is, so that every start chooses alike."""
    mutation = item.mutations[0]  # type: ignore[attr-defined]
    if lines is not None:
        return mutation.start_pos[0] in lines
    what = f"{mutation.module_path} {mutation.operator_name} {mutation.occurrence}"
    return int(hashlib.sha256(what.encode()).hexdigest()[:8], 16) < share * 2**32


def _leave_out(now: object, keys: list[str]) -> None:
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    now.set_multiple_results(keys, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))  # type: ignore[attr-defined]


def _keep_results(work: Path, session: Path, left_out: set[str]) -> None:
    """What has been tried, also when the rest was interrupted."""
    from cosmic_ray.work_db import use_db

    with use_db(work) as now, use_db(session) as kept:
        known = {item.job_id for item in kept.completed_work_items}
        for key, result in now.results:
            if key not in left_out and key not in known:
                kept.set_result(key, result)
    work.unlink()


def _survivors(kept: object, path: str) -> Iterator[str]:
    for item, result in kept.completed_work_items:  # type: ignore[attr-defined]
        diff = [line for line in (result.diff or "").splitlines() if line[:1] in ("+", "-")]
        changed = [line[1:].strip() for line in diff if line[:3] not in ("+++", "---")]
        if result.test_outcome == "survived" and not changed[0].startswith(EQUIVALENT):
            yield f"{path}:{item.mutations[0].start_pos[0]}: {' -> '.join(changed)}"


if __name__ == "__main__":
    sys.exit(main())

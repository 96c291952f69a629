"""What is mutated, and the tests that are to notice."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.named import path_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("policies", "sim", "live", "study/runs/store.py")
"""Rooms, and a file, of which mutants are drawn."""

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
MOST = 12
"""Test files for a mutant of a file that is not named above."""


@cache
def noticing(path: str) -> list[str]:
    """The test files that are about a file: those that are named above, else those of its name, those that name its
    module, and then those of its folder, the smallest first.
    """
    if path in TESTS:
        return [path_of(name) for name in TESTS[path].split()]
    file = Path(path)
    module = "equipoise." + ".".join(file.with_suffix("").parts)
    room = ROOT / "tests" / file.parent
    while not any(room.glob("test_*.py")):
        room = room.parent
    all_tests = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda test: test.stat().st_size)
    named = [test for test in all_tests if test.name == f"test_{file.stem}.py"]
    naming = [test for test in all_tests if f"{module} import" in test.read_text()]
    near = [test for test in all_tests if test.parent == room]
    chosen = list(dict.fromkeys([*named, *naming, *near]))[:MOST]
    return [test.relative_to(ROOT).as_posix() for test in chosen]

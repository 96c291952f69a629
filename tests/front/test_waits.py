"""No test waits on the clock for luck: a sleep looks for an event until a deadline, or is part of a played case."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LEFT_OUT = ("bench",)
"""Measurements, which the suite does not run."""
DEADLINES = ("monotonic()", "poll()", "limit_s")
"""What is in a loop that ends, also when the event does not come: a time, or whether the process lives."""

PLAYED = {
    "calibrate/test_run.py": "a slow measurement",
    "campaign/job.py": "slow lines; the pace of training",
    "live/data/store.py": "a slow store",
    "live/data/training.py": "a slow rank; the runner's deadline ends a rank that waits for a newcomer",
    "live/decide/test_telemetry.py": "a step on half a device",
    "live/faulty_policies.py": "a policy that hangs",
    "live/group/test_launch.py": "a rank that is at work when its launcher ends",
    "live/group/test_lost_store.py": "a process that hangs; the pace of training",
    "live/group/test_regroup.py": "a rank that waits for a newcomer; the runner of ranks has a deadline",
    "live/group/test_restarts.py": "a rank that waits for the others; the launcher's test has a deadline",
    "live/queue/test_slurm_commands.py": "files that are closed after the pipe",
    "live/test_unsupported.py": "a rank that waits for the others; the runner of ranks has a deadline",
    "live/train/test_drift.py": "a slow exchange",
    "live/train/test_levels.py": "a rank that waits to be told of a death; the runner of ranks has a deadline",
    "live/train/test_pauses.py": "a pause of one rank; the runner of ranks has a deadline",
    "mutation/test_mutation.py": "a test that takes too long",
    "study/runs/sweeps/sweep_helpers.py": "runs that take a while",
    "study/runs/sweeps/test_sweep_dask.py": "the kill comes at a random time, and any is right",
    "study/runs/sweeps/test_sweep_dask_fire.py": "a slow network",
    "study/runs/sweeps/test_sweep_kills.py": "the kill comes at a random time, and any is right",
    "study/runs/test_study_hostile.py": "a run that takes long",
    "study/test_user_paths.py": "a slow rank",
    "study/twin/test_shared_device.py": "a rank on a smaller part of its device",
}
"""Files with sleeps outside of such loops, and what they play."""


def sleeps(text: str) -> Iterator[tuple[int, bool]]:
    """(line, whether it is in a loop with a deadline) of each sleep, also of programs in texts."""
    if "sleep" not in text:
        return
    tree = ast.parse(textwrap.dedent(text))
    waited = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.While) and any(word in ast.unparse(node) for word in DEADLINES)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
            yield node.lineno, id(node) in waited
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "time.sleep(" in node.value:
            try:
                inside = list(sleeps(node.value))
            except SyntaxError:
                continue
            yield from ((node.lineno, waits) for _, waits in inside)


def test_every_sleep_is_a_look_for_an_event_or_is_played() -> None:
    played, doubtful = set(), []
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        if name.startswith(LEFT_OUT) or path == Path(__file__):
            continue
        for line, waits in sleeps(path.read_text(encoding="utf-8")):
            if not waits and name in PLAYED:
                played.add(name)
            elif not waits:
                doubtful.append(f"{name}:{line}")
    assert not doubtful
    assert played == set(PLAYED)


def test_a_sleep_without_an_event_or_a_deadline_is_found() -> None:
    text = """
    while not done() and time.monotonic() < end_s:
        time.sleep(1)
    while not done():
        time.sleep(1)
    time.sleep(1)
    start("import time; time.sleep(60)")
    """
    assert sorted(sleeps(text)) == [(3, True), (5, False), (6, False), (7, False)]

"""Sweeps whose processes are killed, or whose disk is full, at random moments."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from equipoise.study.runs.sweep import SweepOptions, sweep
from tests.study.runs.sweeps import sweep_helpers
from tests.study.runs.sweeps.sweep_helpers import write_sweep
from tests.study.runs.sweeps.test_sweep import results

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
SEEDS = 25
RUNS = 4 * SEEDS


class Zygote:
    """Starts sweeps in processes that can be killed."""

    def __init__(self, file, log):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "EQUIPOISE_TEST_LOG": str(log)}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "sweep_zygote.py"), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def start(self, out, *, jobs=1, runner="quick", **more):
        self.process.stdin.write(json.dumps({"out": str(out), "jobs": jobs, "runner": runner, **more}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait(self):
        """Exit code of the sweep, or minus the signal that killed it."""
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    sweep(write_sweep(folder, seeds=SEEDS), folder / "out", SweepOptions(), runner=sweep_helpers.quick)
    return results(folder / "out")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    zygote = Zygote(write_sweep(folder, seeds=SEEDS), folder / "calls")
    yield folder, zygote
    zygote.process.stdin.close()
    zygote.process.wait()


@pytest.fixture
def clean(place):
    folder, zygote = place
    (folder / "calls").unlink(missing_ok=True)
    yield folder, zygote
    subprocess.run(["rm", "-rf", str(folder / "out")], check=True)


def calls(folder):
    path = folder / "calls"
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()


def until_some_are_made(folder, count):
    limit_s = time.monotonic() + 60
    while sum(calls(folder).values()) < count:
        assert time.monotonic() < limit_s, "the sweep does not get on"
        time.sleep(0.002)


def children(pid):
    """Processes that make runs for the sweep `pid`: the children of its fork server."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found.setdefault(int(fields[1]), []).append(int(entry.name))
    return [worker for server in found.get(pid, []) for worker in found.get(server, [])]


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.long
def test_five_kills_of_workers_in_one_sweep(clean, undisturbed):
    folder, zygote = clean
    dice = random.Random(2)
    pid = zygote.start(folder / "out", jobs=2, runner="slow")
    for number in range(1, 6):
        until_some_are_made(folder, 12 * number + dice.randrange(6))
        time.sleep(dice.random() * 0.03)
        workers = children(pid)
        kill(dice.choice(workers))
    assert zygote.wait() == 0
    assert results(folder / "out") == undisturbed
    repeated = calls(folder)
    assert len(repeated) == RUNS
    assert sum(repeated.values()) <= RUNS + 5


def test_two_kills_of_everything(clean, undisturbed):
    folder, zygote = clean
    dice = random.Random(3)
    for number in (1, 2):
        pid = zygote.start(folder / "out", jobs=2, runner="slow")
        until_some_are_made(folder, 20 * number + dice.randrange(10))
        for victim in [*children(pid), pid]:
            kill(victim)
        assert zygote.wait() == -signal.SIGKILL
    zygote.start(folder / "out")
    assert zygote.wait() == 0
    assert results(folder / "out") == undisturbed
    assert sum(calls(folder).values()) <= RUNS + 2 * 2


def test_a_killed_coordinator_leaves_no_workers(clean):
    folder, zygote = clean
    pid = zygote.start(folder / "out", jobs=2, runner="slow")
    until_some_are_made(folder, 4)
    workers = children(pid)
    assert len(workers) == 2
    kill(pid)
    zygote.wait()
    limit_s = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < limit_s, "workers outlive the sweep"
        time.sleep(0.01)

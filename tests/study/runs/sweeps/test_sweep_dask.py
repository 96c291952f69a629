"""A sweep on a Dask scheduler and two workers that are processes of their own."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from distributed import Client

from equipoise.study.runs import dask_cluster
from equipoise.study.runs.engine import EngineError
from equipoise.study.runs.make import engine
from equipoise.study.runs.perform import Shared
from equipoise.study.runs.sweep import SweepOptions, sweep
from tests.study.runs.sweeps import sweep_helpers
from tests.study.runs.sweeps.sweep_helpers import write_sweep
from tests.study.runs.sweeps.test_sweep import results

ROOT = Path(__file__).resolve().parents[4]
SEEDS = 15
RUNS = 4 * SEEDS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(address, pids of two workers, file that notes every run)."""
    folder = tmp_path_factory.mktemp("dask")
    contact, log = folder / "scheduler.json", folder / "calls"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "EQUIPOISE_TEST_LOG": str(log)}

    def start(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments], cwd=folder, env=environment, stderr=subprocess.DEVNULL
        )

    common = ("--no-dashboard", "--scheduler-file", str(contact))
    scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", *common)
    workers = [start("worker", *common, "--nthreads", "1", "--no-nanny") for _ in range(2)]
    try:
        wait_until(lambda: contact.exists() and contact.read_text().rstrip().endswith("}"))
        address = json.loads(contact.read_text())["address"]
        with Client(address) as client:
            client.wait_for_workers(2, timeout=60)
        yield address, workers, log
    finally:
        for process in [*workers, scheduler]:
            process.kill()
            process.wait()


def wait_until(true):
    limit_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < limit_s, "nothing happens"
        time.sleep(0.005)


def calls(log):
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


@pytest.mark.long
def test_one_of_two_workers_is_killed_and_only_its_run_repeats(tmp_path, cluster):
    address, workers, log = cluster
    file = write_sweep(tmp_path, seeds=SEEDS)
    sweep(file, tmp_path / "here", runner=sweep_helpers.quick)
    dice = random.Random(5)

    def kill_one():
        wait_until(lambda: sum(calls(log).values()) >= RUNS // 3)
        time.sleep(dice.random() * 0.03)
        workers[0].kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    outcome = sweep(file, tmp_path / "dask", SweepOptions(dask=address), runner=sweep_helpers.slow)
    killer.join()
    assert (outcome.made, outcome.failed) == (RUNS, ())
    assert results(tmp_path / "dask") == results(tmp_path / "here")
    made = calls(log)
    assert len(made) == RUNS
    assert sum(made.values()) <= RUNS + 1


def test_workers_of_another_version_are_refused(cluster):
    with pytest.raises(EngineError, match="other code"), engine(Shared((), "0" * 16), dask=cluster[0]):
        pass


def test_no_scheduler_there(monkeypatch):
    monkeypatch.setattr(dask_cluster, "CONNECT_S", 0.5)
    with (
        pytest.raises(EngineError, match="no Dask scheduler answers"),
        engine(Shared((), ""), dask="tcp://127.0.0.1:9"),
    ):
        pass

"""A sweep on a Dask cluster whose scheduler dies, and whose network is cut and slow: every run is kept once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import dask
import pytest
from distributed import Client

from equipoise.study.runs.engines.engine import EngineError
from equipoise.study.runs.store import connect
from equipoise.study.runs.sweep import SweepOptions, sweep
from tests.study.runs.sweeps import sweep_helpers
from tests.study.runs.sweeps.sweep_helpers import write_sweep
from tests.study.runs.sweeps.test_sweep import results
from tests.study.runs.sweeps.test_sweep_dask import ROOT, calls, wait_until

pytestmark = pytest.mark.long
SEEDS = 5
RUNS = 4 * SEEDS


class Wire:
    """Hands bytes on between whoever connects and one address, each part `delay_s` late, until it is cut."""

    def __init__(self, address: str, delay_s: float = 0.0) -> None:
        there = urlsplit(address)
        self.target, self.delay_s, self.open = (there.hostname, there.port), delay_s, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self.listener.accept()
                there = socket.create_connection(self.target)
                self.open += [here, there]
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, reads: socket.socket, writes: socket.socket) -> None:
        with suppress(OSError):
            while part := reads.recv(65_536):
                time.sleep(self.delay_s)
                writes.sendall(part)
        for end in (reads, writes):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Nothing passes from now on, and nobody can connect."""
        for end in (self.listener, *self.open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Cluster:
    """A scheduler and workers that are processes of their own; each worker has a wire to the scheduler."""

    def __init__(self, folder: Path, workers: int, delay_s: float = 0.0) -> None:
        folder.mkdir()
        self.log, contact = folder / "calls", folder / "scheduler.json"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "EQUIPOISE_TEST_LOG": str(self.log)}

        def start(*words: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
            return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)

        local = ("--host", "127.0.0.1", "--port", "0")
        self.scheduler = start("scheduler", *local, "--scheduler-file", str(contact))
        self.processes = [self.scheduler]
        wait_until(lambda: contact.exists() and contact.read_text().rstrip().endswith("}"))
        self.address = json.loads(contact.read_text())["address"]
        self.wires = [Wire(self.address, delay_s) for _ in range(workers)]
        self.processes += [start("worker", wire.address, "--nthreads", "1", "--no-nanny") for wire in self.wires]
        with Client(self.address) as client:
            client.wait_for_workers(workers, timeout=120)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for wire in self.wires:
            wire.cut()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[list[Cluster]]:
    made: list[Cluster] = []
    # A client asks for a scheduler that has gone so long before it says so.
    with dask.config.set({"distributed.comm.timeouts.connect": "5s"}):
        yield made
    for cluster in made:
        cluster.end()


def when_a_third_is_made(log: Path, what) -> threading.Thread:
    def wait() -> None:
        wait_until(lambda: sum(calls(log).values()) >= RUNS // 3)
        what()

    waiting = threading.Thread(target=wait)
    waiting.start()
    return waiting


def kept_once(out: Path, here: Path) -> None:
    """All runs are there, once each, and equal to those that were made without a cluster."""
    with connect(out) as found:
        counted = found.execute("SELECT count(*), count(DISTINCT id) FROM runs WHERE status = 'done'").fetchall()
    assert counted == [(RUNS, RUNS)]
    assert results(out) == results(here)


@pytest.mark.parametrize("what", ["the scheduler is killed", "the network is cut"])
def test_what_is_made_is_kept_and_the_rest_is_made_afterwards(
    what: str, tmp_path: Path, clusters: list[Cluster]
) -> None:
    file = write_sweep(tmp_path / "sweep", seeds=SEEDS)
    sweep(file, tmp_path / "here", runner=sweep_helpers.quick)
    clusters.append(cluster := Cluster(tmp_path / "first", 2))
    wire = Wire(cluster.address)
    cuts = cluster.scheduler.kill if what == "the scheduler is killed" else wire.cut
    waiting = when_a_third_is_made(cluster.log, cuts)
    with pytest.raises(EngineError):
        sweep(file, tmp_path / "dask", SweepOptions(dask=wire.address), runner=sweep_helpers.slow)
    waiting.join()
    cluster.end()
    with connect(tmp_path / "dask") as found:
        ((before,),) = found.execute("SELECT count(*) FROM runs WHERE status = 'done'").fetchall()
    assert 0 < before < RUNS
    clusters.append(second := Cluster(tmp_path / "second", 1))
    outcome = sweep(file, tmp_path / "dask", SweepOptions(dask=second.address), runner=sweep_helpers.slow)
    assert outcome.made == RUNS - before
    assert sum(calls(second.log).values()) == RUNS - before
    kept_once(tmp_path / "dask", tmp_path / "here")


def test_a_worker_that_is_cut_off_loses_no_run(tmp_path: Path, clusters: list[Cluster]) -> None:
    file = write_sweep(tmp_path / "sweep", seeds=SEEDS)
    sweep(file, tmp_path / "here", runner=sweep_helpers.quick)
    clusters.append(cluster := Cluster(tmp_path / "first", 2))
    waiting = when_a_third_is_made(cluster.log, cluster.wires[0].cut)
    outcome = sweep(file, tmp_path / "dask", SweepOptions(dask=cluster.address), runner=sweep_helpers.slow)
    waiting.join()
    assert (outcome.made, outcome.failed) == (RUNS, ())
    kept_once(tmp_path / "dask", tmp_path / "here")


def test_a_slow_network_loses_no_run_and_repeats_none(tmp_path: Path, clusters: list[Cluster]) -> None:
    file = write_sweep(tmp_path / "sweep", seeds=SEEDS)
    sweep(file, tmp_path / "here", runner=sweep_helpers.quick)
    clusters.append(cluster := Cluster(tmp_path / "first", 2, delay_s=0.02))
    wire = Wire(cluster.address, delay_s=0.05)
    outcome = sweep(file, tmp_path / "dask", SweepOptions(dask=wire.address), runner=sweep_helpers.slow)
    assert (outcome.made, outcome.failed) == (RUNS, ())
    assert sum(calls(cluster.log).values()) == RUNS
    kept_once(tmp_path / "dask", tmp_path / "here")

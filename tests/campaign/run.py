"""Makes one run of the campaign and judges it."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.campaign import job
from tests.campaign.plan import Plan

STARTS_MAX = 4
HANG_S = 150.0  # without the planned stops
STANDSTILL_S = ENDS_WITHIN_S = 20.0
_NETWORK_OF_ITS_OWN = 0x40000000  # CLONE_NEWNET


def own_network() -> bool:
    """Give this process, and those it starts, a network that can be cut; whether that is possible here."""
    if ctypes.CDLL(None).unshare(_NETWORK_OF_ITS_OWN) != 0:
        return False
    return _network("up")


def _network(state: str) -> bool:
    return subprocess.run(["ip", "link", "set", "lo", state], check=False).returncode == 0


class Run:
    """One job, started again while it may stop and has not finished."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.processes: list[Any] = []
        self.limit_s = HANG_S + sum(fault.seconds for fault in plan.faults)
        self.problems: list[str] = []
        self.stops = 0
        self._wakes: dict[int, float] = {}
        self._up_s = 0.0

    def log(self) -> list[dict[str, Any]]:
        """What the processes have noted."""
        path = self.folder / "log"
        return job.noted(path) if path.exists() else []

    def go(self) -> None:
        """From the start to the end of training."""
        for _ in range(STARTS_MAX):
            began_s = time.time()
            self._start()
            self._watch(began_s)
            if self.problems or any(line["what"] == "trained" for line in self.log()):
                return
            self.stops += 1
            if not self.plan.may_stop:
                self.problems.append("stopped, though nothing had happened that may stop it")
                return
        self.problems.append(f"{STARTS_MAX} times started and never finished")

    def _start(self) -> None:
        for name in ("address", "join-asked", "net-asked"):
            (self.folder / name).unlink(missing_ok=True)
        address = None
        if self.plan.apart:
            self.processes.append(job._Process(job.serve, self.folder))
            limit_s = time.monotonic() + 120.0
            while not (self.folder / "address").exists():
                assert time.monotonic() < limit_s, "no store is served"
                time.sleep(0.02)
            address = (self.folder / "address").read_text().strip()
        self.processes.append(job._Process(job.launch, self.folder, self.plan, address, False, job.fork_server()))

    def _watch(self, began_s: float) -> None:
        """Until nobody of the job is left."""
        while True:
            time.sleep(0.05)
            log = self.log()
            pids = {line["pid"] for line in log if line["what"] in ("rank", "launcher", "joiner")}
            alive = {pid for pid in pids if _lives(pid)}
            if self._help(alive):
                continue
            launched = any(line["what"] == "launcher" and line["at_s"] >= began_s for line in log)
            if launched and not alive and not self._up_s:
                break
            if time.time() - began_s > self.limit_s:
                self.problems.append(f"hangs: {sorted(self._names(log)[pid] for pid in alive)} still run")
                break
        for pid in {line["pid"] for line in self.log()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait(10)

    def _help(self, alive: set[int]) -> bool:
        """Wake who sleeps, cut and mend the network, start who joins; whether somebody still sleeps."""
        now = time.time()
        for path in self.folder.glob("wake-*"):
            self._wakes[int(path.name[5:])] = now + float(path.read_text())
            path.unlink()
        for pid, at_s in list(self._wakes.items()):
            if now > at_s or pid not in alive:
                del self._wakes[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        net = self.folder / "net-asked"
        if net.exists():
            self._up_s = now + float(net.read_text())
            net.unlink()
            _network("down")
        if self._up_s and now > self._up_s:
            _network("up")
            self._up_s = 0.0
        join = self.folder / "join-asked"
        if join.exists() and (self.folder / "err-launcher").exists():
            join.unlink()
            said = re.findall(r"store on (\S+)", (self.folder / "err-launcher").read_text())
            self.processes.append(job._Process(job.launch, self.folder, self.plan, said[-1], True, job.fork_server()))
        return bool(self._wakes)

    def _names(self, log: list[dict[str, Any]]) -> dict[int, str]:
        return {
            line["pid"]: f"{line['what']} {line.get('member', '')}".strip()
            for line in log
            if line["what"] in ("rank", "launcher", "joiner", "store")
        }

    # -- judging -------------------------------------------------------------------------------------------

    def judge(self) -> dict[str, Any]:
        """The run as a row: what happened, what was wrong."""
        log = self.log()
        faults = [line for line in log if line["what"] == "fault"]
        if not self.problems:
            self._samples(log)
        standstill_s = self._standstill(log, faults)
        if standstill_s > STANDSTILL_S:
            self.problems.append(f"stood still for {standstill_s:.1f} s after the last death")
        ended_s = self._ended(log, faults)
        self._said(log, faults)
        return {
            "seed": self.plan.seed,
            "ranks": self.plan.ranks,
            "interval": self.plan.interval,
            "faults": [f"{f['fault']} {f['where']}" for f in faults],
            "stops": self.stops,
            "standstill_s": round(standstill_s, 2),
            "ended_s": round(ended_s, 2),
            "problems": self.problems,
        }

    def _samples(self, log: list[dict[str, Any]]) -> None:
        """Every sample once, by the weights, which are the same on all ranks."""
        seen = [line["seen"] for line in log if line["what"] == "trained"]
        if any(other != seen[0] for other in seen[1:]):
            self.problems.append("ranks ended with other weights")
        # With local steps a sample weighs as much as the replica that it was trained on, which is never nothing.
        if self.plan.alone:
            lost = sum(n == 0.0 for n in seen[0])
            double = sum(line["samples"] for line in log if line["what"] == "again")
        else:
            lost, double = sum(n < 0.999999 for n in seen[0]), sum(n > 1.000001 for n in seen[0])
        if lost or double:
            self.problems.append(f"{lost} samples lost, {double} doubled: {Counter(round(n, 3) for n in seen[0])}")

    def _standstill(self, log: list[dict[str, Any]], faults: list[dict[str, Any]]) -> float:
        """The longest time between two rounds of a rank that was never stopped, from the last fault in it on."""
        stopped = {f["pid"] for f in faults if f["fault"] == "stop"}
        cuts = {
            f["at_s"]: fault.seconds for f in faults for fault in self.plan.faults if f["fault"] == "net" == fault.what
        }
        longest = 0.0
        for pid in {line["pid"] for line in log if line["what"] == "round"} - stopped:
            times = [line["at_s"] for line in log if line["pid"] == pid and line["what"] in ("round", "trained")]
            for before, after in itertools.pairwise(times):
                hits = [f["at_s"] + cuts.get(f["at_s"], 0.0) for f in faults if before <= f["at_s"] < after]
                longest = max(longest, *(after - hit for hit in hits[-1:]), 0.0)
        return longest

    def _ended(self, log: list[dict[str, Any]], faults: list[dict[str, Any]]) -> float:
        """Seconds from the death of the store's host until the last rank's last word."""
        deaths = [f["at_s"] for f in faults if f["fault"] in ("launcher", "store")]
        if not deaths or not self.stops:
            return 0.0
        ends = [path.stat().st_mtime for path in self.folder.glob("err-[0-9]*") if path.stat().st_size]
        again = min(
            (line["at_s"] for line in log if line["what"] == "launcher" and line["at_s"] > deaths[0]), default=0.0
        )
        took_s = again - deaths[0] if again else max(ends, default=0.0) - deaths[0]
        if took_s > ENDS_WITHIN_S + 1.0:
            self.problems.append(f"ended {took_s:.1f} s after the death of the store's host")
        return took_s

    def _said(self, log: list[dict[str, Any]], faults: list[dict[str, Any]]) -> None:
        """One line for each thing that happened to a rank, and no page; in brackets, lines of PyTorch's own."""
        for path in self.folder.glob("err-[0-9]*"):
            lines = [line for line in path.read_text().splitlines() if line.strip()]
            strange = [line for line in lines if not re.match(r"equipoise: |EvictedError: |\[", line)]
            if strange:
                self.problems.append(f"said: {strange[0][:200]}")
            ends = sum(" ends: " in line for line in lines)
            if ends > 1:
                self.problems.append(f"{ends} last lines of one rank")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def make_run(plan: Plan, keep: Path | None = None) -> dict[str, Any]:
    """The row of one run; a run with problems is kept in `keep`."""
    folder = Path(tempfile.mkdtemp(prefix="equipoise-campaign-"))
    began_s = time.monotonic()
    try:
        run = Run(plan, folder)
        run.go()
        row = run.judge() | {"took_s": round(time.monotonic() - began_s, 1)}
        if row["problems"] and keep is not None:
            shutil.copytree(folder, keep / str(plan.seed), dirs_exist_ok=True, symlinks=True)
        return row
    finally:
        shutil.rmtree(folder, ignore_errors=True)

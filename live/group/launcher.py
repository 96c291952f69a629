"""Starts, watches and restarts the processes of one job on this machine, or on the hosts of a list.

A worker that dies is restarted as a new member that joins, while restarts are left. When no member is left that
it could join, the job begins a new era: all its launchers restart their founders, which resume from the last
checkpoint. The store outlives eras; keys of one era are not visible in another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.base.numerals import strict_int
from equipoise.live.group import hosts
from equipoise.live.group.admission import AdmissionLog
from equipoise.live.group.hosting import DESERTED, TOKEN, WORKER, Eras, host_store, own_token, reach_store
from equipoise.live.group.lifeline import reached

_POLL_S = 0.05
_GRACE_S = 30.0  # for scripts that save a checkpoint on SIGTERM


@dataclass
class Worker:
    """One process; `founder` is the rank that it had at the start of its era (-1: it came later)."""

    process: subprocess.Popen[bytes]
    host: str  # empty: this machine
    local: int
    founder: int
    name: str  # key under which it stores its member id
    leaving: bool = False  # its host is no longer on the list


class Launcher:
    """The store and the processes of one job."""

    def __init__(
        self, host: str = "127.0.0.1", store: str | None = None, *, restarts: int = 0, remote: str = ""
    ) -> None:
        """Hosts a store on `host`, or uses the one at `store` ("host:port") with the token of the environment.

        restarts: how many dead workers are restarted. remote: the command that reaches another machine.
        """
        token = own_token()
        if store is None:
            self._server = host_store(host)
        else:
            host, _, port = store.rpartition(":")
            reached(host, strict_int(port)).close()
            self._server = reach_store(host, strict_int(port))
        self._eras = Eras(self._server, token)
        self.token, self._store = token, self._eras.store
        self.address = f"{host}:{self._server.port}"
        self.workers: list[Worker] = []  # running
        self._world = 0
        if store is None:
            AdmissionLog(self._server, token, lambda: max(self._world, len(self.workers)))
        self.restarts_left, self._remote = restarts, remote
        self._codes: dict[str, int] = {}  # of ended workers
        self._started = 0

    @property
    def is_done(self) -> bool:
        """Whether the job has finished training."""
        return bool(self._store.check(["done"]))

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The running processes."""
        return [worker.process for worker in self.workers]

    def start(
        self,
        command: Sequence[str],
        ranks: int,
        *,
        nodes: int = 1,
        node: int = 0,
        listed: hosts.HostList | None = None,
        **environment: str,
    ) -> None:
        """Start the `ranks` founders of one node, or those of all listed hosts."""
        self._command, self._environment, self._listed = command, environment, listed
        self._ranks, self._nodes, self._first = {"": ranks}, nodes, node * ranks
        self._found()

    def join(self, command: Sequence[str], ranks: int) -> None:
        """Start `ranks` members that join the running job."""
        self._command, self._environment, self._listed = command, {}, None
        self._ranks, self._nodes, self._first = {}, 0, 0
        self._store.set("strangers", "1")  # there is a second launcher
        for local in range(ranks):
            self._start("", local, -1)

    def _found(self) -> None:
        """Start the founders of an era."""
        counts = self._ranks if self._listed is None else self._listed.ranks
        rank, self._world = self._first, self._nodes * sum(counts.values())
        for host, count in counts.items():
            for local in range(count):
                self._start(host, local, rank)
                rank += 1

    def _start(self, host: str, local: int, founder: int) -> None:
        self._started += 1
        name = f"{self._first}.{os.getpid()}.{self._started}"
        store_host, _, port = self.address.rpartition(":")
        told = {
            "EQUIPOISE_STORE": self.address,
            TOKEN: self._eras.token,
            WORKER: name,
            "MASTER_ADDR": store_host,
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is hosted already
            "LOCAL_RANK": str(local),
            **({"RANK": str(founder), "WORLD_SIZE": str(self._world)} if founder >= 0 else {"EQUIPOISE_JOIN": "1"}),
            **self._environment,
        }
        far = [] if not host or hosts.is_here(host) else [*self._remote.split(), host]
        # PyTorch would print a page about a lost store.
        inherited = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ}
        self.workers.append(Worker(hosts.start(self._command, told, inherited, far), host, local, founder, name))

    def wait(self) -> int:
        """Wait for all processes; returns 0 if any rank finished training, else the first failure's exit code."""
        while self.workers:
            ended = [worker for worker in self.workers if worker.process.poll() is not None]
            self.workers = [worker for worker in self.workers if worker not in ended]
            dead = [worker for worker in ended if self._died(worker)]
            if self._listed is not None and self._listed.changed():
                self._follow(self._listed.ranks)
            if dead and self.restarts_left and self._is_deserted():
                self._begin_again()
            elif not self.is_done:
                for worker in dead[: self.restarts_left]:
                    self.restarts_left -= 1
                    self._start(worker.host, worker.local, worker.founder)
            time.sleep(_POLL_S)
        if 0 in self._codes.values():
            return 0
        return next((1 if code < 0 else code for code in self._codes.values()), 0)

    def _died(self, worker: Worker) -> bool:
        """Whether an ended process died early; if so, the members are told."""
        code = worker.process.returncode
        if not worker.leaving:
            self._codes[worker.name] = code
        if code == 0:
            return False
        member = self._member(worker)
        if member is not None:
            self._store.set(f"dead/{member}", str(code))
        where = f" on {worker.host}" if worker.host else ""
        name = f"rank {worker.founder if member is None else member}"
        print(f"equipoise: {name}{where} died ({_cause(code)})", file=sys.stderr)
        if member is not None and self._store.check([DESERTED]) and self._store.check([f"join/{member}"]):
            self.restarts_left += not self._store.check([f"admit/{member}"])  # no member could admit it
        return not worker.leaving

    def _is_deserted(self) -> bool:
        """Whether no member is left that a worker could join."""
        if self._store.check([DESERTED]):
            return True
        alone = self._nodes == 1 and not self.workers and not self._store.check(["strangers"])
        return alone and 0 not in self._codes.values()

    def _member(self, worker: Worker) -> int | None:
        """The member id of a worker; a founder's is known before it stores it."""
        key = f"worker/{worker.name}"
        if self._store.check([key]):
            return int(self._store.get(key))
        taken = worker.founder < 0 or self._store.check([f"dead/{worker.founder}"])
        return None if taken else worker.founder

    def _begin_again(self) -> None:
        """Begin the next era: end waiting workers, and start its founders."""
        self.restarts_left -= 1
        print("equipoise: no member is left in the job; it restarts from its last checkpoint", file=sys.stderr)
        self.stop()
        self._store = self._eras.next()
        self._found()

    def _follow(self, wanted: dict[str, int]) -> None:
        """Start ranks on newly listed hosts, and have ranks of removed hosts leave."""
        for host in {worker.host for worker in self.workers} | set(wanted):
            here = [worker for worker in self.workers if worker.host == host and not worker.leaving]
            for worker in here[wanted.get(host, 0) :]:
                member = self._member(worker)
                worker.leaving = True
                if member is None:  # it is still joining
                    worker.process.terminate()
                    continue
                self._store.set(f"leave/{member}", "1")
                self._store.add("joining", 1)
            for local in range(len(here), wanted.get(host, 0)):
                self._start(host, local, -1)
        print(f"equipoise: hosts now: {', '.join(f'{h}:{n}' for h, n in wanted.items())}", file=sys.stderr)

    def stop(self) -> None:
        """End every running process."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.workers.clear()


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"

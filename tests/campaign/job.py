"""The processes of one run: a launcher, a store, a slow way to it, and ranks that hurt themselves as planned.

Every process is forked from one that has everything imported. The weights count: each sample has a parameter of
its own, which one step on a batch with it moves by 1/BATCH. So what was trained on is read from the model, whoever
died and from whichever checkpoint it went on.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests.campaign.plan import EARLY, PHASES, ROUNDS, Fault, Plan
from tests.live.ranks import _context

BATCH = 12
SAMPLES = BATCH * ROUNDS
PACE_S = 0.02  # of a round


class _Process:
    """A forked process, as the launcher knows its processes."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        self._process = _context().Process(target=target, args=arguments)
        self._process.start()
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


def fork_server() -> str:
    """Where the process that has everything imported listens; the first call starts it."""
    _context()
    forkserver.ensure_running()
    return str(forkserver._forkserver._forkserver_address)


def _use(address: str) -> None:
    """Fork from the process that forked this one, not from another that would have to import everything."""
    own = forkserver._forkserver
    own._forkserver_address, own.ensure_running = address, lambda: None


def _said_in(path: Path) -> None:
    """What this process says goes there."""
    for number in (1, 2):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)


def _note(folder: Path, **values: Any) -> None:
    """One line of the run's own log, whole."""
    line = json.dumps({"pid": os.getpid(), "at_s": time.time(), **values}) + "\n"
    file = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, line.encode())
    os.close(file)


def noted(log: Path) -> list[dict[str, Any]]:
    """The lines of a run's log that are whole: another process may be writing one."""
    return [json.loads(line) for line in log.read_text().rpartition("\n")[0].splitlines()]


def serve(folder: Path) -> None:
    """A store of its own."""
    from equipoise.live.group import store

    _said_in(folder / "err-store")
    _note(folder, what="store")
    store.main(["--port", "0", "--address-file", str(folder / "address")])


def launch(folder: Path, plan: Plan, address: str | None, joins: bool, forks: str) -> None:
    """A launcher whose processes are forked."""
    _use(forks)
    from equipoise.live.group import hosts
    from equipoise.live.group import launch as command_line

    os.chdir(folder)
    _said_in(folder / "err-launcher")
    _note(folder, what="joiner" if joins else "launcher")
    os.environ["EQUIPOISE_TOKEN"] = "of this test"
    ways: dict[str, str] = {}

    def start(command: Any, environment: Any, inherited: Any, remote: Any) -> Any:
        at = environment["EQUIPOISE_STORE"]
        if plan.slow_s and at not in ways:
            ways[at] = f"127.0.0.1:{_slow_way(at, plan.slow_s)}"
        own = {**environment, "EQUIPOISE_STORE": ways.get(at, at)}
        return _Process(train, folder, plan, own)

    hosts.start = start  # type: ignore[assignment]
    told = ["--ranks", str(1 if joins else plan.ranks), "--max-restarts", str(plan.restarts)]
    if address is not None:
        told += ["--join" if joins else "--store", address]
    code = command_line.main([*told, __file__])  # a script that is there; what runs is given above
    _note(folder, what="launcher-ended", code=code)
    os._exit(code)


def _slow_way(address: str, delay_s: float) -> int:
    """A port behind which the store is, with a delay each way."""
    host, _, port = address.rpartition(":")
    listening = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(delay_s)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            near = listening.accept()[0]
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:
                near.close()
                continue
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listening.getsockname()[1])


class Faults:
    """What this rank has to do to itself and to others."""

    def __init__(self, folder: Path, plan: Plan, founder: int) -> None:
        self.folder, self.founder = folder, founder
        self.member, self.run_dir = -1, folder / "run"
        self.mine = [(k, f) for k, f in enumerate(plan.faults) if f.who in (-1, founder)]
        for k, fault in self.mine:
            call = {**PHASES, **EARLY}.get(fault.where)
            if call is not None:
                self._before(*call, k, fault)

    def round(self, number: int) -> None:
        """Round `number` begins."""
        for k, fault in self.mine:
            if fault.where == str(number):
                self._do(k, fault)

    def _before(self, where: str, call: int, k: int, fault: Fault) -> None:
        module, _, path = where.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        original, calls = getattr(owner, name), 0

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                self._do(k, fault)
            return original(*arguments, **options)

        setattr(owner, name, counted)

    def _do(self, k: int, fault: Fault) -> None:
        try:
            os.close(os.open(self.folder / f"fault-{k}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        _note(self.folder, what="fault", fault=fault.what, member=self.member, where=fault.where)
        if fault.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.what == "stop":
            (self.folder / f"wake-{os.getpid()}").write_text(str(fault.seconds))
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.what in ("launcher", "store"):
            for line in noted(self.folder / "log"):
                if line["what"] == fault.what:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(line["pid"], signal.SIGKILL)
        elif fault.what == "cut":
            from equipoise.live.group import regroup

            membership = regroup.current()
            if membership is not None:
                membership.break_exchange()
        elif fault.what == "disk":
            for path in self.run_dir.glob("*/*.jsonl"):
                path.unlink()
                path.symlink_to("/dev/full")
        else:
            (self.folder / f"{fault.what}-asked").write_text(str(fault.seconds))


def train(folder: Path, plan: Plan, environment: dict[str, str]) -> None:
    """A script as a user writes it, with a checkpoint every 8 rounds."""
    os.chdir(folder)
    os.environ.update(environment)
    _said_in(folder / f"err-{os.getpid()}")
    code = 1
    try:
        code = _train(folder, plan)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else print(end.code, file=sys.stderr) or 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    os._exit(code)


def _train(folder: Path, plan: Plan) -> int:
    import torch
    from torch.utils.data import DataLoader

    import equipoise
    from equipoise.live.group import regroup

    torch.set_num_threads(1)
    faults = Faults(folder, plan, int(os.environ.get("RANK", "-2")))
    membership = regroup.start()
    faults.member = membership.member
    _note(folder, what="rank", member=membership.member)

    class Counts(torch.nn.Module):
        """A parameter for each sample, and one for all."""

        def __init__(self) -> None:
            super().__init__()
            self.seen = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))

        def forward(self, indices: Any) -> Any:
            return self.seen[indices]

    net = Counts()
    if plan.far_every > 1:
        os.environ["EQUIPOISE_HOST"] = f"host-{membership.member // 2 % 2}"
    model = regroup.wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(BATCH))
    runtime = equipoise.attach(
        model,
        optimizer,
        policy="none",
        global_batch=BATCH,
        mode="act",
        decide_every=4,
        shuffle=True,
        run_dir=folder / "run",
        drift=0.1 if plan.far_every > 1 else math.nan,
    )
    sampler = runtime.sampler(SAMPLES)
    path = folder / "checkpoint.pt"
    if path.exists() and membership.generation == 0:
        saved = torch.load(path, weights_only=True)
        net.load_state_dict(saved["model"])
        runtime.load_state_dict(saved["runtime"])
    elif plan.alone and membership.generation == 0:
        runtime._parts.local.change(plan.interval, plan.far_every)
    for _ in runtime.epochs(1):
        for indices in runtime.batches(DataLoader(range(SAMPLES), batch_sampler=sampler)):
            number = runtime.round
            part = sum(sampler.current().samples) / BATCH  # the last rounds of an epoch may be short
            again = int(net.seen[sampler.current().indices].count_nonzero())
            if again:
                _note(folder, what="again", samples=again, number=number)
            faults.round(number)
            with runtime.recover():
                (-model(indices)).mean().mul(part).backward()
                time.sleep(PACE_S)
                optimizer.step()
                optimizer.zero_grad()
            runtime.step()
            _note(folder, what="round", number=number, members=runtime._parts.group.members)
            if runtime.round % 8 == 0 and not plan.alone and runtime.round != number:
                state = runtime.state_dict()
                if runtime.rank == 0:
                    torch.save({"model": net.state_dict(), "runtime": state}, folder / "draft.pt")
                    os.replace(folder / "draft.pt", path)
    if not runtime.finished:
        _note(folder, what="trained", member=membership.member, seen=net.seen.tolist())
    runtime.close()
    return 0

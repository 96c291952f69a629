"""Runs a function on several ranks, each in a process of its own, on a store hosted here."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch.distributed as dist

_PRELOAD = [  # imported once, not once a rank
    "torch._dynamo",  # the first wrapping of a model imports it
    "torch.nn.parallel",
    "torch.utils.data",
    "equipoise.live.attach",
    "equipoise.policies.stages.s1",
    "equipoise.policies.stages.s2",
    "equipoise.policies.stages.s3",
    "equipoise.policies.baselines.allocation",
    "tests.live.warm",
]


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


def _main(
    target: Callable[..., Any], rank: int, environment: dict[str, str], arguments: tuple[Any, ...], out: str
) -> None:
    import torch

    os.environ |= environment
    torch.set_num_threads(1)
    try:
        result: tuple[str, Any] = ("ok", target(rank, *arguments))
    except BaseException:
        result = ("error", traceback.format_exc())
    Path(f"{out}.part").write_bytes(pickle.dumps(result))
    Path(f"{out}.part").rename(out)
    os._exit(0 if result[0] == "ok" else 1)  # leave without waiting for a stuck thread


class Ranks:
    """Processes of one job. Results come from `join`."""

    def __init__(self, target: Callable[..., Any], ranks: int, *arguments: Any, **environment: str) -> None:
        self._target, self._arguments = target, arguments
        self._server = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=60)
        )
        self._folder = tempfile.TemporaryDirectory(prefix="equipoise-ranks-")
        self._environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._server.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": str(ranks),
            **environment,
        }
        self.processes: list[Any] = []
        for rank in range(ranks):
            self.start(rank, RANK=str(rank))

    def start(self, rank: int, **environment: str) -> None:
        """Start one more process, which gets `rank` as its first argument."""
        out = str(Path(self._folder.name) / str(len(self.processes)))
        process = _context().Process(
            target=_main, args=(self._target, rank, self._environment | environment, self._arguments, out)
        )
        process.start()
        self.processes.append(process)

    def join(self, timeout_s: float = 180.0, killed: Sequence[int] = ()) -> list[Any]:
        """Results by order of starting; None for the killed. Raises when one failed or did not end."""
        deadline = time.monotonic() + timeout_s
        results = []
        try:
            for k, process in enumerate(self.processes):
                process.join(max(0.1, deadline - time.monotonic()))
                path = Path(self._folder.name) / str(k)
                if k in killed:
                    results.append(None)
                    continue
                if not path.exists():
                    raise AssertionError(f"process {k} gave no result (exit code {process.exitcode})")
                kind, value = pickle.loads(path.read_bytes())
                if kind == "error":
                    raise AssertionError(f"process {k} failed:\n{value}")
                results.append(value)
        finally:
            for process in self.processes:
                if process.is_alive():
                    process.kill()
            self._folder.cleanup()
        return results


def record(run_dir: Path) -> Path:
    """The folder of the only run in `run_dir`."""
    (folder,) = (path.parent for path in run_dir.glob("*/manifest.json"))
    return folder


def run(target: Callable[..., Any], ranks: int, *arguments: Any, **environment: str) -> list[Any]:
    """Run `target(rank, *arguments)` on all ranks; returns their results by rank."""
    return Ranks(target, ranks, *arguments, **environment).join()

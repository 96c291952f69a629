"""Tests run in a fork of a process that has imported what comes from elsewhere, so that a trial costs a second.

Kernels are compiled by Numba in minutes when one of them changes; so a file with kernels is tried on them as plain
Python (`plain`), by tests that were seen to pass so.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutants import ROOT
from tests.mutation.plain import as_plain_python

ELSEWHERE = (
    "numpy", "numba", "scipy.optimize", "scipy.stats", "simpy", "pydantic", "duckdb", "yaml", "click",
    "rich.console", "rich.table", "hypothesis", "hypothesis.strategies", "coverage", "platformdirs", "sqlite3",
    "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch._dynamo",
)  # fmt: skip
MARK = "EQUIPOISE_TRIAL"
"""In the environment of whatever a trial starts, so that it can be ended with it."""
KERNELS = "policies/kernels/jit.py"


@dataclass(frozen=True)
class Ended:
    """How a trial ended."""

    code: int  # pytest's; -1 when its time was over
    said: str


def prepare(tree: Path, cache: Path) -> None:
    """Work from `tree`, with everything from elsewhere imported and compiled kernels in `cache`."""
    os.chdir(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.environ |= {
        "PYTHONPATH": str(tree), "EQUIPOISE_KERNEL_CACHE": str(cache), "CI": "1", "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    sys.dont_write_bytecode = True
    for name in ELSEWHERE:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # the tests of it are skipped, then
    import numba

    numba.njit(lambda: 0)()


def trial(
    tests: Sequence[str],
    limit_s: float,
    log: Path,
    *,
    plain: bool,
    kernels: str = "",
    own: Callable[[], Any] | None = None,
    plugins: Sequence[object] = (),
    options: Sequence[str] = ("-x",),
) -> Ended:
    """Run tests in a process of its own, until one fails unless `options` says otherwise; `own` is called first.

    kernels: the name of the folder of compiled kernels, whatever the sources are now.
    """
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        try:
            os.setsid()
            os.environ[MARK] = str(os.getpid())
            out = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
            for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
                del sys.modules[name]  # those of the checkout
            if own is not None:
                own()
            if any(test.startswith("tests/live/") for test in tests):
                _serve_forks()
            code = _tested([*options, *tests], plain, kernels, plugins)
            sys.stdout.flush()
            os._exit(code)
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
            os._exit(70)
    ended = os.pidfd_open(process)
    in_time, _, _ = select.select([ended], [], [], limit_s)
    os.close(ended)
    if not in_time:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    _end_what_it_started(process)
    code = os.waitstatus_to_exitcode(status) if in_time else -1
    return Ended(code, log.read_text(encoding="utf-8", errors="replace"))


def _serve_forks() -> None:
    """Start the process that ranks are forked from, by a fork of this one, which has imported PyTorch."""
    from multiprocessing import forkserver, util

    def forked(path: bytes, arguments: Sequence[str], passed: Sequence[int]) -> int:
        process = os.fork()
        if process == 0:
            try:
                for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *passed}:
                    with suppress(OSError):
                        os.close(fd)
                exec(arguments[-1], {})
            finally:
                os._exit(0)
        return process

    started, util.spawnv_passfds = util.spawnv_passfds, forked  # type: ignore[assignment]
    try:
        from tests.live import ranks

        ranks._context()
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = started


def _tested(tests: Sequence[str], plain: bool, kernels: str, plugins: Sequence[object]) -> int:
    # Importing this is what may fail by the change that is tried: then it is noticed.
    try:
        from equipoise.policies.kernels import jit

        if plain:
            as_plain_python(jit)
    except Exception:
        import traceback

        traceback.print_exc()
        return int(pytest.ExitCode.TESTS_FAILED)
    if kernels and not plain:
        jit.cache_dir.cache_clear()
        jit.kernel_source_hash = lambda: kernels
    arguments = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=short",
        "--disable-warnings",
        "--hypothesis-seed=0",
        *tests,
    ]
    return int(pytest.main(arguments, plugins=list(plugins)))


def _end_what_it_started(process: int) -> None:
    """All processes that carry its mark, or are forked from it: those of its session."""
    mark = f"{MARK}={process}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            other = int(folder.name)
            if os.getsid(other) == process or mark in (folder / "environ").read_bytes() + b"\0":
                os.kill(other, signal.SIGKILL)
        except OSError:
            continue


class Limits:
    """A plugin of pytest: a test that takes much longer than it did fails."""

    def __init__(self, limit_s: Callable[[str], float]) -> None:
        self.limit_s = limit_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test."""
        before = signal.signal(signal.SIGALRM, _over)
        signal.setitimer(signal.ITIMER_REAL, self.limit_s(item.nodeid))
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)


def _over(number: int, frame: object) -> None:
    raise TimeoutError("this test takes too long")


def digest(*paths: Path) -> str:
    """First 16 hex digits of a SHA-256 over the contents of files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


@contextmanager
def written(path: Path, text: str) -> Iterator[None]:
    """A file with other contents, for a while; then it is as it was, its time too."""
    before, times = path.read_bytes(), path.stat()
    path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

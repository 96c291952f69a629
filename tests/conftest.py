"""Settings of the whole suite."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from tests.long_run import LongRun

# A shell starts background jobs with Ctrl-C ignored, and what they start inherits that; tests send the signal.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Kernels compile on their first call, which would break any deadline; automatic builds use fixed examples.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--long FILE`: only the long tests; FILE keeps what passed, and they are not run again."""
    parser.addoption("--long", metavar="FILE", help="run only tests marked long; FILE keeps what passed")


def pytest_configure(config: pytest.Config) -> None:
    """Without `--long`, tests marked long are left out.

    A process of pytest-xdist ends when what is registered later to be done at its end is done: letting go of every
    object of all tests, one by one, takes seconds.
    """
    config.pluginmanager.register(LongRun(config), "long-run")
    if hasattr(config, "workerinput"):
        worker = os.getpid()  # a process forked from it ends as it says
        atexit.register(lambda: os._exit(0) if os.getpid() == worker else None)


LONGEST = (
    "kills/test_kills.py",
    "live/queue/test_real_slurm.py",
    "policies/test_contract.py",
    "calibrate/test_cuda.py",
    "study/twin/test_shared_device.py",
    "calibrate/test_gpus.py",
    "sim/advance/test_advance.py",
    "front/test_robust_runs.py",
    "policies/kernels/test_kernels.py",
    "live/test_misuse.py",
    "study/report/test_report.py",
    "front/test_walkthroughs.py",
    "study/report/test_report_browser.py",
    "front/test_cli.py",
    "fuzz/test_fuzz.py",
    "live/train/test_gradients.py",
    "study/questions/test_size.py",
    "policies/allocation/test_placement.py",
    "policies/kernels/test_kernels_allocation.py",
    "live/group/test_resume.py",
    "front/test_house.py",
    "study/twin/test_twin.py",
    "live/train/test_losses.py",
    "front/test_export.py",
    "policies/kernels/test_jit.py",
    "study/runs/test_compare_runs.py",
    "study/runs/sweeps/test_sweep_kills.py",
    "sim/world/test_starvation.py",
    "front/test_hostile.py",
    "calibrate/test_kernels.py",
    "policies/test_physics.py",
    "policies/stages/test_unsound.py",
    "sim/cost/test_bottlenecks.py",
    "policies/stages/test_slices.py",
    "policies/record/test_journal.py",
)
"""Files that take longest, the longest first: begun last, one of them would keep one process busy alone.

Those that wait (for Slurm, for ranks) stand between those that compute.
"""


def pytest_collection_finish() -> None:
    """What has been collected stays to the end: half a million objects less for each search for cycles."""
    gc.enable()
    gc.freeze()
    if "torch" in sys.modules:  # the processors are shared already, and a thread that waits for another one computes
        sys.modules["torch"].set_num_threads(1)


def pytest_unconfigure() -> None:
    """What extensions hold is let go before Python ends: they would tell of leaks."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the files of tests, each process of pytest-xdist from another one on.

    In a fresh clone their assertions are rewritten first, which takes twice as long as all else that is collected:
    so each process does a part, and finds what the others have written. What fails here fails again where it is
    reported.
    """
    gc.disable()  # until all is collected: nothing of it is ever let go
    sent = getattr(session.config, "workerinput", None)
    if sent is None or session.config.args != session.config.getini("testpaths"):
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    first = len(files) * int(sent["workerid"].removeprefix("gw")) // sent["workercount"]
    for path in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest first, whose order `--no-loadscope-reorder` keeps."""
    tests = Path(__file__).resolve().parent
    place = {tests / name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.hookimpl(optionalhook=True)  # `make test-lowest` has no pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: tests of live training wait for each other most of their time."""
    return len(os.sched_getaffinity(0)) + 1

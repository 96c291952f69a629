"""Settings of the whole suite."""

from __future__ import annotations

import os
import signal

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
    """Without `--long`, tests marked long are left out."""
    config.pluginmanager.register(LongRun(config), "long-run")


def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: tests of live training wait for each other most of their time."""
    return len(os.sched_getaffinity(0)) + 1

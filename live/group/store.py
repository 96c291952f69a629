"""Hosts the store of a job until it is told to stop: `python -m equipoise.live.group.store --port 29500`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from equipoise.base.files import write_whole
from equipoise.base.numerals import plain_numbers
from equipoise.live.group import quiet  # noqa: F401  # first of all
from equipoise.live.group.admission import AdmissionLog
from equipoise.live.group.hosting import TOKEN, host_store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m equipoise.live.group.store", description=__doc__.splitlines()[0])
    plain_numbers(parser)
    parser.add_argument("--host", default="127.0.0.1", help="the only address to listen on")
    parser.add_argument("--port", type=int, default=29500, help="0 takes a free one")
    parser.add_argument("--address-file", type=Path, help="file to which HOST:PORT is written once the store listens")
    given = parser.parse_args(arguments)
    try:
        store = host_store(given.host, given.port)
    except (OSError, RuntimeError) as error:
        print(f"equipoise: the store cannot be started on {given.host}:{given.port}: {error}", file=sys.stderr)
        return 1
    AdmissionLog(store, os.environ.get(TOKEN))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if given.address_file is not None:
        write_whole(given.address_file, f"{given.host}:{store.port}\n")
    print(f"equipoise: store on {given.host}:{store.port}", flush=True)
    stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())

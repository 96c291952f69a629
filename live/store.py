"""Hosts the store of a job until it is told to stop: `python -m live.store --port 29500`."""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
import threading
from collections.abc import Sequence

import torch.distributed as dist


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m live.store", description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=29500, help="0 takes a free one")
    given = parser.parse_args(arguments)
    timeout = datetime.timedelta(seconds=60)
    try:
        store = dist.TCPStore(given.host, given.port, is_master=True, wait_for_workers=False, timeout=timeout)
    except RuntimeError as error:
        print(f"equipoise: no store on {given.host}:{given.port}: {error}", file=sys.stderr)
        return 1
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(f"equipoise: store on port {store.port}", flush=True)
    stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())

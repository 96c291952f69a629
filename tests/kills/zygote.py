"""Forks commands of ours from a process that has everything imported, on a disk and a clock that can fail.

One line of JSON per order: {arguments, folder, [disk: [n, errno], clock: [readings, seconds]]}. It answers with the
pid, and after one more line with [exit code or minus the signal, changes of the disk].
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from equipoise import cli
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import load
from equipoise.sim.run import run
from equipoise.study.report import page, perfetto  # noqa: F401 (imported once, before forks)
from equipoise.study.runs import compare, query, sweep  # noqa: F401
from equipoise.study.runs.warm import warm
from equipoise.study.twin import twin  # noqa: F401

NEVER = 2**40


def command(order: dict[str, Any], told: int) -> int:
    os.chdir(order["folder"])
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{order['folder']}.{order['label']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    disk = ctypes.CDLL(None)
    nth, code = order.get("disk") or (NEVER, errno.ENOSPC)
    disk.arm(f"{order['folder']}/".encode(), ctypes.c_long(nth), code)
    if order.get("clock"):
        disk.clock_back(*map(ctypes.c_long, order["clock"]))
    try:
        return cli.main(order["arguments"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(told, str(disk.changes()).encode())


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    case = load(Path(sys.argv[1]))
    warm([make_policy("fifo"), make_policy("s1+s2+s3")], case)
    for policy in ("fifo", "sjf"):  # kernels that were compiled before are loaded once, not in each fork
        run(case, policy=make_policy(policy), seed=0)
    beside: list[tuple[int, int]] = []
    for line in sys.stdin:
        order = json.loads(line)
        reads, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                code = command(order, told)
            except KeyboardInterrupt:
                code = 130  # after the command has ended
            finally:
                os._exit(code)
        os.close(told)
        print(pid, flush=True)
        if order.get("beside"):
            beside.append((pid, reads))
            continue
        for child, end in [(pid, reads), *beside]:
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(json.dumps([ended, int(os.read(end, 64) or b"0")]), flush=True)
            os.close(end)
        beside.clear()


if __name__ == "__main__":
    main()

"""A process that has everything imported and forks sweeps on request, so that each starts at once.

    python sweep_zygote.py SWEEP.yaml      then one line of JSON per sweep: {out, jobs, runner, [file_bytes]}

It answers with the pid of the sweep, and when that has ended, with its exit code or minus the signal.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

from equipoise.study.runs.engine import EngineError
from equipoise.study.runs.store import StoreError
from equipoise.study.runs.sweep import SweepOptions, sweep
from tests.study.runs.sweeps import sweep_helpers


def one_sweep(file: Path, order: dict) -> int:
    if "file_bytes" in order:  # writing beyond this fails, as on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"], order["file_bytes"]))
    try:
        sweep(
            file, Path(order["out"]), SweepOptions(jobs=order["jobs"]), runner=getattr(sweep_helpers, order["runner"])
        )
    except (StoreError, EngineError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def main() -> None:
    file = Path(sys.argv[1])
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                code = one_sweep(file, order)
            finally:
                os._exit(code)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()

"""What may come of an input: it is taken and makes sense, or refused with its place, soon and in little memory."""

from __future__ import annotations

import contextlib
import io
import math
import re
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from equipoise import api, cli
from equipoise.policies.record.export import ExportError, load_policy
from equipoise.policies.registry import BUILT_IN, make_policy
from equipoise.sim.loading.file import load
from equipoise.sim.run import RunFailed
from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.warm import warm
from equipoise.study.terminal import printable
from tests.fuzz.grammar import ROOT, TRACES

MANY = 2000
"""Jobs up to which an input is run."""
LIMIT_S, MEMORY_BYTES = 10.0, 2**30
RUN_S = 1.0
"""An input that is taken is run for so long."""
UNITS = ("_s", "_j", "_usd")


class Hangs(BaseException):
    """An input takes longer than LIMIT_S; no `except Exception` catches this."""


@dataclass(frozen=True)
class Fault:
    """What is wrong: the kind is equal for inputs that fail alike."""

    kind: str
    what: str


def ready() -> None:
    """Compile what inputs may need, so that no limit counts it."""
    warm([make_policy(name) for name in BUILT_IN], load(ROOT / "scenarios" / "faulty.yaml"))


def judge(path: Path, kind: str, *, runs: bool = True) -> Fault | None:
    """What is wrong with how the input at `path` is taken; None when all is well.

    runs: a scenario that is taken is run, too.
    """
    found = _judged(path, kind, runs)
    return _judged(path, kind, runs) if found is not None and found.kind == "hangs" else found  # kernels were compiled


def _judged(path: Path, kind: str, runs: bool) -> Fault | None:
    began_s, before = time.process_time(), _peak_bytes()
    try:
        with _limit(LIMIT_S), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            found, taken = _JUDGES[kind](path)
            if runs and taken:
                found = _run(path)
    except Hangs:
        return Fault("hangs", traceback.format_exc(limit=-3))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.name}"
        return Fault(f"{type(error).__name__} in {place}", " ".join(str(error).split())[:300])
    if found is None and _peak_bytes() - before > MEMORY_BYTES:
        return Fault("memory", f"{(_peak_bytes() - before) / 2**20:.0f} MiB more")
    if found is None and time.process_time() - began_s > LIMIT_S:
        return Fault("hangs", f"{time.process_time() - began_s:.1f} s")
    return found


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise Hangs

    # Of processor time, which a busy machine does not lengthen; what waits without computing ends later.
    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, 6.0 * seconds)}
    before = {number: signal.signal(number, late) for number in timers}
    for timer, length_s in timers.values():
        signal.setitimer(timer, length_s)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0.0)
            signal.signal(number, before[number])


def _command(path: Path, *words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([*words, "--debug"])  # what is no refusal is raised
        except InputError as error:
            code = cli.WRONG_INPUT
            print(printable("\n".join(error.lines)), file=err)
    return code, out.getvalue(), err.getvalue()


def _yaml(path: Path) -> tuple[Fault | None, bool]:
    code, said, complaints = _command(path, "validate", str(path))
    return _answered(path, code, complaints), said.endswith("scenario ok\n")


def _answered(path: Path, code: int, complaints: str) -> Fault | None:
    if code == cli.WRONG_INPUT:
        return _placed(path, complaints)
    return None if code == cli.OK else Fault(f"exit code {code}", complaints[-300:])


def _placed(path: Path, complaints: str) -> Fault | None:
    """Every line of a refusal names the file, and the line where there is one."""
    lines = complaints.splitlines()
    if not lines:
        return Fault("says nothing", "")
    for line in lines:
        if not line.startswith((f"{path}:", "warning: ", "... and ", *(f"{name}:" for name in TRACES))):
            return Fault("no place", line[:300])
        if len(line) > 2000:
            return Fault("a line without an end", line[:300])
        if not line.isprintable():
            return Fault("not printable", repr(line[:300]))
    return None


def _run(path: Path) -> Fault | None:
    """A scenario that was taken runs, and its figures make sense."""
    until_s = time.monotonic() + RUN_S
    case = load(path)
    if case.workload.trace is None and sum(job.count for job in case.workload.jobs) > MANY:
        return None  # it may take its time
    try:
        made = api.run(path, stop=lambda: time.monotonic() > until_s)
    except RunFailed as stopped:
        made = stopped.run
        if "Error" in (made.stopped or ""):
            return Fault("a run fails", str(made.stopped)[:300])
    except InputError as error:
        # Jobs can be given later, and they meet the nodes in the run alone: a line that names the scenario.
        named = error.lines[0].startswith((f"{path}:", f"{case.name}:"))
        return None if named else Fault("validated, but not run", error.lines[0][:300])
    row = made.summary()
    for name, value in row.items():
        if math.isinf(value):
            return Fault(f"infinite {name}", f"{value}")
        if name.endswith(UNITS) and value < 0.0:
            return Fault(f"negative {name}", f"{value}")
        if name == "mfu_ratio":  # beyond 1 where the times and the FLOP that a file gives disagree
            continue
        if name.endswith("_ratio") and not -1e-9 <= value <= 1.0 + 1e-9 and not math.isnan(value):
            return Fault(f"no share: {name}", f"{value}")
    return None


def _trace(path: Path) -> tuple[Fault | None, bool]:
    code, _, complaints = _command(path, "check", str(path))
    return _answered(path, code, complaints), False


def _policy(path: Path) -> tuple[Fault | None, bool]:
    try:
        load_policy(path)
    except ExportError as error:
        text = str(error)
        if not re.match(re.escape(str(path)), text) or "\n" in text:
            return Fault("no place", text[:300]), False
    return None, False


# Each: what is wrong, and whether it is a scenario that was taken.
_JUDGES = {"yaml": _yaml, "trace": _trace, "policy": _policy}

"""Fuzz for as long as you like: `python -m tests.fuzz [--from SEED] [--inputs N] [--seconds S]`, or `make fuzz`.

Goes on from the last number in `.fuzz/next`. Each failure is shrunk and kept in `tests/fuzz/kept/`, where the suite
finds it; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.grammar import ROOT, Source, chosen, make, sources
from tests.fuzz.judge import Fault, judge, ready
from tests.fuzz.shrink import shrunk

KEPT = Path(__file__).resolve().parent / "kept"
SUFFIX = {"yaml": ".yaml", "policy": ".policy.yaml", "trace": ".csv"}
NEXT = ROOT / ".fuzz" / "next"


def tried(source: Source, seed: int, folder: Path, *, runs: bool = True) -> tuple[str, Fault | None]:
    """One input and what is wrong with it; `runs` as of `judge`."""
    text = make(source, seed)
    path = folder / f"input{SUFFIX[source.kind]}"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return text, judge(path, source.kind, runs=runs)


def keep(source: Source, seed: int, text: str, fault: Fault, folder: Path) -> Path:
    """Shrink a failing input and keep it."""
    path = folder / f"input{SUFFIX[source.kind]}"

    def fails(less: str) -> bool:
        path.write_text(less, encoding="utf-8", errors="surrogatepass")
        found = judge(path, source.kind)
        return found is not None and found.kind == fault.kind

    small = text if fault.kind in ("hangs", "memory") else shrunk(text, fails)
    KEPT.mkdir(exist_ok=True)
    target = KEPT / f"{Path(source.name).stem}-{seed}{SUFFIX[source.kind]}"
    target.write_text(small, encoding="utf-8", errors="surrogatepass")
    return target


def main() -> int:
    """Returns 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz what reads files.")
    parser.add_argument("--from", dest="first", type=int, help="number of the first input")
    parser.add_argument("--inputs", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    first = given.first if given.first is not None else int(NEXT.read_text()) if NEXT.exists() else 0
    until_s, seen, number = time.monotonic() + given.seconds, set[str](), first
    with TemporaryDirectory() as name:
        folder = Path(name)
        known = sources(folder)
        ready()
        while number < first + given.inputs and time.monotonic() < until_s:
            source = chosen(known, number)
            text, fault = tried(source, number, folder)
            if fault is not None and fault.kind not in seen:
                seen.add(fault.kind)
                kept = keep(source, number, text, fault, folder)
                print(f"{number}: {source.name}: {fault.kind}: {fault.what}\n  {kept}", flush=True)
            number += 1
            if number % 100 == 0 or fault is not None:
                NEXT.parent.mkdir(exist_ok=True)
                NEXT.write_text(str(number))
    print(f"{number - first} inputs, numbers {first} to {number - 1}: {len(seen)} kinds of failure")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())

"""Check random scenarios for as long as you like: `python -m tests.soak [--from N] [--runs N] [--seconds S]`.

`make soak` goes on from the last number in `.fuzz/soak`. A scenario that breaks a law is shrunk and kept in
`tests/soak/kept/`, where the suite finds it; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from equipoise.sim.scenario.tree import InputError
from tests.fuzz.grammar import ROOT
from tests.fuzz.shrink import shrunk
from tests.soak.laws import broken
from tests.soak.scenarios import make

KEPT = Path(__file__).resolve().parent / "kept"
NEXT = ROOT / ".fuzz" / "soak"
RUN_S = 20.0


def asked(seconds: float) -> Any:
    """Whether the time is up, for `run`."""
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() > until_s


def keep(number: int, data: Any, law: str) -> Path:
    """Shrink a scenario that breaks a law and keep it."""
    kind = law.partition(":")[0]

    def fails(text: str) -> bool:
        try:
            return any(line.partition(":")[0] == kind for line in broken(yaml.safe_load(text), asked(RUN_S)))
        except (InputError, TypeError, AttributeError, yaml.YAMLError):
            return False

    target = KEPT / f"{number}.yaml"
    small = shrunk(yaml.safe_dump(data, sort_keys=False), fails)
    target.write_text(f"# {law[:200]}\n{small}", encoding="utf-8")
    return target


def main() -> int:
    """Returns 1 when a law is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Check laws of random runs.")
    parser.add_argument("--from", dest="first", type=int, help="number of the first scenario")
    parser.add_argument("--runs", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    first = given.first if given.first is not None else int(NEXT.read_text()) if NEXT.exists() else 0
    until_s, seen, number, wrong = time.monotonic() + given.seconds, set[str](), first, 0
    while number < first + given.runs and time.monotonic() < until_s:
        data = make(number)
        try:
            laws = broken(data, asked(RUN_S))
        except InputError as error:
            laws, wrong = [], wrong + 1
            if wrong < 4:
                print(f"{number}: no scenario: {error.lines[0]}", flush=True)
        for law in laws:
            kind = law.partition(":")[0]
            print(f"{number}: {'+'.join(data['policy'])}: {law[:300]}", flush=True)
            if kind not in seen:
                seen.add(kind)
                print(f"  {keep(number, data, law)}", flush=True)
        number += 1
        NEXT.parent.mkdir(exist_ok=True)
        NEXT.write_text(str(number))
    print(f"{number - first} scenarios, numbers {first} to {number - 1}: {len(seen)} laws broken, {wrong} refused")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())

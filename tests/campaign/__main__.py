"""A campaign of faults, run after run: `python -m tests.campaign [--runs 200] [--from N] [--again]`.

It goes on behind the last seed in `.fuzz/campaign.jsonl`, to which each run adds its row; a run with problems is
kept beside it. The exit code is 1 when some run had problems.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from tests.campaign.plan import make
from tests.campaign.run import make_run, own_network
from tests.fuzz.grammar import ROOT

ROWS, KEPT = ROOT / ".fuzz" / "campaign.jsonl", ROOT / ".fuzz" / "campaign"


def main() -> int:
    """Make the runs, and sum up all that are on record."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="up to this seed")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="also those that are on record")
    given = parser.parse_args()
    ROWS.parent.mkdir(exist_ok=True)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as a launcher does, before anything is forked
    has_network = own_network()
    done = (
        {}
        if given.again or not ROWS.exists()
        else {row["seed"]: row for row in map(json.loads, ROWS.read_text().splitlines())}
    )
    for seed in range(given.first, given.runs):
        if seed in done:
            continue
        row = done[seed] = make_run(make(seed, has_network), KEPT)
        with ROWS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{seed}: {', '.join(row['faults']) or 'nothing'}; {row['took_s']} s; {row['problems'] or 'ok'}", flush=True
        )
    rows = [row for seed, row in done.items() if given.first <= seed < given.runs]
    wrong = [row["seed"] for row in rows if row["problems"]]
    longest = max((row["standstill_s"] for row in rows), default=0.0)
    hurt, resumed = sum(bool(row["faults"]) for row in rows), sum(row["stops"] > 0 for row in rows)
    print(f"{len(rows)} runs, {hurt} with faults, {resumed} stopped and resumed; longest standstill {longest} s")
    print(f"problems in {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

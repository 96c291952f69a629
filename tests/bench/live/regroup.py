"""How long training stands still when ranks leave, join or die: python tests/bench/live/regroup.py

Four gloo ranks on this machine train a small model. Planned: 4 -> 2 -> 3 -> 4. Killed: SIGKILL of one rank, told by
the launcher or found out by the missing heartbeat (`live.group.regroup.DEAD_AFTER_S`). Forming is what `regrouped`
events say; standstill is the longest round of any living rank, the broken one included.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.live import ranks as live_ranks
from tests.live.group.test_regroup import train


def forming_s(folder: Path) -> list[float]:
    """Durations of all regroups that the ranks wrote down."""
    lines = [line for path in folder.rglob("rounds-*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line)["took_s"] for line in lines if '"event":"regrouped"' in line]


def measure(resizes: dict[int, int], victim: int, reported: bool) -> dict[str, Any]:
    """One job; victim -2: nobody is killed."""
    with tempfile.TemporaryDirectory() as folder:
        at = 14 if victim >= 0 else -1  # round in which the victim dies
        ranks = live_ranks.Ranks(train, 4, folder, resizes, 1, victim, at)
        if reported:
            ranks.report_death(victim)
        results = ranks.join(timeout_s=120, killed=[victim] if victim >= 0 else [])
        rounds = [entry[-1] for result in results if result is not None for entry in result["log"]]
        formed = sorted(forming_s(Path(folder)))
    return {"forming_median_s": formed[len(formed) // 2], "standstill_s": max(rounds)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=["text", "json"], default="text")
    given = parser.parse_args()
    found = {
        "planned": measure({6: 2, 12: 3, 18: 4}, -2, False),
        "killed, told": measure({}, 0, True),
        "killed, silent": measure({}, 2, False),
    }
    print(json.dumps(found) if given.format == "json" else "\n".join(f"{k}: {v}" for k, v in found.items()))


if __name__ == "__main__":
    main()

"""What a policy gains when one rank is twice as slow: python tests/bench/live/speed.py [--ranks 2]

Pairs of runs, plain data-parallel and with the policy in turn, of the same emulated training (a fixed delay
per sample, doubled on rank 0 half-way). The throughput counts from 20 rounds after the slowdown. The figure
is the median ratio of the pairs; at best it is 1.5 with 2 ranks and 1.75 with 4. The last line says whether it
is enough: `WANTED`, or within 0.5 % of plain training where all ranks stay equal (`--slowdown 1`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from equipoise.live import demo

WANTED = {2: 1.4, 4: 1.5}  # times plain training, by ranks, with one that turns twice as slow
EQUAL = 0.995  # with none


def verdict(ranks: int, slowdown: float, ratios: list[float]) -> str:
    """One line: what was found, what is wanted, whether that is kept."""
    found = statistics.median(ratios)
    said = f"{found:.3f} times plain training ({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs)"
    if slowdown == 1.0:
        return f"{said}, wanted {EQUAL} with equal ranks: {'kept' if found >= EQUAL else 'missed'}"
    if slowdown != 2.0 or ranks not in WANTED:
        return f"{said}, nothing wanted of {ranks} ranks with one {slowdown:g} times as slow"
    return f"{said}, wanted {WANTED[ranks]}: {'kept' if found >= WANTED[ranks] else 'missed'}"


def main() -> None:
    """Run the pairs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--policy", default="s1+s2+s3")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--batch", type=int, default=48, help="samples per rank and round")
    parser.add_argument("--sample-ms", type=float, default=2.0)
    parser.add_argument("--decide-every", type=int, default=6, help="rounds between decisions")
    parser.add_argument("--delay-rounds", type=int, default=0, help="rounds trained while a decision is made")
    parser.add_argument("--slowdown", type=float, default=2.0)
    parser.add_argument("--format", choices=["text", "json"], default="text")
    given = parser.parse_args()
    ratios, steps = [], []
    for pair in range(given.pairs):
        step_s = {}
        for mode in ("plain", "act") if pair % 2 == 0 else ("act", "plain"):
            with tempfile.TemporaryDirectory() as folder:
                result = demo.run(given, mode, Path(folder))
            step_s[mode] = result["batch"] / demo.throughput(result)
        ratios.append(step_s["plain"] / step_s["act"])
        steps.append(step_s)
    found = {
        "ranks": given.ranks,
        "ratio_median": statistics.median(ratios),
        "ratios": ratios,
        "bound": demo.bound(given.ranks, given.slowdown),
        "step_s": steps,
        "verdict": verdict(given.ranks, given.slowdown, ratios),
    }
    print(json.dumps(found) if given.format == "json" else "\n".join(f"{k}: {v}" for k, v in found.items()))


if __name__ == "__main__":
    main()

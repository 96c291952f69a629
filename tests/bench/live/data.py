"""What moving data is worth: python tests/bench/live/data.py [--ranks 2] [--pairs 5]

Ranks on one machine stand for nodes. They train one epoch from a store over HTTP, the last rank over a slow path,
with computing and paths emulated by waits. In turn: no policy (plain order, static ownership, equal shares), s1+s2
that may deal samples but neither move nor reorder shards, and s1+s2. Seconds from the first batch to the last;
warm-up apart. `--kill`: the last fast rank is killed half-way of every run, the launcher tells; every sample counts
once all the same.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.live import ranks as live_ranks
from tests.live.data.store import SlowStore, write_shards
from tests.live.data.training import train

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"policy": "none"},
    "static": {"policy": "s1+s2", "allow": ("samples",)},
    "moved": {"policy": "s1+s2", "allow": ("samples", "moves", "order")},
}


def seen_once(results: list[Any], samples: int) -> bool:
    """Whether every sample was trained on once."""
    seen = collections.Counter(i for result in results for _, _, mine in result["log"] for i in mine)
    return seen == collections.Counter(range(samples))


def measure(folder: Path, given: argparse.Namespace, variant: str) -> dict[str, Any]:
    """One run."""
    folder.mkdir()
    store = SlowStore(folder.parent / "store", {"fast": given.fast * 1e6, "slow": given.slow * 1e6})
    roots = [store.url("fast")] * (given.ranks - 1) + [store.url("slow")]
    options = {
        "roots": roots,
        "sample_s": [given.sample_ms / 1e3] * given.ranks,
        "folder": str(folder),
        "batch": given.batch * given.ranks,
        **VARIANTS[variant],
    }
    results = live_ranks.Ranks(train, given.ranks, options).join(timeout_s=500)
    store.close()
    return {"took_s": max(r["took_s"] for r in results), "once": seen_once(results, given.shards * given.samples)}


def main() -> None:
    """Run the pairs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--shards", type=int, default=60)
    parser.add_argument("--samples", type=int, default=40, help="of a shard")
    parser.add_argument("--batch", type=int, default=20, help="samples per rank and round")
    parser.add_argument("--sample-ms", type=float, default=5.0, help="computing per sample")
    parser.add_argument("--fast", type=float, default=6.0, help="MB/s, shared by the fast ranks")
    parser.add_argument("--slow", type=float, default=1.0, help="MB/s")
    parser.add_argument("--against", nargs="+", choices=("plain", "static"), default=("plain", "static"))
    parser.add_argument("--format", choices=["text", "json"], default="text")
    given = parser.parse_args()
    variants = [*given.against, "moved"]
    took: dict[str, list[float]] = {name: [] for name in variants}
    once = True
    with tempfile.TemporaryDirectory() as scratch:
        write_shards(Path(scratch, "store"), [given.samples] * given.shards, 20_000)
        for pair in range(given.pairs):
            for name in variants if pair % 2 == 0 else variants[::-1]:
                found = measure(Path(scratch, f"{name}-{pair}"), given, name)
                took[name].append(found["took_s"])
                once = once and found["once"]
                print(f"pair {pair}: {name} {found['took_s']:.1f} s, once: {found['once']}", file=sys.stderr)
    ratios = {name: [a / b for a, b in zip(took[name], took["moved"], strict=True)] for name in given.against}
    result = {
        "ranks": given.ranks,
        "every_sample_once": once,
        **{f"{name}_over_moved_median": statistics.median(r) for name, r in ratios.items()},
        **{f"{name}_over_moved": r for name, r in ratios.items()},
        "took_s": took,
    }
    print(json.dumps(result) if given.format == "json" else "\n".join(f"{k}: {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()

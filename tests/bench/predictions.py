"""Whether predictions of public measurements are the same: python -m tests.bench.predictions --data DIR [--write]

Compares every held-out prediction of the first split with the last committed one in predictions.csv, which holds no
measurement: a line, a digest of the row's key, the prediction. Exit code 1 when any has moved by more than
TOLERANCE; `--write` makes the file anew, for a change that moves them on purpose.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from equipoise.calibrate.fit.fits import collective_predictor
from equipoise.calibrate.fit.step_noise import fit_noise
from equipoise.study.validation.run import FILES, run
from equipoise.study.validation.score import Line

KEPT = Path(__file__).with_suffix(".csv")
TOLERANCE = 0.005
MOST = 300
"""About so many rows of a line are kept, chosen by their digest."""
Predictions = dict[tuple[str, str], float]

FITS = {"nccl": collective_predictor, "jitter": fit_noise}


def predictions(lines: Iterable[Line]) -> Predictions:
    """Prediction by (line, digest of the row's key); the n-th row of the same key has `n` added."""
    found: Predictions = {}
    for one in lines:
        if one.points is None:
            continue
        seen: dict[str, int] = defaultdict(int)
        every = -(-len(one.points.keys) // MOST)
        for key, value in zip(one.points.keys, one.points.predicted.tolist(), strict=True):
            digest = hashlib.sha256(key.encode()).hexdigest()[:10]
            if int(digest, 16) % every:
                continue
            found[one.what, f"{digest}.{seen[digest]}"] = value
            seen[digest] += 1
    return found


def moved(kept: Predictions, now: Predictions) -> dict[str, tuple[int, int, float]]:
    """By line: rows that moved or came or went, rows in all, and the largest relative change."""
    out: dict[str, tuple[int, int, float]] = {}
    for what in sorted({line for line, _ in (*kept, *now)}):
        keys = {key for key in (*kept, *now) if key[0] == what}
        changes = [abs(now[k] / kept[k] - 1) if k in kept and k in now else np.inf for k in keys]
        out[what] = (sum(change > TOLERANCE for change in changes), len(keys), float(max(changes)))
    return out


def read(path: Path) -> Predictions:
    """The committed predictions; none when there is no file."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["line"], row["row"]): float(row["predicted"]) for row in csv.DictReader(file)}


def write(found: Predictions, path: Path) -> None:
    """Keep them, with four digits."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["line", "row", "predicted"])
        writer.writerows([what, row, f"{value:.4g}"] for (what, row), value in sorted(found.items()))


def main(arguments: list[str] | None = None) -> int:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    names = [name for name, files in FILES.items() if all(any(given.data.glob(file)) for file in files)]
    now = predictions(one for name in names for one in run(name, given.data, FITS))
    if given.write:
        write(now, KEPT)
        return 0
    changed = moved(read(KEPT), now)
    for what, (rows, of, largest) in changed.items():
        print(f"{rows:6d} of {of:6d} moved, at most {100 * largest:8.2f} %  {what}")
    return int(any(rows for rows, _, _ in changed.values()))


if __name__ == "__main__":
    sys.exit(main())

"""How well the fits predict public measurements that they have not seen: a table.

    python tests/bench/calibrate_public_data.py [--data ../shared/data] [--format table|json]

All-reduce: every message size predicted from the others. Matrix products: every shape predicted from the
others in 10 folds, and all of them from 40. Shares of a GPU (MIG): one number per workload, in sample and
every slice predicted from the others. Beside each stands what a naive model errs by.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from equipoise.calibrate.fit.fits import collective_predictor, fit_share_curve, leave_one_size_out
from equipoise.calibrate.fit.gemm import fit_gemm_efficiency, leave_shapes_out

Floats = npt.NDArray[np.float64]

# Dense rates of the data sheets, FLOP/s; a device that is not here is compared with its own best.
DATA_SHEET = {
    ("h100_sxm", "bfloat16"): 989e12,
    ("h100_sxm", "fp8"): 1979e12,
    ("b200_sxm", "bfloat16"): 2250e12,
    ("b200_sxm", "fp8"): 4500e12,
    ("b200_sxm", "nvfp4"): 9000e12,
    ("l40s", "bfloat16"): 362e12,
    ("l40s", "fp8"): 733e12,
}
BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5}
SLICES = {"1g.5gb": 1 / 7, "2g.10gb": 2 / 7, "3g.20gb": 3 / 7, "4g.20gb": 4 / 7, "7g.40gb": 1.0}
FROM_BYTES = 64 * 1024
FEW_SHAPES = 40


@dataclass(frozen=True)
class Row:
    """One line of the table: median relative errors; `naive` None where no naive model is compared."""

    what: str
    samples: int
    naive: float | None
    fitted: float


def rows_of(path: Path) -> Iterable[dict[str, str]]:
    """Rows of a CSV file, gz or not."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


def all_reduces(path: Path, ranks: str = "8") -> list[tuple[Floats, Floats]]:
    """(bytes, seconds) of each device, library version and type."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for r in rows_of(path):
        if r["op"] == "all_reduce" and r["num_gpus"] == ranks:
            key = (r["system"], r["nccl_version"], r["dtype"])
            groups.setdefault(key, []).append((float(r["bytes"]), float(r["time_us"]) * 1e-6))
    return [tuple(np.array(group).T) for group in groups.values()]  # type: ignore[misc]


def beyond_the_ends(path: Path, ranks: str = "8", count: int = 2) -> tuple[Floats, Floats]:
    """Errors of the `count` smallest and of the `count` largest sizes, each from all other sizes."""
    below, above = [], []
    for size, seconds in all_reduces(path, ranks):
        distinct = np.unique(size)
        for held, errors in ((size < distinct[count], below), (size > distinct[-count - 1], above)):
            fit = collective_predictor(size[~held], seconds[~held])
            errors.append(np.abs(fit.predict(size[held]) / seconds[held] - 1.0))
    return np.concatenate(below), np.concatenate(above)


def all_reduce_errors(path: Path, ranks: str = "8") -> tuple[Floats, Floats, Floats]:
    """(size, held-out error, error of peak bandwidth alone) per row; libraries and types are kept apart."""
    parts = []
    for size, seconds in all_reduces(path, ranks):
        held = leave_one_size_out(size, seconds)
        naive = np.abs(size / (size / seconds).max() / seconds - 1.0)
        parts.append((held.size, held.relative_error, naive))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]


def gemm_errors(path: Path, parts: int = 10) -> dict[tuple[str, str], tuple[Floats, Floats, Floats]]:
    """By device and type: error in so many folds, from FEW_SHAPES shapes, and of the peak alone."""
    groups: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for r in rows_of(path):
        shape = tuple(float(r[name]) for name in ("m", "n", "k"))
        key = (r["system"], r["gemm_dtype"])
        groups.setdefault(key, []).append((*shape, float(r["time_us"]) * 1e-6))
    found = {}
    for key, group in groups.items():
        m, n, k, seconds = np.array(group).T
        peak = DATA_SHEET.get(key) or float((2 * m * n * k / seconds).max())
        width = BYTES.get(key[1], 2.0)
        folds = leave_shapes_out(m, n, k, seconds, peak, width, parts)
        few = np.random.default_rng(0).permutation(len(m))[:FEW_SHAPES]
        fit = fit_gemm_efficiency(m[few], n[few], k[few], seconds[few], peak, width)
        rest = np.setdiff1d(np.arange(len(m)), few)
        from_few = np.abs(fit.predict(m[rest], n[rest], k[rest]) / seconds[rest] - 1.0)
        found[key] = (folds, from_few, np.abs(2 * m * n * k / peak / seconds - 1.0))
    return found


def share_errors(path: Path) -> tuple[Floats, Floats, Floats]:
    """Errors of iteration times on slices: one kappa a workload, leave one slice out, proportional."""
    times: dict[tuple[str, str], dict[float, float]] = {}
    for r in rows_of(path):
        times.setdefault((r["workload"], r["batch"]), {})[SLICES[r["slice"]]] = float(r["median"])
    fitted, held_out, proportional = [], [], []
    for by_share in times.values():
        if 1.0 not in by_share or len(by_share) < 3:
            continue
        share, rate = np.array(list(by_share)), 1.0 / np.array(list(by_share.values()))
        fit, part = fit_share_curve(share, rate), share < 1.0
        fitted += _time_errors(fit.full_rate * fit.predict(share[part]), rate[part])
        proportional += _time_errors(fit.full_rate * share[part], rate[part])
        for one in share[part]:
            rest = fit_share_curve(share[share != one], rate[share != one])
            held_out += _time_errors(rest.full_rate * rest.predict([one]), rate[share == one])
    return np.array(fitted), np.array(held_out), np.array(proportional)


def _time_errors(predicted_rate: Floats, rate: Floats) -> list[float]:
    return np.abs(rate / predicted_rate - 1.0).tolist()


def table(data: Path) -> list[Row]:
    """All rows. Raises OSError when the data is not there."""
    size, error, naive = all_reduce_errors(data / "comm" / "nccl_aiconfigurator.csv.gz")
    large = size >= FROM_BYTES
    found = [
        _row("all-reduce, 8 GPUs, from 64 KiB", error[large], naive[large]),
        _row("all-reduce, 8 GPUs, all sizes", error, naive),
    ]
    ends = beyond_the_ends(data / "comm" / "nccl_aiconfigurator.csv.gz")
    for name, part in zip(("smallest", "largest"), ends, strict=True):
        error = float(np.median(part))
        found.append(Row(f"  two {name} sizes from the others", len(part), None, error))
    for key, (folds, few, peak) in sorted(gemm_errors(data / "kernels" / "gemm_aiconfigurator.csv.gz").items()):
        found.append(_row(f"matrix products, {' '.join(key)}", folds, peak))
        found.append(_row(f"  the same from {FEW_SHAPES} shapes", few, peak))
    fitted, held, proportional = share_errors(data / "colocation" / "miso_mig_iteration_times.csv")
    found.append(_row("MIG slices, one number a workload", fitted, proportional))
    found.append(_row("MIG slices, each from the others", held, proportional))
    return found


def _row(what: str, errors: Floats, naive: Floats) -> Row:
    return Row(what, len(errors), float(np.median(naive)), float(np.median(errors)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=beside)
    parser.add_argument("--format", choices=["table", "json"], default="table")
    options = parser.parse_args()
    rows = table(options.data)
    if options.format == "json":
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'':45} {'samples':>8} {'naive':>7} {'fitted':>7}   (median relative error)")
    for row in rows:
        naive = "-" if row.naive is None else f"{row.naive:.1%}"
        print(f"{row.what:45} {row.samples:8} {naive:>7} {row.fitted:7.1%}")


if __name__ == "__main__":
    main()

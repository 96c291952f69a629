"""MIG slices of an A100 (MISO): steps on a slice from steps on the whole GPU and from other workloads' slices.

Law: t = sqrt(h^2 + (w / f)^2), w = w0 + w1 b: the host's time h and the GPU's work for b samples overlap; a
slice has the share f of the GPU that does the work. h, w0 and w1 come from the workload's batches on the
whole GPU, f of each slice from other workloads. Naive: the whole GPU's time over the slice's share of processors.
Exponents of 1, 1.5 and 3 in place of 2 err by 18, 17 and 22 %.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from equipoise.sim.llm.stack import Floats
from equipoise.study.validation.rows import Cells, read_rows
from equipoise.study.validation.score import Line, Score, judge, line, of_splits, spread_of
from equipoise.study.validation.splits import fitted_half

FILE = "colocation/miso_mig_iteration_times.csv"
WHOLE_SLICES = 7
WEIGHT = 0.05


@dataclass(frozen=True, slots=True)
class MigRow:
    """Median seconds of one workload and batch on a slice of `sevenths` of the processors."""

    workload: str
    batch: float
    slice: str
    sevenths: int
    seconds: float

    @property
    def key(self) -> str:
        """What the row is of."""
        return f"{self.workload} {self.batch:.0f} {self.slice}"


def read(data: Path) -> list[MigRow]:
    """All rows. Raises FileNotFoundError, KeyError."""
    return read_rows(data / FILE, _row)


def _row(text: Cells) -> MigRow:
    sevenths = Cells(slice=text["slice"].split("g")[0]).whole("slice")
    return MigRow(text["workload"], text.measured("batch"), text["slice"], sevenths, text.measured("median"))


def curve(whole: Sequence[MigRow]) -> Floats:
    """(h, w0, w1) of one workload from its batches on the whole GPU."""
    batch, seconds = np.array([r.batch for r in whole]), np.array([r.seconds for r in whole])
    centre = np.log([seconds.min() * 0.8, seconds.min() * 0.1, seconds.max() / batch.max() * 0.7])

    def residuals(logs: Floats) -> Floats:
        """Misfit of every row, and distance from where it starts."""
        return np.concatenate([np.log(_time(np.exp(logs), batch, 1.0) / seconds), WEIGHT * (logs - centre)])

    return np.asarray(np.exp(least_squares(residuals, centre, loss="soft_l1", f_scale=0.1).x))


def _time(constants: Floats, batch: Floats | float, share: Floats | float) -> Floats:
    h, w0, w1 = constants
    return np.asarray(np.hypot(h, (w0 + w1 * np.asarray(batch)) / share))


def shares(rows: Sequence[MigRow], curves: Mapping[str, Floats]) -> dict[int, float]:
    """The share f of each slice: the median over rows of what makes the law exact; a slice never seen has none."""
    found: dict[int, list[float]] = defaultdict(list)
    for r in rows:
        h, w0, w1 = curves[r.workload]
        left = r.seconds**2 - h**2
        if left > (0.2 * r.seconds) ** 2:  # else the host hides what the slice does
            found[r.sevenths].append((w0 + w1 * r.batch) / float(np.sqrt(left)))
    return {n: float(np.median(values)) for n, values in found.items()}


def predict(rows: Sequence[MigRow], curves: Mapping[str, Floats], share: Mapping[int, float]) -> Floats:
    """Seconds on slices, shape (rows,); of a slice that was never seen by its share of the processors."""
    times = [_time(curves[r.workload], r.batch, share.get(r.sevenths, r.sevenths / WHOLE_SLICES)) for r in rows]
    return np.array([float(t) for t in times])


def run(data: Path) -> list[Line]:
    """Whole GPU, and slices of half of the workloads, predict the slices of the others."""
    rows = read(data)
    whole = [r for r in rows if r.sevenths == WHOLE_SLICES]
    curves = {name: curve([r for r in whole if r.workload == name]) for name in sorted({r.workload for r in whole})}
    slices = [r for r in rows if r.sevenths < WHOLE_SLICES and r.workload in curves]
    at = {(r.workload, r.batch): r.seconds for r in whole}
    slices = [r for r in slices if (r.workload, r.batch) in at]
    scores = of_splits(lambda split: _score(slices, curves, at, split))
    return [line("MIG slices: whole GPU, other workloads -> slices", 0.12, scores)]


def _score(
    slices: Sequence[MigRow], curves: Mapping[str, Floats], at: Mapping[tuple[str, float], float], split: int
) -> Score:
    known = [r for r in slices if fitted_half(r.workload, split)]
    asked = [r for r in slices if not fitted_half(r.workload, split)]
    if not known or not asked:
        raise ValueError("all workloads are on one side")
    guess = predict(asked, curves, shares(known, curves))
    naive = np.array([at[r.workload, r.batch] * WHOLE_SLICES / r.sevenths for r in asked])
    measured = np.array([r.seconds for r in asked])
    return judge([r.key for r in asked], guess, naive, measured, _spread(known, curves))


def _spread(known: Sequence[MigRow], curves: Mapping[str, Floats]) -> tuple[float, float]:
    names = [r.workload for r in known]
    residuals = np.zeros(len(known))
    for name in sorted(set(names)):
        rest = [r for r in known if r.workload != name]
        own = [r for r in known if r.workload == name]
        left = np.log(np.array([r.seconds for r in own]) / predict(own, curves, shares(rest, curves)))
        residuals[np.array(names) == name] = left
    return spread_of(residuals, names)

"""NCCL collectives within a node (AIConfigurator), each curve from half of its sizes; naive: the curve's best rate.

The fit of a curve, seconds by bytes, is handed in: it is the one that calibration uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from equipoise.sim.llm.stack import Floats
from equipoise.study.validation.rows import Cells, read_rows
from equipoise.study.validation.score import Line, Score, judge, line, of_splits, spread_of
from equipoise.study.validation.splits import fitted_half

FILE = "comm/nccl_aiconfigurator.csv.gz"
CURVE = ("system", "nccl_version", "op", "dtype", "num_gpus")
LEAST = 4
"""Sizes that a curve must have on either side of a split."""


class Curve(Protocol):
    """A fitted curve."""

    def predict(self, sizes: Floats, /) -> Floats:
        """Seconds by bytes."""


Fit = Callable[[Floats, Floats], Curve]


def read(data: Path) -> dict[str, tuple[Floats, Floats]]:
    """(bytes, seconds), each (sizes,), ascending, of every curve. Raises FileNotFoundError, KeyError."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for curve, size, seconds in read_rows(data / FILE, _point):
        found[curve].append((size, seconds))
    return {key: (a[:, 0], a[:, 1]) for key, a in ((k, np.array(sorted(v))) for k, v in found.items())}


def _point(text: Cells) -> tuple[str, float, float]:
    curve = " ".join(text[name] for name in CURVE)
    return curve, text.measured("bytes"), text.measured("time_us") * 1e-6


def run(data: Path, fit: Fit) -> list[Line]:
    """Half of the sizes of every curve predict the other half."""
    curves = read(data)
    scores = of_splits(lambda split: _score(curves, fit, split))
    return [line("NCCL collectives: half of the sizes -> the others", 0.021, scores)]


def _score(curves: Mapping[str, tuple[Floats, Floats]], fit: Fit, split: int) -> Score:
    keys: list[str] = []
    parts: list[tuple[Floats, ...]] = []
    inner: list[Floats] = []
    groups: list[str] = []
    for key, (size, seconds) in curves.items():
        known = np.array([fitted_half(f"{key} {b:.0f}", split) for b in size])
        if min(len(np.unique(size[part])) for part in (known, ~known)) < LEAST:
            continue
        guess = fit(size[known], seconds[known]).predict(size[~known])
        naive = size[~known] / (size[known] / seconds[known]).max()
        parts.append((guess, naive, seconds[~known]))
        keys += [f"{key} {b:.0f}" for b in size[~known]]
        left = _left_out(size[known], seconds[known], fit)
        inner.append(left)
        groups += [key] * len(left)
    if not parts:
        raise ValueError(f"no curve has {LEAST} sizes on either side")
    guess, naive, measured = (np.concatenate(column) for column in zip(*parts, strict=True))
    return judge(keys, guess, naive, measured, spread_of(np.concatenate(inner), groups))


def _left_out(size: Floats, seconds: Floats, fit: Fit) -> Floats:
    """log(measured / predicted) of every second inner size, from the other fitted ones."""
    distinct = np.unique(size)
    out = np.isin(size, distinct[1::2])
    if len(distinct[::2]) < 3:
        return np.zeros(0)
    return np.asarray(np.log(seconds[out] / fit(size[~out], seconds[~out]).predict(size[out])))

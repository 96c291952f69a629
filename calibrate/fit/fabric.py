"""The collectives' part of a profile: alpha per message and rate, in pieces by size."""

from __future__ import annotations

import math

import numpy as np

from equipoise.calibrate.fit.fits import leave_one_size_out
from equipoise.calibrate.fit.levels import LOW_QUANTILE, FitLine, Report, measured
from equipoise.calibrate.fit.pieces import AlphaBeta, CollectiveFit, fit_collective
from equipoise.calibrate.fit.robust import Estimate, Floats, low_quantile
from equipoise.calibrate.samples import SampleSet
from equipoise.sim.hardware.profile import Fabric, FabricRange, Measured

BRIDGE_STEP = 1.2


def messages(collective: str, ranks: int) -> tuple[float, float]:
    """(messages in sequence, share of S that each link carries) of a ring (Thakur et al. 2005)."""
    n = float(ranks)
    rounds = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}[collective]
    return rounds * (n - 1.0), rounds * (n - 1.0) / n


def fabric_part(samples: SampleSet, accelerator: str, report: Report) -> list[Fabric]:
    """One fabric per collective, from the largest group measured."""
    found = []
    for collective in samples.distinct("collective", "collective"):
        groups = [s["ranks"] for s in samples.of("collective", collective=collective)]
        chosen = samples.of("collective", collective=collective, ranks=max(groups))
        sizes = [float(s["bytes"]) for s in chosen for _ in s.values]
        seconds = [v for s in chosen for v in s.values]
        backend = chosen[0]["backend"]
        try:
            fit = fit_collective(sizes, seconds, LOW_QUANTILE)
        except ValueError as reason:
            report.missing.append(f"{collective} over {backend}: {reason}")
            continue
        error = None
        if len(set(sizes)) > 3:  # a fit needs 3 sizes, and one is left out
            held = leave_one_size_out(sizes, seconds, _at_low_quantile)
            error = _level_error(held.size, held.measured, held.predicted)
        name = f"{collective}, {max(groups)} ranks, {backend}"
        first = fit.pieces[0].alpha_s
        report.lines.append(
            FitLine(name, first, "s", fit.residual_cov, error, f"{len(fit.pieces)} pieces, alpha of the first")
        )
        found.append(as_fabric(fit, collective, max(groups), accelerator, f"{backend}, {max(groups)} ranks"))
    return found


def _at_low_quantile(sizes: Floats, seconds: Floats) -> CollectiveFit:
    return fit_collective(sizes, seconds, LOW_QUANTILE, intervals=False)


def _level_error(size: Floats, seconds: Floats, predicted: Floats) -> float:
    """Median over sizes of the error against the same quantile of what was measured."""
    errors = [
        abs(predicted[size == s][0] / float(low_quantile(seconds[size == s], LOW_QUANTILE)) - 1.0)
        for s in np.unique(size)
    ]
    return float(np.median(errors))


def as_fabric(fit: CollectiveFit, collective: str, ranks: int, accelerator: str, source: str) -> Fabric:
    """alpha per message and rate B such that the ring's closed form gives back the fitted times."""
    sequence, carried = messages(collective, ranks)
    pieces = [
        FabricRange.model_validate(
            {
                "from_bytes": Measured(value=start, source=source, kind="fitted"),
                "alpha_s": measured(alpha.map(lambda a: a / sequence), source, "fitted"),
                "bytes_per_s": measured(_rate_of(beta, carried, alpha, end), source, "fitted"),
            }
        )
        for start, end, alpha, beta in _profile_pieces(fit)
    ]
    return Fabric.model_validate(
        {
            "tier": "intra",
            "collective": collective,
            "accelerator": accelerator,
            "alpha_s": pieces[0].alpha_s,
            "bytes_per_s": pieces[-1].bytes_per_s,
            "pieces": tuple(pieces),
        }
    )


def _rate_of(beta: Estimate, carried: float, alpha: Estimate, end: float) -> Estimate:
    """carried / beta; a flat piece gets a rate so high that it adds at most a millionth of alpha."""
    least = 1e-6 * max(alpha.value, 1e-12) / end
    low, value, high = (carried / max(b, least) for b in (beta.high, beta.value, beta.low))
    return Estimate(value, low, high, beta.n)


Row = tuple[float, float, Estimate, Estimate]  # from_bytes, to_bytes, alpha, beta


def _profile_pieces(fit: CollectiveFit) -> list[Row]:
    """The fitted pieces, the bridges between them, and what lies beyond the last."""
    found: list[Row] = []
    for k, piece in enumerate(fit.pieces):
        start = piece.from_bytes if k else 0.0
        found.append((start, piece.to_bytes, piece.alpha_s, piece.beta_s_per_byte))
        found += [row for following in fit.pieces[k + 1 : k + 2] for row in _bridge(piece, following)]
    last, slope = fit.pieces[-1], fit.beyond_s_per_byte
    if slope > last.beta_s_per_byte.value:
        alpha = last.at(last.to_bytes) - slope * last.to_bytes
        n = last.alpha_s.n
        found.append((last.to_bytes + 1.0, math.inf, _exactly(max(alpha, 0.0), n), _exactly(slope, n)))
    return found


def _bridge(piece: AlphaBeta, following: AlphaBeta) -> list[Row]:
    """The straight line between two pieces, as pieces with alpha, beta >= 0.

    One that falls, or that rises more than in proportion to the size, has no such constants and becomes
    steps: flat ones, or ones proportional to the size, each of which spans a factor of at most BRIDGE_STEP.
    """
    left, right, n = piece.to_bytes, following.from_bytes, piece.alpha_s.n
    left_s, right_s = piece.at(left), following.at(right)
    slope = (right_s - left_s) / (right - left)
    alpha = left_s - slope * left
    if alpha >= 0.0 and slope >= 0.0:
        return [(left + 1.0, right, _exactly(alpha, n), _exactly(slope, n))]
    falls = slope < 0.0
    ends = (left_s, right_s) if falls else (left_s / left, right_s / right)
    count = max(math.ceil(abs(math.log(ends[1] / ends[0])) / math.log(BRIDGE_STEP)), 1)
    levels = np.geomspace(ends[0], ends[1], 2 * count + 1)  # edges and, between them, what a step stands for
    edges = left + (levels[::2] - left_s) / slope if falls else alpha / (levels[::2] - slope)
    edges[0], edges[-1] = left + 1.0, right
    nothing, rows = _exactly(0.0, n), []
    for start, end, level in zip(edges, edges[1:], levels[1::2].tolist(), strict=False):
        if start < end:
            step = _exactly(level, n)
            rows.append((float(start), float(end), *((step, nothing) if falls else (nothing, step))))
    return rows


def _exactly(value: float, n: int) -> Estimate:
    return Estimate(value, value, value, n)

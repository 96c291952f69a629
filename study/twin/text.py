"""A twin as text and as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from equipoise.base.tables import aligned
from equipoise.sim.scenario.units import format_seconds, format_share
from equipoise.study.findings import screen
from equipoise.study.twin.twin import CLOSE, Twin, TwinWindow

_HEADER = ("decision", "rounds", "samples", "H", "measured", "predicted", "error", "decides")
_SHOWN = 40  # windows; of a longer run the first half and the last
_COLUMNS_SHOWN = 5


def as_data(twin: Twin) -> dict[str, Any]:
    """Plain data: SI units, `null` for unknown values."""
    return {
        "run": str(twin.run.folder),
        "policy": twin.run.policy.name,
        "ranks": twin.run.ranks,
        "rounds": twin.run.rounds,
        "step_error_median": _finite(twin.step_error_median),
        "noise_median": _finite(twin.noise_median),
        "step_error_max": _finite(max((w.error for w in twin.windows), default=math.nan)),
        "decisions": len(twin.windows),
        "decisions_identical": twin.decisions_identical,
        "replay_equal": not twin.replay_differences,
        "replay_differences": list(twin.replay_differences),
        "parted": None if twin.parted is None else asdict(twin.parted),
        "measured": {
            "speeds": [asdict(speeds) for speeds in twin.measured.speeds],
            "fixed_s": twin.measured.fixed_samples * twin.measured.reference_s,
            "exchange_s": twin.measured.exchange_s,
            "step_cov": twin.measured.step_cov,
        },
        "windows": [asdict(w) | {"noise": _finite(w.noise), "error": _finite(w.error)} for w in twin.windows],
        "slow": list(twin.slow),
        "notes": list(twin.run.notes),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def render(twin: Twin, wide: bool = False) -> str:
    """The answer, then what was measured, then the table."""
    lines = [*(f"  first difference: {text}" for text in twin.replay_differences[:1]), *_parting(twin), *_far(twin)]
    lines += [*(f"note: {note}" for note in twin.run.notes), "", *_measured(twin), *(f"  {line}" for line in twin.slow)]
    return screen(_answer(twin), [*lines, "", *_table(twin.windows)], wide) + "\n"


def _measured(twin: Twin) -> Iterator[str]:
    found = twin.measured
    for member, speeds in zip(twin.run.members, found.speeds, strict=True):
        parts = [
            f"{format_seconds(per_sample_s)} per sample" + (f" from round {begin} on" if begin else "")
            for begin, per_sample_s in zip(speeds.begin, speeds.per_sample_s, strict=True)
        ]
        yield f"  rank {member}: {', '.join(parts)}"
    fixed_s = found.fixed_samples * found.reference_s
    yield (
        f"  per step {format_seconds(fixed_s)}, per exchange {format_seconds(found.exchange_s)}, "
        f"steps vary by {format_share(found.step_cov)}"
    )


def _table(windows: Sequence[TwinWindow]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        (
            str(w.decision),
            f"{w.first_round}-{w.last_round}",
            " ".join(str(n) for n in w.samples),
            str(w.interval),
            format_seconds(w.measured_s),
            format_seconds(w.predicted_s),
            _share(w.error),
            "alike" if w.equal else "otherwise",
        )
        for w in windows
    ]
    if len(rows) > _SHOWN:
        left_out = ("...",) * len(_HEADER)
        rows = [*rows[: _SHOWN // 2], left_out, *rows[-(_SHOWN // 2) :]]
    yield from aligned([_HEADER, *rows], [True] * len(_HEADER))


def _share(value: float) -> str:
    return format_share(0.0 if value < 1e-9 else value)  # rounding alone is no error


def _answer(twin: Twin) -> Iterator[str]:
    compared = len(twin.windows)
    error, noise = map(_share, (twin.step_error_median, twin.noise_median))
    yield (
        f"The simulation of {twin.run.folder} ({twin.run.policy.name}, {twin.run.ranks} ranks, {twin.run.rounds} "
        f"rounds) misses the measured step time by {error}, as median of {compared} decisions, measured to {noise}."
    )
    if twin.parted is None:
        yield f"It decides all {twin.decisions_identical} times as the live run did."
    else:
        yield (
            f"It decides the first {twin.decisions_identical} times as the live run did; at decision "
            f"{twin.parted.decision} {twin.parted.what} parts: live {twin.parted.live}, simulated "
            f"{twin.parted.simulated}."
        )
    if twin.replay_differences:
        yield f"{len(twin.replay_differences)} recorded decisions are not reproduced from what was observed."
    else:
        yield "All recorded decisions are reproduced from what was observed."


def _parting(twin: Twin) -> Iterator[str]:
    if twin.parted is None:
        return
    for column in twin.parted.columns[:_COLUMNS_SHOWN]:
        at = f"decision {twin.parted.decision} has another {twin.parted.what} live"
        yield f"  {at}, because {column} was different"
    if not twin.parted.columns:
        yield "  no observed column alone makes the difference"


def _far(twin: Twin) -> Iterator[str]:
    for why in dict.fromkeys(w.why for w in twin.windows if w.why):
        which = [str(w.decision) for w in twin.windows if w.why == why]
        at = f"decision{'s' * (len(which) > 1)} {', '.join(which)}"
        yield f"  off by more than {format_share(CLOSE)} before {at}: {why}"

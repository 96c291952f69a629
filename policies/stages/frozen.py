"""Freezing one sub-step of a stage to measure its value: the strongest simple default replaces it.

S111: the last gradient rate, and every gradient is sound. S112: equal data for all. S113: no moves. S211: the
interfaces' rates in place of measured transfers. S212: fetches in the order of need. S213: late shards are kept.
S221, S222, S223: the split is kept. S311: intervals change while work is reassigned. S312: intervals are kept, of
one level. S313: one interval for all levels of the network, and for all asynchronous workers. S321: every part of a
GPU counts as equally used. S322, S323: shares are kept. S324: no power caps. S411: nodes as their GPU model. S412:
jobs in order of arrival. S413: no change is undone. S421: nodes regardless of their use. S422: whole requests, in
order, never changed.
"""

from __future__ import annotations

STEPS = {
    "s1": ("S111", "S112", "S113"),
    "s2": ("S211", "S212", "S213", "S221", "S222", "S223"),
    "s3": ("S311", "S312", "S313", "S321", "S322", "S323", "S324"),
    "s4": ("S411", "S412", "S413", "S421", "S422"),
}


def check_frozen(stage: str, frozen: str) -> None:
    """Raise ValueError where `frozen` is neither empty nor a sub-step of the stage."""
    if frozen and frozen not in STEPS[stage]:
        raise ValueError(f"frozen: {frozen!r} is not one of {', '.join(STEPS[stage])}")

"""What results show of post-training: the step of each loop by phase, and what waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.sim.shown import Metric, Shown, Tables

DAY_S = 86400.0


def _summary(tables: Tables, totals: Mapping[str, float], gpu_s: float) -> dict[str, float]:
    """Of the slowest loop."""
    of = tables.get("post_training", {})
    if not of:
        return {}
    slowest = int(of["step_s"].argmax())
    return {
        "post_training_step_s": float(of["step_s"][slowest]),
        "post_training_waiting_ratio": float(of["waiting"][slowest]),
        "post_training_tokens_per_s": float(of["tokens"][slowest] / of["step_s"][slowest]),
    }


def _rows(tables: Tables) -> list[dict[str, Any]]:
    """One row per loop."""
    of, rows = tables.get("post_training", {}), []
    for k, name in enumerate(of["loop"].tolist() if of else ()):
        rollout, gpus = int(of["rollout_gpus"][k]), int(of["gpus"][k])
        split = f"{gpus}" if rollout in (0, gpus) else f"{rollout} + {gpus - rollout}"
        phases = ("step", "rollout", "scoring", "training", "handover", "other")
        rows.append(
            {
                "loop": str(name),
                "GPUs": split,
                **{phase: ("_s", float(of[f"{phase}_s"][k])) for phase in phases},
                "replicas wait": ("_s", float(of["replicas_wait_s"][k])),
                "trainers wait": ("_s", float(of["trainers_wait_s"][k])),
                "waiting": ("_ratio", float(of["waiting"][k])),
                "steps a day": f"{DAY_S / float(of['step_s'][k]):,.0f}",
            }
        )
    return rows


SHOWN = Shown(
    heading=("post-training", "Post-training", "How long a step takes, and what waits"),
    metrics=(
        Metric(
            "post_training_step_s", "post-training step", after="queueing_p99_s", target="post_training_step", of_step=1
        ),
        Metric("post_training_waiting_ratio", "GPUs wait in it", target="post_training_waiting"),
        Metric("post_training_tokens_per_s", "tokens per second in it", more_is_better=True, of_step=-1),
    ),
    tables=("post_training",),
    summary=_summary,
    rows=_rows,
)

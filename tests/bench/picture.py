"""Where the GPU time went under each policy, or in each of several scenarios under the first one, as one SVG.

python -m tests.bench.picture OUT/comparison.json [ANOTHER/comparison.json ...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from equipoise.sim.scenario.units import format_seconds

USES = {
    "gpu_busy_ratio": ("training", "#2f6f4f"),
    "input_stall_ratio": ("waiting for data", "#d9a441"),
    "barrier_wait_ratio": ("waiting at the barrier", "#c8553d"),
    "exposed_communication_ratio": ("exchanging gradients", "#4a6fa5"),
    "restart_ratio": ("restarts and checkpoints", "#8d6a9f"),
    "lost_to_faults_ratio": ("lost to faults", "#5b5b5b"),
    "idle_ratio": ("idle", "#d5d5d0"),
}
WIDTH, LEFT, BAR, GAP = 860, 150, 30, 16


def draw(title: str, results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """One bar per policy; its length is the mean makespan relative to the longest, its colours where time went.

    `results` maps a policy to the metrics of its runs.
    """
    means = {
        policy: {name: sum(run[name] for run in runs) / len(runs) for name in (*USES, "makespan_s")}
        for policy, runs in results.items()
    }
    longest_s = max(row["makespan_s"] for row in means.values())
    room = WIDTH - LEFT - 90
    used = [name for name in USES if any(row[name] > 5e-4 for row in means.values())]
    height = 70 + len(means) * (BAR + GAP) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="14" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="17" font-weight="bold">{escape(title)}</text>',
    ]
    y = 50
    for policy, row in means.items():
        x, scale = float(LEFT), room * row["makespan_s"] / longest_s
        parts.append(f'<text x="{LEFT - 10}" y="{y + 20}" text-anchor="end">{escape(policy)}</text>')
        for name in used:
            width = max(0.0, row[name]) * scale
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{USES[name][1]}"/>')
            x += width
        parts.append(f'<text x="{LEFT + scale + 8:.1f}" y="{y + 20}">{format_seconds(row["makespan_s"])}</text>')
        y += BAR + GAP
    x = LEFT
    for name in used:
        label, colour = USES[name]
        parts.append(f'<rect x="{x}" y="{y + 6}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 17}">{label}</text>')
        x += 34 + 8 * len(label)
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(paths: Sequence[str]) -> None:
    """Draw the comparisons in files and print the picture."""
    results: dict[str, list[Mapping[str, float]]] = {}
    for path in paths:
        comparison = json.loads(Path(path).read_text(encoding="utf-8"))
        for run in comparison["runs"]:
            if len(paths) == 1:
                results.setdefault(run["policy"], []).append(run["metrics"])
            elif run["policy"] == comparison["runs"][0]["policy"]:
                results.setdefault(comparison["scenario"], []).append(run["metrics"])
    name = comparison["scenario"] if len(paths) == 1 else "several scenarios"
    print(draw(f"{name}: time to the last job's end, and where it went", results), end="")


if __name__ == "__main__":
    main(sys.argv[1:])

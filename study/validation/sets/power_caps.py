"""Zeus: epochs of five models on three GPUs under power limits (You et al., NSDI 2023; ml-energy/zeus).

The epoch and the power of a model at its highest limit predict its epochs at the lower ones, by the law that power
caps act through in a run (`sim.cluster.power`). Idle power is the catalogue's assumption, a tenth of the highest.
Naive: no effect.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from equipoise.sim.cluster.power import clock_under_cap
from equipoise.study.validation.rows import Cells, read_rows
from equipoise.study.validation.score import Line, judge, line

FILE = "power/zeus_power_limit.csv.gz"
IDLE = 0.1
NAMES = ("gpu", "dataset", "network", "batch_size", "optimizer")


def _epoch(text: Cells) -> tuple[str, float, float, float]:
    key = " ".join(text[name] for name in NAMES)
    return key, text.measured("power_limit"), text.measured("time_per_epoch"), text.measured("average_power")


def run(data: Path) -> list[Line]:
    """Each model's epochs under lower limits from the one under the highest."""
    epochs: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for key, *epoch in read_rows(data / FILE, _epoch):
        epochs[key].append((epoch[0], epoch[1], epoch[2]))
    most_w = {key.split()[0]: 0.0 for key in epochs}
    for key, runs in epochs.items():
        most_w[key.split()[0]] = max(most_w[key.split()[0]], max(runs)[0])
    rows = []
    for key, runs in sorted(epochs.items()):
        highest_w, epoch_s, draw_w = max(runs)
        idle_w = np.array([IDLE * most_w[key.split()[0]]])
        for cap_w, seconds, _ in sorted(runs)[:-1]:
            clock = float(clock_under_cap(idle_w, np.array([draw_w]), cap_w)[0])
            rows.append((f"{key} {cap_w:g} of {highest_w:g} W", epoch_s / clock, epoch_s, seconds))
    keys, *columns = zip(*rows, strict=True)
    guess, naive, measured = (np.array(column) for column in columns)
    scores = [judge(keys, guess, naive, measured, (np.nan, np.nan))]
    return [line("Zeus: power at the highest limit -> epochs under lower ones", 0.04, scores)]

"""Descriptions of observation columns and plan fields."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.study.twin.compare import ComparedColumn, Parting

_COLUMNS = {
    "time_s": "the time",
    "window_s": "the time since the last decision",
    "workers.capacity_samples_per_s": "the speed",
    "workers.response_s_per_sample": "the time per sample",
    "workers.step_s": "the step time",
    "workers.step_cov": "the variation of step times",
    "workers.fixed_s": "the fixed part of a step",
    "workers.wait_s": "the wait at the exchange",
    "workers.input_stall_s": "the wait for data",
    "workers.samples_owned": "the number of samples still to read",
    "workers.gradient_norm": "the gradient norm",
    "workers.gradient_rate_per_s": "the rate of gradients",
    "workers.gpu_share": "the GPU share",
    "jobs.exchange_s": "the time of an exchange",
    "jobs.exchange_alone_s": "the shortest exchange",
    "jobs.work_s": "the mean step time",
    "jobs.noise_scale": "the gradient noise scale",
    "jobs.throughput_samples_per_s": "the throughput",
    "jobs.goodput_samples_per_s": "the goodput",
    "jobs.remaining_samples": "the number of samples left",
    "jobs.restart_s": "the time to re-form the group",
    "shards.samples": "the number of unread samples of a shard",
    "shards.needed_in_s": "the time until a shard is needed",
}
_FIELDS = {
    "samples_per_step": "other samples per step",
    "global_batch": "another global batch",
    "accumulation": "another number of passes of a step",
    "moves": "other moves of shards",
    "fetch_order": "another order of shards",
    "sync_interval": "another synchronisation interval",
    "gpu_share": "other GPU shares",
    "allocation": "other GPUs",
}


def reason(parting: Parting, columns: Sequence[ComparedColumn]) -> str:
    """One sentence: the difference of the live policy's decision from the simulated one, and its cause."""
    head = f"decision {parting.decision} has {_FIELDS[parting.what]} live"
    if not columns:
        return f"{head}; the difference comes from counters and memory, not from a measured column"
    return f"{head}, because {' and '.join(_was(column) for column in columns)}"


def _was(column: ComparedColumn) -> str:
    pairs = list(zip(column.live, column.simulated, strict=False))
    k = max(range(len(pairs)), key=lambda i: _apart(*pairs[i]), default=0)
    what = _COLUMNS.get(column.name, column.name)
    table, dot, _ = column.name.partition(".")
    whose = f" of {_row(table)} {k}" if dot and len(pairs) > 1 else ""
    was = _difference(*pairs[k]) if pairs else "not the same live as in the simulation"
    return f"{what}{whose} was {was}"


def _row(table: str) -> str:
    return {"workers": "rank", "gpus": "GPU"}.get(table, table.rstrip("s"))


def _apart(live: float, simulated: float) -> float:
    if math.isnan(live) and math.isnan(simulated):
        return 0.0
    if math.isnan(live) or math.isnan(simulated) or simulated == 0.0:
        return math.inf if live != simulated else 0.0
    return abs(live / simulated - 1.0)


def _difference(live: float, simulated: float) -> str:
    if math.isnan(live):
        return "not known live"
    if math.isnan(simulated):
        return "known live only"
    if simulated == 0.0:
        return f"{live:.3g} live and 0 in the simulation"
    return f"{_apart(live, simulated):.1%} {'higher' if live > simulated else 'lower'} live than in the simulation"

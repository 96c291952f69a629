"""Prometheus metrics of the whole job, served by rank 0."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import Metric

# name: (type, help). Base units; one value per rank, or one for the job.
METRICS = {
    "equipoise_step_seconds": ("gauge", "Mean local step over the last window, without waiting."),
    "equipoise_wait_seconds": ("gauge", "Mean wait at the exchange per round."),
    "equipoise_input_stall_seconds": ("gauge", "Mean wait for data per round."),
    "equipoise_share_samples": ("gauge", "Samples per round."),
    "equipoise_samples_total": ("counter", "Samples trained."),
    "equipoise_exchange_seconds": ("gauge", "Time of one exchange not hidden by backward."),
    "equipoise_throughput_samples_per_second": ("gauge", "Samples trained per second by all ranks."),
    "equipoise_sync_interval": ("gauge", "Local steps per exchange."),
    "equipoise_far_every": ("gauge", "Intra-node exchanges per exchange of all ranks."),
    "equipoise_noise_scale_samples": ("gauge", "Gradient noise scale."),
    "equipoise_decisions_total": ("counter", "Decisions made."),
    "equipoise_decision_failures_total": ("counter", "Decisions that failed or came late."),
    "equipoise_ranks": ("gauge", "Ranks in the group."),
}


def families(values: Mapping[str, float | Sequence[float]]) -> Iterator[Metric]:
    """Prometheus metrics; a sequence becomes one sample per rank, and NaN is left out."""
    for name, (kind, text) in METRICS.items():
        value = values.get(name)
        if value is not None:
            metric = Metric(name.removesuffix("_total"), text, kind)
            by_rank = [({"rank": str(k)}, one) for k, one in enumerate(value)] if isinstance(value, Sequence) else []
            for labels, one in by_rank if isinstance(value, Sequence) else [({}, value)]:
                if not math.isnan(one):
                    metric.add_sample(name, labels, float(one))
            yield metric

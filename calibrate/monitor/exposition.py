"""Readings for machines: JSON lines, and metrics for Prometheus."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import Metric

from equipoise.calibrate.monitor.diagnosis import Diagnosis
from equipoise.calibrate.monitor.readings import FIELDS, Reading


def as_json_line(reading: Reading, diagnosis: Diagnosis) -> str:
    """One reading as one line of JSON; what is not known is null, with its reason under `missing`."""
    record: dict[str, Any] = {
        "time_s": round(reading.time_s, 3),
        "interval_s": round(reading.interval_s, 3),
        "gpu": reading.gpu.index,
        "instance": reading.gpu.instance or None,
        "uuid": reading.gpu.uuid,
        "name": reading.gpu.name,
        "lost": reading.lost or None,
        "clock_reasons": list(reading.clock_reasons),
        "processes": [
            {"pid": p.pid, "memory_bytes": p.memory_bytes, "time_share": p.sm_share, "gpu_instance": p.instance_id}
            for p in reading.processes
        ],
        "limit": diagnosis.limit,
        "evidence": diagnosis.evidence,
        "idle_usd_per_h": diagnosis.idle_usd_per_h,
        **{name: reading.values.get(name) for name in FIELDS},
        "sources": dict(reading.sources),
        "missing": dict(reading.missing),
    }
    return json.dumps(record, allow_nan=False)


def as_metrics(rows: Iterable[tuple[Reading, Diagnosis]]) -> Iterator[Metric]:
    """All readings as Prometheus metrics; an unknown value has no sample."""
    pairs = list(rows)
    for name in FIELDS:
        metric = Metric(name, "see DCGM", "gauge")
        for reading, _ in pairs:
            value = reading.values.get(name)
            if value is not None and math.isfinite(value):
                metric.add_sample(name, _labels(reading) | {"source": reading.sources.get(name, "nvml")}, value)
        yield metric
    lost = Metric("equipoise_gpu_lost", "1 while the device does not answer", "gauge")
    limit = Metric("equipoise_gpu_limit", "what limits the device", "gauge")
    cost = Metric("equipoise_gpu_idle_usd_per_hour", "price of the idle part", "gauge")
    for reading, diagnosis in pairs:
        lost.add_sample(lost.name, _labels(reading), int(bool(reading.lost)))
        limit.add_sample(limit.name, _labels(reading) | {"limit": diagnosis.limit}, 1)
        if diagnosis.idle_usd_per_h is not None:
            cost.add_sample(cost.name, _labels(reading), diagnosis.idle_usd_per_h)
    yield from (lost, limit, cost)


def _labels(reading: Reading) -> dict[str, str]:
    labels = {"gpu": str(reading.gpu.index), "UUID": reading.gpu.uuid, "modelName": reading.gpu.name}
    return labels | ({"GPU_I_ID": reading.gpu.instance} if reading.gpu.instance else {})

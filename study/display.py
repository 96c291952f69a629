"""Metrics as text: labels, and numbers in readable units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from equipoise.sim.scenario.units import (
    TIME,
    format_bytes,
    format_bytes_per_s,
    format_joules,
    format_kg,
    format_seconds,
    format_usd,
)
from equipoise.sim.shown import all_shown

OF_FEATURES = tuple(metric for shown in all_shown() for metric in shown.metrics)


def _with_features(labels: dict[str, str]) -> dict[str, str]:
    """The labels with those of features, each behind the metric that it names, else behind the one before."""
    names, before = list(labels), ""
    for metric in OF_FEATURES:
        names.insert(names.index(metric.after or before) + 1, metric.name)
        before = metric.name
    return {name: labels.get(name, "") for name in names} | {metric.name: metric.label for metric in OF_FEATURES}


_OWN_LABELS = {
    "jobs": "jobs",
    "completed": "jobs completed",
    "timeouts": "jobs at their limit",
    "makespan_s": "makespan",
    "completion_mean_s": "completion mean",
    "completion_p50_s": "completion p50",
    "completion_p95_s": "completion p95",
    "completion_p99_s": "completion p99",
    "queueing_mean_s": "waiting mean",
    "queueing_p50_s": "waiting p50",
    "queueing_p95_s": "waiting p95",
    "queueing_p99_s": "waiting p99",
    "goodput_ratio": "goodput",
    "gpu_busy_ratio": "GPU busy",
    "idle_ratio": "idle",
    "idle_late_ratio": "  after last arrival",
    "input_stall_ratio": "input stall",
    "barrier_wait_ratio": "barrier wait",
    "exposed_communication_ratio": "exposed comm.",
    "pipeline_bubble_ratio": "pipeline bubble",
    "tensor_exchange_ratio": "tensor exchange",
    "restart_ratio": "restart",
    "lost_to_faults_ratio": "lost to faults",
    "energy_j": "energy",
    "carbon_kg": "CO2",
    "cost_usd": "cost",
    "committed_usd": "  bound by contracts",
    "upfront_usd": "  of it in advance",
    "waste_usd": "  wasted",
    "idle_usd": "    idle",
    "input_stall_usd": "    input stall",
    "barrier_wait_usd": "    barrier wait",
    "exposed_communication_usd": "    exposed comm.",
    "pipeline_bubble_usd": "    pipeline bubble",
    "tensor_exchange_usd": "    tensor exchange",
    "restart_usd": "    restart",
    "lost_to_faults_usd": "    lost to faults",
    "mfu_ratio": "MFU",
    "tokens_per_s": "tokens/s",
    "cost_per_million_tokens_usd": "cost per 1e6 tokens",
    "energy_per_useful_sample_j": "energy a sample",
    "cost_per_useful_sample_usd": "cost per 1e6 samples",
    "fairness_user": "fairness, users",
    "fairness_account": "fairness, accounts",
    "fairness_queue": "fairness, queues",
    "fairness_worst": "worst finish-time ratio",
}
LABELS = _with_features(_OWN_LABELS)
METRICS = tuple(LABELS)
"""Names of `Run.summary`, in its order."""
WHERE_USED = frozenset(metric.name for metric in OF_FEATURES)
"""Metrics that only scenarios with their feature have."""
MAIN_OF_FEATURES = tuple(metric.name for metric in OF_FEATURES if metric.main)
"""Of these, those of short tables."""
WHERE_BOUND = ("timeouts", "committed_usd", "upfront_usd")
"""Metrics that exist only for runs with time limits or term contracts."""
MORE_IS_BETTER = frozenset(
    {
        "completed",
        "goodput_ratio",
        "gpu_busy_ratio",
        "mfu_ratio",
        "tokens_per_s",
        "fairness_user",
        "fairness_account",
        "fairness_queue",
        *(metric.name for metric in OF_FEATURES if metric.more_is_better),
    }
)
"""Metrics for which more is better; for all others less is better."""
IN_DETAIL = (
    "idle_usd",
    "input_stall_usd",
    "barrier_wait_usd",
    "exposed_communication_usd",
    "pipeline_bubble_usd",
    "tensor_exchange_usd",
    "restart_usd",
    "lost_to_faults_usd",
    "energy_per_useful_sample_j",
)
"""Metrics that the table of a comparison omits, because it already shows their shares of time."""
_DECIMALS = 3
PER_JOB = tuple(f"{of}_p{q}_s" for of in ("completion", "queueing") for q in (50, 95, 99))
_ONLY_SOME = ("pipeline_bubble_ratio", "tensor_exchange_ratio", "pipeline_bubble_usd", "tensor_exchange_usd")
_IF_KNOWN = ("_usd", "_j", "_kg", "mfu_ratio", "tokens_per_s", "idle_late_ratio")


def folded(metric: str, *values: float) -> bool:
    """Whether tables omit a metric: it is 0 and for large models only, or it is unknown."""
    if not any(map(math.isfinite, values)):
        return metric.endswith(_IF_KNOWN) or metric.startswith("fairness_")
    return metric in _ONLY_SOME and not any(values)


UNKNOWN = "-"


def digits(value: float, significant: int = 3) -> str:
    """A number with this many significant digits, at most three decimals, and no exponent below a million."""
    if not math.isfinite(value) or abs(value) >= 1e6:
        return f"{value:.{significant}g}"
    if abs(value) < 0.5 * 10.0**-_DECIMALS:
        return "0"
    whole = math.floor(math.log10(abs(value))) + 1
    return f"{value:.{min(max(0, significant - whole), _DECIMALS)}f}"


def plus_minus(half: float) -> str:
    """Half width of an interval as text: " ±0.2"; empty when zero or unknown."""
    shown = digits(half, 2) if half > 0 else "0"
    return "" if shown == "0" else f" ±{shown}"


def _scaled(metric: str, mean: float) -> tuple[float, str]:
    """(divisor, unit) for the metric and the magnitude of its mean."""
    if metric.endswith("_per_s"):
        return (1e6, "million") if abs(mean) >= 1e6 else (1.0, "")
    if metric.endswith("_s"):
        unit = format_seconds(mean).rsplit(" ", 1)[1]
        return float(TIME.factors[unit]), unit
    return (0.01, "%") if metric.endswith("_ratio") else (1.0, "")


def of_all(metric: str) -> str:
    """The metric without its group: "queueing_p95_s" of "queueing_p95_s[8 GPUs]"."""
    return metric.partition("[")[0]


def label(metric: str) -> str:
    """Label of a metric, or of its value for one group, in tables."""
    base = of_all(metric)
    return f"{LABELS.get(base, base)}{' ' * (base != metric)}{metric[len(base) :]}"


def show(metric: str, mean: float, half: float = math.nan) -> str:
    """A mean and its half interval in the unit of the metric: "43.1 ±0.2 s"; "-" when unknown."""
    metric = of_all(metric)
    if not math.isfinite(mean):
        return UNKNOWN
    other: dict[str, Callable[[float], str]] = {
        "_bytes": format_bytes,
        "_usd": format_usd,
        "_j": format_joules,
        "_kg": format_kg,
    }
    if metric == "cost_per_useful_sample_usd":
        mean, half = 1e6 * mean, 1e6 * half
    for suffix, text in other.items():
        if metric.endswith(suffix):
            number, unit = text(mean).rsplit(" ", 1)
            relative = half / abs(mean) if mean else math.nan
            return f"{number}{plus_minus(relative * abs(float(number.replace(',', ''))))} {unit}"
    scale, unit = _scaled(metric, mean)
    number = digits(mean / scale)
    if not unit and abs(mean) >= 1e6:  # such as requests: no exponent
        number = f"{mean:,.0f}"
    elif not unit and mean == round(mean):
        number = f"{mean:.0f}"
    return f"{number}{plus_minus(half / scale)} {unit}".rstrip()


def texts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of a feature's table as texts, the titles first."""
    shown = [tuple(value if isinstance(value, str) else show(*value) for value in row.values()) for row in rows]
    return [tuple(rows[0]), *shown] if rows else []


def cluster_line(cluster: Mapping[str, Any], nics: bool = False) -> str:
    """Nodes, GPUs and network of a scenario's `cluster` section; nics: with the rates of nodes' NICs."""
    if not cluster.get("nodes"):
        return f"{cluster.get('gpus') or 0:,} GPUs, in one pool"
    groups, gpus = [], 0
    for node in cluster["nodes"]:
        count, each = int(node.get("count") or 1), int(node.get("gpus") or 0)
        gpus += count * each
        kind = node.get("accelerator") or node.get("name") or "GPU"
        speed = node.get("speed", 1.0)
        told = "" if speed == 1.0 else f" at {speed:g} of its speed"
        told += f" with {node['nics']} x {format_bytes_per_s(node['nic'])}" if nics else ""
        groups.append(f"{count} x {each} {kind}{told}" if each else f"{count} nodes without GPUs")
    topology = cluster.get("topology") or {}
    shape = str(topology.get("kind", "")) if isinstance(topology, Mapping) else ""
    over = topology.get("oversubscription") if isinstance(topology, Mapping) else None
    network = f"; network: {shape}" if shape else ""
    if isinstance(over, int | float) and over > 1:
        network += f", {over:g}:1 oversubscribed"
    return f"{', '.join(groups)} ({gpus:,} GPUs){network}"

"""Speed of each duration job on each GPU model, relative to the model of its given duration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.policies.physics import overlapped_s
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cost.configuration import Configuration
from equipoise.sim.cost.step import samples_per_pass
from equipoise.sim.hardware.profile import Accelerator
from equipoise.sim.scenario.model import JobSpec, Scenario
from equipoise.sim.scenario.throughputs import ModelRates
from equipoise.sim.scenario.tree import InputError

_NAMED = 3  # rates that are missing, in a note


@dataclass(frozen=True)
class Paces:
    """speed (kinds, GPU models): seconds of a job's duration per second; kind (jobs,): row of `speed`."""

    speed: Floats
    kind: Ints
    note: str = ""

    @property
    def alike(self) -> bool:
        """Whether every job runs equally fast on all GPU models, at the pace of its duration."""
        return bool((self.speed == 1.0).all())


def make_paces(
    scenario: Scenario, cluster: Cluster, gpus: Ints, types: Sequence[str], rigid: Bools, recorded: Bools
) -> Paces:
    """Paces of all jobs: gpus (jobs,) requested, types of their work ("" not known), rigid (jobs,).

    From `workload.throughputs` where it has a rate; else, on several GPU models without a `speed` of their own,
    `typical_speed`, and `note` says so. A duration that was recorded (jobs,) on some GPU of the site is as likely
    too long as too short for another, and stays. Raises InputError for GPUs that make no whole replicas of a model.
    """
    table, models = scenario.workload.throughputs, cluster.gpu_models
    first = models.index(table.reference) if table is not None and table.reference is not None else 0
    said = any(group.speed != 1.0 for group in scenario.cluster.groups)
    guess = np.array([1.0 if said else typical_speed(a, cluster.accelerators[first]) for a in cluster.accelerators])
    if table is None and (guess == 1.0).all():
        return Paces(guess[None, :], np.zeros(len(gpus), dtype=np.int64))
    rates: dict[str, dict[str, dict[int, float]]] = {}
    for rate in table.rates if table is not None else ():
        rates.setdefault(rate.job_type, {}).setdefault(rate.gpu_model, {})[rate.gpus] = rate.rate
    by_model = {row.job_type: row for row in table.models} if table is not None else {}
    rows, number, blank = list[Floats](), dict[tuple[str, int, bool], int](), list[bool]()
    kind, lacking = np.empty(len(gpus), dtype=np.int64), dict[str, None]()
    alike = np.ones_like(guess)
    for k, (name, count, kept) in enumerate(zip(types, gpus.tolist(), recorded.tolist(), strict=True)):
        key = (name, count if name in rates or name in by_model else 0, kept)
        if key not in number:
            if name in by_model:
                per_s = model_rates(scenario, cluster, by_model[name], count)
                without = [models[m] for m in np.flatnonzero(np.isnan(per_s)).tolist()]
                lacking |= {f"{name} on {model} (too little memory)": None for model in without}
            else:
                per_s = np.array([_rate(rates.get(name, {}).get(model, {}), count) for model in models])
            known = per_s / per_s[first]
            number[key] = len(rows)
            rows.append(np.where(np.isnan(known), alike if kept else guess, known))
            blank.append(bool((np.isnan(known) & (guess != 1.0)).any()))
            if name in rates:
                lacking |= dict.fromkeys(f"{name} on {model}" for model in models if model not in rates[name])
        kind[k] = number[key]
    speed = np.array(rows)
    guessed = np.array(blank, dtype=np.bool_)[kind] & rigid
    note = _guess_note(models, guess, first, list(lacking)) if (guessed & ~recorded).any() else ""
    if not note and guessed.any():
        note = (
            f"durations of the trace are taken as equal on {' and '.join(models)}: their GPU types are unknown; "
            "give workload.throughputs, or a speed of each node group"
        )
    return Paces(speed, kind, note)


def model_rates(scenario: Scenario, cluster: Cluster, row: ModelRates, gpus: int) -> Floats:
    """Samples/s of a job type on `gpus` GPUs of each GPU model, by its training model; NaN where it does not fit.

    Raises InputError where the GPUs are no whole replicas.
    """
    model, batch = scenario.workload.models[row.model], row.global_batch
    spec = JobSpec(name=row.job_type, gpus=gpus, model=row.model, steps=1, global_batch=batch)
    config = Configuration(0, spec, model, cluster)
    workers, rest = divmod(gpus, config.gpus_per_worker)
    if rest:
        each = config.gpus_per_worker
        text = f"{gpus} GPUs are not a whole number of replicas of model {row.model!r}, which need {each} each"
        raise InputError([f"{scenario.name}: workload.throughputs.models: job type {row.job_type!r}: {text}"])
    rates = np.full(len(cluster.gpu_models), np.nan)
    for k in range(len(rates)):
        if samples_per_pass(model, config.memory_bytes(k), workers):
            work_s = config.cost_s(k, -(-batch // workers), workers)[1]
            rates[k] = batch / overlapped_s(work_s, config.exchange_estimate_s(k, workers), model.overlap)
    return rates


def _rate(by_gpus: Mapping[int, float], gpus: int) -> float:
    if not by_gpus:
        return math.nan
    return by_gpus[max((n for n in by_gpus if n <= gpus), default=min(by_gpus))]


def typical_speed(accelerator: Accelerator, reference: Accelerator) -> float:
    """Speed of an unknown training job on one accelerator relative to another, from their data sheets.

    The geometric mean of the ratios of dense 16-bit rates and of memory bandwidths: a roofline (Williams et al.
    2009) bounds a job's speed-up by one or the other, and which one is not known. An assumption.
    """
    peak = _peak_16(accelerator) / _peak_16(reference)
    return math.sqrt(peak * accelerator.hbm_bytes_per_s.value / reference.hbm_bytes_per_s.value)


def _peak_16(accelerator: Accelerator) -> float:
    rates = accelerator.flop_per_s
    found = [rates[name].value for name in ("fp16", "bf16") if name in rates]
    return max(found) if found else max(rate.value for rate in rates.values())


def _guess_note(models: Sequence[str], guess: Floats, first: int, lacking: Sequence[str]) -> str:
    ratios = ", ".join(f"{model} {speed:.2f}" for model, speed in zip(models, guess, strict=True))
    missing = f", which has no rates of {', '.join(lacking[:_NAMED])}" if lacking else ""
    missing += f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    return (
        f"durations are taken as on {models[first]}; speeds on other GPUs are estimated from data sheets ({ratios}): "
        f"give workload.throughputs{missing}, or a speed of each node group"
    )

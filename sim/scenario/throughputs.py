"""Speeds of duration jobs on each GPU model."""

from __future__ import annotations

from equipoise.sim.scenario.units import Count, Positive, Section


class Rate(Section):
    """Work per second of a job type (in any unit, the same for all its rates) on GPUs of one model."""

    job_type: str  # value of the trace's column job_type, or a job's
    gpu_model: str  # accelerator of a node group
    gpus: Count  # GPUs of the job
    rate: Positive  # rate in any unit; only ratios matter


class ModelRates(Section):
    """A job type whose rates follow from a model: samples/s of a step and its exchange, on any number of GPUs.

    As of a training job alone on the fewest nodes with that GPU model, its batch split equally, an exchange after
    every step.
    """

    job_type: str  # value of the trace's column job_type, or a job's
    model: str  # name in workload.models
    global_batch: Count  # samples of a step, over all workers


class Throughputs(Section):
    """Rates by job type, GPU model and GPUs, as Gavel (Narayanan et al. 2020, section 3.1) measures them.

    `file` is CSV with the columns job_type,gpu_model,gpus,rate; its rows come behind `rates`. A job's `duration`
    is on GPUs of the `reference` model (none: the cluster's first); elsewhere it takes rate(reference) over
    rate(model) times as long. A number of GPUs that is not listed takes the next smaller one, or else the smallest.
    Jobs of several batches are several job types, such as "vision 64" and "vision 128".
    """

    file: str | None = None  # CSV with the columns of `rates`
    rates: tuple[Rate, ...] = ()
    models: tuple[ModelRates, ...] = ()  # models for job types without `rates`
    reference: str | None = None  # GPU model for which durations are given; none: the first

"""The learning rate of jobs whose batch changes: a factor on their own rate, by a rule that each job names.

The statistical efficiency of a batch (`physics.efficiency`) is that of the best learning rate at it. A stage that
changes a batch also plans the rate; without that the rate is kept, and the job learns less per step
(`physics.rate_worth`).
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.observation import Floats, Ints, Observation
from equipoise.policies.physics import efficiency, rate_worth, ruled_rate
from equipoise.policies.plan import Plan
from equipoise.policies.rate_rules import ADASCALE, LINEAR, SCRIPT, UNSCALED

_MARGIN = 0.05
"""Least relative change of a rate at an unchanged batch; 5 % off the best rate costs 0.25 % of a step."""


def batch_worth(o: Observation, row: int, tried: Ints, interval: float, drift: float) -> Floats:
    """Worth of a sample at each candidate batch, with the learning rate by the job's rule; (candidates,)."""
    jobs = o.jobs
    phi, first = float(jobs.noise_scale[row]), float(jobs.batch_reference[row])
    given, rule = float(max(jobs.batch_given[row], 1)), int(jobs.rate_rule[row])
    each = [efficiency(float(m), interval, phi, first, drift) for m in tried.tolist()]
    if rule in (LINEAR, UNSCALED):  # the others make the best rate
        rates = [ruled_rate(float(m), given, phi, rule) for m in tried.tolist()]
        pairs = zip(each, rates, tried.tolist(), strict=True)
        each = [worth * rate_worth(rate, float(m), given, phi, rule) for worth, rate, m in pairs]
    return np.array(each)


def with_rates(o: Observation, plan: Plan) -> Plan:
    """The plan with the learning rates for its batches, of jobs whose batch may change.

    Where a batch is kept, its rate is too, unless the noise scale has moved the best one by 5 %.
    """
    jobs = o.jobs
    batch = jobs.global_batch if plan.global_batch is None else plan.global_batch
    rate = (jobs.learning_rate if plan.learning_rate is None else plan.learning_rate).copy()
    may_change = (jobs.batch_max > jobs.batch_reference) & (jobs.batch_given > 0) & (jobs.rate_rule != SCRIPT)
    for row in np.flatnonzero(may_change).tolist():
        phi, rule = float(jobs.noise_scale[row]), int(jobs.rate_rule[row])
        if rule == ADASCALE and not phi >= 0.0:
            continue  # the gain is not known
        wanted = ruled_rate(float(batch[row]), float(jobs.batch_given[row]), phi, rule)
        if batch[row] != jobs.global_batch[row] or abs(wanted / rate[row] - 1.0) > _MARGIN:
            rate[row] = wanted
    return plan if (rate == jobs.learning_rate).all() else plan.with_(learning_rate=rate)

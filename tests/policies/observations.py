"""Builders of observations (those of `check-stage`), and random clusters for hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from equipoise.policies.observation import JobState
from equipoise.study.stage_check.observations import (  # noqa: F401 (tests find them all here)
    FREE,
    MEASURED,
    SHARED,
    Cluster,
    change,
    even_deal,
    one_job,
    shared_gpu,
    with_dead_nodes,
    without_telemetry,
)
from equipoise.study.stage_check.same import freeze, only, same  # noqa: F401


@st.composite
def clusters(draw, jobs_max=8):
    """A random consistent observation: waiting, running and done jobs, rigid, training and fractional."""
    if draw(st.booleans()):
        gpus_of_node, up = [draw(st.integers(1, 24))], [True]  # a counted pool
    else:
        nodes = draw(st.integers(1, 6))
        gpus_of_node = draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=nodes, max_size=nodes))
        up = draw(st.lists(st.sampled_from([True, True, True, False]), min_size=nodes, max_size=nodes))
    cluster = Cluster(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), gpus_of_node, up)
    for _ in range(draw(st.integers(0, jobs_max))):
        rigid, share = draw(st.booleans()), draw(st.sampled_from([1.0, 1.0, 0.5, 0.25]))
        cluster.add(
            draw(st.sampled_from([JobState.WAITING, JobState.RUNNING, JobState.RUNNING, JobState.DONE])),
            rigid=rigid,
            gpus=1 if share < 1 else draw(st.integers(1, 10)),
            share=share,
            per_worker=1 if rigid or share < 1 else draw(st.sampled_from([1, 1, 2])),
            elastic=not rigid and draw(st.booleans()),
        )
    return cluster.observe(time_s=draw(st.sampled_from([60.0, 100.0, 5000.0])))

"""Overloaded queues: what is left out because it could change nothing changes nothing."""

from functools import cache

import numpy as np
import pytest

from equipoise.policies.allocation import preemption
from equipoise.policies.baselines import allocation, sorted_queue
from equipoise.policies.registry import make_policy
from equipoise.sim.run import run
from tests.bench.speed.cases import queueing_trace, scenario

CASE = scenario(cluster={"gpus": 32})


def made(policy, jobs=450):
    return run(CASE, policy=make_policy(policy), trace=queueing_trace(jobs, 32, 3.0, 0.0))


usual_run = cache(made)
"""The run as it is made when nothing is replaced: asked for before anything is."""


def same(one, other):
    for column in ("start_s", "completion_s", "queueing_s", "preemptions"):
        np.testing.assert_array_equal(one.jobs[column], other.jobs[column])


@pytest.mark.parametrize("policy", ["las", "srtf", "tiresias"])
def test_a_few_victims_are_as_good_as_all(policy, monkeypatch):
    usual = usual_run(policy)
    assert usual.jobs["preemptions"].sum() > 100
    for few in (1, 10**6):  # 1: gangs need more, so that all are looked at after all
        monkeypatch.setattr(preemption, "_FEW", few)
        same(made(policy), usual)


@pytest.mark.parametrize("policy", ["las", "tiresias"])
def test_changes_of_queue_that_help_nobody_are_no_decisions(policy, monkeypatch):
    usual, plain = usual_run(policy), allocation.next_demotion_s

    def at_every_change(*values):
        """As if a job of the first queue waited, so that any change counts."""
        running, held, planned, stops, asked, share, _, room, columns = values
        return plain(running, held, planned, stops, asked, share, 0.0, room, columns)

    monkeypatch.setattr(allocation, "next_demotion_s", at_every_change)
    every = made(policy)
    same(every, usual)
    assert usual.totals["decisions"] < 0.95 * every.totals["decisions"]


@pytest.mark.parametrize("policy", ["las", "srtf"])
def test_who_comes_back_to_its_place_does_not_have_the_queue_sorted_anew(policy, monkeypatch):
    usual, plain, sorts = usual_run(policy), sorted_queue._rebuilt, []
    monkeypatch.setattr(sorted_queue, "_rebuilt", lambda o, columns: sorts.append(0) or plain(o, columns))
    same(made(policy), usual)
    assert len(sorts) < 0.02 * usual.totals["decisions"]
    monkeypatch.setattr(sorted_queue, "queue_now", lambda memory, o, columns, again=(): plain(o, columns))
    monkeypatch.setattr(allocation, "queue_now", sorted_queue.queue_now)
    same(made(policy), usual)

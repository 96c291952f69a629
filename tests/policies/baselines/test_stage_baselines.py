"""The baselines of data, tasks and synchronisation, each against a small worked example."""

import numpy as np
import pytest

from equipoise.policies.baselines.data import Locality, Static
from equipoise.policies.baselines.sync import EveryStep, FixedInterval
from equipoise.policies.baselines.tasks import Equal
from equipoise.policies.contract import UNCHANGED, check
from equipoise.policies.registry import PolicyError, make_stage
from tests.policies.observations import change, one_job, with_dead_nodes


def refine(stage, observation):
    plan, _ = stage.refine(observation, UNCHANGED, stage.initial())
    assert check(plan, observation) is None
    return plan


def test_static_leaves_everything():
    assert refine(Static(), one_job([2.0, 1.0], stored_on=1)).changes_nothing()


def test_locality_gives_shards_to_the_node_that_stores_them():
    # All of worker 0's shards but the first, which is started, are stored on node 1; both own four.
    observation = one_job([1.0, 1.0, 1.0], stored_on=[0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2])
    assert refine(Locality(), observation).changes_nothing(), "as many shards everywhere: none to give"
    fewer = change(observation, "shards", worker=[0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
    plan = refine(Locality(), fewer)  # 6, 2 and 4 shards; the first of each worker is started
    assert plan.moves.shard.tolist() == [1, 2]
    assert plan.moves.worker.tolist() == [1, 1]
    assert (plan.moves.source == plan.moves.target).all()


def test_locality_leaves_a_job_on_a_dead_node_alone():
    observation = one_job([1.0, 1.0], stored_on=[1] * 8, shards_each=4)
    uneven = change(observation, "shards", worker=[0] * 7 + [1])
    assert not refine(Locality(), uneven).changes_nothing()
    assert refine(Locality(), with_dead_nodes(uneven, [0])).changes_nothing()


@pytest.mark.parametrize(
    ("batch", "micro", "expected"),
    [(96, 1, [32, 32, 32]), (97, 1, [33, 32, 32]), (98, 4, [34, 32, 32]), (100, 4, [36, 32, 32])],
)
def test_equal_deals_whole_micro_batches(batch, micro, expected):
    start = [batch - 2, 1, 1]
    plan = refine(Equal(), one_job([3.0, 2.0, 1.0], batch=batch, micro=micro, samples=start))
    assert plan.samples_per_step.tolist() == expected
    settled = one_job([3.0, 2.0, 1.0], batch=batch, micro=micro, samples=expected)
    assert refine(Equal(), settled).changes_nothing()


def test_equal_gives_a_batch_of_one_to_the_lowest_rank():
    plan = refine(Equal(), one_job([1.0, 1.0], batch=1, samples=[0, 1]))
    assert plan.samples_per_step.tolist() == [1, 0]


def test_equal_respects_memory():
    plan = refine(Equal(), one_job([1.0] * 3, batch=60, samples=[10, 10, 40], samples_max=[10, 99, 99]))
    assert plan.samples_per_step.tolist() == [10, 25, 25]


def test_intervals():
    observation = one_job([1.0, 1.0], job={"sync_interval": 3})
    assert refine(EveryStep(), observation).sync_interval.tolist() == [1]
    assert refine(FixedInterval(), observation).sync_interval.tolist() == [4]
    assert refine(FixedInterval(interval=3), observation).changes_nothing()
    rigid = change(observation, "jobs", rigid=[True])
    assert refine(EveryStep(), rigid).changes_nothing(), "only training jobs synchronise"


def test_wrong_interval_is_refused():
    with pytest.raises(PolicyError, match="at least 1"):
        make_stage("fixed-h", {"interval": 0})


def test_jobs_that_do_not_train_keep_their_interval():
    observation = one_job([1.0])
    rows = len(observation.jobs)
    assert np.array_equal(refine(FixedInterval(interval=9), observation).sync_interval, np.full(rows, 9))


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("s1", ["s111", "s112", "s113"]),
        ("s2", ["s211", "s212", "s213", "s221", "s222", "s223"]),
        ("s3", ["s311", "s312", "s313", "s321", "s322", "s323"]),
    ],
)
@pytest.mark.parametrize("mode", ["formula", "optimal"])
def test_every_sub_step_says_what_it_computed(name, steps, mode):
    stage = make_stage(name, {"mode": mode})
    for observation in (one_job([2.0, 1.0]), one_job([2.0, 1.0], stored_on=1), one_job([1.0], rates=False)):
        reason = refine(stage, observation).reasons[-1]
        assert reason.stage == name
        assert reason.text
        assert {key.split("_")[0] for key in reason.values} == set(steps)

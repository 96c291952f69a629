"""The baselines of data, tasks and synchronisation, each against a small worked example."""

import pytest

from equipoise.policies.baselines.data import Locality, Static
from equipoise.policies.baselines.tasks import Equal
from equipoise.policies.contract import UNCHANGED, check
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


def test_equal_respects_memory():
    plan = refine(Equal(), one_job([1.0] * 3, batch=60, samples=[10, 10, 40], samples_max=[10, 99, 99]))
    assert plan.samples_per_step.tolist() == [10, 25, 25]

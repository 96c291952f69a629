"""Tables that worlds own and policies read: what was read before is right after the table has grown or shrunk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.policies.contract import UNCHANGED, Allocation
from equipoise.policies.observation import Jobs, JobState, Observation, Workers, resize, writable


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 10))
def test_rows_are_kept_and_new_ones_have_the_default(sizes, capacity):
    """Sizes within and beyond the capacity, columns read before each change or never."""
    table, numbers = Jobs(0, capacity=capacity), []
    for size in sizes:
        assert table.id.tolist() == numbers  # read before it changes
        resize(table, size)
        kept = numbers[:size]
        assert (len(table), len(table.id), len(table.gpu_share_requested)) == (size, size, size)
        assert table.id[: len(kept)].tolist() == kept
        writable(table, "id")[:size] = numbers = [*kept, *range(1000 + len(kept), 1000 + size)]
        assert table.id.tolist() == numbers, "what is read is another array than what is written"


def test_growing_beyond_the_capacity_keeps_what_was_read_and_shows_defaults_after_it():
    table = Jobs.of(id=[7, 8], priority=[2.0, 3.0])
    before = table.id
    resize(table, 5)
    assert before.tolist() == [7, 8], "who still holds the old column sees it as it was"
    assert table.id.tolist() == [7, 8, *[Jobs.id.default] * 3]
    assert table.priority.tolist() == [2.0, 3.0, *[Jobs.priority.default] * 3]
    writable(table, "id")[4] = 9
    assert table.id[4] == 9
    with pytest.raises(ValueError, match="read-only"):
        table.id[4] = 1
    resize(table, 1)
    assert np.shape(table.id) == np.shape(table.priority) == (1,)


def test_tables_are_made_of_equal_columns_that_they_have():
    assert (len(Jobs.of()), len(Jobs.of(id=[])), len(Jobs.of(id=[3, 4]))) == (0, 0, 2)
    with pytest.raises(ValueError, match=r"Jobs: columns of unequal length \[1, 2\]"):
        Jobs.of(id=[1], claim=[1, 2])
    with pytest.raises(KeyError, match="odd"):
        Jobs.of(odd=[1])
    exact = Jobs(0, capacity=2)
    whole = writable(exact, "id")
    resize(exact, 2)
    assert writable(exact, "id") is whole, "it had the space"


def test_what_an_observation_says_of_jobs_and_their_workers():
    states = [JobState.WAITING, JobState.RUNNING, JobState.DONE, JobState.RUNNING, JobState.WAITING]
    workers = Workers.of(job=[1, 1, 3], index=[0, 5, 2], push_interval=[4, 5, 6])
    o = Observation.of(jobs=Jobs.of(id=range(5), state=states), workers=workers)
    assert (o.waiting.tolist(), o.running.tolist()) == ([0, 4], [1, 3])
    assert [o.workers_of(job) for job in range(5)] == [slice(0, 0), slice(0, 2), slice(2, 2), slice(2, 3), slice(3, 3)]
    assert workers.id.tolist() == [2**20, 2**20 + 5, 3 * 2**20 + 2]
    assert UNCHANGED.pushes(o).tolist() == [4, 5, 6]
    assert UNCHANGED.with_(push_interval=np.array([7, 8, 9])).pushes(o).tolist() == [7, 8, 9]
    given = Allocation.of([(4, [1]), (2, []), (3, [5, 6])])
    assert [given.gpus_of(k).tolist() for k in range(3)] == [[1], [], [5, 6]]

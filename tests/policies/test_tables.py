"""Tables that worlds own and policies read: what was read before is right after the table has grown or shrunk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.policies.observation import Jobs, resize, writable


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

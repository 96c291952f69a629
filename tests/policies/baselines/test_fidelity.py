"""The verdict of `equipoise list` on a policy is what its authors' times of every job say."""

from __future__ import annotations

import pytest

from equipoise.policies.registry import make_policy
from tests.bench.fidelity import DATA, rows


@pytest.mark.long
@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason="no shared data")
def test_the_word_of_a_policy_is_that_of_the_table() -> None:
    for policy, _, *_, verdict in list(rows(DATA))[1:]:
        stage = next(stage for stage in make_policy(policy.strip("`")).stages if stage.kind == "allocation")
        assert verdict in stage.fidelity, policy

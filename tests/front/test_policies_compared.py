"""The page on which all policies meet: its cases can be made, before hours go into their runs."""

from __future__ import annotations

import pytest

from tests.bench.policies_compared import Case, cases, starves


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.title)
def test_every_policy_of_a_case_says_whether_anybody_starves(case: Case) -> None:
    assert {starves(policy) for policy in case.policies} <= {"no", "may", ""}
    assert starves("s4") == "no"
    assert starves("srtf") == "may"

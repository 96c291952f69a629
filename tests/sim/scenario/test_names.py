"""What is said of names that do not exist, how single keys are changed, and what the reference says of a key."""

from __future__ import annotations

import pytest

from equipoise.sim.scenario.names import alike, nearest, unknown
from equipoise.sim.scenario.tree import InputError, read_tree


def test_names_that_were_probably_meant() -> None:
    known = ["h100_sxm", "h100_pcie", "A100", "b200"]
    assert alike("H100", known) == ["h100_sxm", "h100_pcie"]
    assert alike("h100 SXM", known) == alike("H100-sxm", known) == ["h100_sxm"]
    assert alike("a100", known) == ["A100"]
    assert alike("b20", known) == ["b200"]
    assert alike("zz", known) == []
    assert alike("x", [f"x_{k}" for k in range(6)]) == ["x_0", "x_1", "x_2", "x_3"]
    assert alike("last", [*map(str, range(9_999)), "last"]) == ["last"]
    assert alike("last", [*map(str, range(10_000)), "last"]) == []  # that many are not compared
    assert alike("x" * 200, ["x" * 100]) == ["x" * 100]
    assert nearest("b20", known) == "did you mean 'b200'?"
    assert nearest("zz", []) == "known: none"
    assert nearest("zz", {"b", "a"}) == "known: a, b"
    letters = list("abcdefghi")
    assert nearest("zz", letters[:8]) == "known: a, b, c, d, e, f, g, h"
    assert nearest("zz", letters) == "known: a, b, c, d, e, f, g, h, ... (9 in all)"
    assert unknown("model", "z" * 58, ["a"]) == f"unknown model '{'z' * 58}'; known: a"
    assert unknown("model", "z" * 59, ["a"]) == f"unknown model '{'z' * 56}...; known: a"


def test_own_keys_stand_where_they_are_written_and_tags_are_refused() -> None:
    read = read_tree("x: &a\n  k: {z: 2}\n  m: 3\ny:\n  k: {z: 1}\n  <<: *a\n", "f.yaml")
    assert read.data["y"] == {"k": {"z": 1}, "m": 3}
    assert [read.place(path).line for path in (("y", "k"), ("y", "k", "z"), ("y", "m"), ("x", "k"))] == [5, 5, 3, 2]
    for text in ("a: !x [1]", "a: !x {b: 1}"):
        with pytest.raises(InputError, match="tag '!x' is not allowed"):
            read_tree(text, "f.yaml")

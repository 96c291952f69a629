"""What a stage from a notebook depends on; what a policy file may hold; how differences of a journal are told."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from equipoise.policies.contract import Policy
from equipoise.policies.record import export
from equipoise.policies.record.foreign import (
    _distributions,
    _parts_of,
    _versions,
    digest_of_class,
    foreign_sources,
)
from equipoise.policies.record.journal import _decode, _differences, _encode, _short
from equipoise.policies.registry import make_policy

STAGE = """
import math
SCALE = {"a": 1.5, "b": [1, (2, "x")]}
def helper(x, part=2, *, more=3):
    def inner(y):
        return y + 7
    return inner(x) * SCALE["a"] / part + more
class Other:
    step = 4
    def run(self):
        return self.step
class Stage:
    "What it does."
    kind = "tasks"
    def refine(self, x):
        return helper(math.floor(x)) if x in {"p", "q"} else Other().run()
    @staticmethod
    def fixed():
        return 10
    @classmethod
    def made(cls):
        return 20
    @property
    def seen(self):
        return 30
UNUSED = 1
"""


def digest(text: str) -> str:
    names: dict[str, Any] = {"__name__": "notebook"}
    exec(compile(text, "<stdin>", "exec"), names)
    return digest_of_class(names["Stage"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.5", "1.6"), ("[1,", "[2,"), ('"x")', '"y")'), ('"b":', '"c":'), ("part=2", "part=3"),
        ("more=3", "more=4"),
        ("+ 7", "+ 8"), ("step = 4", "step = 5"), ('"tasks"', '"data"'), ("return 10", "return 11"),
        ("return 20", "return 21"), ("return 30", "return 31"), ("floor", "ceil"), ('"q"', '"r"'), ("x) *", "x) -"),
        ("fixed()", "other()"),
    ],
)  # fmt: skip
def test_a_stage_that_no_file_holds_depends_on_all_that_it_uses(old: str, new: str) -> None:
    assert STAGE.count(old) == 1
    assert digest(STAGE) != digest(STAGE.replace(old, new))


@pytest.mark.parametrize(("old", "new"), [("UNUSED = 1", "UNUSED = 2"), ("What it does.", "Another thing.")])
def test_what_it_does_not_use_does_not_count(old: str, new: str) -> None:
    first = digest(STAGE)
    assert len(first) == 16
    assert first == digest(STAGE) == digest(STAGE.replace(old, new))


def test_only_what_comes_from_elsewhere_is_listed() -> None:
    assert foreign_sources(make_policy("s4")) == []
    assert list(_parts_of(Policy, Policy)) == list(_parts_of(dict, dict)) == []
    names: dict[str, Any] = {"__name__": "notebook"}
    exec(compile(STAGE, "<stdin>", "exec"), names)
    cls = names["Stage"]
    assert list(_parts_of(cls, cls)) == [("notebook.Stage (compiled)", digest_of_class(cls))]
    versions = dict(_versions("PyTest"))
    assert {"pytest (package)", "pluggy (package)", "iniconfig (package)"} <= set(versions)
    assert versions["pytest (package)"] == pytest.__version__
    assert _versions("no.such_thing") == (("no-such-thing (package)", "not installed"),)
    assert "numpy" in _distributions()["numpy"]


# -- policy files ----------------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


def test_how_much_a_policy_file_may_hold() -> None:
    most = export._MAX_INTEGER
    text, many = "x" * export._MAX_TEXT, [1] * (export._MAX_ITEMS - 1)
    for fine in (nested(export._MAX_DEPTH), many, most, -most, text, 1.5, None):
        export._bounded(fine, (), [0])
    for wrong, said in (
        (nested(export._MAX_DEPTH + 1), "nested too deeply"), ([*many, 1], "too many values"),
        (most + 1, "more than 64 bits"), (-most - 1, "more than 64 bits"), (text + "x", "characters"),
        (math.inf, "not a finite number"), ({1: 2}, "key 1 is not text"), ({"a": [b"x"]}, "not plain data"),
    ):  # fmt: skip
        with pytest.raises(export._FaultError, match=said) as fault:
            export._bounded(wrong, (), [0])
        assert wrong != {"a": [b"x"]} or fault.value.at == ("a", 0)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ({}, "needs a list of stages"), (["s1"], "needs a list of stages"), ([{}], "needs a list of stages"),
        ([{"s1": {}, "s2": {}}], "needs a list of stages"),
        ([{"s1": {}}, {"s9": {}}], "stage 's9' is not built in"),
        ([{"s1": []}], "s1: parameters must be a mapping"), ([{"s1": {"odd": 1}}], "odd"),
    ],
)  # fmt: skip
def test_what_a_policy_file_may_say_of_stages(stages: Any, said: str) -> None:
    with pytest.raises(export._FaultError, match=said):
        export._policy_of(stages, False)


def test_identities_and_promises_are_plain() -> None:
    assert export._identity({"profile": {"name": "a", "digest": "b"}}, "profile") == {
        "name": "a",
        "digest": "b",
    }
    assert export._promise({"promise": {"a": 1, "b": 2.0, "c": "x"}}) == {"a": 1, "b": 2.0, "c": "x"}
    for value in ([], {"other": "x"}, {"name": 1}):
        with pytest.raises(export._FaultError, match="profile: "):
            export._identity({"profile": value}, "profile")
    for value in ([], {"a": [1]}, {"a": None}):
        with pytest.raises(export._FaultError, match="promise: needs numbers"):
            export._promise({"promise": value})
    found = export._policy_of([{"s1": {}}, {"s2": {}}], False)
    assert [stage.name for stage in found.stages] == ["s1", "s2", "fifo"]


# -- journals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.array(1.5), np.array([1.5]), np.array([2.0, 2.0]), np.array([0.0, -0.0]), np.full(99, 0.25),
        np.array([0.0] * 40 + [-0.0]), np.array([math.nan] * 50), np.array([[1.0, math.inf], [math.nan, 2.0]]),
        np.arange(60.0), np.array([math.nan, *range(50)]), np.empty((0, 3)), np.array(["a", "bc"]),
        np.array([True] * 40),
    ],
)  # fmt: skip
def test_arrays_come_back_to_the_bit(array: Any) -> None:
    again = _decode(json.loads(json.dumps(_encode(array), allow_nan=False)))
    assert (again.shape, again.dtype, again.tobytes()) == (array.shape, array.dtype, array.tobytes())


def test_differences_are_told_with_their_place() -> None:
    old = _encode({"a": [1, 2, {"x": 0.0}], "b": "t"})
    new = _encode({"a": [1, 3, {"x": -0.0}], "b": "t"})
    assert list(_differences("plan", old, new)) == ["plan.a[1] was 2, is 3", "plan.a[2].x was 0.0, is -0.0"]
    assert list(_differences("plan", old, old)) == []
    assert list(_differences("m", [1], [1, 2])) == ["m was [1], is [1, 2]"]
    assert list(_differences("m", {"a": 1}, {"b": 1})) == ['m was {"a": 1}, is {"b": 1}']
    one, two = _encode(np.array([1.0, 2.0])), _encode(np.array([1.0, 3.0]))
    assert len(list(_differences("m", one, two))) == 1
    assert _short("x" * 78) == '"' + "x" * 78 + '"'
    assert _short("x" * 79) == '"' + "x" * 76 + "..."

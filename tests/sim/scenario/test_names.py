"""What is said of names that do not exist, how single keys are changed, and what the reference says of a key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from equipoise.sim.scenario import reference
from equipoise.sim.scenario.errors import _also_called
from equipoise.sim.scenario.names import alike, nearest, unknown
from equipoise.sim.scenario.override import override
from equipoise.sim.scenario.section import Section
from equipoise.sim.scenario.tree import InputError, Tree, read_tree
from equipoise.sim.scenario.units import Bytes, BytesPerS, Float, Int, Seconds, Share


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


@pytest.mark.parametrize(
    ("given", "meant"), [("Fat-Tree", "tree"), ("S3", "object"), ("NVMe", "local"), ("STAR", "star"), ("nothing", "")]
)
def test_words_that_others_use(given: str, meant: str) -> None:
    said = _also_called(given, f"{given!r} is not allowed; allowed: 'star', 'tree', 'object', 'local'")
    assert said == (f"; did you mean {meant!r}?" if meant else "")


def tree() -> Tree:
    return read_tree("a: {b: 1, b.c: 2}\nlist: [{x: 1}, 2, 3]\nempty: []\ntext: hi\n", "f.yaml")


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("a.b=5", ("a", "b"), 5),
        ("a.b.c=5", ("a", "b.c"), 5),  # the longest key that is there
        ("list.0.x=[1, 2]", ("list", 0, "x"), [1, 2]),
        ("list.1=z", ("list", 1), "z"),
        ("new.deep.key=true", ("new", "deep", "key"), True),
        ("text.more=1", ("text", "more"), 1),
        (" a.b =", ("a", "b"), ""),
    ],
)
def test_a_key_is_changed_where_it_stands(assignment: str, path: tuple[Any, ...], value: Any) -> None:
    changed = tree()
    override(changed, assignment)
    assert changed.get(path) == value
    assert str(changed.place(path)).startswith(f"--set {assignment}")
    assert changed.get(("empty",)) == []


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("a.b", "write dotted.key=value"),
        ("=1", "write dotted.key=value"),
        ("list.3=1", "list: no entry '3'; allowed: 0 to 2"),
        ("list.5=1", "list: no entry '5'; allowed: 0 to 2"),
        ("empty.0=1", "empty: no entry '0'; allowed: none, the list is empty"),
        ("list.x=1", "list is a list; did you mean list.0.x?"),
        ("list.y=1", "list is a list; did you mean list.0.y?"),
        ("list.y.z=1", "list: no entry 'y'; allowed: 0 to 2"),
        ("list.1.z=1", "list.1 is not a section"),
    ],
)
def test_what_cannot_be_changed_is_said(assignment: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        override(tree(), assignment)
    assert caught.value.lines == (f"--set {assignment}: {said}",) or caught.value.lines == [
        f"--set {assignment}: {said}"
    ]


class Inner(Section):
    """What is inside. A second sentence."""

    x: int = 1


class Own(Section):
    """Of a test."""

    plain: Int  # how many
    # a line above,
    # and another
    limited: Annotated[Float, Field(gt=0, le=2)] = 1.0
    word: Literal["a", "b"] = "a"
    flag: bool = False
    nothing: Seconds | None = None
    size: Bytes = 3 * 2.0**30
    odd: Bytes = 1e9 / 3
    rate: BytesPerS = 5e10
    share: Share = 0.5
    zero: Seconds = 0.0
    texts: tuple[str, ...] = ("a", "b")
    none: tuple[str, ...] = ()
    one: Inner = Inner()  # said here
    many: tuple[Inner, ...] = ()
    named: dict[str, Inner] = Field(default_factory=dict)
    either: Inner | Own2 = Inner()
    bound: int = 0


class Own2(Section):
    """The other."""

    y: str = ""


BY_KEY = {
    "plain": ("whole number", "", "how many"),
    "limited": ("number, above 0, at most 2", "1", "a line above, and another"),
    "word": ("a or b", "a", ""),
    "flag": ("true or false", "false", ""),
    "nothing": ("s, e.g. 24 h", "none", ""),
    "size": ("bytes, e.g. 80 GiB", "3 GiB", ""),
    "odd": ("bytes, e.g. 80 GiB", "3.33333e+08", ""),
    "rate": ("bytes/s, e.g. 100 Gbit/s", "400 Gbit/s", ""),
    "share": ("(0 to 1), e.g. 50 %", "0.5", ""),
    "zero": ("s, e.g. 24 h", "0", ""),
    "texts": ("list", "a, b", ""),
    "none": ("list", "empty", ""),
    "one": ("section", "its defaults", "said here"),
    "one.x": ("whole number", "1", ""),
    "many[]": ("section", "empty", "What is inside"),
    "many[].x": ("whole number", "1", ""),
    "named.NAME": ("section", "empty", "What is inside"),
    "named.NAME.x": ("whole number", "1", ""),
    "either": ("section of 2 kinds", "its defaults", ""),
    "either.x": ("whole number", "1", ""),
    "either.y": ("text", "empty", ""),
}


def test_a_key_is_described_by_its_field() -> None:
    Own.model_rebuild()
    found = {key.path: (key.kind, key.default, key.meaning) for key in reference._section(Own, "")}
    assert found == BY_KEY
    parts = reference._parts("a[].b.NAME")
    assert parts == ["a", "[]", "b", "NAME"]
    for wanted, there in (
        (["a", "7", "b", "mine"], True),
        (["a", "[]"], True),
        (["a", "x"], False),
        ([*parts, "c"], False),
    ):
        assert reference._matches(parts, wanted) == there
    assert reference.units(["horizon", "name", "cluster.nodes.0.nic", "none"]) == {
        "horizon": "s",
        "cluster.nodes.0.nic": "bytes/s",
    }


def test_own_keys_stand_where_they_are_written_and_tags_are_refused() -> None:
    read = read_tree("x: &a\n  k: {z: 2}\n  m: 3\ny:\n  k: {z: 1}\n  <<: *a\n", "f.yaml")
    assert read.data["y"] == {"k": {"z": 1}, "m": 3}
    assert [read.place(path).line for path in (("y", "k"), ("y", "k", "z"), ("y", "m"), ("x", "k"))] == [5, 5, 3, 2]
    for text in ("a: !x [1]", "a: !x {b: 1}"):
        with pytest.raises(InputError, match="tag '!x' is not allowed"):
            read_tree(text, "f.yaml")

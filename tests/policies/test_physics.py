"""The shared laws against their sources, and that no other file writes one of them down again."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from equipoise.policies.kernels.arrays import heapify, pop, position, push
from equipoise.policies.physics import (
    deal,
    efficiency,
    hidden_s,
    overlapped_each,
    overlapped_s,
    response_s_per_sample,
    share_for,
    speed_at,
    sustainable,
)
from tests.oracles import physics as plain

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("policies", "sim", "live", "calibrate", "study", "equipoise/commands")

# -- values ----------------------------------------------------------------------------------------------------

SECONDS = st.floats(1e-6, 1e3) | st.just(0.0)


@given(SECONDS, SECONDS, st.floats(1.0, 20.0))
@example(0.0, 0.0, 2.0)
def test_overlap_is_the_published_one(work: float, exchange: float, gamma: float) -> None:
    scale = max(work, exchange)
    both = plain.overlapped(work, exchange, gamma)
    assert overlapped_s(work, exchange, gamma) == pytest.approx(both, rel=1e-12)
    assert hidden_s(work, exchange, gamma) == pytest.approx(work + exchange - both, abs=1e-9 * scale)
    assert 0 <= hidden_s(work, exchange, gamma) <= min(work, exchange)


def test_overlap_of_arrays_is_that_of_each_pair() -> None:
    work, exchange = np.array([[0.1], [2.0]]), np.array([0.0, 0.5, 3.0])
    each = [[overlapped_s(w, x, 2.0) for x in exchange] for w in work[:, 0]]
    assert overlapped_each(work, exchange, 2.0).tolist() == each
    assert overlapped_each(1.0, 1.0, 2.0) == overlapped_s(1.0, 1.0, 2.0)


def test_without_overlap_nothing_is_hidden() -> None:
    assert hidden_s(0.3, 0.1, 1.0) == 0.0
    assert overlapped_s(0.3, 0.1, 1.0) == 0.3 + 0.1


@given(st.floats(0.01, 1.0), st.floats(0.01, 1e3) | st.sampled_from([np.nan, np.inf]))
def test_share_curve_and_its_inverse(share: float, kappa: float) -> None:
    assert speed_at(share, kappa) == plain.speed_at(share, kappa)
    assert share_for(speed_at(share, kappa), kappa) == pytest.approx(share, rel=1e-9)


def test_share_curve_ends_at_one() -> None:
    assert speed_at(1.0, 0.4) == 1.0
    assert speed_at(0.5, 0.5) == pytest.approx(0.75)
    assert speed_at(0.25, np.nan) == 0.25


@given(st.floats(1, 1e6), st.integers(1, 64), st.floats(0, 1e6), st.floats(0, 0.5))
def test_efficiency_is_at_most_one_and_falls_with_batch_and_interval(
    batch: float, interval: int, phi: float, drift: float
) -> None:
    value = efficiency(batch, interval, phi, 1.0, drift)
    assert value == pytest.approx(plain.efficiency(batch, interval, phi, 1.0, drift), rel=1e-12)
    assert 0 < value <= 1
    assert efficiency(2 * batch, interval, phi, 1.0, drift) <= value
    assert efficiency(batch, interval + 1, phi, 1.0, drift) <= value


@pytest.mark.parametrize("unknown", [-1.0, np.nan])
def test_what_is_not_known_costs_no_efficiency(unknown: float) -> None:
    assert efficiency(64.0, 8, unknown, 32.0, unknown) == 1.0
    assert efficiency(64.0, 1, 64.0, 32.0, unknown) == 0.75
    assert efficiency(64.0, 2, unknown, 32.0, 1.0) == 0.5


def test_what_a_worker_can_keep_up_and_how_long_a_sample_takes() -> None:
    computing, reading = np.array([4.0, 8.0, np.nan, np.nan]), np.array([5.0, np.nan, 3.0, np.nan])
    keeps_up = sustainable(computing, reading)
    assert np.array_equal(keeps_up, [4.0, 8.0, 3.0, np.nan], equal_nan=True)
    # 3 s and 1 s of 10 samples; at most 4 a second it can keep up: 0.4 s are long enough.
    busy_s, stall_s, samples = (
        np.array([3.0, 1.0, 1.0, 3.0, 1.0]),
        np.array([1.0, 0.0, 0.0, 1.0, 1.0]),
        np.ones(5),
    )
    samples[:] = [10.0, 10.0, 0.0, 10.0, 8.0]
    found = response_s_per_sample(busy_s, stall_s, samples, np.array([4.0, 4.0, 4.0, np.nan, 4.0]))
    assert np.array_equal(found, [0.4, 0.25, np.nan, 0.4, 0.25], equal_nan=True)


# -- whole samples ---------------------------------------------------------------------------------------------


@given(
    st.integers(0, 3000),
    st.lists(st.integers(0, 50), min_size=1, max_size=12),
    st.integers(1, 7),
)
@example(1, [0, 3], 2)  # less than one unit: to who has a weight
@example(2, [1, 3], 1)  # equal remainders: to the larger share
def test_a_batch_is_dealt_whole(batch: int, weights: list[int], unit: int) -> None:
    dealt = deal(batch, weights, unit)
    assert dealt.tolist() == plain.deal(batch, weights, unit)
    assert dealt.sum() == batch
    assert (dealt >= 0).all()
    assert np.count_nonzero(dealt % unit) <= 1
    if any(weights):
        exact = np.array(weights) / sum(weights) * batch
        assert (np.abs(dealt - exact) < 2 * unit).all()
        assert not dealt[np.array(weights) == 0].any()


def test_deals_by_hand() -> None:
    assert deal(1, [0, 3], 2).tolist() == [0, 1]
    assert deal(2, [1, 3]).tolist() == [0, 2]
    assert deal(10, [1, 1, 1]).tolist() == [4, 3, 3]
    assert deal(12, [5, 5, 5], 2).tolist() == [4, 4, 4]
    assert deal(8, [0, 0]).tolist() == [4, 4]


# -- heap and search -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), max_size=40), st.lists(st.integers(0, 5), max_size=10))
def test_a_heap_gives_the_least_key_first_then_the_lowest_id(first: list[int], later: list[int]) -> None:
    keys, ids = np.array([*first, *later], dtype=float), np.arange(len(first) + len(later))
    expected = sorted(zip(keys.tolist(), ids.tolist(), strict=True))
    size = len(first)
    heapify(keys, ids, size)
    for item, key in enumerate(later, start=len(first)):
        size = push(keys, ids, size, float(key), item)
    found = []
    while size:
        found.append((float(keys[0]), int(ids[0])))
        size = pop(keys, ids, size)
    assert found == expected


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(-1, 31))
def test_position_is_where_a_value_is_or_belongs(values: list[int], wanted: int) -> None:
    ascending = np.array(sorted(values), dtype=np.int64)
    assert position(ascending, wanted) == np.searchsorted(ascending, wanted)


# -- written down once -----------------------------------------------------------------------------------------


def same(a: ast.AST, b: ast.AST) -> bool:
    return ast.dump(a) == ast.dump(b)


def is_number(node: ast.AST, value: float) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def operands(node: ast.AST, kind: type[ast.operator]) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, kind):
        return node.left, node.right
    return None


def power(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Base and exponent of a ** b, math.pow(a, b) and np.power(a, b)."""
    if isinstance(node, ast.Call) and name_of(node) in ("pow", "power") and len(node.args) == 2:
        return node.args[0], node.args[1]
    return operands(node, ast.Pow)


def name_of(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_overlap(node: ast.AST) -> bool:
    """(... x ** g ...) ** (1 / g), or expm1(log1p(x ** g) / g)."""
    if isinstance(node, ast.Call) and name_of(node) == "expm1":
        return any(isinstance(n, ast.Call) and name_of(n) == "log1p" for n in ast.walk(node))
    found = power(node)
    root = operands(found[1], ast.Div) if found else None
    if not found or not root or not is_number(root[0], 1):
        return False
    inner = (power(n) for n in ast.walk(found[0]))
    return any(p is not None and same(p[1], root[1]) for p in inner)


def is_share_curve(node: ast.AST) -> bool:
    """(1 + k) * f / (f + k)."""
    parts = operands(node, ast.Div)
    below = operands(parts[1], ast.Add) if parts else None
    if not parts or not below:
        return False
    ones = (operands(n, ast.Add) for n in ast.walk(parts[0]))
    return any(o and is_number(o[0], 1) and any(same(o[1], b) for b in below) for o in ones)


def is_efficiency(node: ast.AST) -> bool:
    """(phi + a) / (phi + b)."""
    parts = operands(node, ast.Div)
    below = operands(parts[1], ast.Add) if parts else None
    if not parts or not below:
        return False
    above = (operands(factor, ast.Add) for factor in operands(parts[0], ast.Mult) or (parts[0],))
    return any(a and not is_number(a[0], 1) and same(a[0], below[0]) for a in above)


def is_remainder(node: ast.AST) -> bool:
    """whole[order[: n - whole.sum()]] += 1, or any function of that name."""
    if isinstance(node, ast.FunctionDef):
        return "largest_remainder" in node.name
    if not (isinstance(node, ast.AugAssign) and is_number(node.value, 1)):
        return False
    return any(
        isinstance(n, ast.Slice) and n.upper and "sum" in ast.dump(n.upper) for n in ast.walk(node.target)
    )


def is_heap(node: ast.AST) -> bool:
    """child = 2 * hole + 1: where the first child is."""
    parts = operands(node.value, ast.Add) if isinstance(node, ast.Assign) else None
    twice = operands(parts[0], ast.Mult) if parts and is_number(parts[1], 1) else None
    return bool(twice and is_number(twice[0], 2) and isinstance(twice[1], ast.Name))


LAWS: dict[str, tuple[Callable[[ast.AST], bool], str, tuple[str, ...]]] = {
    "overlap": (
        is_overlap,
        "policies/physics.py:exposed_s",
        (
            "longer * (1.0 + (shorter / longer) ** gamma) ** (1.0 / gamma)",
            "longer * math.pow(1.0 + math.pow(shorter / longer, overlap), 1.0 / overlap) - work_s",
            "(L ** g + X ** g) ** (1 / g)",
            "shorter - longer * math.expm1(math.log1p((shorter / longer) ** gamma) / gamma)",
        ),
    ),
    "share curve": (
        is_share_curve,
        "policies/physics.py:speed_at",
        ("(1.0 + kappa) * share / (share + kappa)", "np.asarray((1.0 + k) * f / (f + k))"),
    ),
    "efficiency": (
        is_efficiency,
        "policies/physics.py:efficiency",
        ("value * (noise_scale + reference) / (noise_scale + batch)", "(phi + m0) / (phi + m)"),
    ),
    "largest remainder": (
        is_remainder,
        "policies/physics.py:largest_remainder",
        ("whole[order[: units - int(whole.sum())]] += 1", "def largest_remainder(ideal): pass"),
    ),
    "heap": (is_heap, "policies/kernels/arrays.py:sift_down", ("child = 2 * at + 1",)),
}


KINDS = (ast.BinOp, ast.Call, ast.FunctionDef, ast.AugAssign, ast.Assign)
"""What a law may be spelled as; no other node is looked at."""


@pytest.mark.parametrize("law", LAWS)
def test_the_spellings_of_a_law_are_recognised(law: str) -> None:
    matches, _, spellings = LAWS[law]
    for text in spellings:
        found = [node for node in ast.walk(ast.parse(text)) if matches(node)]
        assert found, text
        assert all(isinstance(node, KINDS) for node in found), text


@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_written_down_once(law: str) -> None:
    _, place, _ = LAWS[law]
    assert places()[law] == {place}


@cache
def places() -> dict[str, set[str]]:
    """`file:function` of every match of each law in the rooms."""
    found: dict[str, set[str]] = {law: set() for law in LAWS}
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        nodes = [
            (node, name) for node, name in nodes_of(ast.parse(path.read_bytes())) if isinstance(node, KINDS)
        ]
        for law, (matches, _, _) in LAWS.items():
            found[law] |= set(within(nodes, path.relative_to(ROOT).as_posix(), matches))
    return found


def nodes_of(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    """Every node with the name of the innermost function around it."""
    found, waiting = [], [(tree, "")]
    while waiting:
        node, function = waiting.pop()
        function = node.name if isinstance(node, ast.FunctionDef) else function
        found.append((node, function))
        waiting += [(child, function) for child in ast.iter_child_nodes(node)]
    return found


def within(nodes: list[tuple[ast.AST, str]], file: str, matches: Callable[[ast.AST], bool]) -> Iterator[str]:
    """`file:function` of every match among these nodes."""
    return (f"{file}:{function}" for node, function in nodes if matches(node))

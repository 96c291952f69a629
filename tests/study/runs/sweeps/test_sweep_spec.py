import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.sweep_spec import (
    RUNS_MOST,
    Range,
    SweepSpec,
    _value,
    latin_hypercube,
    place_of,
    read_sweep,
    varied_keys,
    what_can_be_read,
)

BASE = {"schema_version": 1, "name": "s", "scenario": "s.yaml", "policies": ["fifo"]}


def spec(**changes):
    return SweepSpec.model_validate(BASE | changes)


def test_a_sweep_that_was_read_cannot_be_changed():
    for made, key in ((spec(), "name"), (Range(low=1.0, high=2.0), "low")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(made, key, getattr(made, key))


def test_grid_is_every_combination_in_a_fixed_order():
    points = spec(parameters={"a.b": [1, 2], "c": {"low": 1, "high": 100, "scale": "log", "steps": 3}}).points()
    assert [(p["a.b"], p["c"]) for p in points] == [(1, 1), (1, 10), (1, 100), (2, 1), (2, 10), (2, 100)]


def test_no_parameters_is_one_point():
    assert spec().points() == [{}]


def test_list_is_taken_as_it_is():
    given = [{"a": 1}, {"a": "3 GB", "b": True}]
    assert spec(sampling={"kind": "list", "points": given}).points() == given


@pytest.mark.parametrize("kind", ["random", "latin-hypercube"])
def test_draws_depend_on_their_seed_alone(kind):
    keys = {"a": {"low": 0, "high": 1}, "b": ["x", "y", "z"]}
    first, again = (spec(parameters=keys, sampling={"kind": kind, "points": 20, "seed": 4}) for _ in range(2))
    assert first.points() == again.points()
    assert first.points() != spec(parameters=keys, sampling={"kind": kind, "points": 20, "seed": 5}).points()
    assert {p["b"] for p in first.points()} == {"x", "y", "z"}
    assert all(0 <= p["a"] <= 1 for p in first.points())
    unsaid, none = (spec(parameters=keys, sampling={"kind": kind, "points": 20, **more}) for more in ({}, {"seed": 0}))
    assert unsaid.points() == none.points()


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 99))
def test_latin_hypercube_takes_every_cell_once(points, keys, seed):
    shares = latin_hypercube(points, keys, np.random.Generator(np.random.Philox(key=seed)))
    for column in (shares * points).astype(int).T:
        assert sorted(column) == list(range(points))


def test_latin_hypercube_of_an_integer_range_is_even():
    drawn = spec(
        parameters={"n": {"low": 1, "high": 4, "integer": True}}, sampling={"kind": "latin-hypercube", "points": 40}
    ).points()
    assert sorted(p["n"] for p in drawn) == [1] * 10 + [2] * 10 + [3] * 10 + [4] * 10


@given(st.floats(0, 1), st.sampled_from(["linear", "log"]), st.booleans())
def test_ranges_stay_inside(share, scale, integer):
    value = Range(low=2, high=9, scale=scale, integer=integer).at(share)
    assert 2 <= value <= 9
    assert isinstance(value, int) == integer


@pytest.mark.parametrize(
    ("share", "linear", "log", "integer", "both"),
    [
        (0.0, 1.0, 1.0, 1, 1),
        (0.25, 25.75, 3.16227766, 26, 3),
        (0.5, 50.5, 10.0, 51, 10),
        (0.505, 50.995, 10.2329299, 51, 10),
        (0.99, 99.01, 95.4992586, 100, 96),
        (1.0, 100.0, 100.0, 100, 100),
    ],
)
def test_a_share_of_1_to_100(share, linear, log, integer, both):
    """Of integers there are a hundred equal cells, from 1 to 101, on a line or on its logarithm."""
    assert Range(low=1, high=100).at(share) == linear
    assert Range(low=1, high=100, scale="log").at(share) == log
    assert Range(low=1, high=100, integer=True).at(share) == integer
    assert Range(low=1, high=100, integer=True, scale="log").at(share) == both


def test_values_of_a_grid():
    assert Range(low=0, high=1, steps=2).grid() == [0.0, 1.0]
    assert Range(low=0, high=1, steps=5).grid() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert Range(low=1, high=3, steps=4).grid() == [1.0, 1.66666667, 2.33333333, 3.0]
    assert Range(low=1, high=16, scale="log", integer=True, steps=5).grid() == [1, 2, 4, 8, 16]


def test_a_list_is_drawn_from_evenly():
    assert [_value(["x", "y", "z"], share) for share in (0.0, 0.33, 0.34, 0.66, 0.67, 0.99)] == list("xxyyzz")


def test_where_a_value_stands():
    """By place in a list, by its very type; of a range only the key; of listed points the point."""
    grid = spec(parameters={"a": [1, True, "x", 1.0], "b": {"low": 0, "high": 1, "steps": 2}})
    found = [place_of(grid, 7, "a", value) for value in (1, True, "x", 1.0, 2)]
    assert found == [("parameters", "a", *at) for at in ((0,), (1,), (2,), (3,), ())]
    assert place_of(grid, 7, "b", 0.0) == ("parameters", "b")
    assert place_of(grid, 7) == ("parameters",)
    assert place_of(spec(), 0) == ("scenario",)
    listed = spec(sampling={"kind": "list", "points": [{"a": 1}, {"a": 2}]})
    assert place_of(listed, 1) == ("sampling", "points", 1)
    assert place_of(listed, 1, "a", 2) == ("sampling", "points", 1, "a")


def test_keys_that_a_file_varies_whatever_it_is():
    points = {"kind": "list", "points": [{"b": 1, 2: 3}, {"b": 2, "c": 1}, "no point"]}
    assert varied_keys({"parameters": {"a": [1], "b": [2]}, "sampling": points}) == ["a", "b", "2", "c"]
    for nothing in ({}, {"parameters": None, "sampling": None}, {"sampling": "grid"}, {"sampling": {"points": None}}):
        assert varied_keys(nothing) == []


def test_what_is_right_in_a_wrong_file_is_read(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(BASE | {"seeds": 0, "parameters": {"a": [1]}, "more": 3}))
    found = what_can_be_read(path)
    assert (found.seeds, found.policies, found.points()) == (1, ("fifo",), [{"a": 1}])
    path.write_text(yaml.safe_dump({name: value for name, value in BASE.items() if name != "scenario"}))
    assert what_can_be_read(path) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": 1},
        {"seeds": RUNS_MOST},
        {"sampling": {"kind": "random", "points": 1, "seed": 0}, "parameters": {"a": [1]}},
        {"parameters": {"a": {"low": 0, "high": 1, "steps": 2}}},
        {"parameters": {"a": [1]}},
        {"parameters": {"a": {"low": 1e-9, "high": 1, "steps": 2, "scale": "log"}}},
        {"sampling": {"kind": "list", "points": [{}]}},
    ],
)
def test_the_least_that_is_allowed(changes):
    assert spec(**changes).points()


def test_units_are_appended():
    assert Range(low=10, high=400, unit="Gbit/s").at(0.0) == "10 Gbit/s"
    assert Range(low=1, high=3, integer=True, unit="GB", steps=3).grid() == ["1 GB", "2 GB", "3 GB"]


def test_integer_grid_has_each_value_once():
    assert Range(low=1, high=4, integer=True, steps=9).grid() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parameters": {"policy": ["a"]}}, "'policy' cannot be varied here; use 'policies'"),
        ({"parameters": {"seed": [1]}}, "use 'seeds'"),
        ({"sampling": {"kind": "list", "points": [{"seed": 1}]}}, "use 'seeds'"),
        ({"parameters": {"a": [1]}, "sampling": {"kind": "list", "points": [{"b": 1}]}}, "must be empty"),
        ({"sampling": {"kind": "random", "points": 3}}, "needs 'parameters'"),
        ({"parameters": {"a": {"low": 1, "high": 2}}}, "a range in a grid needs 'steps'"),
        ({"parameters": {"a": {"low": 3, "high": 2, "steps": 2}}}, "low 3 must be below high 2"),
        ({"parameters": {"a": {"low": 0, "high": 2, "steps": 2, "scale": "log"}}}, "needs low above 0"),
        ({"policies": ["a", "a"]}, "named twice"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": RUNS_MOST + 1}, "2,000,001 runs; at most 2,000,000 are possible"),
        ({"sampling": {"kind": "random", "points": 0}, "parameters": {"a": [1]}}, "points"),
        ({"sampling": {"kind": "random", "points": 1, "seed": -1}, "parameters": {"a": [1]}}, "seed"),
        ({"sampling": {"kind": "latin-hypercube", "points": 0}, "parameters": {"a": [1]}}, "points"),
        ({"sampling": {"kind": "latin-hypercube", "points": 3}}, "needs 'parameters'"),
        ({"sampling": {"kind": "list", "points": []}}, "points"),
        ({"parameters": {"a": {"low": 0, "high": 2, "steps": 1}}}, "steps"),
        ({"parameters": {"a": {"low": 2, "high": 2, "steps": 2}}}, "low 2 must be below high 2"),
        ({"parameters": {"a": []}}, "parameters.a"),
        ({"policies": []}, "policies"),
        ({"polices": ["a"]}, "did you mean 'policies'"),
        ({"sampling": "sobol"}, "sampling"),
    ],
)
def test_mistakes_are_one_line_with_their_place(tmp_path, changes, says):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(BASE | changes))
    with pytest.raises(InputError) as error:
        read_sweep(path)
    assert len(error.value.lines) == 1
    assert says in error.value.lines[0]
    assert error.value.lines[0].startswith(f"{path}:")


def test_the_sweep_that_comes_along_is_read():
    from equipoise.sim.hardware.profile import scenarios_dir

    quick, _ = read_sweep(scenarios_dir() / "sweep-quick.yaml")
    assert len(quick.points()) * len(quick.policies) * quick.seeds > 50

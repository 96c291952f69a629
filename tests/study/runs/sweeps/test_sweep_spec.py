import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.sweep_spec import RUNS_MOST, Range, SweepSpec, latin_hypercube, read_sweep

BASE = {"schema_version": 1, "name": "s", "scenario": "s.yaml", "policies": ["fifo"]}


def spec(**changes):
    return SweepSpec.model_validate(BASE | changes)


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

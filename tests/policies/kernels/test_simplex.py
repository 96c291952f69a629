"""The simplex method against HiGHS, compiled and plain."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from equipoise.policies.baselines.gavel import shares
from equipoise.policies.kernels.simplex import maximise


def solve(a, b, c, method=maximise):
    rows, columns = a.shape
    d = np.zeros((rows + 1, columns + 1))
    d[:rows, :columns], d[:rows, -1], d[-1, :columns] = a, b, c
    label, line = np.empty(rows + columns, dtype=np.int64), np.empty(columns + 1)
    x = np.empty(columns)
    return method(d, label, line, x, 1000), x


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_as_good_as_highs(seed, rows, columns, degenerate):
    rng = np.random.default_rng(seed)
    a, c = rng.integers(-3, 4, (rows, columns)).astype(float), rng.integers(-3, 4, columns).astype(float)
    b = np.zeros(rows) if degenerate else rng.integers(0, 9, rows).astype(float)
    pivots, x = solve(a, b, c)
    known = linprog(-c, A_ub=a, b_ub=b, method="highs")
    assert (pivots >= 0) == (known.status == 0)
    if pivots >= 0:
        assert (x >= -1e-9).all()
        assert (a @ x <= b + 1e-7).all()
        assert c @ x == pytest.approx(-known.fun, abs=1e-7)


def test_compiled_as_plain():
    rng = np.random.default_rng(5)
    a, b, c = rng.random((6, 5)), rng.random(6), rng.random(5)
    compiled, plain = solve(a, b, c), solve(a, b, c, maximise.py_func)
    assert compiled[0] == plain[0]
    assert np.allclose(compiled[1], plain[1], rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 3))
def test_shares_of_time(seed, classes, models):
    """The least throughput over need is what HiGHS finds, and no GPU and no job is given more than all its time."""
    rng = np.random.default_rng(seed)
    speed, need = rng.uniform(0.1, 10.0, (classes, models)), rng.uniform(0.1, 5.0, classes)
    gpus, count = rng.choice([1.0, 2.0, 8.0], classes), rng.integers(1, 9, classes).astype(float)
    room = rng.integers(8, 60, models).astype(float)
    part, least = shares(speed, gpus, room, need, count)
    size, job = classes * models, np.repeat(np.arange(classes), models)
    a = np.zeros((2 * classes + models, size + 1))
    a[job, np.arange(size)] = -(speed / need[:, None]).ravel()
    a[:classes, -1] = 1.0
    a[classes + job, np.arange(size)] = 1.0
    a[2 * classes + np.tile(np.arange(models), classes), np.arange(size)] = (count * gpus)[job]
    b = np.concatenate((np.zeros(classes), np.ones(classes), room))
    known = linprog(np.append(np.zeros(size), -1.0), A_ub=a, b_ub=b, method="highs")
    assert least == pytest.approx(-known.fun, rel=3e-3)
    assert ((speed * part).sum(axis=1) / need).min() >= least * (1 - 1e-5) - 1e-7
    assert (part.sum(axis=1) <= 1 + 1e-9).all()
    assert ((count * gpus) @ part <= room + 1e-7).all()

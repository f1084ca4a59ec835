"""Windows of NumPy chunks that are done eight lines at a time, held to exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support.windows import check

from dask_coop import chunks
from dask_coop.algebra.windows import Window
from dask_coop.chunks.numpy import windows


def move(statistic: str, x: Any, length: int, least: int | None = None, axis: int = -1) -> Any:
    axis %= x.ndim
    window = Window(statistic, axis, length, least or length)
    return chunks.backend_of(x).move(window, x, x[(*(slice(None),) * axis, slice(0))])


def hard(name: str, n: int) -> Any:
    rng = np.random.default_rng(11)
    x = rng.standard_normal(n)
    match name:
        case "far from zero":
            return x + 1e8
        case "very far from zero":
            return 1e15 + rng.integers(0, 9, n)
        case "steps":
            return x + np.repeat(1e9 * rng.standard_normal(n // 50 + 1), 50)[:n]
        case "huge ones":
            x[::37] = 1e16
        case "all sizes":
            x = np.ldexp(x, rng.integers(-200, 200, n))
        case "equal":
            x[:] = 0.1
    return x


@pytest.mark.parametrize("layout", ["rows", "columns", "parts", "few neighbours"])
@pytest.mark.parametrize("length", [1, 2, 5, 33, 200])
@pytest.mark.parametrize(
    "name", ["far from zero", "very far from zero", "steps", "huge ones", "all sizes", "equal"]
)
def test_results_are_those_of_exact_arithmetic(name: str, length: int, layout: str) -> None:
    n, rng = 1700, np.random.default_rng(length)
    line = hard(name, n)
    beside = rng.standard_normal((9, n))
    beside[4] = line
    match layout:
        case "rows":
            x, axis, found = beside, 1, lambda y: y[4]
        case "columns":
            x, axis, found = np.ascontiguousarray(beside.T), 0, lambda y: y[:, 4]
        case "parts":
            x, axis, found = line, 0, lambda y: y
        case _:
            x, axis, found = np.ascontiguousarray(beside[3:6].T), 0, lambda y: y[:, 1]
    pytest.importorskip("numba")
    total, variance = (found(move(name, x, length, axis=axis)) for name in ("sum", "var"))
    for i in rng.integers(length - 1, n, 20):
        part = [Fraction(value) for value in line[i - length + 1 : i + 1]]
        exact = sum(part)
        error = abs(Fraction(total[i]) - exact)
        assert error <= length * Fraction(2) ** -52 * sum(map(abs, part))
        # Deviations are exact to their last bits, however far from zero the elements are.
        squares = sum((value - exact / length) ** 2 for value in part) / length
        error = abs(Fraction(variance[i]) - squares)
        assert error <= length * Fraction(2) ** -45 * squares


@pytest.mark.parametrize("statistic", ["sum", "mean", "var", "std"])
@pytest.mark.parametrize("shape", [(3000,), (3, 1000), (9, 400), (400, 3), (100, 9), (2, 90, 17)])
def test_bursts_of_what_is_not_finite_stay_in_their_windows(statistic: str, shape: Any) -> None:
    rng = np.random.default_rng(12)
    x = 50 + rng.standard_normal(shape)
    axis = int(np.argmax(shape))
    for value in (np.nan, np.inf, -np.inf):
        for begin in rng.integers(0, shape[axis] - 12, 4):
            x[(*(slice(None),) * axis, slice(begin, begin + rng.integers(1, 12)))] = value
    for length, least in ((7, 7), (7, 1), (40, 40), (40, 3)):
        found = move(statistic, x, length, least, axis)
        check(statistic, found, x, length, least, axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_pivots_far_from_all_else_are_seen(axis: int) -> None:
    length = 500
    x = np.random.default_rng(13).standard_normal((1500, 6))
    # The first elements of blocks: deviations from them would have no digits left of the others.
    x[::length] = 1e9
    x[1 :: length // 2, 3] = np.nan
    x = x if axis == 0 else np.ascontiguousarray(x.T)
    for least in (length, 2):
        found = move("var", x, length, least, axis)
        assert not (found < 0).any()
        check("var", found, x, length, least, axis)
        check("std", move("std", x, length, least, axis), x, length, least, axis)
        line = x.take(5, 1 - axis)
        for i in (length - 1, 2 * length, 1499):
            part = [Fraction(value) for value in line[i - length + 1 : i + 1]]
            mean = sum(part) / length
            exact = float(sum((value - mean) ** 2 for value in part) / length)
            assert math.isclose(found.take(5, 1 - axis)[i], exact, rel_tol=1e-11)


def test_long_windows_of_few_lines_take_no_more_memory_than_they_have() -> None:
    assert windows._plan(1, 10_000, 1, 5000) is None
    assert windows._plan(1, 10_000, 1, 50) is not None
    layout, parts, length, _ = windows._plan(1, 10_000, 1, 50) or (0, 0, 0, 0)
    assert (layout, parts, length) == (1, 8, 1250)
    x = np.random.default_rng(14).standard_normal(10_000)
    for statistic in ("sum", "var"):
        check(statistic, move(statistic, x, 5000), x, 5000)

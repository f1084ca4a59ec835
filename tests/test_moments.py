"""var and std against exact arithmetic, for any chunking."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from strategies import NUMBERS, assert_near, reducible, wide

from dask_coop import reductions as dc

split_everys = st.none() | st.integers(2, 20)
keep = st.booleans()
by_name = pytest.mark.parametrize("name", ["var", "std"])


def variance(array: Any, axis: Any, keepdims: bool, ddof: float) -> tuple[Any, Any, Any]:
    """Return the exact variance, how far off float64 may be, and where it is defined."""
    x = wide(array)
    count = array.size / max(np.sum(np.ones_like(array, "i8"), axis).size, 1)
    deviation = x - np.sum(x, axis, keepdims=True) / max(count, 1)
    m2 = np.sum(np.square(deviation.real) + np.square(deviation.imag), axis, keepdims=keepdims)
    size = np.max(np.abs(x), axis, keepdims=keepdims, initial=0)
    var = m2 / max(count, 1)
    eps = 8 * max(array.size, 1) * np.finfo("f8").eps
    slack = np.nan_to_num(eps * (var + np.sqrt(var) * size) + np.square(eps * size))
    # Squares of small deviations underflow.
    slack += np.finfo("f8").tiny
    degrees = max(count - ddof, 0)
    return m2 / degrees, slack * max(count, 1) / max(degrees, 1e-300), degrees > 0


@by_name
@given(
    case=reducible(),
    keepdims=keep,
    split_every=split_everys,
    ddof=st.sampled_from([0, 1, 0.5, 3]),
)
def test_spreads_are_exact_but_for_one_rounding(
    xp: Any, name: str, case: Any, keepdims: bool, split_every: Any, ddof: float
) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    lazy = getattr(dc, name)(x, axis, None, keepdims, ddof, split_every)
    with np.errstate(all="ignore"):
        exact, slack, defined = variance(array, axis, keepdims, ddof)
        if name == "std":
            exact, slack = np.sqrt(exact), np.sqrt(slack)
    result = to_numpy(xp, lazy)
    assert lazy.dtype == np.var(np.ones(1, array.dtype)).dtype
    assert lazy.shape == np.shape(exact)
    if defined:
        assert_near(result, exact, slack)


@by_name
@pytest.mark.parametrize("ddof", [3, 4])
def test_too_few_elements_for_the_degrees_of_freedom_have_no_spread(
    xp: Any, name: str, ddof: int
) -> None:
    x = to_chunks(xp, np.array([[1, 2, 3], [4, 4, 4.0]]), 2)
    result = to_numpy(xp, getattr(dc, name)(x, axis=1, ddof=ddof))
    np.testing.assert_array_equal(result, [np.inf, np.nan])
    nothing = getattr(dc, name)(to_chunks(xp, np.empty(0), 1))
    assert np.isnan(to_numpy(xp, nothing))


@by_name
def test_nan_and_infinities_spoil_their_lines_only(xp: Any, name: str) -> None:
    array = np.array([[1, np.nan, 3], [1, np.inf, 3], [1, 2, 3]], "f4")
    for size in (1, 2, 3):
        result = to_numpy(xp, getattr(dc, name)(to_chunks(xp, array, size), axis=1))
        assert np.isnan(result[:2]).all()
        assert result[2] == getattr(np, name)(array[2])


def test_the_variance_of_large_values_does_not_cancel(xp: Any) -> None:
    array = np.random.default_rng(1).standard_normal(10_000) + 1e9
    for chunks in (333, 10_000):
        result = dc.var(to_chunks(xp, array, chunks))
        np.testing.assert_allclose(to_numpy(xp, result), np.var(array), rtol=1e-7)


@by_name
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("output", ["f2", "f4", "f8"])
def test_dtype_is_that_of_the_result(xp: Any, name: str, dtype: str, output: str) -> None:
    array = np.tile(np.array([0, 1, 1, 3]).astype(dtype), 5)
    result = getattr(dc, name)(to_chunks(xp, array, 3), dtype=output)
    assert result.dtype == output
    expected = getattr(np, name)(array.astype("c16")).astype(output)
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=np.finfo(output).eps)


@by_name
def test_degrees_of_freedom_are_a_number(name: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        getattr(dc, name)(da.ones(3), ddof="one")


@by_name
def test_spreads_behind_unknown_sizes(name: str) -> None:
    x = da.arange(50, chunks=7)
    result = getattr(dc, name)(x[x % 3 == 0], ddof=1)
    expected = getattr(np, name)(np.arange(0, 50, 3), ddof=1)
    assert result.compute() == pytest.approx(expected, rel=1e-15)

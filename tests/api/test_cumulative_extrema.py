"""Products, scans without NaN, running extrema and logarithms, of numbers and of times."""

from __future__ import annotations

from itertools import product
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import (
    BOOL,
    COMPLEX,
    FLOATS,
    INTS,
    NUMBERS,
    REAL,
    arrays,
    assert_near,
    exactly_representable,
    scannable,
    slack,
    wide,
)

import dask_coop as dc
from dask_coop.algebra import monoids

METHODS = ("reduce-then-scan", "sequential", "recompute")


def flat(array: Any, axis: int | None) -> tuple[Any, int]:
    return (array.ravel(), 0) if axis is None else (array, axis)


@given(case=scannable(dtypes=BOOL + INTS))
def test_integer_products_are_numpys(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.cumprod(to_chunks(xp, array, chunks), axis)
    expected = np.cumprod(array, axis)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


@given(case=scannable(dtypes=FLOATS + COMPLEX, values=st.floats(-1.5, 1.5, width=16)))
def test_float_products_are_rounded_once(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.cumprod(to_chunks(xp, array, chunks), axis)
    exact = np.cumprod(wide(array), axis)
    assert result.dtype == array.dtype
    eps = array.size * np.finfo("f8").eps
    bound = eps * np.abs(exact) + np.finfo("f8").tiny
    assert_near(to_numpy(xp, result), exact, bound)


@given(case=scannable(dtypes=BOOL + INTS + FLOATS + COMPLEX))
def test_nan_counts_as_nothing(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    total = dc.nancumsum(x, axis)
    known = array if array.dtype.kind in "biu" else np.where(np.isnan(array), 0, array)
    with np.errstate(all="ignore"):
        assert total.dtype == np.nancumsum(array, axis).dtype
        exact = np.cumsum(wide(known) if array.dtype.kind in "fc" else known, axis)
    if array.dtype.kind in "biu":
        np.testing.assert_array_equal(to_numpy(xp, total), exact)
    else:
        bound = slack(known) if axis is None else slack(known, axis, keepdims=True)
        assert_near(to_numpy(xp, total), exact, bound)


def test_products_without_nan_and_other_kinds_of_number(xp: Any) -> None:
    nan = np.nan
    array = np.array([[2.0, nan, 3.0, nan, nan], [nan, 1.5, -2.0, 0.5, 4.0]])
    for dtype in ("f2", "f4", "f8", "c8", "c16"):
        x = to_chunks(xp, array.astype(dtype), (1, 2))
        for axis, method in product((None, 0, 1), METHODS):
            result = dc.nancumprod(x, axis, method=method)
            expected = np.nancumprod(array.astype(dtype), axis)
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(to_numpy(xp, result), expected)
    x = to_chunks(xp, array, (1, 2))
    for function, numpys in ((dc.nancumsum, np.nancumsum), (dc.nancumprod, np.nancumprod)):
        np.testing.assert_array_equal(to_numpy(xp, function(x, 1, "i4")), numpys(array, 1, "i4"))
        np.testing.assert_array_equal(
            to_numpy(xp, function(x, 0, exclusive=True))[1], numpys(array, 0)[0]
        )


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("output", NUMBERS)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_dtype_converts_as_numpy_does(xp: Any, dtype: str, output: str) -> None:
    array = np.array(exactly_representable(dtype, output)).astype(dtype)
    x = to_chunks(xp, array, 2)
    result = dc.cumprod(x, dtype=output)
    assert result.dtype == output
    np.testing.assert_array_equal(to_numpy(xp, result), np.cumprod(array, dtype=output))
    if {np.dtype(dtype).kind, np.dtype(output).kind}.isdisjoint("c"):
        result = dc.cummax(x, dtype=output)
        assert result.dtype == output
        expected = np.maximum.accumulate(array.astype(output))
        np.testing.assert_array_equal(to_numpy(xp, result), expected)


@given(case=scannable(dtypes=REAL))
def test_extrema_are_numpys(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    for function, ufunc in ((dc.cummax, np.maximum), (dc.cummin, np.minimum)):
        result = function(x, axis)
        assert result.dtype == array.dtype
        np.testing.assert_array_equal(to_numpy(xp, result), ufunc.accumulate(*flat(array, axis)))


@given(case=scannable(dtypes=FLOATS))
def test_logarithms_are_those_of_logaddexp(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.logcumsumexp(to_chunks(xp, array, chunks), axis)
    with np.errstate(all="ignore"):
        exact = np.logaddexp.accumulate(*flat(wide(array), axis))
    assert result.dtype == array.dtype
    size = np.where(np.isfinite(exact), np.abs(exact), 0)
    bound = 4 * max(array.size, 1) * np.finfo("f8").eps * (1 + size)
    assert_near(to_numpy(xp, result), exact, bound)


def test_logarithms_of_what_is_too_large_to_exponentiate(xp: Any) -> None:
    inf, nan = np.inf, np.nan
    for array in (
        [1000.0, 1000.0, 1000.0, -1000.0],
        [-1000.0, -1000.0, -999.0, -inf],
        [-inf, -inf, 2.0, inf, inf],
        [1.0, inf, nan, 2.0],
        [-inf, nan, inf],
    ):
        with np.errstate(invalid="ignore"):
            expected = np.logaddexp.accumulate(array)
            backwards = np.logaddexp.accumulate(array[::-1])[::-1]
        for chunk, method in product((1, 2, 5), METHODS):
            x = to_chunks(xp, np.array(array), chunk)
            result = to_numpy(xp, dc.logcumsumexp(x, method=method))
            np.testing.assert_allclose(result, expected, rtol=1e-15)
            result = to_numpy(xp, dc.logcumsumexp(x, reverse=True, method=method))
            np.testing.assert_allclose(result, backwards, rtol=1e-15)


@pytest.mark.parametrize("dtype", BOOL + INTS)
def test_logarithms_of_integers_are_float64(xp: Any, dtype: str) -> None:
    array = np.array([0, 1, 1, 0, 1], dtype)
    result = dc.logcumsumexp(to_chunks(xp, array, 2), include_initial=True)
    assert result.dtype == "f8"
    expected = np.concatenate([[-np.inf], np.logaddexp.accumulate(array.astype("f8"))])
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=1e-15)
    narrow = dc.logcumsumexp(to_chunks(xp, array, 2), dtype="f4")
    assert narrow.dtype == "f4"
    np.testing.assert_allclose(to_numpy(xp, narrow), expected[1:], rtol=1e-7)


@given(case=arrays(dtypes=REAL, shape=st.tuples(st.integers(1, 60))))
def test_a_scan_by_any_monoid_is_that_of_its_reductions(xp: Any, case: Any) -> None:
    array, chunks = case
    x = to_chunks(xp, array, chunks)
    for monoid, reduction in (
        (monoids.ANY, np.any),
        (monoids.ALL, np.all),
        (monoids.COUNT_NONZERO, np.count_nonzero),
        (monoids.MAX, np.max),
    ):
        expected = np.array([reduction(array[: i + 1]) for i in range(array.size)])
        for method in METHODS:
            result = dc.scan(x, monoid, method=method)
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(to_numpy(xp, result), expected)


def test_a_scan_by_the_monoid_of_a_function_is_that_function() -> None:
    x = da.from_array(np.arange(12, dtype="i4").reshape(3, 4), chunks=2)
    for monoid, function in (
        (monoids.SUM, dc.cumsum),
        (monoids.PROD, dc.cumprod),
        (monoids.MIN, dc.cummin),
        (monoids.MAX, dc.cummax),
    ):
        assert dc.scan(x, monoid, 1).name == function(x, 1).name
    logs = dc.scan(x, monoids.LOGADDEXP, 1, reverse=True)
    np.testing.assert_allclose(logs, dc.logcumsumexp(x, 1, reverse=True))


def test_a_scan_by_what_no_element_is_a_state_of_is_refused() -> None:
    with pytest.raises(TypeError, match="scan does not take squares; scan x \\* x by sum"):
        dc.scan(da.ones(3), monoids.SQUARES)
    with pytest.raises(TypeError, match="scan takes monoids of one field; minmax has min, max"):
        dc.scan(da.ones(3), monoids.MINMAX)


TIMES = ("M8[s]", "M8[ns]", "M8[D]", "m8[us]")


@pytest.mark.parametrize("dtype", TIMES)
@pytest.mark.parametrize("method", METHODS)
def test_extrema_of_times(dtype: str, method: str) -> None:
    numbers = np.random.default_rng(3).integers(-99, 99, (40, 3))
    for nats in (0, 1):
        array = numbers.astype("i8").view(dtype)
        array[25, :nats] = "NaT"
        x = da.from_array(array, chunks=(7, 2))
        for function, ufunc in ((dc.cummax, np.maximum), (dc.cummin, np.minimum)):
            result = function(x, 0, method=method)
            assert result.dtype == array.dtype
            np.testing.assert_array_equal(result.compute(), ufunc.accumulate(array, 0))
            backwards = function(x, 0, method=method, reverse=True, exclusive=True).compute()
            expected = ufunc.accumulate(array[::-1], 0)[::-1]
            np.testing.assert_array_equal(backwards[:-1], expected[1:])
            heads = np.zeros(40, "?")
            heads[30] = True
            parts = function(x, 0, method=method, segments=heads).compute()
            np.testing.assert_array_equal(parts[:30], ufunc.accumulate(array[:30], 0))
            np.testing.assert_array_equal(parts[30:], ufunc.accumulate(array[30:], 0))


@pytest.mark.parametrize("method", METHODS)
def test_sums_of_durations(method: str) -> None:
    array = np.arange(30).astype("m8[s]")
    array[20] = "NaT"
    x = da.from_array(array, chunks=7)
    result = dc.cumsum(x, method=method, include_initial=True)
    assert result.dtype == array.dtype
    expected = np.cumulative_sum(array[:20], include_initial=True)
    np.testing.assert_array_equal(result[:21], expected)
    assert np.isnat(result[21:].compute()).all()
    longer = dc.cumsum(x[:20], dtype="m8[ms]", method=method).compute()
    np.testing.assert_array_equal(longer, np.cumsum(array[:20]).astype("m8[ms]"))


def test_what_times_are_not_for_is_refused() -> None:
    for dtype, functions in {
        "M8[s]": (dc.cumsum, dc.cumprod, dc.nancumsum, dc.logcumsumexp),
        "m8[s]": (dc.cumprod, dc.nancumsum, dc.nancumprod, dc.logcumsumexp),
    }.items():
        for function in functions:
            with pytest.raises(TypeError, match=f"{function.__name__} does not take dtype"):
                function(da.from_array(np.zeros(3, dtype), chunks=2), axis=0, exclusive=True)


@pytest.mark.parametrize("dtype", ["c8", "c16", "O", "U3", "g"])
def test_what_has_no_order_is_refused(dtype: str) -> None:
    x = da.from_array(np.zeros(4, dtype), chunks=2)
    for function in (dc.cummax, dc.cummin, dc.logcumsumexp):
        with pytest.raises(TypeError, match=f"{function.__name__} does not take dtype"):
            function(x)
    with pytest.raises(TypeError, match="logcumsumexp does not take dtype int64"):
        dc.logcumsumexp(da.ones(3), dtype="i8")


@given(case=scannable(dtypes=BOOL + INTS))
def test_cumulative_functions_are_numpys(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    for mine, numpys in (
        (dc.cumulative_sum, np.cumulative_sum),
        (dc.cumulative_prod, np.cumulative_prod),
    ):
        for initial in (False, True):
            if axis is None and array.ndim > 1:
                with pytest.raises(ValueError, match="``axis`` argument is required"):
                    mine(x, include_initial=initial)
                continue
            result = mine(x, axis=axis, include_initial=initial)
            expected = numpys(array, axis=axis, include_initial=initial)
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(to_numpy(xp, result), expected)


def test_cumulative_sums_overwrite_out(xp: Any) -> None:
    x, out = to_chunks(xp, np.arange(5.0), 2), to_chunks(xp, np.zeros(6), 3)
    assert dc.cumulative_sum(x, out=out, include_initial=True) is out
    np.testing.assert_array_equal(to_numpy(xp, out), [0, 0, 1, 3, 6, 10])

"""Quantiles with an error, whose values and ranks are held to a sort by NumPy."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import assume, given
from hypothesis import strategies as st
from support.strategies import FLOATS, INTS, arrays, shapes

import dask_coop as dc

Q = np.array([0, 0.1, 0.5, 0.77, 1])


def check(array: Any, found: Any, error: float) -> None:
    """Hold estimates, and the largest errors of their ranks, to the sorted elements."""
    values, rank_errors = (np.asarray(x).astype("f8") for x in found)
    x = np.sort(array.reshape(-1).astype("f8"))
    if np.isnan(x).any():
        assert np.isnan(values).all()
        return
    at = Q * (x.size - 1)
    below, upto = np.searchsorted(x, values), np.searchsorted(x, values, "right")
    # A value that is no element lies between two.
    among = below < upto
    first, last = np.where(among, below, below - 1), np.where(among, upto - 1, below)
    distance = np.maximum(0, np.maximum(first - at, at - last))
    assert (distance <= rank_errors * x.size + 1e-6).all()
    assert (rank_errors <= 1).all()
    # Between the estimates of two elements, each of which is within the error of its element.
    low, high = x[np.floor(at).astype(int)], x[np.ceil(at).astype(int)]
    slack = error * np.maximum(abs(low), abs(high)) + np.finfo("f4").tiny
    finite = np.isfinite(low) & np.isfinite(high)
    if array.dtype.itemsize > 2:
        eps = 1e-6 * abs(values) + slack
        assert ((low - eps <= values) & (values <= high + eps) | ~finite).all()


@given(
    case=arrays(shape=shapes(1), dtypes=[*FLOATS, *INTS]),
    error=st.sampled_from([0.5, 0.01, 1 / 256]),
)
def test_values_and_ranks_are_as_near_as_is_said(xp: Any, case: Any, error: float) -> None:
    array, chunks = case
    assume(array.size)
    found = dc.quantile(to_chunks(xp, array, chunks), Q, error=error)
    exact = dc.quantile(to_chunks(xp, array, chunks), Q)
    assert found.quantile.dtype == exact.dtype
    assert found.rank_error.dtype == "f8"
    values = [to_numpy(xp, x) for x in found]
    with np.errstate(all="ignore"):
        check(array, values, error)
    if array.dtype.itemsize < 2 or array.dtype in ("i2", "u2"):
        np.testing.assert_allclose(values[0], to_numpy(xp, exact), rtol=1e-6, atol=1e-6)
        assert (values[1] == 0).all()


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_many_elements_are_found_by_rank(dtype: str) -> None:
    x = np.random.default_rng(0).lognormal(5, 2, 100_000).astype(dtype)
    found = dask.compute(*dc.percentile(da.from_array(x, chunks=30_000), Q * 100, error=0.01))
    check(x, found, 0.01)
    assert found[1].max() < 0.01


def test_nan_and_few_elements() -> None:
    x = np.array([np.nan, -np.inf, 0.0, -0.0, 0, 3, np.inf])
    values, errors = dask.compute(*dc.nanquantile(x, [0, 0.4, 0.8, 1], error=0.1))
    np.testing.assert_allclose(values[[0, 1, 3]], [-np.inf, 0, np.inf])
    assert abs(values[2] - 3) < 0.3
    assert (errors < 1).all()
    assert np.isnan(dask.compute(*dc.quantile(x, 0.5, error=0.1))).all()
    with pytest.raises(ValueError, match="of no element"):
        dc.quantile(da.ones(0), 0.5, error=0.1)


def test_states_go_on() -> None:
    x = da.from_array(np.random.default_rng(0).normal(size=3_000), chunks=700)
    states = [
        dc.reduce(y, "quantile", return_state=True, options={"q": 0.5, "error": 0.1})
        for y in (x[:1_000], x[1_000:])
    ]
    both = dc.combine(states).compute()
    for q in (0.5, Q.tolist()):
        expected = dask.compute(*dc.quantile(x, q, error=0.1))
        for a, b in zip(both.result(q=q), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_an_error_does_not_go_with_is_refused() -> None:
    x = da.ones((4, 3))
    weighted = {"weights": np.ones((4, 3)), "method": "inverted_cdf"}
    for options in (weighted, {"method": "lower"}, {"keepdims": True}, {"out": da.ones(())}):
        with pytest.raises(ValueError, match="quantile with an error takes the method 'linear'"):
            dc.quantile(x, 0.5, error=0.1, **options)
    for error in (0.001, 0.6, 0, float("nan")):
        with pytest.raises(ValueError, match="error from 1/256 to 1/2"):
            dc.quantile(x, 0.5, error=error)
    with pytest.raises(ValueError, match="takes all axes, got axis=1"):
        dc.quantile(x, 0.5, 1, error=0.1)
    with pytest.raises(TypeError, match="no date is 0"):
        dc.quantile(x.astype("M8[s]"), 0.5, error=0.1)
    with pytest.raises(TypeError, match="MaskedArray"):
        dc.quantile(da.ma.masked_less(x, 0), 0.5, error=0.1)

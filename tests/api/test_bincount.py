"""bincount against NumPy's, of any number of dimensions, and the length that it declares."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import BOOL, INTS, NUMBERS, Chunked, arrays

import dask_coop as dc


def computed(xp: Any, lazy: da.Array) -> Any:
    """Compute an array whose length may not be known before."""
    assert type(lazy._meta) is xp.ndarray
    result = lazy.compute(scheduler="synchronous")
    assert isinstance(result, xp.ndarray)
    assert result.dtype == lazy.dtype
    assert math.isnan(lazy.shape[0]) or lazy.shape == result.shape
    return result if xp is np else xp.asnumpy(result)


@given(
    case=arrays(dtypes=BOOL + INTS, values=st.integers(0, 120)),
    minlength=st.integers(0, 200),
    ways=st.none() | st.integers(2, 5),
)
def test_all_elements_count(xp: Any, case: Chunked, minlength: int, ways: Any) -> None:
    result = dc.bincount(to_chunks(xp, *case), minlength=minlength, split_every=ways)
    expected = np.bincount(case.array.ravel().astype("i8"), minlength=minlength)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(computed(xp, result), expected)


@given(case=arrays(dtypes=["u1", "i4"], values=st.integers(0, 20)), kind=st.sampled_from(NUMBERS))
def test_weights_are_summed(xp: Any, case: Chunked, kind: str) -> None:
    weights = (np.arange(case.array.size).reshape(case.array.shape) % 2).astype(kind)
    w = to_chunks(xp, weights, tuple((n,) for n in weights.shape))
    result = dc.bincount(to_chunks(xp, *case), weights=w, minlength=3)
    assert result.dtype == ("c16" if kind[0] == "c" else "f8")
    expected = np.bincount(case.array.ravel(), weights.real.ravel().astype("f8"), 3)
    np.testing.assert_array_equal(computed(xp, result), expected)


def test_chunks_of_very_different_integers(xp: Any) -> None:
    array = np.repeat([3, 100_000, 7, 70_000], [40_000, 3, 50_000, 2])
    result = dc.bincount(to_chunks(xp, array, ((40_000, 3, 50_000, 2),)))
    np.testing.assert_array_equal(computed(xp, result), np.bincount(array))


@pytest.mark.parametrize("dtype", ["i8", "u2", "i4", "u8"])
@pytest.mark.parametrize("most", [50_000, 60_000])
def test_few_integers_for_each_entry_of_a_long_table(xp: Any, dtype: str, most: int) -> None:
    """Whether all of them are below the least length, or some are not; and none is negative."""
    array = np.random.default_rng(6).integers(0, most, 150_000).astype(dtype)
    x = to_chunks(xp, array, ((100_000, 50_000),))
    result = computed(xp, dc.bincount(x, minlength=50_000))
    np.testing.assert_array_equal(result, np.bincount(array.astype("i8"), minlength=50_000))
    if dtype[0] == "i":
        array[123_456] = -1
        with pytest.raises(ValueError, match="no negative elements"):
            dc.bincount(to_chunks(xp, array, ((100_000, 50_000),)), minlength=50_000).compute()


@pytest.mark.parametrize(
    ("dtype", "minlength", "length"),
    [
        ("u1", 256, 256),
        ("u1", 255, math.nan),
        ("i1", 128, 128),
        ("?", 2, 2),
        ("?", 1, math.nan),
        ("u2", 70_000, 70_000),
        ("i4", 1000, math.nan),
        ("i8", 0, math.nan),
    ],
)
def test_a_length_is_declared_only_if_it_is_right(dtype: str, minlength: int, length: Any) -> None:
    x = da.ones(4, chunks=2, dtype=dtype)
    np.testing.assert_equal(dc.bincount(x, minlength=minlength).shape, (length,))


def test_a_result_longer_than_minlength_goes_on(xp: Any) -> None:
    x = to_chunks(xp, np.array([0, 9, 9, 1]), 2)
    counts = dc.bincount(x, minlength=4)
    np.testing.assert_array_equal(computed(xp, counts + counts), [2, 2, *[0] * 7, 4])


def test_negative_integers_are_refused_when_they_show(xp: Any) -> None:
    with pytest.raises(ValueError, match="must have no negative elements"):
        dc.bincount(to_chunks(xp, np.array([3, -1, 2]), 2)).compute(scheduler="synchronous")


def test_bad_arguments() -> None:
    x = da.ones(4, chunks=2, dtype="i4")
    with pytest.raises(TypeError, match="bincount takes bool and integers, got dtype float64"):
        dc.bincount(x * 1.0)
    with pytest.raises(ValueError, match="'minlength' must not be negative"):
        dc.bincount(x, minlength=-1)
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        dc.bincount(x, minlength=2.5)
    with pytest.raises(ValueError, match="weights should have the same shape as x"):
        dc.bincount(x, weights=da.ones(3))
    with pytest.raises(ValueError, match="split_every must be at least 2"):
        dc.bincount(x, split_every=1)

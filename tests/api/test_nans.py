"""Reductions that leave NaN out, against NumPy, for any chunking."""

from __future__ import annotations

import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from dask.array.utils import same_keys
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import COMPLEX, FLOATS, NUMBERS, REAL, reducible, scannable

import dask_coop as dc

FOLDS = ["nansum", "nanprod", "nanmean", "nanvar", "nanstd"]
EXTREMA = ["nanmin", "nanmax"]
INDICES = ["nanargmin", "nanargmax"]
ALL = [*FOLDS, *EXTREMA, *INDICES]

split_everys = st.none() | st.integers(2, 20)
keep = st.booleans()
#: Whose sums, and products of a few, no float rounds.
values = st.sampled_from([np.nan, 0, 1, -1, 2, 3])


def wide(array: Any) -> Any:
    return array.astype({"f": "f8", "c": "c16"}.get(array.dtype.kind, array.dtype))


@pytest.mark.parametrize("name", FOLDS)
@given(
    case=reducible(dtypes=FLOATS + COMPLEX, values=values), keepdims=keep, split_every=split_everys
)
def test_folds_are_numpys(xp: Any, name: str, case: Any, keepdims: bool, split_every: Any) -> None:
    (array, chunks), axis = case
    if name == "nanprod":
        # Powers of two are exact.
        array = np.where(np.isnan(array), array, np.sign(array.real)).astype(array.dtype)
    result = getattr(dc, name)(
        to_chunks(xp, array, chunks), axis, keepdims=keepdims, split_every=split_every
    )
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert result.dtype == getattr(np, name)(array, axis, keepdims=keepdims).dtype
        expected = getattr(np, name)(wide(array), axis, keepdims=keepdims).astype(result.dtype)
    eps = np.finfo(result.dtype).eps
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("name", EXTREMA)
@given(case=reducible(dtypes=REAL), keepdims=keep, split_every=split_everys)
def test_extrema_are_numpys(
    xp: Any, name: str, case: Any, keepdims: bool, split_every: Any
) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            expected = getattr(np, name)(array, axis, keepdims=keepdims)
        except ValueError:
            with pytest.raises(ValueError, match=f"zero-size array to reduction operation {name}"):
                getattr(dc, name)(x, axis, keepdims, split_every)
            return
        result = getattr(dc, name)(x, axis, keepdims, split_every)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(to_numpy(xp, result), expected)


@pytest.mark.parametrize("name", INDICES)
@given(
    case=scannable(dtypes=FLOATS, values=st.sampled_from([np.nan, 0, 1, 5])),
    keepdims=keep,
    split_every=split_everys,
)
def test_indices_are_numpys(
    xp: Any, name: str, case: Any, keepdims: bool, split_every: Any
) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    try:
        expected = getattr(np, name)(array, axis, keepdims=keepdims)
    except ValueError as error:
        words = "All-NaN slice" if "NaN" in str(error) else f"attempt to get {name}"
        with pytest.raises(ValueError, match=words):
            getattr(dc, name)(x, axis, keepdims, split_every).compute(scheduler="synchronous")
        return
    result = getattr(dc, name)(x, axis, keepdims, split_every)
    assert result.dtype == "i8"
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["?", "i2", "u8"])
def test_integers_take_the_plain_way(xp: Any, name: str, dtype: str) -> None:
    array = np.array([[3, 1, 4], [1, 5, 0]]).astype(dtype)
    x = to_chunks(xp, array, 2)
    for axis in (None, 0, 1):
        result, plain = getattr(dc, name)(x, axis), getattr(dc, name.removeprefix("nan"))(x, axis)
        assert result.dtype == plain.dtype
        np.testing.assert_array_equal(to_numpy(xp, result), to_numpy(xp, plain))


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities_are_elements_and_nan_is_none(xp: Any, dtype: str, infinity: float) -> None:
    array = np.array([np.nan, np.nan, infinity, np.nan, infinity], dtype)
    for size in (1, 2, 5):
        x = to_chunks(xp, array, size)
        for name in EXTREMA:
            assert to_numpy(xp, getattr(dc, name)(x)) == infinity
        for name in INDICES:
            assert to_numpy(xp, getattr(dc, name)(x)) == 2


@pytest.mark.parametrize("name", EXTREMA)
def test_nothing_but_nan_has_no_extremum_and_says_so(name: str) -> None:
    array = np.array([[np.nan, np.nan, np.nan], [1, np.nan, 2]])
    for chunks in (1, 2, 3):
        lazy = getattr(dc, name)(da.from_array(array, chunks=chunks), axis=1)
        with pytest.warns(RuntimeWarning, match="All-NaN slice encountered"):
            result = lazy.compute(scheduler="synchronous")
        np.testing.assert_array_equal(result, [np.nan, 1 if name == "nanmin" else 2])


@pytest.mark.parametrize("name", INDICES)
def test_nothing_but_nan_has_no_index(xp: Any, name: str) -> None:
    array = np.full((4, 5), np.nan, "f4")
    array[1, :] = 1
    for chunks in (1, 3, 5):
        x = to_chunks(xp, array, chunks)
        assert to_numpy(xp, getattr(dc, name)(x)) == 5
        with pytest.raises(ValueError, match="All-NaN slice encountered"):
            getattr(dc, name)(x, axis=1).compute(scheduler="synchronous")


def test_the_mean_and_spread_of_nothing_is_nan_without_a_warning(xp: Any) -> None:
    x = to_chunks(xp, np.full((4, 3), np.nan, "f4"), (1, 2))
    for name in ("nanmean", "nanvar", "nanstd"):
        assert np.isnan(to_numpy(xp, getattr(dc, name)(x, axis=0))).all()
    one = to_chunks(xp, np.array([np.nan, 2]), 1)
    assert np.isnan(to_numpy(xp, dc.nanvar(one, ddof=1)))
    assert to_numpy(xp, dc.nansum(x)) == 0
    assert to_numpy(xp, dc.nanprod(x)) == 1


def test_complex_numbers_are_nan_where_a_part_is(xp: Any) -> None:
    array = np.array([1 + 2j, complex(np.nan, 1), complex(1, np.nan), 3], "c8")
    x = to_chunks(xp, array, 3)
    assert to_numpy(xp, dc.nansum(x)) == 4 + 2j
    assert to_numpy(xp, dc.nanmean(x)) == 2 + 1j
    assert to_numpy(xp, dc.nanvar(x)) == 2


@pytest.mark.parametrize("output", ["i4", "u1", "f2", "f8", "c16"])
def test_nan_goes_before_elements_are_converted(xp: Any, output: str) -> None:
    array = np.array([np.nan, 1.75, 2, np.nan, 3], "f4")
    x = to_chunks(xp, array, 2)
    for name in ("nansum", "nanprod"):
        result = getattr(dc, name)(x, dtype=output)
        assert result.dtype == output
        assert to_numpy(xp, result) == getattr(np, name)(array, dtype=output)


def test_float32_is_summed_in_float64(xp: Any) -> None:
    array = np.tile(np.array([2.0**24, 1.0, np.nan], "f4"), 500)
    x = to_chunks(xp, array, 300)
    assert to_numpy(xp, dc.nansum(x)) == np.float32(500 * (2.0**24 + 1))
    assert to_numpy(xp, dc.nanmean(x)) == np.float32((2.0**24 + 1) / 2)


@pytest.mark.parametrize("name", ALL)
def test_graphs_are_lazy_and_their_keys_are_their_own(name: str) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("computed while building")

    x = da.from_array(np.ones((4, 4)), chunks=2)
    function = getattr(dc, name)
    with dask.config.set(scheduler=refuse):
        lazy = x.map_blocks(refuse, dtype="f8", meta=np.empty((0, 0)))
        assert same_keys(function(lazy, axis=0), function(lazy, axis=0))
        assert function(x).name != getattr(dc, name.removeprefix("nan"))(x).name


@pytest.mark.parametrize("name", NUMBERS)
def test_out_takes_the_result(xp: Any, name: str) -> None:
    x = to_chunks(xp, np.ones((4, 3), name), 2)
    out = to_chunks(xp, np.zeros(3, np.ones(1, name).sum().dtype), 2)
    assert dc.nansum(x, axis=0, out=out) is out
    np.testing.assert_array_equal(to_numpy(xp, out), np.nansum(np.ones((4, 3), name), axis=0))


@pytest.mark.parametrize("name", [*FOLDS, *EXTREMA])
def test_axes_of_no_length_and_lists_of_axes_are_taken(xp: Any, name: str) -> None:
    array = np.array([[1, 2.5], [4, -1]])
    x, function = to_chunks(xp, array, 1), getattr(dc, name)
    for axis in ((), (0, -1)):
        expected = getattr(np, name)(array, axis=axis)
        np.testing.assert_allclose(to_numpy(xp, function(x, axis=axis)), expected)
    assert function(x, axis=[0, 1]).name == function(x, axis=(0, 1)).name

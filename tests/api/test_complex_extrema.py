"""Extrema of complex numbers against NumPy: in lexicographic order, the first NaN before all."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import COMPLEX, FEWER, Chunked, arrays, reducible, scannable

import dask_coop as dc

VALUES = ["min", "max", "nanmin", "nanmax"]
INDICES = ["argmin", "argmax", "nanargmin", "nanargmax"]
NAMES = [*VALUES, *INDICES, "ptp"]

split_everys = st.none() | st.integers(2, 20)
keep = st.booleans()

# So few that many elements are equal, in one part or in both.
FINITE = [0.0, -0.0, 1.0, -1.0, 2.0]
parts = st.sampled_from([*FINITE, np.inf, -np.inf, np.nan])
numbers = st.builds(complex, parts, parts)
finite = st.builds(complex, st.sampled_from(FINITE), st.sampled_from(FINITE))
# NumPy's nanargmax takes NaN for minus infinity, and finds it where there is nothing else.
bounded = finite | st.sampled_from([complex(np.nan, 1), complex(2, np.nan)])


def by_numpy(name: str, array: Any, *args: Any, **kwargs: Any) -> Any:
    """Return NumPy's result, or its error."""
    # Axes are taken in the order in which they lie in memory.
    array = np.array(array, order="C")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return np.asarray(getattr(np, name)(array, *args, **kwargs))
        except ValueError as error:
            return error


def by_us(xp: Any, name: str, x: da.Array, *args: Any, **kwargs: Any) -> Any:
    """Return our result, or our error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return np.asarray(to_numpy(xp, getattr(dc, name)(x, *args, **kwargs)))
        except ValueError as error:
            return error


def assert_same(name: str, found: Any, expected: Any) -> None:
    """Hold results to NumPy's: equal values, and of several NaN the very same."""
    if isinstance(expected, ValueError):
        assert isinstance(found, ValueError), found
        return
    assert not isinstance(found, ValueError), found
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    if name in ("min", "max"):
        nan = np.isnan(expected)
        np.testing.assert_array_equal(found.real[nan], expected.real[nan])
        np.testing.assert_array_equal(found.imag[nan], expected.imag[nan])


@pytest.mark.parametrize("name", NAMES)
@FEWER
@given(data=st.data(), keepdims=keep, split_every=split_everys)
def test_extrema_are_numpys(
    xp: Any, name: str, data: Any, keepdims: bool, split_every: Any
) -> None:
    if name in INDICES:
        values = bounded if name.startswith("nan") else numbers
        (array, chunks), axis = data.draw(scannable(dtypes=COMPLEX, values=values))
    else:
        (array, chunks), axis = data.draw(reducible(dtypes=COMPLEX, values=numbers))
    found = by_us(xp, name, to_chunks(xp, array, chunks), axis, keepdims, split_every)
    assert_same(name, found, by_numpy(name, array, axis, keepdims=keepdims))


@pytest.mark.parametrize("name", VALUES)
@given(
    case=reducible(dtypes=COMPLEX, values=numbers),
    initial=numbers | st.integers(-1, 1),
    share=st.sampled_from([None, 0, 0.5, 1]),
)
def test_masks_and_initial_values_are_numpys(
    xp: Any, name: str, case: Any, initial: Any, share: Any
) -> None:
    (array, chunks), axis = case
    kwargs: dict[str, Any] = {"initial": initial}
    ours = dict(kwargs)
    if share is not None:
        kwargs["where"] = np.random.default_rng(0).random(array.shape) < share
        ours["where"] = to_chunks(xp, kwargs["where"], chunks)
    found = by_us(xp, name, to_chunks(xp, array, chunks), axis, **ours)
    assert_same(name, found, by_numpy(name, array, axis, **kwargs))


@pytest.mark.parametrize("name", [*VALUES, *INDICES])
def test_infinities_are_elements_and_not_the_lack_of_one(xp: Any, name: str) -> None:
    for value in (complex(np.inf, np.inf), complex(-np.inf, -np.inf)):
        array = np.array([complex(0, np.nan), value, value])
        array = array if name.startswith("nan") else array[1:]
        found = by_us(xp, name, to_chunks(xp, array, 1))
        place = int(name.startswith("nan"))
        assert found == (place if name in INDICES else value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["f4", "c8", "i4"])
def test_arrays_that_are_empty_along_other_axes_keep_their_shape(
    xp: Any, name: str, dtype: str
) -> None:
    x = to_chunks(xp, np.empty((3, 3, 0), dtype), ((1, 2), (1, 2), (0,)))
    for axis, keepdims in ((1, False), (0, True), (-2, True)):
        shape = to_numpy(xp, getattr(dc, name)(x, axis, keepdims)).shape
        assert shape == by_numpy(name, np.empty((3, 3, 0)), axis, keepdims=keepdims).shape
    for axis in (2, None):
        with pytest.raises(ValueError, match=r"shape \(3, 3, 0\), axes"):
            getattr(dc, name)(x, axis)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", COMPLEX)
def test_results_of_many_lines_are_those_of_each(xp: Any, name: str, dtype: str) -> None:
    # As many lines as leave their states on a GPU.
    rng = np.random.default_rng(5)
    array = rng.choice([*FINITE, 3.0, 4.0], (9, 30_000, 2)).astype("f8").view("c16").astype(dtype)
    array = array.reshape(9, 30_000)
    array[rng.integers(9, size=9000), rng.integers(30_000, size=9000)] = complex(np.nan, 1)
    array[rng.integers(9, size=9000), rng.integers(30_000, size=9000)] = complex(2, np.nan)
    for chunks in ((9, 30_000), (2, 30_000), (4, 17_000)):
        x = to_chunks(xp, array, chunks)
        assert_same(name, by_us(xp, name, x, 0), by_numpy(name, array, 0))
        if name in VALUES:
            where = array.real > 0
            kwargs = {"initial": 1 - 1j, "where": to_chunks(xp, where, chunks)}
            expected = by_numpy(name, array, 0, initial=1 - 1j, where=where)
            assert_same(name, by_us(xp, name, x, 0, **kwargs), expected)


@pytest.mark.parametrize("name", ["min", "max", "argmin", "argmax"])
@pytest.mark.parametrize("shape", [(70_001,), (33, 4099), (5, 7000, 3)])
def test_the_first_of_equals_is_found_however_the_kernels_share_the_work(
    xp: Any, name: str, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(8)
    array = rng.integers(0, 3, (*shape, 2)).astype("f8").view("c16")[..., 0]
    flat = array.reshape(-1)
    for nans in (0, 40):
        where = rng.integers(flat.size, size=nans)
        flat[where] = [complex(np.nan, i) if i % 2 else complex(i, np.nan) for i in range(nans)]
        for chunks in (-1, tuple(-(-n // 2) for n in shape)):
            x = to_chunks(xp, array, chunks)
            axes = (None, *range(len(shape)))
            extra = ((0, 1), (0, 2), (1, 2)) if len(shape) == 3 and name in VALUES else ()
            for axis in (*axes, *extra):
                assert_same(name, by_us(xp, name, x, axis), by_numpy(name, array, axis))


@pytest.mark.parametrize("name", [*VALUES, "ptp"])
@FEWER
@given(case=arrays(dtypes=COMPLEX, values=numbers, shape=st.tuples(st.integers(1, 40))))
def test_values_behind_unknown_sizes_are_numpys_or_refused(name: str, case: Chunked) -> None:
    x = da.from_array(case.array, chunks=4)
    kept = case.array[case.array.real != 1]
    expected = by_numpy(name, kept)
    if name.startswith("nan") and not kept.size:
        expected = np.asarray(case.array.dtype.type(np.nan))
    assert_same(name, by_us(np, name, x[x.real != 1]), expected)


@pytest.mark.parametrize("name", ["min", "max"])
def test_the_first_nan_behind_unknown_sizes_is_numpys(name: str) -> None:
    array = np.arange(60.0).reshape(10, 6) * (1 + 1j)
    array[7, 1], array[7, 4], array[8, 0] = (complex(np.nan, i) for i in range(3))
    x = da.from_array(array, chunks=(2, 2))
    rows = x.real.sum(axis=1).compute() != 0
    mask = da.from_array(rows, chunks=2)
    for axis in (None, 0, (1, 0)):
        found = by_us(np, name, x[mask], axis)
        assert_same(name, found, by_numpy(name, array[rows], axis))


def test_nothing_but_nan_is_warned_of(xp: Any) -> None:
    x = to_chunks(xp, np.array([complex(0, np.nan), complex(np.nan, 0)]), 1)
    for name in ("nanargmin", "nanargmax"):
        with pytest.raises(ValueError, match="All-NaN slice encountered"):
            to_numpy(xp, getattr(dc, name)(x))
    for name in ("nanmin", "nanmax"):
        with pytest.warns(RuntimeWarning, match="All-NaN slice encountered"):
            assert np.isnan(to_numpy(xp, getattr(dc, name)(x)))

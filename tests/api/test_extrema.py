"""ptp, argmin and argmax against NumPy, and extrema behind chunks of unknown sizes."""

from __future__ import annotations

import operator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from dask.task_spec import Task
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import FLOATS, INTS, REAL, Chunked, arrays, reducible, scannable

import dask_coop as dc
from dask_coop.algebra.monoids import MINMAX
from dask_coop.algebra.operation import Operation

split_everys = st.none() | st.integers(2, 20)
keep = st.booleans()
by_name = pytest.mark.parametrize("name", ["argmin", "argmax"])


@by_name
@given(case=scannable(dtypes=REAL), keepdims=keep, split_every=split_everys)
def test_indices_are_numpys(
    xp: Any, name: str, case: Any, keepdims: bool, split_every: Any
) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    try:
        expected = getattr(np, name)(array, axis, keepdims=keepdims)
    except ValueError:
        with pytest.raises(ValueError, match=f"attempt to get {name} of an empty sequence"):
            getattr(dc, name)(x, axis, keepdims, split_every)
        return
    result = getattr(dc, name)(x, axis, keepdims, split_every)
    assert result.dtype == "i8"
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


@by_name
@given(
    case=scannable(dtypes=["i1", "f4", "?"], values=st.sampled_from([0, 1])),
    split_every=split_everys,
)
def test_the_first_of_many_ties_wins(xp: Any, name: str, case: Any, split_every: Any) -> None:
    (array, chunks), axis = case
    if array.size:
        result = getattr(dc, name)(to_chunks(xp, array, chunks), axis, split_every=split_every)
        np.testing.assert_array_equal(to_numpy(xp, result), getattr(np, name)(array, axis))


@by_name
def test_ties_in_other_chunks_are_told_apart_by_the_order_of_elements(xp: Any, name: str) -> None:
    # In the order of chunks the tie at [1, 0] comes first, in that of elements the one at [0, 2].
    array = np.zeros((2, 4), "f4")
    array[0, 2] = array[1, 0] = 5 if name == "argmax" else -5
    assert to_numpy(xp, getattr(dc, name)(to_chunks(xp, array, (2, 2)))) == 2


@by_name
def test_the_first_nan_wins_over_infinities(xp: Any, name: str) -> None:
    array = np.array([0, -np.inf, np.inf, np.nan, 7, np.nan], "f4")
    for size in (1, 2, 6):
        assert to_numpy(xp, getattr(dc, name)(to_chunks(xp, array, size))) == 3


@by_name
@pytest.mark.parametrize("dtype", REAL)
def test_the_worst_value_of_a_dtype_has_a_place_too(xp: Any, name: str, dtype: str) -> None:
    op = np.finfo(dtype) if dtype in FLOATS else np.iinfo(dtype) if dtype in INTS else None
    worst = (op.max if name == "argmin" else op.min) if op else name == "argmin"
    worst = (np.inf if name == "argmin" else -np.inf) if dtype in FLOATS else worst
    x = to_chunks(xp, np.full((5, 70), worst, dtype), (2, 30))
    assert to_numpy(xp, getattr(dc, name)(x)) == 0
    np.testing.assert_array_equal(to_numpy(xp, getattr(dc, name)(x, 1)), np.zeros(5))


@by_name
def test_the_axis_of_an_index_is_one_or_all(name: str) -> None:
    for axis in ((0, 1), (0,), "rows", 1.0):
        with pytest.raises(TypeError, match=f"{name} looks along one axis"):
            getattr(dc, name)(da.ones((3, 4)), axis)
    assert getattr(dc, name)(da.ones((3, 4)), np.int64(1)).shape == (3,)


@by_name
def test_no_element_has_no_index_and_says_where(name: str) -> None:
    with pytest.raises(ValueError, match=r"empty sequence: shape \(3, 0\), axes \(1,\)"):
        getattr(dc, name)(da.ones((3, 0)), axis=1)
    assert getattr(dc, name)(da.ones((3, 0)), axis=0).compute().shape == (0,)


@given(case=reducible(dtypes=INTS + FLOATS), keepdims=keep, split_every=split_everys)
def test_ranges_are_numpys(xp: Any, case: Any, keepdims: bool, split_every: Any) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    try:
        with np.errstate(all="ignore"):
            expected = np.ptp(array, axis, keepdims=keepdims)
    except ValueError:
        with pytest.raises(ValueError, match="zero-size array to reduction operation ptp"):
            dc.ptp(x, axis, keepdims, split_every)
        return
    result = dc.ptp(x, axis, keepdims, split_every)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


def test_truths_have_no_range() -> None:
    with pytest.raises(TypeError, match="ptp does not take dtype bool"):
        dc.ptp(da.ones(3, dtype=bool))


def some(x: da.Array, threshold: Any) -> da.Array:
    """Return the elements above `threshold`, in chunks whose sizes nobody knows."""
    return x[x > threshold]


EXTREMA = ["min", "max", "ptp"]


@pytest.mark.parametrize("name", EXTREMA)
@given(case=arrays(dtypes=["i2", "u1", "f4", "f8"], shape=st.tuples(st.integers(1, 40))))
def test_extrema_behind_unknown_sizes_are_numpys_or_refused(name: str, case: Chunked) -> None:
    lazy = getattr(dc, name)(some(da.from_array(case.array, chunks=4), 1))
    kept = case.array[case.array > 1]
    with np.errstate(all="ignore"):
        if kept.size:
            np.testing.assert_array_equal(to_numpy(np, lazy), getattr(np, name)(kept))
        else:
            with pytest.raises(ValueError, match=f"zero-size array to reduction operation {name}"):
                lazy.compute(scheduler="synchronous")


@pytest.mark.parametrize("name", EXTREMA)
def test_nan_behind_unknown_sizes_is_no_lack_of_elements(name: str) -> None:
    x = da.from_array(np.array([np.nan, 1, -1, np.inf], "f4"), chunks=1)
    assert np.isnan(to_numpy(np, getattr(dc, name)(x[~(x < 0)])))


@pytest.mark.parametrize("name", ["min", "max"])
def test_extrema_behind_unknown_sizes_carry_no_more_than_both(name: str) -> None:
    lazy = getattr(dc, name)(some(da.arange(9, chunks=2), 1))
    operations = {
        argument.monoid.name
        for task in dict(lazy.dask).values()
        if isinstance(task, Task)
        for argument in (*task.args, *task.kwargs.values())
        if isinstance(argument, Operation)
    }
    assert operations == {MINMAX.name}


@pytest.mark.parametrize("dtype", ["i4", "f4"])
def test_describe_behind_unknown_sizes_knows_no_extremum_of_no_integer(dtype: str) -> None:
    x = da.from_array(np.arange(6).astype(dtype), chunks=2)
    nothing, all_of_it = dc.describe(some(x, 9)), dc.describe(some(x, -1))
    assert (to_numpy(np, all_of_it.min), to_numpy(np, all_of_it.max)) == (0, 5)
    assert to_numpy(np, nothing.count) == to_numpy(np, nothing.sum) == 0
    assert np.isnan(to_numpy(np, nothing.mean))
    for lazy in (nothing.min, nothing.max):
        if dtype == "f4":
            assert np.isnan(to_numpy(np, lazy))
        else:
            with pytest.raises(ValueError, match="reduction operation describe which has no ident"):
                lazy.compute(scheduler="synchronous")


@by_name
def test_indices_need_the_sizes_that_they_depend_on(name: str) -> None:
    x = da.from_array(np.arange(12.0).reshape(3, 4), chunks=(2, 2))
    unknown = x[x[:, 0] >= 0]
    for axis in (0, None):
        with pytest.raises(ValueError, match=r"x\.compute_chunk_sizes\(\) finds them"):
            getattr(dc, name)(unknown, axis)
    # Along another axis, or in one chunk, they are known well enough.
    expected = getattr(np, name)(x.compute(), 1)
    np.testing.assert_array_equal(getattr(dc, name)(unknown, 1).compute(), expected)
    line = da.from_array(np.array([3, 1, 2]), chunks=3)
    assert getattr(dc, name)(line[line > 1]).compute() == getattr(np, name)([3, 2])
    nothing = getattr(dc, name)(line[line > 9])
    with pytest.raises(ValueError, match="empty sequence"):
        nothing.compute(scheduler="synchronous")


def test_a_zero_dimensional_array_is_its_own_extremum(xp: Any) -> None:
    x = to_chunks(xp, np.array(4, "i2"), ())
    assert [to_numpy(xp, f(x)) for f in (dc.argmin, dc.argmax, dc.ptp)] == [0, 0, 0]


@by_name
def test_out_takes_indices(xp: Any, name: str) -> None:
    array = np.array([[3, 1], [2, 9]])
    x = to_chunks(xp, array, 1)
    out = to_chunks(xp, np.zeros(2, "i8"), 1)
    assert getattr(dc, name)(x, axis=0, out=out) is out
    np.testing.assert_array_equal(to_numpy(xp, out), getattr(np, name)(array, axis=0))


def test_indices_of_many_lines_are_those_of_each(xp: Any) -> None:
    # As many lines as a state leaves on the GPU, of which each has its extremum elsewhere.
    array = np.random.default_rng(3).permuted(np.tile(np.arange(11), (6000, 1)), axis=1)
    for axis, chunks in ((1, (6000, 4)), (0, (1000, 11)), (1, (7, 3))):
        x = to_chunks(xp, array.astype("f4"), chunks)
        for find in (operator.attrgetter("argmin"), operator.attrgetter("argmax")):
            np.testing.assert_array_equal(to_numpy(xp, find(dc)(x, axis)), find(np)(array, axis))


#: Zeros, what is nearer to zero than normal numbers are, and others.
_SMALL = np.array([0, -0.0, 1e-45, -1e-45, 3e-45, -3e-45, 1e-38, -1e-38, np.nan, -np.nan], "f4")
_EXTREMA = ["max", "min", "nanmax", "nanmin", "argmax", "argmin", "nanargmax", "nanargmin"]
_EXTREMA += ["cummax", "cummin", "describe"]
_COMPLEX = [("max", "c8"), ("min", "c8")]


@pytest.mark.parametrize(("name", "dtype"), [*((name, "f4") for name in _EXTREMA), *_COMPLEX])
def test_subnormal_numbers_differ_from_zero(xp: Any, name: str, dtype: str) -> None:
    """Also in states of so many lines that they stay on a GPU."""
    rng = np.random.default_rng(4)
    array = rng.choice(_SMALL, (4, 70_000)).astype(dtype)
    if dtype == "c8":
        array.imag = rng.choice(_SMALL[:-2], array.shape)
    array[:, np.isnan(array).all(0)] = 0
    x = to_chunks(xp, array, ((1, 1, 2), -1))
    if name == "describe":
        low, high = dc.describe(x, axis=0)[2:4]
        np.testing.assert_array_equal(to_numpy(xp, low), np.fmin.reduce(array))
        np.testing.assert_array_equal(to_numpy(xp, high), np.fmax.reduce(array))
        return
    accumulate = {"cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate}
    with np.errstate(invalid="ignore"):
        expected = accumulate.get(name, getattr(np, name, None))(array, axis=0)
    result = np.asarray(to_numpy(xp, getattr(dc, name)(x, axis=0)))
    np.testing.assert_array_equal(result.real, expected.real)
    np.testing.assert_array_equal(result.imag, expected.imag)

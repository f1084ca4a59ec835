"""Masked arrays: what is masked is left out, by the rules of numpy.ma, for any chunking."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import fused_for_few
from dask.multiprocessing import get_context, initialize_worker_process
from hypothesis import assume, given
from hypothesis import strategies as st
from support.calls import refuse
from support.strategies import (
    FEWER,
    FLOATS,
    INTS,
    REAL,
    Chunked,
    arrays,
    axes,
    scan_options,
    shapes,
)

import dask_coop as dc
from dask_coop.algebra.monoids import MAX, SUM

RNG = np.random.default_rng(0)

#: Whose sums and squares no dtype has to round.
values = st.sampled_from([0, 1, 2, 3])
with_nan = st.sampled_from([0, 1, 2, np.nan])


@st.composite
def masked(draw: st.DrawFn, **kwargs: Any) -> tuple[Chunked, da.Array]:
    """A masked array with chunks, of which some may be plain, and its Dask array."""
    case = draw(arrays(**kwargs))
    spread = np.random.default_rng(draw(st.integers(0, 99)))
    mask = spread.random(case.array.shape) < draw(st.sampled_from([0, 0.3, 0.9, 1]))
    data = case.array.copy()
    # What is masked may be anything.
    rubbish = [np.nan, np.inf, -7] if data.dtype.kind in "fc" else [1, 100]
    data[mask] = np.array(rubbish).astype(data.dtype)[
        spread.integers(len(rubbish), size=mask.sum())
    ]
    array = np.ma.array(data, mask=mask)
    x = da.from_array(array, chunks=case.chunks)
    if not array.ndim:
        # Of which Dask thinks that it is plain.
        x = da.Array(x.dask, x.name, (), meta=np.ma.masked_all((), x.dtype))
    if draw(st.booleans()):
        x = x.map_blocks(bare, dtype=x.dtype, meta=x._meta)
    return Chunked(array, case.chunks), x


def bare(block: Any) -> Any:
    """Return a block as a plain array if nothing of it is masked."""
    return block if np.ma.getmaskarray(block).any() else np.ma.getdata(block)


def compute(lazy: da.Array, kind: type = np.ma.MaskedArray) -> Any:
    """Compute `lazy`, and hold it to what it promised."""
    assert type(lazy._meta) is kind
    with np.errstate(all="ignore"), fused_for_few():
        result = lazy.compute(scheduler="synchronous")
    pairs = zip(np.shape(result), lazy.shape, strict=True)
    assert all(n == size or size != size for n, size in pairs)
    if result is not np.ma.masked:
        assert result.dtype == lazy.dtype
        assert lazy.ndim == 0 or type(result) is kind
    return result


def same(got: Any, expected: Any, eps: float = 0) -> None:
    """Hold a result to its reference: the same mask, and the same values where there is none."""
    mask = np.ma.getmaskarray(expected)
    np.testing.assert_array_equal(np.ma.getmaskarray(got), mask)
    np.testing.assert_allclose(
        np.ma.getdata(got)[~mask], np.ma.getdata(expected)[~mask], rtol=eps, atol=eps
    )


def wide(array: Any) -> Any:
    """Return floats in the dtype that we add them up in, in which NumPy's rounding is no matter."""
    if array.dtype.kind != "f":
        return array
    return np.ma.array(array.data.astype("f8"), mask=array.mask)


def tidy(array: Any) -> Any:
    """Return an array in float64, with zeros under the mask."""
    return np.ma.array(np.where(array.mask, 0, array.data).astype("f8"), mask=array.mask)


def epsilon(dtype: Any) -> float:
    return 8 * float(np.finfo(dtype).eps) if np.dtype(dtype).kind in "fc" else 0


def by_lines(function: Any, array: Any, axis: int | None, dtype: Any) -> Any:
    """Call `function` with the elements of each line that are not masked."""
    lines = array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, -1)
    result = np.ma.masked_all(lines.shape[:-1], dtype)
    for index in np.ndindex(*lines.shape[:-1]):
        if len(left := lines[index].compressed()):
            result[index] = function(left)
    return result[0] if axis is None else result


@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "mean"])
@FEWER
@given(case=masked(dtypes=REAL, values=values), data=st.data(), keepdims=st.booleans())
def test_sums_truths_and_means_are_those_of_numpy_ma(
    name: str, case: Any, data: Any, keepdims: bool
) -> None:
    (array, _), x = case
    axis = data.draw(axes(array.ndim))
    if name == "prod" and array.size > 30:
        return
    split_every = data.draw(st.sampled_from([None, 2]))
    lazy = getattr(dc, name)(x, axis, keepdims=keepdims, split_every=split_every)
    expected = getattr(np.ma, name)(wide(array), axis, keepdims=keepdims)
    plain = getattr(np, name)(np.ones(2, array.dtype))
    assert lazy.dtype == plain.dtype
    same(compute(lazy), expected, epsilon(lazy.dtype))


@pytest.mark.parametrize("name", ["min", "max", "ptp"])
@given(
    case=masked(dtypes=[*INTS, *FLOATS]),
    data=st.data(),
)
def test_extrema_are_those_of_numpy_ma(name: str, case: Any, data: Any) -> None:
    (array, _), x = case
    axis = data.draw(axes(array.ndim))
    every = tuple(range(array.ndim)) if axis is None else np.atleast_1d(axis).astype(int)
    if any(array.shape[d] == 0 for d in every):
        with pytest.raises(ValueError, match="zero-size array"):
            getattr(dc, name)(x, axis)
        return
    with np.errstate(all="ignore"):
        expected = getattr(np.ma, name)(array, axis)
    lazy = getattr(dc, name)(x, axis)
    assert lazy.dtype == array.dtype
    same(compute(lazy), expected)


@pytest.mark.parametrize("name", ["min", "max", "nanmin", "nanmax", "ptp"])
@FEWER
@given(case=masked(dtypes=["c8", "c16"], values=with_nan, shape=shapes(1)), data=st.data())
def test_extrema_of_complex_numbers_are_those_of_what_is_left(
    name: str, case: Any, data: Any
) -> None:
    (array, _), x = case
    axis = data.draw(st.none() | st.integers(0, array.ndim - 1))
    if array.size == 0:
        return
    array.data.imag[::2] = 1
    x = da.from_array(array, chunks=x.chunks)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = by_lines(getattr(np, name), array, axis, array.dtype)
        same(compute(getattr(dc, name)(x, axis)), expected)


@pytest.mark.parametrize("name", ["argmin", "argmax"])
@given(case=masked(dtypes=REAL), data=st.data())
def test_indices_of_extrema_are_those_of_numpy_ma(name: str, case: Any, data: Any) -> None:
    (array, _), x = case
    axis = data.draw(st.none() | st.integers(0, array.ndim - 1) if array.ndim else st.none())
    if array.size == 0:
        return
    got = compute(getattr(dc, name)(x, axis), np.ndarray)
    np.testing.assert_array_equal(got, getattr(np.ma, name)(array, axis))


@pytest.mark.parametrize("name", ["var", "std"])
@given(
    case=masked(dtypes=REAL, values=values, shape=shapes(1)),
    data=st.data(),
    ddof=st.sampled_from([0, 1, 2]),
)
def test_spreads_are_those_of_numpy_ma(name: str, case: Any, data: Any, ddof: int) -> None:
    (array, _), x = case
    axis = data.draw(axes(array.ndim))
    # NumPy's variance of all elements is negative with fewer of them than `ddof`, and not masked.
    assume(axis is not None or array.count() >= ddof)
    lazy = getattr(dc, name)(x, axis, ddof=ddof)
    expected = getattr(np.ma, name)(tidy(array), axis, ddof=ddof)
    same(compute(lazy), expected, 1e-7 * name.endswith("std") + 8 * epsilon(lazy.dtype))


@given(case=masked(dtypes=REAL, values=values), data=st.data())
def test_what_numpy_ma_has_not_is_that_of_what_is_left(case: Any, data: Any) -> None:
    (array, _), x = case
    axis = data.draw(st.none() | st.integers(0, array.ndim - 1) if array.ndim else st.none())
    f8 = wide(array)

    def third(left: Any) -> Any:
        left = left.astype("f8")
        return ((left - left.mean()) ** 3).mean()

    eps = 20 * epsilon(dc.moment(x, 3, axis).dtype)
    same(compute(dc.count_nonzero(x, axis)), by_lines(np.count_nonzero, f8, axis, "i8"))
    same(compute(dc.moment(x, 3, axis)), by_lines(third, f8, axis, "f8"), eps)
    same(compute(dc.moment(x, 1, axis)), by_lines(lambda left: 0, f8, axis, "f8"))
    if axis is not None or array.ndim == 1:
        for order in (None, 0, 1, 3, np.inf):
            lazy = dc.norm(x, order, axis)
            expected = by_lines(
                lambda left, o=order: np.linalg.norm(left.astype("f8"), o), f8, axis, "f8"
            )
            if array.size:
                same(compute(lazy), expected, epsilon(lazy.dtype))


@given(case=masked(dtypes=["i4", "f4", "f8"], values=values), data=st.data())
def test_descriptions_are_of_what_is_left(case: Any, data: Any) -> None:
    (array, _), x = case
    axis = data.draw(st.none() | st.integers(0, array.ndim - 1) if array.ndim else st.none())
    if array.size == 0:
        return
    found = dc.describe(x, axis)
    np.testing.assert_array_equal(compute(found.count, np.ndarray), np.ma.count(array, axis))
    assert not np.any(compute(found.nans, np.ndarray))
    for name in ("min", "max", "sum", "mean", "var", "std"):
        lazy = getattr(found, name)
        expected = getattr(np.ma, name)(tidy(array), axis)
        same(compute(lazy), expected, 1e-7 * name.endswith("std") + 8 * epsilon(lazy.dtype))


NAN = {
    "nansum": np.nansum,
    "nanprod": np.nanprod,
    "nanmin": np.nanmin,
    "nanmax": np.nanmax,
    "nanmean": np.nanmean,
    "nanvar": np.nanvar,
    "nanstd": np.nanstd,
}


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning", "ignore:Mean of:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("name", NAN)
@FEWER
@given(case=masked(dtypes=FLOATS, values=with_nan), data=st.data())
def test_nan_is_left_out_beside_what_is_masked(name: str, case: Any, data: Any) -> None:
    (array, _), x = case
    axis = data.draw(st.none() | st.integers(0, array.ndim - 1) if array.ndim else st.none())
    if array.size == 0 or (name == "nanprod" and array.size > 30):
        return
    got = compute(getattr(dc, name)(x, axis))
    expected = by_lines(NAN[name], wide(array), axis, "f8")
    if name in ("nanvar", "nanstd"):
        # Without a degree of freedom it is masked.
        expected = np.ma.masked_where(np.isnan(np.ma.filled(expected, np.nan)), expected)
    same(got, expected, 1e-7 * name.endswith("std") + 8 * epsilon(array.dtype))


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
@pytest.mark.parametrize("name", ["min", "max", "ptp", "nanmin", "nanmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("share", [0.4, 1])
def test_extrema_of_complex_numbers_are_of_what_is_left(name: str, axis: Any, share: float) -> None:
    array = np.ma.array(RNG.integers(-3, 3, (5, 6)) + 1j * RNG.integers(-3, 3, (5, 6)))
    array[RNG.random((5, 6)) < share] = np.ma.masked
    array[2], array[:, 2] = np.ma.masked, np.ma.masked
    if name.startswith("nan"):
        # Of a line of nothing but NaN something is left.
        array[3], array[3, 4] = np.nan, np.ma.masked
    x = da.from_array(array, chunks=(2, 3))
    line = None if axis == (0, 1) else axis
    with np.errstate(all="ignore"):
        expected = by_lines(getattr(np, name), array, line, "c16")
        same(compute(getattr(dc, name)(x, axis)), expected)


def test_indices_leave_nan_out_beside_what_is_masked() -> None:
    nan = np.nan
    array = np.ma.array([[1, nan, 0, 2], [9, 9, 9, 9], [nan, 5, 4, 9]], mask=False)
    array[0, 2] = array[1] = array[2, 3] = np.ma.masked
    x = da.from_array(array, chunks=(2, 2))
    assert compute(dc.nanargmin(x, 1), np.ndarray).tolist() == [0, 0, 2]
    assert compute(dc.nanargmax(x, 1), np.ndarray).tolist() == [3, 0, 1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["nanmin", "nanmax", "min", "mean", "var", "ptp", "norm"])
def test_nobody_is_warned_of_what_is_masked(name: str) -> None:
    array = np.ma.array([[np.nan, np.inf], [1, 2]], mask=[[1, 1], [0, 0]])
    x = da.from_array(array, chunks=(1, 2))
    got = getattr(dc, name)(x, axis=1).compute(scheduler="synchronous")
    assert got.mask.tolist() == [True, False]


@given(
    case=masked(dtypes=["i4", "f4"], values=values, shape=st.just((13, 7))),
    seed=st.integers(0, 9),
    name=st.sampled_from(["sum", "prod", "mean", "var", "any", "max", "nanmin"]),
    how=st.sampled_from(["array", "lazy", "masked", "row"]),
)
def test_where_holds_besides(case: Any, seed: int, name: str, how: str) -> None:
    (array, _), x = case
    where = np.random.default_rng(seed).random((13, 7)) < 0.4
    given = where
    if how == "row":
        given = where = where[:1]
    if how == "lazy":
        given = da.from_array(where, chunks=4)
    if how == "masked":
        # What is masked of it does not hold.
        given = np.ma.array(
            where | (np.arange(7) > 4), mask=np.broadcast_to(np.arange(7) > 4, (13, 7))
        )
        where = where & (np.arange(7) <= 4)
    left = tidy(np.ma.array(array.data, mask=array.mask | ~np.broadcast_to(where, (13, 7))))
    reference = getattr(np.ma, name.removeprefix("nan"))
    got = compute(getattr(dc, name)(x, 0, where=given))
    same(got, reference(left, 0), 64 * epsilon(got.dtype))


def test_a_masked_where_leaves_out_of_plain_arrays() -> None:
    array = np.arange(12.0)
    where = np.ma.array(np.ones(12, bool), mask=array % 3 == 0)
    assert dc.sum(da.from_array(array, chunks=5), where=where).compute() == 48


def test_an_initial_value_comes_first_where_something_is_left() -> None:
    array = np.ma.array([[1, 2], [3, 4], [5, 6]], mask=[[0, 1], [1, 1], [0, 0]])
    x = da.from_array(array, chunks=(2, 1))
    assert compute(dc.sum(x, 1, initial=10)).tolist() == [11, None, 21]
    assert compute(dc.prod(x, 1, initial=2)).tolist() == [2, None, 60]
    assert compute(dc.max(x, 1, initial=3)).tolist() == [3, None, 6]
    assert compute(dc.min(x, 1, initial=3, where=array > 1)).tolist() == [None, None, 3]


def test_nothing_left_of_all_is_the_constant() -> None:
    x = da.from_array(np.ma.masked_all((3, 2), "i4"), chunks=2)
    for name in ("sum", "prod", "mean", "var", "any", "all", "min", "max", "ptp", "nansum", "norm"):
        lazy = getattr(dc, name)(x)
        assert lazy.compute() is np.ma.masked, name
        kept = getattr(dc, name)(x, keepdims=True).compute()
        assert kept.mask.all()
        assert kept.dtype == lazy.dtype
    # A chunk of no dimension may be that constant.
    assert dc.sum(dc.sum(x)).compute() is np.ma.masked


def test_sums_are_added_in_float64_and_the_same_in_any_order() -> None:
    data = (RNG.random((300, 40)) * 1e3).astype("f4")
    array = np.ma.array(data, mask=RNG.random((300, 40)) < 0.3)
    exact = array.astype("f8").sum(0)
    found = []
    for cut in (300, 17, 64):
        x = da.from_array(array, chunks=(cut, 13))
        same(compute(dc.sum(x, 0)), exact.astype("f4"), 2e-7)
        found.append([compute(f(x, 0, reproducible=True)) for f in (dc.sum, dc.mean)])
        found[-1].append(compute(dc.norm(x, axis=0, reproducible=True)))
    for others in found[1:]:
        for got, expected in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(got, expected)
    same(found[0][0], exact.astype("f4"), 2e-7)


def test_complex_numbers_and_other_dtypes() -> None:
    array = np.ma.array(RNG.normal(size=(9, 4)) + 1j, mask=RNG.random((9, 4)) < 0.4)
    x = da.from_array(array, chunks=(4, 3))
    for name in ("sum", "prod", "mean", "var"):
        same(compute(getattr(dc, name)(x, 0)), getattr(np.ma, name)(array, 0), 1e-12)
    ints = da.from_array(array.real.astype("i2"), chunks=4)
    for dtype in ("f4", "f8", "c16", "i4"):
        lazy = dc.sum(ints, 0, dtype=dtype)
        assert lazy.dtype == dtype
        same(compute(lazy), np.ma.sum(array.real.astype("i2"), 0, dtype=dtype), 1e-6)
    with_rubbish = np.ma.array([np.nan, 2.5, np.nan], mask=[1, 0, 1])
    assert compute(dc.nansum(da.from_array(with_rubbish, chunks=1), dtype="i8")) == 2


# Dask, making an empty array of float16, casts the fill value.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@given(case=masked(dtypes=REAL, values=values), data=st.data())
def test_running_sums_are_those_of_numpy_ma(name: str, case: Any, data: Any) -> None:
    (array, _), x = case
    axis = data.draw(st.none() | st.integers(0, array.ndim - 1) if array.ndim else st.none())
    if name == "cumprod" and array.size > 30:
        return
    lazy = getattr(dc, name)(x, axis)
    same(lazy.compute(), getattr(np.ma, name)(wide(array), axis), epsilon(lazy.dtype))
    assert type(lazy._meta) is np.ma.MaskedArray


#: What each scan takes in the place of what is masked.
NEUTRAL = {
    "cumsum": lambda dtype: 0,
    "cumprod": lambda dtype: 1,
    "nancumsum": lambda dtype: 0,
    "nancumprod": lambda dtype: 1,
    "cummax": lambda dtype: -np.inf if dtype.kind == "f" else np.iinfo(dtype).min,
    "cummin": lambda dtype: np.inf if dtype.kind == "f" else np.iinfo(dtype).max,
    "logcumsumexp": lambda dtype: -np.inf,
}


@pytest.mark.parametrize("name", NEUTRAL)
@FEWER
@given(case=masked(dtypes=["f4", "f8"], values=with_nan, shape=shapes(1, 3)), data=st.data())
def test_scans_go_over_what_is_masked(name: str, case: Any, data: Any) -> None:
    (array, cuts), x = case
    axis = data.draw(st.none() | st.integers(0, array.ndim - 1))
    options = data.draw(scan_options(case[0], axis))
    if "prod" in name and array.size > 30:
        return
    filled = da.from_array(array.filled(NEUTRAL[name](array.dtype)), chunks=cuts)
    with np.errstate(all="ignore"):
        expected = getattr(dc, name)(filled, axis, **options).compute(scheduler="synchronous")
    mask, along = (array.mask.reshape(-1), 0) if axis is None else (array.mask, axis)
    if options["include_initial"]:
        first = np.zeros((*mask.shape[:along], 1, *mask.shape[along + 1 :]), bool)
        ends = [mask, first] if options["reverse"] else [first, mask]
        mask = np.concatenate(ends, along)
    got = getattr(dc, name)(x, axis, **options)
    same(got.compute(scheduler="synchronous"), np.ma.array(expected, mask=mask))


@pytest.mark.parametrize("name", ["cumsum", "cummax", "cummin", "logcumsumexp"])
def test_scans_of_integers_go_over_what_is_masked(name: str) -> None:
    array = np.ma.array(RNG.integers(0, 9, (11, 5)), mask=RNG.random((11, 5)) < 0.5, dtype="i2")
    x = da.from_array(array, chunks=(3, 2))
    filled = array.astype("f8").filled(NEUTRAL[name](np.dtype("f8")))
    function = {"cumsum": np.add, "cummax": np.maximum, "cummin": np.minimum}.get(
        name, np.logaddexp
    )
    running = function.accumulate(filled, 0)
    got = getattr(dc, name)(x, 0)
    same(compute(got), np.ma.array(running, mask=array.mask), 1e-12)


def test_dates_go_over_what_is_masked() -> None:
    days = np.ma.array([5, 1, 9, 7], mask=[0, 1, 1, 0]).astype("M8[D]")
    got = compute(dc.cummin(da.from_array(days, chunks=2)))
    assert got.mask.tolist() == [False, True, True, False]
    assert got.astype("i8").compressed().tolist() == [5, 5]


@pytest.mark.parametrize("kind", ["M8[D]", "m8[s]"])
@pytest.mark.parametrize("axis", [None, 1])
def test_descriptions_of_dates_are_of_what_is_left(kind: str, axis: Any) -> None:
    days = np.ma.array([[5, 1, 9], [7, 7, 7], [2, 0, 4]], mask=[[0, 1, 0], [1, 1, 1], [0, 0, 0]])
    array = days.astype(kind)
    array[2, 1] = np.array("NaT", kind)
    found = dc.describe(da.from_array(array, chunks=(2, 2)), axis)
    count, nans = compute(found.count, np.ndarray), compute(found.nans, np.ndarray)
    assert np.array(count).tolist() == (4 if axis is None else [2, 0, 2])
    assert np.array(nans).tolist() == (1 if axis is None else [0, 0, 1])
    least = compute(found.min)
    assert least.dtype == kind
    assert np.ma.array(least).astype("i8").tolist() == (2 if axis is None else [5, None, 2])


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_durations_that_are_masked_are_not_added(axis: Any) -> None:
    array = np.ma.array(RNG.integers(0, 99, (5, 6)), mask=RNG.random((5, 6)) < 0.4)
    array[2] = np.ma.masked
    whole = by_lines(np.sum, array, axis, "i8"), by_lines(np.mean, array, axis, "f8")
    durations = array.astype("m8[s]")
    durations.data[array.mask] = np.timedelta64("NaT", "s")
    x = da.from_array(durations, chunks=(2, 4))
    for lazy, expected in zip((dc.sum(x, axis), dc.mean(x, axis)), whole, strict=True):
        # What is masked of a mean is NaN, which is no integer.
        expected = np.ma.array(np.ma.filled(expected, 0), mask=np.ma.getmaskarray(expected))
        same(np.ma.array(compute(lazy)).astype("i8"), expected.astype("i8"))


def ones(x: Any) -> Any:
    return np.ones(x.shape), np.where(x == x, x, 0.0)


def merge(a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] + b[1]


def total(state: Any) -> Any:
    return state[0]


COUNTING = dc.Monoid(
    "counting", merge, (0, 0), "f8,f8", lift=ones, finalize=total, commutative=True
)


@given(case=masked(dtypes=["f8"], values=values), data=st.data())
def test_monoids_of_ones_own_get_what_is_left(case: Any, data: Any) -> None:
    (array, _), x = case
    if array.ndim == 0:
        return
    axis = data.draw(st.integers(0, array.ndim - 1))
    counts = np.ma.array(np.ma.count(array, axis), mask=np.all(array.mask, axis))
    same(compute(dc.reduce(x, COUNTING, axis)), counts)
    reverse = data.draw(st.booleans())
    heads = data.draw(st.sampled_from([None, np.arange(array.shape[axis]) % 3 == 0]))
    got = dc.scan(x, COUNTING, axis, reverse=reverse, segments=heads)
    plain = da.from_array((~array.mask).astype("f8"), chunks=x.chunks)
    expected = dc.cumsum(plain, axis, reverse=reverse, segments=heads).compute()
    same(got.compute(), np.ma.array(expected, mask=array.mask))
    same(dc.scan(x, SUM, axis).compute(), np.ma.cumsum(array, axis))
    same(dc.scan(x, MAX, axis).compute(), dc.cummax(x, axis).compute())


# Histograms.


@given(
    case=masked(dtypes=REAL, values=values),
    bins=st.sampled_from([3, [0, 1, 2, 5]]),
    limits=st.sampled_from([None, (0, 4)]),
    weighted=st.booleans(),
    density=st.booleans(),
)
def test_histograms_count_what_is_left(
    case: Any, bins: Any, limits: Any, weighted: bool, density: bool
) -> None:
    (array, _), x = case
    left = array.compressed()
    weights, of_left = None, None
    if weighted:
        weights = np.arange(array.size, dtype="f8").reshape(array.shape)
        of_left = np.ma.array(weights, mask=array.mask).compressed()
    got, edges = dc.histogram(x, bins, limits, weights=weights, density=density)
    if array.dtype.kind == "b":
        left = left.astype("u1")
    with np.errstate(all="ignore"):
        expected, of_expected = np.histogram(left, bins, limits, weights=of_left, density=density)
    np.testing.assert_allclose(compute(got, np.ndarray), expected, rtol=1e-12)
    np.testing.assert_array_equal(edges, of_expected)


DATA = np.ma.array(RNG.normal(size=(60, 9)), mask=RNG.random((60, 9)) < 0.3)
DATA.data[DATA.mask] = RNG.choice([np.nan, np.inf, 0.0, -99], DATA.mask.sum())
WEIGHTS = np.ma.array(RNG.random((60, 9)), mask=RNG.random((60, 9)) < 0.2)
WEIGHTS.data[WEIGHTS.mask] = np.nan
X, W = (da.from_array(a, chunks=(13, 4)) for a in (DATA, WEIGHTS))


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("flow", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("weights", [None, W, da.from_array(WEIGHTS.filled(1), chunks=9)])
def test_histograms_with_every_option_leave_out_what_is_masked(
    weights: Any, axis: int | None, flow: bool, reproducible: bool
) -> None:
    got, _ = dc.histogram(
        X, 5, (-1, 1), weights=weights, axis=axis, flow=flow, reproducible=reproducible
    )
    mask, w = DATA.mask, np.ones(DATA.shape)
    if weights is not None:
        w = np.ma.getdata(weights.compute())
        mask = mask | np.ma.getmaskarray(weights.compute())
    edges = np.linspace(-1, 1, 6)
    if flow:
        edges = np.array([-np.inf, *edges[:-1], np.nextafter(1, 2), np.inf])
    lines = np.moveaxis(DATA.data, axis, -1) if axis is not None else DATA.data.reshape(1, -1)
    masks = np.moveaxis(mask, axis, -1) if axis is not None else mask.reshape(1, -1)
    ws = np.moveaxis(w, axis, -1) if axis is not None else w.reshape(1, -1)
    expected = np.array(
        [
            np.histogram(line[~m], edges, weights=v[~m])[0]
            for line, m, v in zip(lines, masks, ws, strict=True)
        ]
    )
    expected = expected[0] if axis is None else expected
    np.testing.assert_allclose(compute(got, np.ndarray), expected, rtol=1e-12)


def test_masked_weights_of_plain_samples_leave_them_out() -> None:
    plain = da.from_array(RNG.random((60, 9)), chunks=(13, 4))
    got, _ = dc.histogram(plain, 4, (0, 1), weights=W)
    left = plain.compute()[~WEIGHTS.mask]
    expected = np.histogram(left, 4, (0, 1), weights=WEIGHTS.compressed())[0]
    np.testing.assert_allclose(compute(got, np.ndarray), expected)


@pytest.mark.parametrize("chunks", [4, 100])
def test_samples_whose_weights_are_masked_have_no_part_in_a_range(chunks: int) -> None:
    array = np.arange(100.0)
    weights = np.ma.array(array, mask=(array < 20) | (array == 99))
    x, w = (da.from_array(part, chunks=chunks) for part in (array, weights))
    expected = np.histogram(array[20:99], 7, weights=array[20:99])
    for samples in (x, da.ma.masked_equal(x, 99)):
        for got, its in zip(dc.histogram(samples, 7, weights=w), expected, strict=True):
            np.testing.assert_array_equal(got, its)


@pytest.mark.parametrize("rule", ["rice", "sturges", "scott", "sqrt"])
@pytest.mark.parametrize("limits", [None, (-1.0, 1.0)])
def test_rules_for_bins_know_of_what_is_left_only(rule: str, limits: Any) -> None:
    got, edges = dc.histogram(X, rule, limits)
    expected = np.histogram(DATA.compressed(), rule, limits)
    np.testing.assert_array_equal(got.compute(), expected[0])
    np.testing.assert_allclose(edges.compute(), expected[1])


def test_joint_histograms_leave_out_points_with_a_masked_coordinate() -> None:
    x, y = X[:, 0], X[:, 1]
    mask = DATA.mask[:, 0] | DATA.mask[:, 1]
    points = DATA.data[:, :2][~mask]
    for limits in (None, [(-1, 1), (-2, 2)]):
        # A range is that of what is left of a coordinate, whatever the other.
        known = limits or [(DATA[:, i].min(), DATA[:, i].max()) for i in (0, 1)]
        expected, *edges = np.histogram2d(*points.T, 4, known)
        got = dc.histogram2d(x, y, 4, limits)
        columns = dc.histogramdd(X[:, :2].rechunk((13, 2)), 4, limits)
        for found in (got[0], columns[0], dc.histogramdd((x, y), 4, limits)[0]):
            np.testing.assert_array_equal(compute(found, np.ndarray), expected)
        for mine, its in zip(got[1:], edges, strict=True):
            np.testing.assert_allclose(mine.compute(), its)
    w = W[:, 0]
    got, *_ = dc.histogram2d(x, y.map_blocks(bare, meta=y._meta), 4, known, weights=w, density=True)
    both = mask | WEIGHTS.mask[:, 0]
    expected, *_ = np.histogram2d(
        *DATA.data[:, :2][~both].T, 4, known, weights=WEIGHTS.data[~both, 0], density=True
    )
    np.testing.assert_allclose(compute(got, np.ndarray), expected)


@pytest.mark.parametrize("size", [2, 5])
def test_ranges_leave_out_nan_beside_what_is_masked(size: int) -> None:
    x = np.ma.array([1, 2, 1000, 4, np.nan, 6], mask=[0, 0, 1, 0, 0, 0])
    y = np.ma.array([1, 2, 3, np.nan, 5, np.nan], mask=[0, 0, 0, 0, 0, 1])
    X, Y = (da.from_array(array, chunks=size) for array in (x, y))
    columns = da.from_array(np.ma.stack([x, y], 1), chunks=(size, 1))
    found, (first, last) = dc.histogramdd(columns, 2, nan="omit")
    # A masked NaN is none, so that the other coordinate of that point stays.
    for got in (dc.histogram2d(X, Y, 2, nan="omit"), (found, first, last)):
        np.testing.assert_array_equal(compute(got[0], np.ndarray), [[1, 1], [0, 0]])
        assert got[1].compute().tolist() == [1, 3.5, 6]
        assert got[2].compute().tolist() == [1, 2, 3]


def test_points_with_nan_are_left_out_beside_what_is_masked() -> None:
    nan = np.nan
    data = np.array([[1, 2], [nan, 99], [5, -3], [nan, 4], [np.inf, 3], [0, 7.0]])
    mask = np.zeros((6, 2), bool)
    # What is masked is neither NaN nor the greatest.
    mask[3, 0] = mask[4, 0] = True
    sample = da.from_array(np.ma.array(data, mask=mask), chunks=(4, 2))
    kept, known = data[[0, 2, 5]], [(0, 5), (-3, 7)]
    expected, *edges = np.histogram2d(*kept.T, 4, known)
    for points in (sample, (sample[:, 0], sample[:, 1])):
        counts, found = dc.histogramdd(points, 4, nan="omit")
        np.testing.assert_array_equal(counts, expected)
        for mine, its in zip(found, edges, strict=True):
            np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("size", [100, 70_000])
@pytest.mark.parametrize("reproducible", [False, True])
def test_integers_that_are_masked_are_not_counted(size: int, reproducible: bool) -> None:
    array = np.ma.array(RNG.integers(0, 50, size), mask=RNG.random(size) < 0.4)
    # NumPy would refuse the one, and the other would make a table as long.
    array.data[array.mask] = RNG.choice([-5, 1 << 40], array.mask.sum())
    x = da.from_array(array, chunks=size // 2)
    left = array.compressed()
    np.testing.assert_array_equal(compute(dc.bincount(x), np.ndarray), np.bincount(left))
    np.testing.assert_array_equal(dc.bincount(x, minlength=99), np.bincount(left, minlength=99))
    weights = np.ma.array(RNG.random(size), mask=RNG.random(size) < 0.1)
    both = ~(array.mask | weights.mask)
    got = dc.bincount(x, da.from_array(weights, chunks=size // 3), reproducible=reproducible)
    expected = np.bincount(array.data[both], weights.data[both])
    np.testing.assert_allclose(got.compute(), expected, rtol=1e-12)
    with pytest.raises(TypeError, match="bincount takes bool and integers"):
        dc.bincount(X)


def test_large_chunks_are_counted_by_the_same_rule() -> None:
    array = np.ma.array(RNG.random((400, 200)), mask=RNG.random((400, 200)) < 0.5)
    x = da.from_array(array, chunks=(300, 200))
    np.testing.assert_array_equal(dc.histogram(x, 50)[0], np.histogram(array.compressed(), 50)[0])
    counts = dc.histogram(x, 10, (0, 1), axis=0)[0].compute()
    np.testing.assert_array_equal(counts.sum(1), array.count(0))


# Graphs.


CALLS = {
    "sum": lambda x: dc.sum(x, 0),
    "var": lambda x: dc.var(x),
    "argmax": lambda x: dc.argmax(x, 0),
    "nanmin": lambda x: dc.nanmin(x),
    "norm": lambda x: dc.norm(x, 3, axis=0),
    "describe": lambda x: dc.describe(x).std,
    "count": lambda x: dc.describe(x, 0).count,
    "cumsum": lambda x: dc.cumsum(x, 0),
    "cummax": lambda x: dc.cummax(x, 1, reverse=True),
    "histogram": lambda x: dc.histogram(x, 5)[0],
    "histogram of lines": lambda x: dc.histogram(x, 5, (-1, 1), axis=0)[0],
    "reduce": lambda x: dc.reduce(x, COUNTING),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    """Return a process such as Dask would start for every call."""
    with ProcessPoolExecutor(1, get_context(), initialize_worker_process) as pool:
        yield pool


@pytest.mark.parametrize("name", CALLS)
def test_graphs_are_lazy_and_have_the_same_keys_each_time(name: str, pool: Executor) -> None:
    with dask.config.set(scheduler=refuse):
        lazy, again = CALLS[name](X), CALLS[name](X)
    assert lazy.name == again.name
    assert set(lazy.dask) == set(again.dask)
    # Every chunk is read by one task a pass, and no task makes a mask.
    mine = {key for key in lazy.dask if key[0] not in {k[0] for k in X.dask}}
    assert not any("mask" in str(key) or "getdata" in str(key) for key in mine)
    tasks = pickle.loads(pickle.dumps(dict(lazy.dask)))
    assert tasks.keys() == dict(lazy.dask).keys()
    same(dask.compute(lazy, scheduler="processes", pool=pool)[0], lazy.compute())


def test_sizes_may_be_unknown() -> None:
    x = X[:, 0][da.from_array(np.arange(60) % 2 == 0, chunks=13)]
    left = DATA[::2, 0]
    assert np.isclose(dc.sum(x).compute(), left.sum())
    assert dc.min(x).compute() == left.min()
    assert dc.max(x).compute() == left.max()
    same(dc.cumsum(x, 0).compute(), left.cumsum(), 1e-12)
    np.testing.assert_array_equal(dc.histogram(x, 5)[0], np.histogram(left.compressed(), 5)[0])
    none = da.from_array(np.ma.masked_all(6), chunks=2)
    none = none[da.from_array(np.arange(6) % 2 == 0, chunks=2)]
    # Dask forgets that such an array is masked.
    none = da.Array(none.dask, none.name, none.chunks, meta=np.ma.masked_all(0))
    assert dc.min(none).compute() is np.ma.masked
    assert dc.ptp(none).compute() is np.ma.masked


def test_results_go_into_out_and_do_not_share_the_mask_of_the_data() -> None:
    array = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    x = da.from_array(array, chunks=3)
    out = da.zeros((), dtype="f8")
    assert dc.sum(x, out=out) is out
    assert out.compute() == 4
    got = dc.cumsum(x, 0).compute(scheduler="synchronous")
    got[1] = 7
    assert array.mask.tolist() == [False, True, False]


#: Masked are all of the first line, half of the second, and none of the third.
_UNDECLARED = np.ma.masked_less(np.arange(12).reshape(3, 4), 6)


def undeclared(chunks: Any, *, plain: bool = False) -> da.Array:
    """Return a lazy array whose meta has no mask, as Dask's `tensordot` makes it."""
    x = da.from_array(np.ma.getdata(_UNDECLARED), chunks=chunks)
    lift = np.ma.masked_less
    return x.map_blocks(lambda b: bare(lift(b, 6)) if plain else lift(b, 6), meta=x._meta)


@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "mean", "var", "std", "any", "all"])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("plain", [False, True])
def test_results_of_masked_chunks_are_masked_though_no_meta_tells(
    name: str, axis: int | None, plain: bool
) -> None:
    expected = getattr(_UNDECLARED, name)(axis)
    for chunks in ((1, 2), (3, 4), (2, 1), (1, 1)):
        result = getattr(dc, name)(undeclared(chunks, plain=plain), axis, split_every=2).compute()
        np.testing.assert_array_equal(np.ma.getmaskarray(result), np.ma.getmaskarray(expected))
        np.testing.assert_allclose(np.ma.filled(result, 0), np.ma.filled(expected, 0))


def test_products_of_masked_arrays_are_masked() -> None:
    x = da.ma.masked_less(da.from_array(np.arange(12).reshape(3, 4), chunks=2), 6)
    expected = da.tensordot(x, np.ones((4, 2)), axes=1).compute()
    with dc.installed():
        result = da.tensordot(x, np.ones((4, 2)), axes=1).compute()
    assert expected.mask[0].all()
    np.testing.assert_array_equal(result.mask, expected.mask)
    np.testing.assert_array_equal(result.filled(0), expected.filled(0))

"""Reductions against NumPy and exact arithmetic, those that leave NaN out too, in any chunks."""

from __future__ import annotations

import math
import operator
import warnings
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from dask.task_spec import Task
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import (
    BOOL,
    COMPLEX,
    FEWER,
    FLOATS,
    INTS,
    NUMBERS,
    REAL,
    Chunked,
    arrays,
    assert_near,
    exactly_representable,
    reducible,
    scannable,
    slack,
    wide,
)

import dask_coop as dc
from dask_coop.algebra.monoids import MINMAX
from dask_coop.algebra.operation import Operation

split_everys = st.none() | st.integers(2, 20)

FOLDS = ["nansum", "nanprod", "nanmean", "nanvar", "nanstd"]
NAN_EXTREMA = ["nanmin", "nanmax"]
NAN_INDICES = ["nanargmin", "nanargmax"]
NAN = [*FOLDS, *NAN_EXTREMA, *NAN_INDICES]
by_index = pytest.mark.parametrize("name", ["argmin", "argmax"])

#: By what to draw arrays for, whose statistics are NumPy's to the bit.
EXACT = {
    **dict.fromkeys(["sum", "prod"], reducible(dtypes=BOOL + INTS)),
    **dict.fromkeys(["any", "all", "count_nonzero"], reducible()),
    **dict.fromkeys(["min", "max", *NAN_EXTREMA], reducible(dtypes=REAL)),
    **dict.fromkeys(["argmin", "argmax"], scannable(dtypes=REAL)),
    **dict.fromkeys(NAN_INDICES, scannable(dtypes=FLOATS, values=st.sampled_from([0, 1, np.nan]))),
    "ptp": reducible(dtypes=INTS + FLOATS),
}
#: And those that are rounded once: any product is a normal float64, but not always a float32.
ROUNDED = {
    "sum": reducible(dtypes=FLOATS + COMPLEX),
    "prod": reducible(dtypes=FLOATS + COMPLEX, values=st.floats(0.7, 1.4) | st.floats(-1.4, -0.7)),
    "mean": reducible(),
}
keep = st.booleans()


def lacking(name: str, error: ValueError) -> str:
    """Return the words for arrays without an element, or without one that is not NaN."""
    if "NaN" in str(error):
        return "All-NaN slice"
    if "arg" in name:
        return f"attempt to get {name} of an empty sequence"
    return f"zero-size array to reduction operation {name}"


@pytest.mark.parametrize("name", EXACT)
@FEWER
@given(data=st.data(), keepdims=keep, split_every=split_everys)
def test_results_are_numpys(
    xp: Any, name: str, data: Any, keepdims: bool, split_every: Any
) -> None:
    (array, chunks), axis = data.draw(EXACT[name])
    dtype = (None,) if name in ("sum", "prod") else ()
    x = to_chunks(xp, array, chunks)
    ours = partial(getattr(dc, name), x, axis, *dtype, keepdims, split_every)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if name.startswith("nan") else "error", RuntimeWarning)
        try:
            with np.errstate(all="ignore"):
                expected = np.asarray(getattr(np, name)(array, axis, keepdims=keepdims))
        except ValueError as error:
            # That all is NaN only the elements tell.
            late = "NaN" in str(error)
            call = partial(ours().compute, scheduler="synchronous") if late else ours
            with pytest.raises(ValueError, match=lacking(name, error)):
                call()
            return
        result = ours()
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(to_numpy(xp, result), expected)


def exactly(name: str, array: Any, axis: Any, keepdims: bool) -> tuple[Any, Any]:
    """Return a statistic in wide floats, and how far off float64 may be."""
    if name == "prod":
        exact = np.prod(wide(array), axis, keepdims=keepdims)
        return exact, 4 * array.size * np.finfo("f8").eps * np.abs(exact)
    exact, bound = np.sum(wide(array), axis, keepdims=keepdims), slack(array, axis, keepdims)
    if name == "sum":
        return exact, bound
    count = array.size / max(exact.size, 1)
    return exact / count, bound / count


@pytest.mark.parametrize("name", ROUNDED)
@given(data=st.data(), keepdims=keep, split_every=split_everys)
def test_results_are_exact_but_for_one_rounding(
    xp: Any, name: str, data: Any, keepdims: bool, split_every: Any
) -> None:
    (array, chunks), axis = data.draw(ROUNDED[name])
    if name == "prod" and array.dtype.kind == "c":
        array = array * array.dtype.type(0.6 + 0.8j)
    x = to_chunks(xp, array, chunks)
    result = getattr(dc, name)(x, axis, keepdims=keepdims, split_every=split_every)
    with np.errstate(all="ignore"):
        exact, bound = exactly(name, array, axis, keepdims)
    assert result.dtype == getattr(np, name)(np.ones(1, array.dtype)).dtype
    assert result.shape == exact.shape
    assert_near(to_numpy(xp, result), exact, bound)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_float32_sums_are_within_one_ulp_of_fsum(xp: Any, axis: int | None) -> None:
    array = np.random.default_rng(0).random((3000, 7), "f4")
    total = to_numpy(xp, dc.sum(to_chunks(xp, array, (999, 5)), axis))
    lines = {None: [array.ravel()], 0: array.T, 1: array}[axis]
    exact = np.array([math.fsum(line) for line in lines]).reshape(total.shape)
    assert np.all(np.abs(total - exact) <= np.spacing(exact.astype("f4")))
    # What the bound is there to keep out: one float32 accumulator.
    naive = np.array([np.add.accumulate(line)[-1] for line in lines]).reshape(total.shape)
    assert axis == 1 or np.any(np.abs(naive - exact) > np.spacing(exact.astype("f4")))


def test_a_large_float32_does_not_swallow_the_small_ones(xp: Any) -> None:
    array = np.ones(2001, "f4")
    array[[0, -1]] = 2.0**26, -(2.0**26)
    assert to_numpy(xp, dc.sum(to_chunks(xp, array, 100))) == 1999


def describe_exactly(array: Any, axis: Any, keepdims: bool) -> tuple[list[Any], list[Any]]:
    """Return the eight statistics and how far off float64 may be in each."""
    valid, args = ~np.isnan(array), {"axis": axis, "keepdims": keepdims}
    count = valid.sum(**args)
    x = np.where(valid, wide(array), 0)
    total = x.sum(**args)
    some = np.where(count, count, np.nan)
    mean = total / some
    over = {**args, "keepdims": True}
    var = (
        np.square(x - x.sum(**over) / np.maximum(valid.sum(**over), 1)).sum(where=valid, **args)
        / some
    )
    low = x.min(where=valid, initial=np.inf, **args) + 0 * some
    high = x.max(where=valid, initial=-np.inf, **args) + 0 * some
    in_sum = slack(x, axis, keepdims)
    size = np.abs(x).max(initial=0, **args)
    eps = 8 * x.size * np.finfo("f8").eps
    in_var = np.nan_to_num(eps * (var + np.sqrt(var) * size) + np.square(eps * size))
    in_var += np.finfo("f8").tiny  # squares of small deviations underflow
    in_std = np.sqrt(in_var)
    statistics = [count, array.size // max(count.size, 1) - count, low, high, total, mean, var]
    return [*statistics, np.sqrt(var)], [0, 0, 0, 0, in_sum, in_sum / some, in_var, in_std]


@given(case=reducible(dtypes=REAL), keepdims=keep, split_every=split_everys)
def test_describe_is_exact_but_for_one_rounding(
    xp: Any, case: Any, keepdims: bool, split_every: Any
) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    reduced = np.sum(np.ones_like(array, "i8"), axis, keepdims=True).shape
    empty = any(n == 0 and to == 1 for n, to in zip(array.shape, reduced, strict=True))
    if array.dtype.kind != "f" and empty:
        with pytest.raises(ValueError, match="zero-size array to reduction operation describe"):
            dc.describe(x, axis, keepdims, split_every)
        return
    with np.errstate(all="ignore"):
        exact, slacks = describe_exactly(array, axis, keepdims)
    exact[4] = np.sum(array, axis, keepdims=keepdims) if array.dtype.kind in "biu" else exact[4]
    result = dc.describe(x, axis, keepdims, split_every)
    for name, lazy, value, bound in zip(result._fields, result, exact, slacks, strict=True):
        actual = to_numpy(xp, lazy)
        assert actual.shape == np.shape(value), name
        if actual.dtype.kind in "biu":
            np.testing.assert_array_equal(actual, value, name)
        else:
            assert_near(actual, value, bound)


def test_describe_names_numpys_dtypes(xp: Any) -> None:
    for dtype in REAL:
        result = dc.describe(to_chunks(xp, np.ones(3, dtype), 2))
        one = np.ones(1, dtype)
        assert result.count.dtype == result.nans.dtype == "i8"
        assert result.min.dtype == result.max.dtype == one.dtype
        assert result.sum.dtype == one.sum().dtype
        assert result.mean.dtype == result.var.dtype == result.std.dtype == one.mean().dtype


def test_the_variance_of_large_values_does_not_cancel(xp: Any) -> None:
    array = np.random.default_rng(1).standard_normal(10_000) + 1e9
    for chunks in (333, 10_000):
        x = to_chunks(xp, array, chunks)
        described = dc.describe(x)
        for found in (dc.var(x), described.var, np.square(described.std)):
            np.testing.assert_allclose(to_numpy(xp, found), np.var(array), rtol=1e-7)


def test_describe_leaves_nan_out_and_keeps_infinities(xp: Any) -> None:
    array = np.array([np.nan, 2, np.inf, 4, np.nan])
    numbers = {
        n: to_numpy(xp, a) for n, a in dc.describe(to_chunks(xp, array, 2))._asdict().items()
    }
    assert (numbers["count"], numbers["nans"]) == (3, 2)
    assert (numbers["min"], numbers["max"]) == (2, np.inf)
    assert (numbers["sum"], numbers["mean"]) == (np.inf, np.inf)
    assert np.isnan(numbers["var"])
    assert np.isnan(numbers["std"])


@pytest.mark.parametrize("array", [np.full(5, np.nan, "f4"), np.empty(0, "f4")])
def test_describe_of_nothing_but_nan_is_nan(xp: Any, array: Any) -> None:
    result = dc.describe(to_chunks(xp, array, 2))
    count, nans, low, high, total, *moments = (to_numpy(xp, a) for a in result)
    assert (count, nans, total) == (0, array.size, 0)
    assert np.isnan([low, high, *moments]).all()


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("output", NUMBERS)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_dtype_converts_as_numpy_does(xp: Any, dtype: str, output: str) -> None:
    array = np.tile(np.array(exactly_representable(dtype, output)).astype(dtype), 3)
    x = to_chunks(xp, array, 5)
    for name in ("sum", "prod", "mean"):
        expected = getattr(np, name)(array, dtype=output)
        result = getattr(dc, name)(x, dtype=output)
        assert result.dtype == output
        # Where NumPy rounds the elements first or the total twice, a mean may differ by an ulp.
        rounding = 0 if name != "mean" or expected.dtype.kind not in "fc" else np.finfo(output).eps
        np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=2 * rounding, atol=0)


@pytest.mark.parametrize(
    ("array", "output"),
    [
        (np.array([0.5, 0.25]), "?"),  # neither is False, though both truncate to 0
        (np.full(3, 2049), "f2"),  # 2049 is no float16, and 3 * 2049 rounds to another
        (np.array([0.75, 0.75, 1.5]), "i4"),
    ],
)
def test_elements_of_another_kind_are_converted_before_the_sum(
    xp: Any, array: Any, output: str
) -> None:
    x = to_chunks(xp, array, 2)
    assert to_numpy(xp, dc.sum(x, dtype=output)) == array.sum(dtype=output)
    np.testing.assert_array_equal(to_numpy(xp, dc.cumsum(x, dtype=output)), array.cumsum(0, output))


@pytest.mark.parametrize("output", INTS)
@FEWER
@given(case=reducible(dtypes=BOOL + INTS))
def test_integers_wrap_to_any_other_as_numpys(xp: Any, output: str, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.sum(to_chunks(xp, array, chunks), axis, dtype=output)
    np.testing.assert_array_equal(to_numpy(xp, result), np.sum(array, axis, dtype=output))


def test_dtype_float32_of_float64_rounds_the_sum_and_not_the_elements(xp: Any) -> None:
    x = to_chunks(xp, np.full(4096, 1 + 2.0**-30), 100)
    assert to_numpy(xp, dc.sum(x, dtype="f4")) == np.float32(4096 + 2.0**-18)
    assert to_numpy(xp, dc.mean(x - 1, dtype="f4")) == 2.0**-30


@given(case=arrays(dtypes=["f4"], special=False), data=st.data())
def test_split_every_by_axis_is_only_a_matter_of_graph(xp: Any, case: Chunked, data: Any) -> None:
    x = to_chunks(xp, *case)
    ways = {axis: data.draw(st.integers(2, 6)) for axis in range(x.ndim)}
    if not ways:
        return
    total = to_numpy(xp, dc.sum(x, split_every=ways))
    assert_near(total, np.sum(wide(case.array)), slack(case.array))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_out_is_overwritten_and_returned(xp: Any, dtype: str) -> None:
    array = np.array([[3, 1], [2, 9]]).astype(dtype)
    x = to_chunks(xp, array, 1)
    every = ("sum", "prod", "min", "max", "mean", "var", "any", "all", "argmin", "argmax")
    for name in ("nansum", *(every if dtype == "f8" else ())):
        expected = getattr(np, name)(array, axis=0)
        out = to_chunks(xp, np.zeros(2, expected.dtype), 2)
        assert getattr(dc, name)(x, axis=0, out=out) is out
        np.testing.assert_array_equal(to_numpy(xp, out), expected)


def test_out_of_another_shape_is_refused(xp: Any) -> None:
    x = to_chunks(xp, np.ones((3, 4)), 2)
    with pytest.raises(ValueError, match="shape"):
        dc.sum(x, axis=0, out=to_chunks(xp, np.zeros(3), 3))


@pytest.mark.parametrize("array", [[1, 2, 3], np.float32(3.5), np.arange(6).reshape(2, 3), 7])
def test_what_is_not_a_dask_array_becomes_one(array: Any) -> None:
    for name in ("sum", "prod", "min", "max", "ptp", "argmax", "mean", "var", "any", "all"):
        result = getattr(dc, name)(array)
        assert isinstance(result, da.Array)
        assert result.compute() == getattr(np, name)(array)


def test_other_byte_orders_are_read(xp: Any) -> None:
    array = np.array([1.5, -2.25, 8.0], ">f4")
    if xp is not np:
        pytest.skip("CuPy has no arrays in another byte order")
    x = to_chunks(xp, array, 2)
    for name in ("sum", "min", "max", "mean"):
        assert getattr(dc, name)(x).compute() == getattr(np, name)(array)
    assert dc.describe(x).max.compute() == 8
    for dtype in (">f2", ">f4", ">i2", ">u8"):
        description = dc.describe(da.from_array(array.astype("i8").clip(0).astype(dtype), chunks=2))
        for lazy in description:
            assert lazy.dtype.isnative
            assert lazy.dtype == lazy.compute().dtype


TRUTHS = [dc.any, dc.all, dc.count_nonzero]
SPREADS = [dc.var, dc.std]
INDICES = [dc.argmin, dc.argmax]
FUNCTIONS = [dc.sum, dc.prod, dc.min, dc.max, dc.ptp, dc.mean, dc.describe]
FUNCTIONS += [*TRUTHS, *SPREADS]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bad_axes_are_refused_by_name(function: Any) -> None:
    x = da.ones((3, 4))
    for axis in (2, -3, (0, 5)):
        bad = axis[1] if isinstance(axis, tuple) else axis
        with pytest.raises(np.exceptions.AxisError, match=f"(?i)axis {bad} is out of bounds"):
            function(x, axis)
    for twice in ((0, 0), (1, -1)):
        with pytest.raises(ValueError, match=r"duplicate value in 'axis': \(") as caught:
            function(x, twice)
        assert str(twice) in str(caught.value)
    with pytest.raises(TypeError):
        function(x, "rows")


@pytest.mark.parametrize("function", FUNCTIONS + INDICES)
@pytest.mark.parametrize("ways", [1, 0, -3, {0: 1}])
def test_a_tree_needs_two_ways(function: Any, ways: Any) -> None:
    with pytest.raises(ValueError, match="split_every must be at least 2, got"):
        function(da.ones(30, chunks=1), axis=0, split_every=ways)


@pytest.mark.parametrize("ways", ["a", {0: "a"}, float("nan"), float("inf"), 2.9])
def test_ways_of_a_tree_are_whole_numbers(ways: Any) -> None:
    with pytest.raises(TypeError, match="split_every must be whole numbers, got") as caught:
        dc.sum(da.ones((4, 4), chunks=1), split_every=ways)
    assert repr(ways) in str(caught.value)


def test_configured_ways_of_axes_say_nothing_of_other_trees() -> None:
    x = da.ones((4, 4), chunks=1)
    with dask.config.set({"split_every": {0: 4, 1: 4}}):
        assert dc.sum(x).compute() == 16
        np.testing.assert_array_equal(dc.sum(x, axis=()).compute(), np.ones((4, 4)))
        np.testing.assert_array_equal(dc.histogram(x, 2, (0, 1))[0].compute(), [0, 16])
        assert dc.quantile(x, 0.5).compute() == 1


@pytest.mark.parametrize("name", ["min", "max", "argmin", "argmax"])
def test_no_element_has_no_extremum_and_says_where(name: str) -> None:
    function, words = getattr(dc, name), "empty sequence" if "arg" in name else "no identity"
    with pytest.raises(ValueError, match=rf"{words}: shape \(3, 0\), axes \(1,\)"):
        function(da.ones((3, 0)), axis=1)
    with pytest.raises(ValueError, match=rf"{words}: shape \(0, 0\), axes \(0,\)"):
        function(da.ones((0, 0)), axis=0)
    assert function(da.ones((3, 0)), axis=0).compute().shape == (0,)


def test_the_mean_and_spread_of_nothing_is_nan_without_a_warning(xp: Any) -> None:
    empty = to_chunks(xp, np.empty((0, 3), "f4"), (1, 2))
    x = to_chunks(xp, np.full((4, 3), np.nan, "f4"), (1, 2))
    for lazy in (dc.mean(empty, 0), dc.nanmean(x, 0), dc.nanvar(x, 0), dc.nanstd(x, 0)):
        assert lazy.shape == (3,)
        assert np.isnan(to_numpy(xp, lazy)).all()
    assert np.isnan(to_numpy(xp, dc.nanvar(to_chunks(xp, np.array([np.nan, 2]), 1), ddof=1)))
    assert to_numpy(xp, dc.nansum(x)) == 0
    assert to_numpy(xp, dc.nanprod(x)) == 1


@pytest.mark.parametrize(("nan", "chunks"), [("", 2), ("nan", 300)])
def test_states_of_many_chunks_do_not_round_in_between(xp: Any, nan: str, chunks: int) -> None:
    # Each chunk's sum needs more than float32's 24 bits.
    array = np.tile(np.array([2.0**24, 1.0, *[np.nan] * len(nan[:1])], "f4"), 500)
    x = to_chunks(xp, array, chunks)
    assert to_numpy(xp, getattr(dc, f"{nan}sum")(x)) == np.float32(500 * (2.0**24 + 1))
    assert to_numpy(xp, getattr(dc, f"{nan}mean")(x)) == np.float32((2.0**24 + 1) / 2)


@pytest.mark.parametrize("name", ["sum", "min", "max", "mean"])
def test_axis_of_a_numpy_integer(name: str) -> None:
    array = np.arange(6.0).reshape(2, 3)
    result = getattr(dc, name)(da.from_array(array, chunks=2), axis=np.int64(1))
    np.testing.assert_array_equal(result.compute(), getattr(np, name)(array, axis=1))


def test_a_zero_dimensional_array_is_its_own_statistics(xp: Any) -> None:
    # Its meta holds the value, which no int32 can: building must not warn of a cast.
    x = to_chunks(xp, np.array(9.3e18, "f4"), ())
    result = dc.describe(x)
    assert [to_numpy(xp, a) for a in result] == [1, 0, *[np.float32(9.3e18)] * 4, 0, 0]
    assert dc.sum(x, dtype="i4").dtype == "i4"
    assert [to_numpy(xp, f(x)) for f in (dc.argmin, dc.argmax, dc.ptp)] == [0, 0, 0]


@by_index
@given(
    case=scannable(dtypes=["i1", "f4", "?"], values=st.sampled_from([0, 1])),
    split_every=split_everys,
)
def test_the_first_of_many_ties_wins(xp: Any, name: str, case: Any, split_every: Any) -> None:
    (array, chunks), axis = case
    if array.size:
        result = getattr(dc, name)(to_chunks(xp, array, chunks), axis, split_every=split_every)
        np.testing.assert_array_equal(to_numpy(xp, result), getattr(np, name)(array, axis))


@by_index
def test_ties_in_other_chunks_are_told_apart_by_the_order_of_elements(xp: Any, name: str) -> None:
    # In the order of chunks the tie at [1, 0] comes first, in that of elements the one at [0, 2].
    array = np.zeros((2, 4), "f4")
    array[0, 2] = array[1, 0] = 5 if name == "argmax" else -5
    assert to_numpy(xp, getattr(dc, name)(to_chunks(xp, array, (2, 2)))) == 2


@by_index
def test_the_first_nan_wins_over_infinities(xp: Any, name: str) -> None:
    array = np.array([0, -np.inf, np.inf, np.nan, 7, np.nan], "f4")
    for size in (1, 2, 6):
        assert to_numpy(xp, getattr(dc, name)(to_chunks(xp, array, size))) == 3


@by_index
@pytest.mark.parametrize("dtype", REAL)
def test_the_worst_value_of_a_dtype_has_a_place_too(xp: Any, name: str, dtype: str) -> None:
    op = np.finfo(dtype) if dtype in FLOATS else np.iinfo(dtype) if dtype in INTS else None
    worst = (op.max if name == "argmin" else op.min) if op else name == "argmin"
    worst = (np.inf if name == "argmin" else -np.inf) if dtype in FLOATS else worst
    x = to_chunks(xp, np.full((5, 70), worst, dtype), (2, 30))
    assert to_numpy(xp, getattr(dc, name)(x)) == 0
    np.testing.assert_array_equal(to_numpy(xp, getattr(dc, name)(x, 1)), np.zeros(5))


@by_index
def test_the_axis_of_an_index_is_one_or_all(name: str) -> None:
    for axis in ((0, 1), (0,), "rows", 1.0):
        with pytest.raises(TypeError, match=f"{name} looks along one axis"):
            getattr(dc, name)(da.ones((3, 4)), axis)
    assert getattr(dc, name)(da.ones((3, 4)), np.int64(1)).shape == (3,)


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


@by_index
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


def test_indices_of_many_lines_are_those_of_each(xp: Any) -> None:
    # As many lines as a state leaves on the GPU, of which each has its extremum elsewhere.
    array = np.random.default_rng(3).permuted(np.tile(np.arange(11), (6000, 1)), axis=1)
    for axis, chunks in ((1, (6000, 4)), (0, (1000, 11)), (1, (97, 3))):
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


@pytest.mark.parametrize("name", FOLDS)
@FEWER
@given(
    # Sums of these, and products of a few, no float rounds.
    case=reducible(dtypes=FLOATS + COMPLEX, values=st.sampled_from([np.nan, 0, 1, -1, 2, 3])),
    keepdims=keep,
    split_every=split_everys,
)
def test_folds_are_numpys(xp: Any, name: str, case: Any, keepdims: bool, split_every: Any) -> None:
    (array, chunks), axis = case
    if name == "nanprod":
        # Powers of two are exact.
        array = np.where(np.isnan(array), array, np.sign(array.real)).astype(array.dtype)
    x = to_chunks(xp, array, chunks)
    result = getattr(dc, name)(x, axis, keepdims=keepdims, split_every=split_every)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert result.dtype == getattr(np, name)(array, axis, keepdims=keepdims).dtype
        doubles = array.astype({"f": "f8", "c": "c16"}[array.dtype.kind])
        expected = getattr(np, name)(doubles, axis, keepdims=keepdims).astype(result.dtype)
    eps = np.finfo(result.dtype).eps
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("name", NAN)
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
        for name in NAN_EXTREMA:
            assert to_numpy(xp, getattr(dc, name)(x)) == infinity
        for name in NAN_INDICES:
            assert to_numpy(xp, getattr(dc, name)(x)) == 2


@pytest.mark.parametrize("name", NAN_EXTREMA)
def test_nothing_but_nan_has_no_extremum_and_says_so(name: str) -> None:
    array = np.array([[np.nan, np.nan, np.nan], [1, np.nan, 2]])
    for chunks in (1, 2, 3):
        lazy = getattr(dc, name)(da.from_array(array, chunks=chunks), axis=1)
        with pytest.warns(RuntimeWarning, match="All-NaN slice encountered"):
            result = lazy.compute(scheduler="synchronous")
        np.testing.assert_array_equal(result, [np.nan, 1 if name == "nanmin" else 2])


@pytest.mark.parametrize("name", NAN_INDICES)
def test_nothing_but_nan_has_no_index(xp: Any, name: str) -> None:
    array = np.full((4, 5), np.nan, "f4")
    array[1, :] = 1
    for chunks in (1, 3, 5):
        x = to_chunks(xp, array, chunks)
        assert to_numpy(xp, getattr(dc, name)(x)) == 5
        with pytest.raises(ValueError, match="All-NaN slice encountered"):
            getattr(dc, name)(x, axis=1).compute(scheduler="synchronous")


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


def test_forms_that_leave_nan_out_have_keys_of_their_own() -> None:
    x = da.ones((4, 4), chunks=2)
    for name in NAN:
        assert getattr(dc, name)(x).name != getattr(dc, name.removeprefix("nan"))(x).name


@pytest.mark.parametrize("name", [*FOLDS, *NAN_EXTREMA])
def test_axes_of_no_length_and_lists_of_axes_are_taken(xp: Any, name: str) -> None:
    array = np.array([[1, 2.5], [4, -1]])
    x, function = to_chunks(xp, array, 1), getattr(dc, name)
    for axis in ((), (0, -1)):
        expected = getattr(np, name)(array, axis=axis)
        np.testing.assert_allclose(to_numpy(xp, function(x, axis=axis)), expected)
    assert function(x, axis=[0, 1]).name == function(x, axis=(0, 1)).name

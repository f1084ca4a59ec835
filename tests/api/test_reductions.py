"""sum, min, max, mean and describe against NumPy and exact arithmetic, for any chunking."""

from __future__ import annotations

import math
from typing import Any

import dask
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
    Chunked,
    arrays,
    assert_near,
    exactly_representable,
    reducible,
    slack,
    wide,
)

import dask_coop as dc

split_everys = st.none() | st.integers(2, 20)
keep = st.booleans()


@given(case=reducible(dtypes=BOOL + INTS), keepdims=keep, split_every=split_everys)
def test_integer_sums_are_numpys(xp: Any, case: Any, keepdims: bool, split_every: Any) -> None:
    (array, chunks), axis = case
    total = dc.sum(to_chunks(xp, array, chunks), axis, keepdims=keepdims, split_every=split_every)
    expected = np.sum(array, axis, keepdims=keepdims)
    assert total.dtype == expected.dtype
    np.testing.assert_array_equal(to_numpy(xp, total), expected)


@given(case=reducible(dtypes=FLOATS + COMPLEX), keepdims=keep, split_every=split_everys)
def test_float_sums_are_exact_but_for_one_rounding(
    xp: Any, case: Any, keepdims: bool, split_every: Any
) -> None:
    (array, chunks), axis = case
    total = dc.sum(to_chunks(xp, array, chunks), axis, keepdims=keepdims, split_every=split_every)
    with np.errstate(all="ignore"):
        exact = np.sum(wide(array), axis, keepdims=keepdims)
    assert total.dtype == array.dtype
    assert total.shape == exact.shape
    assert_near(to_numpy(xp, total), exact, slack(array, axis, keepdims))


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


@given(case=reducible(dtypes=BOOL + INTS), keepdims=keep, split_every=split_everys)
def test_integer_products_are_numpys(xp: Any, case: Any, keepdims: bool, split_every: Any) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    product = dc.prod(x, axis, keepdims=keepdims, split_every=split_every)
    expected = np.prod(array, axis, keepdims=keepdims)
    assert product.dtype == expected.dtype
    np.testing.assert_array_equal(to_numpy(xp, product), expected)


@given(
    # Any product of these is a normal float64, but not always one of a narrower dtype.
    case=reducible(dtypes=FLOATS + COMPLEX, values=st.floats(0.7, 1.4) | st.floats(-1.4, -0.7)),
    keepdims=keep,
    split_every=split_everys,
)
def test_float_products_are_exact_but_for_one_rounding(
    xp: Any, case: Any, keepdims: bool, split_every: Any
) -> None:
    (array, chunks), axis = case
    if array.dtype.kind == "c":
        array = array * array.dtype.type(0.6 + 0.8j)
    x = to_chunks(xp, array, chunks)
    product = dc.prod(x, axis, keepdims=keepdims, split_every=split_every)
    exact = np.prod(wide(array), axis, keepdims=keepdims)
    assert product.dtype == array.dtype
    bound = 4 * array.size * np.finfo("f8").eps * np.abs(exact)
    assert_near(to_numpy(xp, product), exact, bound)


@pytest.mark.parametrize("name", ["any", "all", "count_nonzero"])
@given(case=reducible(), keepdims=keep, split_every=split_everys)
def test_truths_are_numpys(xp: Any, name: str, case: Any, keepdims: bool, split_every: Any) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    result = getattr(dc, name)(x, axis, keepdims, split_every)
    expected = np.asarray(getattr(np, name)(array, axis, keepdims=keepdims))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


@pytest.mark.parametrize("name", ["min", "max"])
@given(case=reducible(dtypes=REAL), keepdims=keep, split_every=split_everys)
def test_extrema_are_numpys(
    xp: Any, name: str, case: Any, keepdims: bool, split_every: Any
) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    try:
        expected = getattr(np, name)(array, axis, keepdims=keepdims)
    except ValueError:
        with pytest.raises(ValueError, match=f"zero-size array to reduction operation {name}"):
            getattr(dc, name)(x, axis, keepdims, split_every)
    else:
        result = getattr(dc, name)(x, axis, keepdims, split_every)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(to_numpy(xp, result), expected)


@given(case=reducible(), keepdims=keep, split_every=split_everys)
def test_means_are_exact_but_for_one_rounding(
    xp: Any, case: Any, keepdims: bool, split_every: Any
) -> None:
    (array, chunks), axis = case
    result = dc.mean(to_chunks(xp, array, chunks), axis, keepdims=keepdims, split_every=split_every)
    with np.errstate(all="ignore"):
        exact = np.sum(wide(array), axis, keepdims=keepdims)
        count = array.size / max(exact.size, 1)
        exact, bound = exact / count, slack(array, axis, keepdims) / count
    assert result.dtype == np.mean(np.ones(1, array.dtype)).dtype
    assert result.shape == exact.shape
    assert_near(to_numpy(xp, result), exact, bound)


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
    deviations = np.random.default_rng(1).standard_normal(10_000)
    array = deviations + 1e9
    result = dc.describe(to_chunks(xp, array, 333))
    np.testing.assert_allclose(to_numpy(xp, result.var), np.var(array), rtol=1e-7)
    np.testing.assert_allclose(to_numpy(xp, result.std), np.std(array), rtol=1e-7)


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


def test_out_is_overwritten_and_returned(xp: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)
    x = to_chunks(xp, array, 2)
    for name in ("sum", "prod", "min", "max", "mean", "var", "any", "all"):
        expected = getattr(np, name)(array, axis=0)
        out = to_chunks(xp, np.zeros(4, expected.dtype), 3)
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


@pytest.mark.parametrize("function", [dc.min, dc.max])
def test_no_element_has_no_extremum_and_says_where(function: Any) -> None:
    with pytest.raises(ValueError, match=r"no identity: shape \(3, 0\), axes \(1,\)"):
        function(da.ones((3, 0)), axis=1)
    with pytest.raises(ValueError, match=r"no identity: shape \(0, 0\), axes \(0,\)"):
        function(da.ones((0, 0)), axis=0)
    assert function(da.ones((3, 0)), axis=0).compute().shape == (0,)


def test_the_mean_of_nothing_is_nan_without_a_warning(xp: Any) -> None:
    x = to_chunks(xp, np.empty((0, 3), "f4"), (1, 2))
    result = dask.compute(dc.mean(x, axis=0), scheduler="synchronous")[0]
    assert result.shape == (3,)
    assert bool(xp.isnan(result).all())


def test_states_of_many_chunks_do_not_round_in_between(xp: Any) -> None:
    # Each chunk's sum needs more than float32's 24 bits.
    array = np.tile(np.array([2.0**24, 1.0], "f4"), 500)
    assert to_numpy(xp, dc.sum(to_chunks(xp, array, 2))) == np.float32(500 * (2.0**24 + 1))
    assert to_numpy(xp, dc.mean(to_chunks(xp, array, 2))) == np.float32((2.0**24 + 1) / 2)


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

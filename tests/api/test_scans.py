"""Scans against NumPy, loops and exact arithmetic: both ways, by segments, by every method."""

from __future__ import annotations

from itertools import product
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import (
    BOOL,
    COMPLEX,
    FEWER,
    FLOATS,
    INTS,
    NUMBERS,
    REAL,
    arrays,
    assert_near,
    exactly_representable,
    scan_options,
    scannable,
    slack,
    wide,
)

import dask_coop as dc
from dask_coop.algebra import monoids

METHODS = ("reduce-then-scan", "sequential", "recompute")


#: By what to draw arrays for, the ufunc and the identity of scans that are NumPy's to the bit.
EXACT: dict[str, Any] = {
    "cumsum": (BOOL + INTS, np.add, lambda dtype: 0),
    "cumprod": (BOOL + INTS, np.multiply, lambda dtype: 1),
    "cummax": (REAL, np.maximum, lambda dtype: least(dtype, -1)),
    "cummin": (REAL, np.minimum, lambda dtype: least(dtype, 1)),
}


def least(dtype: Any, sign: int) -> Any:
    """Return the end of a dtype from which on extrema are looked for."""
    if dtype.kind == "f":
        return sign * np.inf
    low, high = (False, True) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return high if sign > 0 else low


def scan_line(
    ufunc: Any, identity: Any, line: Any, heads: Any, exclusive: bool, include_initial: bool
) -> list[Any]:
    """Return the scan of one line, element by element."""
    state, results = identity, [identity] if include_initial else []
    for value, restarts in zip(line, heads, strict=True):
        before = identity if restarts else state
        state = value if before is identity else ufunc(before, value)
        results.append(before if exclusive else state)
    return results


def oracle(
    ufunc: Any,
    identity: Any,
    array: Any,
    axis: int | None,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    include_initial: bool = False,
    segments: Any = None,
    method: str = "",
) -> Any:
    """Return the scan by loops, in the dtype of `array`."""
    segments = np.zeros(array.shape, "?") if segments is None else segments
    if axis is None:
        array, segments, axis = array.ravel(), segments.ravel(), 0
    array = np.moveaxis(array, axis, -1)
    if segments.ndim == array.ndim:
        segments = np.moveaxis(segments, axis, -1)
    segments = np.broadcast_to(segments, array.shape)
    step = -1 if reverse else 1
    result = np.empty((*array.shape[:-1], array.shape[-1] + include_initial), array.dtype)
    for index in np.ndindex(array.shape[:-1]):
        line, heads = array[index][::step], segments[index][::step]
        result[index][::step] = scan_line(ufunc, identity, line, heads, exclusive, include_initial)
    return np.moveaxis(result, -1, axis)


def with_chunks(xp: Any, options: dict[str, Any], chunks: Any = 7) -> dict[str, Any]:
    """Return the options with segments in chunks, which need not be those of the elements."""
    if "segments" not in options:
        return options
    return {**options, "segments": to_chunks(xp, options["segments"], chunks)}


@pytest.mark.parametrize("name", EXACT)
@given(data=st.data())
def test_scans_are_those_of_loops(xp: Any, name: str, data: Any) -> None:
    dtypes, ufunc, identity = EXACT[name]
    case, axis = data.draw(scannable(dtypes=dtypes))
    options = data.draw(scan_options(case, axis))
    result = getattr(dc, name)(to_chunks(xp, *case), axis, **with_chunks(xp, options))
    numpys = getattr(np, name, np.asarray)
    assert result.dtype == numpys(case.array).dtype
    with np.errstate(all="ignore"):
        start = result.dtype.type(identity(result.dtype))
        expected = oracle(ufunc, start, case.array.astype(result.dtype), axis, **options)
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@given(data=st.data())
def test_scans_are_exact_but_for_one_rounding(xp: Any, name: str, data: Any) -> None:
    values = st.floats(-1.5, 1.5, width=16) if name == "cumprod" else None
    case, axis = data.draw(scannable(dtypes=FLOATS + COMPLEX, values=values))
    options = data.draw(scan_options(case, axis))
    result = getattr(dc, name)(to_chunks(xp, *case), axis, **with_chunks(xp, options))
    ufunc, identity = (np.multiply, 1) if name == "cumprod" else (np.add, 0)
    with np.errstate(all="ignore"):
        exact = wide(case.array)
        exact = oracle(ufunc, exact.dtype.type(identity), exact, axis, **options)
    if name == "cumprod":
        bound = case.array.size * np.finfo("f8").eps * np.abs(exact) + np.finfo("f8").tiny
    else:
        bound = slack(case.array, axis, keepdims=axis is not None)
    assert result.dtype == case.array.dtype
    assert result.shape == exact.shape
    assert_near(to_numpy(xp, result), exact, bound)


LONG = [(40_000,), (3, 20_000), (20_000, 3), (600, 1100), (2, 9000, 2), (1, 5000, 40)]


@pytest.mark.each(2)
@pytest.mark.parametrize("shape", LONG, ids=str)
@pytest.mark.parametrize("density", [None, 0.0003, 0.2])
def test_lines_of_many_blocks(xp: Any, shape: tuple[int, ...], density: float | None) -> None:
    rng = np.random.default_rng(8)
    array = rng.integers(-9, 9, shape)
    for axis in range(len(shape)):
        if array.size // shape[axis] > 40_000:
            continue
        chunks = tuple(n if n < 9 else n // 2 + 1 for n in shape)
        x = to_chunks(xp, array, chunks)
        for sides in [shape, shape[axis : axis + 1]] if density else [()]:
            heads = rng.random(sides) < density if density else None
            for exclusive, reverse in ((False, False), (True, False), (False, True)):
                options: dict[str, Any] = {"exclusive": exclusive, "reverse": reverse}
                if heads is not None:
                    options["segments"] = heads
                expected = running_sum(array, heads, axis, exclusive, reverse)
                result = dc.cumsum(x, axis, **with_chunks(xp, options, 9999))
                np.testing.assert_array_equal(to_numpy(xp, result), expected)


def running_sum(array: Any, heads: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    """Return what `oracle` does of integers, by sums of all that came before the last head flag."""
    heads = np.zeros(array.shape, "?") if heads is None else heads
    array = np.moveaxis(array, axis, -1)
    heads = np.moveaxis(heads, axis, -1) if heads.ndim == array.ndim else heads
    heads = np.broadcast_to(heads, array.shape)
    if reverse:
        array, heads = array[..., ::-1], heads[..., ::-1]
    total = np.cumsum(array, -1)
    starts = np.where(heads, np.arange(array.shape[-1]), 0)
    start = np.maximum.accumulate(starts, -1)
    left = np.take_along_axis(total - array, start, -1)
    result = total - left - (array if exclusive else 0)
    return np.moveaxis(result[..., ::-1] if reverse else result, -1, axis)


@given(case=scannable(dtypes=NUMBERS))
def test_an_exclusive_scan_is_one_with_an_initial_value_without_its_last(
    xp: Any, case: Any
) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    for reverse in (False, True):
        exclusive = to_numpy(xp, dc.cumsum(x, axis, exclusive=True, reverse=reverse))
        longer = to_numpy(xp, dc.cumsum(x, axis, include_initial=True, reverse=reverse))
        along = 0 if axis is None else axis
        n = exclusive.shape[along]
        kept = range(1, n + 1) if reverse else range(n)
        expected = np.take(longer, kept, along)
        if array.dtype not in ("f8", "c16"):
            np.testing.assert_array_equal(exclusive, expected)
            continue
        # Some elements of these are added up by themselves, and begin elsewhere.
        sizes = np.where(np.isfinite(array), abs(array), 0).sum()
        ulps = 2 if xp is np else 16
        close = {"rtol": 0, "atol": ulps * np.finfo("f8").eps * sizes}
        np.testing.assert_allclose(exclusive, expected, **close)


def test_the_chunk_with_the_initial_value_is_one_longer(xp: Any) -> None:
    x = to_chunks(xp, np.ones((4, 9)), ((2, 2), (4, 0, 5)))
    for method in METHODS:
        forwards = dc.cumsum(x, 1, include_initial=True, method=method)
        backwards = dc.cumsum(x, 1, include_initial=True, reverse=True, method=method)
        assert forwards.chunks == ((2, 2), (5, 0, 5))
        assert backwards.chunks == ((2, 2), (4, 0, 6))
        for lazy in (forwards, backwards):
            for index in np.ndindex(lazy.numblocks):
                to_numpy(xp, lazy.blocks[index])


def test_segments_made_of_the_array_itself(xp: Any) -> None:
    array = np.random.default_rng(9).integers(0, 5, 200)
    x = to_chunks(xp, array, 13)
    expected = oracle(np.add, 0, array, 0, segments=array == 0)
    for method in METHODS:
        result = dc.cumsum(x, segments=x == 0, method=method)
        np.testing.assert_array_equal(to_numpy(xp, result), expected)


def test_segments_of_many_lines_go_on_behind_an_empty_chunk(xp: Any) -> None:
    """Their states are too many to go to a GPU's host, also those of no element."""
    array = np.arange(60_000.0).reshape(3, 20_000)
    heads = array % 7 == 0
    chunks = ((0, 1, 0, 2), (20_000,))
    x, segments = to_chunks(xp, array, chunks), to_chunks(xp, heads, chunks)
    expected = oracle(np.add, 0, array[:, :50], 0, segments=heads[:, :50])
    for method in METHODS:
        result = dc.cumsum(x, 0, segments=segments, method=method)
        np.testing.assert_array_equal(to_numpy(xp, result)[:, :50], expected)


def test_segments_may_be_a_list_or_an_array() -> None:
    for segments in ([False, True, False], np.array([False, True, False])):
        result = dc.cumsum(da.from_array(np.array([1, 2, 3]), chunks=2), segments=segments)
        np.testing.assert_array_equal(result, [1, 2, 5])


def test_unknown_chunk_sizes_need_not_be_known() -> None:
    array = np.arange(30)
    x = da.from_array(array, chunks=4)
    kept, x = array[array >= 9], x[x >= 9]
    for method in METHODS:
        result = dc.cumsum(x, reverse=True, exclusive=True, method=method).compute()
        np.testing.assert_array_equal(result, np.cumsum(kept[::-1])[::-1] - kept)
        longer = dc.cumsum(x, include_initial=True, method=method).compute()
        np.testing.assert_array_equal(longer, np.concatenate([[0], np.cumsum(kept)]))
        parts = dc.cumsum(x, segments=x % 10 == 0, method=method).compute()
        np.testing.assert_array_equal(parts, oracle(np.add, 0, kept, 0, segments=kept % 10 == 0))
    with pytest.raises(ValueError, match="segments must have the chunks of x"):
        dc.cumsum(x, segments=np.zeros(21, "?"))


def test_bad_options_are_refused_by_name(xp: Any) -> None:
    x = to_chunks(xp, np.ones((4, 6)), 2)
    with pytest.raises(ValueError, match="exclusive and include_initial"):
        dc.cumsum(x, 0, exclusive=True, include_initial=True)
    with pytest.raises(TypeError, match="segments must be of dtype bool, got int64"):
        dc.cumsum(x, 0, segments=to_chunks(xp, np.zeros(4, "i8"), 2))
    for sides in ((5,), (6, 4), (4, 1), ()):
        with pytest.raises(ValueError, match=r"segments must have the shape of x, \(4, 6\), or"):
            dc.cumsum(x, 0, segments=to_chunks(xp, np.zeros(sides, "?"), 2))
    if xp is not np:
        with pytest.raises(TypeError, match="x has cupy chunks and segments numpy chunks"):
            dc.cumsum(x, 0, segments=da.zeros(4, dtype="?"))
    for method in ("magic", None):
        with pytest.raises(ValueError, match="method must be one of"):
            dc.cumsum(x, 0, method=method)


def last_of(a: Any, b: Any) -> Any:
    return np.where(b != 0, b, a)


LAST = dc.Monoid("last", last_of, 0, "i8", cuda="b != 0 ? b : a")
AFFINE = dc.Monoid(
    "affine",
    lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]),
    (1, 0),
    "i8,i8",
    lift=lambda x: (x % 3, x),
    finalize=lambda f: f[1],
    cuda={"lift": "{x % 3, x}", "combine": "{a.f0 * b.f0, b.f0 * a.f1 + b.f1}"},
)


@given(case=scannable(dtypes=["i8"], values=st.integers(0, 5)), data=st.data())
def test_monoids_of_ones_own_keep_the_order(xp: Any, case: Any, data: Any) -> None:
    chunked, axis = case
    options = data.draw(scan_options(chunked, axis))
    x = to_chunks(xp, *chunked)
    result = dc.scan(x, LAST, axis, **with_chunks(xp, options))
    expected = oracle(lambda a, b: b or a, np.int64(0), chunked.array, axis, **options)
    np.testing.assert_array_equal(to_numpy(xp, result), expected)
    # A recurrence, y -> (x % 3) y + x, for which integers wrap.
    result = dc.scan(x, AFFINE, axis, **with_chunks(xp, options))
    with np.errstate(all="ignore"):
        values = chunked.array
        expected = oracle(lambda y, e: (e % 3) * y + e, np.int64(0), values, axis, **options)
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


@given(case=scannable(dtypes=NUMBERS))
def test_chunks_stay_as_they_are(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.cumsum(to_chunks(xp, array, chunks), axis)
    if axis is not None:
        assert result.chunks == chunks
    for index in np.ndindex(result.numblocks):
        block = result.blocks[index] if index else result
        to_numpy(xp, block)  # holds every block's shape to the promised one


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("axis", [0, 1])
def test_same_sign_scans_are_within_four_ulps_everywhere(xp: Any, dtype: str, axis: int) -> None:
    # 0.1 is no float, so that each addition in a narrow accumulator would round.
    largest = {"f2": 3000, "f4": 30_000}[dtype]
    array = np.random.default_rng(2).uniform(0.1, 1, (3, largest)).astype(dtype)
    array, chunks = (array, (2, 777)) if axis else (array.T, (777, 2))
    exact = np.cumsum(wide(array), axis)
    assert_near(to_numpy(xp, dc.cumsum(to_chunks(xp, array, chunks), axis)), exact, ulps=4)
    # What the bound is there to keep out: a scan in the elements' own dtype.
    with pytest.raises(AssertionError, match="ulp off"):
        assert_near(np.cumsum(array, axis), exact, ulps=4)


def test_nan_and_infinities_reach_all_that_comes_after(xp: Any) -> None:
    inf, nan = np.inf, np.nan
    for array in ([1, inf, 2, 3, -inf, 4, 5], [1, 2, nan, 3, inf, 4], [-inf, 1, -inf, 2, nan]):
        expected = np.array([sum(array[: i + 1]) for i in range(len(array))])
        for chunk in (1, 2, 3, 7):
            result = dc.cumsum(to_chunks(xp, np.array(array, "f4"), chunk))
            np.testing.assert_array_equal(to_numpy(xp, result), expected)


@pytest.mark.parametrize("output", INTS)
@FEWER
@given(case=scannable(dtypes=BOOL + INTS))
def test_integers_wrap_to_any_other_as_numpys(xp: Any, output: str, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.cumsum(to_chunks(xp, array, chunks), axis, output)
    np.testing.assert_array_equal(to_numpy(xp, result), np.cumsum(array, axis, output))


@pytest.mark.parametrize("pieces", [1, 2, 15, 16, 17, 18, 32, 33, 34, 272, 273, 274, 300])
def test_every_shape_of_spine(xp: Any, pieces: int) -> None:
    array = np.arange(2 * pieces + 1)
    chunks = (*(2,) * (pieces - 1), 3)
    x = to_chunks(xp, array, (chunks,))
    np.testing.assert_array_equal(to_numpy(xp, dc.cumsum(x)), np.cumsum(array))


def test_the_flattened_scan_follows_c_order(xp: Any) -> None:
    array = np.arange(120).reshape(4, 5, 6)
    for order in "CF":
        x = to_chunks(xp, np.asarray(array, order=order), (3, 2, 4))
        np.testing.assert_array_equal(to_numpy(xp, dc.cumsum(x)), np.cumsum(array))


def test_out_is_overwritten_and_returned(xp: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)
    x, out = to_chunks(xp, array, 2), to_chunks(xp, np.zeros((3, 4)), 3)
    assert dc.cumsum(x, axis=0, out=out) is out
    np.testing.assert_array_equal(to_numpy(xp, out), np.cumsum(array, axis=0))
    longer = to_chunks(xp, np.zeros((4, 4)), 3)
    assert dc.cumulative_sum(x, axis=0, out=longer, include_initial=True) is longer
    np.testing.assert_array_equal(to_numpy(xp, longer)[1:], np.cumsum(array, axis=0))
    np.testing.assert_array_equal(to_numpy(xp, longer)[0], np.zeros(4))


def test_the_input_is_left_alone(xp: Any) -> None:
    for dtype in ("f8", "i8"):
        array = np.arange(9).astype(dtype)
        x = to_chunks(xp, array, 3).persist()
        for _ in range(2):
            np.testing.assert_array_equal(to_numpy(xp, dc.cumsum(x)), np.cumsum(np.arange(9)))
        np.testing.assert_array_equal(to_numpy(xp, x), np.arange(9))


def test_blelloch_is_accepted_as_dasks_name(xp: Any) -> None:
    x = to_chunks(xp, np.arange(50), 3)
    result = dc.cumsum(x, method="blelloch")
    np.testing.assert_array_equal(to_numpy(xp, result), np.cumsum(np.arange(50)))
    assert result.name == dc.cumsum(x, method="reduce-then-scan").name


@pytest.mark.parametrize("x", [[1, 2, 3], np.float32(3.5), np.arange(6).reshape(2, 3), 7])
def test_what_is_not_a_dask_array_becomes_one(x: Any) -> None:
    result = dc.cumsum(x)
    assert isinstance(result, da.Array)
    np.testing.assert_array_equal(result.compute(), np.cumsum(x))


def test_other_byte_orders_are_read() -> None:
    array = np.array([1.5, -2.25, 8.0], ">f4")
    result = dc.cumsum(da.from_array(array, chunks=2)).compute()
    np.testing.assert_array_equal(result, np.cumsum(array))


@pytest.mark.parametrize("axis", [1, -2, 7])
def test_bad_axes_are_refused_by_name(axis: int) -> None:
    with pytest.raises(np.exceptions.AxisError, match=f"(?i)axis {axis} is out of bounds"):
        dc.cumsum(da.ones(3), axis)


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "M8[s]", "g", "V4"])
def test_other_dtypes_are_refused_by_name_where_dask_is_no_help(dtype: str) -> None:
    with pytest.raises(TypeError, match="cumsum does not take dtype") as caught:
        dc.cumsum(da.from_array(np.zeros(4, dtype), chunks=2), exclusive=True)
    assert str(np.dtype(dtype)) in str(caught.value)
    with pytest.raises(TypeError, match="cumsum does not take dtype"):
        dc.cumsum(da.ones(3), dtype=dtype, exclusive=True)


def test_other_kinds_of_chunk_are_refused_by_name_where_dask_is_no_help() -> None:
    class Quantity(np.ndarray[Any, Any]):
        pass

    plain = da.ones(4, chunks=2)
    strange = da.Array(plain.dask, plain.name, plain.chunks, meta=np.empty(0).view(Quantity))
    with pytest.raises(TypeError, match="Quantity"):
        dc.cumsum(strange, reverse=True)


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
    values = np.array(exactly_representable(dtype, output)).astype(dtype)
    for name, array, size in (
        ("cumsum", np.tile(values, 3), 5),
        ("cumprod", values, 2),
        ("cummax", values, 2),
    ):
        if name == "cummax" and "c" in dtype[0] + output[0]:
            continue
        result = getattr(dc, name)(to_chunks(xp, array, size), dtype=output)
        assert result.dtype == output
        numpys = getattr(np, name, lambda x, dtype: np.maximum.accumulate(x.astype(dtype)))
        np.testing.assert_array_equal(to_numpy(xp, result), numpys(array, dtype=output))


@given(case=scannable(dtypes=FLOATS))
def test_logarithms_are_those_of_logaddexp(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.logcumsumexp(to_chunks(xp, array, chunks), axis)
    lines = wide(array.ravel() if axis is None else array)
    with np.errstate(all="ignore"):
        exact = np.logaddexp.accumulate(lines, axis or 0)
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


@pytest.mark.parametrize(
    ("monoid", "reduction"),
    [
        (monoids.ANY, np.any),
        (monoids.ALL, np.all),
        (monoids.COUNT_NONZERO, np.count_nonzero),
        (monoids.MAX, np.max),
    ],
    ids=lambda value: getattr(value, "name", None),
)
@given(
    case=arrays(dtypes=REAL, shape=st.tuples(st.integers(1, 60))), method=st.sampled_from(METHODS)
)
@settings(max_examples=20)
def test_a_scan_by_any_monoid_is_that_of_its_reductions(
    xp: Any, monoid: Any, reduction: Any, case: Any, method: str
) -> None:
    array, chunks = case
    expected = np.array([reduction(array[: i + 1]) for i in range(array.size)])
    result = dc.scan(to_chunks(xp, array, chunks), monoid, method=method)
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
    expected = np.insert(np.cumsum(array[:20]), 0, 0)
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


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
@given(case=scannable(dtypes=BOOL + INTS), initial=st.booleans())
def test_cumulative_functions_are_numpys(xp: Any, name: str, case: Any, initial: bool) -> None:
    if not hasattr(np, name):
        pytest.skip(f"NumPy {np.__version__} has no {name}")
    (array, chunks), axis = case
    x, options = to_chunks(xp, array, chunks), {"axis": axis, "include_initial": initial}
    if axis is None and array.ndim > 1:
        with pytest.raises(ValueError, match="``axis`` argument is required"):
            getattr(dc, name)(x, include_initial=initial)
        return
    result, expected = getattr(dc, name)(x, **options), getattr(np, name)(array, **options)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(to_numpy(xp, result), expected)

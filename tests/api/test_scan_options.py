"""Scans in both directions, exclusive, with an initial value, by segments and by every method."""

from __future__ import annotations

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
    arrays,
    assert_near,
    scan_options,
    scannable,
    slack,
    wide,
)

import dask_coop as dc

METHODS = ("reduce-then-scan", "sequential", "recompute")


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


@given(case=scannable(dtypes=BOOL + INTS), data=st.data())
def test_integer_sums_are_those_of_loops(xp: Any, case: Any, data: Any) -> None:
    chunked, axis = case
    options = data.draw(scan_options(chunked, axis))
    result = dc.cumsum(to_chunks(xp, *chunked), axis, **with_chunks(xp, options))
    assert result.dtype == np.cumsum(chunked.array).dtype
    with np.errstate(all="ignore"):
        expected = oracle(
            np.add, result.dtype.type(0), chunked.array.astype(result.dtype), axis, **options
        )
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


@given(case=scannable(dtypes=FLOATS + COMPLEX), data=st.data())
def test_float_sums_are_exact_but_for_one_rounding(xp: Any, case: Any, data: Any) -> None:
    chunked, axis = case
    options = data.draw(scan_options(chunked, axis))
    result = dc.cumsum(to_chunks(xp, *chunked), axis, **with_chunks(xp, options))
    with np.errstate(all="ignore"):
        exact = wide(chunked.array)
        exact = oracle(np.add, exact.dtype.type(0), exact, axis, **options)
    bound = slack(chunked.array) if axis is None else slack(chunked.array, axis, keepdims=True)
    assert result.dtype == chunked.array.dtype
    assert_near(to_numpy(xp, result), exact, bound)


@given(case=scannable(dtypes=BOOL + INTS + FLOATS), data=st.data())
def test_extrema_are_those_of_loops(xp: Any, case: Any, data: Any) -> None:
    chunked, axis = case
    options = data.draw(scan_options(chunked, axis))
    for function, ufunc, sign in ((dc.cummax, np.maximum, -1), (dc.cummin, np.minimum, 1)):
        dtype = chunked.array.dtype
        if dtype.kind == "b":
            identity = np.bool_(sign > 0)
        elif dtype.kind == "f":
            identity = dtype.type(sign * np.inf)
        else:
            identity = dtype.type(np.iinfo(dtype).max if sign > 0 else np.iinfo(dtype).min)
        result = function(to_chunks(xp, *chunked), axis, **with_chunks(xp, options))
        expected = oracle(ufunc, identity, chunked.array, axis, **options)
        assert result.dtype == dtype
        np.testing.assert_array_equal(to_numpy(xp, result), expected)


LONG = [(40_000,), (3, 20_000), (20_000, 3), (600, 1100), (2, 9000, 2), (1, 5000, 40)]


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


@given(case=arrays(dtypes=NUMBERS, shape=st.tuples(st.integers(0, 90))))
def test_a_reverse_scan_is_that_of_the_reversed(xp: Any, case: Any) -> None:
    array, (sizes,) = case
    backwards = to_numpy(xp, dc.cumsum(to_chunks(xp, array, (sizes,)), reverse=True))
    forwards = to_numpy(xp, dc.cumsum(to_chunks(xp, array[::-1].copy(), (sizes[::-1],))))
    bound = 2 * slack(array)
    if array.dtype.kind in "biu":
        np.testing.assert_array_equal(backwards, forwards[::-1])
    elif np.isfinite(array).all():
        assert_near(backwards, wide(forwards[::-1]), bound)


@given(case=scannable(dtypes=INTS), data=st.data())
def test_every_method_gives_the_same(xp: Any, case: Any, data: Any) -> None:
    chunked, axis = case
    options = with_chunks(xp, data.draw(scan_options(chunked, axis)))
    x = to_chunks(xp, *chunked)
    first, *rest = (
        to_numpy(xp, dc.cumsum(x, axis, **{**options, "method": method})) for method in METHODS
    )
    for other in rest:
        np.testing.assert_array_equal(first, other)


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
            dc.cumsum(x, 0, segments=np.zeros(4, "?"))
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

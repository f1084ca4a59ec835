"""topk, argtopk, sort and argsort against NumPy: ties, NaN, dates, chunks of any size."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import example, given
from hypothesis import strategies as st
from support.strategies import FLOATS, REAL, Chunked, arrays, shapes

import dask_coop as dc
from dask_coop.algebra.topk import best

few = st.sampled_from([0, 1, 2, np.nan, np.inf, -np.inf, -0.0])


@st.composite
def selectable(draw: st.DrawFn, **kwargs: Any) -> tuple[Chunked, int, int]:
    """An array with chunks, one axis of it, and how many elements are wanted."""
    case = draw(arrays(shape=shapes(1), **kwargs))
    ndim = case.array.ndim
    return case, draw(st.integers(-ndim, ndim - 1)), draw(st.integers(-25, 25))


def first(array: Any, k: int, axis: int) -> Any:
    """Return the indices of the k best elements, those of equal ones in their order."""
    lines = np.moveaxis(array, axis, -1)
    if k < 0:
        order = np.argsort(lines, -1, stable=True)
    else:
        order = lines.shape[-1] - 1 - np.argsort(lines[..., ::-1], -1, stable=True)[..., ::-1]
    return np.moveaxis(order[..., : abs(k)], -1, axis)


def check(xp: Any, array: Any, chunks: Any, axis: int, k: int, **options: Any) -> None:
    x, at = to_chunks(xp, array, chunks), first(array, k, axis)
    indices = dc.argtopk(x, k, axis, **options)
    assert indices.dtype == "i8"
    assert indices.numblocks[axis] == 1
    np.testing.assert_array_equal(to_numpy(xp, indices), at)
    values = to_numpy(xp, dc.topk(x, k, axis, **options))
    assert values.dtype == array.dtype
    np.testing.assert_array_equal(values, np.take_along_axis(array, at, axis))


@given(case=selectable(dtypes=REAL), split_every=st.none() | st.integers(2, 20))
def test_the_best_are_numpys(xp: Any, case: Any, split_every: Any) -> None:
    (array, chunks), axis, k = case
    check(xp, array, chunks, axis, k, split_every=split_every)


@given(case=selectable(dtypes=FLOATS, values=few))
def test_the_first_of_ties_and_of_nan_win(xp: Any, case: Any) -> None:
    (array, chunks), axis, k = case
    check(xp, array, chunks, axis, k)


@given(
    shape=st.sampled_from([(9000,), (3, 1500), (1500, 3), (40, 2, 700), (2, 700, 40)]),
    k=st.sampled_from([1, -1, 7, -10, 300, -300]),
    dtype=st.sampled_from(["?", "i1", "u4", "i8", "u8", "f2", "f4", "f8", "M8[s]", "m8[ns]"]),
    style=st.sampled_from(["random", "equal", "rising", "falling", "nan"]),
    order=st.sampled_from("CF"),
)
@example(shape=(9000,), k=-10, dtype="f8", style="nan", order="C")
@example(shape=(9000,), k=10, dtype="f4", style="nan", order="C")
@example(shape=(3, 1500), k=-7, dtype="f4", style="nan", order="C")
@example(shape=(1500, 3), k=7, dtype="u8", style="random", order="C")
@example(shape=(9000,), k=300, dtype="f8", style="random", order="C")
def test_lines_long_enough_for_bounds(
    shape: Any, k: int, dtype: str, style: str, order: str
) -> None:
    n = int(np.prod(shape))
    array = np.random.default_rng(n).integers(-500, 500, n)
    if style in ("rising", "falling"):
        array = np.sort(array)[:: 1 if style == "rising" else -1]
    array = (np.full(n, 7) if style == "equal" else array).reshape(shape).astype(dtype)
    if style == "nan" and array.dtype.kind in "fmM":
        nothing = np.array("nan" if array.dtype.kind == "f" else "NaT", array.dtype)
        array[np.random.default_rng(0).random(shape) < 0.9] = nothing
    array = np.asarray(array, order=order)  # type: ignore[call-overload]
    for axis in range(len(shape)):
        check(np, array, tuple(max(1, side // 2 + 1) for side in shape), axis, k)
        check(np, array, shape, axis, k)


def test_ties_are_the_same_for_every_chunking_and_on_every_run(xp: Any) -> None:
    array = np.random.default_rng(0).integers(0, 3, 3000).astype("f4")
    for size in (1000, 37, 3000):
        for k in (20, -20, 1500):
            check(xp, array, size, 0, k)


def test_more_than_there_are_and_none(xp: Any) -> None:
    array = np.array([[3, 1, 2], [6, 5, 4]], "i4")
    for k in (0, 3, -3, 4, -9):
        check(xp, array, (1, 2), 1, k)
    check(xp, np.zeros((0, 4), "f4"), (1, 2), 0, 3)
    check(xp, np.zeros((0, 4), "f4"), (1, 2), 1, -3)
    check(xp, np.zeros((4, 0), "f4"), (2, 1), 1, 3)
    check(xp, np.zeros((0, 9000), "f4"), 9000, 1, 3)
    check(xp, np.zeros((9000, 0), "f4"), 9000, 0, 3)


def test_any_byte_order_and_any_kind_of_input() -> None:
    x = da.from_array(np.array([3, 1, 2], ">f4"), chunks=2)
    assert dc.topk(x, 2).dtype == np.dtype("f4").newbyteorder("=")
    np.testing.assert_array_equal(dc.topk(x, 2).compute(), [3, 2])
    np.testing.assert_array_equal(dc.argtopk([3, 1, 2], -2).compute(), [1, 2])


def test_lengths_that_are_not_known(xp: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)
    x = to_chunks(xp, array, (2, 2))
    unknown = x[x[:, 0] > 3]
    assert np.isnan(dc.topk(unknown, 5, axis=0).shape[0])
    result = dc.topk(unknown, 5, axis=0).compute()
    np.testing.assert_array_equal(result if xp is np else xp.asnumpy(result), array[:0:-1])
    np.testing.assert_array_equal(np.asarray(dc.topk(unknown, 5, axis=1).shape), [np.nan, 4])
    with pytest.raises(ValueError, match="does not count along axis 0, which has unknown"):
        dc.argtopk(unknown, 1, axis=0)


def test_large_chunks_are_shared_by_threads() -> None:
    array = np.random.default_rng(0).integers(0, 99, (3, 1 << 21)).astype("f4")
    with dask.config.set({"coop.threads": 4}):
        for x in (da.from_array(array, chunks=-1), da.from_array(array.T, chunks=-1)):
            axis = int(np.argmax(x.shape))
            found = dc.argtopk(x, 9, axis).compute()
            np.testing.assert_array_equal(found, first(x.compute(), 9, axis))
            across = dc.argtopk(x, 2, 1 - axis).compute()
            np.testing.assert_array_equal(across, first(x.compute(), 2, 1 - axis))


@pytest.mark.parametrize("name", ["topk", "argtopk"])
def test_what_is_wrong_is_refused(name: str) -> None:
    function, x = getattr(dc, name), da.ones((4, 4), chunks=2)
    with pytest.raises(TypeError, match=r"takes an integer for k, got 1\.5"):
        function(x, 1.5)
    with pytest.raises(TypeError, match=r"takes an integer for axis, got None"):
        function(x, 1, None)
    with pytest.raises(np.exceptions.AxisError):
        function(x, 1, 2)
    with pytest.raises(ValueError, match="split_every must be at least 2, got 1"):
        function(x, 1, split_every=1)
    with pytest.raises(TypeError, match="does not take masked arrays; fill them"):
        function(da.ma.masked_greater(x, 1), 1)
    hidden = x.map_blocks(np.ma.masked_greater, 0.5, dtype=x.dtype, meta=x._meta)
    with pytest.raises(TypeError, match="MaskedArray"):
        function(hidden, 1).compute(scheduler="synchronous")


def test_complex_numbers_are_left_to_dask() -> None:
    array = np.random.default_rng(0).normal(size=(20, 2)).view("c16")[:, 0]
    found = dc.topk(da.from_array(array, chunks=6), 3).compute()
    np.testing.assert_array_equal(found, np.sort(array)[:-4:-1])
    with dask.config.set({"coop.fallback": "raise"}), pytest.raises(dc.Refused, match="complex128"):
        dc.topk(da.from_array(array, chunks=6), 3)


def test_the_monoid_pickles_as_a_call() -> None:
    for row in (best(5, True), best(-3, False)):
        assert pickle.loads(pickle.dumps(row)) is row


@given(case=selectable(dtypes=REAL), stable=st.sampled_from([None, True, False]))
def test_sorts_are_numpys(xp: Any, case: Any, stable: Any) -> None:
    (array, chunks), axis, _ = case
    x = to_chunks(xp, array, chunks)
    result = dc.sort(x, axis, stable=stable)
    assert result.numblocks[axis] == 1
    np.testing.assert_array_equal(to_numpy(xp, result), np.sort(array, axis))
    indices = dc.argsort(x, axis, stable=True)
    assert indices.dtype == "i8"
    np.testing.assert_array_equal(to_numpy(xp, indices), np.argsort(array, axis, stable=True))
    order = to_numpy(xp, dc.argsort(x, axis, stable=stable))
    np.testing.assert_array_equal(np.take_along_axis(array, order, axis), np.sort(array, axis))


@given(case=selectable(dtypes=REAL), stable=st.sampled_from([None, True]))
def test_descending_sorts_begin_with_the_largest_and_end_with_nan(
    xp: Any, case: Any, stable: Any
) -> None:
    (array, chunks), axis, _ = case
    x, n = to_chunks(xp, array, chunks), array.shape[axis]
    backward = np.flip(n - 1 - np.argsort(np.flip(array, axis), axis, stable=True), axis)
    missing = np.take_along_axis(array != array, backward, axis)
    expected = np.take_along_axis(backward, np.argsort(missing, axis, stable=True), axis)
    indices = to_numpy(xp, dc.argsort(x, axis, stable=True, descending=True))
    np.testing.assert_array_equal(indices, expected)
    values = to_numpy(xp, dc.sort(x, axis, stable=stable, descending=True))
    np.testing.assert_array_equal(values, np.take_along_axis(array, expected, axis), strict=True)


@pytest.mark.parametrize(
    ("elements", "order"),
    [
        (np.array(["b", "a", "c", "b"]), [2, 0, 3, 1]),
        (np.array([3, "NaT", 1, 3, -(2**63) + 1, 2**63 - 1], "M8[s]"), [5, 0, 3, 2, 4, 1]),
        (np.array([1j, np.nan, 0, -1, 1j + 1]), [4, 0, 2, 3, 1]),
        (np.array([0, 255, 1, 255], "u1"), [1, 3, 2, 0]),
        (np.array([1, 256, 3], ">u2"), [1, 2, 0]),
        (np.array([1, "NaT", 3], ">M8[s]"), [2, 0, 1]),
        (np.array([-128, 127, 0], "i1"), [1, 2, 0]),
        (np.array([False, True, False]), [1, 0, 2]),
    ],
)
def test_descending_sorts_take_what_sorts_do(elements: Any, order: list[int]) -> None:
    x = da.from_array(elements, chunks=2)
    found = dc.argsort(x, stable=True, descending=True).compute()
    np.testing.assert_array_equal(found, order)
    values = dc.sort(x, descending=True).compute()
    np.testing.assert_array_equal(values, elements[order], strict=True)


def test_sorts_of_flattened_arrays(xp: Any) -> None:
    array = np.array([[3, 1, 2], [6, 5, 1]], "i4")
    x = to_chunks(xp, array, (1, 2))
    np.testing.assert_array_equal(to_numpy(xp, dc.sort(x, None)), np.sort(array, None))
    found = to_numpy(xp, dc.argsort(x, None, "stable"))
    np.testing.assert_array_equal(found, np.argsort(array, None, "stable"))
    np.testing.assert_array_equal(to_numpy(xp, dc.sort(to_chunks(xp, array[0, 0], ()), None)), [3])
    holes = to_chunks(xp, array, ((1, 0, 1), (3, 0)))
    np.testing.assert_array_equal(to_numpy(xp, dc.sort(holes, None)), np.sort(array, None))
    assert to_numpy(xp, dc.argsort(to_chunks(xp, array[:0], (1, 2)), None)).shape == (0,)


def test_lines_are_gathered_into_chunks_of_about_their_size() -> None:
    x = da.ones((4000, 3000), chunks=(1000, 1000))
    result = dc.sort(x, 0)
    assert result.numblocks[0] == 1
    largest = max(result.chunks[1]) * 4000
    assert 500 * 500 <= largest <= 1100 * 1000
    assert dc.sort(x.rechunk((4000, 1000)), 0).chunks == ((4000,), (1000,) * 3)


def test_sorts_take_what_numpys_do() -> None:
    words = np.array(["b", "a", "c"])
    np.testing.assert_array_equal(dc.sort(da.from_array(words, chunks=2)).compute(), np.sort(words))
    z = np.array([1j, np.nan, 0, -1])
    np.testing.assert_array_equal(dc.sort(da.from_array(z, chunks=2)).compute(), np.sort(z))
    times = np.array([3, "NaT", 1], "M8[s]")
    np.testing.assert_array_equal(dc.sort(da.from_array(times, chunks=2)).compute(), np.sort(times))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ["sort", "argsort"])
@pytest.mark.parametrize("shape", [(24,), (12, 5), (7, 3, 4)])
def test_chunk_sizes_need_not_be_known(xp: Any, name: str, axis: Any, shape: Any) -> None:
    array = np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape)
    if axis == 1 and len(shape) == 1:
        return
    for least in (5, array.max() + 1):
        rows = array.reshape(len(array), -1)[:, 0] >= least
        x = to_chunks(xp, array, 2)
        some = x[to_chunks(xp, rows, 2)]
        assert np.isnan(some.shape[0])
        result = getattr(dc, name)(some, axis)
        assert result.ndim == (1 if axis is None else array.ndim)
        found = result.compute(scheduler="synchronous")
        assert isinstance(found, xp.ndarray)
        found = found if xp is np else xp.asnumpy(found)
        expected = getattr(np, name)(array[rows], axis)
        np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("name", ["sort", "argsort"])
def test_sorts_that_make_no_sense_are_refused(name: str) -> None:
    function, x = getattr(dc, name), da.ones((4, 4), chunks=2)
    with pytest.raises(ValueError, match=r"kind must be one of quicksort, .*, got 'bubble'"):
        function(x, kind="bubble")
    with pytest.raises(ValueError, match="takes kind or stable and not both"):
        function(x, kind="stable", stable=True)
    with pytest.raises(ValueError, match="takes no order of fields, got order='a'"):
        function(x, order="a")
    with pytest.raises(np.exceptions.AxisError):
        function(x, 2)
    with pytest.raises(TypeError, match="does not take masked arrays"):
        function(da.ma.masked_greater(x, 1))
    with pytest.raises(TypeError, match="take one of its fields"):
        function(da.zeros(3, dtype=[("a", "i4")], chunks=2))
    hidden = x.map_blocks(np.ma.masked_greater, 0.5, dtype=x.dtype, meta=x._meta)
    with pytest.raises(TypeError, match="MaskedArray"):
        function(hidden).compute(scheduler="synchronous")


@pytest.mark.each(2)
@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("k", [1, -1, 40, -40])
def test_long_lines_are_counted_by_digits(
    xp: Any, dtype: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if xp is not np:
        from dask_coop.chunks.cupy import topk

        monkeypatch.setattr(topk, "_LONG", 1)
    rng = np.random.default_rng(5)
    kinds = [rng.standard_normal(5000) * 90, rng.integers(0, 3, 5000), np.zeros(5000)]
    kinds += [np.arange(5000.0), rng.choice([0.0, -0.0, 1e-7, -1e-7], 5000)]
    kinds += [np.where(rng.random(5000) < 0.995, 5, kinds[0])]
    for values in kinds:
        array = np.abs(values).astype(dtype) if dtype[0] in "?u" else values.astype(dtype)
        check(xp, array, 2500, 0, k)
        check(xp, array.reshape(2, 2500), (1, 2500), 1, k)
        if array.dtype.kind == "f":
            for missing in (0.001, 0.5, 1):
                nan = array.dtype.type(np.nan)
                check(xp, np.where(rng.random(5000) < missing, nan, array), 5000, 0, k)

"""What masks select, and where elements are not zero, against NumPy's, in any chunks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import BOOL, NUMBERS, Chunked, arrays, chunkings

import dask_coop as dc

FINDERS = ("nonzero", "flatnonzero", "argwhere")
SIZES = [{}, {"sizes": "compute"}, {"sizes": "compute", "balanced": True}]


def compute(xp: Any, lazy: da.Array) -> Any:
    """Compute a lazy array, hold it to what it promised, and return NumPy's."""
    assert type(lazy._meta) is xp.ndarray
    result = lazy.compute(scheduler="synchronous")
    assert isinstance(result, xp.ndarray)
    assert result.dtype == lazy.dtype
    assert result.ndim == lazy.ndim
    for n, promised in zip(result.shape, lazy.shape, strict=True):
        assert promised != promised or promised == n
    return result if xp is np else xp.asnumpy(result)


def same(xp: Any, lazy: da.Array, expected: Any, how: dict[str, Any]) -> None:
    actual = compute(xp, lazy)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)
    if how:
        assert lazy.shape == expected.shape


def is_even(sizes: tuple[int, ...]) -> bool:
    return max(sizes) - min(sizes) <= 1


@st.composite
def masked(draw: st.DrawFn, lead: st.SearchStrategy[int] | None = None) -> tuple[Chunked, Chunked]:
    """An array, and a mask of its leading axes, of all by default, in chunks of its own."""
    case = draw(arrays(dtypes=NUMBERS))
    sides = case.array.shape
    sides = sides if lead is None else sides[: draw(lead) % (len(sides) + 1)]
    rate = draw(st.sampled_from([0, 0.1, 0.5, 0.9, 1]))
    mask = np.random.default_rng(draw(st.integers(0, 99))).random(sides) < rate
    return case, Chunked(np.asarray(mask), draw(chunkings(sides)))


@given(case=masked(), how=st.sampled_from(SIZES), lazily=st.booleans())
def test_a_mask_selects_what_it_does_of_numpys(
    xp: Any, case: Any, how: dict[str, Any], lazily: bool
) -> None:
    (array, sizes), (mask, cuts) = case
    x = to_chunks(xp, array, sizes)
    chosen = to_chunks(xp, mask, cuts) if lazily else mask
    same(xp, dc.select(x, chosen, **how), array[mask], how)
    same(xp, dc.extract(chosen, x, **how), np.extract(mask, array), how)


@given(case=masked(st.integers(0, 4)), how=st.sampled_from(SIZES))
def test_a_mask_of_leading_axes_selects_slices(xp: Any, case: Any, how: dict[str, Any]) -> None:
    (array, sizes), (mask, cuts) = case
    lazy = dc.select(to_chunks(xp, array, sizes), to_chunks(xp, mask, cuts), **how)
    same(xp, lazy, array[mask], how)


@given(data=st.data(), case=arrays(dtypes=NUMBERS), how=st.sampled_from(SIZES))
def test_compress_is_numpys(xp: Any, data: Any, case: Any, how: dict[str, Any]) -> None:
    array, sizes = case
    ndim = array.ndim
    axis = data.draw(st.none() | st.integers(-ndim, ndim - 1) if ndim else st.none())
    n = array.size if axis is None else array.shape[axis]
    condition = data.draw(st.lists(st.integers(0, 1), min_size=max(n - 2, 0), max_size=n))
    x = to_chunks(xp, array, sizes)
    expected = np.compress(condition, array, axis)
    same(xp, dc.compress(condition, x, axis, **how), expected, how)
    if len(condition) == n:
        lazy = to_chunks(xp, np.array(condition, "i4"), 3)
        same(xp, dc.compress(lazy, x, axis, **how), expected, how)


@given(case=arrays(dtypes=NUMBERS), how=st.sampled_from(SIZES))
def test_what_is_not_zero_is_where_numpy_finds_it(xp: Any, case: Any, how: dict[str, Any]) -> None:
    array, sizes = case
    x = to_chunks(xp, array, sizes)
    for name in FINDERS:
        if name == "nonzero" and not array.ndim:
            continue
        found, expected = getattr(dc, name)(x, **how), getattr(np, name)(array)
        if name != "nonzero":
            found, expected = (found,), (expected,)
        for lazy, indices in zip(found, expected, strict=True):
            same(xp, lazy, indices, how)


def test_nan_is_not_zero_and_minus_zero_is(xp: Any) -> None:
    for dtype in ("f2", "f4", "f8"):
        x = to_chunks(xp, np.array([0.0, -0.0, np.nan, -np.nan, 1e-7], dtype), 2)
        assert compute(xp, dc.flatnonzero(x)).tolist() == [2, 3, 4]
    odd = np.array([0, -0.0j, complex(0, np.nan), complex(-0.0, -0.0), 1e-9j], "c8")
    assert compute(xp, dc.flatnonzero(to_chunks(xp, odd, 3))).tolist() == [2, 4]


@pytest.mark.parametrize("dtype", ["M8[ns]", "m8[s]", "O", "U3", "S2", [("a", "i4"), ("b", "f8")]])
def test_dtypes_that_only_numpy_has(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    array = np.zeros((9, 4), dtype)
    some = rng.random((9, 4)) < 0.6
    array[some] = np.array([3, 5, 2], "i8").astype("U3" if dtype == "U3" else dtype)[0]
    if np.dtype(dtype).kind in "mM":
        array[0, 1] = "NaT"
    x, mask = da.from_array(array, chunks=(2, 3)), rng.random((9, 4)) < 0.5
    for how in SIZES:
        same(np, dc.select(x, mask, **how), array[mask], how)
        same(np, dc.compress(mask[0], x, 1, **how), array.compress(mask[0], 1), how)
        same(np, dc.flatnonzero(x, **how), np.flatnonzero(array), how)


@pytest.mark.parametrize("how", SIZES)
def test_what_is_masked_stays_masked_and_is_zero(how: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    array = np.ma.array(rng.integers(0, 3, (7, 5)), mask=rng.random((7, 5)) < 0.4)
    x, mask = da.from_array(array, chunks=(2, 3)), rng.random((7, 5)) < 0.5
    for lazy, expected in (
        (dc.select(x, mask, **how), array[mask]),
        (dc.select(x, mask[:, 0], **how), array[mask[:, 0]]),
        (dc.compress(mask[0], x, 1, **how), array.compress(mask[0], 1)),
    ):
        assert type(lazy._meta) is np.ma.MaskedArray
        found = lazy.compute(scheduler="synchronous")
        np.testing.assert_array_equal(np.ma.getmaskarray(found), np.ma.getmaskarray(expected))
        np.testing.assert_array_equal(found.filled(9), expected.filled(9))
    same(np, dc.argwhere(x, **how), np.argwhere(array), how)
    chosen = np.ma.array(mask, mask=rng.random((7, 5)) < 0.5)
    lazy = dc.select(da.from_array(array.data, chunks=3), da.from_array(chosen, chunks=2), **how)
    same(np, lazy, array.data[chosen.filled(False)], how)


def test_chunks_are_kept_where_they_are_in_order(xp: Any) -> None:
    x = to_chunks(xp, np.arange(24.0).reshape(6, 4), ((2, 1, 3), (4,)))
    lazy = dc.select(x, x % 2 > 0, sizes="compute")
    assert lazy.chunks == ((4, 2, 6),)
    assert dc.select(x, x % 2 > 0).numblocks == (3,)
    ones = to_chunks(xp, np.arange(24.0).reshape(2, 12), ((1, 1), (5, 7)))
    assert dc.flatnonzero(ones, sizes="compute").chunks == ((4, 7, 5, 7),)
    slices = dc.select(ones, [True, False], sizes="compute")
    assert slices.chunks == ((1, 0), (5, 7))
    # Others become about as many.
    squares = to_chunks(xp, np.ones((6, 6)), 3)
    assert dc.select(squares, squares > 0, sizes="compute").chunks == ((12, 6, 12, 6),)


@pytest.mark.parametrize("kept", [0, 1, 2, 5, 29, 30])
def test_balanced_chunks_are_equal_and_as_many(xp: Any, kept: int) -> None:
    array = np.arange(30)
    x = to_chunks(xp, array, 4)
    for lazy in (
        dc.select(x, x < kept, sizes="compute", balanced=True),
        dc.argwhere(x >= 30 - kept, sizes="compute", balanced=True),
        dc.compress(array < kept, x.reshape(1, 30), 1, sizes="compute", balanced=True).T,
    ):
        assert sum(lazy.chunks[0]) == kept == len(compute(xp, lazy))
        assert is_even(lazy.chunks[0])
        assert lazy.numblocks[0] == min(max(kept, 1), 8)


def test_counting_computes_the_mask_once_and_nothing_else(xp: Any) -> None:
    seen: list[str] = []

    def noted(block: Any, name: str) -> Any:
        seen.append(name)
        return block

    def watched(array: Any, name: str) -> Any:
        x = to_chunks(xp, array, 3)
        return x.map_blocks(noted, name, dtype=x.dtype, meta=x._meta)

    array = np.arange(10)
    x, mask = watched(array, "x"), watched(array % 3 > 0, "mask")
    with dask.config.set(scheduler="synchronous"):
        lazy = dc.select(x, mask, sizes="compute", balanced=True)
    assert seen == ["mask"] * 4
    same(xp, lazy, array[array % 3 > 0], {"sizes": "compute"})
    del seen[:]
    for name in FINDERS:
        getattr(dc, name)(mask)
    dc.select(x, mask)
    dc.extract(mask, x)
    assert seen == []


def test_of_masks_that_are_not_lazy_sizes_are_known(xp: Any) -> None:
    array = np.arange(30).reshape(10, 3)
    x, mask = to_chunks(xp, array, (4, 2)), array % 4 > 1
    parts = np.split(mask, [2, 4, 6, 8, 9])
    assert dc.select(x, mask).chunks == (tuple(part.sum() for part in parts),)
    assert dc.select(x, mask[:, 0].tolist(), balanced=True).chunks[0] == (2, 2, 1)
    assert dc.compress(mask[0], x, 1).chunks[1] == (0, 1)
    assert dc.extract(np.ma.array(mask, mask=mask), x).shape == (0,)
    rest = dc.select(x[:, 0], x[:, 0] >= 0)
    assert rest.numblocks == (3,)
    assert dc.select(rest, to_chunks(xp, mask[:, 0], 4)).shape != (5,)


def test_unknown_sizes_are_taken_as_far_as_that_goes(xp: Any) -> None:
    array = np.random.default_rng(3).integers(0, 4, (20, 3))
    x = to_chunks(xp, array, (6, 3))
    rest = x[to_chunks(xp, array[:, 0] > 0, 6)]
    left = array[array[:, 0] > 0]
    same(xp, dc.select(rest, rest > 1), left[left > 1], {})
    same(xp, dc.select(rest, rest[:, 1] > 1), left[left[:, 1] > 1], {})
    same(xp, dc.compress([1, 0, 1], rest, 1), left[:, [0, 2]], {})
    for name in FINDERS:
        with pytest.raises(ValueError, match="sizes='compute'"):
            getattr(dc, name)(rest)
        found = getattr(dc, name)(rest, sizes="compute")
        for lazy, indices in zip(
            found if name == "nonzero" else [found],
            getattr(np, name)(left) if name == "nonzero" else [getattr(np, name)(left)],
            strict=True,
        ):
            same(xp, lazy, indices, {"sizes": "compute"})
    whole = to_chunks(xp, array[:, 0], 20)
    found = dc.flatnonzero(dc.select(whole, whole > 0) - 1)
    same(xp, found, np.flatnonzero(left[:, 0] - 1), {})
    with pytest.raises(ValueError, match=r"unknown, got \(1,\)"):
        dc.select(rest, np.ones(len(left), bool))
    columns = x.rechunk((20, 1))
    columns = columns[:, columns[0] >= 0]
    with pytest.raises(ValueError, match="an axis behind the first"):
        dc.argwhere(columns)
    with pytest.raises(ValueError, match="cut for C order"):
        dc.select(columns, columns > 0)


def test_chunks_of_other_sizes_than_their_masks_are_seen(xp: Any) -> None:
    x = to_chunks(xp, np.arange(8), 4)
    lazy = dc.select(x[x > 2], x[x > 5] > 0)
    with pytest.raises(IndexError, match="does not fit its mask"):
        lazy.compute(scheduler="synchronous")


@pytest.mark.gpu
def test_masks_of_the_other_kind_of_chunk_are_moved(xp: Any) -> None:
    array = np.arange(20.0)
    x, mask = da.from_array(array, chunks=6), to_chunks(xp, array > 7, 4)
    same(np, dc.select(x, mask), array[array > 7], {})
    same(xp, dc.select(to_chunks(xp, array, 6), array > 7), array[array > 7], {})


def test_large_chunks_and_views_of_them(xp: Any) -> None:
    rng = np.random.default_rng(5)
    for dtype in ("?", "i1", "u2", "f2", "f4", "f8", "c8", "c16"):
        array = rng.integers(0, 3, 200_003).astype(dtype)
        for rate in (0.01, 0.5, 1):
            mask = rng.random(array.size) < rate
            for view in (slice(None), slice(1, None), slice(None, None, 2)):
                x = to_chunks(xp, array, 150_001)[view]
                same(xp, dc.select(x, mask[view]), array[view][mask[view]], {})
        same(xp, dc.flatnonzero(x), np.flatnonzero(array[::2]), {})


def choices(rng: Any, count: int) -> list[Any]:
    """Return what elements are chosen from: arrays that broadcast to (4, 5), and numbers."""
    dtypes, sides = ["u1", "i4", "f4", "f8", "c8"], [(4, 5), (5,), (4, 1)]
    arrays = [rng.integers(0, 9, sides[i % 3]).astype(rng.choice(dtypes)) for i in range(count)]
    return [float(rng.integers(9)) if rng.random() < 0.2 else array for array in arrays]


@pytest.mark.parametrize("default", [0, 7, np.nan, np.float32(2)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_of_lists_it_is_numpys_select(xp: Any, count: int, default: Any) -> None:
    rng = np.random.default_rng(count)
    for _ in range(5):
        conditions = [rng.random((4, 5)) < 0.3 for _ in range(count)]
        chosen = choices(rng, count)
        expected = np.select(conditions, chosen, default)
        lazy = dc.select(
            [to_chunks(xp, condition, (3, 2)) for condition in conditions],
            [c if np.isscalar(c) else to_chunks(xp, c, 2) for c in chosen],
            default,
        )
        same(xp, lazy, expected, {})


def test_empty_chunks_of_what_is_broadcast_choose_nothing() -> None:
    choice = da.from_array(np.arange(3).reshape(1, 3), chunks=((1, 0), (3,)))
    result = dc.select([da.ones((4, 3), chunks=2) > 0], [choice])
    np.testing.assert_array_equal(result.compute(), [[0, 1, 2]] * 4)


def test_two_selections_of_lists_are_two() -> None:
    # Dask's own has one name for all.
    x = da.arange(6, chunks=3)
    both = dask.compute(dc.select([x > 2], [x]), dc.select([x > 2], [x * 10], default=1))
    np.testing.assert_array_equal(both, [[0, 0, 0, 3, 4, 5], [1, 1, 1, 30, 40, 50]])


def test_lists_of_numbers_are_an_array_and_a_mask() -> None:
    for mask in ([True, False, True], [np.True_, np.False_, np.True_]):
        np.testing.assert_array_equal(dc.select([3, 1, 4], mask), [3, 4])
    rows = [np.array([3, 1]), np.array([4, 1])]
    np.testing.assert_array_equal(dc.select(rows, [[True, False], [True, False]]), [3, 4])


BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda x: dc.select(x, [True] * 3), IndexError, "size of axis is 4 but size of corresponding"),
    (lambda x: dc.select(x, x.reshape(2, 2) > 0), IndexError, "1-dimensional, but 2 were indexed"),
    (lambda x: dc.select(x, [1, 0, 1, 0]), TypeError, "a mask of bool, got dtype int64"),
    (lambda x: dc.select(x, x > 0, sizes=True), ValueError, "sizes must be None or 'compute'"),
    (lambda x: dc.select(x, x > 0, balanced=True), ValueError, "give sizes='compute' besides"),
    (lambda x: dc.select(x, x > 0, 7), TypeError, "default= with lists"),
    (lambda x: dc.select([x > 0], [x], sizes="compute"), TypeError, "sizes= and balanced= with a"),
    (lambda x: dc.select([x > 0, x > 1], [x]), ValueError, "as many choices as conditions"),
    (lambda x: dc.select([x > 0, x], [x, x]), TypeError, "dtype int64 for number 1"),
    (lambda x: dc.flatnonzero(x, sizes="known"), ValueError, "got 'known'"),
    (lambda x: dc.argwhere(x, balanced=True), ValueError, "argwhere balances"),
    (lambda x: dc.compress([[True]], x), ValueError, "1-d array, got shape"),
    (
        lambda x: dc.compress([0, 0, 0, 0, 1], x),
        IndexError,
        "index 4 of condition is out of bounds",
    ),
    (lambda x: dc.compress(da.ones(5, chunks=5), x), IndexError, "index 4 of condition"),
    (lambda x: dc.compress([True], x, 1), np.exceptions.AxisError, "Axis 1 is out of bounds"),
    (lambda x: dc.extract([0] * 4 + [1], x), IndexError, "index 4 of condition"),
    (lambda x: dc.nonzero(x.sum()), ValueError, "one axis or more"),
]


@pytest.mark.parametrize(("call", "error", "says"), BAD)
def test_bad_arguments(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call(da.arange(4, chunks=2))


def test_conditions_that_are_too_long_but_false_are_cut() -> None:
    x = da.arange(4, chunks=2)
    assert dc.compress([1, 0, 1, 0, 0, 0], x).compute().tolist() == [0, 2]
    assert dc.extract([1, 1, 0, 0, 0], x).compute().tolist() == [0, 1]


def test_a_cluster_gives_the_same() -> None:
    array = np.random.default_rng(0).random((30, 4))
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
        ) as c,
        Client(c),
    ):
        x = da.from_array(array, chunks=(7, 2)).persist()
        lazy = dc.select(x, x > 0.5, sizes="compute")
        assert lazy.shape == ((array > 0.5).sum(),)
        np.testing.assert_array_equal(lazy.compute(), array[array > 0.5])
        rows = dc.nonzero(x > 0.9, sizes="compute", balanced=True)[0]
        np.testing.assert_array_equal(rows.compute(), np.nonzero(array > 0.9)[0])


@given(case=arrays(dtypes=BOOL))
def test_pieces_add_up(case: Any) -> None:
    """What a mask and its opposite select are all elements."""
    mask, sizes = case
    x = da.from_array(np.arange(mask.size).reshape(mask.shape), chunks=sizes)
    parts = [dc.select(x, part).compute(scheduler="sync") for part in (mask, ~mask)]
    assert sorted(np.concatenate(parts)) == list(range(mask.size))


def test_lists_of_conditions_keep_the_kind_of_chunks_and_small_numbers(xp: Any) -> None:
    tiny = np.array([np.finfo("f4").smallest_subnormal, 2], "f4")
    x = to_chunks(xp, tiny, 1)
    wide = dc.select([x > -1], [x], default=0j).compute()
    assert wide.tolist() == tiny.astype("c16").tolist()
    empty, other = (to_chunks(xp, np.zeros((4, 0)), (c, 1)) for c in (2, 3))
    found = dc.select([empty > 0], [other]).compute()
    assert isinstance(found, xp.ndarray)
    assert found.shape == (4, 0)

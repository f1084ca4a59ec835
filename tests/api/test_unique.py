"""unique, value_counts, crosstab, isin and searchsorted against NumPy's, in any chunks."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import fused_for_few, to_chunks
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.loops import compile_from
from support.strategies import BOOL, INTS, NUMBERS, REAL, Chunked, arrays, chunkings, shapes

import dask_coop as dc
from dask_coop.chunks.distinct import distinct

FAN_IN = 16


@pytest.fixture(params=[False, True], ids=["", "compiled"])
def _compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have loops compiled for chunks of any size, or for large ones only."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            compile_from(patch, 1, "unique", "histogram")
        yield


def computed(xp: Any, *lazy: da.Array) -> list[Any]:
    """Compute arrays together, hold them to what they promised, and return NumPy's."""
    for one in lazy:
        assert type(one._meta) is xp.ndarray
    with np.errstate(all="ignore"), fused_for_few():
        results = dask.compute(*lazy, scheduler="synchronous")
    for one, result in zip(lazy, results, strict=True):
        assert isinstance(result, xp.ndarray | np.generic)
        assert result.dtype == one.dtype or result.dtype.kind in "SU"
        for known, found in zip(one.shape, result.shape, strict=True):
            assert math.isnan(known) or known == found
    return [result if xp is np else xp.asnumpy(result) for result in results]


def assert_all_equal(actual: list[Any], expected: Any) -> None:
    assert len(actual) == len(expected)
    for mine, numpys in zip(actual, expected, strict=True):
        assert mine.dtype == numpys.dtype
        assert mine.shape == numpys.shape
        np.testing.assert_array_equal(mine, numpys)


ALL = (True, True, True)


@pytest.mark.usefixtures("_compiled")
@given(case=arrays(), ways=st.none() | st.integers(2, 5))
def test_values_inverse_and_counts(xp: Any, case: Chunked, ways: Any) -> None:
    x = to_chunks(xp, *case)
    inverse_and_counts = {"return_inverse": True, "return_counts": True}
    found = dc.unique(x, **inverse_and_counts, split_every=ways)
    assert found[1].chunks == x.chunks
    assert_all_equal(computed(xp, *found), np.unique(case.array, **inverse_and_counts))
    assert_all_equal(computed(xp, dc.unique(x, split_every=ways)), [np.unique(case.array)])


@pytest.mark.usefixtures("_compiled")
@given(case=arrays(REAL), ways=st.none() | st.integers(2, 5), equal_nan=st.booleans())
def test_first_places_count_in_c_order(xp: Any, case: Chunked, ways: Any, equal_nan: bool) -> None:
    found = dc.unique(to_chunks(xp, *case), *ALL, equal_nan=equal_nan, split_every=ways)
    assert_all_equal(computed(xp, *found), np.unique(case.array, *ALL, equal_nan=equal_nan))


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("dtype", ["i8", "u8", "i4", "f8", "f4", "f2", "u1", "i2"])
@pytest.mark.parametrize("reach", [40, 2**7, 30_000, 2**60])
def test_many_distinct_values(xp: Any, dtype: str, reach: int) -> None:
    """Of small ranges and large ones, negative ones too, in chunks that share some."""
    reach = min(reach, 2 ** (8 * np.dtype(dtype).itemsize - 1) - 1)
    low = 0 if dtype[0] == "u" else -reach
    array = np.random.default_rng(5).integers(low, reach, 9_000).astype("i8").astype(dtype)
    array += array.dtype.type(2**62 if dtype == "u8" else 0)
    for chunks in ((9_000,), (4_000, 0, 1, 4_999), (1_000,) * 9):
        x = to_chunks(xp, array, (chunks,))
        assert_all_equal(computed(xp, *dc.unique(x, *ALL)), np.unique(array, *ALL))
        assert_all_equal(
            computed(xp, *dc.unique(x, return_counts=True)), np.unique(array, return_counts=True)
        )
        assert_all_equal(computed(xp, dc.unique(x)), [np.unique(array)])


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("dtype", ["M8[D]", "M8[ns]", "m8[s]", "U4", "S3"])
@pytest.mark.parametrize("equal_nan", [True, False])
@pytest.mark.parametrize("reach", [30, 2**20])
def test_dates_and_strings(dtype: str, equal_nan: bool, reach: int) -> None:
    array = np.random.default_rng(1).integers(-reach, reach, (40, 30)).astype(dtype)
    if dtype[0] in "mM":
        array[::7, ::5] = "NaT"
    x = da.from_array(array, chunks=(7, 11))
    found = computed(np, *dc.unique(x, *ALL, equal_nan=equal_nan))
    assert_all_equal(found, np.unique(array, *ALL, equal_nan=equal_nan))
    tests = array.ravel()[::9]
    assert_all_equal(computed(np, dc.isin(x, da.from_array(tests, 5))), [np.isin(array, tests)])
    lines = np.sort(array.ravel())
    found = computed(np, dc.searchsorted(da.from_array(lines, 100), x, "right"))
    assert_all_equal(found, [np.searchsorted(lines, array, "right")])


def test_strings_are_as_long_as_those_of_the_chunks() -> None:
    x = da.from_array(np.array(["a", "bb"]), chunks=1)
    longer = x.map_blocks(np.char.add, "-and-more", dtype="U1", meta=np.empty(0, "U1"))
    assert dc.unique(longer).compute().tolist() == ["a-and-more", "bb-and-more"]
    assert dc.unique(x).dtype == dc.value_counts(x)[0].dtype == "U2"


def test_complex_numbers_with_nan_are_one_value() -> None:
    array = np.array([complex(np.nan, 1), 2, complex(1, np.nan), 1j, 2, np.nan])
    values, first, inverse, counts = computed(np, *dc.unique(da.from_array(array, chunks=2), *ALL))
    np.testing.assert_array_equal(values[:2], [1j, 2])
    assert np.isnan(values[2:]).tolist() == [True]
    assert first.tolist() == [3, 1, 0]
    assert inverse.tolist() == [2, 1, 2, 0, 1, 2]
    assert counts.tolist() == [1, 2, 3]


def test_zeros_are_one_value_and_nan_another(xp: Any) -> None:
    for dtype in ("f2", "f4", "f8"):
        tiny = np.finfo(dtype).smallest_subnormal
        array = np.array([0.0, -0.0, np.nan, -tiny, -np.nan, tiny, -np.inf], dtype)
        x = to_chunks(xp, array, 2)
        assert_all_equal(computed(xp, *dc.unique(x, *ALL)), np.unique(array, *ALL))
        at = dc.searchsorted(to_chunks(xp, np.sort(array), 3), x)
        assert_all_equal(computed(xp, at), [np.searchsorted(np.sort(array), array)])
        assert_all_equal(computed(xp, dc.isin(x, x)), [np.isin(array, array)])


def test_large_chunks_are_cut_for_several_threads() -> None:
    array = np.random.default_rng(3).integers(0, 10**12, (3, 1 << 20))
    x = da.from_array(array, chunks=-1)
    with dask.config.set({"coop.threads": 4}):
        found = dc.unique(x, *ALL)
    assert_all_equal(computed(np, *found), np.unique(array, *ALL))


def test_results_of_one_call_share_the_tree() -> None:
    x = da.zeros(200, chunks=2)
    for wanted, more in (((), 0), ((True,), 1), ((True, False, True), 2)):
        results = dc.unique(x, *wanted)
        results = results if isinstance(results, tuple) else (results,)
        keys = {key for result in results for key in dict(result.dask)}
        # Of one result, the last task merges, too; several are made of one last state.
        merged = [13, 2, *([1] if more else [])]
        assert len(keys) - 100 == 100 + sum(merged) + 1 + more


def test_unknown_sizes_have_values_but_no_places() -> None:
    array = np.arange(30) % 7
    x = da.from_array(array, chunks=4)
    x, kept = x[x > 2], array[array > 2]
    found = dc.unique(x, return_inverse=True, return_counts=True)
    results = dask.compute(*found)
    expected = np.unique(kept, return_inverse=True, return_counts=True)
    assert_all_equal([*results], expected)
    with pytest.raises(ValueError, match="unique needs positions, and so known chunk sizes"):
        dc.unique(x, return_index=True)
    # Of floats NaN are told apart by their places.
    with pytest.raises(ValueError, match="unique needs positions"):
        dc.unique(x * 1.0, return_inverse=True, equal_nan=False)
    values, counts = dask.compute(*dc.value_counts(x))
    assert (values.tolist(), counts.tolist()) == ([3, 4, 5, 6], [4, 4, 4, 4])


def test_a_state_is_pickled_as_the_call_that_makes_its_monoid() -> None:
    monoid = distinct(True, False, False)
    assert pickle.loads(pickle.dumps(monoid)) is monoid
    assert len(pickle.dumps(monoid)) < 100
    assert distinct(True, False, True) != monoid


def test_what_has_no_order_is_left_to_dask(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="dask_coop.api.public")
    array = np.array([3, "a", 3], object)
    with pytest.raises((TypeError, ValueError)):
        dc.unique(da.from_array(array, chunks=2), equal_nan=False)
    three = da.from_array(np.array([3], object), chunks=1)
    assert dc.isin(da.from_array(array, chunks=2), three).compute().tolist() == [True, False, True]
    assert dc.unique(da.from_array(array[::2], chunks=1)).compute().tolist() == [3]
    assert "isin is left to Dask's function: isin does not take dtype object" in caplog.text
    with pytest.raises(TypeError, match="value_counts does not take dtype object"):
        dc.value_counts(da.from_array(array, chunks=2))


def test_masked_arrays_are_refused_where_they_show() -> None:
    masked = np.ma.masked_greater(np.arange(6), 3)
    x = da.from_array(masked, chunks=2)
    with pytest.raises(TypeError, match=r"does not take chunks of type .*MaskedArray"):
        dc.value_counts(x)
    hidden = da.from_array(np.arange(6), chunks=2).map_blocks(
        np.ma.masked_greater, 3, dtype=int, meta=np.empty(0, int)
    )
    plain = da.from_array(np.arange(6), chunks=2)
    for lazy in (dc.unique(hidden), dc.isin(hidden, plain), dc.searchsorted(hidden, plain)):
        with pytest.raises(TypeError, match=r"does not take chunks of type .*MaskedArray"):
            lazy.compute(scheduler="synchronous")


def test_masked_arrays_are_not_left_to_dask() -> None:
    x = da.from_array(np.ma.masked_array([1.0, 9, 3, 9], mask=[0, 1, 0, 1]), chunks=2)
    with pytest.raises(TypeError, match="unique takes no masked array: fill it, by"):
        dc.unique(x, return_counts=True)
    rest = da.ma.getdata(x)[~da.ma.getmaskarray(x)]
    np.testing.assert_array_equal(dc.unique(rest).compute(), [1, 3])


def test_bad_arguments() -> None:
    x = da.ones(4, chunks=2)
    with pytest.raises(ValueError, match="split_every must be at least 2"):
        dc.unique(x, split_every=1)
    with pytest.raises(ValueError, match="n is how many values to return at most"):
        dc.value_counts(x, n=-1)
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        dc.value_counts(x, n=2.0)
    with pytest.raises(ValueError, match="Input array a must be one dimensional"):
        dc.searchsorted(da.ones((2, 2)), x)
    with pytest.raises(NotImplementedError, match="sorter"):
        dc.searchsorted(x, x, sorter=da.arange(4))
    with pytest.raises(ValueError, match="side must be 'left' or 'right', got 'middle'"):
        dc.searchsorted(x, x, "middle")
    with dask.config.set({"coop.fallback": "raise"}):
        for function in (dc.isin, dc.searchsorted):
            with pytest.raises(TypeError, match="does not compare dtypes float64 and <U1"):
                function(x, np.array(["a"]))


def counted(
    array: Any, n: Any, sort: bool, ascending: bool, dropna: bool, normalize: bool
) -> tuple[Any, Any]:
    """Return what `value_counts` is to, by NumPy."""
    values, counts = np.unique(array, return_counts=True)
    if dropna:
        values, counts = values[values == values], counts[values == values]
    order = np.arange(len(values))
    if sort:
        order = np.lexsort((order, counts if ascending else -counts))
    shares = counts / counts.sum() if normalize and len(counts) else counts * 1.0
    return values[order][:n], (shares if normalize else counts)[order][:n]


@given(
    case=arrays(NUMBERS),
    n=st.none() | st.integers(0, 5),
    flags=st.tuples(*[st.booleans()] * 4),
    ways=st.none() | st.integers(2, 5),
)
def test_value_counts(xp: Any, case: Chunked, n: Any, flags: Any, ways: Any) -> None:
    names = ("sort", "ascending", "dropna", "normalize")
    options = {"n": n, **dict(zip(names, flags, strict=True))}
    found = dc.value_counts(to_chunks(xp, *case), **options, split_every=ways)
    assert_all_equal(computed(xp, *found), counted(case.array, **options))


@given(
    case=arrays(),
    tests=arrays(),
    part=st.booleans(),
    invert=st.booleans(),
    ways=st.none() | st.integers(2, 5),
)
def test_isin(xp: Any, case: Chunked, tests: Chunked, part: bool, invert: bool, ways: Any) -> None:
    if part:
        # Of one dtype, and with elements that are there.
        tests = Chunked(case.array.reshape(-1)[::2], ((case.array.size + 1) // 2,))
    x = to_chunks(xp, *case)
    found = dc.isin(x, to_chunks(xp, *tests), invert=invert, split_every=ways)
    assert found.chunks == x.chunks
    a, b = case.array, tests.array.reshape(-1)
    if a.dtype.kind in "biu" and b.dtype.kind in "biu":
        # NumPy compares unsigned integers of 64 bits with signed ones as floats.
        a, b = a.astype(object), b.astype(object)
    common = np.result_type(a, b)
    a, b = a.astype(common), b.astype(common)
    expected = np.array([value in {*b[b == b].tolist()} for value in a.ravel().tolist()], "?")
    assert_all_equal(computed(xp, found), [expected.reshape(a.shape) ^ invert])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i8", "u8", "f8"])
@pytest.mark.parametrize("n", [3, 50, 2_000])
def test_isin_of_few_and_of_many(xp: Any, dtype: str, n: int) -> None:
    spread = np.random.default_rng(8)
    for reach in (100, 2**7 - 1, 2**62):
        reach = min(reach, 2 ** (8 * np.dtype(dtype).itemsize - 1) - 1)
        low = 0 if dtype[0] == "u" else -reach
        array = spread.integers(low, reach, 3_000).astype(dtype)
        tests = spread.choice(array, n)
        found = dc.isin(to_chunks(xp, array, 1_000), to_chunks(xp, tests, 700))
        assert_all_equal(computed(xp, found), [np.isin(array, tests)])


def test_isin_takes_arrays_in_memory_and_kinds_that_differ(xp: Any) -> None:
    x = to_chunks(xp, np.arange(6), 2)
    for tests in ([1, 4], np.array([[1, 4]]), 4, da.from_array(np.array([4]), chunks=1)):
        expected = np.isin(np.arange(6), np.asarray(tests))
        assert_all_equal(computed(xp, dc.isin(x, tests)), [expected])
    large = np.array([2**63, 2**63 + 1, 5], "u8")
    found = dc.isin(to_chunks(xp, large, 2), to_chunks(xp, np.array([-1, 5, 2**62]), 2))
    assert_all_equal(computed(xp, found), [np.array([False, False, True])])


@st.composite
def searches(draw: st.DrawFn) -> tuple[Chunked, Chunked]:
    """A sorted array, and what to search for in it, some of which is there."""
    dtype = draw(st.sampled_from(REAL))
    a = draw(arrays([dtype], shapes(1, 1)))
    v = draw(arrays([draw(st.sampled_from([dtype, dtype, "i4", "f8"]))], shapes(0, 3)))
    return Chunked(np.sort(a.array), draw(chunkings(a.array.shape))), v


@given(case=searches(), side=st.sampled_from(["left", "right"]))
def test_searchsorted(xp: Any, case: tuple[Chunked, Chunked], side: Any) -> None:
    a, v = case
    lazy = to_chunks(xp, *v)
    found = dc.searchsorted(to_chunks(xp, *a), lazy, side)
    assert found.chunks == lazy.chunks
    expected = np.asarray(np.searchsorted(a.array, v.array, side))
    if {a.array.dtype.kind, v.array.dtype.kind} != {"u", "i"} or v.array.dtype.itemsize < 8:
        assert_all_equal(computed(xp, found), [expected])


@pytest.mark.parametrize("dtype", ["i8", "f4"])
def test_searching_for_many(xp: Any, dtype: str) -> None:
    spread = np.random.default_rng(2)
    a = np.sort(spread.integers(0, 5_000, 4_000)).astype(dtype)
    v = spread.integers(-10, 5_010, (3, 2_000)).astype(dtype)
    for side in ("left", "right"):
        for chunks in (4_000, 170):
            for lines in (v, np.sort(v), v // 100):
                found = dc.searchsorted(to_chunks(xp, a, chunks), to_chunks(xp, lines, 700), side)
                assert_all_equal(computed(xp, found), [np.searchsorted(a, lines, side)])


@given(case=arrays(dtypes=REAL), other=st.sampled_from(["i8", "f4", "?"]))
def test_pairs_are_counted_as_scipy_does(xp: Any, case: Chunked, other: str) -> None:
    array, chunks = case
    beside = (np.arange(array.size) % 5).astype(other).reshape(array.shape)
    if other == "f4":
        beside[beside == 3] = np.nan
    (rows, columns), count = dc.crosstab(to_chunks(xp, array, chunks), to_chunks(xp, beside, 3))
    found = computed(xp, rows, columns, count)
    # NumPy's sort of float16 itself is not to be trusted.
    wide = array.astype("f4") if array.dtype == "f2" else array
    expected = stats.contingency.crosstab(wide.ravel(), beside.ravel())
    assert_all_equal(found, [expected[0][0].astype(array.dtype), expected[0][1], expected[1]])


def test_pairs_of_strings_and_of_what_is_broadcast() -> None:
    names, x = np.array(list("aba")), np.array([[1, 1, 2], [3, 3, 1]])
    found = dc.crosstab(da.from_array(x, chunks=2), da.from_array(names, chunks=2))
    np.testing.assert_array_equal(found.elements[1], ["a", "b"])
    np.testing.assert_array_equal(found.count, [[2, 1], [1, 0], [1, 1]])
    with pytest.raises(ValueError, match="shape"):
        dc.crosstab(x, names[:2])


def test_searchsorted_takes_values_in_memory(xp: Any) -> None:
    x = to_chunks(xp, np.arange(9), 4)
    for v in (3, [3, 11], np.array([[3.5]])):
        assert_all_equal(
            computed(xp, dc.searchsorted(x, v)), [np.asarray(np.searchsorted(np.arange(9), v))]
        )


def test_searchsorted_is_a_task_for_two_chunks_and_a_tree() -> None:
    a, v = da.arange(100, chunks=2), da.arange(30, chunks=10)
    lazy = dc.searchsorted(a, v)
    tasks = len(dict(lazy.dask)) - 50 - 3
    assert tasks == 3 * (50 + math.ceil(50 / FAN_IN) + 1)
    theirs = da.searchsorted(a, v)
    assert tasks < len(dict(theirs.dask)) - 50 - 3


@pytest.mark.parametrize("dtype", BOOL + INTS)
def test_chunks_of_another_byte_order(dtype: str) -> None:
    array = (np.arange(60) % 7).astype(np.dtype(dtype).newbyteorder(">"))
    x = da.from_array(array, chunks=8)
    found = computed(np, *dc.unique(x, *ALL))
    assert_all_equal(found, np.unique(array.astype(dtype), *ALL))


@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_subnormal_elements_are_not_zero(xp: Any, dtype: str) -> None:
    tiny = np.finfo("f4").smallest_subnormal
    array = np.array([1, tiny, -tiny, 0], dtype) * (1 if dtype == "f4" else np.complex64(1j))
    x = to_chunks(xp, array.astype(dtype), 3)
    for wanted in (array[1:2], array[3:], array[2:]):
        found = dc.isin(x, wanted.astype(dtype)).compute()
        assert found.tolist() == np.isin(array, wanted).tolist()

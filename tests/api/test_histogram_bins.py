"""Bins that histogram finds when it computes: by NumPy's rules, or from lazy numbers and edges."""

from __future__ import annotations

import pickle
import time
import tracemalloc
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from dask import delayed
from dask.tokenize import tokenize
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.calls import noting
from support.strategies import REAL, Chunked, arrays

import dask_coop as dc
from dask_coop.algebra import bins as bins_module
from dask_coop.algebra import edges as edges_module
from dask_coop.algebra.bins import find_bins, find_coordinate_bins
from dask_coop.api.histograms import lazy_bins


def computed(xp: Any, lazy: da.Array) -> Any:
    """Compute an array of a length that is not known before."""
    result = lazy.compute(scheduler="synchronous")
    assert result.dtype == lazy.dtype
    return result if isinstance(result, np.ndarray) else xp.asnumpy(result)


def assert_numpys(xp: Any, result: Any, array: Any, *args: Any, **kwargs: Any) -> None:
    with np.errstate(all="ignore"):
        expected, edges = np.histogram(array, *args, **kwargs)
        np.testing.assert_array_equal(computed(xp, result[0]), expected)
        np.testing.assert_array_equal(computed(np, result[1]), edges)


@pytest.mark.parametrize("rule", ["rice", "scott", "sqrt", "sturges"])
@settings(max_examples=20, phases=[Phase.generate])
@given(case=arrays(dtypes=REAL, special=False), inside=st.none() | st.just((-3, 50.5)))
def test_rules_find_as_many_bins_as_numpy(xp: Any, rule: str, case: Chunked, inside: Any) -> None:
    array = case.array.view("u1") if case.array.dtype == bool else case.array
    if array.dtype.kind == "f" and (rule == "scott" or array.dtype.itemsize < 8):
        array = (np.nan_to_num(array.astype("f8")) % 100).astype(array.dtype)
    x = to_chunks(xp, array, case.chunks)
    if rule == "scott" and array.dtype in ("f2", "f4"):
        with pytest.raises(ValueError, match=r"'scott' is not supported for float\d\d, only rice"):
            dc.histogram(x, rule, inside)
        return
    try:
        with np.errstate(all="ignore"):
            np.histogram(array, rule, inside)
    except (ValueError, IndexError, OverflowError):  # NumPy's own arithmetic overflows
        return
    result = dc.histogram(x, rule, inside)
    assert all(np.isnan(lazy.shape[0]) for lazy in result)
    assert_numpys(xp, result, array, rule, inside)


def test_a_rule_with_axis_and_density(xp: Any) -> None:
    array = np.random.default_rng(1).normal(0, 1, (90, 4))
    x = to_chunks(xp, array, (20, 3))
    result, edges = dc.histogram(x, "scott", axis=0, density=True)
    expected = [
        np.histogram(array[:, i], np.asarray(edges.compute()), density=True)[0] for i in range(4)
    ]
    np.testing.assert_allclose(computed(xp, result), expected, rtol=1e-14)


def test_a_rule_and_nan(xp: Any) -> None:
    array = np.array([1.0, 2, np.nan, 4, 3])
    x = to_chunks(xp, array, 2)
    with pytest.raises(ValueError, match=r"autodetected range of \[nan, nan\] is not finite"):
        dc.histogram(x, "sqrt")[0].compute(scheduler="synchronous")
    assert_numpys(xp, dc.histogram(x, "sqrt", (1, 5)), array, "sqrt", (1, 5))


@pytest.mark.parametrize("rule", ["auto", "doane", "fd", "stone"])
def test_rules_that_need_more_are_refused_with_a_way_out(rule: str) -> None:
    with pytest.raises(ValueError, match=f"{rule}.*rice.*histogram_bin_edges"):
        dc.histogram(da.ones(4, chunks=2), rule)


def test_rules_that_numpy_refuses() -> None:
    with pytest.raises(ValueError, match="'magic' is not a valid estimator for `bins`"):
        dc.histogram(da.ones(4, chunks=2), "magic")
    with pytest.raises(TypeError, match="not supported for weighted data"):
        dc.histogram(da.ones(4, chunks=2), "sqrt", weights=da.ones(4, chunks=2))
    with pytest.raises(TypeError, match="range must be known"):
        dc.histogram(da.ones(4, chunks=2), "sqrt", (da.zeros(()), 1))


ARRAY = np.random.default_rng(2).normal(5, 3, (40, 3))


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
def test_a_lazy_range(xp: Any, dtype: str) -> None:
    array = ARRAY.astype(dtype)
    x = to_chunks(xp, array, 9)
    limits = (array.min(), array.max())
    for density in (False, True):
        lazy = dc.histogram(x, 7, (x.min(), x.max()), density=density)
        assert lazy[0].shape == (7,)
        assert lazy[1].shape == (8,)
        assert_numpys(xp, lazy, array, 7, limits, density=density)
    pair = da.stack([da.asarray(limits[0]), da.asarray(limits[1])])
    assert_numpys(xp, dc.histogram(x, 7, pair), array, 7, limits)
    half = (np.float64(1.5), delayed(8.5))
    assert_numpys(xp, dc.histogram(x, 7, half), array, 7, (np.float64(1.5), np.float64(8.5)))


def test_a_lazy_number_of_bins(xp: Any) -> None:
    x = to_chunks(xp, ARRAY, 9)
    for n in (delayed(6), da.from_array(np.array(6))):
        for limits in (None, (1, 9), (1, delayed(9.0))):
            lazy = dc.histogram(x, n, limits)
            assert np.isnan(lazy[0].shape[0])
            known = None if limits is None else (np.float64(1), np.float64(9))
            assert_numpys(xp, lazy, ARRAY, 6, known)
    with pytest.raises(ValueError, match="must be positive"):
        dc.histogram(x, delayed(0))[0].compute(scheduler="synchronous")


def test_lazy_edges(xp: Any) -> None:
    x, edges = to_chunks(xp, ARRAY, 9), np.array([0, 1, 4, 4.5, 9])
    for bins in (da.from_array(edges, chunks=2), to_chunks(xp, edges, 3), delayed(edges, nout=5)):
        lazy = dc.histogram(x, bins, density=True)
        assert lazy[0].shape == (4,)
        np.testing.assert_array_equal(
            computed(xp, lazy[0]), np.histogram(ARRAY, edges, density=True)[0]
        )
        np.testing.assert_array_equal(computed(xp, lazy[1]), edges)
    parts = [0.0, da.asarray(1.0), da.asarray(9.5)]
    assert_numpys(xp, dc.histogram(x, parts), ARRAY, [0, 1, 9.5])
    wrong = dc.histogram(x, da.from_array(edges[::-1].copy(), chunks=5))[0]
    with pytest.raises(ValueError, match="must increase monotonically"):
        wrong.compute(scheduler="synchronous")


@pytest.mark.parametrize(
    ("bins", "limits", "error", "words"),
    [
        (5, 3, TypeError, "Expected a sequence or array for range, not 3"),
        (5, (1, 2, 3), ValueError, "range must be a sequence or array of length 2, but got 3"),
        (5, da.arange(3, chunks=3), ValueError, "length 2, but got 3"),
        (da.ones((2, 2)), None, ValueError, "1-dimensional array or sequence, got shape"),
        ([0, delayed(1)], None, TypeError, "not a sequence with delayed edges"),
    ],
)
def test_what_is_lazy_is_checked_as_far_as_it_is_known(
    bins: Any, limits: Any, error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        dc.histogram(da.ones(4, chunks=2), bins, limits)


def test_samples_of_unknown_number_may_be_none() -> None:
    x = da.arange(9, chunks=3)
    counts, edges = dc.histogram(x[x > 99], 4)
    np.testing.assert_array_equal(counts.compute(), np.zeros(4))
    np.testing.assert_array_equal(edges.compute(), [0, 0.25, 0.5, 0.75, 1])


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize(
    ("bins", "limits"), [(20_000, (0.0, 1.0)), (7, (-3, 11)), (3, (5, 5)), ([0, 1, 3], None)]
)
def test_bins_are_pickled_without_what_follows(bins: Any, limits: Any, dtype: str) -> None:
    made = find_bins(bins, limits, np.dtype(dtype))
    sent = pickle.dumps(made)
    assert len(sent) < 500
    found = pickle.loads(sent)
    np.testing.assert_array_equal(found.edges, made.edges)
    assert (found.edges.dtype, found.limits) == (made.edges.dtype, made.limits)
    assert found.line == made.line


def holding_nan(array: Any, every: int) -> Any:
    """Return floats of which some are NaN."""
    array = array.copy()
    array[::every] = np.nan
    return array


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("size", [1, 40, 40_000])
@pytest.mark.parametrize("every", [1, 3])
def test_nan_is_left_out_of_the_range_where_that_is_asked_for(
    xp: Any, dtype: str, size: int, every: int
) -> None:
    array = holding_nan(np.random.default_rng(size).normal(0, 5, size).astype(dtype), every)
    x, kept = to_chunks(xp, array, max(size // 3, 1)), array[~np.isnan(array)]
    for bins in (7, delayed(7), da.asarray(7), "sturges", "rice"):
        result = dc.histogram(x, bins, nan="omit")
        known = bins if isinstance(bins, str) else 7
        assert_numpys(xp, result, kept, known)
        for part in dc.histogram(x[x != 0], bins, nan="omit"):
            part.compute(scheduler="synchronous")


def test_rules_count_what_is_within_equal_limits_that_are_widened(xp: Any) -> None:
    array = np.array([3.0, 2.4, 2.7, 9.0])
    result = dc.histogram(to_chunks(xp, array, 2), "sturges", (2.7, 2.7))
    for found, expected in zip(result, np.histogram(array, "sturges", (2.7, 2.7)), strict=True):
        np.testing.assert_array_equal(computed(xp, found), expected)


def test_nan_that_is_left_out_counts_nowhere_even_with_flow(xp: Any) -> None:
    array = np.array([np.nan, -1, 0.5, np.nan, 2, 9], "f4")
    x = to_chunks(xp, array, 4)
    for bins, limits in (([0, 1, 3], None), (2, (0, 3)), (delayed(2), (0, 3))):
        for nan, beyond in (("raise", 3), ("omit", 1)):
            counts, _ = dc.histogram(x, bins, limits, flow=True, nan=nan)
            found = counts.compute(scheduler="synchronous")
            np.testing.assert_array_equal(
                xp.asnumpy(found) if xp is not np else found, [1, 1, 1, beyond]
            )
    lines = to_chunks(xp, np.stack([array, array[::-1]]), 2)
    counts, edges = dc.histogram(lines, 2, axis=1, flow=True, nan="omit")
    np.testing.assert_array_equal(computed(xp, counts), [[0, 3, 1, 0]] * 2)
    np.testing.assert_array_equal(computed(np, edges), [-1, 4, 9])


def test_on_an_edge_that_bounds_no_bin_is_above_it(xp: Any) -> None:
    for copies in (1, 40_000):
        x = to_chunks(xp, np.repeat(np.array([32, 33, 34, 35], "i1"), copies), -1)
        counts, _ = dc.histogram(x, np.array([33]), flow=True)
        np.testing.assert_array_equal(to_numpy(xp, counts), np.array([1, 3]) * copies)


def test_negative_zero_is_counted_as_zero(xp: Any) -> None:
    # The edge in the middle is a little above it, where NumPy's arithmetic leaves it.
    limits = -1.7999999523162842, 1.7999999523162842
    for dtype in ("f4", "f8"):
        for copies in (1, 40_000):
            array = np.repeat(np.array([-0.0, 0.0, 1.0], dtype), copies)
            counts, _ = dc.histogram(to_chunks(xp, array, -1), 90, limits)
            np.testing.assert_array_equal(to_numpy(xp, counts), np.histogram(array, 90, limits)[0])


def test_the_range_and_the_counts_without_nan_come_out_of_one_read(xp: Any) -> None:
    x, reads = noting(to_chunks(xp, holding_nan(np.arange(20.0), 4), 5))
    dask.compute(*dc.histogram(x, 5, nan="omit"), scheduler="synchronous")
    assert len(reads) == 4


@pytest.mark.parametrize("bins", [4, delayed(4), "sqrt"])
def test_what_keeps_a_range_from_being_found_is_named(xp: Any, bins: Any) -> None:
    values = np.array([1.0, np.nan, 3, 4])
    for dtype in ("f2", "f4", "f8"):
        x = to_chunks(xp, values.astype(dtype), 3)
        with pytest.raises(ValueError, match=r"hold NaN; give range=\(low, high\), or nan='omit'"):
            dc.histogram(x, bins)[0].compute(scheduler="synchronous")
        x = to_chunks(xp, np.array([1, np.nan, np.inf], dtype), 2)
        with pytest.raises(ValueError, match=r"inf\] is not finite, for the data hold an infinity"):
            dc.histogram(x, bins, nan="omit")[0].compute(scheduler="synchronous")


def test_integers_hold_no_nan_to_leave_out(xp: Any) -> None:
    x = to_chunks(xp, np.arange(9), 4)
    for nan in ("raise", "omit"):
        assert_numpys(xp, dc.histogram(x, 4, nan=nan), np.arange(9), 4)


@pytest.mark.parametrize("nan", ["skip", None, True, "Omit"])
def test_other_words_for_what_nan_does_are_refused(nan: Any) -> None:
    x = da.arange(9, chunks=4)
    for call in (
        lambda: dc.histogram(x, 3, (0, 1), nan=nan),
        lambda: dc.histogram2d(x, x, 3, nan=nan),
        lambda: dc.histogramdd((x, x), 3, nan=nan),
    ):
        with pytest.raises(ValueError, match=f"nan must be 'raise' or 'omit', got {nan!r}"):
            call()


@pytest.mark.parametrize("dtype", ["f8", "i4"])
def test_edges_that_are_nan_are_refused_by_their_position(xp: Any, dtype: str) -> None:
    x, words = (
        to_chunks(xp, np.arange(9).astype(dtype), 4),
        "must be monotonic, got NaN at position",
    )
    for bins, position in (([0, np.nan, 2], 1), ([0, 2, np.nan], 2), ([np.nan, 1], 0)):
        for edges in (bins, tuple(bins), np.array(bins, "f4")):
            with pytest.raises(ValueError, match=f"bins {words} {position}"):
                dc.histogram(x, edges)
            with pytest.raises(ValueError, match=rf"bins {words} {position}"):
                dc.digitize(x, edges)
            with pytest.raises(ValueError, match=rf"bins\[1\] {words} {position}"):
                dc.histogram2d(x, x, [3, edges])
            with pytest.raises(ValueError, match=rf"bins\[0\] {words} {position}"):
                dc.histogramdd((x, x), [edges, 2], [None, (0, 5)])
        for lazy in (
            da.from_array(np.array(bins), chunks=2),
            delayed(np.array(bins), nout=len(bins)),
        ):
            with pytest.raises(ValueError, match=f"bins {words} {position}"):
                dc.histogram(x, lazy)[0].compute(scheduler="synchronous")


LIMITS = [(0, 1), (-3.7, 1e5), (np.float32(0.1), np.float32(2.7)), (-(2**60), 3**37), (5, 5)]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
@pytest.mark.parametrize("find", [find_bins, find_coordinate_bins])
def test_edges_are_made_apart_as_numpy_makes_them_together(
    find: Any, limits: Any, dtype: str
) -> None:
    for n in (1, 7, 1000, 40_000):
        bins, index = find(n, limits, np.dtype(dtype)), np.arange(n + 1)
        np.testing.assert_array_equal(bins.edges_at(index), bins.edges)
        np.testing.assert_array_equal(bins.ends, bins.edges[[0, -1]])
        np.testing.assert_array_equal(bins.edges_at(index[n // 2 :]), bins.edges[n // 2 :])


def test_many_edges_are_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    x = da.from_array(np.random.default_rng(0).random(1000), chunks=300)
    expected, edges = np.histogram(x.compute(), 9000, (0, 1.5))
    for module in (lazy_bins, bins_module, edges_module):
        monkeypatch.setattr(module, "MANY", 5000)
    for result in (
        dc.histogram(x, 9000, (0, 1.5)),
        dc.histogram2d(x, x, (9000, 1), [(0, 1.5)] * 2),
    ):
        assert result[1].shape == (9001,)
        np.testing.assert_array_equal(result[0].compute().reshape(-1), expected)
        np.testing.assert_array_equal(result[1].compute(), edges)


@pytest.mark.parametrize(
    "build", [dc.histogram, lambda x, n, pair: dc.histogramdd((x,), n, [pair])]
)
def test_many_bins_are_built_at_once(build: Any) -> None:
    x = da.ones(1000, chunks=100)
    build(x, 10, (0, 1))
    tracemalloc.start()
    try:
        begin = time.perf_counter()
        hist, edges = build(x, 10**9, (0, 1))
        seconds, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    edges = edges if isinstance(edges, da.Array) else edges[0]
    assert (hist.shape, edges.shape) == ((10**9,), (10**9 + 1,))
    assert seconds < 1
    assert peak < 5_000_000
    assert len(pickle.dumps(hist.__dask_graph__())) < 100_000
    assert hist.name == build(x, 10**9, (0, 1))[0].name
    if not da.array_expr_enabled():
        last = [(10**9 - 2) * 1e-9, (10**9 - 1) * 1e-9, 1]
        np.testing.assert_array_equal(edges[-3:].compute(), last)


@pytest.mark.parametrize(
    ("n", "limits", "dtype", "fine"),
    [
        (10**9, (0, 1), "f4", False),
        (2**23, (1, 2), "f4", True),
        (2**23 + 1, (1, 2), "f4", False),
        (2**36, (0, 1), "f8", True),
        (10**9, (1, 1 + 1e-7), "f8", False),
        (10**9, (2.0**52, 2.0**52 + 10**9), "f8", True),
        (10**9, (2.0**53, 2.0**53 + 10**9), "f8", False),
        (10**9, (-(2.0**53) - 10**9, 5), "i8", True),
        (10**9, (np.float32(-1), np.float32(0)), "f4", False),
        (10**9, (-1e308, 1e308), "f8", False),
        (10**9, (3, 3), "f8", True),
    ],
)
def test_too_many_bins_are_refused_without_making_them(
    n: int, limits: Any, dtype: str, fine: bool
) -> None:
    begin = time.perf_counter()
    if fine:
        assert find_bins(n, limits, np.dtype(dtype)).n == n
    else:
        words = f"Too many bins for data range. Cannot create {n} "
        with np.errstate(all="ignore"), pytest.raises(ValueError, match=words):
            find_bins(n, limits, np.dtype(dtype))
    assert time.perf_counter() - begin < 2


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_too_many_bins_are_as_many_as_for_numpy(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    rng = np.random.default_rng(5)
    refused = 0
    for _ in range(400):
        low = float(rng.normal() * 2.0 ** rng.integers(0, 30))
        ulp = float(np.spacing(np.dtype("f8" if dtype == "i8" else dtype).type(abs(low))))
        n = int(rng.integers(2, 200))
        limits = (low, low + n * ulp * float(rng.choice([0.4, 0.9, 1, 1.1, 2, 5])))
        if rng.random() < 0.3:
            limits = (-limits[1], -limits[0])
        outcomes = []
        for many in (1 << 22, 1):
            monkeypatch.setattr(bins_module, "MANY", many)
            with np.errstate(all="ignore"):
                try:
                    outcomes.append(find_bins(n, limits, np.dtype(dtype)).n)
                except ValueError as error:
                    outcomes.append(str(error))
        assert outcomes[0] == outcomes[1], limits
        refused += outcomes[0] != n
    assert 40 < refused < 360


def test_tables_that_no_machine_holds_are_refused() -> None:
    x = da.ones((60, 50), chunks=(30, 50))
    for build in (
        lambda: dc.histogram(x, 2**40, (0, 1)),
        lambda: dc.histogram(x, 2**40),
        lambda: dc.histogram(x, 2**34, (0, 1), axis=1),
        lambda: dc.histogram2d(x, x, 2**20, [(0, 1), (0, 1)]),
        lambda: dc.bincount(x.astype("i8"), minlength=2**40),
    ):
        with pytest.raises(
            ValueError, match=r"takes [\d,]+ bytes, more than the limit of 1,099,511,627,776"
        ):
            build()


def test_what_follows_from_bins_is_neither_sent_nor_named() -> None:
    bins = find_bins(1000, (0, 1), np.dtype("f8"))
    name = tokenize(bins)
    assert (bins.edges.size, bins.line is not None, bins.cuts.size) == (1001, True, 1001)
    assert tokenize(bins) == name
    assert pickle.loads(pickle.dumps(bins)) == bins
    many = find_bins(10**9, (0, 1), np.dtype("f8"))
    assert many == pickle.loads(pickle.dumps(many)) != bins
    assert (many.line, many.ends) == ((1e-9, 0.0), (0.0, 1.0))
    assert not many.are_numpys(np.dtype("f8"))
    assert "_kept" not in vars(many)


@pytest.mark.parametrize(
    ("dtype", "first", "last", "n"),
    [
        ("f2", -1204, 767, 136),
        ("f4", -15779, 17163, 377),
        ("f8", 55269, 57998, 300),
    ],
)
def test_bins_of_subnormal_width_count_as_numpys(
    xp: Any, dtype: str, first: int, last: int, n: int
) -> None:
    step = np.finfo(dtype).smallest_subnormal
    array = np.arange(first, last + 1).astype(dtype) * step
    expected, edges = np.histogram(array, n)
    for limits in (None, (array[0], array[-1])):
        x = to_chunks(xp, array, 700)
        counts, mine = dc.histogram(x, n, limits, flow=True)
        np.testing.assert_array_equal(computed(xp, counts), [0, *expected, 0])
        np.testing.assert_array_equal(mine, edges)

"""NumPy chunks: Numba's loops and NumPy's steps give the same bin indices, and NumPy's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.at_once import at_once
from support.loops import compile_from
from support.processes import printed

from dask_coop.algebra.bins import Grid, Integers, find_bins, find_coordinate_bins, find_steps
from dask_coop.chunks.numpy import histogram as histograms

SIZE = 40_000


@pytest.fixture(params=["numba", "numpy"], autouse=True)
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numba":
        pytest.importorskip("numba")
        compile_from(monkeypatch, 1)
    else:
        compile_from(monkeypatch, math.inf)


def samples(dtype: str, seed: int = 0) -> Any:
    """Return samples, of which some are whole, and some not finite."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind != "f":
        info = np.iinfo(dtype)
        x = rng.integers(max(info.min, -100), min(info.max, 100), SIZE).astype(dtype)
        x[:2] = info.min, info.max
        return x
    x = rng.normal(0, 50, SIZE).astype(dtype)
    x[::5] = np.round(x[::5])
    x[::17], x[1::19], x[2::23] = np.nan, np.inf, -np.inf
    return x


BINS = [
    (10, (-60, 70.5)),
    (1000, (0, 64)),
    (7, (-0.3, 40)),
    (1, (5, 5)),
    (np.sort(np.random.default_rng(1).normal(0, 40, 300)), None),
    (np.arange(-50, 60, 7), None),
    ([-np.inf, 0, 0.5, np.inf], None),
    ([0, 0, 0, 1, 1, 3.5], None),
    ([-1e308, 0.1, 0.2, 1e308], None),
]


@pytest.mark.each(6)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i8", "u8"])
@pytest.mark.parametrize("case", range(len(BINS)))
def test_counts_and_weights(dtype: str, case: int) -> None:
    x, (bins, limits) = samples(dtype), BINS[case]
    with np.errstate(all="ignore"):
        try:
            found = find_bins(bins, limits, x.dtype)
        except ValueError:
            pytest.skip("NumPy refuses so many bins")
        if x.dtype.kind == "f":
            x[3::7] = np.random.default_rng(2).choice(found.edges, x[3::7].size)
            x[4::7] = np.nextafter(x[4::7], x[3::7][: x[4::7].size])
        expected, _ = np.histogram(x, bins, limits)
        weights = np.arange(x.size) % 5.0
        weighed, _ = np.histogram(x, bins, limits, weights=weights)
    np.testing.assert_array_equal(histograms.count([x], Grid((found,)), None, "i8"), expected)
    np.testing.assert_array_equal(histograms.count([x], Grid((found,)), weights, "f8"), weighed)
    flow = histograms.count([x], Grid((found,), flow=True), None, "i8")
    np.testing.assert_array_equal(flow[1:-1], expected)
    assert flow.sum() == x.size
    lines = histograms.count([x.reshape(10, -1, 8)], Grid((found,), axes=(1,)), None, "i8")
    assert lines.shape == (10, 8, found.n)
    np.testing.assert_array_equal(lines.sum((0, 1)), expected)
    np.testing.assert_array_equal(
        lines[3, 2], np.histogram(x.reshape(10, -1, 8)[3, :, 2], bins, limits)[0]
    )


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_several_coordinates(dtype: str) -> None:
    x, y = samples(dtype), samples(dtype, 1)
    for bins, limits in (([5, 9], [(-3, 40), (0, 70.5)]), ([BINS[4][0], 1000], [None, (-9, 9)])):
        expected, _ = np.histogramdd((x, y), bins, limits)
        found = map(find_coordinate_bins, bins, limits, [x.dtype] * 2)
        result = histograms.count([x, y], Grid(tuple(found)), None, "i8")
        np.testing.assert_array_equal(result, expected)


def test_integers_beyond_float64_keep_to_their_limits() -> None:
    x = np.array([2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2] * 10_000)
    found = find_bins(3, (0, 2**53), x.dtype)
    expected, _ = np.histogram(x, 3, (0, 2**53))
    np.testing.assert_array_equal(histograms.count([x], Grid((found,)), None, "i8"), expected)


@pytest.mark.each(2)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "i8", "u8"])
@pytest.mark.parametrize("right", [False, True])
def test_numbers_of_bins(dtype: str, right: bool) -> None:
    x = samples(dtype)
    for edges in (BINS[4][0], BINS[5][0], BINS[5][0][::-1], np.array([0.5]), np.array([])):
        result = histograms.locate(x, find_steps(edges, right, x.dtype))
        np.testing.assert_array_equal(result, np.digitize(x, edges, right))


def counted(x: Any, found: Any, weights: Any = None, **options: Any) -> Any:
    dtype = "i8" if weights is None else "f8"
    samples = x if isinstance(x, list) else [x]
    bins = found if isinstance(found, tuple) else (found,)
    return histograms.count(samples, Grid(bins, **options), weights, dtype)


#: Around these a table gets fewer copies of itself, and wider counters.
@pytest.mark.parametrize("n", [1020, 1021, 1024, 1025, 2044, 2046, 2048, 4095, 5000, 100_000])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_tables_of_any_size_beside_edges(n: int, dtype: str) -> None:
    found = find_bins(n, (-3, 11.7), np.dtype(dtype))
    rng = np.random.default_rng(n)
    x = rng.uniform(-5, 13, SIZE).astype(dtype)
    x[::3] = rng.choice(found.edges, x[::3].size)
    x[1::3] = np.nextafter(rng.choice(found.edges, x[1::3].size), x[1::3])
    expected, _ = np.histogram(x, n, (-3, 11.7))
    np.testing.assert_array_equal(counted(x, found), expected)
    weights = rng.integers(-9, 9, SIZE)
    weighed, _ = np.histogram(x, n, (-3, 11.7), weights=weights)
    np.testing.assert_array_equal(counted(x, found, weights), weighed)
    np.testing.assert_array_equal(histograms.count([x], Grid((found,)), weights, "i8"), weighed)


def test_equal_samples_and_counters_that_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    if (loops := histograms._loops_for(np.empty(SIZE))) is not None:
        monkeypatch.setattr(loops, "MOST_COUNTED", 1000)
    found = find_bins(4, (0, 1), np.dtype("f8"))
    np.testing.assert_array_equal(counted(np.full(SIZE, 0.3), found), [0, SIZE, 0, 0])
    np.testing.assert_array_equal(counted(np.full(SIZE, 1.0), found), [0, 0, 0, SIZE])
    np.testing.assert_array_equal(counted(np.full(SIZE, np.nan), found), [0] * 4)
    np.testing.assert_array_equal(counted(np.empty(0), found), [0] * 4)


LAYOUTS: list[Any] = [
    lambda x: x[::-1],
    lambda x: x[::3],
    lambda x: x.reshape(50, -1)[:, 5:17],
    lambda x: x.reshape(50, -1).T,
    lambda x: x.reshape(10, 40, -1)[::2, ::-1, 1:],
    lambda x: x.reshape(10, 40, -1).transpose(1, 2, 0),
    lambda x: np.broadcast_to(x[:1000, None], (1000, 7)),
    lambda x: x.astype(x.dtype.newbyteorder(">")),
]


@pytest.mark.each(4)
@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
@pytest.mark.parametrize("dtype", ["f2", "f4", "i2", "u8"])
def test_layouts(dtype: str, layout: int) -> None:
    x, y = (LAYOUTS[layout](samples(dtype, seed)) for seed in (0, 1))
    weights = LAYOUTS[layout](np.arange(float(SIZE)) % 7).astype("f4")
    flat, of = np.ascontiguousarray(x), x.dtype.newbyteorder("=")
    finite = np.where(np.isfinite(y), y, 0).astype(of)
    for bins, limits in ((20, (-60, 70)), (np.array([0, 1, 3, 40, 90]).astype(of), None)):
        found = find_bins(bins, limits, of)
        expected, _ = np.histogram(flat.astype(of), bins, limits)
        np.testing.assert_array_equal(counted(x, found), expected)
        weighed, _ = np.histogram(flat.astype(of), bins, limits, weights=weights.astype("f8"))
        np.testing.assert_array_equal(counted(x, found, weights), weighed)
        both, *_ = np.histogram2d(
            flat.astype(of).ravel(), np.ravel(finite), [found.edges, found.edges]
        )
        pair = tuple(find_coordinate_bins(b, None, of) for b in [found.edges] * 2)
        np.testing.assert_array_equal(counted([x, finite], pair), both)
        for axis in range(x.ndim if x.ndim > 1 else 0):
            lines = counted(x, found, axes=(axis,), flow=True)
            assert lines.shape == (*np.delete(x.shape, axis), found.n + 2)
            first = np.histogram(
                np.moveaxis(flat.astype(of), axis, -1)[(1,) * (x.ndim - 1)], bins, limits
            )
            np.testing.assert_array_equal(lines[(1,) * (x.ndim - 1)][1:-1], first[0])
            np.testing.assert_array_equal(lines.sum(tuple(range(x.ndim - 1)))[1:-1], expected)
        edges = np.unique(found.edges.astype(of))
        numbers = histograms.locate(x, find_steps(edges, False, of))
        np.testing.assert_array_equal(numbers, np.digitize(flat.astype(of), edges))


@pytest.mark.each(2)
@pytest.mark.parametrize("dtype", ["i1", "i8", "u2", "u8"])
@pytest.mark.parametrize("minlength", [0, 3, 500])
def test_integers_are_tallied(dtype: str, minlength: int) -> None:
    x = np.random.default_rng(0).integers(0, 100, (SIZE // 8, 8)).astype(dtype)
    expected = np.bincount(x.reshape(-1).astype("i8"), minlength=minlength)
    for chunk in (x, x.T, x[::-1]):
        result = histograms.tally(chunk, Integers(minlength), None, "i8")
        np.testing.assert_array_equal(result, expected)
        for of in ("f4", "f8", "i4", "u8"):
            result = histograms.tally(chunk, Integers(minlength), chunk.astype(of), "f8")
            np.testing.assert_array_equal(result, expected * np.arange(len(expected)))
    if x.dtype.kind == "i":
        x[7, 7] = -1
        with pytest.raises(ValueError, match="no negative elements"):
            histograms.tally(x, Integers(minlength), None, "i8")


def test_complex_weights_and_large_integers() -> None:
    x, found = samples("f8"), find_bins(9, (-60, 70), np.dtype("f8"))
    weights = (np.arange(SIZE) % 5) + 1j * (np.arange(SIZE) % 3)
    expected, _ = np.histogram(x, 9, (-60, 70), weights=weights)
    result = histograms.count([x], Grid((found,)), weights, "c16")
    np.testing.assert_array_equal(result, expected)
    near = np.array([0, 1, 2, 3, 5], "u8") + np.uint64(2**63 - 2)
    large = np.random.default_rng(0).choice(near, SIZE)
    edges = near[1:]
    np.testing.assert_array_equal(
        counted(large, find_bins(edges, None, large.dtype)), np.histogram(large, edges)[0]
    )


def test_threads_may_be_the_first_to_count_together() -> None:
    x, found = samples("f8"), find_bins(10, (-60, 70), np.dtype("f8"))
    for result in at_once(lambda _: histograms.count([x], Grid((found,)), None, "i8"), range(4)):
        np.testing.assert_array_equal(result, np.histogram(x, 10, (-60, 70))[0])


def test_without_numba_nothing_is_missing() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import dask.array as da, numpy as np, dask_coop as dc\n"
        "x = da.random.default_rng(0).random(200_000, chunks=70_000)\n"
        "counts = dc.histogram(x, 9, (0, 1), weights=x)[0].compute()\n"
        "expected = np.histogram(x.compute(), 9, (0, 1), weights=x.compute())[0]\n"
        "np.testing.assert_allclose(counts, expected, rtol=1e-12)"
    )
    printed("-c", code)

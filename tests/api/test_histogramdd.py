"""histogramdd and histogram2d against NumPy's: the same counts, to the last point."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.calls import noting
from support.strategies import NUMBERS, REAL

import dask_coop as dc

EDGES = [0, 0.5, 1, 1, 2.25, 7]


@st.composite
def points(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """Coordinates of some dtypes, bins and ranges."""
    n, d = draw(st.integers(0, 60)), draw(st.integers(1, 3))
    seed = np.random.default_rng(draw(st.integers(0, 999)))
    dtypes = [draw(st.sampled_from(REAL)) for _ in range(d)]
    coordinates = [(seed.integers(0, 33, n) / 4).astype(dtype) for dtype in dtypes]
    bins = [draw(st.sampled_from([1, 3, 10, EDGES, np.array([1, 3, 8])])) for _ in range(d)]
    ranges = [draw(st.sampled_from([None, (0, 7), (0.1, 2.9), (2, 2)])) for _ in range(d)]
    return coordinates, bins, draw(st.sampled_from([None, ranges, ranges]))


def numpys(sample: Any, *args: Any, **kwargs: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.histogramdd(sample, *args, **kwargs)


def compare(xp: Any, result: Any, expected: Any) -> None:
    hist, edges = result
    assert hist.dtype == expected[0].dtype
    np.testing.assert_array_equal(to_numpy(xp, hist), expected[0])
    for lazy, known in zip(edges, expected[1], strict=True):
        assert lazy.dtype == known.dtype
        np.testing.assert_array_equal(to_numpy(np, lazy), known)


@given(case=points(), size=st.integers(1, 30))
def test_coordinates_in_arrays_of_their_own(xp: Any, case: Any, size: int) -> None:
    coordinates, bins, ranges = case
    lazy = [to_chunks(xp, x, size) for x in coordinates]
    expected = numpys([x.astype(np.result_type(*coordinates)) for x in coordinates], bins, ranges)
    compare(xp, dc.histogramdd(lazy, bins, ranges), expected)


@given(case=points(), size=st.integers(1, 30), dtype=st.sampled_from(REAL))
def test_coordinates_in_columns(xp: Any, case: Any, size: int, dtype: str) -> None:
    coordinates, bins, ranges = case
    sample = np.array(coordinates).T.astype(dtype)
    x = to_chunks(xp, sample, (size, 2))
    compare(xp, dc.histogramdd(x, bins, ranges), numpys(sample, bins, ranges))
    if ranges is None:
        compare(xp, dc.histogramdd(x, 4), numpys(sample, 4))


def test_no_samples_may_have_columns_in_chunks_of_their_own() -> None:
    x = da.from_array(np.zeros((0, 3)), chunks=1)
    counts, _ = dc.histogramdd(x, 2, [(0, 1)] * 3)
    np.testing.assert_array_equal(counts.compute(), np.zeros((2, 2, 2)))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_many_points_on_edges_and_an_ulp_beside_them(xp: Any, dtype: str) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(0, 40, (2, 100_003)).astype(dtype)
    if dtype[0] == "f":
        edges = np.linspace(-50, 100, 301).astype(dtype)
        x[::3] = rng.choice(edges, x[::3].size)
        x[1::3] = np.nextafter(rng.choice(edges, x[1::3].size), y[1::3])
        y[::101] = np.nan
        y[1::101] = np.inf
    for bins, ranges in (
        ([300, 7], [(-50, 100), (-9.5, 30)]),
        ([np.geomspace(1, 90, 40), 1000], [None, (0, 1)]),
    ):
        sample = [to_chunks(xp, a, 40_001) for a in (x, y)]
        compare(xp, dc.histogramdd(sample, bins, ranges), numpys((x, y), bins, ranges))


def test_arrays_of_more_dimensions_in_other_chunks(xp: Any) -> None:
    x, y = np.random.default_rng(4).random((2, 12, 10, 3))
    lazy = to_chunks(xp, x, (5, 10, 2)), to_chunks(xp, y, (12, 3, 3))
    compare(xp, dc.histogramdd(lazy, 5), numpys((x.ravel(), y.ravel()), 5))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_weights_and_their_dtypes(xp: Any, dtype: str) -> None:
    rng = np.random.default_rng(5)
    sample, weights = rng.random((50, 2)), rng.integers(0, 2, 50).astype(dtype)
    x, w = to_chunks(xp, sample, (20, 2)), to_chunks(xp, weights, 7)
    hist, _ = dc.histogramdd(x, (3, 4), weights=w)
    # Dask's: floats keep their dtype, integers are summed in 64 bits.
    assert hist.dtype == (dtype if dtype[0] in "fc" else "u8" if dtype[0] == "u" else "i8")
    expected = numpys(sample, (3, 4), weights=weights.real.astype("f8"))[0]
    np.testing.assert_array_equal(to_numpy(xp, hist), expected)


def test_a_density_integrates_to_one(xp: Any) -> None:
    rng = np.random.default_rng(6)
    sample, weights = rng.random((90, 2)), rng.random(90)
    x, w = to_chunks(xp, sample, (20, 2)), to_chunks(xp, weights, 20)
    for kwargs in ({"density": True}, {"normed": True}):
        for more in ({}, {"weights": w}):
            density, edges = dc.histogramdd(x, [3, [0, 0.1, 0.4, 1]], **kwargs, **more)
            expected = numpys(
                sample, [3, [0, 0.1, 0.4, 1]], density=True, weights=weights if more else None
            )[0]
            np.testing.assert_allclose(to_numpy(xp, density), expected, rtol=1e-13)
            areas = np.multiply.outer(*(np.diff(edge.compute()) for edge in edges))
            assert (to_numpy(xp, density) * areas).sum() == pytest.approx(1)


def test_pairs(xp: Any) -> None:
    x, y = np.random.default_rng(7).random((2, 70))
    lazy = to_chunks(xp, x, 30), to_chunks(xp, y, 30)
    for bins in (5, (3, 4), [0, 0.25, 0.5, 1], [[0, 0.5, 1], 6], np.linspace(0, 1, 4)):
        result = dc.histogram2d(*lazy, bins)
        expected = np.histogram2d(x, y, bins)
        np.testing.assert_array_equal(to_numpy(xp, result[0]), expected[0])
        for edges, known in zip(result[1:], expected[1:], strict=True):
            np.testing.assert_array_equal(edges.compute(), known)


def test_ranges_and_counts_come_out_of_one_graph(xp: Any) -> None:
    x, reads = noting(to_chunks(xp, np.random.default_rng(8).random((10, 3)), (5, 3)))
    hist, edges = dc.histogramdd(x, 2)
    dask.compute(hist, *edges, scheduler="synchronous")
    assert len(reads) == 2


def test_a_range_that_is_not_finite_is_refused_when_it_is_found(xp: Any) -> None:
    x = to_chunks(xp, np.array([[1, 2], [np.nan, 3]]), 1)
    with pytest.raises(ValueError, match=r"autodetected range of \[nan, nan\] is not finite"):
        dc.histogramdd(x, 2)[0].compute(scheduler="synchronous")
    np.testing.assert_array_equal(to_numpy(xp, dc.histogramdd(x, 1, [(0, 5)] * 2)[0]), [[1]])


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((0,), ValueError, "must be positive"),
        (((3, 0),), ValueError, r"`bins\[1\]` must be positive"),
        (((3, 2.5),), TypeError, r"`bins\[1\]` must be an integer"),
        (((3, [2, 1]),), ValueError, r"`bins\[1\]` must be monotonically increasing"),
        (((3, 4, 5),), ValueError, "dimension of bins must be equal to the dimension of the"),
        ((3, [(0, 1)]), ValueError, "range argument requires one entry"),
        ((3, [(0, 1), 5]), ValueError, "range argument should be a sequence of pairs"),
        ((3, [(0, 1), (0, np.inf)]), ValueError, "is not finite"),
        ((3, None, True, None, True), TypeError, "both 'normed' and 'density'"),
        ((da.arange(3),), NotImplementedError, "dask collections to bins"),
        ((3, [(0, 1), (0, da.ones(()))]), NotImplementedError, "dask collections to range"),
    ],
)
def test_bad_arguments(args: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        dc.histogramdd(da.ones((4, 2), chunks=2), *args)


def test_bad_samples() -> None:
    one = da.ones(4, chunks=2)
    with pytest.raises(ValueError, match="should be columnar"):
        dc.histogramdd(one, 3)
    with pytest.raises(ValueError, match="coordinates must have equal shapes"):
        dc.histogramdd((one, da.ones(5)), 3)
    with pytest.raises(ValueError, match="at least one coordinate"):
        dc.histogramdd((), 3)
    with pytest.raises(TypeError, match="histogramdd does not take samples of dtype complex128"):
        dc.histogramdd((one, one * 1j), 3, reproducible=True)
    with pytest.raises(ValueError, match="weights should have the same shape as sample"):
        dc.histogramdd((one, one), 3, weights=da.ones(3))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("bins", [3, [2, 5, EDGES]])
@pytest.mark.parametrize("size", [5, 40])
def test_points_with_nan_are_left_out_of_ranges_where_that_is_asked_for(
    xp: Any, dtype: str, bins: Any, size: int
) -> None:
    sample = np.random.default_rng(5).integers(-9, 9, (40, 3)).astype(dtype)
    # The least and the greatest lie in points that do not count.
    sample[3], sample[20] = (np.nan, -50, np.inf), (99, -99, np.nan)
    sample[30, 1] = np.nan
    kept = sample[~np.isnan(sample).any(1)]
    expected, coordinates = numpys(kept, bins), [to_chunks(xp, x, size) for x in sample.T]
    compare(xp, dc.histogramdd(to_chunks(xp, sample, (size, 2)), bins, nan="omit"), expected)
    compare(xp, dc.histogramdd(coordinates, bins, nan="omit"), expected)
    of_two = dc.histogram2d(*coordinates[:2], 4, [None, (-9, 9)], nan="omit")
    kept = sample[~np.isnan(sample[:, :2]).any(1), :2]
    compare(xp, (of_two[0], of_two[1:]), numpys(kept, 4, [None, (-9, 9)]))
    with pytest.raises(ValueError, match="hold NaN; give range"):
        dc.histogramdd(coordinates, bins)[0].compute(scheduler="synchronous")


def test_points_of_nan_only_are_none(xp: Any) -> None:
    sample = np.array([[np.nan, 1], [2, np.nan]])
    compare(xp, dc.histogramdd(to_chunks(xp, sample, 1), 2, nan="omit"), numpys(sample[:0], 2))


def test_nan_is_left_out_of_points_of_unknown_number() -> None:
    x = da.from_array(np.array([1, np.nan, 3, 4, 9.0]), chunks=2)
    some = x[x != 9]
    compare(
        np,
        dc.histogramdd((some, some), 2, nan="omit"),
        numpys(np.array([[1, 3, 4]] * 2).T * 1.0, 2),
    )


def test_one_coordinate_of_two_dimensions(xp: Any) -> None:
    x = np.arange(12.0).reshape(3, 4)
    compare(xp, dc.histogramdd([to_chunks(xp, x, 2)], 3), numpys(x.reshape(-1, 1), 3))
    x[1, 2] = np.nan
    expected = numpys(x[~np.isnan(x)].reshape(-1, 1), 3)
    compare(xp, dc.histogramdd([to_chunks(xp, x, 2)], 3, nan="omit"), expected)

"""Statistics in bins against SciPy's, in any chunks."""

from __future__ import annotations

import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from scipy import stats

import dask_coop as dc

STATISTICS: Any = ["mean", "std", "median", "count", "sum", "min", "max"]
EDGES = [-20.0, -3, 0, 0.5, 30]


def points(n: int = 200) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=n) * 9, rng.integers(-9, 10, n) * 1.0, rng.normal(size=n)


def judged(*args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return stats.binned_statistic_dd(*args)


@pytest.mark.parametrize("range_", [None, (-20, 11.5)], ids=["found", "range"])
@pytest.mark.parametrize("bins", [6, EDGES], ids=["number", "edges"])
def test_all_statistics_of_a_list_are_scipys(xp: Any, bins: Any, range_: Any) -> None:
    x, _, values = points()
    lazy = to_chunks(xp, x, 37), to_chunks(xp, values, 50)
    result = dc.binned_statistic(*lazy, STATISTICS, bins, range_)
    for name, mine in zip(STATISTICS, result.statistic, strict=True):
        expected = stats.binned_statistic(x, values, name, bins, range_)
        np.testing.assert_allclose(to_numpy(xp, mine), expected.statistic, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(np.asarray(result.bin_edges), expected.bin_edges)
    np.testing.assert_array_equal(to_numpy(xp, result.binnumber), expected.binnumber)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_bins_of_pairs_are_scipys(xp: Any, statistic: Any) -> None:
    x, y, values = points()
    lazy = (to_chunks(xp, a, n) for a, n in ((x, 37), (y, 60), (values, 50)))
    result = dc.binned_statistic_2d(*lazy, statistic, [4, [-9, 0, 5]])
    expected = judged([x, y], values, statistic, [4, [-9, 0, 5]])
    np.testing.assert_allclose(
        to_numpy(xp, result.statistic), expected.statistic, rtol=1e-12, atol=1e-13
    )
    np.testing.assert_array_equal(to_numpy(xp, result.binnumber), expected.binnumber)


def test_rows_of_points_and_rows_of_values(xp: Any) -> None:
    x, y, values = points()
    sample, several = np.stack([x, y, values], 1), np.stack([values, x])
    lazy = to_chunks(xp, sample, (30, 2)), to_chunks(xp, several, (1, 90))
    result = dc.binned_statistic_dd(*lazy, ["mean", "count"], 3)
    for name, mine in zip(("mean", "count"), result.statistic, strict=True):
        expected = judged(sample, several, name, 3).statistic
        assert mine.shape == (2, 3, 3, 3)
        np.testing.assert_allclose(to_numpy(xp, mine), expected, rtol=1e-12)


def test_points_of_several_axes_and_points_outside(xp: Any) -> None:
    x = np.array([[0.0, 1, 2], [np.nan, 4, 5]])
    result = dc.binned_statistic(to_chunks(xp, x, 2), to_chunks(xp, x, 1), "count", [1, 2, 4])
    np.testing.assert_array_equal(to_numpy(xp, result.statistic), [1, 2])
    np.testing.assert_array_equal(to_numpy(xp, result.binnumber), [[0, 1, 2], [3, 2, 3]])


def test_nan_counts_and_makes_its_bin_nan() -> None:
    x, values = da.from_array([0.5, 0.6, 1.5], chunks=2), da.from_array([1, np.nan, 3], chunks=2)
    result = dc.binned_statistic(x, values, STATISTICS, [0, 1, 2])
    found = dict(zip(STATISTICS, dask.compute(*result.statistic), strict=True))
    np.testing.assert_array_equal(found.pop("count"), [2, 1])
    for name, value in found.items():
        np.testing.assert_array_equal(value, [np.nan, 0 if name == "std" else 3])


def test_what_cannot_be_binned_is_refused() -> None:
    x = da.ones(4, chunks=2)
    with pytest.raises(ValueError, match="got 'mode'"):
        dc.binned_statistic(x, x, "mode")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(4,\), as their last axes; got \(3,\)"):
        dc.binned_statistic(x, da.ones(3))
    with pytest.raises(TypeError, match="got dtype complex128"):
        dc.binned_statistic(x, x * 1j)
    with pytest.raises(ValueError, match="a row for each point"):
        dc.binned_statistic_dd(x, x)
    with pytest.raises(dc.Refused, match="MaskedArray"):
        dc.binned_statistic(da.ma.masked_equal(x, 2), x)
    words = r"binned_statistic takes coordinates of one axis or more, got shape \(\); x.reshape"
    with pytest.raises(ValueError, match=words):
        dc.binned_statistic(0.5, 1.0)
    with pytest.raises(ValueError, match="binned_statistic_2d takes coordinates of one axis"):
        dc.binned_statistic_2d(0.5, 0.5, 1.0)
    with pytest.raises(ValueError, match=r"binned_statistic needs .*; x.compute_chunk_sizes"):
        dc.binned_statistic(x[x > 0], x[x > 0])

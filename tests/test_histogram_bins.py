"""Bins that histogram finds when it computes: by NumPy's rules, or from lazy numbers and edges."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks
from dask import delayed
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from strategies import REAL, Chunked, arrays

import dask_coop as dc
from dask_coop.bins import find_bins


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

"""histogram along axes, with what is outside, and with weights of every dtype, against NumPy's."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import FLOATS, INTS, NUMBERS, REAL, Chunked, axes, reducible, shapes

import dask_coop as dc

BINS = st.sampled_from([(4, (1, 8)), (5, None), ([0, 2, 3, 9], None), (1000, (0, 9))])


def by_lines(array: Any, axis: Any, function: Any, *more: Any) -> Any:
    """Apply a function of all elements to those of each position along the other axes."""
    every = range(array.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    counted = sorted(a % array.ndim for a in every)
    kept = [d for d in range(array.ndim) if d not in counted]
    shape = [array.shape[d] for d in kept]
    n = math.prod(array.shape[d] for d in counted)
    lines = (a.transpose(kept + counted).reshape(math.prod(shape), n) for a in (array, *more))
    results = [function(*line) for line in zip(*lines, strict=True)]
    return np.array(results).reshape(*shape, -1) if results else None


@given(case=reducible(dtypes=REAL, values=st.integers(0, 9)), bins=BINS)
def test_every_position_along_the_other_axes_has_its_own(
    xp: Any, case: tuple[Chunked, Any], bins: Any
) -> None:
    (array, sizes), axis = case
    x = to_chunks(xp, array, sizes)
    result, edges = dc.histogram(x, *bins, axis=axis)
    if array.size == 0:
        assert to_numpy(xp, result).sum() == 0
        return
    samples = array.astype("u1") if array.dtype == bool else array
    _, expected_edges = np.histogram(samples, *bins)
    limits = (expected_edges[0], expected_edges[-1])
    if bins[1] is None and np.ndim(bins[0]) == 0:
        limits = (samples.min(), samples.max())
    expected = by_lines(samples, axis, lambda a: np.histogram(a, bins[0], limits)[0])
    np.testing.assert_array_equal(to_numpy(xp, result), expected)
    np.testing.assert_array_equal(np.asarray(edges), expected_edges)


def test_lines_of_many_samples_and_many_lines(xp: Any) -> None:
    array = np.random.default_rng(0).normal(0, 1, (60, 10, 90))
    x = to_chunks(xp, array, ((60,), (3, 7), (90,)))
    for axis in (0, 1, 2, (0, 1), (1, 2), (0, 2)):
        for bins in ((30, (-2, 2)), (np.sort(array[0, 0]), None)):
            result, _ = dc.histogram(x, *bins, axis=axis)
            expected = by_lines(array, axis, lambda a, bins=bins: np.histogram(a, *bins)[0])
            np.testing.assert_array_equal(to_numpy(xp, result), expected)
            weighed, _ = dc.histogram(x, *bins, axis=axis, weights=abs(x))
            expected = by_lines(
                array,
                axis,
                lambda a, w, bins=bins: np.histogram(a, *bins, weights=w)[0],
                abs(array),
            )
            np.testing.assert_allclose(to_numpy(xp, weighed), expected, rtol=1e-11, atol=1e-12)


def test_chunks_along_kept_axes_stay(xp: Any) -> None:
    x = to_chunks(xp, np.ones((7, 9, 4)), ((3, 0, 4), (5, 4), 4))
    assert dc.histogram(x, 6, (0, 1), axis=1)[0].chunks == ((3, 0, 4), (4,), (6,))
    assert dc.histogram(x, 6, (0, 1), axis=(0, -1), flow=True)[0].chunks == ((5, 4), (8,))


@given(case=reducible(dtypes=["f4", "u1"], values=st.integers(0, 9)))
def test_densities_of_lines_integrate_to_one(xp: Any, case: tuple[Chunked, Any]) -> None:
    (array, sizes), axis = case
    if array.size == 0:
        return
    result, _ = dc.histogram(to_chunks(xp, array, sizes), [0, 1, 4, 9], axis=axis, density=True)
    expected = by_lines(array, axis, lambda a: np.histogram(a, [0, 1, 4, 9], density=True)[0])
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=1e-14)


@given(data=st.data(), dtype=st.sampled_from([*INTS, *FLOATS]))
def test_flow_counts_every_sample(xp: Any, dtype: str, data: Any) -> None:
    size = data.draw(st.integers(0, 50))
    palette = [0, 1, 2, 3, 7, 9, 100] + ([-1.5, np.nan, np.inf, -np.inf] if dtype[0] == "f" else [])
    array = np.array(data.draw(st.lists(st.sampled_from(palette), min_size=size, max_size=size)))
    array = array.astype(dtype)
    x = to_chunks(xp, array, 11)
    for bins, limits in ((3, (1, 7)), ([1, 2, 7], None), (100, (2, 3))):
        result, edges = dc.histogram(x, bins, limits, flow=True)
        counts = to_numpy(xp, result)
        np.testing.assert_array_equal(counts[1:-1], np.histogram(array, bins, limits)[0])
        assert counts[0] == (array < edges[0]).sum()
        assert counts[-1] == ((array > edges[-1]) | np.isnan(array)).sum()
        assert counts.sum() == size


def test_flow_with_axis_weights_and_a_range_to_be_found(xp: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)
    x = to_chunks(xp, array, 2)
    result, _ = dc.histogram(x, [2, 5, 9], axis=1, weights=x, flow=True)
    np.testing.assert_array_equal(
        to_numpy(xp, result), [[1, 5, 0, 0], [0, 4, 18, 0], [0, 0, 17, 21]]
    )
    counts = to_numpy(xp, dc.histogram(x, 5, flow=True)[0])
    np.testing.assert_array_equal(counts, [0, *np.histogram(array, 5)[0], 0])


@pytest.mark.parametrize("dtype", NUMBERS)
@settings(max_examples=5)
@given(data=st.data())
def test_weights_of_every_dtype(xp: Any, dtype: str, data: Any) -> None:
    shape = data.draw(shapes(0, 3))
    axis = data.draw(axes(len(shape)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    array = rng.integers(0, 10, shape).astype("f4")
    weights = rng.integers(0, 2, shape) * (1 + 2j if dtype.startswith("c") else 1)
    weights = weights.astype(dtype)
    x, w = (to_chunks(xp, a, 7 if a.ndim else ()) for a in (array, weights))
    result, _ = dc.histogram(x, 5, (1, 8), axis=axis, weights=w, flow=True)
    assert result.dtype == weights.dtype
    if array.size:
        edges = [-np.inf, *np.linspace(1, 8, 6)[:-1], np.nextafter(8.0, 9), np.inf]
        expected = by_lines(
            array,
            axis,
            lambda a, v: [
                v[(a >= low) & (a < high)].sum(dtype=dtype) for low, high in pairwise(edges)
            ],
            weights,
        )
        np.testing.assert_array_equal(to_numpy(xp, result), expected)


def test_complex_weights_have_a_complex_density(xp: Any) -> None:
    samples, weights = np.arange(6.0), np.array([1, 0, 2j, 5, 0, 1 - 1j], "c8")
    x, w = to_chunks(xp, samples, 4), to_chunks(xp, weights, 3)
    result, _ = dc.histogram(x, [0, 1, 4, 5], weights=w, density=True)
    assert result.dtype == "c16"
    expected, _ = np.histogram(samples, [0, 1, 4, 5], weights=weights, density=True)
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=1e-6)


def test_bad_arguments() -> None:
    x = da.ones((4, 3), chunks=2)
    with pytest.raises(ValueError, match="density=True needs flow=False"):
        dc.histogram(x, 3, (0, 1), density=True, flow=True)
    with pytest.raises(ValueError, match="duplicate value in 'axis'"):
        dc.histogram(x, 3, (0, 1), axis=(0, -2))
    with pytest.raises(np.exceptions.AxisError):
        dc.histogram(x, 3, (0, 1), axis=2)

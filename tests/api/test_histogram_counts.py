"""Counts are NumPy's to the last sample: on edges, beside them, and where its arithmetic ends.

Cases are drawn by seeded generators, so that one number tells all about a case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from support.strategies import FLOATS, INTS

import dask_coop as dc
from dask_coop import chunks
from dask_coop.algebra import monoids
from dask_coop.algebra.bins import Grid, find_bins, find_coordinate_bins
from dask_coop.algebra.edges import Bins
from dask_coop.algebra.operation import bind
from dask_coop.chunks.numpy.loop_table import WORTH_COMPILING

#: Samples for which loops are compiled.
_LARGE = int(WORTH_COMPILING["histogram"])

#: Cases that a test looks at; thousands have been, and `make fuzz` draws more.
CASES = 100


class Case(NamedTuple):
    """Samples, and the arguments of np.histogram."""

    x: Any
    n: int
    limits: Any


def extremes(rng: np.random.Generator, dtype: np.dtype[Any]) -> Any:
    """Draw two numbers of a dtype, close to each other or not."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        least, most = int(info.min), int(info.max)
        reach = 1 << int(rng.integers(0, 8 * dtype.itemsize))
        reach = most - least if rng.random() < 0.3 else reach
        low = int(rng.integers(least, most, dtype=dtype, endpoint=True))
        if rng.random() < 0.4:
            low = int(rng.integers(-3, 4)) if least < 0 else int(rng.integers(0, 4))
        return np.array([low, min(low + int(reach * rng.random()), most)], dtype)
    low = rng.normal() * 10.0 ** rng.integers(-3, 4)
    # Bins may be nearly as fine as the dtype.
    fine = abs(low) * 2.0 ** -rng.integers(0, np.finfo(dtype).nmant - 3)
    reach = fine if rng.random() < 0.4 else rng.random() * 100
    pair = np.array([low, low + reach]).astype(dtype)
    if rng.random() < 0.3:
        pair = np.round(pair)
    return np.sort(pair)


def draw(seed: int, size: int = 0) -> Case:
    """Draw a case of 1000 samples, or more, on edges, one step beside them and elsewhere."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(rng.choice([*FLOATS, *FLOATS, *INTS, "i8", "u8", "?"]))
    pair = extremes(rng, dtype)
    n = int(rng.choice([1, 2, 3, 7, 10, 50, 64, 100, 256, 999, 1500, 4096]))
    limits: Any = None
    match rng.integers(0, 5):
        case 0 | 1:
            # As they are in Python.
            limits = tuple((pair * 1).tolist())
        case 2:
            low, high = (float(number) for number in pair)
            low -= rng.random()
            limits = (low, max(high, low) + rng.random())
        case 3 if dtype.kind in "iuf":
            limits = tuple(pair)
    samples = pair.view("u1") if dtype.kind == "b" else pair
    with np.errstate(all="ignore"):
        low, high = (float(end) for end in (samples if limits is None else limits))
        finest = np.spacing(np.abs(samples[-1:]).astype("f8" if dtype.kind in "iub" else dtype))
        if 1 < (most := float((high - low) / finest[0])) < 5000 and rng.random() < 0.7:
            # As many as the dtype of the edges can tell apart, nearly.
            n = max(int(most * (0.2 + 0.8 * rng.random())), 1)
        try:
            edges = np.histogram_bin_edges(samples, n, limits)
        except ValueError:
            edges = samples
        at = rng.choice(edges, 1000)
        if dtype.kind == "f":
            x = at.astype(dtype)
            inf = dtype.type(np.inf)
            x[::3] = np.nextafter(x[::3], inf)
            x[1::3] = np.nextafter(x[1::3], -inf)
        elif dtype.kind == "b":
            x = rng.random(1000) < 0.5
        else:
            info, wide = np.iinfo(dtype), [int(number) for number in at]
            moved = [w + int(d) for w, d in zip(wide, rng.integers(-2, 3, 1000), strict=True)]
            x = np.array([min(max(w, info.min), info.max) for w in moved], dtype)
        x[-2:] = pair
    if limits is None:
        x = np.clip(x, *pair) if dtype.kind != "b" else x
    elif dtype.kind == "f":
        x[5::101], x[6::101], x[7::101] = np.nan, np.inf, -np.inf
    x = np.where(x == 0, x.dtype.type(0), x)
    return Case(np.resize(x, size) if size else x, n, limits)


def numpys(case: Case, weights: Any = None) -> Any:
    """Return NumPy's counts and edges; None where it fails."""
    x = case.x.view("u1") if case.x.dtype.kind == "b" else case.x
    with np.errstate(all="ignore"):
        try:
            return np.histogram(x, case.n, case.limits, weights=weights)
        except (ValueError, IndexError, OverflowError):
            return None


def bins_of(case: Case) -> Bins:
    """Return the bins that a task finds for samples."""
    x = case.x.view("u1") if case.x.dtype.kind == "b" else case.x
    limits = (x.min(), x.max()) if case.limits is None else case.limits
    with np.errstate(all="ignore"):
        return find_bins(case.n, limits, x.dtype)


def count(xp: Any, x: Any, grid: Grid, weights: Any = None) -> Any:
    """Count a chunk."""
    dtype = np.dtype("i8" if weights is None else weights.dtype)
    op = bind(monoids.COUNTS, dtype, dtype, "histogram")
    arrays = [xp.asarray(x)]
    weights = weights if weights is None else xp.asarray(weights)
    (table,) = chunks.backend_of(arrays[0]).histogram(op, arrays, grid, weights)
    return chunks.asarray(table, "numpy")


def assert_numpys(xp: Any, case: Case, seed: int) -> None:
    """Hold every way to count a chunk to NumPy's counts."""
    if (expected := numpys(case)) is None:
        return
    counts, edges = expected
    bins, x = bins_of(case), case.x
    about = f"seed {seed}: {x.dtype} {case.n} bins of {case.limits}, {x.size} samples"
    np.testing.assert_array_equal(bins.edges, edges, about)
    np.testing.assert_array_equal(count(xp, x, Grid((bins,))), counts, about)
    table = count(xp, x, Grid((bins,), flow=True))
    np.testing.assert_array_equal(table[1:-1], counts, f"{about}, flow")
    assert table.sum() == x.size
    if case.limits is not None:
        wide = x.view("u1") if x.dtype.kind == "b" else x
        assert table[0] == (wide < bins.limits[0]).sum(), about
    weights = np.arange(x.size) % 7
    weighed = count(xp, x, Grid((bins,)), weights)
    np.testing.assert_array_equal(weighed, numpys(case, weights)[0], f"{about}, weights")
    if case.n < 500:
        lines = x[: x.size // 4 * 4].reshape(4, -1)
        table = count(xp, lines, Grid((bins,), axes=(1,)))
        for line, row in zip(lines, table, strict=True):
            limits = bins.limits if case.limits is None else case.limits
            expected = numpys(Case(line, case.n, limits))
            if expected is not None:
                np.testing.assert_array_equal(row, expected[0], f"{about}, axis")


@pytest.mark.parametrize("size", [0, _LARGE])
def test_counts_are_numpys(xp: Any, size: int) -> None:
    for seed in range(CASES):
        assert_numpys(xp, draw(seed, size), seed)


def test_edges_that_are_multiples_of_a_power_of_two(xp: Any) -> None:
    """Most of these are not rounded, and no guess needs more than a look."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        dtype, n = rng.choice(["f4", "f8"]), int(rng.choice([1, 3, 16, 256, 1000, 65_536]))
        step, first = 2.0 ** rng.integers(-30, 10), int(rng.normal() * 2 ** rng.integers(1, 30))
        limits = first * step, (first + n) * step
        edges = rng.choice(np.linspace(*limits, n + 1), _LARGE).astype(dtype)
        x = np.concatenate([edges, *(np.nextafter(edges, edges.dtype.type(e)) for e in limits)])
        assert_numpys(xp, Case(x, n, limits), seed)


@pytest.mark.parametrize("size", [0, _LARGE])
def test_counts_of_a_coordinate_are_numpys(xp: Any, size: int) -> None:
    for seed in range(CASES):
        case = draw(seed, size)
        x = case.x.view("u1") if case.x.dtype.kind == "b" else case.x
        limits = (x.min(), x.max()) if case.limits is None else case.limits
        with np.errstate(all="ignore"):
            try:
                counts, (edges,) = np.histogramdd((x,), [case.n], [case.limits])
            except (ValueError, OverflowError):
                continue
            if (edges[:-1] > edges[1:]).any():
                with pytest.raises(ValueError, match="Too many bins for data range"):
                    find_coordinate_bins(case.n, limits, x.dtype)
                continue
            bins = find_coordinate_bins(case.n, limits, x.dtype)
        about = f"seed {seed}: {x.dtype} {case.n} bins of {case.limits}"
        np.testing.assert_array_equal(bins.edges, edges, about)
        np.testing.assert_array_equal(count(xp, x, Grid((bins,))), counts, about)


def assert_same(xp: Any, x: Any, *args: Any, expected: Any = None) -> None:
    """Hold histograms of `x` to NumPy's counts, in chunks below and above the compiled loops."""
    if expected is None:
        with np.errstate(all="ignore"):
            expected, _ = np.histogram(x, *args)
    times = -(-_LARGE // x.size)
    for array, chunk in ((x, -1), (x, x.size // 3 + 1), (np.tile(x, times), -1)):
        result, _ = dc.histogram(to_chunks(xp, array, chunk), *args)
        np.testing.assert_array_equal(to_numpy(xp, result), expected * (array.size // x.size))


def test_edges_made_in_float32(xp: Any) -> None:
    low, high = np.float32(-1.7224054), np.float32(1.7040669)
    edges = np.histogram_bin_edges(np.array([low, high]), 50)
    x = np.concatenate([edges, np.nextafter(edges, np.float32(-9)), np.nextafter(edges, high)])
    assert_same(xp, x[x >= low], 50)


@pytest.mark.parametrize("x", [-1, -256, -257, 0, 1])
def test_differences_that_float64_rounds(xp: Any, x: int) -> None:
    assert_same(xp, np.full(50, x), 2, (-(2**62), 2**62))


@pytest.mark.parametrize(
    ("low", "high", "n"),
    [
        (345568088544230677, 1641417065998096891, 7),
        (2**53, 2**53 + 40, 5),
        (-(2**63), 2**63 - 1, 64),
        (-(2**60), 17, 10),
        (0.5, 2.0**60, 9),
    ],
)
def test_integers_beyond_float64(xp: Any, low: Any, high: Any, n: int) -> None:
    edges = np.histogram_bin_edges(np.empty(0, "i8"), n, (low, high))
    near = [int(edge) + step for edge in [low, high, *edges] for step in range(-3, 4)]
    assert_same(xp, np.array([x for x in near if -(2**63) <= x < 2**63]), n, (low, high))


def test_integers_beyond_uint64s_range(xp: Any) -> None:
    x = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1], "u8")
    # NumPy raises an OverflowError for the same limits as integers of Python.
    expected, _ = np.histogram(x, 4, (np.uint64(0), np.uint64(2**64 - 1)))
    assert_same(xp, x, 4, (0, 2**64 - 1), expected=expected)
    assert_same(xp, x, 3, (-5, 2**64 - 1), expected=np.array([2, 2, 2]))
    wide = np.array([-5, 2**63 - 1])
    table, _ = dc.histogram(to_chunks(xp, wide, -1), 2, (2**63, 2**64 - 1), flow=True)
    np.testing.assert_array_equal(to_numpy(xp, table), [2, 0, 0, 0])


@pytest.mark.parametrize(
    ("limits", "n"),
    [
        ((np.float16(-0.8), np.float16(1.1)), 1468),
        ((np.float16(-39.4), np.float16(345.0)), 1371),
        ((-1.8, 0.8), 2342),
        ((1152922077816100008, 1152922077816116864), 61),
    ],
)
def test_guesses_that_numpy_leaves_further_off(xp: Any, limits: Any, n: int) -> None:
    if isinstance(limits[0], int):
        x = np.arange(limits[0] - 9, limits[1] + 9)
    else:
        x = np.arange(1 << 16, dtype="u2").view("f2")
        x = x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        counts, edges = np.histogram(x, n, limits)
    inside = x[(x >= limits[0]) & (x <= limits[1])].astype(edges.dtype)
    searched = np.minimum(np.searchsorted(edges, inside, "right"), n) - 1
    assert (np.bincount(searched, minlength=n) != counts).any()
    assert_same(xp, x, n, limits)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("times", [1, 2000])
def test_a_coordinate_is_counted_by_the_edges_returned(xp: Any, dtype: str, times: int) -> None:
    x = np.tile((np.arange(1, 20) / 10).astype(dtype), times)
    hist, (edges,) = dc.histogramdd((to_chunks(xp, x, -1),), bins=6)
    expected, (found,) = np.histogramdd((x,), bins=6)
    np.testing.assert_array_equal(to_numpy(xp, hist), expected)
    np.testing.assert_array_equal(edges.compute(), found)

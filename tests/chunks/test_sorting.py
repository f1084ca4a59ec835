"""Float16 is sorted without NumPy's default sort, which is wrong on AVX-512 processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_coop as dc
from dask_coop.chunks import backend_of

#: Such as NumPy 2.4.6 leaves unsorted where it can.
NEIGHBOURS = (-0.09 + 6e-5 * np.arange(31)).astype("f2")
ODD = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 6e-8, -6e-8, 65504], "f2")


def few_values(odd: bool) -> Any:
    rng = np.random.default_rng(0)
    return rng.choice(np.concatenate([NEIGHBOURS, ODD]) if odd else NEIGHBOURS, 26_000)


def refusing(function: Callable[..., Any], safe: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a function of NumPy that takes no float16 where its default sort would sort it."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        assert np.asarray(x).dtype != "f2" or safe(kwargs), function.__name__
        return function(x, *args, **kwargs)

    return call


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have NumPy refuse to sort float16, whatever the processor."""
    for name, safe in {
        "sort": lambda kwargs: kwargs.get("kind") == "stable",
        # These two sort indices.
        "unique": lambda kwargs: kwargs.get("return_index") or kwargs.get("return_inverse"),
        "histogram": lambda kwargs: np.ndim(kwargs.get("bins", 10)) == 0,
        "union1d": lambda kwargs: False,
    }.items():
        monkeypatch.setattr(np, name, refusing(getattr(np, name), safe))


def right(x: Any) -> Any:
    """Return sorted elements, of which zeros of either sign are equal."""
    return np.sort(x.astype("f4"), kind="stable").astype("f2")


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.usefixtures("strict")
def test_float16_is_sorted_and_counted(odd: bool) -> None:
    x = few_values(odd)
    lazy = da.from_array(x, chunks=x.size)
    values, counts = np.unique(x.astype("f4"), return_counts=True)
    for stable in (False, True):
        np.testing.assert_array_equal(dc.sort(lazy, stable=stable), right(x))
    np.testing.assert_array_equal(dc.topk(lazy, -25_000), right(x)[:25_000])
    np.testing.assert_array_equal(dc.topk(lazy, 20_000), right(x)[::-1][:20_000])
    for chunks in (26_000, 9_000):
        found = dc.unique(lazy.rechunk(chunks), return_counts=True)
        np.testing.assert_array_equal(found[0], values)
        np.testing.assert_array_equal(found[1], counts)
    np.testing.assert_array_equal(dc.unique(lazy), values)
    ranks = dc.quantile(lazy, [0.1, 0.5], method="lower")
    np.testing.assert_array_equal(ranks, np.quantile(x.astype("f4"), [0.1, 0.5], method="lower"))


@pytest.mark.usefixtures("strict")
def test_float16_is_counted_between_given_edges() -> None:
    x, edges = few_values(True), NEIGHBOURS[::3]
    counts, _ = dc.histogram(da.from_array(x, chunks=13_000), edges)
    at = np.searchsorted(edges, x[(x >= edges[0]) & (x <= edges[-1])], "right") - 1
    expected = np.bincount(np.minimum(at, len(edges) - 2), minlength=len(edges) - 1)
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.usefixtures("strict")
def test_groups_of_float16_labels_that_are_found_with_the_chunks() -> None:
    labels = few_values(True)
    lazy = da.from_array(labels, chunks=9_000)
    ones = da.ones(labels.size, chunks=9_000, dtype="i8")
    found, groups = dc.groupby_reduce(ones, lazy, func="count")
    values, counts = np.unique(labels.astype("f4"), return_counts=True)
    np.testing.assert_array_equal(groups, values[:-1])
    np.testing.assert_array_equal(found, counts[:-1])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f4", "f2", "i4", "i2", "u4", "u1", "?"])
@pytest.mark.parametrize("shape", [(300, 301), (2, 65_536), (70_000, 3), (3, 65_537)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_lines_of_a_gpu_have_numpys_order(cp: Any, shape: Any, dtype: str, axis: int) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, shape, dtype="u4")
    # All floats, with NaN of all signs, zeros of both, infinities and subnormal numbers.
    x = bits.view("f4") if dtype == "f4" else (bits >> 16).astype("u2").view("f2")
    x = x if dtype in ("f4", "f2") else bits.astype(dtype)
    some = rng.random(shape) < 0.3
    few = np.array([0.0, 1.0] if x.dtype.kind != "f" else [0.0, -0.0, np.nan, np.inf, 1e-7])
    x = np.where(some, rng.choice(few, shape).astype(dtype), x)
    got = backend_of(cp.asarray(x)).argsort(cp.asarray(x), axis, True)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(cp.asnumpy(got), x.argsort(axis, kind="stable"))

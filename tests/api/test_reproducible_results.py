"""What else takes reproducible=True: nansum, nanmean, norm and weighted histograms; masks."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from fractions import Fraction
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import missing_for_gpu, to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.calls import refuse
from support.loops import compile_from
from support.strategies import COMPLEX, FLOATS, axes, chunkings
from support.sums import bits, hard_arrays, rounded, scattered

import dask_coop as dc


# Of the module, because Hypothesis refuses fixtures that would be made anew for every example.
@pytest.fixture(
    scope="module",
    params=["numba", "numpy", pytest.param("cupy", marks=pytest.mark.gpu)],
    name="xp",
)
def _xp(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Return the module whose arrays chunks are: NumPy with Numba's loops, without, and CuPy."""
    if request.param == "cupy" and (missing := missing_for_gpu()):
        pytest.skip(missing)
    if request.param == "numba":
        pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            compile_from(patch, math.inf, "reproducible", "histogram")
        if request.param == "numba":
            compile_from(patch, 1, "histogram")
        yield importlib.import_module("cupy" if request.param == "cupy" else "numpy")


def results(xp: Any, function: Any, array: Any, *more: Any) -> list[Any]:
    """Return what `function` makes of the array, and of `more`, in one chunk and in many."""
    cuts = [-1, max(1, array.size // 3), max(1, array.size // 23)]
    return [
        to_numpy(xp, function(*(to_chunks(xp, a, cut) for a in (array, *more)))) for cut in cuts
    ]


def assert_same_bits(found: list[Any]) -> Any:
    assert len({bits(x) for x in found}) == 1
    return found[0]


@given(data=st.data())
def test_the_bits_of_what_is_left_of_nan_are_those_of_every_chunking(xp: Any, data: Any) -> None:
    array, chunks = data.draw(hard_arrays(FLOATS + COMPLEX))
    axis = data.draw(axes(array.ndim))
    name = data.draw(st.sampled_from(["nansum", "nanmean"]))
    where = np.random.default_rng(3).random(array.shape) < data.draw(st.sampled_from([0.5, 1]))
    mask = True if where.all() else where
    function = getattr(dc, name)
    split_every = data.draw(st.none() | st.integers(2, 9))
    options = {"axis": axis, "where": mask, "reproducible": True}
    found = to_numpy(xp, function(to_chunks(xp, array, chunks), split_every=split_every, **options))
    whole = to_numpy(xp, function(to_chunks(xp, array, -1), **options))
    assert bits(found) == bits(whole)
    kept = np.where(np.isnan(array) | ~where, array.dtype.type(0), array)
    if name == "nansum":
        zeros = to_numpy(xp, dc.sum(to_chunks(xp, kept, -1), axis, reproducible=True))
        assert bits(found) == bits(zeros)


def test_nan_is_left_out_of_means_and_of_their_counts(xp: Any) -> None:
    array = np.array([[1, np.nan, 3, np.inf], [np.nan, 0.1, np.nan, 0.2], [np.nan] * 4])
    for dtype in FLOATS + COMPLEX:
        x = to_chunks(xp, array.astype(dtype), 2)
        found = to_numpy(xp, dc.nanmean(x, 1, reproducible=True))
        exact = sum(map(Fraction, array[1, 1::2].astype(dtype).real.tolist())) / 2
        expected = [np.inf, found.real.dtype.type(float(exact)), np.nan]
        np.testing.assert_array_equal(found.real, expected)
    ints = to_chunks(xp, np.arange(7), 3)
    assert to_numpy(xp, dc.nanmean(ints, reproducible=True)) == 3
    assert to_numpy(xp, dc.nansum(ints, reproducible=True)) == 21
    assert to_numpy(xp, dc.nansum(to_chunks(xp, array[1], 2), dtype="i8", reproducible=True)) == 0


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_masks_leave_elements_out_of_reproducible_sums(xp: Any, name: str, dtype: str) -> None:
    array = scattered((37, 23), dtype)
    where = np.random.default_rng(5).random(array.shape) < 0.4
    where[:, 3] = False
    function = getattr(dc, name)
    for axis in (0, 1, None):
        whole, parts = (
            to_numpy(xp, function(to_chunks(xp, array, n), axis, where=where, reproducible=True))
            for n in (-1, 9)
        )
        assert bits(whole) == bits(parts)
    columns = to_numpy(xp, function(to_chunks(xp, array, 9), 0, where=where, reproducible=True))
    for column, found in enumerate(columns):
        kept = array[where[:, column], column]
        alone = to_numpy(xp, function(to_chunks(xp, kept, 5), reproducible=True))
        assert bits(found) == bits(alone)


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
@pytest.mark.parametrize("initial", [0, 0.1, -1e300, 3e4, np.inf, np.nan])
def test_sums_begin_with_an_initial_number(xp: Any, dtype: str, initial: float) -> None:
    array = np.array([0.1, 5, 2.0**-20, -7, 3]).astype(dtype)
    where = np.array([True, False, True, True, False])
    for function in (dc.sum, dc.nansum):
        for mask in (True, where):
            found = [
                to_numpy(
                    xp,
                    function(
                        to_chunks(xp, array, n), initial=initial, where=mask, reproducible=True
                    ),
                )
                for n in (1, 2, 5)
            ]
            same = assert_same_bits(found).real
            kept = [*(array if mask is True else array[mask]).real.tolist(), initial]
            exact = sum(map(Fraction, kept)) if np.isfinite(initial) else None
            # What is far below the initial number is dropped.
            expected = rounded(exact, same.dtype) if exact is not None else initial
            np.testing.assert_array_equal(same, expected)


def test_means_of_what_an_initial_state_meets_in_large_results(xp: Any) -> None:
    # States of so many lines stay on the GPU, and the initial one does not.
    array = scattered((3, 3000), "f4")
    lazy = dc.sum(to_chunks(xp, array, (1, -1)), 0, initial=1e30, reproducible=True)
    ahead = np.concatenate([np.full((1, 3000), 1e30), array.astype("f8")])
    expected = to_numpy(xp, dc.sum(to_chunks(xp, ahead, -1), 0, dtype="f4", reproducible=True))
    assert bits(to_numpy(xp, lazy)) == bits(expected)


ORDERS = [None, 0, 1, 2, np.inf, -np.inf]


@given(data=st.data())
def test_the_bits_of_a_norm_are_those_of_every_chunking(xp: Any, data: Any) -> None:
    array = data.draw(hard_arrays(["?", "i4", *FLOATS, *COMPLEX])).array
    array = array.reshape(-1, array.shape[-1]) if array.ndim and array.size else array.ravel()
    matrix = array.ndim == 2 and data.draw(st.booleans())
    orders = ["fro", 1, -1, np.inf, -np.inf] if matrix else ORDERS
    ord = data.draw(st.sampled_from(orders if array.dtype.kind != "c" else [orders[0], None]))
    axis = None if matrix or ord is None else data.draw(st.integers(0, array.ndim - 1))
    if array.size == 0 and ord == -np.inf:
        return
    found, whole = (
        to_numpy(xp, dc.norm(to_chunks(xp, array, cuts), ord, axis, reproducible=True))
        for cuts in (data.draw(chunkings(array.shape)), -1)
    )
    np.testing.assert_array_equal(found, whole)
    plain = to_numpy(xp, dc.norm(to_chunks(xp, array, -1), ord, axis))
    assert found.dtype == plain.dtype
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, plain, rtol=4 * np.finfo(found.dtype).eps, atol=1e-300)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_norms_are_those_of_exact_sums_of_squares(xp: Any, dtype: str) -> None:
    # Less apart than the window is wide.
    rng = np.random.default_rng(8)
    real, imag = rng.standard_normal((2, 1000))
    array = (real + 1j * imag if dtype in COMPLEX else real).astype(dtype)
    parts = np.concatenate([array.real, array.imag]).astype("f8")
    found = assert_same_bits(
        results(xp, lambda x: dc.norm(x, reproducible=True), array)
        + results(xp, lambda x: dc.norm(x, reproducible=True), array[::-1])
    )
    expected = math.sqrt(math.fsum(parts * parts))
    assert bits(found) == bits(np.asarray(expected).astype(found.dtype))
    if dtype in FLOATS:
        sizes = assert_same_bits(results(xp, lambda x: dc.norm(x, 1, reproducible=True), array))
        assert sizes == rounded(sum(map(Fraction, np.abs(parts).tolist())), dtype)


@pytest.mark.parametrize(("ord", "dtype"), [(3, "f8"), (0.5, "f4"), (-1, "f8"), (1, "c8")])
def test_norms_of_other_powers_are_refused(ord: Any, dtype: str) -> None:
    x = da.ones(5, chunks=2, dtype=dtype)
    with pytest.raises(ValueError, match=f"norm of order {ord} .*is not reproducible"):
        dc.norm(x, ord, reproducible=True)
    with pytest.raises(ValueError, match=r"order -1 of complex numbers is not reproducible"):
        dc.norm(da.ones((4, 4), chunks=2, dtype="c16"), -1, reproducible=True)


def by_bins(x: Any, weights: Any, edges: Any) -> list[Any]:
    """Return the weights in every bin."""
    last = np.arange(len(edges) - 1) == len(edges) - 2
    return [
        weights[(x >= low) & ((x < high) | (closed & (x == high)))]
        for low, high, closed in zip(edges[:-1], edges[1:], last, strict=True)
    ]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [700, 40_001])
def test_sums_of_weights_are_exact_and_rounded_once(xp: Any, dtype: str, n: int) -> None:
    rng = np.random.default_rng(4)
    x, edges = rng.random(n) * 8, np.array([0.0, 1, 1.5, 2, 5, 7])
    weights = rng.standard_normal(n).astype(dtype)
    order = rng.permutation(n)

    def function(x: Any, w: Any) -> Any:
        return dc.histogram(x, edges, weights=w, reproducible=True)[0]

    found = results(xp, function, x, weights) + results(xp, function, x[order], weights[order])
    sums = assert_same_bits(found)
    assert sums.dtype == dtype
    exact = [sum(map(Fraction, kept.tolist())) for kept in by_bins(x, weights, edges)]
    # The last of the digits are beyond those of float64.
    assert bits(sums) == bits(np.array([rounded(total, dtype) for total in exact]))


@given(data=st.data())
def test_bits_of_weighted_histograms_are_those_of_every_chunking(xp: Any, data: Any) -> None:
    weights, _ = data.draw(hard_arrays(FLOATS))
    x = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-1, 5, weights.shape)
    axis = data.draw(axes(weights.ndim))
    options = {"bins": 3, "range": (0, 4), "flow": data.draw(st.booleans()), "axis": axis}
    if not options["flow"]:
        options["density"] = data.draw(st.booleans())

    def function(cuts: Any, reproducible: bool = True) -> Any:
        x_chunks, w_chunks = to_chunks(xp, x, cuts), to_chunks(xp, weights, cuts)
        hist, _ = dc.histogram(x_chunks, weights=w_chunks, reproducible=reproducible, **options)
        return to_numpy(xp, hist)

    found = function(data.draw(chunkings(weights.shape)))
    whole = function(-1)
    assert bits(found) == bits(whole)
    plain = function(-1, reproducible=False)
    assert found.dtype == plain.dtype
    assert found.shape == plain.shape
    if options["flow"]:
        sides = [x < 0, (x >= 0) & (x < 4 / 3), (x >= 4 / 3) & (x < 8 / 3), (x >= 8 / 3) & (x <= 4)]
        for i, side in enumerate(sides):
            np.testing.assert_array_equal(
                np.isnan(found[..., i]), np.isnan(plain[..., i]), err_msg=str(side.sum())
            )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, np.inf], np.inf),
        ([-np.inf, 1, -np.inf], -np.inf),
        ([np.inf, 2, -np.inf], np.nan),
        ([-np.nan, 1, np.inf], np.nan),
        ([1e20, 2.0**-4, -1e20], 2.0**-4),
        ([-0.0, -0.0], 0.0),
    ],
)
def test_weights_that_are_not_finite_spoil_their_bins_only(
    xp: Any, values: list[float], expected: float
) -> None:
    weights = np.array([*values, 1, 2, 3])
    x = np.array([0.5] * len(values) + [1.5] * 3)
    for cut in (-1, 1, 2):
        lazy = to_chunks(xp, x, cut), to_chunks(xp, weights, cut)
        hist, _ = dc.histogram(lazy[0], [0, 1, 2], weights=lazy[1], reproducible=True)
        assert bits(to_numpy(xp, hist)) == bits(np.array([expected, 6.0]))


def test_tables_of_several_coordinates_and_of_integers(xp: Any) -> None:
    rng = np.random.default_rng(6)
    x, y, weights = rng.integers(0, 9, 3000), rng.random(3000), rng.standard_normal(3000)
    edges = np.arange(10.0)
    expected = [math.fsum(kept) for kept in by_bins(x, weights, edges)]

    def tally(x: Any, w: Any) -> Any:
        return dc.bincount(x, w, minlength=4, reproducible=True)

    def pairs(x: Any, y: Any, w: Any) -> Any:
        bins = [edges, [0, 0.25, 1]]
        return dc.histogram2d(x, y, bins, weights=w, reproducible=True)[0]

    def densities(x: Any, y: Any, w: Any) -> Any:
        bins = [edges, [0, 0.25, 1]]
        return dc.histogramdd((x, y), bins, weights=w, density=True, reproducible=True)[0]

    for cut in (-1, 700):
        lazy = to_chunks(xp, x, cut), to_chunks(xp, weights, cut)
        # Of a length that is not known.
        counted = tally(*lazy).compute(scheduler="synchronous")
        assert bits(counted.get() if xp is not np else counted) == bits(np.array(expected))
    joint = assert_same_bits(results(xp, pairs, x, y, weights))
    low = [math.fsum(kept) for kept in by_bins(x[y < 0.25], weights[y < 0.25], edges)]
    assert bits(joint[:, 0]) == bits(np.array(low))
    density = assert_same_bits(results(xp, densities, x, y, weights))
    total = math.fsum(weights)
    np.testing.assert_array_equal(density, joint / 1.0 / np.array([0.25, 0.75]) / total)


def test_integers_that_come_late_make_a_longer_table(xp: Any) -> None:
    x, weights = np.array([0, 1, 1, 0, 5, 2]), np.array([np.inf, 0.5, 0.25, -np.inf, 2.0**-30, 7])
    for cut in (-1, 1, 2, 3):
        lazy = to_chunks(xp, x, cut), to_chunks(xp, weights, cut)
        found = dc.bincount(*lazy, reproducible=True).compute(scheduler="synchronous")
        found = found.get() if xp is not np else found
        np.testing.assert_array_equal(found, [np.nan, 0.75, 7, 0, 0, 2.0**-30])


def test_large_tables_and_many_lines(xp: Any) -> None:
    # States that stay on the GPU, beside exponents that would not.
    rng = np.random.default_rng(7)
    x, weights = rng.integers(0, 20_000, 5000), rng.standard_normal(5000)

    def large(x: Any, w: Any) -> Any:
        return dc.histogram(x, 20_000, (0, 20_000), weights=w, reproducible=True)[0]

    table = assert_same_bits(results(xp, large, x, weights))
    np.testing.assert_allclose(table, np.bincount(x, weights, 20_000), rtol=1e-13, atol=1e-15)
    x, weights = rng.random((9000, 3)), scattered((9000, 3), "f8")
    found = []
    for cuts in ((9000, 3), (9000, 1), (5000, 2)):
        lazy = to_chunks(xp, x, cuts), to_chunks(xp, weights, cuts)
        hist, _ = dc.histogram(
            lazy[0], 2, (0, 1), weights=lazy[1], axis=1, density=True, reproducible=True
        )
        found.append(to_numpy(xp, hist))
    assert_same_bits(found)


def test_counts_and_sums_of_integers_stay_as_they_are() -> None:
    x, ints = da.arange(30, chunks=7), da.ones(30, chunks=7, dtype="i4")
    for more in ({}, {"weights": ints}, {"weights": ints, "density": True}):
        names = [dc.histogram(x, 4, (0, 30), reproducible=r, **more)[0].name for r in (True, False)]
        assert names[0] == names[1]
    weights = ints.astype("f8")
    names = [
        dc.histogram(x, 4, (0, 30), weights=weights, reproducible=r)[0].name
        for r in (True, True, False)
    ]
    assert names[0] == names[1] != names[2]
    half = dc.bincount(x, ints, reproducible=True)
    assert half.dtype == "f8"
    np.testing.assert_array_equal(half.compute(), np.ones(30))


def test_complex_weights_and_too_many_are_refused() -> None:
    x = da.arange(6, chunks=2)
    for call in (
        lambda w: dc.histogram(x, 2, (0, 6), weights=w, reproducible=True),
        lambda w: dc.histogram2d(x, x, 2, weights=w, reproducible=True),
        lambda w: dc.bincount(x, w, reproducible=True),
    ):
        with pytest.raises(TypeError, match="reproducible=True does not take complex weights"):
            call(x.astype("c8"))
    many = da.zeros((2**20, 2**20), chunks=2**19, dtype="f4")
    with dask.config.set(scheduler=refuse), pytest.raises(ValueError, match=r"at most 2\*\*39"):
        dc.histogram(many, 2, (0, 6), weights=many, reproducible=True)
    assert dc.histogram(many, 2, (0, 6), weights=many, axis=0, reproducible=True)[0].shape


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
def test_numpys_and_cupys_chunks_give_the_same_bits(dtype: str) -> None:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    modules = np, importlib.import_module("cupy")
    array, x = scattered((40, 300), dtype), np.random.default_rng(2).random((40, 300))
    where = x < 0.7
    calls = [
        lambda x, a: dc.nansum(a, 0, where=where, reproducible=True),
        lambda x, a: dc.nanmean(a, 1, where=where, reproducible=True),
        lambda x, a: dc.mean(a + 1j * a, where=where, reproducible=True),
        lambda x, a: dc.norm(a, reproducible=True),
        lambda x, a: dc.norm(a + 2j * a, reproducible=True),
        lambda x, a: dc.norm(a, 1, axis=1, reproducible=True),
        lambda x, a: dc.histogram(x, 7, (0, 1), weights=a, reproducible=True)[0],
        lambda x, a: dc.histogram(x, 7, (0, 1), weights=a, density=True, reproducible=True)[0],
        lambda x, a: dc.histogram(x, 7, (0, 1), weights=a, axis=0, reproducible=True)[0],
    ]
    array[5, 5] = np.nan
    for call in calls:
        found = [to_numpy(m, call(to_chunks(m, x, 29), to_chunks(m, array, 29))) for m in modules]
        assert_same_bits(found)

"""Moments of several variables and weighted ones, against NumPy, SciPy and fractions."""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy

import dask_coop as dc

#: Of the state's sums, which are good to some units in the last place, and of NumPy's own.
CLOSE = {"rtol": 1e-12, "atol": 1e-13}

CHUNKS = [(4, 60), (2, 17), (1, 60), (4, 1), ((0, 4), (20, 0, 40))]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def fractions(x: Any) -> Any:
    return np.vectorize(Fraction, otypes=[object])(x)


def exact_products(x: Any, w: Any) -> Any:
    """Return the sums of weights times products of deviations of rows, as fractions."""
    x, w = fractions(x), fractions(w)
    d = x - ((x * w).sum(1) / w.sum())[:, None]
    return (d * w) @ d.T


# Covariances.


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": True},
        {"ddof": 2},
        {"fweights": np.arange(60) % 4},
        {"aweights": np.arange(60) / 7},
        {"fweights": np.arange(60) % 3, "aweights": np.arange(60) / 7, "ddof": 1},
        {"rowvar": False},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i2", "?", "c16"])
def test_covariances_are_numpy_s(xp: ModuleType, chunks: Any, options: Any, dtype: str) -> None:
    x = (numbers(4, 60) * 3).astype(dtype)
    x = x + 1j * numbers(4, 60, seed=1) if dtype == "c16" else x
    want = np.cov(x, **options | {"rowvar": True})
    if "rowvar" in options:
        x, chunks = x.T, chunks[::-1]
    lazy = dc.cov(to_chunks(xp, x, chunks), **options)
    assert lazy.dtype == want.dtype
    np.testing.assert_allclose(to_numpy(xp, lazy), want, **CLOSE)


@pytest.mark.parametrize("dtype", ["f8", "i4", "c16"])
def test_correlations_are_numpy_s(xp: ModuleType, dtype: str) -> None:
    x, y = (numbers(3, 60) * 9).astype(dtype), numbers(60, seed=1)
    lazy = dc.corrcoef(to_chunks(xp, x, (2, 17)), to_chunks(xp, y, 20))
    np.testing.assert_allclose(to_numpy(xp, lazy), np.corrcoef(x, y), **CLOSE)
    lazy = dc.cov(to_chunks(xp, x.T, (17, 1)), to_chunks(xp, y[:, None], 20), rowvar=False)
    np.testing.assert_allclose(to_numpy(xp, lazy), np.cov(x, y), **CLOSE)
    lazy = dc.corrcoef(to_chunks(xp, y, 7), dtype="f4")
    assert (lazy.shape, lazy.dtype) == ((), np.dtype("f4"))
    assert to_numpy(xp, lazy) == 1


@pytest.mark.parametrize("chunks", [(3, 200), (2, 17), (3, 1)], ids=str)
def test_a_large_offset_costs_covariances_no_digits(xp: ModuleType, chunks: Any) -> None:
    x, w = numbers(3, 200) + 1e9, np.arange(200) % 5
    one = np.ones(200, int)
    for weights, options in ((one, {}), (w, {"fweights": w})):
        want = exact_products(x, weights) / (int(weights.sum()) - 1)
        got = to_numpy(xp, dc.cov(to_chunks(xp, x, chunks), **options))
        assert np.max(np.abs(fractions(got) / want - 1)) < 1e-14


@pytest.mark.parametrize("shape", [(2, 0), (0, 5), (3, 1), (1, 1), (1, 4)], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_covariances_of_few_samples(xp: ModuleType, shape: tuple[int, int]) -> None:
    x = numbers(*shape)
    np.testing.assert_allclose(to_numpy(xp, dc.cov(to_chunks(xp, x, 1))), np.cov(x), rtol=1e-15)


def test_nan_spoils_its_variable_alone(xp: ModuleType) -> None:
    x = numbers(3, 20)
    x[1, 7] = np.nan
    np.testing.assert_allclose(to_numpy(xp, dc.cov(to_chunks(xp, x, 6))), np.cov(x), **CLOSE)


def test_what_covariances_refuse() -> None:
    x = da.ones((2, 6), chunks=2)
    with dask.config.set({"coop.fallback": "raise"}):
        with pytest.raises(TypeError, match="MaskedArray"):
            dc.cov(da.ma.masked_greater(x, 3))
        with pytest.raises(TypeError, match="numbers"):
            dc.corrcoef(x.astype("M8[s]"))
        with pytest.raises(TypeError, match="cov does not give dtype=int64"):
            dc.cov(x, dtype="i8")
    with pytest.raises(ValueError, match="axes"):
        dc.cov(x[None])
    with pytest.raises(ValueError, match="as many samples"):
        dc.cov(x, x[:, :3])
    with pytest.raises(TypeError, match="fweights must be integer"):
        dc.cov(x, fweights=np.arange(6) / 2)
    with pytest.raises(TypeError, match="fweights of cov must be integers"):
        dc.cov(x, fweights=da.ones(6))
    with pytest.raises(ValueError, match="aweights cannot be negative"):
        dc.cov(x, aweights=-np.ones(6))
    with pytest.raises(ValueError, match="a number for each of 6 samples"):
        dc.cov(x, aweights=np.ones(5))


# Weights.

AXES = [(None, "full"), (0, "line"), (1, "line"), ((2, 0), "lines"), ((0, 1, 2), "full")]


def weights_of(shape: tuple[int, ...], axis: Any, form: str) -> Any:
    axes = axis if isinstance(axis, tuple) else (axis,)
    sides = shape if form == "full" else tuple(shape[d] for d in axes)
    return np.random.default_rng(5).integers(0, 5, sides) / 4


@pytest.mark.parametrize("chunks", [(7, 5, 30), (3, 2, 7), (7, 1, 1)], ids=str)
@pytest.mark.parametrize(("axis", "form"), AXES, ids=str)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i2", "?", "c16"])
def test_averages_are_numpy_s(
    xp: ModuleType, dtype: str, axis: Any, form: str, chunks: Any
) -> None:
    x = (numbers(7, 5, 30) * 9).astype(dtype)
    w = weights_of(x.shape, axis, form)
    want = np.average(x, axis, w, returned=True, keepdims=True)
    lazy = to_chunks(xp, x, chunks)
    got = dc.average(lazy, axis, w, returned=True, keepdims=True)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(to_numpy(xp, one), other, rtol=1e-12, atol=1e-12)
    mean = dc.mean(lazy, axis, weights=da.from_array(w, chunks=2))
    np.testing.assert_allclose(to_numpy(xp, mean), np.average(x, axis, w), **CLOSE)
    plain, counts = dc.average(lazy, axis, returned=True)
    want = np.average(x, axis, returned=True)
    np.testing.assert_allclose(to_numpy(xp, plain), want[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(to_numpy(xp, counts), want[1])


@pytest.mark.parametrize("size", [(9, 40), (300, 40), (90, 700)], ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("chunks", [(1000, 1000), (7, 20), (1000, 1)], ids=str)
def test_weighted_variances(xp: ModuleType, size: Any, axis: Any, chunks: Any) -> None:
    x, w = numbers(*size) + 100, np.random.default_rng(6).integers(0, 5, size) / 4
    x[:, 3], w[5] = np.nan, 0
    sides = tuple(min(pair) for pair in zip(size, chunks, strict=True))
    lazy = to_chunks(xp, x, sides)
    valid = np.where(np.isnan(x), 0, w)
    clean = np.nan_to_num(x)
    with np.errstate(all="ignore"):
        mean = (valid * clean).sum(axis, keepdims=True) / valid.sum(axis, keepdims=True)
        want = (valid * (clean - mean) ** 2).sum(axis) / valid.sum(axis)
    np.testing.assert_allclose(to_numpy(xp, dc.nanvar(lazy, axis, weights=w)), want, **CLOSE)
    got = to_numpy(xp, dc.nanstd(lazy, axis, weights=w, dtype="f4"))
    np.testing.assert_allclose(got, np.sqrt(want), rtol=1e-6)
    got = to_numpy(xp, dc.nanmean(lazy, axis, weights=w, keepdims=True))
    np.testing.assert_allclose(got, mean, **CLOSE)
    spread = to_numpy(xp, dc.var(lazy, axis, weights=w))
    np.testing.assert_array_equal(np.isnan(spread), np.isnan((w * x).sum(axis)) | np.isnan(want))


@pytest.mark.parametrize("chunks", [500, 31, 1])
def test_a_large_offset_costs_weighted_variances_no_digits(xp: ModuleType, chunks: int) -> None:
    x, w = numbers(500) + 1e9, np.random.default_rng(6).random(500)
    ((want,),) = exact_products(x[None], w) / fractions(w).sum()
    got = to_numpy(xp, dc.var(to_chunks(xp, x, chunks), weights=w))
    assert abs(Fraction(float(got)) / want - 1) < 1e-14


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)], ids=str)
def test_weighted_nothing(xp: ModuleType, shape: Any) -> None:
    x = to_chunks(xp, np.ones(shape), shape)
    for function in (dc.average, dc.mean, dc.var):
        result = to_numpy(xp, function(x, 0, weights=np.ones(shape)))
        assert result.shape == shape[1:]
        assert np.isnan(result).all()


def test_what_weighted_statistics_refuse() -> None:
    x = da.ones((2, 6), chunks=2)
    with pytest.raises(TypeError, match="needs an axis"):
        dc.average(x, weights=np.ones(6))
    with pytest.raises(ValueError, match="fit neither"):
        dc.average(x, 0, np.ones(6))
    with pytest.raises(TypeError, match="ddof=1 beside weights"):
        dc.var(x, weights=x, ddof=1)
    with pytest.raises(TypeError, match="no where="):
        dc.mean(x, weights=x, where=x > 1)
    with dask.config.set({"coop.fallback": "raise"}):
        with pytest.raises(TypeError, match="MaskedArray"):
            dc.average(da.ma.masked_greater(x, 3), weights=x)
        with pytest.raises(TypeError, match="complex"):
            dc.var(x * 1j, weights=x)

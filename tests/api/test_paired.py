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
    with pytest.raises(TypeError, match="cov does not give dtype=int64"):
        dc.cov(x, dtype="i8")

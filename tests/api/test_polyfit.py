"""polyfit against NumPy, and against exact fractions far from zero."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy

import dask_coop as dc

RNG = np.random.default_rng(0)
X = np.linspace(-2, 5, 120)
Y = RNG.normal(size=(2, 120, 3)) + np.sin(X)[:, np.newaxis]
W = RNG.random(120) + 0.5


@pytest.mark.cublas
@pytest.mark.parametrize("w", [None, W])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i2", "?"])
@pytest.mark.parametrize("chunks", [(1, 50, 2), (2, 120, 3), (2, (0, 40, 0, 79, 1), 3)])
def test_polynomials_are_numpys(xp: Any, dtype: str, w: Any, chunks: Any) -> None:
    y = (Y * 9).astype(dtype)
    found = to_numpy(xp, dc.polyfit(X, to_chunks(xp, y, chunks), 3, w=w, axis=1))
    # NumPy multiplies float32 by weights in float32.
    for i, lines in enumerate(y.astype("f8")):
        np.testing.assert_allclose(found[:, i], np.polyfit(X, lines, 3, w=w), rtol=1e-9, atol=1e-9)


@pytest.mark.cublas
@pytest.mark.parametrize("w", [None, W])
@pytest.mark.parametrize("cov", [True, "unscaled"])
def test_covariances_are_numpys(xp: Any, cov: Any, w: Any) -> None:
    for y, chunks in ((Y[0], (50, 2)), (Y[0, :, 0], (50,))):
        found = dc.polyfit(X, to_chunks(xp, y, chunks), 2, cov=cov, w=w)
        for value, expected in zip(found, np.polyfit(X, y, 2, cov=cov, w=w), strict=True):
            assert value.shape == expected.shape
            got = value.compute() if isinstance(value._meta, np.ndarray) else to_numpy(xp, value)
            np.testing.assert_allclose(got, expected, rtol=1e-9)


@pytest.mark.cublas
def test_diagnostics_are_numpys(xp: Any) -> None:
    found = dc.polyfit(X, to_chunks(xp, Y[0], 50), 2, full=True, w=W)
    for value, expected in zip(found, np.polyfit(X, Y[0], 2, full=True, w=W), strict=True):
        got = to_numpy(xp, value) if isinstance(value, da.Array) else value
        np.testing.assert_allclose(got, expected, rtol=1e-9)


def exactly(x: Any, y: Any, deg: int) -> list[float]:
    """Return the coefficients by normal equations of fractions."""
    powers = [[Fraction(float(v)) ** k for k in range(deg, -1, -1)] for v in x]
    rows = [
        [sum(p[a] * p[b] for p in powers) for b in range(deg + 1)]
        + [sum(p[a] * Fraction(float(v)) for p, v in zip(powers, y, strict=True))]
        for a in range(deg + 1)
    ]
    for i, pivot in enumerate(rows):
        for row in rows[:i] + rows[i + 1 :]:
            by = row[i] / pivot[i]
            row[:] = [a - by * b for a, b in zip(row, pivot, strict=True)]
    return [float(row[-1] / row[i]) for i, row in enumerate(rows)]


@pytest.mark.cublas
@pytest.mark.parametrize("deg", [1, 2, 5])
def test_positions_far_from_zero_keep_their_digits(xp: Any, deg: int) -> None:
    x, y = X[::3] + 1e9, Y[0, ::3, 0]
    found = to_numpy(xp, dc.polyfit(x, to_chunks(xp, y, 9), deg))
    np.testing.assert_allclose(found, exactly(x, y, deg), rtol=1e-10)


@pytest.mark.cublas
def test_what_is_missing_is_told_or_left_out(xp: Any) -> None:
    y = Y[0].copy()
    y[7, 0] = np.nan
    lazy, rest = to_chunks(xp, y, (50, 3)), np.arange(120) != 7
    found = to_numpy(xp, dc.polyfit(X, lazy, 1))
    assert np.isnan(found[:, 0]).all()
    assert not np.isnan(found[:, 1:]).any()
    found = to_numpy(xp, dc.polyfit(X, lazy, 1, nan_policy="omit"))
    np.testing.assert_allclose(found[:, 0], np.polyfit(X[rest], y[rest, 0], 1))


def test_too_few_positions_have_numpys_polynomial() -> None:
    x, y = np.array([1.0, 1, 2, 2] * 10), Y[0, :40, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = dc.polyfit(x, da.from_array(y, chunks=7), 3).compute()
        np.testing.assert_allclose(found, np.polyfit(x, y, 3), atol=1e-12)


def test_what_is_refused() -> None:
    y = da.ones((4, 2), chunks=2)
    for arguments, options, error, message in (
        ((da.arange(4), y, 1), {}, TypeError, "takes x in memory, not lazy"),
        ((np.ones((4, 1)), y, 1), {}, TypeError, "real numbers along one axis for x"),
        (([1, 2], y, 1), {}, ValueError, "as many in x, in w and along axis 0 of y"),
        ((range(4), y, -1), {}, ValueError, "a deg from 0 on"),
        ((range(4), y, 3), {"cov": True}, ValueError, "more than 4 samples to scale cov"),
        ((range(4), y, 1), {"nan_policy": "raise"}, ValueError, "nan_policy must be"),
        ((range(4), y, 1), {"nan_policy": "omit", "cov": True}, ValueError, "without NaN"),
        ((range(4), da.ma.masked_equal(y, 2), 1), {}, TypeError, "does not take chunks of type"),
        ((range(4), y * 1j, 1), {}, TypeError, "lines of complex128 are not fitted"),
    ):
        with pytest.raises(error, match=message):
            dc.polyfit(*arguments, **options)  # type: ignore[arg-type]


def test_weighted_chunks_become_what_their_array_declares() -> None:
    chunks = da.from_array(np.full((9, 2), 1.75), chunks=4)
    y = chunks.map_blocks(lambda block: block, dtype="i4", meta=np.zeros((0, 0), "i4"))
    found = dc.polyfit(np.arange(9.0), y, 0, w=np.arange(1.0, 10))
    np.testing.assert_allclose(found, [[1, 1]])

"""Lines in several chunks, fitted to the columns of a matrix: as NumPy's of each line."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st

from dask_coop.api import least_squares
from dask_coop.errors import Refused


def vandermonde(n: int, degree: int, distance: float = 1.0) -> Any:
    """Return positions' powers, scaled as xarray scales them."""
    matrix = np.vander(distance + np.arange(float(n)), degree + 1)
    return matrix / np.sqrt((matrix * matrix).sum(0))


def expected(matrix: Any, y: Any, rcond: float) -> Any:
    """Return coefficients and residual of each line by NumPy's `lstsq` of its valid elements."""
    lines = y.reshape(len(y), -1).astype("f8")
    result = np.full((matrix.shape[1] + 1, lines.shape[1]), np.nan)
    for at, line in enumerate(lines.T):
        valid = ~np.isnan(line)
        if valid.any():
            x, residual, _, _ = np.linalg.lstsq(matrix[valid], line[valid], rcond=rcond)
            result[:-1, at], result[-1, at] = x, residual[0] if residual.size else np.nan
    return result.reshape(-1, *y.shape[1:])


def check(xp: ModuleType, matrix: Any, y: Any, chunks: Any, rtol: float = 1e-9) -> None:
    rcond = len(y) * np.finfo("f8").eps
    coefficients, residuals = least_squares.fit(matrix, to_chunks(xp, y, chunks), rcond)
    wanted = expected(matrix, y, rcond)
    scale = np.nanmax(np.abs(wanted[:-1]), initial=0, where=~np.isnan(wanted[:-1]))
    found = to_numpy(xp, coefficients)
    np.testing.assert_allclose(found, wanted[:-1], rtol=rtol, atol=rtol * scale)
    # A sum of squares has twice the digits of what remains of the elements.
    least = float(np.nansum(y.astype("f8") ** 2)) * 1e-24
    np.testing.assert_allclose(to_numpy(xp, residuals), wanted[-1], rtol=1e-7, atol=least)


@pytest.mark.cublas
@pytest.mark.filterwarnings("ignore:Polyfit may be poorly conditioned")
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("dtype", "missing"),
    [
        ("i2", 0),
        ("u8", 0),
        *((dtype, share) for dtype in ("f4", "f8") for share in (0, 0.2, 0.9, 1)),
    ],
)
@pytest.mark.parametrize("chunks", [(7, 2, 5), (40, 4, 5), ((1, 0, 50, 9, 40), 3, 2)])
def test_fits_are_those_of_numpy(
    xp: ModuleType, degree: int, dtype: str, missing: float, chunks: Any
) -> None:
    rng = np.random.default_rng(5)
    y = (285 + 10 * rng.normal(size=(100, 4, 5))).astype(dtype)
    if y.dtype.kind == "f":
        y[rng.random(y.shape) < missing] = np.nan
    check(xp, vandermonde(100, degree), y, chunks)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.floats(0, 1))
def test_fits_of_any_chunks_are_those_of_numpy(seed: int, degree: int, missing: float) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 200))
    y = rng.normal(size=(n, 3))
    y[rng.random(y.shape) < missing] = np.nan
    matrix = vandermonde(n, degree)
    rcond = n * np.finfo("f8").eps
    sizes = tuple(map(int, rng.multinomial(n, np.ones(6) / 6)))
    x = da.from_array(y, chunks=(sizes, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.RankWarning)
        coefficients, _ = least_squares.fit(matrix, x, rcond)
        found = coefficients.compute(scheduler="sync")
    # Compare fitted values: coefficients from few elements are too uncertain.
    np.testing.assert_allclose(
        np.where(np.isnan(y), np.nan, matrix @ found),
        np.where(np.isnan(y), np.nan, matrix @ expected(matrix, y, rcond)[:-1]),
        atol=1e-7,
    )


def test_few_elements_close_together_are_fitted_to_all_digits(xp: ModuleType) -> None:
    y = np.full((20000, 2), np.nan)
    y[15000:15010, 0] = np.arange(10) ** 2
    y[::5000, 1] = [1, 2, 4, 8]
    check(xp, vandermonde(20000, 1), y, (3000, 2), rtol=1e-8)


@pytest.mark.cublas
def test_lines_far_from_zero_keep_the_digits_of_their_residuals(xp: ModuleType) -> None:
    rng = np.random.default_rng(0)
    y = 1e9 + rng.normal(size=(500, 3))
    check(xp, vandermonde(500, 1, 1e6), y, (64, 2), rtol=1e-6)


def test_lines_of_too_few_elements_have_the_least_solution_and_a_warning() -> None:
    y = np.full((40, 3), np.nan)
    y[7, 0] = 3.0
    y[[7, 31], 1] = 3.0, 4.0
    matrix = vandermonde(40, 2)
    x = da.from_array(y, chunks=(8, 3))
    with pytest.warns(np.exceptions.RankWarning):
        found = least_squares.fit(matrix, x, 1e-14)[0].compute(scheduler="sync")
    np.testing.assert_allclose(found, expected(matrix, y, 1e-14)[:-1], rtol=1e-8)
    assert np.isnan(found[:, 2]).all()


def test_one_line_is_fitted() -> None:
    y = np.sin(np.arange(90.0))
    check(np, vandermonde(90, 2), y, 20)


def test_no_task_takes_all_elements() -> None:
    x = da.ones((3200, 10), chunks=(100, 10))
    coefficients, _ = least_squares.fit(vandermonde(3200, 1), x, 1e-12)
    sizes = [
        len(n.dependencies) for n in dict(coefficients.dask).values() if hasattr(n, "dependencies")
    ]
    assert max(sizes) <= 8


@pytest.mark.parametrize("dtype", ["c16", "?", "M8[s]"])
def test_others_are_refused(dtype: str) -> None:
    with pytest.raises(Refused, match="are not fitted"):
        least_squares.fit(vandermonde(9, 1), da.zeros(9, chunks=3, dtype=dtype), 1e-12)

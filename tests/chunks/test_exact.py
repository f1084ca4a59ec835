"""Subnormal float32, which CuPy takes for zero, and complex NaN, which are all one to it."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_numpy

import dask_coop as dc
from dask_coop.algebra import merges, reproducible
from dask_coop.algebra.quantiles import Quantiles
from dask_coop.algebra.windows import Window
from dask_coop.chunks import window_steps

LEAST = np.float32(2.0**-149)
#: With both signs, and normal numbers whose differences and halves are subnormal.
TINY = np.array([-3, -1, 1, 2, 5, 2**23 - 1, 2**23, 2**23 + 1, 2**24 + 3], "f4") * LEAST


def flushed(x: Any) -> Any:
    if isinstance(x, np.ndarray | np.generic) and x.dtype == "f4":
        return np.where(np.abs(x) < np.finfo("f4").tiny, np.copysign(np.float32(0), x), x)
    return x


class Flushing(np.ndarray[Any, Any]):
    """An array whose arithmetic takes subnormal float32 for zero."""

    __module__ = "flushing.core"

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        inputs = tuple(flushed(np.asarray(x)) for x in inputs)
        kwargs = {name: value for name, value in kwargs.items() if name != "out"}
        found = flushed(getattr(ufunc, method)(*inputs, **kwargs))
        return np.asarray(found).view(Flushing)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        found = super().__array_function__(function, types, args, kwargs)
        return found.view(Flushing) if type(found) is np.ndarray else found

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        plain = np.asarray(self)
        if plain.dtype == dtype:
            return self
        return flushed(flushed(plain).astype(dtype, *args, **kwargs)).view(Flushing)


def exactly(function: Any) -> Any:
    def call(*args: Any) -> Any:
        plain = [np.asarray(x) if isinstance(x, Flushing) else x for x in args]
        found = function(*plain)
        if isinstance(found, tuple):
            return tuple(np.asarray(x).view(Flushing) for x in found)
        return np.asarray(found).view(Flushing)

    return call


@pytest.fixture
def flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = SimpleNamespace(
        extremum=exactly(lambda ufunc, a, b: ufunc(a, b)),
        arithmetic=exactly(lambda ufunc, a, b: ufunc(a, b)),
        cast=exactly(lambda x, dtype: x.astype(dtype)),
        comparable=exactly(lambda a, b: (a.astype("f8"), b.astype("f8"))),
    )
    monkeypatch.setitem(merges.EXACT, "flushing", lambda: exact)


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize("gamma", [None, "f4", "f8"])
def test_nothing_between_two_elements_is_flushed(gamma: str | None) -> None:
    low, high = (a.reshape(-1) for a in np.meshgrid(TINY, TINY))
    share = None if gamma is None else np.linspace(0, 1, low.size).astype(gamma)
    asked = Quantiles(None) if gamma is None else Quantiles(np.float64(0.3), weak=gamma == "f4")
    expected = asked.interpolate(low, high, share)
    given = (a if a is None else a.view(Flushing) for a in (low, high, share))
    found = asked.interpolate(*given)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.usefixtures("flushing")
def test_results_that_are_rounded_to_float32_are_not_flushed() -> None:
    wide = TINY.astype("f8").view(Flushing)
    np.testing.assert_array_equal(np.asarray(reproducible.narrow(wide, np.dtype("f4"))), TINY)


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize("statistic", ["sum", "std", "min", "max"])
def test_windows_by_steps_are_not_flushed(statistic: Any) -> None:
    window = Window(statistic, 0, 3, 1)
    expected = window_steps.move(window, TINY, TINY[:0], None, 100)
    found = window_steps.move(window, TINY.view(Flushing), TINY[:0].view(Flushing), None, 100)
    np.testing.assert_array_equal(np.asarray(found), expected)


def lazily(xp: ModuleType, array: Any, chunks: Any) -> Any:
    return da.from_array(xp.asarray(array), chunks=chunks, asarray=False)


def test_quantiles_of_subnormal_lines(xp: ModuleType) -> None:
    lines = np.stack([np.roll(TINY, i)[:6] for i in range(9)])
    lines[2, 3] = np.nan
    lazy = lazily(xp, lines, (4, 6))
    for q in (0.3, np.array([0.1, 0.77])):
        expected = np.nanquantile(lines, q, axis=1)
        np.testing.assert_array_equal(to_numpy(xp, dc.nanquantile(lazy, q, axis=1)), expected)
    np.testing.assert_array_equal(
        to_numpy(xp, dc.nanmedian(lazy, axis=1)), np.nanmedian(lines, axis=1)
    )


def test_reproducible_sums_of_subnormal_entries_are_those_of_one_chunk(xp: ModuleType) -> None:
    # Of 3,000 entries in one chunk the states stay on a GPU.
    x = np.resize(TINY, (2, 3000)) + 1j * np.resize(TINY[::-1], (2, 3000))
    x = x.astype("c8")
    x[0, ::7] = complex(np.inf, -np.inf)
    expected = x.sum(0)
    for chunks in ((2, 3000), (1, 900)):
        found = to_numpy(xp, dc.sum(lazily(xp, x, chunks), axis=0, reproducible=True))
        np.testing.assert_array_equal(found, expected)


def test_sums_of_many_subnormal_columns(xp: ModuleType) -> None:
    x = np.resize(TINY, (2, 50_000))
    np.testing.assert_array_equal(
        to_numpy(xp, dc.sum(lazily(xp, x, (2, 50_000)), axis=0)), x.sum(0)
    )


def test_complex_nan_is_sorted_as_numpy_sorts(xp: ModuleType) -> None:
    rng = np.random.default_rng(0)
    parts = rng.choice([np.nan, 1.0, 2.0, -0.0, 0.0, -np.inf], (2, 7, 60))
    x = np.empty((7, 60), "c8")
    x.real, x.imag = parts
    for axis in (0, 1):
        lazy = lazily(xp, x, (3, 25))
        expected = np.argsort(x, axis, kind="stable")
        np.testing.assert_array_equal(to_numpy(xp, dc.argsort(lazy, axis, stable=True)), expected)
        # As bytes, for NaN is equal to any NaN.
        found = to_numpy(xp, dc.sort(lazy, axis, stable=True))
        ordered = np.take_along_axis(x, expected, axis)
        np.testing.assert_array_equal(found.real, ordered.real)
        np.testing.assert_array_equal(found.imag, ordered.imag)

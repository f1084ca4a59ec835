"""Distinct elements counted by HyperLogLog, against an exact count, and its registers."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import REAL, arrays, shapes

import dask_coop as dc
from dask_coop.algebra.registers import bits_for, estimate, places, registers
from dask_coop.chunks.numpy import reduce as of_chunks


@given(
    case=arrays(shape=shapes(1), dtypes=REAL),
    axis=st.integers(0, 3),
    error=st.sampled_from([0.01, 0.1]),
)
def test_counts_are_near_and_the_same_for_every_chunking(
    xp: Any, case: Any, axis: int, error: float
) -> None:
    array, chunks = case
    along = None if axis >= array.ndim else axis
    lazy = dc.approx_nunique(to_chunks(xp, array, chunks), along, error, keepdims=True)
    assert lazy.dtype == "i8"
    found = to_numpy(xp, lazy)
    whole = to_numpy(xp, dc.approx_nunique(to_chunks(xp, array, -1), along, error, keepdims=True))
    np.testing.assert_array_equal(found, whole)
    lines = array.reshape(1, -1) if along is None else np.moveaxis(array, along, -1)
    exact = np.zeros(lines.shape[:-1])
    for at in np.ndindex(exact.shape):
        exact[at] = len(np.unique(lines[at].astype("f4" if lines.dtype == "f2" else lines.dtype)))
    exact = exact.reshape(found.shape)
    # Six standard errors, and two elements that few share a register.
    assert (abs(found - exact) <= 6 * error * exact + 2).all()


@pytest.mark.parametrize("dtype", ["i8", "f4", "f8", "M8[s]", "m8[ns]", "u2"])
def test_errors_are_as_stated(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for error in (0.1, 0.02):
        ratios = []
        for n in (1_000, 60_000, 200_000) if dtype != "u2" else (1_000, 60_000):
            for _ in range(6):
                first = int(rng.integers(1 << 20)) if dtype != "u2" else 0
                x = np.arange(first, first + n).astype(dtype)
                found = int(dc.approx_nunique(da.from_array(x, chunks=n), error=error))
                ratios.append((found - n) / n / error)
        # The mean of squares has a standard deviation of a third.
        assert np.mean(np.square(ratios)) < 2
        assert abs(np.mean(ratios)) < 1


def test_the_estimate_has_no_bias() -> None:
    rng = np.random.default_rng(0)
    for n in (10, 100, 300, 1_000, 5_000):
        hashes = [places(rng.integers(0, 1 << 62, n), 8) for _ in range(300)]
        kept = np.zeros((len(hashes), 256), "u1")
        for line, (at, rank) in zip(kept, hashes, strict=True):
            np.maximum.at(line, at, rank.astype("u1"))
        # The standard error of each is 0.065, and of the mean of so many 0.004.
        assert abs(estimate(kept).mean() / n - 1) < 0.016


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "f2", "f4", "f8", "i8", "u8", "M8[D]"])
def test_loops_fill_the_registers_of_numpy(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    pytest.importorskip("numba")
    bits = np.random.default_rng(0).integers(0, 256, 8 * 30_000).astype("u1")
    x = (bits & 1).astype("?") if dtype == "?" else bits.view(dtype)
    x = x[: len(x) // 6 * 6].reshape(2, -1, 3)
    if x.dtype.kind == "f":
        x[0, :5, 0] = -0.0, 0.0, np.nan, np.inf, -np.nan
    monkeypatch.setattr(of_chunks, "loops_for", lambda name, size: None)
    (expected,) = of_chunks._lift_registers(registers(6), x, (1,))
    from dask_coop.chunks.numpy.loops import selection as loops

    monkeypatch.setattr(of_chunks, "loops_for", lambda name, size: loops)
    (found,) = of_chunks._lift_registers(registers(6), x, (1,))
    assert found.dtype == "u1"
    np.testing.assert_array_equal(found, expected)


def test_equal_values_count_once() -> None:
    for dtype in ("f2", "f4", "f8"):
        x = np.array([0.0, -0.0, np.nan, -np.nan, 1], dtype)
        assert dc.approx_nunique(x).compute() == 3
    assert dc.approx_nunique(np.array(["NaT", "NaT", 3], "M8[D]")).compute() == 2


def test_states_go_on() -> None:
    x = da.arange(30_000, chunks=4_000)
    states = [dc.reduce(y, "approx_nunique", return_state=True) for y in (x[:20_000], x[9_000:])]
    both = dc.combine(states).compute()
    assert both.fields[0].nbytes == 1 << bits_for(0.01)
    assert both.result() == dc.approx_nunique(x).compute()


def test_what_cannot_be_counted_is_refused() -> None:
    x = da.ones(3)
    for error in (0, -1, np.nan, 1e-3):
        with pytest.raises(ValueError, match=r"an error of 0\.0021 or more"):
            dc.approx_nunique(x, error=error)
    assert dask.compute(dc.approx_nunique(x, error=0.0021), dc.approx_nunique(x, error=9)) == (1, 1)
    with pytest.raises(TypeError, match="does not take dtype complex128"):
        dc.approx_nunique(x.astype("c16"))
    with pytest.raises(TypeError, match="takes no masked array"):
        dc.approx_nunique(da.ma.masked_less(x, 0))

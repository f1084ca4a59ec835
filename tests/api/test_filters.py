"""lfilter and sosfilt against SciPy on the whole array."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

import dask_coop as dc

CHUNKS = [((2, 3), (0, 1, 0, 60, 30, 0, 9)), (5, 100), (3, 7)]
FILTERS = [
    signal.butter(3, 0.2),
    ([1.0, 2.0, 3.0], [2.0]),
    ([0.5], [1, -0.9]),
    ([1.0, 0.5, 0.2, 0.1], [2.0, -0.3]),
    ([2.0], [4.0]),
    ([1j, 2], [1, 0.5j]),
]


def samples(dtype: str, shape: tuple[int, ...] = (5, 100)) -> Any:
    rng = np.random.default_rng(0)
    array = rng.normal(size=shape) * 9
    return (array + 1j * rng.normal(size=shape) if dtype in "FD" else array).astype(dtype)


def close(xp: Any, found: Any, expected: Any) -> None:
    """Compare with a bound of the rounding errors that short filters make of their largest."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    bound = (3e-5 if expected.dtype in ("f4", "c8") else 1e-12) * np.abs(expected).max(initial=1)
    np.testing.assert_allclose(to_numpy(xp, found), expected, rtol=0, atol=bound)


@pytest.mark.cublas
@pytest.mark.parametrize("method", ["reduce-then-scan", "sequential"])
@settings(max_examples=20)
@given(
    coefficients=st.sampled_from(FILTERS),
    chunks=st.sampled_from(CHUNKS),
    dtype=st.sampled_from("fdFDi"),
    along=st.sampled_from([0, 1, -1]),
)
def test_filters_are_scipys(
    xp: Any, method: str, coefficients: Any, chunks: Any, dtype: str, along: int
) -> None:
    array = np.swapaxes(samples(dtype), along, -1)
    sizes = chunks if along else chunks[::-1]
    narrow = dtype in "fF" and not any(map(np.iscomplexobj, coefficients))
    b, a = (np.asarray(c, "f4") if narrow else np.asarray(c) for c in coefficients)
    x = to_chunks(xp, array, sizes)
    scipys = array if dtype != "i" else array.astype("f8")
    close(xp, dc.lfilter(b, a, x, along, method=method), signal.lfilter(b, a, scipys, along))
    shape = list(array.shape)
    shape[along] = max(len(a), len(b)) - 1
    zi = samples("f" if narrow else "d", tuple(shape))
    found, behind = dc.lfilter(b, a, x, along, zi, method=method)
    expected, last = signal.lfilter(b, a, scipys, along, zi)
    close(xp, found, expected)
    close(xp, behind, last)


@pytest.mark.cublas
@pytest.mark.parametrize("dtype", "fdD")
def test_cascades_are_scipys(xp: Any, dtype: str) -> None:
    sos = signal.butter(5, 0.2, output="sos").astype("f" if dtype == "f" else "d")
    array = samples(dtype, (3, 200, 2))
    zi = samples("f" if dtype == "f" else "d", (3, 3, 2, 2))
    x = to_chunks(xp, array, (2, 40, 1))
    found, behind = dc.sosfilt(sos, x, 1, da.from_array(zi, chunks=1))
    expected, last = signal.sosfilt(sos, array, 1, zi)
    close(xp, found, expected)
    close(xp, behind, last)
    close(xp, dc.sosfilt(sos, x, -2), signal.sosfilt(sos, array, 1))


@pytest.mark.parametrize("chunk", [50, 1000])
@pytest.mark.parametrize(("order", "width"), [(4, 0.01), (6, 0.05), (6, 0.01), (8, 0.05)])
def test_narrow_filters_lose_no_more_digits_than_scipys(
    order: int, width: float, chunk: int
) -> None:
    """Powers of their matrices reach 1e12 before they vanish."""
    b, a = signal.butter(order, width)
    array = samples("d", (8000,))
    exact = signal.lfilter(*(np.asarray(c, np.longdouble) for c in (b, a, array)))
    error = np.abs(dc.lfilter(b, a, da.from_array(array, chunks=chunk)).compute() - exact).max()
    assert error <= 2 * np.abs(signal.lfilter(b, a, array) - exact).max()


def test_sequential_filters_have_scipys_bits() -> None:
    b, a = signal.butter(8, 0.01)
    array = samples("d", (3000,))
    found = dc.lfilter(b, a, da.from_array(array, chunks=70), method="sequential")
    np.testing.assert_array_equal(found.compute(), signal.lfilter(b, a, array))


def test_many_chunks_and_filters_that_grow() -> None:
    array = np.where(np.arange(2000) < 1000, 0.0, samples("d", (2000,)))
    x = da.from_array(array, chunks=20)
    # An integrator, and a filter whose powers are infinite within a chunk of zeros.
    close(np, dc.lfilter([1.0], [1.0, -1.0], x), np.cumsum(array))
    found = dc.lfilter([1.0], [1.0, -1e20], x)[:1000]
    np.testing.assert_array_equal(found.compute(), np.zeros(1000))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gap_stays_as_long_as_in_scipys(bad: float) -> None:
    array = samples("d", (60,))
    array[21] = bad
    for b, a in (([1.0, 2.0, 3.0], [1.0]), ([1.0, 2.0], [1.0, -0.5])):
        found = dc.lfilter(b, a, da.from_array(array, chunks=7)).compute()
        np.testing.assert_allclose(found, signal.lfilter(b, a, array))


def test_empty_arrays() -> None:
    for shape, axis in (((0,), 0), ((3, 0), 1), ((0, 3), 1)):
        x = da.zeros(shape, chunks=2)
        y, behind = dc.lfilter([1.0, 2.0], [1.0, 0.5], x, axis, da.ones((1,) * len(shape)))
        assert y.compute().shape == shape
        assert behind.compute().tolist() == np.ones((*shape[:axis], 1)).tolist()


def test_what_is_refused() -> None:
    x = da.ones((4, 4), chunks=2)
    with pytest.raises(TypeError, match="lfilter takes b in memory, not lazy"):
        dc.lfilter(da.ones(2), [1.0], x)
    with pytest.raises(ValueError, match=r"lfilter needs numbers along one axis for a, got \[\]"):
        dc.lfilter([1.0], [], x)
    with pytest.raises(ValueError, match=r"a\[0\] other than 0"):
        dc.lfilter([1.0], [0.0, 1], x)
    with pytest.raises(ValueError, match=r"sosfilt needs rows of 6 numbers with 1"):
        dc.sosfilt([[1.0, 0, 0, 2, 0, 0]], x)
    with pytest.raises(ValueError, match=r"lfilter needs zi of shape \(4, 1\), got \(4, 2\)"):
        dc.lfilter([1.0, 1], [1.0], x, zi=np.ones((4, 2)))
    with pytest.raises(ValueError, match="lfilter needs known chunk sizes beside zi"):
        dc.lfilter([1.0, 1], [1.0], x[x[:, 0] > 0], zi=np.ones((4, 1)))
    with pytest.raises(ValueError, match="method must be one of"):
        dc.lfilter([1.0], [1.0], x, method="blelloch")
    with pytest.raises(TypeError, match="filters in float32, float64, complex64 and complex128"):
        dc.lfilter(np.ones(1, "f2"), np.ones(1, "f2"), x.astype("f2"))
    with pytest.raises(TypeError, match="lfilter does not take chunks of type"):
        dc.lfilter([1.0], [1.0], da.ma.masked_equal(x, 1))

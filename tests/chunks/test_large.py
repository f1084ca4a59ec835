"""Sizes and layouts that only a GPU's kernels tell apart: odd lengths, offsets, 64-bit counts."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_coop as dc

pytestmark = pytest.mark.gpu

SIZES = (0, 1, 31, 32, 33, 3839, 3841, (1 << 20) - 1, (1 << 20) + 1)
POISONED_SIZES = (0, 1, 31, 33, 5000, 1_000_001)


def wrap(cp: Any, x: Any) -> da.Array:
    return da.from_array(x, chunks=x.shape, asarray=False, name=False)


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["u1", "f2", "i4", "f4", "f8"])
def test_any_size_and_offset(cp: Any, dtype: str, size: int, offset: int) -> None:
    host = np.random.default_rng(size).integers(0, 100, size + offset).astype(dtype)
    x = wrap(cp, cp.asarray(host)[offset:])
    host = host[offset:]
    wide = host.astype("f8")
    assert int(dc.sum(x, dtype="f8").compute()) == wide.sum()
    result = dc.cumsum(x, dtype="f8").compute()
    np.testing.assert_array_equal(cp.asnumpy(result), np.cumsum(wide))
    counts, _ = dc.histogram(x, bins=7, range=(0, 99))
    np.testing.assert_array_equal(cp.asnumpy(counts.compute()), np.histogram(host, 7, (0, 99))[0])
    if size:
        assert int(dc.max(x).compute()) == host.max()
        described = dc.describe(x)
        assert float(described.mean.compute()) == pytest.approx(wide.mean(), rel=1e-3)


@pytest.mark.parametrize("shape", [(3, 70001), (70001, 3), (513, 1025), (5, 700, 9), (2, 3, 4, 5)])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_any_axis_and_layout(cp: Any, shape: tuple[int, ...], order: str) -> None:
    host = np.random.default_rng(1).integers(-99, 99, shape).astype("i4")
    chunk = cp.asarray(host)
    if order == "F":
        chunk = cp.ascontiguousarray(chunk.T).T
    if order == "strided":
        chunk, host = chunk[..., ::2], host[..., ::2]
    x = wrap(cp, chunk)
    for axis in range(len(shape)):
        result = cp.asnumpy(dc.cumsum(x, axis=axis).compute())
        np.testing.assert_array_equal(result, np.cumsum(host, axis))
        total = cp.asnumpy(dc.sum(x, axis=axis).compute())
        np.testing.assert_array_equal(total, host.sum(axis))


@pytest.mark.parametrize("bins", [1, 1000, 57_344, 60_000, 1_000_003])
def test_any_number_of_bins(cp: Any, bins: int) -> None:
    host = np.random.default_rng(2).random(1 << 20, dtype="f4")
    counts, _ = dc.histogram(wrap(cp, cp.asarray(host)), bins=bins, range=(0, 1))
    expected, _ = np.histogram(host, bins, (0, 1))
    np.testing.assert_array_equal(cp.asnumpy(counts.compute()), expected)


@pytest.mark.usefixtures("gives_back")
def test_more_than_32_bits_of_elements(cp: Any) -> None:
    n = (1 << 31) + 7
    chunk = cp.ones(n, "u1")
    chunk[-1] = 3
    x = wrap(cp, chunk)
    assert int(dc.sum(x).compute()) == n + 2
    assert int(dc.max(x).compute()) == 3
    assert int(dc.argmax(x).compute()) == n - 1
    counts, _ = dc.histogram(x, bins=4, range=(0, 4))
    assert counts.compute().tolist() == [0, n - 1, 0, 1]
    last = dc.cumsum(x, dtype="u4").compute()[-3:]
    assert last.tolist() == [(n - 2) % 2**32, (n - 1) % 2**32, (n + 2) % 2**32]


def poisoned(cp: Any, byte: int) -> Any:
    """Return an allocator whose memory is full of `byte`."""
    pool = cp.cuda.MemoryPool()

    def allocate(size: int) -> Any:
        memory = pool.malloc(size)
        if size:
            memory.memset_async(byte, size)
        return memory

    return allocate


# As floats, one byte repeated is NaN and the other a small number; as counts both are far off.
@pytest.fixture(name="dirty", params=[0xFF, 0xA5], ids=hex)
def _dirty(cp: Any, request: pytest.FixtureRequest) -> Any:
    # An allocator is one thread's own, and so is the work of this scheduler.
    with cp.cuda.using_allocator(poisoned(cp, request.param)), dask.config.set(scheduler="sync"):
        assert cp.empty(5, "u1").tolist() == [request.param] * 5
        yield cp


def shapes(size: int) -> list[tuple[int, ...]]:
    """Return shapes of about `size` elements, with short lines and long ones along every axis."""
    if size < 31:
        return [(size,)]
    return [(size,), (size // 31, 31), (31, size // 31), (3, max(1, size // 33), 11)]


@pytest.mark.parametrize("dtype", ["i4", "f4", "f8"])
@pytest.mark.parametrize("size", POISONED_SIZES)
def test_lines_are_written_whole(dirty: Any, size: int, dtype: str) -> None:
    for shape in shapes(size):
        host = np.random.default_rng(size).integers(-99, 99, shape).astype(dtype)
        x = wrap(dirty, dirty.asarray(host))
        for axis in (*range(host.ndim), None):
            running = dc.cumsum(x, axis=axis, dtype="f8").compute()
            np.testing.assert_array_equal(dirty.asnumpy(running), np.cumsum(host, axis, "f8"))
            total = dc.sum(x, axis=axis, dtype="f8").compute()
            np.testing.assert_array_equal(dirty.asnumpy(total), host.sum(axis, "f8"))
            if 0 in host.shape:
                continue
            for found, expected in (
                (dc.min(x, axis=axis), host.min(axis)),
                (dc.max(x, axis=axis), host.max(axis)),
            ):
                np.testing.assert_array_equal(dirty.asnumpy(found.compute()), expected)
            mean = dirty.asnumpy(dc.mean(x, axis=axis, dtype="f8").compute())
            np.testing.assert_allclose(mean, host.mean(axis, "f8"), rtol=1e-14, atol=1e-14)


# NumPy warns of lines of nothing but NaN; so short ones are among these.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", POISONED_SIZES)
def test_descriptions_are_written_whole(dirty: Any, size: int) -> None:
    for shape in shapes(size):
        host = np.random.default_rng(size).integers(-99, 99, shape).astype("f4")
        host.reshape(-1)[::7] = np.nan
        x = wrap(dirty, dirty.asarray(host))
        for axis in (*range(host.ndim), None):
            if 0 in host.shape:
                continue
            found = map(dirty.asnumpy, dask.compute(*dc.describe(x, axis=axis)))
            count, nans, low, high, total, mean, var, std = found
            np.testing.assert_array_equal(nans, np.isnan(host).sum(axis))
            np.testing.assert_array_equal(count, (~np.isnan(host)).sum(axis))
            np.testing.assert_array_equal(low, np.nanmin(host, axis))
            np.testing.assert_array_equal(high, np.nanmax(host, axis))
            np.testing.assert_array_equal(total, np.nansum(host, axis, "f8"))
            for statistic, expected in (
                (mean, np.nanmean(host, axis, "f8")),
                (var, np.nanvar(host, axis, "f8")),
                (std, np.nanstd(host, axis, "f8")),
            ):
                np.testing.assert_allclose(statistic, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["u1", "i4", "f4", "f8"])
@pytest.mark.parametrize("bins", [1, 256, 16_384, 60_000, 131_072, 1_000_003])
@pytest.mark.parametrize("size", POISONED_SIZES)
def test_tables_are_written_whole(dirty: Any, size: int, bins: int, dtype: str) -> None:
    rng = np.random.default_rng(size)
    host, weights = rng.integers(0, 200, size).astype(dtype), rng.integers(-9, 9, size)
    x = wrap(dirty, dirty.asarray(host))
    counts, _ = dc.histogram(x, bins=bins, range=(0, 199))
    expected, _ = np.histogram(host, bins, (0, 199))
    np.testing.assert_array_equal(dirty.asnumpy(counts.compute()), expected)
    for kind in ("i8", "f4", "f8"):
        sums, _ = dc.histogram(
            x, bins=bins, range=(0, 199), weights=wrap(dirty, dirty.asarray(weights.astype(kind)))
        )
        expected, _ = np.histogram(host, bins, (0, 199), weights=weights.astype(kind))
        np.testing.assert_array_equal(dirty.asnumpy(sums.compute()), expected)

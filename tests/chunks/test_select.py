"""Chunks that are selected from: NumPy's compiled loop, and the kernels of kernel_select.cuh."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
from support.loops import compile_from

from dask_coop.algebra.bins import find_bins
from dask_coop.chunks.numpy import select

RATES = (0, 0.001, 0.04, 0.5, 0.97, 1)


@pytest.mark.parametrize("dtype", ["?", "u1", "f2", "i4", "f4", "f8", "M8[s]", "c8", "c16"])
@pytest.mark.parametrize("compiled", [True, False])
def test_numpy_chunks(monkeypatch: pytest.MonkeyPatch, dtype: str, compiled: bool) -> None:
    if compiled:
        pytest.importorskip("numba")
        compile_from(monkeypatch, 1)
    else:
        compile_from(monkeypatch, math.inf)
    rng = np.random.default_rng(0)
    for size in (0, 1, 7, 8, 9, 64, 1003):
        base = rng.integers(0, 3, 2 * size + 1).astype("i8").astype(dtype)
        for rate in RATES:
            kept = rng.random(2 * size + 1) < rate
            for begin, end, step in ((0, size, 1), (1, size + 1, 1), (0, 2 * size, 2)):
                x, mask = base[begin:end:step], kept[begin:end:step]
                found = select.compress(x, mask)
                assert found.dtype == x.dtype
                np.testing.assert_array_equal(found, x[mask])
        np.testing.assert_array_equal(select.flatnonzero(base), np.flatnonzero(base))
    x, mask = base[:1000].reshape(20, 50), rng.random((20, 50)) < 0.5
    for order in (x, x.T, np.asfortranarray(x)):
        chosen = mask.reshape(order.shape)
        np.testing.assert_array_equal(select.compress(order, chosen), order[chosen])
        np.testing.assert_array_equal(select.flatnonzero(order), np.flatnonzero(order))
    x.flags.writeable = mask.flags.writeable = False
    np.testing.assert_array_equal(select.compress(x, mask), x[mask])


def test_the_loop_is_used_where_about_half_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = pytest.importorskip("dask_coop.chunks.numpy.loops.selection")
    calls: list[int] = []

    def noted(x: Any, mask: Any, out: Any) -> None:
        calls.append(out.size)
        compress(x, mask, out)

    compress = loops.compress
    monkeypatch.setattr(loops, "compress", noted)
    x = np.arange(1 << 16, dtype="f4")
    for mask, used in ((x % 2 > 0, True), (x < 0, False), (x >= 0, False), (x < 100, False)):
        np.testing.assert_array_equal(select.compress(x, mask), x[mask])
        assert bool(calls) == used
        del calls[:]


# On a GPU.


@pytest.fixture(name="kernels")
def _kernels(cp: Any) -> Any:
    return importlib.import_module("dask_coop.chunks.cupy.select")


SIZES = (0, 1, 31, 33, 1023, 4095, 4096, 4097, 8193, 100_003, (1 << 20) + 1)
DTYPES = ("?", "i1", "u2", "f2", "i4", "f4", "f8", "u8", "c8", "c16")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rate", RATES)
def test_any_size_and_offset(cp: Any, kernels: Any, dtype: str, rate: float) -> None:
    rng = np.random.default_rng(1)
    for size in SIZES:
        kept = rng.random(size + 3) < rate
        values = (rng.integers(1, 100, size + 3) * kept).astype(dtype)
        x, mask = cp.asarray(values), cp.asarray(kept)
        # Addresses where vectors may not stand, of the elements, of the mask and of both.
        for a, b in ((0, 0), (1, 1), (0, 1), (3, 0)):
            part, chosen = slice(a, a + size), slice(b, b + size)
            found = kernels.compress(x[part], mask[chosen])
            assert found.dtype == x.dtype
            np.testing.assert_array_equal(found.get(), values[part][kept[chosen]])
            indices = kernels.flatnonzero(x[part])
            assert indices.dtype == np.int64
            np.testing.assert_array_equal(indices.get(), np.flatnonzero(values[part]))


@pytest.mark.gpu
def test_strided_chunks_and_masks_of_bytes(cp: Any, kernels: Any) -> None:
    rng = np.random.default_rng(2)
    host, kept = rng.integers(0, 3, (70, 90)).astype("f4"), rng.integers(0, 250, (70, 90), "u1")
    kept[rng.random(kept.shape) < 0.5] = 0
    x, mask = cp.asarray(host), cp.asarray(kept)
    for view in (lambda a: a, lambda a: a.T, lambda a: a[::2], lambda a: a[:, 1:-1]):
        found = kernels.compress(view(x), view(mask)).get()
        np.testing.assert_array_equal(found, view(host)[view(kept) != 0])
        found = kernels.flatnonzero(view(x)).get()
        np.testing.assert_array_equal(found, np.flatnonzero(view(host)))


@pytest.mark.gpu
def test_what_is_zero(cp: Any, kernels: Any) -> None:
    for dtype in ("f2", "f4", "f8", "c8", "c16"):
        host = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, 1e-7, 0], dtype)
        if dtype[0] == "c":
            host = np.append(host, np.array([1j, -0.0j, complex(0, np.nan)], dtype))
        found = kernels.flatnonzero(cp.asarray(host)).get()
        np.testing.assert_array_equal(found, np.flatnonzero(host))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["u1", "i4", "f4", "f8", "f2"])
def test_what_has_a_bin_is_collected(cp: Any, kernels: Any, dtype: str) -> None:
    from dask_coop.chunks.cupy.bin_lookup import look_up
    from dask_coop.cuda.devices import device

    rng = np.random.default_rng(3)
    for edges, limits in ((7, (10, 30)), (np.array([3.0, 4, 9, 40]), None)):
        bins = find_bins(edges, limits, np.dtype(dtype))
        lookup = look_up(device(0), np.dtype(dtype), bins)
        low, high = bins.edges[[0, -1]]
        for size in (0, 1, 4097, 100_003):
            host = rng.integers(0, 100, size).astype(dtype)
            inside = np.flatnonzero((host >= low) & (host <= high))
            for values, indices in ((True, False), (False, True), (True, True)):
                found, at = kernels.collect(cp.asarray(host), lookup, values, indices)
                assert (found is None, at is None) == (not values, not indices)
                if values:
                    np.testing.assert_array_equal(found.get(), host[inside])
                if indices:
                    np.testing.assert_array_equal(at.get(), inside)


@pytest.mark.gpu
@pytest.mark.usefixtures("gives_back")
def test_more_than_32_bits_of_elements(cp: Any, kernels: Any) -> None:
    n = (1 << 31) + 4099
    mask = cp.zeros(n, "?")
    places = [0, 5, (1 << 31) - 1, 1 << 31, n - 1]
    mask[cp.asarray(places)] = True
    assert kernels.flatnonzero(mask).tolist() == places
    x = cp.zeros(n, "u1")
    x[cp.asarray(places)] = cp.arange(5, dtype="u1") + 1
    assert kernels.compress(x, mask).tolist() == [1, 2, 3, 4, 5]
    mask = ~mask
    left = kernels.compress(x, mask)
    assert left.size == n - 5
    assert not left.any()
    # Indices take 17 GB.
    del x, left
    cp.get_default_memory_pool().free_all_blocks()
    indices = kernels.flatnonzero(mask)
    assert indices.size == n - 5
    assert indices[[0, 4, -2, -1]].tolist() == [1, 6, n - 3, n - 2]
    assert bool((cp.diff(indices[-4000:]) == 1).all())


@pytest.mark.gpu
def test_every_element_of_the_results_is_written(cp: Any, kernels: Any) -> None:
    pool = cp.cuda.MemoryPool()

    def poisoned(size: int) -> Any:
        memory = pool.malloc(size)
        if size:
            memory.memset_async(0xA5, size)
        return memory

    rng = np.random.default_rng(4)
    host = rng.integers(0, 100, 1_000_003).astype("f4")
    with cp.cuda.using_allocator(poisoned):
        x = cp.asarray(host)
        for rate in RATES:
            kept = rng.random(host.size) < rate
            mask = cp.asarray(kept)
            first = kernels.compress(x, mask)
            np.testing.assert_array_equal(first.get(), host[kept])
            np.testing.assert_array_equal(kernels.flatnonzero(mask).get(), np.flatnonzero(kept))

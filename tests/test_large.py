"""Sizes and layouts that only a GPU's kernels tell apart: odd lengths, offsets, 64-bit counts."""

from __future__ import annotations

import importlib
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import missing_for_gpu

import dask_coop as dc

pytestmark = pytest.mark.gpu

SIZES = (0, 1, 31, 32, 33, 3839, 3841, (1 << 20) - 1, (1 << 20) + 1)


@pytest.fixture(name="cp")
def _cp() -> Any:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    return importlib.import_module("cupy")


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


def test_more_than_32_bits_of_elements(cp: Any) -> None:
    n = (1 << 31) + 7
    chunk = cp.ones(n, "u1")
    chunk[-1] = 3
    x = wrap(cp, chunk)
    assert int(dc.sum(x).compute()) == n + 2
    assert int(dc.max(x).compute()) == 3
    counts, _ = dc.histogram(x, bins=4, range=(0, 4))
    assert counts.compute().tolist() == [0, n - 1, 0, 1]
    last = dc.cumsum(x, dtype="u4").compute()[-3:]
    assert last.tolist() == [(n - 2) % 2**32, (n - 1) % 2**32, (n + 2) % 2**32]


def test_outputs_are_written_whole(cp: Any) -> None:
    for n in (33, 5000, 1_000_001):
        poison = cp.full(n, -1, "i8")
        del poison
        result = dc.cumsum(wrap(cp, cp.ones(n, "i8"))).compute()
        np.testing.assert_array_equal(cp.asnumpy(result), np.arange(1, n + 1))

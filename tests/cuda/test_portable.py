"""The kernels that GPUs without clusters and bulk copies get, on one that has both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_coop as dc

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _portable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from dask_coop.cuda.devices import device

    monkeypatch.setenv("DASK_COOP_PORTABLE", "1")
    device.cache_clear()
    assert not device(0).hopper
    yield
    device.cache_clear()


def on_gpu(x: Any, chunks: Any) -> da.Array:
    import cupy

    return da.from_array(cupy.asarray(x), chunks=chunks, asarray=False)


@pytest.mark.parametrize("dtype", ["f4", "i4", "f8", "u1"])
@pytest.mark.parametrize("shape", [(3_000_001,), (700, 5000), (40, 300, 70), (9, 70_000)])
def test_scans(shape: tuple[int, ...], dtype: str) -> None:
    host = np.random.default_rng(0).integers(0, 3, shape).astype(dtype)
    x = on_gpu(host, tuple(-(-n // 2) for n in shape))
    for axis in range(host.ndim):
        got = dc.cumsum(x, axis=axis).compute(scheduler="synchronous")
        np.testing.assert_array_equal(got.get(), np.cumsum(host, axis))


@pytest.mark.parametrize("dtype", ["f4", "i4", "f8", "u1"])
@pytest.mark.parametrize("bins", [10, 3000, 60_000, 131_072, 500_000])
def test_histograms(bins: int, dtype: str) -> None:
    import cupy

    host = np.random.default_rng(0).integers(0, 200, 1_000_003).astype(dtype)
    got, _ = dc.histogram(on_gpu(host, 600_000), bins, (0, 199))
    expected, _ = np.histogram(host, bins, (0, 199))
    result = cupy.asnumpy(got.compute(scheduler="synchronous"))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("strategy", ["split", "packed"])
def test_blocks_that_share_samples_without_a_cluster(strategy: str) -> None:
    import importlib

    import cupy

    from dask_coop.algebra.bins import find_bins

    cuda = importlib.import_module("dask_coop.chunks.cupy.histogram_strategies")
    host = np.random.default_rng(0).random(300_001, dtype="f4")
    bins, table = find_bins(150_000, (0, 1), host.dtype), cupy.zeros(150_000, "i8")
    cuda.count(cupy.asarray(host), None, bins, table, strategy=strategy)
    np.testing.assert_array_equal(table.get(), np.histogram(host, 150_000, (0, 1))[0])


def test_what_needs_the_hardware_is_refused() -> None:
    import importlib

    import cupy

    from dask_coop.algebra.bins import find_bins

    cuda = importlib.import_module("dask_coop.chunks.cupy.histogram_strategies")
    x = cupy.zeros(5, "f4")
    with pytest.raises(ValueError, match=r"needs compute capability 9\.0"):
        cuda.count(
            x, None, find_bins(9, (0, 1), x.dtype), cupy.zeros(9, "i8"), strategy="distributed"
        )

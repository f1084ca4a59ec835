"""Copies to the GPUs and back on clusters: by pinned memory, beside dask-cuda's spilling."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

import dask_coop as dc

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.xdist_group("node"),
    pytest.mark.timeout(300),
    # Warnings of distributed's shutdown are not about this library.
    pytest.mark.filterwarnings("default"),
]

#: Chunks of 8 MiB, which go through buffers; in all more than a GPU is given below.
HOST = np.random.default_rng(17).normal(size=(1 << 13, 1 << 11)).astype("f4")
CHUNKS = (1 << 10, 1 << 11)


@contextmanager
def gpu_cluster(**options: Any) -> Iterator[Any]:
    """Yield a client of a worker for each GPU."""
    dask_cuda = pytest.importorskip("dask_cuda")
    with (
        dask_cuda.LocalCUDACluster(dashboard_address=":0", **options) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _buffers() -> int:
    from dask_coop.cuda import transfer

    gc.collect()
    return sum(isinstance(thing, transfer.Buffer) for thing in gc.get_objects())


def _close() -> None:
    from dask_coop.cuda import transfer

    transfer.close()


def used(client: Any) -> list[bool]:
    """Return whether each worker has pinned memory, and have it given back."""
    found = [buffers > 0 for buffers in client.run(_buffers).values()]
    client.run(_close)
    assert not any(client.run(_buffers).values())
    return found


def lazy() -> da.Array:
    return da.from_array(HOST, chunks=CHUNKS)


def test_all_ways_there_and_back_use_the_workers_pinned_memory() -> None:
    with gpu_cluster() as client:
        x = lazy()
        plain = x.to_backend("cupy").to_backend("numpy")
        np.testing.assert_array_equal(plain.compute(), HOST)
        assert not any(used(client))
        client.register_plugin(dc.CoopPlugin(["float32"]))
        np.testing.assert_array_equal(plain.compute(), HOST)
        assert any(used(client))
        there = x.to_backend("cupy").persist()
        wait(there)
        assert any(used(client))
        np.testing.assert_array_equal(there.to_backend("numpy").compute(), HOST)
        counts, _ = dc.histogram(dc.to_gpu(x), 100, (-3, 3))
        back = dc.to_host(dc.cumsum(dc.to_gpu(x), axis=0))
        counts, back = dask.compute(dc.to_host(counts), back)
        np.testing.assert_array_equal(counts, np.histogram(HOST, 100, (-3, 3))[0])
        np.testing.assert_allclose(back, HOST.cumsum(0, "f8"), rtol=1e-5, atol=1e-4)
        assert any(buffers > 0 for buffers in client.run(_buffers).values())
        client.unregister_worker_plugin("dask-coop")
        assert not any(client.run(_buffers).values())
        np.testing.assert_array_equal(plain.compute(), HOST)
        assert not any(used(client))


def _where(dask_worker: Any) -> tuple[int, int]:
    """Return the bytes of the chunks on the GPU, and how many were spilled to the host."""
    device = sum(chunk.nbytes for chunk in dask_worker.data.device.values())
    return device, len(dask_worker.data.host)


def test_spilling_goes_on_beside_it() -> None:
    limit = 16 << 20
    with gpu_cluster(device_memory_limit=limit) as client:
        client.register_plugin(dc.CoopPlugin(["float32"]))
        there = dc.to_gpu(lazy()).persist()
        wait(there)
        held = client.run(_where).values()
        assert all(device <= limit for device, _ in held)
        assert sum(spilled for _, spilled in held) > 0
        assert any(used(client))
        np.testing.assert_array_equal(dc.to_host(there).compute(), HOST)
        total = dc.to_host(dc.sum(there, axis=0)).compute()
        np.testing.assert_allclose(total, HOST.sum(0, "f8"), rtol=1e-4, atol=1e-3)
        assert any(used(client))
        assert all(device <= limit for device, _ in client.run(_where).values())


def test_a_worker_that_closes_gives_pinned_memory_back() -> None:
    _close()
    assert _buffers() == 0
    # A worker in this process, which goes on.
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(dc.CoopPlugin(["float32"]))
        x = dc.to_host(dc.to_gpu(lazy()))
        np.testing.assert_array_equal(x.compute(), HOST)
        assert _buffers() > 0
    assert _buffers() == 0


def test_a_worker_without_a_gpu_says_so() -> None:
    with (
        LocalCluster(
            n_workers=1, dashboard_address=":0", env={"CUDA_VISIBLE_DEVICES": ""}
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(dc.CoopPlugin())
        words = "cannot copy a chunk to a GPU, because this process has none: cudaErrorNoDevice"
        with pytest.raises(RuntimeError, match=words):
            dc.to_gpu(lazy()).compute()

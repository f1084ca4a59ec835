"""Two GPUs through LocalCUDACluster, with the plugin."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import missing_for_gpu

import dask_coop as dc

pytestmark = [
    pytest.mark.gpu,
    # Warnings of distributed's shutdown are not about this library.
    pytest.mark.filterwarnings("default"),
]


def test_two_gpus_give_numpys_results() -> None:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    dask_cuda = pytest.importorskip("dask_cuda")
    from distributed import Client

    host = np.random.default_rng(0).integers(-1000, 1000, (4000, 33))
    with (
        dask_cuda.LocalCUDACluster(n_workers=2, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(dc.CoopPlugin(["int64"]))
        x = da.from_array(host, chunks=(300, 20)).map_blocks(
            cupy.asarray, dtype=host.dtype, meta=cupy.empty((0, 0), host.dtype)
        )
        counts, _ = dc.histogram(x, bins=50, range=(-1000, 1000))
        total, mean, found, running = dask.compute(
            dc.sum(x, axis=0), dc.describe(x).mean, counts, dc.cumsum(x, axis=0)
        )
        assert len(client.scheduler_info()["workers"]) == 2
    np.testing.assert_array_equal(cupy.asnumpy(total), host.sum(0))
    assert float(mean) == pytest.approx(host.mean())
    np.testing.assert_array_equal(cupy.asnumpy(found), np.histogram(host, 50, (-1000, 1000))[0])
    np.testing.assert_array_equal(cupy.asnumpy(running), host.cumsum(0))

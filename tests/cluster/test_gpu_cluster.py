"""GPUs through LocalCUDACluster and the command line, in processes of their own."""

from __future__ import annotations

import importlib
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from support.processes import printed

import dask_coop as dc

pytestmark = [
    pytest.mark.gpu,
    # Warnings of distributed's shutdown are not about this library.
    pytest.mark.filterwarnings("default"),
]


def test_two_gpus_give_numpys_results() -> None:
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


run = partial(printed, "-m", "dask_coop")


def gpus() -> list[dict[str, Any]]:
    """Return name, memory and compute capability of every GPU, asked of CuPy."""
    from cupy.cuda import runtime

    found = map(runtime.getDeviceProperties, range(runtime.getDeviceCount()))
    return [
        {
            "name": gpu["name"].decode(),
            "memory": gpu["totalGlobalMem"],
            "compute_capability": f"{gpu['major']}.{gpu['minor']}",
            "multiprocessors": gpu["multiProcessorCount"],
        }
        for gpu in found
    ]


def test_info_tells_of_every_gpu(tmp_path: Path) -> None:
    text = run("info", cwd=tmp_path)
    for number, gpu in enumerate(gpus()):
        assert f"GPU {number}: {gpu['name']}\n" in text
    assert re.findall(r"^  compute capability +(\S+)$", text, re.MULTILINE) == [
        gpu["compute_capability"] for gpu in gpus()
    ]
    (version,) = re.findall(r"^  CuPy +(\S+)$", text, re.MULTILINE)
    assert version == importlib.import_module("cupy").__version__
    facts = json.loads(run("info", "--json", cwd=tmp_path))
    assert facts["no_gpu"] is None
    for told, gpu in zip(facts["gpus"], gpus(), strict=True):
        assert told.items() >= gpu.items()
        assert isinstance(told["cooperative_launch"], bool)
        assert told["shared_memory_per_block"] >= 48 << 10


@pytest.mark.parametrize("source", ["skimage:moon", "file.npy"])
@pytest.mark.parametrize("cluster", [False, True])
def test_describe_works_on_gpus(tmp_path: Path, source: str, cluster: bool) -> None:
    pytest.importorskip("matplotlib")
    if cluster:
        pytest.importorskip("dask_cuda")
    if source == "skimage:moon":
        data = pytest.importorskip("skimage.data")
        host = data.moon()
    else:
        host = np.random.default_rng(0).normal(size=(300, 400)).astype("f4")
        np.save(tmp_path / source, host)
    text = run("describe", source, "--figure", *(["--cluster"] if cluster else []), cwd=tmp_path)
    names = [gpu["name"] for gpu in gpus()]
    expected = f"LocalCUDACluster, {len(names)} x {names[0]}" if cluster else f"on {names[0]}"
    (said,) = re.findall(r"^backend: (.*)$", text, re.MULTILINE)
    assert expected in said
    told = dict(re.findall(r"^  (\S.*?)  +(\S+)$", text, re.MULTILINE))
    assert int(told["count"]) == host.size
    assert float(told["max"]) == pytest.approx(host.max())
    assert float(told["mean"]) == pytest.approx(host.mean(dtype="f8"), rel=1e-5, abs=1e-5)
    assert (tmp_path / f"{source.partition(':')[2] or 'file'}-histogram.png").stat().st_size > 1000

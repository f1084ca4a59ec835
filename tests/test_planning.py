"""With query planning on, which is decided when Dask is imported: in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

PREAMBLE = """
import dask
import dask.array as da
import numpy as np
import dask_coop as dc
assert da.array_expr_enabled()
host = np.random.default_rng(0).random((40, 30))
x = da.from_array(host, chunks=(7, 30)) + 1
y = host + 1
same = np.testing.assert_allclose
"""


def run(script: str) -> None:
    """Run a script in a process in which Dask plans queries."""
    environment = {**os.environ, "DASK_ARRAY__QUERY_PLANNING": "true"}
    command = [sys.executable, "-W", "ignore", "-c", PREAMBLE + script]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_kind_of_function_takes_and_returns_expressions() -> None:
    run(
        """
for got, expected in [
    (dc.sum(x), y.sum()),
    (dc.sum(x, axis=0, keepdims=True), y.sum(0, keepdims=True)),
    (dc.max(x, axis=-1), y.max(-1)),
    (dc.argmin(x), y.argmin()),
    (dc.var(x, ddof=1), y.var(ddof=1)),
    (dc.describe(x).std, y.std()),
    (dc.cumsum(x, axis=0), y.cumsum(0)),
    (dc.cumsum(x), y.cumsum()),
    (dc.histogram(x, 5)[0], np.histogram(y, 5)[0]),
    (dc.histogram(x, 5)[1], np.histogram(y, 5)[1]),
    (dc.histogram(x, 5, (1, 2), weights=x)[0], np.histogram(y, 5, (1, 2), weights=y)[0]),
    (dc.histogram(x, 5, (1, 2), axis=1, flow=True)[0].sum(0)[1:-1], np.histogram(y, 5, (1, 2))[0]),
    (dc.histogram(x, 5, (x.min(), x.max()))[1], np.histogram(y, 5)[1]),
    (dc.histogramdd(x[:, :2], 3)[0], np.histogramdd(y[:, :2], 3)[0]),
    (dc.histogram2d(x, x + x, 3)[2], np.histogram2d(y.ravel(), (y + y).ravel(), 3)[2]),
    (dc.bincount((x * 9).astype("u1"), minlength=256), np.bincount((y * 9).astype("u1").ravel(),
                                                                   minlength=256)),
    (dc.digitize(x, [1.2, 1.7]), np.digitize(y, [1.2, 1.7])),
    (dc.transpose(x), y.T),
    (dc.transpose(x, contiguous=True), y.T),
    (dc.matmul(x, dc.transpose(x)), y @ y.T),
    (dc.sum(host), host.sum()),
    (dc.reduce(x, dc.Monoid("hypot", np.hypot, 0, "f8"), axis=0), np.hypot.reduce(y, 0)),
]:
    assert type(got) is da.Array, type(got)
    assert got.shape == np.shape(expected) and got.dtype == np.asarray(expected).dtype
    same(got.compute(), expected)
"""
    )


def test_results_go_on_as_expressions() -> None:
    run(
        """
total = dc.sum(x, axis=0)
same((x / total - total).sum().compute(), (y / y.sum(0) - y.sum(0)).sum())
same(dc.cumsum(dc.cumsum(x, axis=0) + x, axis=1).compute(), (y.cumsum(0) + y).cumsum(1))
same(dask.compute(x, dc.mean(x), total)[1], y.mean())
kept = dc.cumsum(x, axis=0).persist()
assert kept.chunks == x.chunks
same((kept * 2).compute(), y.cumsum(0) * 2)
assert dc.sum(x).name == dc.sum(x).name != dc.sum(x + 1).name
"""
    )


def test_results_are_computed_by_other_processes() -> None:
    run(
        """
from distributed import Client, LocalCluster
if __name__ == "__main__":
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as c, Client(c):
        same((x + dc.cumsum(x, axis=0)).compute(), y + y.cumsum(0))
        same(dc.sum(x.persist()).compute(), y.sum())
"""
    )

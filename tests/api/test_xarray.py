"""xarray: its arrays go in where Dask's functions take them, and ours run inside apply_ufunc."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_coop as dc

xr: Any = pytest.importorskip("xarray")


def temperature() -> tuple[Any, Any]:
    host = np.random.default_rng(0).normal(size=(20, 6, 5))
    return host, xr.DataArray(host, dims=("time", "y", "x"), name="t").chunk(time=7, y=3)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (dc.sum, np.sum),
        (dc.mean, np.mean),
        (dc.argmax, np.argmax),
        (dc.std, np.std),
        (dc.cumsum, np.cumsum),
        (lambda x: dc.cumsum(x, axis=1), lambda x: np.cumsum(x, 1)),
        (lambda x: dc.histogram(x, 8)[0], lambda x: np.histogram(x, 8)[0]),
        (lambda x: dc.transpose(x, (2, 0, 1)), lambda x: np.transpose(x, (2, 0, 1))),
        (lambda x: dc.matmul(x, x.transpose("time", "x", "y")), lambda x: x @ x.swapaxes(1, 2)),
    ],
)
def test_its_arrays_are_taken_like_dasks(
    function: Callable[[Any], Any], expected: Callable[[Any], Any]
) -> None:
    host, x = temperature()
    lazy = function(x)
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy.compute(), expected(host))


def test_functions_run_inside_apply_ufunc() -> None:
    host, x = temperature()
    total = xr.apply_ufunc(
        dc.cumsum,
        x,
        input_core_dims=[["time"]],
        output_core_dims=[["time"]],
        kwargs={"axis": -1},
        dask="allowed",
    ).transpose(*x.dims)
    assert isinstance(total.data, da.Array)
    assert total.dims == x.dims
    np.testing.assert_allclose(total.compute(), host.cumsum(0))
    spread = xr.apply_ufunc(
        dc.var, x, input_core_dims=[["time"]], kwargs={"axis": -1}, dask="allowed"
    )
    assert spread.dims == ("y", "x")
    np.testing.assert_allclose(spread.compute(), host.var(0))


def test_functions_run_through_map_blocks() -> None:
    host, x = temperature()
    within = x.chunk(time=-1).map_blocks(
        lambda block: block - dc.mean(block.data, axis=0).compute()
    )
    np.testing.assert_allclose(within.compute(), host - host.mean(0))

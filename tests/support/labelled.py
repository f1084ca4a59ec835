"""Arrays with labels, and what results with labels are held to."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr

__all__ = ["check", "chunked", "field", "xr"]


def field(dtype: str = "f8") -> Any:
    """Return a field with all kinds of coordinates, and with NaN if it is of floats."""
    rng = np.random.default_rng(0)
    host = (10 * rng.normal(size=(20, 6, 5))).astype(dtype)
    if host.dtype.kind == "f":
        host[rng.random(host.shape) < 0.1] = np.nan
        host[:, 2, 3] = np.nan
    coords = {
        "time": pd.date_range("2001-01-20", periods=20),
        "lat": ("y", np.linspace(-50, 50, 6), {"units": "degrees"}),
        "y": 10 * np.arange(6),
        "area": (("y", "x"), rng.random((6, 5))),
        "zone": ("time", list("abcde" * 4)),
        "level": 500,
    }
    attrs = {"units": "K", "long_name": "temperature"}
    return xr.DataArray(host, coords, ("time", "y", "x"), "t2m", attrs)


def chunked(x: Any) -> Any:
    """Return an array in chunks along all dimensions, and its coordinates as they are."""
    return x.copy(data=da.from_array(x.values, chunks=(7, 4, 3)[: x.ndim]))


def check(found: Any, expected: Any) -> None:
    """Hold a lazy result of ours to one of xarray's: values, dtype, names, attributes."""
    assert dask.is_dask_collection(found.data)
    assert found.dtype == expected.dtype
    assert found.dims == expected.dims
    assert found.name == expected.name
    assert found.attrs == expected.attrs
    assert found.indexes.keys() == expected.indexes.keys()
    xr.testing.assert_identical(found.coords.to_dataset(), expected.coords.to_dataset())
    tolerance = 1e-5 if found.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(found.compute(), expected, rtol=tolerance, atol=tolerance)

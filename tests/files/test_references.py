"""Chunks of HDF5 files that references present as Zarr arrays are read by way of their store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_coop as dc
from dask_coop.api.call import reading

h5py = pytest.importorskip("h5py")
pytest.importorskip("fsspec")
pytest.importorskip("zarr", minversion="3.1")


def references(path: Path, values: Any) -> dict[str, Any]:
    """Return references to the chunks of a file, as kerchunk writes them."""
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=values, chunks=(8, 5), compression="gzip", shuffle=True)
    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2})}
    refs["v/.zarray"] = json.dumps(
        {
            "zarr_format": 2,
            "shape": values.shape,
            "chunks": (8, 5),
            "dtype": values.dtype.str,
            "order": "C",
            "fill_value": None,
            "filters": [{"id": "shuffle", "elementsize": values.dtype.itemsize}],
            "compressor": {"id": "zlib", "level": 4},
        }
    )
    refs["v/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time", "x"], "scale_factor": 0.5})

    def note(chunk: Any) -> None:
        number = [at // n for at, n in zip(chunk.chunk_offset, (8, 5), strict=True)]
        key = "v/" + ".".join(map(str, number))
        refs[key] = [str(path), chunk.byte_offset, chunk.size]

    with h5py.File(path, "r") as file:
        file["v"].id.chunk_iter(note)
    return {"version": 1, "refs": refs}


def test_references(tmp_path: Path) -> None:
    values = np.arange(20 * 13, dtype="i2").reshape(20, 13)
    options = {"fo": references(tmp_path / "x.h5", values), "remote_protocol": "file"}
    x = dc.from_zarr("reference://", "v", storage_options=options)
    assert dc.explain(dc.sum(x))[0].served_by == "dask_coop"
    np.testing.assert_array_equal(x.compute(), values)
    y = da.from_zarr("reference://", "v", storage_options=options)
    np.testing.assert_array_equal(dc.cumsum(y, 0).compute(), np.cumsum(values, 0))
    assert dc.explain(dc.sum(y))[0].served_by == "dask_coop"


def test_references_in_xarray(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    values = np.arange(20 * 13, dtype="i2").reshape(20, 13)
    options = {"fo": references(tmp_path / "x.h5", values), "remote_protocol": "file"}
    kwargs = {"consolidated": False, "storage_options": options}
    ds = xr.open_dataset("reference://", engine="zarr", chunks={}, backend_kwargs=kwargs)
    assert reading.read_by_us(ds.v.data) is not ds.v.data
    assert dc.explain(dc.sum(ds.v.data))[0].served_by == "dask_coop"
    np.testing.assert_array_equal(dc.cumsum(ds.v.data, 0).compute(), np.cumsum(values / 2, 0))

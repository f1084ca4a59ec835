"""Numbers that are packed by the CF conventions, decoded by xarray, a chunk at a time.

NetCDF files and what is made of them hold integers that stand for floats or dates, and tell by the
attributes of an array how: ``scale_factor``, ``add_offset``, ``_FillValue``, ``units: days since
2000-01-01`` and others. Where there are none, xarray is not imported.
"""

from __future__ import annotations

import base64
import struct
import warnings
from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np

from dask_coop.errors import UserError

#: What xarray heeds. It does not apply valid_range, so that is not among them.
PACKING = ("_Unsigned", "_FillValue", "missing_value", "scale_factor", "add_offset")
TIMES = ("units", "calendar", "dtype")


def packing(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return those attributes of an array of `dtype` that say how its elements are packed."""
    if dtype.kind not in "iuf":
        return {}
    found = {
        name: _plain(name, attributes[name], dtype)
        for name in (*PACKING, *TIMES)
        if attributes.get(name) is not None
    }
    # Other units, and other dtypes, are for people.
    units, stored = str(found.get("units", "")), str(found.get("dtype", ""))
    if " since " not in units and not stored.startswith("timedelta64"):
        found = {name: found[name] for name in found if name not in ("units", "calendar")}
    if stored != "bool" and not stored.startswith("timedelta64"):
        found.pop("dtype", None)
    for name in ("_FillValue", "missing_value"):
        # What is NaN needs no mask.
        if name in found and np.all(found[name] != found[name]):
            del found[name]
    return {} if found.keys() <= {"calendar"} else found


def _plain(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """Return an attribute as netCDF means it: HDF5 has arrays of one, Zarr encodes floats."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if name == "_FillValue" and isinstance(value, str) and dtype.kind == "f":
        try:
            return struct.unpack("<d", base64.standard_b64decode(value))[0]
        except (ValueError, struct.error):
            return value
    return value


def decode(x: da.Array, attributes: dict[str, Any]) -> tuple[da.Array, list[str]]:
    """Decode an array by its `packing`.

    Returns
    -------
    decoded : dask.array.Array
    notes : list of str
        What was decoded, and what was not, a line each.

    Raises
    ------
    UserError
        If there is no xarray, or it refuses these attributes.
    """
    said = ", ".join(f"{name} {value}" for name, value in attributes.items())
    try:
        from xarray import Variable
        from xarray.coders import CFDatetimeCoder, CFTimedeltaCoder
        from xarray.conventions import decode_cf_variable
    except ImportError as error:
        raise UserError(
            f"its numbers are packed ({said}), and xarray, which decodes them, cannot be imported "
            f"({error}); run `pip install dask-coop[cli]`"
        ) from error

    def decoded(by: dict[str, Any]) -> da.Array:
        packed = Variable(tuple(f"axis{i}" for i in range(x.ndim)), x, by)
        # Dates of other calendars would be objects, which nothing here describes.
        dates = CFDatetimeCoder(use_cftime=False)
        with warnings.catch_warnings():
            # Of attributes that no writer should have written, and of what later versions change.
            warnings.simplefilter("ignore")
            found: da.Array = decode_cf_variable(
                "data",
                packed,
                concat_characters=False,
                decode_times=dates,
                decode_timedelta=CFTimedeltaCoder(),
            ).data
        return found

    try:
        result, notes = decoded(attributes), []
    except (ValueError, TypeError, OverflowError, ImportError) as error:
        raw = {name: value for name, value in attributes.items() if name not in TIMES}
        if raw == attributes:
            raise UserError(f"xarray cannot decode its numbers ({said}): {error}") from error
        kept = [name for name in TIMES if name in attributes]
        of = ", ".join(f"{name} {attributes[name]}" for name in kept)
        notes = [f"not decoded: {of} (NumPy has no such dates), so these are plain numbers"]
        result = decode(x, raw)[0] if raw else x
        attributes = raw
    if attributes:
        said = ", ".join(f"{name} {value}" for name, value in attributes.items())
        notes.insert(0, f"decoded: {said} ({x.dtype} to {result.dtype})")
    return result, notes
